"""Gradients of an engine's training rows: computed, sketched, kept or not; and columns of them, which trees are of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.cluster.shard_margins import ShardMargins
from daskboost.devices.device import Array, Device, LossRows
from daskboost.devices.losses import is_positive, ones_of
from daskboost.dtypes import Float32, Float64

if TYPE_CHECKING:
    from daskboost.cluster.engine import EngineSetup


class EngineGradients:
    """What `Engine` knows of gradients."""

    setup: EngineSetup
    device: Device
    train: ShardMargins
    losses: LossRows | None
    """What computes gradients by kernels."""
    _labels: Sequence[Array]
    _weights: Sequence[Array | None]

    def _init_gradients(self) -> None:
        self._gradients: list[tuple[Array, Array]] = []
        self._projection: Float32 | None = None
        self._sketches: list[tuple[Array, Array]] = []
        """Of each chunk's gradients, where trees are searched on a sketch."""
        # All outputs of a round start from the same margins, which the first one's tree already changes.
        self._keep_gradients = self.setup.keep_gradients or self.setup.objective.n_outputs > 1

    @property
    def _n_columns(self) -> int:
        """Columns of the sketch."""
        return 0 if self._projection is None else self._projection.shape[1]

    def _kernel_ranges(self, losses: LossRows) -> Float64:
        """The largest |g| and h where the loss has kernels, which compute the gradients of the round."""
        own, sketched = losses.ranges(), np.zeros((2, self._n_columns))
        for index in range(len(self.train.margins) if self._n_columns else 0):
            self._open_sketch(index)
            self._sketch_rows(index, slice(None))
            sketched = np.maximum(sketched, [self.device.largest(part) for part in self._sketches[index]])
        return np.concatenate([own, sketched], axis=1)

    def _columns_of(self, first: int, index: int) -> tuple[Array, Array]:
        """A chunk's gradients, or the sketch of them if column `first` is one of the sketch."""
        if not self._keep_gradients:
            self.compute_gradients(index)
        return self.gradients_of(index) if first < self.setup.objective.n_outputs else self._sketches[index]

    def _column(self, column: int, index: int, *, by_weight: bool = False) -> Any:
        """One column of them, or what a kernel makes it of; with weights in place of hessians if that is asked for."""
        if self.losses is not None and column < self.setup.objective.n_outputs:
            return self.losses.columns(index, column, by_weight=by_weight)
        g, h = self._columns_of(column, index)
        n_outputs = self.setup.objective.n_outputs
        k = column if column < n_outputs else column - n_outputs
        return g[:, k], self.row_weights(index) if by_weight else h[:, k]

    def row_weights(self, index: int) -> Array:
        """What a chunk's gradients are multiplied by, but for weights of small data, which come later; float32, shape
        (rows,)."""
        xp, factor = self.device.xp, np.float32(self.setup.objective.positive_weight)
        weight = None if self.setup.small_data else self._weights[index]
        if factor == 1:
            return ones_of(xp, len(self._labels[index])) if weight is None else weight
        weights = xp.where(self._labels[index] == 1, factor, np.float32(1))
        return weights if weight is None else weights * weight

    def _fresh_column(self, column: int, index: int) -> Any:
        """A column of a chunk's gradients at its margins as they are now."""
        if self.losses is not None:
            self.losses.find_range(index)
        elif self._keep_gradients:
            self.compute_gradients(index, find_range=False)
        return self._column(column, index, by_weight=self.setup.by_weight)

    def gradients_of(self, index: int) -> tuple[Array, Array]:
        """Where a chunk's gradients go: float32, shape (rows, outputs); shared by all chunks unless they are kept."""
        if self.losses is not None:
            return self.losses.gradients(index)
        margins = self.train.margins
        if not self._gradients:
            sizes = [max(len(own), self.train.room_rows) for own in margins]
            sizes = sizes if self._keep_gradients else [max(sizes, default=0)]
            shapes = [(size, self.setup.objective.n_outputs) for size in sizes]
            empty = partial(self.device.xp.empty, dtype=np.float32)
            self._gradients = [(empty(shape), empty(shape)) for shape in shapes]
        g, h = self._gradients[index if self._keep_gradients else 0]
        return g[: len(margins[index])], h[: len(margins[index])]

    def compute_gradients(self, index: int, *, find_range: bool = True) -> list[Any]:
        """Fill a chunk's gradients and sketch; the largest |g| and h of ranges of its rows, float64 of shape (2,
        outputs + columns), unless the caller finds them itself."""
        g, h = self.gradients_of(index)
        if self._n_columns:
            self._open_sketch(index)
        return self.device.each_range(len(g), partial(self._range_gradients, index, g, h, find_range))

    def _open_sketch(self, index: int) -> None:
        """Have room for the sketch of a chunk."""
        if len(self._sketches) <= index:
            shape = (len(self.train.margins[index]), self._n_columns)
            self._sketches.append((
                self.device.xp.empty(shape, np.float32), self.device.xp.empty(shape, np.float32)
            ))  # fmt: skip

    def _sketch_rows(self, index: int, rows: slice) -> None:
        """Project the gradients of some rows of a chunk."""
        assert self._projection is not None
        signs = (self._projection, np.abs(self._projection))  # a step along a column moves its outputs up or down
        for values, projection, into in zip(self.gradients_of(index), signs, self._sketches[index], strict=True):
            self.device.project(values[rows], projection, into[rows])

    def _range_gradients(self, index: int, all_g: Array, all_h: Array, find_range: bool, begin: int, end: int) -> Any:
        device, xp = self.device, self.device.xp
        label, margin, weight = self._labels[index], self.train.margins[index], self._weights[index]
        if weight is not None and self.setup.small_data:
            weight = is_positive(weight).astype(np.float32)  # rows without weight must not widen the range
        for start in range(begin, end, device.gradient_rows):
            rows = slice(start, min(start + device.gradient_rows, end))
            g, h = self.setup.objective.gradients(label[rows], margin[rows], xp)
            if weight is None:
                all_g[rows], all_h[rows] = g, h
            else:
                with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
                    xp.multiply(g, weight[rows, None], out=all_g[rows])
                    xp.multiply(h, weight[rows, None], out=all_h[rows])
            if self._projection is not None:
                self._sketch_rows(index, rows)
        return self._range_of(index, begin, end) if find_range else None

    def _range_of(self, index: int, begin: int, end: int) -> Float64:
        """Largest |g| and h of some rows of a chunk, of outputs and columns of the sketch."""
        all_g, all_h = self.gradients_of(index)
        parts = [(all_g, all_h), *([self._sketches[index]] if self._n_columns else [])]
        return np.stack([
            np.concatenate([self.device.largest(part[side][begin:end]) for part in parts]) for side in (0, 1)
        ])  # fmt: skip
