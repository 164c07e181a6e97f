"""Metrics of one evaluation set on an engine: computed where its margins lie, or on the host from copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskboost.cluster.evaluated_rows import EvaluatedRows
from daskboost.cluster.row_groups import RowGroup
from daskboost.devices.device import Array, Device
from daskboost.metrics.base import Arrays, Metric
from daskboost.objectives.base import Objective


class Evaluator:
    """States of metrics over an engine's rows of an evaluation set.

    Parameters
    ----------
    device : Device
    objective : Objective
    metrics : sequence of Metric
        Prepared for the set.
    evaluated : EvaluatedRows
    """

    def __init__(
        self, device: Device, objective: Objective, metrics: Sequence[Metric[Any]], evaluated: EvaluatedRows
    ) -> None:
        self._device, self._objective, self._metrics, self._evaluated = device, objective, metrics, evaluated
        self._on_device: list[tuple[Array, Array | None]] = []
        """Labels and weights of each group, where metrics are computed on the device."""
        if device.metric_kernels is not None and any(metric.device_loss is not None for metric in metrics):
            self._on_device = [
                (device.put(each.label), None if each.rows.weight is None else device.put(each.rows.weight))
                for each in evaluated.groups
            ]

    def states(self) -> list[Arrays]:
        """Of each metric, for the wire, with the margins as they are."""
        objective = self._objective
        no_rows = objective.evaluation(np.empty((0, objective.n_outputs), np.float32))
        states = [metric.partial(np.empty(0, np.float32), no_rows) for metric in self._metrics]
        for index, (group, margin) in enumerate(zip(self._evaluated.groups, self._evaluated.margins, strict=True)):
            prediction = objective.evaluation(margin, self._device.xp)
            fetched: Any = None
            for place, metric in enumerate(self._metrics):
                state = self._state_on_device(metric, index, prediction)
                if state is None:
                    fetched = self._device.fetch(prediction) if fetched is None else fetched
                    state = _state_on_host(metric, group, fetched)
                states[place] = states[place] + state
        return [state.to_arrays() for state in states]

    def _state_on_device(self, metric: Metric[Any], index: int, prediction: Array) -> Any:
        """None where the host has to compute it."""
        kernels = self._device.metric_kernels
        if kernels is None or metric.device_loss is None:
            return None
        label, weights = self._on_device[index]
        return metric.partial_on_device(kernels, label, prediction, weights)


def _state_on_host(metric: Metric[Any], group: RowGroup, prediction: Any) -> Any:
    """Of a group's rows; chunk by chunk where states hold rows, since their global ids follow each other only there."""
    first, *others = [
        metric.partial(
            group.label[rows], prediction[rows], None if group.rows.weight is None else group.rows.weight[rows],
            first_row=first_row,
        )
        for rows, first_row in (group.parts() if metric.needs_rows else [(slice(None), 0)])
    ]  # fmt: skip
    for state in others:
        first = first + state
    return first
