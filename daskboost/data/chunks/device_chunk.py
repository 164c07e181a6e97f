"""Chunks in a GPU's memory: symbols as training views have them, so that a fit neither copies nor packs them.

All chunks made of one partition are parts of one array, which a view over them takes as it is. Packed words exist only
on the host: `on_host` gives the chunk that the same rows on the host would have made, byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from daskboost.data.chunks.chunk import CsrChunk, DenseChunk, QuantizedChunk, TierName
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, Layout, n_words, pack_csr, pack_dense
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, to_host
from daskboost.devices.gpu.runtime.transfers import download
from daskboost.dtypes import Int32, Int64

MOVED_BYTES = 2**26
"""Bytes of symbols that are on their way from one GPU to another at a time: a millisecond of the bus."""
ChunkT = TypeVar("ChunkT", bound="QuantizedChunk | DeviceChunk")


@dataclass(frozen=True, eq=False)
class DeviceChunk(ABC):
    """The bins of consecutive rows in a GPU's memory.

    Parameters
    ----------
    first_row : int
        Global id of the chunk's first row.
    layout : DenseLayout or CsrLayout
        What packs the chunk once it leaves the device.
    whole : DeviceSymbols, or uint32 array on the device
        Dense: symbols of all rows of the partition. CSR: global bins of all its entries.
    begin, end : int
        The chunk's rows, or entries, within `whole`.
    """

    first_row: int
    n_rows: int
    layout: Layout
    whole: Any
    begin: int
    end: int
    tiers: ClassVar[Sequence[TierName]] = ("device",)

    @property
    def place(self) -> tuple[object, int, int]:
        """See `QuantizedChunk`."""
        return self.whole, self.begin, self.end

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the packed chunk, `on_host`: accounts of chunks are the same wherever they lie."""

    @property
    @abstractmethod
    def gpu(self) -> int:
        """Number of the GPU that it lies on."""

    @property
    @abstractmethod
    def device_bytes(self) -> int:
        """Bytes of the chunk's own symbols on a GPU."""

    @property
    @abstractmethod
    def values(self) -> DeviceArray:
        """The chunk's own symbols, shape (rows, features), or bins."""

    @abstractmethod
    def on_host(self, threads: int = 1) -> QuantizedChunk:
        """The same rows packed, in the host's memory."""

    @abstractmethod
    def part(self, begin: int, end: int) -> DeviceChunk:
        """Return some of the rows as a chunk of their own, without a copy."""

    @abstractmethod
    def with_others_on(self, runtime: Runtime, others: Sequence[Self], slots: Int64) -> list[Self]:
        """Return copies of this chunk and others of its kind on a GPU, in one array there. What is on its way beside
        that is one chunk's, or a block of its rows. `slots` : histogram slots of each feature."""

    def is_whole_with(self, n_rows: int) -> bool:
        """Whether the chunk and those that follow it, `n_rows` in all, are all of a view's symbols."""
        return False


@dataclass(frozen=True, eq=False)
class DenseDeviceChunk(DeviceChunk):
    """A symbol for every feature."""

    layout: DenseLayout
    whole: DeviceSymbols

    @property
    def nbytes(self) -> int:
        return 4 * n_words(8 * self.n_rows * self.layout.row_stride_bytes)

    @property
    def gpu(self) -> int:
        return self.whole.runtime.device

    @property
    def device_bytes(self) -> int:
        return self.whole.places.size(self.n_rows) * self.whole.places.dtype.itemsize

    @property
    def values(self) -> DeviceArray:
        with active(self.whole.runtime):
            return self.whole.rows(self.begin, self.end)

    def on_host(self, threads: int = 1) -> DenseChunk:
        symbols = download(self.whole.runtime, self.values, threads)
        return DenseChunk(self.first_row, self.n_rows, self.layout, pack_dense(symbols, self.layout, threads))

    def part(self, begin: int, end: int) -> DenseDeviceChunk:
        return replace(
            self, first_row=self.first_row + begin, n_rows=end - begin, begin=self.begin + begin, end=self.begin + end
        )

    def with_others_on(self, runtime: Runtime, others: Sequence[Self], slots: Int64) -> list[Self]:
        chunks, dtype = [self, *others], self.whole.places.dtype
        at_once = max(1, MOVED_BYTES // (dtype.itemsize * len(slots)))
        edges = [0, *accumulate(chunk.n_rows for chunk in chunks)]
        with active(runtime):
            places = SymbolPlaces.of_slots(slots, dtype, runtime.shared_bytes)
            room = DeviceSymbols.empty(runtime, places, edges[-1])
            for chunk, begin in zip(chunks, edges, strict=False):
                for start in range(0, chunk.n_rows, at_once):
                    block = chunk.part(start, min(start + at_once, chunk.n_rows)).values
                    room.put(begin + start, runtime.taken(block, chunk.whole.runtime))
            runtime.record_event().synchronize()  # who uses them next may have another stream
        return [
            replace(chunk, whole=room, begin=begin, end=end)
            for chunk, (begin, end) in zip(chunks, pairwise(edges), strict=True)
        ]

    def is_whole_with(self, n_rows: int) -> bool:
        return n_rows == self.whole.n_rows

    def symbols_of(self, n_rows: int, threads: int) -> DeviceSymbols | DeviceArray:
        """Symbols of this chunk and of those that follow it, `n_rows` in all: `DeviceSymbols` where they are all of a
        partition, else a matrix."""
        return self.whole if self.is_whole_with(n_rows) else self.whole.rows(self.begin, self.begin + n_rows)


@dataclass(frozen=True, eq=False)
class CsrDeviceChunk(DeviceChunk):
    """Global bins of present entries.

    Parameters
    ----------
    indptr : int64 array on the device, shape (rows + 1,)
        First entry of each row within the chunk.
    runtime : Runtime
        The GPU.
    """

    layout: CsrLayout
    indptr: DeviceArray
    runtime: Runtime

    @property
    def nbytes(self) -> int:
        return 4 * n_words((self.end - self.begin) * self.layout.bits) + 4 * (self.n_rows + 1)

    @property
    def gpu(self) -> int:
        return self.runtime.device

    @property
    def device_bytes(self) -> int:
        return int(self.whole.dtype.itemsize) * (self.end - self.begin) + int(self.indptr.nbytes)

    @property
    def values(self) -> DeviceArray:
        found: DeviceArray = self.whole[self.begin : self.end]
        return found

    def slots(self, slot_of_bin: Int32, threads: int) -> tuple[DeviceArray, DeviceArray]:
        """Row pointers (int64) and histogram slots (int32), on the device."""
        return self.indptr, self.runtime.xp.asarray(slot_of_bin)[self.values]

    def part(self, begin: int, end: int) -> CsrDeviceChunk:
        with active(self.runtime):
            own = self.indptr[begin : end + 1] - self.indptr[begin]
            first, last = int(self.indptr[begin]), int(self.indptr[end])
        return replace(
            self, first_row=self.first_row + begin, n_rows=end - begin, begin=self.begin + first, end=self.begin + last,
            indptr=own,
        )  # fmt: skip

    def with_others_on(self, runtime: Runtime, others: Sequence[Self], slots: Int64) -> list[Self]:
        chunks = [self, *others]
        edges = [0, *accumulate(chunk.end - chunk.begin for chunk in chunks)]
        made: list[Self] = []
        with active(runtime):
            room = runtime.xp.empty(edges[-1], self.whole.dtype)
            for chunk, (begin, end) in zip(chunks, pairwise(edges), strict=True):
                room[begin:end] = runtime.taken(chunk.values, chunk.runtime)
                indptr = runtime.taken(chunk.indptr, chunk.runtime)
                made.append(replace(chunk, whole=room, begin=begin, end=end, indptr=indptr, runtime=runtime))
            runtime.record_event().synchronize()
        return made

    def on_host(self, threads: int = 1) -> CsrChunk:
        words = pack_csr(to_host(self.values), self.layout, threads)
        return CsrChunk(self.first_row, self.n_rows, self.layout, words, to_host(self.indptr).astype(np.uint32))


Chunk = QuantizedChunk | DeviceChunk


def joined_runs(chunks: Iterable[ChunkT]) -> list[list[ChunkT]]:
    """Chunks in order, those together that follow one another within one array."""
    runs: list[list[ChunkT]] = []
    last: tuple[object, int] = None, 0
    for chunk in chunks:
        whole, begin, end = chunk.place
        if whole is last[0] and begin == last[1]:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
        last = whole, end
    return runs


def is_whole(run: Sequence[DeviceChunk]) -> bool:
    """Whether chunks that follow one another are dense and all of their array."""
    return run[0].is_whole_with(sum(chunk.n_rows for chunk in run))
