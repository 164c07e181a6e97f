"""Chunks in a GPU's memory: symbols as training views have them, so that a fit neither copies nor packs them.

All chunks made of one partition are parts of one array, which a view over them takes as it is. Packed words exist only
on the host: `on_host` gives the chunk that the same rows on the host would have made, byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.data.chunk import QuantizedChunk, Quantizer, check_entries, check_representable
from daskboost.data.pack import CsrLayout, DenseLayout, Layout, n_words, pack_csr, pack_dense
from daskboost.data.rows import DeviceRows, DeviceSparseRows
from daskboost.devices.gpu.download import download
from daskboost.devices.gpu.input import runtime_of
from daskboost.devices.gpu.quantize import quantize_entries, quantize_rows
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, active, to_host
from daskboost.devices.gpu.symbols import DeviceSymbols, SymbolPlaces

SCATTER_BYTES = 1 << 28
"""Bytes of a matrix into which sparse rows are spread before they are quantized, at most."""


@dataclass(frozen=True, eq=False)
class DeviceChunk:
    """The bins of consecutive rows in a GPU's memory.

    Parameters
    ----------
    first_row : int
        Global id of the chunk's first row.
    n_rows : int
    layout : DenseLayout or CsrLayout
        What packs the chunk once it leaves the device.
    whole : DeviceSymbols, or uint32 array on the device
        Dense: symbols of all rows of the partition. CSR: global bins of all its entries.
    begin, end : int
        The chunk's rows, or entries, within `whole`.
    indptr : int64 array on the device, shape (rows + 1,), or None
        First entry of each row within the chunk, for CSR.
    """

    first_row: int
    n_rows: int
    layout: Layout
    whole: DeviceSymbols | DeviceArray
    begin: int
    end: int
    indptr: DeviceArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the packed chunk, `on_host`: accounts of chunks are the same wherever they lie."""
        if isinstance(self.layout, DenseLayout):
            return 4 * n_words(8 * self.n_rows * self.layout.row_stride_bytes)
        return 4 * n_words((self.end - self.begin) * self.layout.bits) + 4 * (self.n_rows + 1)

    @property
    def is_dense(self) -> bool:
        return isinstance(self.layout, DenseLayout)

    @property
    def gpu(self) -> int:
        """Number of the GPU that it lies on."""
        whole = self.whole
        return (whole.runtime if isinstance(whole, DeviceSymbols) else runtime_of(whole)).device

    @property
    def values(self) -> DeviceArray:
        """The chunk's own symbols, shape (rows, features), or bins."""
        if isinstance(self.whole, DeviceSymbols):
            with active(self.whole.runtime):
                return self.whole.rows(self.begin, self.end)
        return self.whole[self.begin : self.end]

    def on_host(self, threads: int = 1) -> QuantizedChunk:
        """The same rows packed, in the host's memory."""
        if isinstance(self.layout, DenseLayout):
            assert isinstance(self.whole, DeviceSymbols)
            symbols = download(self.whole.runtime, self.values, threads)
            return QuantizedChunk(self.first_row, self.n_rows, self.layout, pack_dense(symbols, self.layout, threads))
        assert self.indptr is not None  # as of all CSR rows
        words = pack_csr(to_host(self.values), self.layout, threads)
        return QuantizedChunk(self.first_row, self.n_rows, self.layout, words, to_host(self.indptr).astype(np.uint32))


Chunk = QuantizedChunk | DeviceChunk


SymbolRoom = Callable[[Runtime, SymbolPlaces, int, int], tuple[DeviceSymbols, int]]
"""Where the symbols of so many rows from a global id on come to lie, and their first row there."""


def own_symbols(runtime: Runtime, places: SymbolPlaces, first_row: int, n_rows: int) -> tuple[DeviceSymbols, int]:
    """An array for these rows alone."""
    return DeviceSymbols.empty(runtime, places, n_rows), 0


def quantize_on_device(quantizer: Quantizer, features: DeviceRows, first_row: int, spans: Sequence[tuple[int, int]],
                       room: SymbolRoom = own_symbols) -> Iterator[DeviceChunk]:  # fmt: skip
    """Quantize rows where they lie, the first of which has global id `first_row`; a chunk for each span of them.

    Parameters
    ----------
    room : callable, default an array of their own
        For the symbols of a dense layout.

    Raises
    ------
    DataError
        See `Quantizer.quantize`.
    """
    quantizer.check_features(features.n_features)
    layout = quantizer.layout
    if isinstance(layout, DenseLayout):
        places = symbol_places(features.runtime, quantizer)
        symbols, origin = room(features.runtime, places, first_row, features.n_rows)
        check_representable(fill_symbols(quantizer, features, symbols, origin))
        for start, stop in spans:
            yield DeviceChunk(first_row + start, stop - start, layout, symbols, origin + start, origin + stop)
        return
    yield from _sparse_chunks(quantizer, features.entries(), layout, first_row, spans)


def symbol_places(runtime: Runtime, quantizer: Quantizer) -> SymbolPlaces:
    """Where the symbols of a dense layout lie on the device."""
    layout, slots = quantizer.layout, quantizer.cuts.n_bins.astype(np.int64) + quantizer.cuts.has_missing
    assert isinstance(layout, DenseLayout)
    return SymbolPlaces.of_slots(slots, np.dtype(layout.symbol_dtype), runtime.shared_bytes)


def fill_symbols(quantizer: Quantizer, features: DeviceRows, symbols: DeviceSymbols, first_row: int,
                 scatter_bytes: int = SCATTER_BYTES) -> int:  # fmt: skip
    """Write the symbols of rows from row `first_row` of `symbols` on; a feature that lacks one for missing, or -1.

    `scatter_bytes` : of device memory, what sparse rows may take besides.
    """
    search = quantizer.search
    return max((
        quantize_rows(features.runtime, rows, search, quantizer.missing, symbols, first_row + begin)
        for rows, begin in features.matrices(min(scatter_bytes, SCATTER_BYTES))
    ), default=-1)  # fmt: skip


def _sparse_chunks(quantizer: Quantizer, rows: DeviceSparseRows, layout: CsrLayout, first_row: int,
                   spans: Sequence[tuple[int, int]]) -> Iterator[DeviceChunk]:  # fmt: skip
    search = quantizer.search
    bins = quantize_entries(rows.runtime, rows.indices, rows.values, search, quantizer.cuts.bin_offsets)
    for start, stop in spans:
        begin, end = int(rows.indptr[start]), int(rows.indptr[stop])
        check_entries(end - begin)
        own = rows.indptr[start : stop + 1] - begin
        yield DeviceChunk(first_row + start, stop - start, layout, bins, begin, end, own)


def joined_runs(chunks: Iterable[DeviceChunk]) -> list[list[DeviceChunk]]:
    """Chunks in order, those together that follow one another within one array."""
    runs: list[list[DeviceChunk]] = []
    for chunk in chunks:
        if runs and chunk.whole is runs[-1][-1].whole and chunk.begin == runs[-1][-1].end:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def is_whole(run: Sequence[DeviceChunk]) -> bool:
    """Whether chunks that follow one another are dense and all of their array."""
    whole = run[0].whole
    return isinstance(whole, DeviceSymbols) and run[-1].end - run[0].begin == whole.n_rows


def joined_symbols(chunks: Iterable[Chunk], threads: int) -> Iterator[Any]:
    """Symbols of dense chunks, those on the device that follow one another together: `DeviceSymbols` where they are all
    of a partition, else a matrix."""
    for _, some in itertools.groupby(chunks, key=type):
        own = list(some)
        yield from (chunk.symbols(threads) for chunk in own if isinstance(chunk, QuantizedChunk))
        for run in joined_runs(chunk for chunk in own if isinstance(chunk, DeviceChunk)):
            whole = run[0].whole
            assert isinstance(whole, DeviceSymbols)  # as of all dense rows
            yield whole if is_whole(run) else whole.rows(run[0].begin, run[-1].end)
