"""Quantized chunks: what becomes of a partition's rows.

A chunk holds the bins of consecutive rows, bit-packed, and knows the global id of its first row, on which alone
randomness may depend. What else rows have travels beside it, as `ChunkRows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from daskboost.data.chunks.packing import (
    CsrLayout,
    DenseLayout,
    Layout,
    n_words,
    pack_csr,
    unpack_csr,
    unpack_dense,
)
from daskboost.data.cuts.cut_points import Cuts, rises_within
from daskboost.dtypes import SYMBOL_WORD, Int32, Int64, UInt8, UInt16, UInt32

TierName = Literal["device", "ram", "disk"]
CUT_ROWS = 64
"""Chunks are cut at multiples of so many rows, where dense ones begin with a word whatever their bits."""


@dataclass(frozen=True, eq=False)
class QuantizedChunk(ABC):
    """The bins of consecutive rows.

    Parameters
    ----------
    first_row : int
        Global id of the chunk's first row.
    words : uint32 array
        The packed symbols, little-endian, and one guard word.
    """

    first_row: int
    n_rows: int
    layout: Layout
    words: UInt32
    tiers: ClassVar[Sequence[TierName]] = ("ram", "disk")
    """Names of the store's tiers that may hold such a chunk."""

    @property
    def place(self) -> tuple[object, int, int]:
        """The array that its bins are part of, and where they begin and end there: all of an array of its own."""
        return self.words, 0, len(self.words)

    @classmethod
    def of(cls, layout: Layout, first_row: int, n_rows: int, *arrays: UInt32) -> QuantizedChunk:
        """Make a chunk of that layout, of what another one has as `arrays`."""
        kind = DenseChunk if isinstance(layout, DenseLayout) else CsrChunk
        return kind(first_row, n_rows, layout, *arrays)  # type: ignore[arg-type]

    @property
    def arrays(self) -> tuple[UInt32, ...]:
        """All arrays of bins, as they are stored one behind the other."""
        return (self.words,)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def n_entries(self) -> int:
        """Present entries of CSR rows; 0 of dense ones."""
        return 0

    def on_host(self, threads: int = 1) -> QuantizedChunk:
        """Itself, see `DeviceChunk`."""
        return self

    def moved_to(self, memory: UInt8) -> QuantizedChunk:
        """The same chunk, its arrays one behind the other in `memory`, `nbytes` long."""
        places, moved = memory.view(SYMBOL_WORD), []
        for array in self.arrays:
            moved.append(places[: len(array)])
            moved[-1][:] = array
            places = places[len(array) :]
        return self.of(self.layout, self.first_row, self.n_rows, *moved)

    @abstractmethod
    def part(self, begin: int, end: int) -> QuantizedChunk:
        """Return some of the rows, from a multiple of `CUT_ROWS` on, as a chunk of their own; of dense ones no copy."""

    def symbols(self, threads: int = 1) -> UInt8 | UInt16:
        """Symbols of a dense chunk, shape (rows, features); `n_bins[f]` stands for missing.

        A view where the layout is aligned, otherwise unpacked.
        """
        raise TypeError("symbols() is for dense chunks; a CSR chunk has global_bins()")

    def global_bins(self, threads: int = 1) -> tuple[Int64, Int32]:
        """Row pointers (int64, shape (rows + 1,)) and global bins (int32, shape (entries,)) of a CSR chunk."""
        raise TypeError("global_bins() is for CSR chunks; a dense chunk has symbols()")

    @abstractmethod
    def fault(self, cuts: Cuts) -> str:
        """Return what of the bins cannot be by these cuts, in words; empty for nothing."""


@dataclass(frozen=True, eq=False)
class DenseChunk(QuantizedChunk):
    """A symbol for every feature."""

    layout: DenseLayout

    def part(self, begin: int, end: int) -> DenseChunk:
        first = begin * self.layout.row_stride_bytes // np.dtype(SYMBOL_WORD).itemsize
        own = self.words[first:][: n_words(8 * (end - begin) * self.layout.row_stride_bytes)]
        return replace(self, first_row=self.first_row + begin, n_rows=end - begin, words=own)

    def symbols(self, threads: int = 1) -> UInt8 | UInt16:
        return unpack_dense(self.words, self.n_rows, self.layout, threads)

    def symbols_of(self, n_rows: int, threads: int) -> UInt8 | UInt16:
        """Symbols of this chunk and of those that follow it, `n_rows` in all: its own, as none does."""
        return self.symbols(threads)

    def fault(self, cuts: Cuts) -> str:
        if len(self.words) != n_words(8 * self.n_rows * self.layout.row_stride_bytes):
            return f"its words are not those of {self.n_rows} rows"
        most = cuts.n_bins - 1 + cuts.has_missing  # a symbol for missing values only where some row lacks the feature
        return "a bin is out of range" if np.any(self.symbols().max(axis=0, initial=0) > most) else ""


@dataclass(frozen=True, eq=False)
class CsrChunk(QuantizedChunk):
    """Global bins of present entries.

    Parameters
    ----------
    indptr : uint32 array, shape (rows + 1,)
        First entry of each row.
    """

    layout: CsrLayout
    indptr: UInt32

    @property
    def arrays(self) -> tuple[UInt32, ...]:
        return self.words, self.indptr

    @property
    def n_entries(self) -> int:
        return int(self.indptr[-1])

    def part(self, begin: int, end: int) -> CsrChunk:
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        words = pack_csr(unpack_csr(self.words, self.n_entries, self.layout)[first:last], self.layout)
        own = self.indptr[begin : end + 1] - self.indptr[begin]
        return CsrChunk(self.first_row + begin, end - begin, self.layout, words, own)

    def global_bins(self, threads: int = 1) -> tuple[Int64, Int32]:
        bins = unpack_csr(self.words, self.n_entries, self.layout, threads)
        return self.indptr.astype(np.int64), bins.view(np.int32)

    def slots(self, slot_of_bin: Int32, threads: int) -> tuple[Int64, Int32]:
        """Row pointers (int64) and histogram slots (int32)."""
        indptr, bins = self.global_bins(threads)
        return indptr, slot_of_bin[bins]

    def fault(self, cuts: Cuts) -> str:
        starts = self.indptr.astype(np.int64)
        if starts[0] != 0 or np.any(np.diff(starts) < 0):
            return "its row pointers do not increase from 0"
        if len(self.words) != n_words(self.n_entries * self.layout.bits):
            return f"its words are not those of {self.n_entries} entries"
        _, bins = self.global_bins()
        if np.any((bins < 0) | (bins >= cuts.total_bins)):
            return "a bin is out of range"
        features = np.repeat(np.arange(cuts.n_features, dtype=np.int32), cuts.n_bins)[bins]
        if not rises_within(features, starts):
            return "the features of a row are not in order"
        lacking = np.bincount(features, minlength=cuts.n_features) < self.n_rows
        lacks = bool(np.any(lacking & ~cuts.has_missing))
        return "a row lacks a feature that has_missing says all rows have" if lacks else ""
