"""Margins of one shard's rows, on an engine's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from daskboost.data.chunks.packing import Layout
from daskboost.data.chunks.shard import Shard
from daskboost.devices.cpu.views import SlotLayout, WalkArrays
from daskboost.devices.protocols import Device, View
from daskboost.dtypes import Array, Float32
from daskboost.engine.chunk_views import ViewRoom, Views, chunk_views
from daskboost.engine.row_groups import RowGroup
from daskboost.errors import DataError

TRAINING, EVALUATION = 1, 0
"""Ranks of passes that several fits make together (see `Lockstep.items`)."""
FIRST_ROWS = 64
"""Rows of equal margins that come from the host: so few that no plan need count them."""


class SharesViews(Protocol):
    """Where views come from if several fits of a process train on the same data set."""

    def of(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, rank: int) -> Views:
        """Return the views of a shard on a fit's device, as `ShardMargins.views` gives them."""


@dataclass(frozen=True, eq=False)
class ShardMargins:
    """Margins of one shard's rows, with views of its chunks."""

    shard: Shard
    device: Device
    n_outputs: int
    """Margins of a row."""
    groups: Sequence[RowGroup]
    """Chunks that are worked on together."""
    margins: Sequence[Array]
    """Margins of the rows of each group; float32, shape (rows, outputs)."""
    views: Views
    is_resident: bool = True
    """Whether all views stay in the device's memory, once they are made."""
    room_rows: int = 0
    """Rows of a chunk that memory is taken for, if it has fewer."""

    @classmethod
    def of(cls, shard: Shard, device: Device, layout: SlotLayout, n_outputs: int, room: ViewRoom,
           shared: Views | None = None) -> ShardMargins:  # fmt: skip
        """Return the margins of a shard, all 0; `shared` : the views, where several fits share them."""
        own = chunk_views(shard, device, layout, room)
        margins = [device.xp.zeros((group.n_rows, n_outputs), np.float32) for group in own.groups]
        return cls(shard, device, n_outputs, own.groups, margins, shared or own.views, own.is_resident)

    def set_base(self, margin: ArrayLike) -> None:
        for group, own in zip(self.groups, self.margins, strict=True):
            given = group.rows.base_margin
            if given is not None and given.shape != own.shape:
                raise DataError(
                    f"base_margin has {given.shape[1]} columns, but the objective has {own.shape[1]} outputs; give one "
                    "column per output"
                )
            if given is None:
                self._repeat(np.asarray(margin, np.float32), own)
            else:
                own[:] = self.device.put(np.asarray(given, np.float32))

    def _repeat(self, row: Float32, out: Array) -> None:
        """Give all rows the same values by copies, each of as many rows as there are already: to broadcast a row, CuPy
        would compile a kernel."""
        n, n_rows = min(FIRST_ROWS, len(out)), len(out)
        out[:n] = self.device.put(np.tile(row, (n, 1)))
        while n < n_rows:
            more = min(n, n_rows - n)
            out[n : n + more] = out[:more]
            n += more

    def add_trees(self, trees: Sequence[tuple[WalkArrays, int]]) -> None:
        """Add the values of trees to the margins of one output each, or vectors to those of all, in one pass."""
        for _ in self.adding(trees):
            pass

    def adding(self, trees: Sequence[tuple[WalkArrays, int]]) -> Iterator[tuple[int, View]]:
        """`views`, each once its margins have several trees, of one output each or of all."""
        adders = [partial(self._add, self.device.walker(tree), tree, output) for tree, output in trees]
        for index, view in self.views():
            for add in adders:
                add(index, view)
            yield index, view

    def _add(self, walk: Callable[[View, Array], None], tree: WalkArrays, output: int, index: int, view: View) -> None:
        walk(view, tree.own(self.margins[index], output))


def has_room(room_bytes: int, layout: Layout, n_rows: int) -> bool:
    """Whether so many rows get a column-major copy where such copies may take `room_bytes`."""
    return 0 < room_bytes >= n_rows * layout.row_bytes
