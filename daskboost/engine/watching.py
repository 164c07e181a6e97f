"""Metrics of evaluation sets that are computed on a GPU behind the trees of a round, without the host.

`engine/evaluation.py` has the same metrics for all fits, and the host waits for them. Here launches are recorded once;
what metrics know after a round lies beside the round's trees until both are fetched, some rounds at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.gpu.rows.metrics import STATE_WORDS, MetricKernels, Words
from daskboost.devices.gpu.rows.moved_rows import MovedScores
from daskboost.devices.gpu.rows.ranked import RankedLabels
from daskboost.devices.gpu.rows.watched import WatchedRoom, WatchedRows
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime
from daskboost.devices.losses import LinkKernel
from daskboost.devices.protocols import Device
from daskboost.dtypes import UInt8
from daskboost.engine.evaluation import Evaluator
from daskboost.fit.messages import MetricParts
from daskboost.metrics.metric import AnyMetric, Arrays
from daskboost.objectives.objective import link_of


class WatchedSet:
    """The metrics of an evaluation set that has rows."""

    def __init__(self, room: WatchedRoom, evaluator: Evaluator, states: DeviceArray, ranking: Ranking | None) -> None:
        self._label, self._weight = evaluator.columns()
        put = room.kernels.runtime.xp.asarray
        weight = None if self._weight is None else put(self._weight)
        self._metrics: Sequence[AnyMetric] = evaluator.metrics
        ranked = () if ranking is None else (ranking.labels(room.kernels), ranking.moved)
        self._rows = WatchedRows(
            room, _link(evaluator), put(self._label), weight, evaluator.evaluated.sources, *ranked
        )  # fmt: skip
        self._states = states
        for metric in self._metrics:
            metric.check_shape(self._label, self._rows.prediction)

    def launch(self) -> None:
        """Launch what has the states become those of the margins as they are then."""
        self._rows.predict()
        for metric, state in zip(self._metrics, self._states, strict=True):
            metric.measure(self._rows, state)

    def read(self, words: Words) -> list[Arrays]:
        """Return the states, fetched, for the wire."""
        return [
            metric.measured(own, self._label, self._weight).to_arrays()
            for metric, own in zip(self._metrics, words, strict=True)
        ]


class RowlessSet:
    """The metrics of an evaluation set of which other engines have the rows."""

    def __init__(self, kernels: MetricKernels, evaluator: Evaluator, ranking: Ranking | None) -> None:
        self._evaluator, self._moved = evaluator, None if ranking is None else ranking.moved
        self._nothing = kernels.runtime.xp.empty(0, np.float32)

    def launch(self) -> None:
        """Launch what other GPUs wait for, which tell each other scores."""
        if self._moved is not None:
            self._moved.of_all(self._nothing)

    def read(self, words: Words) -> list[Arrays]:
        """Return the states of no rows, for the wire."""
        return self._evaluator.states_of_nothing()


class Ranking:
    """The rows of an evaluation set by their queries, some of whose rows may lie on other GPUs; collective."""

    def __init__(self, runtime: Runtime, evaluator: Evaluator, joined: Collective) -> None:
        self._queries = evaluator.queries
        moves, self.moved = self._queries.moves, None
        if moves.are_any:
            self.moved = MovedScores(runtime, joined, evaluator.n_rows, moves.sent, moves.most_sent)

    def labels(self, kernels: MetricKernels) -> RankedLabels:
        """Return the labels that are put into the order of scores."""
        rows = self._queries.with_room(self._queries.moves.most_sent)
        return RankedLabels(kernels, rows.order, rows.begins, rows.label, rows.weights)


class Watch:
    """The metrics of all evaluation sets of an engine.

    Parameters
    ----------
    device : Device
    evaluators : sequence of Evaluator
    joined : Collective
        The GPUs of all engines, which have rows of the same queries.
    """

    def __init__(self, device: Device, evaluators: Sequence[Evaluator], joined: Collective) -> None:
        kernels, n_states = device.metric_kernels, [len(evaluator.metrics) for evaluator in evaluators]
        assert kernels is not None  # trees grow on a GPU alone
        xp = kernels.runtime.xp
        self._states = xp.zeros((sum(n_states), STATE_WORDS), np.uint64)
        self._ends = np.cumsum(n_states).tolist()
        self._evaluators = evaluators
        room = _room_of(kernels, [evaluator for evaluator in evaluators if evaluator.n_rows])
        self._sets: list[WatchedSet | RowlessSet] = []
        for evaluator, n, end in zip(evaluators, n_states, self._ends, strict=True):
            by_query = any(metric.by_query for metric in evaluator.metrics)
            ranking = Ranking(kernels.runtime, evaluator, joined) if by_query else None
            states = self._states[end - n : end]
            self._sets.append(
                WatchedSet(room, evaluator, states, ranking) if evaluator.n_rows
                else RowlessSet(kernels, evaluator, ranking)
            )  # fmt: skip

    @property
    def memory(self) -> DeviceArray:
        """The states as bytes, all of one piece."""
        found: DeviceArray = self._states.reshape(-1).view(np.uint8)
        return found

    def launch(self) -> None:
        """Launch what has `memory` become the states of the margins as they are then; the second time on it may be
        recorded."""
        for each in self._sets:
            each.launch()

    def read(self, memory: UInt8) -> MetricParts:
        """Return the states of all metrics from `memory`, fetched.

        Raises
        ------
        DataError
            Labels or predictions that a metric refuses.
        """
        words: Words = memory.view(np.uint64).reshape(-1, STATE_WORDS)
        return MetricParts([
            own.read(words[end - len(evaluator.metrics) : end])
            for own, evaluator, end in zip(self._sets, self._evaluators, self._ends, strict=True)
        ])  # fmt: skip


def _link(evaluator: Evaluator) -> LinkKernel:
    link = link_of(evaluator.objective)
    assert link is not None  # the recipe says so (`metrics_reason`)
    return link


def _room_of(kernels: MetricKernels, evaluators: Sequence[Evaluator]) -> WatchedRoom:
    """What sets with rows take in turn."""
    def most(rows: Sequence[int]) -> int:
        return max(rows, default=0)

    return WatchedRoom(
        kernels,
        most([each.n_rows for each in evaluators if each.evaluated.is_copied]),
        most([each.n_rows for each in evaluators if _link(each) != LinkKernel.MARGIN]),
        most([each.objective.n_outputs for each in evaluators]),
    )  # fmt: skip
