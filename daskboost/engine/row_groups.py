"""Chunks that row loops take together.

Partitions of some ten thousand rows make chunks whose fixed costs (a spill of every open node's histogram, a few calls
per level) weigh as much as their rows: 100k rows x 28 took 26 ms per tree as four chunks and 18 ms as one. So
neighbouring small chunks in RAM are copied into one group; large ones stay groups of their own, and so do all that are
streamed but where a device takes several at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from daskboost.data.chunks.shard import Shard
from daskboost.data.input.row_columns import ChunkRows, joined
from daskboost.devices.budget.set_size import stream_groups
from daskboost.devices.cpu.rows import Pieces
from daskboost.dtypes import Float32
from daskboost.exact_sum import ExactSum


@dataclass(frozen=True)
class RowGroup:
    """Rows of one chunk or of several, one after the other."""

    entries: range
    """Places of the chunks in the shard."""
    n_rows: int
    pieces: Pieces
    """(place of a chunk's first row in the group, global id of that row), one pair per chunk; or the ids of all
    rows."""
    rows: ChunkRows

    @cached_property
    def label(self) -> Float32:
        """Zeros where rows have none, as losses that read no labels allow (`Objective.needs`)."""
        return np.zeros(self.n_rows, np.float32) if self.rows.label is None else self.rows.label

    @cached_property
    def weight(self) -> Float32:
        """Ones where rows have none."""
        return np.ones(self.n_rows, np.float32) if self.rows.weight is None else self.rows.weight

    def label_sums(self, begin: int, end: int) -> tuple[ExactSum, ExactSum]:
        """Return exact sums of the weighted labels and of the weights of some rows."""
        label, weight = self.label[begin:end], self.rows.weight
        weighted = label if weight is None else label.astype(np.float64) * weight[begin:end].astype(np.float64)
        return ExactSum.of(weighted), self.weight_sum(begin, end)

    def weight_sum(self, begin: int, end: int) -> ExactSum:
        """Return the exact sum of the weights of some rows."""
        weight = self.rows.weight
        return ExactSum.of([end - begin] if weight is None else weight[begin:end].astype(np.float64))

    def class_weights(self, begin: int, end: int) -> dict[int, ExactSum]:
        """Return the exact sums of the weights of some rows, by class, of the classes that they have."""
        classes = self.label[begin:end].astype(np.int64)
        if self.rows.weight is None:
            found, counts = np.unique(classes, return_counts=True)
            return {own: ExactSum.of([n]) for own, n in zip(found.tolist(), counts.tolist(), strict=True)}
        order = np.argsort(classes, kind="stable")
        found, starts = np.unique(classes[order], return_index=True)
        weights = np.split(self.rows.weight[begin:end][order], starts[1:])
        return {own: ExactSum.of(each) for own, each in zip(found.tolist(), weights, strict=True)}

    def parts(self) -> Iterator[tuple[slice, int]]:
        """The rows of each chunk within the group, and the global id of the first."""
        ends = [begin for begin, _ in self.pieces[1:]] + [self.n_rows]
        for (begin, first_row), end in zip(self.pieces, ends, strict=True):
            yield slice(begin, end), first_row


def row_groups(shard: Shard, most_rows: int, room_bytes: float, streamed: frozenset[int], stream_bytes: int = 0
               ) -> list[RowGroup]:  # fmt: skip
    """Divide a shard's chunks into groups, in order, of at most `most_rows` unless a chunk alone has more; at most
    `room_bytes` of bins are to be copied. Those at the places `streamed` are in groups of their own, of up to
    `stream_bytes` (see `stream_groups`)."""
    places = sorted(streamed)
    sizes = [shard.entries[place].handle.nbytes for place in places]
    groups = [range(places[own.start], places[own.stop - 1] + 1) for own in stream_groups(places, sizes, stream_bytes)]
    runs: list[range] = []
    rows = copied = 0
    for place in sorted(set(range(len(shard.entries))) - streamed):
        n_rows, n_bytes = shard.entries[place].n_rows, shard.entries[place].handle.nbytes
        follows = bool(runs) and runs[-1].stop == place
        if follows and rows + n_rows <= most_rows and copied + n_bytes <= room_bytes:
            runs[-1] = range(runs[-1].start, place + 1)
            rows, copied = rows + n_rows, copied + n_bytes
        else:
            runs.append(range(place, place + 1))
            rows = n_rows
    return [_group(shard, entries) for entries in sorted([*groups, *runs], key=lambda own: own.start)]


def _group(shard: Shard, entries: range) -> RowGroup:
    parts = [shard.entries[index] for index in entries]
    begins = np.cumsum([0, *(part.n_rows for part in parts)]).tolist()
    pieces = tuple((begin, part.first_row) for begin, part in zip(begins, parts, strict=False))
    return RowGroup(entries, begins[-1], pieces, joined([part.rows for part in parts]))
