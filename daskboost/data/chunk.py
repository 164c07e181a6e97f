"""Quantized chunks: what becomes of a partition's rows.

A chunk holds the bins of consecutive rows, bit-packed, and knows the global id of its first row, on which alone
randomness may depend. Labels, weights and base margins travel beside it in `ChunkRows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.data.cuts import Cuts
from daskboost.data.pack import (
    CsrLayout,
    DenseLayout,
    Layout,
    dense_view,
    dense_words,
    n_words,
    pack_csr,
    pack_dense,
    unpack_csr,
    unpack_dense,
)
from daskboost.data.rows import DeviceColumn, Features, RowBatch
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import SYMBOL_WORD, Float32, Int32, Int64, UInt8, UInt16, UInt32
from daskboost.errors import DataError


@dataclass(frozen=True, eq=False)
class QuantizedChunk:
    """The bins of consecutive rows.

    Parameters
    ----------
    first_row : int
        Global id of the chunk's first row.
    n_rows : int
    layout : DenseLayout or CsrLayout
    words : uint32 array
        The packed symbols, little-endian, and one guard word.
    indptr : uint32 array, shape (rows + 1,), or None
        First entry of each row, for CSR.
    """

    first_row: int
    n_rows: int
    layout: Layout
    words: UInt32
    indptr: UInt32 | None = None

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + (0 if self.indptr is None else self.indptr.nbytes)

    @property
    def is_dense(self) -> bool:
        return isinstance(self.layout, DenseLayout)

    def on_host(self, threads: int = 1) -> QuantizedChunk:
        """Itself, see `DeviceChunk`."""
        return self

    def moved_to(self, memory: UInt8) -> QuantizedChunk:
        """The same chunk, its words and row pointers one behind the other in `memory`, `nbytes` long."""
        places = memory.view(SYMBOL_WORD)
        words, indptr = places[: len(self.words)], None
        words[:] = self.words
        if self.indptr is not None:
            indptr = places[len(words) :]
            indptr[:] = self.indptr
        return QuantizedChunk(self.first_row, self.n_rows, self.layout, words, indptr)

    def symbols(self, threads: int = 1) -> UInt8 | UInt16:
        """Symbols of a dense chunk, shape (rows, features); `n_bins[f]` stands for missing.

        A view where the layout is aligned, otherwise unpacked.
        """
        if not isinstance(self.layout, DenseLayout):
            raise TypeError("symbols() is for dense chunks; a CSR chunk has global_bins()")
        return unpack_dense(self.words, self.n_rows, self.layout, threads)

    def global_bins(self, threads: int = 1) -> tuple[Int64, Int32]:
        """Row pointers (int64, shape (rows + 1,)) and global bins (int32, shape (entries,)) of a CSR chunk."""
        if not isinstance(self.layout, CsrLayout) or self.indptr is None:
            raise TypeError("global_bins() is for CSR chunks; a dense chunk has symbols()")
        bins = unpack_csr(self.words, int(self.indptr[-1]), self.layout, threads)
        return self.indptr.astype(np.int64), bins.view(np.int32)


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """What a chunk's rows have beside features.

    Parameters
    ----------
    label, weight : float32 array, shape (rows,), or None
    base_margin : float32 array, shape (rows, outputs), or None
    """

    label: Float32 | None = None
    weight: Float32 | None = None
    base_margin: Float32 | None = None

    @classmethod
    def of(cls, batch: RowBatch, start: int, stop: int) -> ChunkRows:
        """Copies of the batch's rows `start..stop`, so that the batch can be freed."""

        def part(array: Float32 | DeviceColumn | None) -> Float32 | None:
            if isinstance(array, DeviceColumn):
                return array.on_host[start:stop]  # fetched: nobody else's
            return None if array is None else np.array(array[start:stop], np.float32, order="C")

        return cls(part(batch.label), part(batch.weight), part(batch.base_margin))


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Quantizes rows by one set of cuts into one layout; prepared once for all chunks of a data set.

    Parameters
    ----------
    cuts : Cuts
    layout : DenseLayout or CsrLayout
    search : SearchTables
        Cut points of the features as kernels search them.
    missing : int32 array, shape (features,)
        Symbol of a missing value in a dense layout; -1 where the layout has no room for it.
    """

    cuts: Cuts
    layout: Layout
    search: SearchTables
    missing: Int32

    @classmethod
    def of(cls, cuts: Cuts, layout: Layout) -> Quantizer:
        missing = cuts.n_bins
        if isinstance(layout, DenseLayout):
            if layout.n_features != cuts.n_features:
                raise DataError(f"the layout has {layout.n_features} features, the cuts have {cuts.n_features}")
            _check_room_for_bins(cuts, layout)
            missing = np.where(missing >> layout.bits, -1, missing).astype(np.int32)
        return cls(cuts, layout, SearchTables.of(cuts.values, cuts.offsets), missing)

    def quantize(self, features: Features, first_row: int, threads: int = 1) -> QuantizedChunk:
        """Quantize rows, the first of which has global id `first_row`.

        Raises
        ------
        DataError
            The rows have another number of features than the cuts, or a value is missing from a feature whose
            symbols, in a dense layout, have no room for missing.
        """
        self.check_features(features.n_features)
        if isinstance(self.layout, DenseLayout):
            words = self._dense_words(features, self.layout, threads)
            return QuantizedChunk(first_row, features.n_rows, self.layout, words)
        indptr, words = self._csr_words(features, self.layout, threads)
        return QuantizedChunk(first_row, features.n_rows, self.layout, words, indptr.astype(np.uint32))

    def check_features(self, n_features: int) -> None:
        """Refuse rows of another number of features."""
        if n_features != self.cuts.n_features:
            raise DataError(f"the rows have {n_features} features, the cuts have {self.cuts.n_features}")

    def _dense_words(self, features: Features, layout: DenseLayout, threads: int) -> UInt32:
        words = dense_words(features.n_rows, layout)
        symbols = dense_view(words, features.n_rows, layout) if layout.is_aligned else np.empty(
            (features.n_rows, layout.n_features), layout.symbol_dtype
        )  # fmt: skip
        check_representable(features.fill_symbols(self.search, self.missing, symbols, threads))
        return words if layout.is_aligned else pack_dense(symbols, layout, threads)

    def _csr_words(self, features: Features, layout: CsrLayout, threads: int) -> tuple[Int64, UInt32]:
        indptr = features.entry_starts(threads)
        n_entries = int(indptr[-1])
        check_entries(n_entries)
        words = np.zeros(n_words(32 * n_entries), SYMBOL_WORD)
        features.fill_bins(self.search, self.cuts.bin_offsets, indptr, words[:n_entries], threads)
        return indptr, words if layout.bits == 32 else pack_csr(words[:n_entries], layout, threads)


def quantize(features: Features, cuts: Cuts, layout: Layout, first_row: int, threads: int = 1) -> QuantizedChunk:
    """Quantize one batch of rows; `Quantizer.of(cuts, layout)` serves many.

    Parameters
    ----------
    features : DenseRows or SparseRows
    cuts : Cuts
    layout : DenseLayout or CsrLayout
        All four combinations with the kind of `features` work, and give equal bins.
    first_row : int
        Global id of the first row.
    threads : int
        Row ranges quantized at the same time; the result does not depend on it.

    Raises
    ------
    DataError
        See `Quantizer.quantize`.
    """
    return Quantizer.of(cuts, layout).quantize(features, first_row, threads)


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
