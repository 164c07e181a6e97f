"""Gradients of rows whose trees are searched on a sketch: few random combinations of the outputs' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from daskboost.devices.device import Device
from daskboost.devices.following import Following
from daskboost.devices.gpu.gradients import GradientPair
from daskboost.dtypes import Array, Float32, Float64
from daskboost.engine.gradients import Gradients, GrowingRows, largest_of
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
        self._tops = [np.zeros((2, self._projection.shape[1]))]
        return super().start_round(message)

    def _take_in(self, index: int) -> None:
        super()._take_in(index)
        n_rows = len(self.rows.train.margins[index])
        if len(self._sketches) <= index:
            shape, empty = (n_rows, self._projection.shape[1]), self._device.xp.empty
            self._sketches.append((empty(shape, np.float32), empty(shape, np.float32)))
        self._tops += self._device.each_range(n_rows, partial(self._sketch_rows, index))

    def _sketch_rows(self, index: int, begin: int, end: int) -> Float64:
        """Project the gradients of some rows of a chunk; the largest |g| and h of the sketch."""
        signs = (self._projection, np.abs(self._projection))  # a step along a column moves its outputs up or down
        for values, projection, into in zip(self.source.gradients(index), signs, self._sketches[index], strict=True):
            self._device.project(values[begin:end], projection, into[begin:end])
        return np.stack([self._device.largest(part[begin:end]) for part in self._sketches[index]])

    def _found_ranges(self) -> Float64:
        return np.concatenate([super()._found_ranges(), largest_of(self._tops)], axis=1)

    def all_searched(self, index: int) -> tuple[Array, Array]:
        return self._sketches[index]

    def searched(self, column: int, index: int) -> GradientPair:
        g, h = self._sketches[index]
        place = column - self._setup.objective.n_outputs
        return g[:, place], h[:, place]

    def following(self, start: StartTree) -> Following | None:
        """Return None: a tree is searched on what its round has begun with."""
        return None


def searched_gradients(setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool,
                       given: Sequence[tuple[Array, Array]] | None = None) -> Gradients:  # fmt: skip
    """Return the gradients of rows that trees are searched on; parameters are those of `Gradients`."""
    kind = SketchedGradients if setup.recipe.sketch else Gradients
    return kind(setup, device, rows, keep=keep, given=given)
