"""Evaluation sets that are some rows of a data set, or rows that trees grow over anyway.

A fold's held-out rows have weight 0 in the trees of its fit and stay in them, so the margins that training keeps are
theirs as well: no second copy, and no second pass over bins that may have to be read from disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskboost.data.chunk import ChunkRows
from daskboost.data.shard import Shard, ShardChunk
from daskboost.devices.device import Device
from daskboost.dtypes import Array, Bool, Int32
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.shard_margins import ShardMargins


class EvaluatedRows:
    """The rows of a shard that count, with margins that are kept for all rows of its chunks.

    Parameters
    ----------
    shard : Shard
        The evaluation set.
    kept : ShardMargins
        Of the same chunks; those of the training rows where these are the same.
    device : Device
    """

    def __init__(self, shard: Shard, kept: ShardMargins, device: Device) -> None:
        self._kept, self._xp = kept, device.xp
        self.groups: list[RowGroup] = []
        """Groups of the rows that count alone."""
        self._places: list[tuple[int, Array | None]] = []
        """Place of each group among the kept margins', and its rows among theirs, None for all."""
        for index, group in enumerate(kept.groups):
            entries = shard.entries[group.entries.start : group.entries.stop]
            rows = _selected(entries)
            if rows is not None and not len(rows):
                continue
            same = rows is None and all(
                entry.rows is other.rows
                for entry, other in zip(entries, kept.shard.entries[group.entries.start :], strict=False)
            )
            self.groups.append(group if same else _compact(group, entries, rows))
            self._places.append((index, None if rows is None else self._xp.asarray(rows)))

    def margins(self, places: range) -> Array:
        """Return the margins of neighbouring groups, one after the other, as they are now: a copy, but of one group all
        of whose rows count."""
        every = self._kept.margins
        pieces = [
            every[index] if rows is None else every[index][rows]
            for index, rows in self._places[places.start : places.stop]
        ]
        found: Array = pieces[0] if len(pieces) == 1 else self._xp.concatenate(pieces)
        return found


def _selected(entries: Sequence[ShardChunk]) -> Int32 | None:
    """Places of the rows that count among those of all entries; None for all."""
    if all(entry.selected is None for entry in entries):
        return None
    return np.flatnonzero(np.concatenate([_mask(entry) for entry in entries])).astype(np.int32)


def _mask(entry: ShardChunk) -> Bool:
    return np.ones(entry.n_rows, np.bool_) if entry.selected is None else entry.selected


def _compact(group: RowGroup, entries: Sequence[ShardChunk], rows: Int32 | None) -> RowGroup:
    """A group of the rows that count alone. The ids of rows behind the first of a chunk are not theirs any more, but in
    their order, which is all that metrics ask for."""
    begins = np.cumsum([0, *(np.count_nonzero(_mask(entry)) for entry in entries)]).tolist()
    pieces = tuple((begin, entry.first_row) for begin, entry in zip(begins, entries, strict=False))

    def part(name: str) -> Any:
        arrays = [getattr(entry.rows, name) for entry in entries]
        if any(array is None for array in arrays):  # then none of a shard's has it
            return None
        return np.concatenate(arrays)[slice(None) if rows is None else rows]

    return RowGroup(group.entries, begins[-1], pieces, ChunkRows(part("label"), part("weight")))
