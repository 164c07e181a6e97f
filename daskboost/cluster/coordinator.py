"""The decisions of a fit: a plain synchronous function over engines. It knows nothing of Dask and never sees rows.

    base score -> for every round: gradients -> for every tree: grow_tree -> leaf values -> metrics -> stop?

`grow_tree.py` grows a tree; `certified.py` and `sampled.py` have the rounds of trees that grow on a
sample of the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.certified import CertifiedRounds
from daskboost.cluster.grow_tree import grow_tree, round_columns, start_round, start_tree
from daskboost.cluster.outbox import AsksEngines, Outbox
from daskboost.cluster.quantiles import residual_quantiles
from daskboost.cluster.reduce.strategies import Reduction, make_reduction
from daskboost.cluster.sampled import SampledRounds
from daskboost.data.cuts import Cuts
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.feature_sizes import FeatureSizes
from daskboost.dtypes import Float64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.base import Metric
from daskboost.objectives.base import Objective, scores_weights
from daskboost.params import REPORT_NAME, TrainParams
from daskboost.tree.growth import walk_arrays
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
    feature_sizes: FeatureSizes | None = None
    """How many training values features have, where somebody counted them."""
    largest_weight: float = 1.0
    small_data: bool = False
    """Whether all training rows together are few enough to keep more bits (`SMALL_ROWS`)."""
    early_stopping: EarlyStopping | None = None
    earlier_trees: Sequence[TreeTable] = ()
    """Trees of a model that the fit continues, whose margins the engines already hold."""
    earlier_outputs: Sequence[int] = ()
    first_iteration: int = 0
    base_score: tuple[float, ...] | None = None
    """Known base score (a continued model's); otherwise the parameters' or the data's."""
    earlier_best: tuple[int, float] | None = None
    """Best iteration and score so far of a model that the fit resumes."""

    @property
    def packs_gradients(self) -> bool:
        """Whether splits are chosen on gradients of few levels."""
        return self.params.packs_gradients(self.small_data)

    @property
    def searches_weights(self) -> bool:
        """Whether splits are chosen on weights in place of hessians."""
        return scores_weights(self.params, self.objective)

    @property
    def refits(self) -> bool:
        """Whether leaves take sums of their own when a tree is grown, which was searched on other gradients."""
        return self.params.sketch_outputs > 0 or self.packs_gradients or self.searches_weights

    @property
    def search_rules(self) -> SplitRules:
        """The rules that splits are chosen by: steps are limited where they are Newton's."""
        return replace(self.rules, max_delta_step=0.0) if self.searches_weights else self.rules

    @property
    def largest_searched(self) -> float:
        """Bound of the weights that trees are searched on (small data's are multiplied later); 0 for hessians."""
        if not self.searches_weights:
            return 0.0
        factor = np.float32(max(1.0, self.objective.positive_weight))
        return float(factor if self.small_data else factor * np.float32(self.largest_weight))

    @property
    def tree_outputs(self) -> list[tuple[int, ...]]:
        """The outputs of each tree of a round."""
        every = range(self.objective.n_outputs)
        return [tuple(every)] if self.has_vector_leaves else [(output,) for output in every]

    @property
    def has_vector_leaves(self) -> bool:
        """Whether a round grows one tree of all outputs."""
        return self.params.has_vector_leaves(self.objective.n_outputs)


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
    progress = Progress(_base_score(outbox, spec), [*spec.earlier_trees], [*spec.earlier_outputs])
    outbox.later(m.SetBaseMargin(_margins(spec, progress.base_score)))
    for tree, output in zip(spec.earlier_trees, spec.earlier_outputs, strict=True):
        outbox.later(m.AddTree(walk_arrays(tree), output))
    stopper = Stopper(spec, progress)
    rounds = asked_rounds(outbox, len(spec.learning_rates)) if whole_trees else rounds_of(outbox, spec, threads)
    for iteration, grown in enumerate(rounds, spec.first_iteration):
        progress.trees += grown.trees
        progress.outputs += [outputs[0] for outputs in spec.tree_outputs]
        if grown.report is not None:
            for name, value in grown.report.values.items():
                progress.history.setdefault(REPORT_NAME, {}).setdefault(name, []).append(value)
        stop = stopper.after_round(iteration, _metric_values(spec, grown.metrics) if spec.eval_names else [])
        if report(iteration, progress) or stop:
            break
    return progress


def rounds_of(outbox: Outbox, spec: FitSpec, threads: Threads) -> Iterator[m.Round]:
    """The rounds of a fit as its parameters want them grown."""
    if spec.params.out_of_core == "certified":
        return _rounds_on_samples(CertifiedRounds, outbox, spec, threads)
    if spec.params.out_of_core == "sampled":
        return _rounds_on_samples(SampledRounds, outbox, spec, threads)
    return grown_rounds(
        outbox, make_reduction(spec.params.reduction, outbox, spec.layout, spec.search_rules, threads), spec
    )


def _rounds_on_samples(kind: type[CertifiedRounds] | type[SampledRounds], outbox: Outbox, spec: FitSpec,
                       threads: Threads) -> Iterator[m.Round]:  # fmt: skip
    """The rounds of a fit whose trees grow on a sample, each grown when it is asked for."""
    rounds = kind(outbox, spec, threads)
    for iteration, learning_rate in enumerate(spec.learning_rates, spec.first_iteration):
        yield rounds.grow(iteration, learning_rate)


def grown_rounds(outbox: Outbox, reduction: Reduction, spec: FitSpec) -> Iterator[m.Round]:
    """The rounds of a fit, each grown when it is asked for."""
    total_weight = total_weight_of(outbox) if spec.small_data else None
    evaluate = [m.Evaluate()] if spec.eval_names else []
    ranges = outbox.ask(start_round(spec, spec.first_iteration))
    last = spec.first_iteration + len(spec.learning_rates) - 1
    for iteration, learning_rate in enumerate(spec.learning_rates, spec.first_iteration):
        roundings, next_roundings = (
            partial(round_columns, spec, which, ranges, total_weight, spec.largest_searched)
            for which in (iteration, iteration + 1)
        )
        following: list[Callable[[], m.StartTree] | None] = [None] * len(spec.tree_outputs)
        if iteration < last:  # by this round's range, since powers of two rarely change
            following[-1] = partial(start_tree, spec, spec.tree_outputs[0], next_roundings)
        trees = [
            grow_tree(outbox, reduction, spec, iteration, outputs, roundings, learning_rate, after)
            for outputs, after in zip(spec.tree_outputs, following, strict=True)
        ]
        # Finishing a round and starting the next is one round trip.
        start_next = [start_round(spec, iteration + 1)] if iteration < last else []
        replies = outbox.ask_all(*evaluate, *start_next)
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
