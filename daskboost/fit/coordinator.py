"""The decisions of a fit: a plain synchronous function over engines. It knows nothing of Dask and never sees rows.

    base score -> for every round (`rounds.py`): rows -> gradients -> trees -> leaf values -> metrics -> stop?
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from daskboost.devices.cpu.threads import Threads
from daskboost.fit import messages as m
from daskboost.fit.base_score import base_margins, base_score_of
from daskboost.fit.leaves import MarginBounds
from daskboost.fit.outbox import AsksEngines, Outbox
from daskboost.fit.rounds import rounds_of
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.fit.stopping import Stopper, metric_values
from daskboost.params import REPORT_NAME
from daskboost.tree.growth import walk_arrays

logger = logging.getLogger(__name__)

ASK_SECONDS = 0.1
"""Work that an engine with whole rounds is given at a time: it answers nothing else meanwhile."""


def fit(
    engines: AsksEngines, spec: FitSpec, threads: Threads, report: Report, *, whole_rounds: bool = False
) -> Progress:
    """Run a whole fit over `engines`; with `whole_rounds` the only one of them grows these itself (`WholeRounds`).

    Raises
    ------
    DataError
        The objective gave NaN or infinite gradients, or leaf values with which margins exceed float32.
    """
    logger.info("%s", spec.recipe)
    outbox = Outbox(engines)
    progress = Progress(base_score_of(outbox, spec), [*spec.earlier_trees], [*spec.earlier_outputs])
    start = base_margins(spec, progress.base_score)
    outbox.later(m.SetBaseMargin(start))
    bounds = MarginBounds(spec.objective.name, start)
    for tree, output in zip(spec.earlier_trees, spec.earlier_outputs, strict=True):
        outbox.later(m.AddTree(walk_arrays(tree), output))
        bounds.add(tree, output, spec.first_iteration - 1)
    stopper = Stopper(spec, progress)
    rounds = (
        asked_rounds(outbox, len(spec.learning_rates)) if whole_rounds
        else (grown.finished() for grown in rounds_of(spec, outbox, threads))
    )  # fmt: skip
    for iteration, grown in enumerate(rounds, spec.first_iteration):
        own_outputs = [outputs[0] for outputs in spec.recipe.tree_outputs]
        for tree, output in zip(grown.trees, own_outputs, strict=True):
            bounds.add(tree, output, iteration)
        progress.trees += grown.trees
        progress.outputs += own_outputs
        if grown.report is not None:
            for name, value in grown.report.values.items():
                progress.history.setdefault(REPORT_NAME, {}).setdefault(name, []).append(value)
        stop = stopper.after_round(iteration, metric_values(spec, grown.metrics) if spec.eval_names else [])
        if report(iteration, progress) or stop:
            break
    return progress


def asked_rounds(outbox: Outbox, n_rounds: int) -> Iterator[m.Round]:
    """The same rounds from the only engine of a fit, which grows them beside its rows (`WholeRounds`).

    It is asked for as many at a time as take about `ASK_SECONDS`, so that small rounds do not wait for messages; those
    that follow the end of the fit are dropped.
    """
    n = 1
    while n_rounds > 0:
        start = time.monotonic()
        (reply,) = outbox.ask(m.GrowRounds(min(n, n_rounds)))
        seconds = time.monotonic() - start
        yield from reply.rounds
        n_rounds -= len(reply.rounds)
        n = max(1, min(2 * n, int(n * ASK_SECONDS / max(seconds, 1e-6))))
