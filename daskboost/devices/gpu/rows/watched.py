"""Rows of evaluation sets whose metrics a GPU computes behind each round's trees: launches that wait for nothing, which
are recorded once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from daskboost.devices.cpu.query_metrics import Measure
from daskboost.devices.gpu.rows.gradients import softmax_probabilities
from daskboost.devices.gpu.rows.metrics import THREADS, MetricKernels, ScoredRows
from daskboost.devices.gpu.rows.moved_rows import MovedScores
from daskboost.devices.gpu.rows.ranked import RankedLabels
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays
from daskboost.devices.losses import LinkKernel

Predict = Callable[[Runtime, DeviceArray, DeviceArray], DeviceArray]


def _margins(runtime: Runtime, margin: DeviceArray, out: DeviceArray) -> DeviceArray:
    return margin


def _sigmoid(runtime: Runtime, margin: DeviceArray, out: DeviceArray) -> DeviceArray:
    return _linked(runtime, LinkKernel.SIGMOID, margin, out)


def _exp(runtime: Runtime, margin: DeviceArray, out: DeviceArray) -> DeviceArray:
    return _linked(runtime, LinkKernel.EXP, margin, out)


def _linked(runtime: Runtime, link: LinkKernel, margin: DeviceArray, out: DeviceArray) -> DeviceArray:
    kernel = runtime.kernel("predictions", "predict_margins", LINK=int(link))
    kernel(-(-margin.size // THREADS), THREADS, margin, margin.size, out)
    return out


PREDICT: Mapping[LinkKernel, Predict] = {
    LinkKernel.MARGIN: _margins, LinkKernel.SIGMOID: _sigmoid, LinkKernel.EXP: _exp,
    LinkKernel.SOFTMAX: softmax_probabilities,
}  # fmt: skip
"""What makes predictions of margins, float32 of shape (rows, outputs), and returns where they are: in `out`, of the
same shape, or in the margins themselves."""


def watched_shapes(margin_rows: int, predicted_rows: int, n_outputs: int) -> Shapes:
    """Return the shapes of what all evaluation sets take in turn: margins that are put together, and predictions."""
    return {
        "margins": ((margin_rows, n_outputs), np.float32),
        "predictions": ((predicted_rows, n_outputs), np.float32),
    }  # fmt: skip


class WatchedRoom:
    """Memory that evaluation sets take in turn: margins of up to `margin_rows` are put together, and predictions of
    `predicted_rows` made."""

    def __init__(self, kernels: MetricKernels, margin_rows: int, predicted_rows: int, n_outputs: int) -> None:
        made = make_arrays(kernels.runtime, watched_shapes(margin_rows, predicted_rows, n_outputs))
        self.kernels, self.margins, self.predictions = kernels, made["margins"], made["predictions"]


Margins = Sequence[tuple[DeviceArray, DeviceArray | None]]
"""Margins of groups of rows, of shape (rows, outputs), and which of them count; None for all."""


class WatchedRows:
    """The rows of an evaluation set, on one GPU.

    Parameters
    ----------
    room : WatchedRoom
    link : LinkKernel
        What metrics see of margins.
    label, weight : float32 arrays, shape (rows,)
        `weight` : or None for ones.
    margins : Margins
        Of the groups that the rows lie in, one after the other.
    ranked : RankedLabels, optional
        The rows by their queries, for metrics of these.
    moved : MovedScores, optional
        Where other GPUs rank some of the rows.
    """

    def __init__(self, room: WatchedRoom, link: LinkKernel, label: DeviceArray, weight: DeviceArray | None,
                 margins: Margins, ranked: RankedLabels | None = None, moved: MovedScores | None = None
                 ) -> None:  # fmt: skip
        self.label, self.weight = label, weight
        self._room, self._link, self._margins = room, link, margins
        self._predictions: DeviceArray = self._seen()
        self._parameters: dict[tuple[float, ...], DeviceArray] = {}
        self._ranked, self._moved = ranked, moved
        self._is_counted = self._is_ranked = False

    @property
    def prediction(self) -> DeviceArray:
        """What metrics see; float32, shape (rows,) or (rows, outputs)."""
        found: DeviceArray = self._predictions[:, 0] if self._predictions.shape[1] == 1 else self._predictions
        return found

    def predict(self) -> None:
        """Launch what makes predictions of the margins as they are then; metrics are of these."""
        self._predictions = self._seen()
        self._is_counted = self._is_ranked = False

    def _seen(self) -> DeviceArray:
        margin, n = self._joined(), len(self.label)
        return PREDICT[self._link](self._room.kernels.runtime, margin, self._room.predictions[:n])

    def _joined(self) -> DeviceArray:
        """Margins of all rows: where they are, if all rows of one group count."""
        (first, rows), *others = self._margins
        if rows is None and not others:
            return first
        xp, begin = self._room.kernels.runtime.xp, 0
        for margin, rows in self._margins:
            out = self._room.margins[begin : begin + len(margin if rows is None else rows)]
            begin += len(out)
            if rows is None:
                out[...] = margin
            else:
                xp.take(margin, rows, axis=0, out=out)
        found: DeviceArray = self._room.margins[:begin]
        return found

    def add_losses(self, loss: str, parameters: tuple[float, ...], state: DeviceArray) -> None:
        """Launch `MetricKernels.add_losses` of these rows; `parameters` go to the device the first time, which is not
        recorded."""
        kernels = self._room.kernels
        if parameters not in self._parameters:
            self._parameters[parameters] = kernels.parameters(parameters)
        kernels.add_losses(loss, self._scored, self._parameters[parameters], state)

    def add_area(self, curve: str, scale: float, capacity: int, state: DeviceArray) -> None:
        """Launch `MetricKernels.add_area` of these rows, whose scores are counted once for all curves: weights times
        `scale`, a power of two, in at most `capacity` cells."""
        kernels = self._room.kernels
        room = kernels.scores(len(self.label), capacity)
        if not self._is_counted:
            kernels.count_rows(self._scored, scale, room)
            self._is_counted = True
        kernels.add_area(curve, room, state)

    def add_values(self, measure: Measure, state: DeviceArray) -> None:
        """Launch `RankedLabels.add_values` of these rows, whose scores are sorted once for all metrics."""
        assert self._ranked is not None  # checked before (`check_evaluated_queries`)
        if not self._is_ranked:
            own = self.prediction
            self._ranked.rank(own if self._moved is None else self._moved.of_all(own))
            self._is_ranked = True
        self._ranked.add_values(measure, state)

    @property
    def _scored(self) -> ScoredRows:
        return ScoredRows(self.label, self.prediction, self.weight)
