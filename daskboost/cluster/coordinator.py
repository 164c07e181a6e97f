"""The decisions of a fit: a plain synchronous function over engines. It knows nothing of Dask and never sees rows.

    base score -> for every round: gradients -> for every output: grow_tree -> leaf values -> metrics -> stop?

`grow_tree` is the tree loop, the only one: all growth policies, devices and reductions go through it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.outbox import AsksEngines, Outbox
from daskboost.cluster.quantiles import residual_quantiles
from daskboost.cluster.reduce.strategies import Reduction, make_reduction
from daskboost.cluster.rounding import make_rounding
from daskboost.data.cuts import Cuts
from daskboost.devices.cpu.chunk_order import RowSplits
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.dtypes import Float64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.base import Metric
from daskboost.objectives.base import Objective
from daskboost.params import TrainParams
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growth import GrowingTree, make_policy
from daskboost.tree.split import SplitRules
from daskboost.tree.table import TreeTable


@dataclass(frozen=True)
class EarlyStopping:
    """When a fit ends before its last round.

    Parameters
    ----------
    rounds : int
        Rounds without improvement of the last metric on the last evaluation set.
    min_delta : float
        Least change that counts as an improvement.
    """

    rounds: int
    min_delta: float = 0.0


@dataclass(frozen=True)
class FitSpec:
    """Everything a fit decides by, apart from the engines."""

    params: TrainParams
    objective: Objective
    metrics: Sequence[Sequence[Metric[Any]]]
    """Of each evaluation set, prepared for it."""
    cuts: Cuts
    layout: SlotLayout
    rules: SplitRules
    interaction_groups: Any
    learning_rates: Sequence[float]
    """One per round; its length is the number of rounds."""
    eval_names: Sequence[str] = ()
    largest_weight: float = 1.0
    small_data: bool = False
    """Whether all training rows together are few enough to keep more bits (`rounding.SMALL_ROWS`)."""
    early_stopping: EarlyStopping | None = None
    earlier_trees: Sequence[TreeTable] = ()
    """Trees of a model that the fit continues, whose margins the engines already hold."""
    earlier_outputs: Sequence[int] = ()
    first_iteration: int = 0
    base_score: tuple[float, ...] | None = None
    """Known base score (a continued model's); otherwise the parameters' or the data's."""
    earlier_best: tuple[int, float] | None = None
    """Best iteration and score so far of a model that the fit resumes."""


@dataclass
class Progress:
    """What has been built so far; a snapshot of it is a checkpoint."""

    base_score: tuple[float, ...]
    """In the label's space: one for all outputs, or one each."""
    trees: list[TreeTable] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    history: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    best_iteration: int | None = None
    best_score: float | None = None


ASK_SECONDS = 0.1
"""Work that an engine with whole trees is given at a time: it answers nothing else meanwhile."""

Report = Callable[[int, Progress], bool]
"""Called after every round with its number; returns whether to stop."""


def fit(
    engines: AsksEngines, spec: FitSpec, threads: Threads, report: Report, *, whole_trees: bool = False
) -> Progress:
    """Run a whole fit over `engines`; with `whole_trees` the only one of them grows whole rounds itself (`WholeTrees`).

    Raises
    ------
    DataError
        The objective gave NaN or infinite gradients.
    """
    outbox = Outbox(engines)
    reduction = make_reduction(spec.params.reduction, outbox, spec.layout, spec.rules, threads)
    progress = Progress(_base_score(outbox, spec), [*spec.earlier_trees], [*spec.earlier_outputs])
    outbox.later(m.SetBaseMargin(_margins(spec, progress.base_score)))
    for tree, output in zip(spec.earlier_trees, spec.earlier_outputs, strict=True):
        outbox.later(m.AddTree(_walk_arrays(tree), output))
    stopper = Stopper(spec, progress)
    rounds = asked_rounds(outbox, len(spec.learning_rates)) if whole_trees else grown_rounds(outbox, reduction, spec)
    for iteration, grown in enumerate(rounds, spec.first_iteration):
        progress.trees += grown.trees
        progress.outputs += range(spec.objective.n_outputs)
        stop = stopper.after_round(iteration, _metric_values(spec, grown.metrics) if spec.eval_names else [])
        if report(iteration, progress) or stop:
            break
    return progress


def grown_rounds(outbox: Outbox, reduction: Reduction, spec: FitSpec) -> Iterator[m.Round]:
    """The rounds of a fit, each grown when it is asked for."""
    total_weight = total_weight_of(outbox) if spec.small_data else None
    evaluate = [m.Evaluate()] if spec.eval_names else []
    ranges = outbox.ask(m.StartRound())
    last = spec.first_iteration + len(spec.learning_rates) - 1
    for iteration, learning_rate in enumerate(spec.learning_rates, spec.first_iteration):
        trees = []
        for output in range(spec.objective.n_outputs):
            rounding = make_rounding(spec.params, spec.objective.name, iteration, output, ranges, total_weight)
            trees.append(grow_tree(outbox, reduction, spec, iteration, output, rounding, learning_rate))
        # Finishing a round and starting the next is one round trip.
        replies = outbox.ask_all(*evaluate, *([m.StartRound()] if iteration < last else []))
        ranges = replies[-1] if iteration < last else []
        yield m.Round(tuple(trees), tuple(replies[0]) if evaluate else ())


def asked_rounds(outbox: Outbox, n_rounds: int) -> Iterator[m.Round]:
    """The same rounds from the only engine of a fit, which grows them beside its rows (`WholeTrees`).

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


def grow_tree(outbox: Outbox, reduction: Reduction, spec: FitSpec, iteration: int, output: int, rounding: Rounding,
              learning_rate: float) -> TreeTable:  # fmt: skip
    """Grow one tree and add it to all margins."""
    sums = reduction.start_tree(m.StartTree(output, rounding))
    features = FeatureRules(spec.params, spec.cuts.n_features, spec.interaction_groups, iteration, output)
    root = (sum(part.g for part in sums), sum(part.h for part in sums))
    tree = GrowingTree(spec.params, spec.rules, spec.cuts, features, root, rounding.units)
    policy = make_policy(spec.params)
    opened, pending = tree.openable([0]), None
    while True:
        nodes = tree.open(opened) if opened else None
        found = None
        if nodes is not None:
            found, pending = reduction.search(pending, nodes), None
        chosen, candidates = policy.choose(tree, nodes, found)
        if not chosen or candidates is None:
            break
        splits, children = tree.add(chosen, candidates)
        pending = splits if pending is None else _join(pending, splits)
        opened = tree.openable(children)
    reduction.end_tree()
    table = tree.table(learning_rate)
    if spec.objective.adaptive_quantiles is not None:
        if pending is not None:
            outbox.later(m.ApplySplits(pending))
        table, pending = _with_quantiles(outbox, spec, output, table, learning_rate), None
    outbox.later(m.FinishTree(pending, _walk_arrays(table), output))
    return table


def _join(first: RowSplits, second: RowSplits) -> RowSplits:
    """Splits of different nodes, applied in order."""
    names = ("node", "left", "right", "feature", "split_bin", "default_left")
    return RowSplits(*(np.concatenate([getattr(first, n), getattr(second, n)]) for n in names))


def _with_quantiles(engines: AsksEngines, spec: FitSpec, output: int, table: TreeTable, learning_rate: float
                    ) -> TreeTable:  # fmt: skip
    """Replace leaf values by quantiles of the residuals of the rows that grew the tree."""
    quantiles = spec.objective.adaptive_quantiles
    assert quantiles is not None
    leaves = np.flatnonzero(table.is_leaf).astype(np.int32)
    found = residual_quantiles(engines, output, leaves, quantiles[output], spec.largest_weight)
    value = table.value.copy()
    known = ~np.isnan(found)
    value[leaves[known]] = found[known] * np.float32(learning_rate)
    return replace(table, value=value)


def _walk_arrays(table: TreeTable) -> WalkArrays:
    return WalkArrays(
        table.left_child, table.right_child, table.feature, table.split_bin, table.default_left, table.value
    )


def _base_score(engines: AsksEngines, spec: FitSpec) -> tuple[float, ...]:
    """The base score in the label's space: given, or from the labels of all engines."""
    objective = spec.objective
    if spec.base_score is not None:
        return spec.base_score
    if spec.params.base_score is not None:
        objective.to_margin(spec.params.base_score)  # refuses scores outside the link's domain
        return (spec.params.base_score,)
    if objective.base_score_rule == "constant":
        return (objective.base_score_constant,)
    if objective.base_score_rule == "quantile":
        quantiles = objective.adaptive_quantiles
        assert quantiles is not None
        engines.ask(m.SetBaseMargin(np.zeros(objective.n_outputs)))
        everyone = np.array([-1], np.int32)
        return tuple(
            float(residual_quantiles(engines, output, everyone, alpha, spec.largest_weight)[0])
            for output, alpha in enumerate(quantiles)
        )
    labels, weights = _label_sums(engines)
    return (float(np.float32(objective.base_score_of(labels.ratio(weights)))),)  # files hold float32


def total_weight_of(engines: AsksEngines) -> float:
    """Of all rows."""
    return _label_sums(engines)[1].value()


def _label_sums(engines: AsksEngines) -> tuple[ExactSum, ExactSum]:
    """Exact sums of the weighted labels and of the weights of all rows."""
    parts = engines.ask(m.LabelSums())
    labels = sum((ExactSum.from_array(part.labels) for part in parts), ExactSum())
    weights = sum((ExactSum.from_array(part.weights) for part in parts), ExactSum())
    return labels, weights


def _margins(spec: FitSpec, base_score: tuple[float, ...]) -> Float64:
    """Margin before the first tree, per output, as `Booster.base_margin` has it."""
    margin = spec.objective.to_margin(np.asarray(base_score, np.float32))
    return np.broadcast_to(margin, (spec.objective.n_outputs,)).astype(np.float64)


def _metric_values(spec: FitSpec, parts: Sequence[m.MetricParts]) -> list[list[tuple[str, float]]]:
    """Name and value of each metric on each evaluation set."""
    return [
        [
            metric.named_value(reduce(add, [metric.state_from_arrays(part.states[s][k]) for part in parts]))
            for k, metric in enumerate(metrics)
        ]
        for s, metrics in enumerate(spec.metrics)
    ]


class Stopper:
    """Keeps the evaluation history and says when to stop."""

    def __init__(self, spec: FitSpec, progress: Progress) -> None:
        self._spec, self._progress = spec, progress
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
        for name, row in zip(spec.eval_names, values, strict=True) if values else ():
            _refuse_twins([metric_name for metric_name, _ in row])
            for metric_name, value in row:
                progress.history.setdefault(name, {}).setdefault(metric_name, []).append(value)
        if spec.early_stopping is None:
            return False
        score, metric = values[-1][-1][1], spec.metrics[-1][-1]
        best, delta = progress.best_score, spec.early_stopping.min_delta
        better = best is None or (score > best + delta if metric.maximize else score < best - delta)
        if better and not math.isnan(score):
            progress.best_score, progress.best_iteration = score, iteration
        if progress.best_iteration is not None:
            return iteration - progress.best_iteration >= spec.early_stopping.rounds
        n_rounds = iteration - spec.first_iteration + 1
        if n_rounds >= min(spec.early_stopping.rounds, len(spec.learning_rates)):
            raise DataError(
                f"metric {values[-1][-1][0]!r} of evaluation set {spec.eval_names[-1]!r} was NaN in all of the first "
                f"{n_rounds} rounds, so early stopping has nothing to compare; use an evaluation set on which it is "
                "defined (auc needs both classes), or another metric"
            )
        return False


def _refuse_twins(names: list[str]) -> None:
    """Metrics may name their values themselves, so that only an evaluation tells two of one name."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ParameterError(
            f"two metrics of eval_metric are named {twice[0]!r} (all: {names}), so their values could not be told "
            "apart; return (name, value) from functions, or give each a name of its own (def instead of lambda)"
        )
