"""Float gradients of rows while trees grow over them: computed, sketched, kept or not; and columns of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.devices.device import Device, LossRows
from daskboost.devices.gpu.gradients import GradientPair
from daskboost.devices.losses import is_positive, ones_of
from daskboost.dtypes import Array, Float32, Float64
from daskboost.engine.setup import EngineSetup
from daskboost.engine.shard_margins import ShardMargins
from daskboost.fit.messages import GradientRange, StartRound
from daskboost.objectives.base import kernel_of


@dataclass(frozen=True)
class GrowingRows:
    """Rows that trees grow over: their bins and margins, labels and weights, by chunk."""

    train: ShardMargins
    labels: Sequence[Array]
    weights: Sequence[Array | None]

    @classmethod
    def of(cls, train: ShardMargins, device: Device) -> GrowingRows:
        """The rows of a shard, whose labels and weights are brought to the device."""
        groups = train.groups
        weights = [None if group.rows.weight is None else device.put(group.rows.weight) for group in groups]
        return cls(train, [device.put(group.label) for group in groups], weights)


def range_of(tops: Sequence[Float64]) -> GradientRange:
    """Return the range of all rows by the largest |g| and h of parts of them; float64, shape (2, columns) each."""
    top = np.max(np.stack(tops), axis=0)  # NaN wins, as it should
    return GradientRange(top[0], top[1])


class Gradients:
    """Gradients of the rows that trees grow over.

    Parameters
    ----------
    setup : EngineSetup
    device : Device
    rows : GrowingRows
    keep : bool
        Whether those of all chunks stay in memory between their range and their quantizing.
    given : sequence of (array, array), optional
        Gradients that came with the rows of each chunk; float32, shape (rows, outputs).
    """

    def __init__(self, setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool,
                 given: Sequence[tuple[Array, Array]] | None = None) -> None:  # fmt: skip
        self._setup, self._device, self._keep = setup, device, keep
        self._stored: list[tuple[Array, Array]] = []
        self._projection: Float32 | None = None
        self._sketches: list[tuple[Array, Array]] = []
        """Sketch of each chunk's gradients, where trees are searched on a sketch."""
        self.hold(rows, given)

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        """Take other rows; memory for gradients is used again where it is large enough."""
        self.rows, self._sketches, self._is_given = rows, [], given is not None
        if given is not None:
            self._stored = list(given)
        elif self._stored and len(self._stored[0][0]) < max([rows.train.room_rows, *map(len, rows.train.margins)]):
            self._stored = []
        setup = self._setup
        self.losses: LossRows | None = None if given is not None else self._device.loss_rows(
            kernel_of(setup.objective), rows.labels, rows.train.margins, rows.weights, setup.objective.n_outputs,
            small_data=setup.recipe.small_data, stored=setup.recipe.vector_leaves, room_rows=rows.train.room_rows,
        )  # fmt: skip
        """What computes gradients by kernels; None where array expressions do, or rows bring them."""

    def start_round(self, message: StartRound) -> GradientRange:
        """Compute the gradients of all rows, and a sketch of them where there is a projection; their range."""
        self._projection = message.projection
        n_outputs = self._setup.objective.n_outputs
        tops = [np.zeros((2, n_outputs + self._n_columns))]
        if self.losses is not None:
            tops.append(self._kernel_ranges(self.losses))
        else:
            for index in range(len(self.rows.train.margins)):
                tops += self.compute(index)
        return range_of(tops)

    @property
    def _n_columns(self) -> int:
        """Columns of the sketch."""
        return 0 if self._projection is None else self._projection.shape[1]

    def _kernel_ranges(self, losses: LossRows) -> Float64:
        """The largest |g| and h where the loss has kernels, which compute the gradients of the round."""
        own, sketched = losses.ranges(), np.zeros((2, self._n_columns))
        for index in range(len(self.rows.train.margins) if self._n_columns else 0):
            self._open_sketch(index)
            self._sketch_rows(index, slice(None))
            sketched = np.maximum(sketched, [self._device.largest(part) for part in self._sketches[index]])
        return np.concatenate([own, sketched], axis=1)

    def columns_of(self, first: int, index: int) -> tuple[Array, Array]:
        """A chunk's gradients, or the sketch of them if column `first` is one of the sketch."""
        if not self._keep:
            self.compute(index)
        return self.of(index) if first < self._setup.objective.n_outputs else self._sketches[index]

    def searched(self, column: int, index: int) -> GradientPair:
        """A column of a chunk's gradients as trees are searched on it."""
        return self.column(column, index, by_weight=self._setup.recipe.searched == "weights")

    def column(self, column: int, index: int, *, by_weight: bool = False) -> GradientPair:
        """One column of a chunk's gradients, or what a kernel makes it of; with weights in place of hessians if that is
        asked for."""
        if self.losses is not None and column < self._setup.objective.n_outputs:
            return self.losses.columns(index, column, by_weight=by_weight)
        g, h = self.columns_of(column, index)
        n_outputs = self._setup.objective.n_outputs
        k = column if column < n_outputs else column - n_outputs
        return g[:, k], self.row_weights(index) if by_weight else h[:, k]

    def row_weights(self, index: int) -> Array:
        """What a chunk's gradients are multiplied by, but for weights of small data, which come later; float32, shape
        (rows,)."""
        xp, factor = self._device.xp, np.float32(self._setup.objective.positive_weight)
        weight = None if self._setup.recipe.small_data else self.rows.weights[index]
        if factor == 1:
            return ones_of(xp, len(self.rows.labels[index])) if weight is None else weight
        weights = xp.where(self.rows.labels[index] == 1, factor, np.float32(1))
        found: Array = weights if weight is None else weights * weight
        return found

    def computed(self, index: int, column: int) -> GradientPair:
        """One output's column of a chunk's gradients, which are there."""
        if self.losses is not None:
            return self.losses.columns(index, column)
        g, h = self.of(index)
        return g[:, column], h[:, column]

    def take_turn(self, index: int) -> list[Float64]:
        """Have a chunk's gradients there at its turn in a pass; ranges of its rows, if they are known by then."""
        if self.losses is None:
            return self.compute(index)
        self.losses.find_range(index)
        return []

    def ranges_of_turns(self) -> list[Float64]:
        """The ranges of the chunks that had their turn, as far as `take_turn` did not give them."""
        return [] if self.losses is None else [self.losses.found_ranges()]

    def all_outputs(self, index: int) -> GradientPair:
        """Compute a chunk's gradients of all outputs at its turn in a pass, where no range is wanted."""
        if self.losses is None:
            self.compute(index, find_range=False)
            return self.of(index)
        self.losses.compute(index)
        return self.losses.columns(index, 0)

    def fresh(self, column: int, index: int) -> GradientPair:
        """A column of a chunk's gradients as trees are searched on it, at its margins as they are now."""
        if self.losses is not None:
            self.losses.find_range(index)
        elif self._keep:
            self.compute(index, find_range=False)
        return self.searched(column, index)

    def of(self, index: int) -> tuple[Array, Array]:
        """Where a chunk's gradients go: float32, shape (rows, outputs); shared by all chunks unless they are kept."""
        if self.losses is not None:
            return self.losses.gradients(index)
        margins = self.rows.train.margins
        if not self._stored:
            sizes = [max(len(own), self.rows.train.room_rows) for own in margins]
            sizes = sizes if self._keep else [max(sizes, default=0)]
            shapes = [(size, self._setup.objective.n_outputs) for size in sizes]
            empty = partial(self._device.xp.empty, dtype=np.float32)
            self._stored = [(empty(shape), empty(shape)) for shape in shapes]
        g, h = self._stored[index if self._keep else 0]
        return g[: len(margins[index])], h[: len(margins[index])]

    def compute(self, index: int, *, find_range: bool = True) -> list[Float64]:
        """Fill a chunk's gradients and sketch; the largest |g| and h of ranges of its rows, float64 of shape (2,
        outputs + columns), unless the caller finds them itself."""
        g, _ = self.of(index)
        if self._n_columns:
            self._open_sketch(index)
        found = self._device.each_range(len(g), partial(self._range_gradients, index, find_range))
        return [each for each in found if each is not None]

    def _open_sketch(self, index: int) -> None:
        """Have room for the sketch of a chunk."""
        if len(self._sketches) <= index:
            shape = (len(self.rows.train.margins[index]), self._n_columns)
            self._sketches.append((
                self._device.xp.empty(shape, np.float32), self._device.xp.empty(shape, np.float32)
            ))  # fmt: skip

    def _sketch_rows(self, index: int, rows: slice) -> None:
        """Project the gradients of some rows of a chunk."""
        assert self._projection is not None
        signs = (self._projection, np.abs(self._projection))  # a step along a column moves its outputs up or down
        for values, projection, into in zip(self.of(index), signs, self._sketches[index], strict=True):
            self._device.project(values[rows], projection, into[rows])

    def _range_gradients(self, index: int, find_range: bool, begin: int, end: int) -> Float64 | None:
        """Fill gradients and sketch of some rows of a chunk; their range if it is wanted."""
        if not self._is_given:
            self._fill(index, begin, end)
        if self._projection is not None:
            self._sketch_rows(index, slice(begin, end))
        return self._range_of(index, begin, end) if find_range else None

    def _fill(self, index: int, begin: int, end: int) -> None:
        """Compute the gradients of some rows of a chunk by the objective's array expressions."""
        device, xp, rows = self._device, self._device.xp, self.rows
        label, margin, weight = rows.labels[index], rows.train.margins[index], rows.weights[index]
        all_g, all_h = self.of(index)
        if weight is not None and self._setup.recipe.small_data:
            weight = is_positive(weight).astype(np.float32)  # rows without weight must not widen the range
        for start in range(begin, end, device.gradient_rows):
            part = slice(start, min(start + device.gradient_rows, end))
            g, h = self._setup.objective.gradients(label[part], margin[part], xp)
            if weight is None:
                all_g[part], all_h[part] = g, h
            else:
                with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
                    xp.multiply(g, weight[part, None], out=all_g[part])
                    xp.multiply(h, weight[part, None], out=all_h[part])

    def _range_of(self, index: int, begin: int, end: int) -> Float64:
        """Largest |g| and h of some rows of a chunk, of outputs and columns of the sketch."""
        all_g, all_h = self.of(index)
        parts = [(all_g, all_h), *([self._sketches[index]] if self._n_columns else [])]
        return np.stack([
            np.concatenate([self._device.largest(part[side][begin:end]) for part in parts]) for side in (0, 1)
        ])  # fmt: skip
