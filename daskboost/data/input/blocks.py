"""Inputs cut into blocks of whole rows, none of them read: one small class per way of cutting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daskboost.data.input.convert import column_of
from daskboost.data.input.kinds import kind_of
from daskboost.data.input.parquet import RowGroup
from daskboost.errors import DataError

MAX_ROWS = 2**20
"""Rows of a partition cut from local data, at most."""
MAX_BYTES = 256 * 2**20
"""Bytes of its features as float32, at most: with its copies, what one quantizing task holds besides its chunk."""


class Blocks(ABC):
    """One aligned input (features, label, weight or base margin), cut into partitions."""

    data: Any
    """The input as it came; row groups of files have none."""

    @property
    def n_partitions(self) -> int:
        assert self.lengths is not None
        return len(self.lengths)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Rows per partition; None where only computing would tell."""
        return None

    @abstractmethod
    def blocks(self) -> list[Any]:
        """The raw blocks, or a Delayed for each."""

    def column_blocks(self, name: Hashable) -> list[Any]:
        """One column of every block, or a Delayed for each that reads no other column."""
        raise DataError(f"an array has no column {name!r}")

    def name_of(self, index: int) -> str:
        """What messages call a partition."""
        return f"partition {index}"


@dataclass(frozen=True)
class LocalBlocks(Blocks):
    """NumPy, pandas, Arrow, CSR, CuPy or cuDF data in this process, sliced without a copy."""

    data: Any
    cuts: tuple[int, ...]
    """Row numbers, from 0 to the number of rows."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in pairwise(self.cuts))

    def blocks(self) -> list[Any]:
        return [row_slice(self.data, start, stop) for start, stop in pairwise(self.cuts)]

    def column_blocks(self, name: Hashable) -> list[Any]:
        column = column_of(self.data, name)
        return [row_slice(column, start, stop) for start, stop in pairwise(self.cuts)]

    def name_of(self, index: int) -> str:
        return "" if self.n_partitions == 1 else f"rows {self.cuts[index]} to {self.cuts[index + 1] - 1}"


@dataclass(frozen=True)
class WholeBlocks(LocalBlocks):
    """Data that a GPU has, or takes, as one partition: passes over it are cheap beside merging what they find."""

    pieces: tuple[int, ...]
    """Where the same data would be cut for the host: chunks end there."""


@dataclass(frozen=True)
class DeviceBlocks(WholeBlocks):
    """CuPy or cuDF data."""

    def blocks(self) -> list[Any]:
        return [self.data]

    def column_blocks(self, name: Hashable) -> list[Any]:
        return [self.data[name]]


@dataclass(frozen=True)
class ParquetBlocks(Blocks):
    """Row groups of Parquet files."""

    groups: tuple[RowGroup, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(group.n_rows for group in self.groups)

    def blocks(self) -> list[Any]:
        return list(self.groups)

    def column_blocks(self, name: Hashable) -> list[Any]:
        from dask import delayed

        return [delayed(RowGroup.column)(group, name) for group in self.groups]

    def name_of(self, index: int) -> str:
        return str(self.groups[index])


@dataclass(frozen=True)
class MadeBlocks(Blocks):
    """What was made for each partition: any objects, or a Delayed of each."""

    made: tuple[Any, ...]
    sizes: tuple[int, ...]
    """Rows of the partitions."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.sizes

    def blocks(self) -> list[Any]:
        return list(self.made)


@dataclass(frozen=True)
class DaskFrameBlocks(Blocks):
    """A Dask DataFrame or Series."""

    data: Any

    @property
    def n_partitions(self) -> int:
        return int(self.data.npartitions)

    def blocks(self) -> list[Any]:
        blocks = list(self.data.to_delayed(optimize_graph=True))
        if len(blocks) != self.n_partitions:  # Dask reads several files at once of which it needs few columns
            blocks = list(self.data.to_delayed(optimize_graph=False))
        return blocks

    def column_blocks(self, name: Hashable) -> list[Any]:
        return list(self.data[name].to_delayed(optimize_graph=True))


@dataclass(frozen=True)
class DaskArrayBlocks(Blocks):
    """A Dask Array, one chunk wide, of known or unknown numbers of rows."""

    data: Any

    @property
    def n_partitions(self) -> int:
        return len(self.data.chunks[0])

    @property
    def lengths(self) -> tuple[int, ...] | None:
        rows = self.data.chunks[0]
        return None if any(np.isnan(n) for n in rows) else tuple(int(n) for n in rows)

    def blocks(self) -> list[Any]:
        return list(self.data.to_delayed(optimize_graph=True).ravel())


def n_rows_of(block: Any) -> int:
    """Return the number of rows of a block, of a RowGroup without reading it."""
    return int(block.n_rows if isinstance(block, RowGroup) else block.shape[0])


def row_slice(data: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` (exclusive) of local data, sharing its memory."""
    kind = kind_of(data)
    if kind == "sparse":
        first, last = data.indptr[start], data.indptr[stop]
        rows = type(data)((stop - start, data.shape[1]), dtype=data.dtype)
        # set afterwards, because scipy's constructor copies what is a small part of a larger array
        rows.data, rows.indices = data.data[first:last], data.indices[first:last]
        rows.indptr = data.indptr[start : stop + 1] - first
        return rows
    if kind == "pyarrow":
        return data.slice(start, stop - start)
    return getattr(data, "iloc", data)[start:stop]


def even_cuts(n_rows: int, row_bytes: float) -> tuple[int, ...]:
    """Where to cut local data of `n_rows` rows of `row_bytes` bytes each: even partitions under both limits."""
    most = max(1, min(MAX_ROWS, int(MAX_BYTES / max(row_bytes, 1))))
    parts = max(1, -(-n_rows // most))
    return tuple(n_rows * i // parts for i in range(parts + 1))


def cuts_of(lengths: Sequence[int]) -> tuple[int, ...]:
    """Row numbers at which partitions of these lengths begin, and where the last ends."""
    return tuple(int(n) for n in np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]))
