"""A shard: the chunks of one data set that one engine owns, with the labels, weights and margins of their rows."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.data.chunks.chunk_stream import stream
from daskboost.data.chunks.device_chunk import Chunk
from daskboost.data.chunks.packing import Layout
from daskboost.data.chunks.quantizer import DeviceHome, Quantizer, quantize_on_gpu
from daskboost.data.chunks.store import ChunkHandle, ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import AnyFeatures, DeviceRows
from daskboost.data.input.row_columns import COLUMNS, ChunkRows, RowBatch
from daskboost.data.input.uploaded_rows import UploadedRows
from daskboost.dtypes import Bool, Float32
from daskboost.errors import DataError, ParameterError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardChunk:
    """One chunk of a shard: where its bins are, and what else its rows have."""

    handle: ChunkHandle
    rows: ChunkRows
    first_row: int
    n_rows: int
    selected: Bool | None = None
    """The rows that count, where others of the chunk do not; shape (rows,)."""


@dataclass(frozen=True, eq=False)
class Shard:
    """What one engine owns of one data set.

    Parameters
    ----------
    store : ChunkStore
        Holds the bins; may be shared with other shards.
    entries : tuple of ShardChunk
        In increasing order of `first_row`; the rows between two chunks belong to other shards.
    layout : DenseLayout or CsrLayout
        The same in all shards of the data set.
    owns_chunks : bool, default True
        Whether closing the shard deletes its chunks; those of some of the rows are another shard's.
    """

    store: ChunkStore
    entries: tuple[ShardChunk, ...]
    cuts: Cuts
    layout: Layout
    owns_chunks: bool = True

    @property
    def n_rows(self) -> int:
        return sum(entry.n_rows for entry in self.entries)

    @property
    def handles(self) -> list[ChunkHandle]:
        """All chunks as the store knows them."""
        return [entry.handle for entry in self.entries]

    def chunks(self, ahead: int = 1) -> Iterator[tuple[int, Chunk]]:
        """All chunks with their positions in `entries`, those on disk read ahead (see `stream`)."""
        return stream(self.store, [entry.handle for entry in self.entries], ahead)

    def select(self, rows: Bool) -> Shard:
        """The same chunks, of whose rows only those count whose global ids are marked in `rows`."""
        return self.selecting(lambda entry: rows[entry.first_row : entry.first_row + entry.n_rows])

    def selecting(self, marks_of: Callable[[ShardChunk], Bool]) -> Shard:
        """The same chunks, of whose rows only those count that are marked; `marks_of` gives the marks of a chunk's
        rows."""
        own = tuple(replace(entry, selected=marks_of(entry)) for entry in self.entries)
        return replace(self, entries=own, owns_chunks=False)

    def weighted(self) -> Shard:
        """Return the shard as trees are grown over it: rows that do not count have weight 0.

        They stay in the tree, so that its pass over the data finds their margins too, which an evaluation set needs.
        """
        return replace(self, entries=tuple(
            entry if entry.selected is None else replace(
                entry, rows=replace(entry.rows, weight=_weight_of_selected(entry.rows.weight, entry.selected)),
            )
            for entry in self.entries
        ))  # fmt: skip

    def has_chunks_of(self, other: Shard) -> bool:
        """Whether both are of the same chunks, whichever of the rows count."""
        same = [entry.handle.key for entry in self.entries] == [entry.handle.key for entry in other.entries]
        return self.store is other.store and same

    def close(self) -> None:
        """Delete the shard's chunks from the store, which stays open, unless they are another shard's."""
        for entry in self.entries if self.owns_chunks else ():
            self.store.delete(entry.handle)


def _weight_of_selected(weight: Float32 | None, selected: Bool) -> Float32:
    return selected.astype(np.float32) if weight is None else np.where(selected, weight, np.float32(0))


class ShardBuilder:
    """Builds a shard batch by batch; keeps nothing of a batch but copies of its rows' columns.

    A context manager: left without `finish`, as after an exception, it deletes the chunks it has made.

    Parameters
    ----------
    chunk_rows : int
        Most rows of a chunk. Larger batches are divided, smaller ones are not joined: results do not depend on it.
    threads : int
        Row ranges quantized at the same time.
    home : DeviceHome, optional
        Where bins may stay that a GPU makes; by default those of rows that lie on one stay there, and those of rows on
        the host go to the host.
    """

    def __init__(self, cuts: Cuts, layout: Layout, chunk_rows: int, store: ChunkStore, threads: int = 1,
                 home: DeviceHome | None = None) -> None:  # fmt: skip
        if chunk_rows < 1:
            raise ParameterError(f"chunk_rows must be at least 1, got {chunk_rows}")
        self._quantizer = Quantizer.of(cuts, layout)
        self._chunk_rows = chunk_rows
        self._store = store
        self._threads, self._home = threads, home
        self._entries: list[ShardChunk] = []

    def __enter__(self) -> ShardBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self._entries:
            self._store.delete(entry.handle)

    def add(self, first_row: int, batch: RowBatch, pieces: Sequence[int] | None = None) -> None:
        """Quantize a batch, the first row of which has global id `first_row`.

        `pieces` : rows at which chunks must end, from 0 to the number of rows, where the batch is several partitions.
        """
        features = batch.features
        batch.fetch(self._threads)
        for chunk in self._chunks(features, first_row, list(self._spans(pieces or (0, batch.n_rows)))):
            start = chunk.first_row - first_row
            self.add_chunk(chunk, batch.columns.copied(start, start + chunk.n_rows))
        where = f"GPU {features.runtime.device}" if isinstance(features, DeviceRows | UploadedRows) else "the CPU"
        logger.debug("rows %d to %d were quantized on %s", first_row, first_row + batch.n_rows - 1, where)

    def _chunks(self, features: AnyFeatures, first_row: int, spans: Sequence[tuple[int, int]]) -> Iterable[Chunk]:
        quantizer, threads = self._quantizer, self._threads
        if isinstance(features, DeviceRows | UploadedRows):
            return quantize_on_gpu(quantizer, features, first_row, spans, self._home, threads)
        return (
            quantizer.quantize(features.part(start, stop), first_row + start, threads) for start, stop in spans
        )

    def _spans(self, pieces: Sequence[int]) -> Iterator[tuple[int, int]]:
        """First row of each chunk and the one after its last."""
        for begin, end in itertools.pairwise(pieces):
            for start in range(begin, end, self._chunk_rows):
                yield start, min(start + self._chunk_rows, end)

    def add_chunk(self, chunk: Chunk, rows: ChunkRows) -> None:
        """Take over a chunk that is quantized already, as from a saved data set."""
        self._entries.append(ShardChunk(self._store.put(chunk), rows, chunk.first_row, chunk.n_rows))

    def finish(self) -> Shard:
        """The shard; the builder is empty afterwards. DataError where rows were added twice, or only some of the
        batches have a label, weight or base margin."""
        entries = sorted(self._entries, key=lambda entry: entry.first_row)
        for before, after in itertools.pairwise(entries):
            if before.first_row + before.n_rows > after.first_row:
                raise DataError(f"row {after.first_row} was added twice: batches must have row ids of their own")
        for name in COLUMNS:
            if len({name in entry.rows.present for entry in entries}) == 2:
                raise DataError(f"some partitions have a {name} and others have none: pass it for all or for none")
        self._entries = []
        return Shard(self._store, tuple(entries), self._quantizer.cuts, self._quantizer.layout)
