"""The round loop, the only one: whatever rows grow the trees, wherever they grow, and however they are certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from daskboost.devices.budget.plan import RowSource
from daskboost.devices.cpu.threads import Threads
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


@dataclass(frozen=True)
class Parts(Generic[GrownT]):
    """What the rounds of a fit are made of."""

    sampler: Sampler
    grower: Grower[GrownT]
    certifier: Certifier[GrownT]


@dataclass(frozen=True)
class GrownRound:
    """A round whose trees are in all margins by the next request to the engines."""

    trees: Trees
    metrics: Sequence[m.MetricParts]
    report: Report | None

    def finished(self) -> m.Round:
        """Return the round with its trees in the host's memory."""
        return m.Round(self.trees(), tuple(self.metrics), self.report)


def grow_rounds(spec: FitSpec, outbox: Outbox, parts: Parts[GrownT]) -> Iterator[GrownRound]:
    """Give the rounds of a fit, each grown when it is asked for."""
    last = spec.first_iteration + len(spec.learning_rates) - 1
    for iteration, learning_rate in spec.rounds:
        rows = parts.sampler.rows(iteration)
        grown = parts.grower.grow(rows, learning_rate)
        trees, report = parts.certifier.settle(grown, rows, learning_rate)
        metrics = outbox.later(m.Evaluate()) if spec.eval_names else None
        if iteration < last:
            parts.sampler.expect(iteration + 1)  # finishing a round and starting the next is one round trip
        yield GrownRound(trees, outbox.get(metrics) if metrics is not None else (), report)


def rounds_of(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give the rounds of a fit whose trees grow with the host; engines are asked for nothing before the first."""
    yield from ROUNDS[spec.recipe.rows](spec, outbox, threads)


def _on_all_rows(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on all rows."""
    sampler = AllRows(outbox, spec, weight_of_small_data(outbox, spec))
    grower = HostGrower(outbox, reduction_of(outbox, spec, threads), spec)
    return grow_rounds(spec, outbox, Parts(sampler, grower, AsGrown()))


def _on_drawn_rows(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on rows drawn by gradients."""
    sample = SampleOutbox(outbox)
    grower = HostGrower(sample, reduction_of(sample, spec, threads), spec)
    return grow_rounds(spec, outbox, Parts(DrawnRows(outbox, spec), grower, AsGrown()))


def _certified(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow on a sample and are certified on all rows."""
    sample = CertifiedSample(outbox, spec, weight_of_small_data(outbox, spec))
    grower = SampleGrower(sample, reduction_of(sample.outbox, spec, threads), spec)
    certifier = PassCertifier(outbox, sample, grower, reduction_of(outbox, spec, threads), spec)
    return grow_rounds(spec, outbox, Parts(sample, grower, certifier))


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
