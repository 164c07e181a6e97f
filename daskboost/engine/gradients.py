"""Float gradients of rows while trees grow over them: computed, kept or not; and columns of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.devices.device import Array, Device, GradientColumn, LossRows
from daskboost.devices.following import Following
from daskboost.devices.losses import is_positive, ones_of
from daskboost.dtypes import Float64
from daskboost.engine.setup import EngineSetup
from daskboost.engine.shard_margins import ShardMargins
from daskboost.fit.messages import GradientRange, StartRound, StartTree
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
        self.hold(rows, given)

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        """Take other rows; memory for gradients is used again where it is large enough."""
        self.rows, self._is_given = rows, given is not None
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
        """Compute what the trees of a round are searched on, of all rows; its range."""
        tops = [np.zeros((2, self.n_columns))]
        if self.losses is not None:
            tops.append(self._kernel_ranges(self.losses))
        else:
            for index in range(len(self.rows.train.margins)):
                tops += self.compute(index)
        return range_of(tops)

    @property
    def n_columns(self) -> int:
        """Columns whose range is found."""
        return self._setup.objective.n_outputs

    def _kernel_ranges(self, losses: LossRows) -> Float64:
        """The largest |g| and h of each column where the loss has kernels, which compute the gradients of the round."""
        return losses.ranges()

    def all_searched(self, index: int) -> tuple[Array, Array]:
        """Return all columns of a chunk that a tree of vector leaves is searched on."""
        return self._outputs(index)

    def _outputs(self, index: int) -> tuple[Array, Array]:
        """Return a chunk's gradients, which are computed again unless they were kept."""
        if not self._keep:
            self.compute(index)
        return self.of(index)

    def searched(self, column: int, index: int) -> GradientColumn:
        """A column of a chunk's gradients as trees are searched on it."""
        return self.column(column, index, by_weight=self._setup.recipe.searched == "weights")

    def column(self, column: int, index: int, *, by_weight: bool = False) -> GradientColumn:
        """One output's column of a chunk's gradients, or what a kernel makes it of; with weights in place of hessians
        if that is asked for."""
        if self.losses is not None:
            return self.losses.columns(index, column, by_weight=by_weight)
        g, h = self._outputs(index)
        return g[:, column], self.row_weights(index) if by_weight else h[:, column]

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

    def computed(self, index: int, column: int) -> GradientColumn:
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

    def all_outputs(self, index: int) -> GradientColumn:
        """Compute a chunk's gradients of all outputs at its turn in a pass, where no range is wanted."""
        if self.losses is None:
            self.compute(index, find_range=False)
            return self.of(index)
        self.losses.compute(index)
        return self.losses.columns(index, 0)

    def following(self, start: StartTree) -> Following | None:
        """Return the tree whose root the pass that finishes another one is to build; None where that would save no
        pass, or its gradients would not be there."""
        if len(start.columns) > 1 or self.rows.train.is_resident:
            return None
        return Following(partial(self.fresh, start.columns[0]), start.roundings[0])

    def fresh(self, column: int, index: int) -> GradientColumn:
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
        """Fill a chunk's gradients; the largest |g| and h of ranges of its rows, float64 of shape (2, columns), unless
        the caller finds them itself."""
        g, _ = self.of(index)
        found = self._device.each_range(len(g), partial(self._range_gradients, index, find_range))
        return [each for each in found if each is not None]

    def _range_gradients(self, index: int, find_range: bool, begin: int, end: int) -> Float64 | None:
        """Make what some rows of a chunk are searched on; its range if it is wanted."""
        self._make(index, begin, end)
        return self._range_of(index, begin, end) if find_range else None

    def _make(self, index: int, begin: int, end: int) -> None:
        """Fill the gradients of some rows of a chunk unless they are given."""
        if not self._is_given:
            self._fill(index, begin, end)

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
        """Largest |g| and h of some rows of a chunk, of each column."""
        return np.stack([self._device.largest(values[begin:end]) for values in self.of(index)])
