"""What the memory of an engine's data sets depends on: rows, entries, and chunks with the tiers where they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from daskboost.devices.gpu.quantize.symbols import turned_bytes
from daskboost.devices.gpu.rows.feature_groups import row_columns
from daskboost.dtypes import Int64

# Chunks that stream to a device together, and where each lies among them: from sizes alone, so that a plan knows what
# an engine will do.
#
# A launch costs the host some 12 us whatever the rows, and a chunk's turn takes 20 to 30 of them where trees are
# certified, as many for each model of several, while 32 MiB cross the bus in .6 ms: one by one, chunks came as fast as
# the host launched, and those of small Dask partitions still slower.

GROUP_BYTES = 2**27 + 2**16
"""Most packed bytes of a group of several chunks: four of the usual size, with the words behind their symbols."""
ALIGNMENT = 256
"""Alignment of a chunk's first byte in its group."""
READS_AT_ONCE = 4
"""Files that are read at the same time."""


def places_in_group(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The first byte of each of a group's chunks, and the bytes of the group."""
    begins, end = [], 0
    for size in sizes:
        begins.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = begins[-1] + size
    return begins, end


def kept_first(place: int, on_disk: bool) -> tuple[bool, int]:
    """Sort key of a set's chunks in the order in which a GPU keeps them: first those on disk, since they would take
    longest to come again."""
    return not on_disk, place


def stream_groups(places: Sequence[int], sizes: Sequence[int], most_bytes: int) -> list[range]:
    """Divide streamed chunks into groups of neighbours, in order.

    Parameters
    ----------
    places : sequence of int
        Of the streamed chunks among all of their set, increasing.
    sizes : sequence of int
        Their packed bytes.
    most_bytes : int
        Of a group, unless one chunk alone has more; 0 for one chunk at a time.

    Returns
    -------
    list of range
        Of the numbers of chunks in `places`.
    """
    groups: list[range] = []
    end = 0
    for number, size in enumerate(sizes):
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        if number and places[number] == places[number - 1] + 1 and begin + size <= most_bytes:
            groups[-1] = range(groups[-1].start, number + 1)
            end = begin + size
        else:
            groups.append(range(number, number + 1))
            end = size
    return groups


def group_sizes(sizes: Sequence[int]) -> Iterator[int]:
    """What `most_bytes` may be for chunks of these sizes, the largest first: `GROUP_BYTES` and its halves, then what
    the largest chunk has, so that small ones beside it join, then 0."""
    largest, most = max(sizes, default=0), GROUP_BYTES
    while most > largest:
        yield most
        most //= 2
    if largest:
        yield largest
    yield 0


def n_read_rooms(n_files: Sequence[int]) -> int:
    """Pieces of page-locked memory that groups of so many files each are read to in turn: as many files as are read at
    once while another group is copied."""
    reading = [n for n in n_files if n]
    return min(READS_AT_ONCE, len(reading), 1 + -(-READS_AT_ONCE // max(reading, default=1)))


@dataclass(frozen=True)
class FeatureSizes:
    """Features by the size of what they have: those of size k have more than 2**(k-1) values, and at most 2**k."""

    n_features: tuple[int, ...]
    """Number of features of each size, from 0."""
    n_entries: tuple[int, ...]
    """Values that these have together."""

    @classmethod
    def of(cls, entries: Int64) -> FeatureSizes:
        """Count features by their numbers of values; those without any do not count."""
        entries = entries[entries > 0]
        sizes = np.frexp((entries - 1).astype(np.float64))[1]  # exact: no count has more than 53 bits
        n = int(sizes.max(initial=-1)) + 1
        sums = np.zeros(n, np.int64)
        np.add.at(sums, sizes, entries)
        return cls(tuple(np.bincount(sizes, minlength=n).tolist()), tuple(sums.tolist()))

    @classmethod
    def even(cls, n_features: int, n_entries: int) -> FeatureSizes:
        """Where nothing else is known: each as many as any other."""
        counts = np.full(n_features, n_entries // max(n_features, 1))
        counts[: n_entries % max(n_features, 1)] += 1
        return cls.of(counts)

    def above(self, n: int) -> tuple[int, int]:
        """Features that have more than `n` values, a power of two, and the values that they have together."""
        size = n.bit_length()
        return sum(self.n_features[size:]), sum(self.n_entries[size:])


UNIT_BYTES = 24
"""Bytes of a symbol in `UnpackedDense`'s tables, at most."""
PLACES_BYTES = 4 * 8 + 4
"""Bytes of a CSR row whose entries are about to be taken: `_entry_places` and its temporary arrays."""


class ChunkSize(NamedTuple):
    """A chunk of a set that lies in the host's memory or on disk."""

    n_rows: int
    n_entries: int
    """Of CSR rows, at most."""
    n_bytes: int
    """Bytes of the chunk as it is stored."""
    on_disk: bool = False
    place: int = 0
    """Among all chunks of its set."""


class GroupSize(NamedTuple):
    """Chunks that are streamed together."""

    n_rows: int
    n_entries: int
    n_bytes: int
    n_files: int
    """Chunks on disk among them."""
    file_bytes: int
    """Bytes of the chunks on disk, one behind the other."""


@dataclass(frozen=True)
class SetSize(ABC):
    """The rows of one data set that an engine holds."""

    n_rows: int
    n_features: int
    n_entries: int = 0
    """Present entries of CSR rows; 0 of dense ones."""
    feature_sizes: FeatureSizes | None = None
    """How they are spread over features; None where nobody counted."""
    chunk_rows: int = 0
    """Most rows of a chunk."""
    streamed_rows: int = 0
    """Rows whose chunks have no room on a GPU, or lie on disk for a CPU: they are read for every pass and not kept."""
    chunks: tuple[ChunkSize, ...] = ()
    """Chunks in the host's memory or on disk that may be kept, in the order in which a GPU does (`kept_first`)."""
    streamed: tuple[ChunkSize, ...] = ()
    """Chunks of the streamed rows, in order."""
    stream_bytes: int | None = None
    """Most bytes of the groups that they come in (`stream_groups`); None where that is not decided."""
    stored_bytes: int = 0
    """Bytes of the chunks that are stored in this process's memory."""
    read_in_place: bool = False
    """Whether the CPU reads chunks as they are stored: symbols that are machine integers."""
    device_rows: int = 0
    """Rows whose symbols lie on the GPU before the fit begins."""
    n_parts: int = 0
    """Chunks that those rows come in."""
    part_rows: int = 0
    """Most rows of such a piece: of a partition, whose chunks are parts of one array."""
    is_lent: bool = False
    """Whether they are all rows, in one array that the GPU's view takes as it is."""
    gpus: frozenset[int] = frozenset()
    """Numbers of the GPUs that they lie on."""

    def keeping(self, n_chunks: int) -> SetSize:
        """The same set, of whose chunks a GPU keeps the first so many."""
        return self._keeping(self.chunks[:n_chunks], self.chunks[n_chunks:])

    def reading_files(self) -> SetSize:
        """The same set on a CPU, which keeps the chunks in memory and reads those on disk in every pass."""
        n_on_disk = sum(chunk.on_disk for chunk in self.chunks)
        return self._keeping(self.chunks[n_on_disk:], self.chunks[:n_on_disk])

    def _keeping(self, kept: tuple[ChunkSize, ...], others: tuple[ChunkSize, ...]) -> SetSize:
        streamed = tuple(sorted((*self.streamed, *others), key=lambda chunk: chunk.place))
        return replace(
            self, chunks=kept, streamed=streamed,
            streamed_rows=self.streamed_rows + sum(chunk.n_rows for chunk in others),
        )  # fmt: skip

    @property
    def loaded(self) -> tuple[ChunkSize, ...]:
        """What a GPU reads once, packed, to keep it: nothing where all that it keeps lies in the host's memory."""
        return self.chunks if any(chunk.on_disk for chunk in self.chunks) else ()

    def streamed_bytes(self, *, on_disk: bool) -> int:
        """Bytes of the streamed chunks that lie on disk, or of those that do not."""
        return sum(chunk.n_bytes for chunk in self.streamed if chunk.on_disk == on_disk)

    @property
    def group_bytes(self) -> int:
        """Most bytes of a group of streamed chunks, unless one alone has more."""
        return self.stream_bytes or 0

    def planes_bytes(self, n_slots: int) -> int:
        """Return the bytes of `UnpackedDense` or `UnpackedSparse` of groups that stream: the largest, and tables."""
        if not self.streamed:
            return 0
        most_rows, most_entries = (max(group[k] for group in self.groups) for k in (0, 1))
        return self.unpacked_bytes(most_rows, most_entries) + self.tables_bytes(n_slots)

    @cached_property
    def groups(self) -> list[GroupSize]:
        """In which the streamed chunks come."""
        places, sizes = ([chunk[k] for chunk in self.streamed] for k in (4, 2))
        joined = stream_groups(places, sizes, self.group_bytes)
        return [_joined(self.streamed[group.start : group.stop]) for group in joined]

    @property
    def of_training(self) -> bool:
        """Whether its rows are training rows, whose bins serve for both: then none of its own come in chunks."""
        return self.streamed_rows > 0 and not self.streamed

    @property
    def resident_rows(self) -> int:
        return self.n_rows - self.streamed_rows

    @property
    def turn_rows(self) -> int:
        """Most rows that a GPU works on at a time: those that are kept, or a group's."""
        return max([self.resident_rows, *(group.n_rows for group in self.groups)])

    @property
    def resident_entries(self) -> int:
        """Present entries of CSR rows that are kept."""
        return max(0, self.n_entries - sum(chunk.n_entries for chunk in self.streamed))

    def features_above(self, n: int) -> tuple[int, int]:
        """Features that have more than `n` entries, a power of two, and the entries that they have together; at most,
        where nobody counted them."""
        if self.feature_sizes is None:
            return self.n_entries // (n + 1), self.n_entries
        return self.feature_sizes.above(n)

    @property
    def entries_per_row(self) -> float:
        return self.n_entries / max(self.n_rows, 1)

    @abstractmethod
    def of_rows(self, n_rows: int, n_entries: int) -> SetSize:
        """Return the size of so many rows of the same kind, all of them resident."""

    @abstractmethod
    def column_bytes(self, n_rows: int) -> int:
        """Return the bytes of a column-major copy of so many rows, where such rows have one."""

    @abstractmethod
    def host_bytes(self, n_rows: int) -> int:
        """Return the bytes of so many rows in a view of the CPU."""

    @abstractmethod
    def taken_bytes(self, n_rows: int) -> int:
        """Return the bytes of so many rows that the CPU takes from views, while they are joined."""

    @abstractmethod
    def unpacked_bytes(self, n_rows: int, n_entries: int) -> int:
        """Return the bytes of so many rows in a view of a GPU."""

    @abstractmethod
    def mixed_row_bytes(self, row_bytes: int) -> int:
        """Return the bytes of a row in planes of symbols of one and of two bytes, which are so many where rows have
        such; 0 of others."""

    @abstractmethod
    def tables_bytes(self, n_slots: int) -> int:
        """Return the bytes of what a GPU unpacks rows by: symbols' places or bins' slots."""

    @abstractmethod
    def places_bytes(self, n_rows: int) -> int:
        """Return the bytes of temporary arrays of a GPU while so many rows are taken from views."""

    @abstractmethod
    def uploading_bytes(self) -> int:
        """Return the bytes of rows on their way into a view of a GPU, but for packed chunks."""

    @abstractmethod
    def turned_bytes(self, most_slots: int, block_bytes: int | None) -> int:
        """Return the bytes of the copy for roots, where it pays; see `symbols.py`."""


@dataclass(frozen=True)
class DenseSet(SetSize):
    """Rows of a symbol for every feature."""

    symbol_bytes: int = 1
    """Bytes of an unpacked symbol."""

    def of_rows(self, n_rows: int, n_entries: int) -> DenseSet:
        return DenseSet(n_rows, self.n_features, symbol_bytes=self.symbol_bytes)

    def column_bytes(self, n_rows: int) -> int:
        return n_rows * self.n_features * self.symbol_bytes

    def host_bytes(self, n_rows: int) -> int:
        return self.column_bytes(n_rows)

    def taken_bytes(self, n_rows: int) -> int:
        return self.column_bytes(n_rows)

    def unpacked_bytes(self, n_rows: int, n_entries: int) -> int:
        return n_rows * self.symbol_bytes * row_columns(self.n_features, self.symbol_bytes)

    def mixed_row_bytes(self, row_bytes: int) -> int:
        return row_bytes * (self.symbol_bytes > 1)

    def tables_bytes(self, n_slots: int) -> int:
        return UNIT_BYTES * row_columns(self.n_features, self.symbol_bytes)

    def places_bytes(self, n_rows: int) -> int:
        return 0

    def uploading_bytes(self) -> int:
        """Return the bytes of a chunk's matrix or, where rows lie on the device, a partition's."""
        on_host = self.resident_rows > self.device_rows and not all(chunk.on_disk for chunk in self.chunks)
        of_parts = 0 if self.is_lent else self.part_rows
        return self.column_bytes(max(of_parts, min(self.n_rows, self.chunk_rows) if on_host else 0))

    def turned_bytes(self, most_slots: int, block_bytes: int | None) -> int:
        return turned_bytes(self.n_rows, self.n_features, self.symbol_bytes, most_slots, block_bytes)


@dataclass(frozen=True)
class SparseSet(SetSize):
    """CSR rows, whose entries become histogram slots: they have no column-major copies, and are not read in place."""

    def of_rows(self, n_rows: int, n_entries: int) -> SparseSet:
        return SparseSet(n_rows, self.n_features, n_entries)

    def column_bytes(self, n_rows: int) -> int:
        return 0

    def host_bytes(self, n_rows: int) -> int:
        return 8 * (n_rows + 1) + int(4 * n_rows * self.entries_per_row)

    def taken_bytes(self, n_rows: int) -> int:
        return 2 * self.host_bytes(n_rows)  # parts, and their join

    def unpacked_bytes(self, n_rows: int, n_entries: int) -> int:
        return 8 * (n_rows + 1) + 4 * n_entries

    def mixed_row_bytes(self, row_bytes: int) -> int:
        return 0

    def tables_bytes(self, n_slots: int) -> int:
        return 4 * n_slots

    def places_bytes(self, n_rows: int) -> int:
        return PLACES_BYTES * n_rows

    def uploading_bytes(self) -> int:
        """Return the bytes of the pieces that are put together, of rows that lie on the device."""
        on_device = self.device_rows / max(self.n_rows, 1)
        return int(on_device * (8 * self.n_rows + (4 * self.n_entries if self.n_parts > 1 else 0)))

    def turned_bytes(self, most_slots: int, block_bytes: int | None) -> int:
        return 0


def _joined(chunks: tuple[ChunkSize, ...]) -> GroupSize:
    files = [chunk.n_bytes for chunk in chunks if chunk.on_disk]
    return GroupSize(
        sum(chunk.n_rows for chunk in chunks), sum(chunk.n_entries for chunk in chunks),
        places_in_group([chunk.n_bytes for chunk in chunks])[1], len(files), places_in_group(files)[1],
    )  # fmt: skip
