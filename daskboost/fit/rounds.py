"""The round loop, the only one: whatever rows grow the trees, wherever they grow, and however they are certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from daskboost.devices.budget.plan import RowSource
from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Float32
from daskboost.fit import messages as m
from daskboost.fit.base_score import weight_of_small_data
from daskboost.fit.certifier import PassCertifier, SampleGrower
from daskboost.fit.host_grower import HostGrower
from daskboost.fit.messages import Outbox, SampleOutbox
from daskboost.fit.peers import Reduction, make_reduction
from daskboost.fit.samplers import AllRows, CertifiedSample, DrawnRows, RoundRows, Sampler
from daskboost.fit.spec import FitSpec
from daskboost.tree.table import TreeTable

Trees = Callable[[], tuple[TreeTable, ...]]
"""Gives the finished trees of a round; where they grew on a device, the host waits for them then."""
Metrics = Callable[[], Sequence[m.MetricParts]]
"""Gives the metrics of all engines after a round, likewise."""
Chances = Callable[[], Float32 | None]
"""Gives what a round has estimated (`m.Round.chances`), likewise."""
Report = m.PassReport | m.SampleReport
GrownT = TypeVar("GrownT")
GrownOut = TypeVar("GrownOut", covariant=True)
GrownIn = TypeVar("GrownIn", contravariant=True)


class Grower(Protocol[GrownOut]):
    """Grows the trees of a round: the only part that knows whether the host takes part."""

    def grow(self, rows: RoundRows, learning_rate: float) -> GrownOut:
        """Return the trees of a round, each of which is final, or a draft to be certified."""


class Certifier(Protocol[GrownIn]):
    """Makes final trees of grown ones, and adds them to all margins if their grower has not."""

    def settle(self, grown: GrownIn, rows: RoundRows, learning_rate: float) -> tuple[Trees, Report | None]:
        """Return the finished trees, and what the round cost where trees grow on a sample."""


class Evaluation(Protocol):
    """Has metrics of rounds computed."""

    def after_round(self) -> Metrics:
        """Ask for the metrics of the margins that have the round's trees."""

    def send(self) -> None:
        """Have the margins seen before the next round changes them."""


@dataclass(frozen=True)
class Parts(Generic[GrownT]):
    """What the rounds of a fit are made of."""

    sampler: Sampler
    grower: Grower[GrownT]
    certifier: Certifier[GrownT]
    evaluation: Evaluation
    estimated: Callable[[], Chances] = lambda: _nothing
    """Returns what gives what the round that has grown last has estimated."""


class GrownRound(NamedTuple):
    """A round whose trees are in all margins by the next request to the engines."""

    trees: Trees
    metrics: Metrics
    report: Report | None
    chances: Chances

    def finished(self) -> m.Round:
        """Return the round with its trees and metrics in the host's memory."""
        return m.Round(self.trees(), tuple(self.metrics()), self.report, self.chances())


def _nothing() -> None:
    """Return None, of a round that has estimated nothing."""


def grow_rounds(spec: FitSpec, parts: Parts[GrownT]) -> Iterator[GrownRound]:
    """Give the rounds of a fit, each grown when it is asked for."""
    last = spec.first_iteration + len(spec.learning_rates) - 1
    for iteration, learning_rate in spec.rounds:
        rows = parts.sampler.rows(iteration)
        grown = parts.grower.grow(rows, learning_rate)
        trees, report = parts.certifier.settle(grown, rows, learning_rate)
        chances = parts.estimated()
        metrics = parts.evaluation.after_round()
        if iteration < last:
            parts.sampler.expect(iteration + 1)  # finishing a round and starting the next is one round trip
        parts.evaluation.send()
        yield GrownRound(trees, metrics, report, chances)


class NothingEvaluated:
    """Computes nothing: there is no evaluation set."""

    def after_round(self) -> Metrics:
        return tuple

    def send(self) -> None:
        """Send nothing."""


class AskedMetrics:
    """Asks the engines, and waits for them before the next round."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def after_round(self) -> Metrics:
        return partial(self._outbox.get, self._outbox.later(m.Evaluate()))

    def send(self) -> None:
        self._outbox.flush()


def evaluation_of(spec: FitSpec, outbox: Outbox) -> Evaluation:
    """Return what has metrics computed by the engines of a fit."""
    return AskedMetrics(outbox) if spec.eval_names else NothingEvaluated()


def rounds_of(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give the rounds of a fit whose trees grow with the host; engines are asked for nothing before the first."""
    yield from ROUNDS[spec.recipe.rows](spec, outbox, threads)


def _on_all_rows(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on all rows."""
    sampler = AllRows(outbox, spec, weight_of_small_data(outbox, spec))
    grower = HostGrower(outbox, reduction_of(outbox, spec, threads), spec)
    return grow_rounds(spec, Parts(sampler, grower, AsGrown(), evaluation_of(spec, outbox), sampler.estimated))


def _on_drawn_rows(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on rows drawn by gradients."""
    sample = SampleOutbox(outbox)
    grower = HostGrower(sample, reduction_of(sample, spec, threads), spec)
    return grow_rounds(spec, Parts(DrawnRows(outbox, spec), grower, AsGrown(), evaluation_of(spec, outbox)))


def _certified(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on a sample and are certified on all rows."""
    sample = CertifiedSample(outbox, spec, weight_of_small_data(outbox, spec))
    grower = SampleGrower(sample, reduction_of(sample.outbox, spec, threads), spec)
    certifier = PassCertifier(outbox, sample, grower, reduction_of(outbox, spec, threads), spec)
    return grow_rounds(spec, Parts(sample, grower, certifier, evaluation_of(spec, outbox)))


ROUNDS: Mapping[RowSource, Callable[[FitSpec, Outbox, Threads], Iterator[GrownRound]]] = {
    "all": _on_all_rows, "certified": _certified, "drawn": _on_drawn_rows,
}  # fmt: skip
"""The rounds of a fit, by the rows that its trees grow on."""


def reduction_of(outbox: Outbox, spec: FitSpec, threads: Threads) -> Reduction:
    """Return what reduces the histograms of these engines."""
    return make_reduction(spec.params.reduction, outbox, spec.layout, spec.search_rules, threads)


class AsGrown:
    """Takes trees as they were grown: nothing is left to certify."""

    def settle(self, grown: Trees, rows: RoundRows, learning_rate: float) -> tuple[Trees, Report | None]:
        return grown, rows.report
