"""What the memory of an engine's data sets depends on: rows, entries, and chunks with the tiers where they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from daskboost.devices.feature_sizes import FeatureSizes
from daskboost.devices.stream_groups import places_in_group, stream_groups


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
class SetSize:
    """The rows of one data set that an engine holds."""

    n_rows: int
    n_features: int
    symbol_bytes: int
    """Bytes of an unpacked dense symbol; 0 for CSR rows."""
    n_entries: int = 0
    """Present entries of CSR rows."""
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
    read_in_place: bool = True
    """Whether stored symbols are machine integers, so that the CPU need not unpack them."""
    device_rows: int = 0
    """Rows whose symbols lie on the GPU before the fit begins."""
    n_parts: int = 0
    """Pieces that those rows come in."""
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

    @cached_property
    def groups(self) -> list[GroupSize]:
        """In which the streamed chunks come."""
        places, sizes = ([chunk[k] for chunk in self.streamed] for k in (4, 2))
        joined = stream_groups(places, sizes, self.stream_bytes or 0)
        return [_joined(self.streamed[group.start : group.stop]) for group in joined]

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


def _joined(chunks: tuple[ChunkSize, ...]) -> GroupSize:
    files = [chunk.n_bytes for chunk in chunks if chunk.on_disk]
    return GroupSize(
        sum(chunk.n_rows for chunk in chunks), sum(chunk.n_entries for chunk in chunks),
        places_in_group([chunk.n_bytes for chunk in chunks])[1], len(files), places_in_group(files)[1],
    )  # fmt: skip
