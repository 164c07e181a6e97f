"""Rows become chunks: on the CPU, or on a GPU that has them, or takes them block by block.

Chunks that a GPU makes stay there while all have room, else they are packed on the host. Either all chunks of a data
set stay on the device or none: a fit that has no room for all bins streams them from the host, and bins that lay on
the device besides would take what it streams into.
"""

from __future__ import annotations

import bisect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from daskboost.data.chunks.build import DatasetInfo
from daskboost.data.chunks.chunk import CsrChunk, DenseChunk, QuantizedChunk
from daskboost.data.chunks.device_chunk import Chunk, CsrDeviceChunk, DenseDeviceChunk, DeviceChunk
from daskboost.data.chunks.packing import (
    CsrLayout,
    DenseLayout,
    Layout,
    dense_view,
    dense_words,
    n_words,
    pack_csr,
    pack_dense,
)
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.device_read import on_device
from daskboost.data.input.row_batch import DeviceRows, DeviceSparseRows, Features
from daskboost.data.input.uploaded_rows import UploadedRows
from daskboost.devices.gpu.quantize.bins import quantize_entries, quantize_rows
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, to_host
from daskboost.devices.gpu.runtime.transfers import Download, download
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import SYMBOL_WORD, Int64
from daskboost.errors import DataError

logger = logging.getLogger(__name__)

ROW_BYTES = 32
"""What a fit of one output has of each row beside bins: order and pairs twice, margin, label and weight."""
KEPT_SHARE = 0.75
"""Share of the room that bins and rows may take at most: the rest is for blocks, and histograms."""
PART_VALUES = 1 << 27
"""Values of rows on the device whose bins go to the host at a time: their symbols are there twice."""
Span = tuple[int, int]
GpuRows = DeviceRows | UploadedRows
SCATTER_BYTES = 1 << 28
"""Bytes of a matrix into which sparse rows are spread before they are quantized, at most."""
SymbolRoom = Callable[[Runtime, SymbolPlaces, int, int], tuple[DeviceSymbols, int]]
"""Where the symbols of so many rows from a global id on come to lie, and their first row there."""


def own_symbols(runtime: Runtime, places: SymbolPlaces, first_row: int, n_rows: int) -> tuple[DeviceSymbols, int]:
    """An array for these rows alone."""
    return DeviceSymbols.empty(runtime, places, n_rows), 0


@dataclass(eq=False)
class DeviceHome:
    """Whether the bins of a data set stay on the GPU that makes them; decided when the first partition comes.

    Parameters
    ----------
    lends : bool
        Whether all rows come here, so that bins lie in one array, which a fit takes as it is. Else each partition has
        an array, a fit copies them together, and there must be room for both.
    limit_bytes : int, optional
        Of the device's memory; None for what is free.
    share : float, default 1
        Of the rows, what may come here: the largest part that one worker had of the first read.
    """

    info: DatasetInfo
    lends: bool
    limit_bytes: int | None = None
    share: float = 1.0
    _keeps: bool | None = field(default=None, init=False)
    _whole: DeviceSymbols | None = field(default=None, init=False)

    def keeps(self, runtime: Runtime, quantizer: Quantizer) -> bool:
        """Whether bins stay on the device."""
        if self._keeps is None:
            free, limit = runtime.free_bytes, self.limit_bytes
            room = free if limit is None else min(free, limit)
            need = self.need_bytes(runtime, quantizer)
            self._keeps = need <= KEPT_SHARE * room
            where = "stay there" if self._keeps else "go to the host"
            logger.debug("bins made on GPU %d %s: they need %d of %d bytes", runtime.device, where, need, room)
        return self._keeps

    def need_bytes(self, runtime: Runtime, quantizer: Quantizer) -> int:
        """Return the bytes of bins and rows in a fit."""
        copies = 1 if self.lends and quantizer.lends else 2
        return copies * self.stored_bytes(runtime, quantizer) + ROW_BYTES * self._part(self.info.n_rows)

    def stored_bytes(self, runtime: Runtime, quantizer: Quantizer) -> int:
        """Return the bytes of bins that stay."""
        return quantizer.bytes_of(runtime, self._part(self.info.n_rows), self._part(self.info.n_entries))

    def _part(self, n: int) -> int:
        """Return how many of `n` rows, or entries, may come here."""
        return math.ceil(self.share * n)

    def symbols(self, runtime: Runtime, places: SymbolPlaces, first_row: int, n_rows: int) -> tuple[DeviceSymbols, int]:
        """Room for the symbols of a partition, and its first row there."""
        edges = [*self.info.first_rows, self.info.n_rows]
        after = bisect.bisect_right(edges, first_row)
        changed = after == len(edges) or first_row + n_rows > edges[after]  # more than the first read found
        if not self.lends or changed or (self._whole is not None and self._whole.runtime.device != runtime.device):
            return own_symbols(runtime, places, first_row, n_rows)
        if self._whole is None:
            self._whole = DeviceSymbols.empty(runtime, places, self.info.n_rows)
        return self._whole, first_row


def quantize_on_gpu(quantizer: Quantizer, rows: GpuRows, first_row: int, spans: Sequence[Span],
                    home: DeviceHome | None = None, threads: int = 1) -> Iterator[Chunk]:  # fmt: skip
    """Quantize rows on the GPU that has or takes them, the first of which has global id `first_row`; a chunk for each
    span.

    Parameters
    ----------
    home : DeviceHome or None
        Where bins stay on the device, and whether; None if they stay where the rows lie.

    Raises
    ------
    DataError
        See `Quantizer.quantize` and `UploadedRows.blocks`.
    """
    quantizer.check_features(rows.n_features)
    kept = home if home is not None and home.keeps(rows.runtime, quantizer) else None
    if isinstance(rows, UploadedRows):
        rows = rows if kept is None else rows.beside(kept.stored_bytes(rows.runtime, quantizer))
    elif home is None or kept is not None:
        room = own_symbols if kept is None else kept.symbols
        with on_device(rows.runtime):
            chunks = list(quantizer.in_place(rows, first_row, spans, room))
        yield from chunks
        return
    yield from quantizer.from_blocks(rows, first_row, spans, kept, threads)


@dataclass(frozen=True, eq=False)
class Quantizer(ABC):
    """Quantizes rows by one set of cuts into one layout; prepared once for all chunks of a data set, by `of`.

    Parameters
    ----------
    search : SearchTables
        Cut points of the features as kernels search them.
    """

    cuts: Cuts
    layout: Layout
    search: SearchTables
    lends: ClassVar[bool]
    """Whether chunks of several partitions may lie in one array of a GPU."""

    @classmethod
    def of(cls, cuts: Cuts, layout: Layout) -> DenseQuantizer | CsrQuantizer:
        if isinstance(layout, CsrLayout):
            return CsrQuantizer(cuts, layout, SearchTables.of(cuts.values, cuts.offsets, cuts.bin_offsets))
        if layout.n_features != cuts.n_features:
            raise DataError(f"the layout has {layout.n_features} features, the cuts have {cuts.n_features}")
        _check_room_for_bins(cuts, layout)
        missing = np.where(cuts.n_bins >> layout.bits, -1, cuts.n_bins).astype(np.int32)
        return DenseQuantizer(cuts, layout, SearchTables.of(cuts.values, cuts.offsets, missing))

    @abstractmethod
    def quantize(self, features: Features, first_row: int, threads: int = 1) -> QuantizedChunk:
        """Quantize rows, the first of which has global id `first_row`.

        Raises
        ------
        DataError
            The rows have another number of features than the cuts, or a value is missing from a feature whose
            symbols, in a dense layout, have no room for missing.
        """

    def check_features(self, n_features: int) -> None:
        """Refuse rows of another number of features."""
        if n_features != self.cuts.n_features:
            raise DataError(f"the rows have {n_features} features, the cuts have {self.cuts.n_features}")

    @abstractmethod
    def bytes_of(self, runtime: Runtime, n_rows: int, n_entries: int) -> int:
        """Return the bytes that the bins of so many rows take on a GPU."""

    @abstractmethod
    def in_place(self, features: DeviceRows, first_row: int, spans: Sequence[Span], room: SymbolRoom
                 ) -> Iterator[DeviceChunk]:  # fmt: skip
        """Quantize rows where they lie; a chunk for each span. `room` : where symbols come to lie."""

    @abstractmethod
    def from_blocks(self, rows: GpuRows, first_row: int, spans: Sequence[Span], home: DeviceHome | None, threads: int
                    ) -> Iterator[Chunk]:  # fmt: skip
        """Quantize rows block by block, into the host's memory where there is no home; see `quantize_on_gpu`."""


@dataclass(frozen=True, eq=False)
class DenseQuantizer(Quantizer):
    """Writes a symbol for every feature."""

    layout: DenseLayout
    lends: ClassVar[bool] = True

    def quantize(self, features: Features, first_row: int, threads: int = 1) -> DenseChunk:
        self.check_features(features.n_features)
        room = _HostRoom(self.layout, threads)
        room.take(features.n_rows)
        check_representable(features.fill_symbols(self.search, room.symbols, threads))
        return DenseChunk(first_row, features.n_rows, self.layout, room.words())

    def places(self, runtime: Runtime) -> SymbolPlaces:
        """Return where symbols lie on the device."""
        return SymbolPlaces.of_slots(self.cuts.n_slots, np.dtype(self.layout.symbol_dtype), runtime.shared_bytes)

    def bytes_of(self, runtime: Runtime, n_rows: int, n_entries: int) -> int:
        places = self.places(runtime)
        return places.size(n_rows) * places.dtype.itemsize

    def in_place(self, features: DeviceRows, first_row: int, spans: Sequence[Span], room: SymbolRoom
                 ) -> Iterator[DeviceChunk]:  # fmt: skip
        symbols, origin = room(features.runtime, self.places(features.runtime), first_row, features.n_rows)
        check_representable(self._fill(features, symbols, origin))
        yield from self._parts(symbols, origin, first_row, spans)

    def _parts(self, whole: DeviceSymbols, origin: int, first_row: int, spans: Sequence[Span]) -> Iterator[DeviceChunk]:
        for start, stop in spans:
            yield DenseDeviceChunk(
                first_row + start, stop - start, self.layout, whole, origin + start, origin + stop
            )

    def _fill(self, features: DeviceRows, symbols: DeviceSymbols, first_row: int, scratch_bytes: int = SCATTER_BYTES
              ) -> int:  # fmt: skip
        """Write the symbols of rows from row `first_row` of `symbols` on; a feature that lacks one for missing, or -1.

        `scratch_bytes` : of device memory, what sparse rows may take besides.
        """
        return max((
            quantize_rows(features.runtime, rows, self.search, symbols, first_row + begin)
            for rows, begin in features.matrices(min(scratch_bytes, SCATTER_BYTES))
        ), default=-1)  # fmt: skip

    def from_blocks(self, rows: GpuRows, first_row: int, spans: Sequence[Span], home: DeviceHome | None, threads: int
                    ) -> Iterator[Chunk]:  # fmt: skip
        layout, runtime = self.layout, rows.runtime
        worst = np.full(len(spans), -1)  # features without a symbol for what they lack, told after what blocks refuse
        with on_device(runtime):
            places = self.places(runtime)
            whole, origin = (None, 0) if home is None else home.symbols(runtime, places, first_row, rows.n_rows)
        room = _HostRoom(layout, threads)
        for start, block, at, is_last in _blocks_of(rows, spans, threads):
            (begin, end), stop = spans[at], start + block.n_rows
            with on_device(runtime):
                target = DeviceSymbols.empty(runtime, places, block.n_rows) if whole is None else whole
                place = 0 if whole is None else origin + start
                worst[at] = max(worst[at], self._fill(block, target, place, _scratch_bytes(rows) // 2))
                del block
                if whole is None:
                    if start == begin:
                        room.take(end - begin)
                    come = target.rows(0, stop - start), room.symbols[start - begin : stop - begin]
                    Download(runtime, [come], threads).wait()
                    del come
                del target
            if whole is None and is_last and worst.max() < 0:
                yield DenseChunk(first_row + begin, end - begin, layout, room.words())
        for feature in worst.tolist():
            check_representable(feature)
        if whole is not None:
            yield from self._parts(whole, origin, first_row, spans)


class _HostRoom:
    """Where a chunk's symbols come to lie: in its words, where these are symbols one behind the other, since it takes
    longer to get fresh memory than to copy into it; else in memory of which every chunk's words are made."""

    def __init__(self, layout: DenseLayout, threads: int) -> None:
        self._layout, self._threads = layout, threads
        self._words: Any = None
        self._scratch: Any = None
        self.symbols: Any = None
        """The chunk's symbols; shape (rows, features)."""

    def take(self, n_rows: int) -> None:
        """Begin with a chunk."""
        layout = self._layout
        if layout.is_aligned:
            self._words = dense_words(n_rows, layout)
            self.symbols = dense_view(self._words, n_rows, layout)
            return
        if self._scratch is None or len(self._scratch) < n_rows:
            self._scratch = np.empty((n_rows, layout.n_features), layout.symbol_dtype)
        self.symbols = self._scratch[:n_rows]

    def words(self) -> Any:
        """Return the chunk's words, made of its symbols, which are there."""
        return self._words if self._layout.is_aligned else pack_dense(self.symbols, self._layout, self._threads)


@dataclass(frozen=True, eq=False)
class CsrQuantizer(Quantizer):
    """Writes the global bin of every present entry."""

    layout: CsrLayout
    lends: ClassVar[bool] = False

    def quantize(self, features: Features, first_row: int, threads: int = 1) -> CsrChunk:
        self.check_features(features.n_features)
        indptr = features.entry_starts(threads)
        n = int(indptr[-1])
        check_entries(n)
        words = np.zeros(n_words(32 * n), SYMBOL_WORD)
        features.fill_bins(self.search, indptr, words[:n], threads)
        packed = words if self.layout.bits == 32 else pack_csr(words[:n], self.layout, threads)
        return CsrChunk(first_row, features.n_rows, self.layout, packed, indptr.astype(np.uint32))

    def bytes_of(self, runtime: Runtime, n_rows: int, n_entries: int) -> int:
        return 4 * n_entries + 8 * n_rows

    def _bins(self, entries: DeviceSparseRows) -> DeviceArray:
        return quantize_entries(entries.runtime, entries.indices, entries.values, self.search)

    def in_place(self, features: DeviceRows, first_row: int, spans: Sequence[Span], room: SymbolRoom
                 ) -> Iterator[DeviceChunk]:  # fmt: skip
        rows = features.entries()
        bins = self._bins(rows)
        for start, stop in spans:
            begin, end = int(rows.indptr[start]), int(rows.indptr[stop])
            check_entries(end - begin)
            own = rows.indptr[start : stop + 1] - begin
            yield CsrDeviceChunk(first_row + start, stop - start, self.layout, bins, begin, end, own, features.runtime)

    def from_blocks(self, rows: GpuRows, first_row: int, spans: Sequence[Span], home: DeviceHome | None, threads: int
                    ) -> Iterator[Chunk]:  # fmt: skip
        layout, runtime = self.layout, rows.runtime
        bins: list[DeviceArray] = []
        lengths: list[DeviceArray] = []
        for _, block, at, is_last in _blocks_of(rows, spans, threads):
            (begin, end) = spans[at]
            with on_device(runtime):
                for entries in block.entry_parts(_scratch_bytes(rows)):
                    found, own = self._bins(entries), runtime.xp.diff(entries.indptr)
                    bins.append(found if home is not None else download(runtime, found, threads))
                    lengths.append(own if home is not None else to_host(own))
                    del entries, found, own
                del block
            if not is_last:
                continue
            with active(runtime):
                joined, indptr = _joined(runtime.xp if home is not None else np, bins, lengths)
            bins, lengths = [], []
            check_entries(len(joined))
            if home is not None:
                yield CsrDeviceChunk(first_row + begin, end - begin, layout, joined, 0, len(joined), indptr, runtime)
            else:
                words = pack_csr(joined, layout, threads)
                yield CsrChunk(first_row + begin, end - begin, layout, words, indptr.astype(np.uint32))


def check_representable(feature: int) -> None:
    """Refuse a feature whose missing values have no symbol; -1 is none."""
    if feature >= 0:
        raise DataError(
            f"feature {feature} has missing values, but the layout was chosen without a symbol for them: "
            "pass has_missing that covers every data set of the fit, or use the CSR encoding"
        )


def check_entries(n_entries: int) -> None:
    """Refuse more entries than a chunk's row pointers can count."""
    if n_entries >= 1 << 32:
        raise DataError(f"a chunk would have {n_entries} entries, more than 2**32 - 1: use a smaller chunk_rows")


def _check_room_for_bins(cuts: Cuts, layout: DenseLayout) -> None:
    too_narrow = np.flatnonzero((cuts.n_bins - 1) >> layout.bits)
    if len(too_narrow):
        feature = int(too_narrow[0])
        raise DataError(
            f"feature {feature} has {cuts.n_bins[feature]} bins, more than the layout's {layout.bits[feature]} bits "
            "hold: choose the layout from the same cuts"
        )


def _joined(xp: Any, bins: Sequence[Any], lengths: Sequence[Any]) -> tuple[Any, Int64]:
    """Entries of blocks one after the other, and the first of each row."""
    counts = xp.concatenate(lengths)
    indptr = xp.zeros(len(counts) + 1, np.int64)
    indptr[1:] = xp.cumsum(counts)
    return bins[0] if len(bins) == 1 else xp.concatenate(bins), indptr


def _scratch_bytes(rows: GpuRows) -> int:
    """Return the bytes of the device's memory that may be used beside a block."""
    return rows.scratch_bytes if isinstance(rows, UploadedRows) else 2 * SCATTER_BYTES


def _blocks_of(rows: GpuRows, spans: Sequence[Span], threads: int) -> Iterator[tuple[int, DeviceRows, int, bool]]:
    """Blocks with their first rows, the numbers of the spans that they are in, and whether they end these."""
    blocks = rows.blocks([end for _, end in spans], threads) if isinstance(rows, UploadedRows) else _parts(rows, spans)
    at = 0
    for start, block in blocks:
        stop = start + block.n_rows
        while start >= spans[at][1]:
            at += 1
        yield start, block, at, stop == spans[at][1]
        del block


def _parts(rows: DeviceRows, spans: Sequence[Span]) -> Iterator[tuple[int, DeviceRows]]:
    """Rows that lie on the device, some of a span at a time: without a copy."""
    most_rows = max(1, PART_VALUES // rows.n_features)
    for begin, end in spans:
        for start in range(begin, end, most_rows):
            stop = min(start + most_rows, end)
            yield start, rows.part(start, stop)
