"""The decisions of a fit: a plain synchronous function over engines. It knows nothing of Dask and never sees rows.

    base score -> for every round (`rounds.py`): rows -> gradients -> trees -> leaf values -> metrics -> stop?
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add

from daskboost.devices.cpu.threads import Threads
from daskboost.errors import DataError, DeviceError, ParameterError
from daskboost.fit import messages as m
from daskboost.fit.base_score import base_margins, base_score_of
from daskboost.fit.leaves import MarginBounds
from daskboost.fit.messages import AsksEngines, MetricParts, Outbox
from daskboost.fit.rounds import rounds_of
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.objectives.own_objective import CustomObjective, OwnQueryObjective
from daskboost.params import REPORT_NAME
from daskboost.tree.device_trees import leaf_limit
from daskboost.tree.growing_tree import walk_arrays

# The evaluation history of a fit, and when it stops early.

class Stopper:
    """Keeps the evaluation history of a fit and says when to stop."""

    def __init__(self, spec: FitSpec, progress: Progress) -> None:
        self._spec, self._progress = spec, progress
        self._iteration = spec.first_iteration - 1
        """The last one."""
        if spec.early_stopping is not None and spec.earlier_best is not None:
            progress.best_iteration, progress.best_score = spec.earlier_best

    def after_round(self, iteration: int, values: list[list[tuple[str, float]]]) -> bool:
        """Record the metrics of a round; whether training has stopped improving.

        NaN is no improvement over anything.

        Raises
        ------
        DataError
            There is to be an end, and the metric has been NaN in all rounds.
        ParameterError
            Two metrics gave one name, whose values would end in one list.
        """
        spec, progress = self._spec, self._progress
        self._iteration = iteration
        for name, row in zip(spec.eval_names, values, strict=True) if values else ():
            _refuse_twins([metric_name for metric_name, _ in row])
            for metric_name, value in row:
                progress.history.setdefault(name, {}).setdefault(metric_name, []).append(value)
        if spec.early_stopping is None:
            return False
        (name, score), metric, best = values[-1][-1], spec.metrics[-1][-1], progress.best_score
        first = next(filter(math.isfinite, progress.history[spec.eval_names[-1]][name]), 0.0)
        delta = spec.early_stopping.least_share * abs(first)
        better = best is None or (score > best + delta if metric.maximize else score < best - delta)
        if better and not math.isnan(score):
            progress.best_score, progress.best_iteration = score, iteration
        n_rounds = iteration - spec.first_iteration + 1
        if progress.best_iteration is not None:
            is_late = iteration - progress.best_iteration >= spec.early_stopping.rounds
            return is_late or self._is_behind(n_rounds, maximize=metric.maximize)
        if n_rounds >= min(spec.early_stopping.rounds, len(spec.learning_rates)):
            raise DataError(
                f"metric {values[-1][-1][0]!r} of evaluation set {spec.eval_names[-1]!r} was NaN in all of the first "
                f"{n_rounds} rounds, so early stopping has nothing to compare; use an evaluation set on which it is "
                "defined (auc needs both classes), or another metric"
            )
        return False

    def _is_behind(self, n_rounds: int, *, maximize: bool) -> bool:
        """Return whether the best score after so many rounds is no better than a limit."""
        stopping, best = self._spec.early_stopping, self._progress.best_score
        if stopping is None or best is None or not stopping.limits or n_rounds < stopping.rounds:
            return False
        limit = stopping.limits[min(n_rounds, len(stopping.limits)) - 1]
        return best <= limit if maximize else best >= limit

    @property
    def n_sure(self) -> int:
        """Rounds that are sure to come, unless a callback or a limit ends the fit: those until it stops if none is
        better."""
        spec, best = self._spec, self._progress.best_iteration
        if spec.early_stopping is None:
            return len(spec.learning_rates)
        last_better = spec.first_iteration - 1 if best is None else best
        return max(1, last_better + spec.early_stopping.rounds - self._iteration)


def _refuse_twins(names: list[str]) -> None:
    """Metrics may name their values themselves, so that only an evaluation tells two of one name."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ParameterError(
            f"two metrics of eval_metric are named {twice[0]!r} (all: {names}), so their values could not be told "
            "apart; return (name, value) from functions, or give each a name of its own (def instead of lambda)"
        )


def metric_values(spec: FitSpec, parts: Sequence[MetricParts]) -> list[list[tuple[str, float]]]:
    """Name and value of each metric on each evaluation set."""
    return [
        [
            metric.named_value(reduce(add, [metric.state_from_arrays(part.states[s][k]) for part in parts]))
            for k, metric in enumerate(metrics)
        ]
        for s, metrics in enumerate(spec.metrics)
    ]


logger = logging.getLogger(__name__)

ASK_SECONDS = 0.1
"""Work that an engine with whole rounds is given at a time: it answers nothing else meanwhile."""
LEAST_PART = 0.1
"""The least part of it, though the fit may have stopped before such rounds: fewer would wait for messages."""
MORE_ROUNDS = 8
"""How many times as many rounds as before are asked for at the most: what a few took tells what many will."""
STEP_S = 1e-9
"""Seconds in which a row goes down a level by a feature, or a slot of a histogram is searched, on one thread."""

TURN_S = 0.05
"""Seconds after which a fit asks again whether it may join GPUs that another one has joined."""


def fit(engines: AsksEngines, spec: FitSpec, threads: Threads, report: Report) -> Progress:
    """Run a whole fit over `engines`.

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
    bounds.start_with(spec.earlier_trees, spec.earlier_outputs, spec.first_iteration - 1)
    stopper = Stopper(spec, progress)
    batches: Iterable[Sequence[m.Round]] = (
        asked_rounds(outbox, spec, stopper) if grow_whole_rounds(outbox, spec)
        else ((grown.finished(),) for grown in rounds_of(spec, outbox, threads))
    )  # fmt: skip
    rounds = bounds.checked(batches, spec.first_iteration)
    for iteration, grown in enumerate(rounds, spec.first_iteration):
        progress.add_round(spec, grown.trees, grown.chances)
        if grown.report is not None:
            for name, value in grown.report.values.items():
                progress.history.setdefault(REPORT_NAME, {}).setdefault(name, []).append(value)
        stop = stopper.after_round(iteration, metric_values(spec, grown.metrics) if spec.eval_names else [])
        if report(iteration, progress) or stop:
            break
    return progress


def grow_whole_rounds(outbox: Outbox, spec: FitSpec) -> bool:
    """Whether the engines of a fit grow whole rounds in step (`WholeRounds`); otherwise the coordinator grows them.

    Raises
    ------
    DeviceError
        GPUs that are to be joined cannot be.
    """
    replies = outbox.ask(m.WhyNotWhole())
    if any(reply.is_for_now for reply in replies):
        logger.info("waiting: %s", replies[0].text)
    while any(reply.is_for_now for reply in replies):
        time.sleep(TURN_S)
        replies = outbox.ask(m.WhyNotWhole())
    reasons = {reply.text for reply in replies if reply.text}
    wanted = {"reduction": (spec.params.reduction, "nccl"), "partition_by": (spec.params.partition_by, "columns")}
    for name, (given, joins) in wanted.items() if reasons and outbox.n_engines > 1 else ():
        if given == joins:
            raise DeviceError(
                f"{name}={given!r} joins the GPUs of {outbox.n_engines} engines, and {'; '.join(sorted(reasons))}: use "
                f"{name}='auto'"
            )
    if reasons:
        logger.info("trees grow level by level, as the coordinator says: %s", "; ".join(sorted(reasons)))
    elif outbox.n_engines > 1:
        logger.info("%d engines grow trees in step", outbox.n_engines)
    return not reasons


def first_rounds(spec: FitSpec, n_engines: int) -> int:
    """Return how many rounds to ask for at first, as many as take about `ASK_SECONDS`: one where engines wait for each
    other or users' functions are called, whose time nobody knows, and else by the steps of rows and of split search."""
    recipe, layout = spec.recipe, spec.layout
    if n_engines > 1 or spec.eval_names or isinstance(spec.objective, CustomObjective | OwnQueryObjective):
        return 1
    leaves = leaf_limit(spec.params) or recipe.n_rows
    steps = recipe.n_rows * len(layout.n_bins) * leaves.bit_length() + leaves * layout.n_slots
    return max(1, int(ASK_SECONDS / (STEP_S * recipe.n_outputs * steps)))


def asked_rounds(outbox: Outbox, spec: FitSpec, stopper: Stopper) -> Iterator[Sequence[m.Round]]:
    """The same rounds from engines that grow them beside their rows (`WholeRounds`), as they come together.

    They are asked for as many at a time as take about `ASK_SECONDS`, so that small rounds do not wait for messages; but
    where the fit may stop, for no more than are sure to come or take `LEAST_PART` of that, since those that follow the
    end of the fit are dropped.
    """
    n_rounds, most = len(spec.learning_rates), first_rounds(spec, outbox.n_engines)
    while n_rounds > 0:
        least = math.ceil(most * LEAST_PART)
        n = min(most, n_rounds, max(stopper.n_sure, least))
        start = time.monotonic()
        told = outbox.ask(m.GrowRounds(n))
        seconds = time.monotonic() - start
        replies = [each.rounds for each in told]
        n_grown = min(map(len, replies))  # of one that failed, those before
        yield [_joined(*parts) for parts in zip(*(rounds[:n_grown] for rounds in replies), strict=True)]
        n_rounds -= n_grown
        most = max(1, min(MORE_ROUNDS * n, int(n * ASK_SECONDS / max(seconds, 1e-6))))


def _joined(own: m.Round, *others: m.Round) -> m.Round:
    """Return a round with the metrics of all engines, given what each says of it."""
    if not others:
        return own
    return replace(own, metrics=tuple(chain.from_iterable(each.metrics for each in (own, *others))))
