"""Gradients of rows whose trees are searched on a sketch: few random combinations of the outputs' gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskboost.devices.device import Array, Device, GradientColumn, LossRows
from daskboost.devices.following import Following
from daskboost.dtypes import Float32, Float64
from daskboost.engine.gradients import Gradients, GrowingRows
from daskboost.engine.setup import EngineSetup
from daskboost.fit.messages import GradientRange, StartRound, StartTree


class SketchedGradients(Gradients):
    """`Gradients` with a sketch of them for each round, whose columns count from the number of outputs on."""

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        self._sketches: list[tuple[Array, Array]] = []
        """The sketch of each chunk's gradients."""
        super().hold(rows, given)

    def start_round(self, message: StartRound) -> GradientRange:
        assert message.projection is not None
        self._projection: Float32 = message.projection
        return super().start_round(message)

    @property
    def n_columns(self) -> int:
        return super().n_columns + len(self._setup.recipe.sketch)

    def _kernel_ranges(self, losses: LossRows) -> Float64:
        own, sketched = super()._kernel_ranges(losses), np.zeros((2, self._projection.shape[1]))
        for index in range(len(self.rows.train.margins)):
            self._open_sketch(index)
            self._sketch_rows(index, slice(None))
            sketched = np.maximum(sketched, [self._device.largest(part) for part in self._sketches[index]])
        return np.concatenate([own, sketched], axis=1)

    def all_searched(self, index: int) -> tuple[Array, Array]:
        return self._sketches[index]

    def searched(self, column: int, index: int) -> GradientColumn:
        g, h = self._sketches[index]
        place = column - super().n_columns
        return g[:, place], h[:, place]

    def following(self, start: StartTree) -> Following | None:
        """Return None: a tree is searched on what its round has begun with."""
        return None

    def compute(self, index: int, *, find_range: bool = True) -> list[Float64]:
        self._open_sketch(index)
        return super().compute(index, find_range=find_range)

    def _open_sketch(self, index: int) -> None:
        """Have room for the sketch of a chunk."""
        if len(self._sketches) <= index:
            shape = (len(self.rows.train.margins[index]), self._projection.shape[1])
            empty = self._device.xp.empty
            self._sketches.append((empty(shape, np.float32), empty(shape, np.float32)))

    def _sketch_rows(self, index: int, rows: slice) -> None:
        """Project the gradients of some rows of a chunk."""
        signs = (self._projection, np.abs(self._projection))  # a step along a column moves its outputs up or down
        for values, projection, into in zip(self.of(index), signs, self._sketches[index], strict=True):
            self._device.project(values[rows], projection, into[rows])

    def _make(self, index: int, begin: int, end: int) -> None:
        super()._make(index, begin, end)
        self._sketch_rows(index, slice(begin, end))

    def _range_of(self, index: int, begin: int, end: int) -> Float64:
        sketched = np.stack([self._device.largest(values[begin:end]) for values in self._sketches[index]])
        return np.concatenate([super()._range_of(index, begin, end), sketched], axis=1)


def searched_gradients(setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool,
                       given: Sequence[tuple[Array, Array]] | None = None) -> Gradients:  # fmt: skip
    """Return the gradients of rows that trees are searched on; parameters are those of `Gradients`."""
    kind = SketchedGradients if setup.recipe.sketch else Gradients
    return kind(setup, device, rows, keep=keep, given=given)
