"""Metrics of evaluation sets that are computed on a GPU behind the trees of a round, without the host.

`engine/evaluation.py` has the same metrics for all fits, and the host waits for them. Here launches are recorded once;
what metrics know after a round lies beside the round's trees until both are fetched, some rounds at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.gpu.rows.metrics import STATE_WORDS, MetricKernels, Words
from daskboost.devices.gpu.rows.ranked import RankedLabels
from daskboost.devices.gpu.rows.watched import WatchedRoom, WatchedRows
from daskboost.devices.gpu.runtime.launches import DeviceArray
from daskboost.devices.losses import LinkKernel
from daskboost.devices.protocols import Device
from daskboost.dtypes import UInt8
from daskboost.engine.evaluation import Evaluator
from daskboost.fit.messages import MetricParts
from daskboost.metrics.metric import AnyMetric, Arrays
from daskboost.objectives.objective import link_of


class WatchedSet:
    """The metrics of an evaluation set that has rows."""

    def __init__(self, room: WatchedRoom, link: LinkKernel, evaluator: Evaluator, states: DeviceArray) -> None:
        self._label, self._weight = evaluator.columns()
        put = room.kernels.runtime.xp.asarray
        weight = None if self._weight is None else put(self._weight)
        self._metrics: Sequence[AnyMetric] = evaluator.metrics
        ranked = _ranked(room.kernels, evaluator) if any(metric.by_query for metric in self._metrics) else None
        self._rows = WatchedRows(room, link, put(self._label), weight, evaluator.evaluated.sources, ranked)
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


def _ranked(kernels: MetricKernels, evaluator: Evaluator) -> RankedLabels:
    rows = evaluator.queries.rows
    return RankedLabels(kernels, rows.order, rows.begins, rows.label, rows.weights)


class Watch:
    """The metrics of all evaluation sets of an engine."""

    def __init__(self, device: Device, evaluators: Sequence[Evaluator]) -> None:
        kernels, n_states = device.metric_kernels, [len(evaluator.metrics) for evaluator in evaluators]
        assert kernels is not None  # trees grow on a GPU alone
        xp = kernels.runtime.xp
        self._states = xp.zeros((sum(n_states), STATE_WORDS), np.uint64)
        self._ends = np.cumsum(n_states).tolist()
        self._evaluators = evaluators
        room = _room_of(kernels, [evaluator for evaluator in evaluators if evaluator.n_rows])
        self._sets = [
            WatchedSet(room, _link(evaluator), evaluator, self._states[end - n : end]) if evaluator.n_rows else None
            for evaluator, n, end in zip(evaluators, n_states, self._ends, strict=True)
        ]

    @property
    def memory(self) -> DeviceArray:
        """The states as bytes, all of one piece."""
        found: DeviceArray = self._states.reshape(-1).view(np.uint8)
        return found

    def launch(self) -> None:
        """Launch what has `memory` become the states of the margins as they are then; the second time on it may be
        recorded."""
        for each in self._sets:
            if each is not None:
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
            evaluator.states() if own is None else own.read(words[end - len(evaluator.metrics) : end])
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
