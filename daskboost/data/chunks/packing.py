"""How the symbols of a chunk are laid out in bits: dense rows of fixed stride, or CSR with global bin symbols.

A feature's symbols are its bins `0..n_bins-1` and, where rows lack the feature, the symbol `n_bins` for missing.
Aligned layouts spend whole bytes per symbol and are read in place; tight layouts spend no bit more than needed and
are unpacked on reading. A layout belongs to a data set, never to a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.budget.set_size import DenseSet, SparseSet
from daskboost.devices.cpu.threads import by_ranges
from daskboost.devices.gpu.rows.streamed import DenseChunks, SparseChunks
from daskboost.dtypes import SYMBOL_WORD, Bool, Int32, UInt8, UInt16, UInt32
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.devices.cpu.views import CpuView
    from daskboost.devices.gpu.rows.views import GpuView
    from daskboost.devices.protocols import Device

MAX_SYMBOLS = 1 << 16  # 65,535 bins and the symbol for missing
GUARD_WORDS = 1  # behind the last symbol: readers may load two words for any symbol

Encoding = Literal["auto", "dense", "csr"]
Groups = Sequence[Sequence[tuple[int, int]]]
"""Rows and bytes of the chunks of groups."""
Runs = Sequence[Sequence[Any]]
"""Chunks of one layout, those together that follow one another within one array."""
Packing = Literal["aligned", "tight", "common"]


def n_words(n_bits: int) -> int:
    """Length of the uint32 array that holds `n_bits` bits, guard included."""
    return -(-n_bits // 32) + GUARD_WORDS


@dataclass(frozen=True, eq=False)
class DenseLayout:
    """Rows of fixed stride: symbol `f` of row `r` starts at bit `8 * r * row_stride_bytes + sum(bits[:f])`.

    Parameters
    ----------
    bits : uint8 array, shape (features,)
        Width of each feature's symbols, 1 to 16.
    """

    bits: UInt8

    @classmethod
    def aligned(cls, n_symbols: npt.NDArray[np.integer]) -> DenseLayout:
        """One byte per symbol, or two where any feature has more than 256 symbols."""
        width = 8 if _widths(n_symbols).max(initial=1) <= 8 else 16
        return cls(np.full(len(n_symbols), width, np.uint8))

    @classmethod
    def tight(cls, n_symbols: npt.NDArray[np.integer], common: bool = False) -> DenseLayout:
        """Return the layout with as few bits as each feature needs, or with `common` as the widest needs."""
        widths = _widths(n_symbols)
        return cls(np.full_like(widths, widths.max(initial=1)) if common else widths)

    def __post_init__(self) -> None:
        if self.bits.dtype != np.uint8 or self.bits.ndim != 1 or np.any((self.bits < 1) | (self.bits > 16)):
            raise DataError(f"bits of a dense layout must be a vector of uint8 from 1 to 16, got {self.bits!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DenseLayout) and np.array_equal(self.bits, other.bits)

    def __hash__(self) -> int:
        return hash(self.bits.tobytes())

    @property
    def n_features(self) -> int:
        return len(self.bits)

    @property
    def row_stride_bytes(self) -> int:
        return (int(self.bits.sum(dtype=np.int64)) + 7) // 8

    @property
    def symbol_dtype(self) -> np.dtype[Any]:
        """What unpacked symbols fit in."""
        return np.dtype(np.uint8) if self.bits.max(initial=1) <= 8 else np.dtype(np.uint16)

    @property
    def is_aligned(self) -> bool:
        """Whether the symbols are machine integers, so that reading them copies nothing."""
        return bool(np.all(self.bits == 8) or np.all(self.bits == 16))

    @property
    def row_bytes(self) -> int:
        """Bytes of an unpacked row."""
        return self.n_features * self.symbol_dtype.itemsize

    @property
    def saved_arrays(self) -> dict[str, UInt8]:
        """What a saved data set has of the layout beside its cuts."""
        return {"bits": self.bits}

    def holds(self, cuts: Cuts) -> bool:
        """Whether the symbols have room for all bins."""
        return not np.any((cuts.n_bins - 1) >> self.bits)

    def packed(self, groups: Groups, slot_of_bin: Int32) -> DenseChunks:
        """Return what unpacking groups of chunks goes by."""
        most_rows = max(sum(n_rows for n_rows, _ in group) for group in groups)
        return DenseChunks(self.bits, self.row_stride_bytes, self.symbol_dtype, most_rows)

    def view(self, device: Device, runs: Runs, slot_of_bin: Callable[[], Int32], *, copy_columns: bool
             ) -> CpuView | GpuView:  # fmt: skip
        """Return a device's view of chunks, one after the other; `slot_of_bin` returns the histogram slot of each
        global bin."""
        n_rows = [sum(chunk.n_rows for chunk in run) for run in runs]
        parts = (run[0].symbols_of(n, device.threads.count) for run, n in zip(runs, n_rows, strict=True))
        found: CpuView | GpuView = device.dense_view(parts, sum(n_rows), copy_columns=copy_columns)
        return found

    def nbytes(self, n_rows: int, n_entries: int) -> int:
        """Bytes of `n_rows` rows; the number of present entries does not matter."""
        return n_rows * self.row_stride_bytes

    def most_entries(self, n_rows: int, nbytes: int) -> int:
        """Entries of CSR rows: none."""
        return 0

    def set_size(self, n_rows: int, n_features: int, all_bytes: int, *, chunk_rows: int, stored_bytes: int) -> DenseSet:
        """Return the size of rows in this layout; `all_bytes` are those of their chunks, on disk or not."""
        return DenseSet(
            n_rows, n_features, chunk_rows=chunk_rows, stored_bytes=stored_bytes, read_in_place=self.is_aligned,
            symbol_bytes=self.symbol_dtype.itemsize,
        )  # fmt: skip


@dataclass(frozen=True)
class CsrLayout:
    """Row pointers and, for each present entry, its global bin in `bits` bits; missing entries are absent.

    Parameters
    ----------
    bits : int
        Width of a symbol, 1 to 32; entry `i` starts at bit `i * bits`. 32 is read in place.
    """

    bits: int

    @classmethod
    def aligned(cls, total_bins: int) -> CsrLayout:
        """Machine integers of 32 bits."""
        return cls(32)

    @classmethod
    def tight(cls, total_bins: int) -> CsrLayout:
        """The `ceil(log2(total_bins + 1))` bits that every global bin and one symbol more fit in."""
        return cls(max(1, total_bins.bit_length()))

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise DataError(f"bits of a CSR layout must be from 1 to 32, got {self.bits!r}")

    row_bytes = 0
    """CSR rows have no column-major copies."""

    @property
    def saved_arrays(self) -> dict[str, UInt8]:
        """What a saved data set has of the layout beside its cuts: nothing, as its manifest says the bits."""
        return {}

    def holds(self, cuts: Cuts) -> bool:
        """Whether an entry has room for all bins."""
        return (cuts.total_bins - 1) >> self.bits == 0

    def packed(self, groups: Groups, slot_of_bin: Int32) -> SparseChunks:
        """Return what unpacking groups of chunks goes by; `slot_of_bin` : the histogram slot of each global bin."""
        most_rows = max(sum(n_rows for n_rows, _ in group) for group in groups)
        most_entries = max(sum(self.most_entries(*chunk) for chunk in group) for group in groups)
        return SparseChunks(self.bits, slot_of_bin, most_rows, most_entries)

    def view(self, device: Device, runs: Runs, slot_of_bin: Callable[[], Int32], *, copy_columns: bool
             ) -> CpuView | GpuView:  # fmt: skip
        """Return a device's view of chunks, like `DenseLayout.view`."""
        parts = [chunk.slots(slot_of_bin(), device.threads.count) for run in runs for chunk in run]
        found: CpuView | GpuView = device.sparse_view(parts, copy_columns=copy_columns)
        return found

    def nbytes(self, n_rows: int, n_entries: int) -> int:
        """Bytes of `n_rows` rows with `n_entries` present entries."""
        return (n_entries * self.bits + 7) // 8 + 4 * (n_rows + 1)

    def most_entries(self, n_rows: int, nbytes: int) -> int:
        """Entries that a chunk of so many bytes has at most."""
        return max(0, nbytes - 4 * (n_rows + 1)) * 8 // self.bits

    def set_size(self, n_rows: int, n_features: int, all_bytes: int, *, chunk_rows: int, stored_bytes: int
                 ) -> SparseSet:  # fmt: skip
        """Return the size of rows in this layout, like `DenseLayout.set_size`."""
        entries = max(0, all_bytes - 4 * n_rows) * 8 // self.bits
        return SparseSet(n_rows, n_features, entries, chunk_rows=chunk_rows, stored_bytes=stored_bytes)


Layout = DenseLayout | CsrLayout


def choose_layout(
    cuts: Cuts,
    has_missing: Bool,
    *,
    n_rows: int,
    n_entries: int,
    encoding: Encoding = "auto",
    packing: Packing = "aligned",
) -> Layout:
    """The layout of a whole data set.

    Parameters
    ----------
    has_missing : bool array, shape (features,)
        Whether any row of *this* data set, or of the one it will be trained with, lacks the feature.
    n_rows, n_entries : int
        Rows and present entries of the whole data set, over all partitions and workers: the choice must not
        depend on how the rows are divided.
    encoding : {"auto", "dense", "csr"}
        "auto" takes whichever needs fewer bytes, dense if equal.
    packing : {"aligned", "tight", "common"}
        "aligned": machine integers, read in place (the default: a CPU reads them fastest). "tight": as few bits as
        each feature needs. "common": as few bits as the feature with most symbols needs, for all features.

    Raises
    ------
    DataError
        A feature has more than 65,535 bins, or all features together 2**31 or more.
    """
    if cuts.total_bins >= 1 << 31:
        raise DataError(
            f"the features have {cuts.total_bins} bins together, more than 2**31 - 1: use a smaller max_bin"
        )
    symbols = replace(cuts, has_missing=has_missing).n_slots
    csr = CsrLayout.aligned(cuts.total_bins) if packing == "aligned" else CsrLayout.tight(cuts.total_bins)
    if encoding == "csr":
        return csr
    dense = DenseLayout.aligned(symbols) if packing == "aligned" else DenseLayout.tight(symbols, packing == "common")
    return dense if encoding == "dense" else smaller(dense, csr, n_rows, n_entries)


def smaller(dense: DenseLayout, csr: CsrLayout, n_rows: int, n_entries: int) -> Layout:
    """Return the layout that needs fewer bytes, the dense one if equal."""
    return csr if csr.nbytes(n_rows, n_entries) < dense.nbytes(n_rows, n_entries) else dense


def dense_words(n_rows: int, layout: DenseLayout) -> UInt32:
    """Words of so many rows, all symbols 0."""
    return np.zeros(n_words(8 * n_rows * layout.row_stride_bytes), SYMBOL_WORD)


def pack_dense(symbols: UInt8 | UInt16, layout: DenseLayout, threads: int = 1) -> UInt32:
    """Pack a (rows, features) matrix of symbols into words."""
    words = dense_words(symbols.shape[0], layout)
    if layout.is_aligned:
        dense_view(words, symbols.shape[0], layout)[:] = symbols
        return words
    from daskboost.devices.cpu.quantize import pack_rows

    out, stride = words.view(np.uint8), layout.row_stride_bytes
    by_ranges(lambda start, stop: pack_rows(symbols, layout.bits, stride, start, stop, out), len(symbols), threads)
    return words


def unpack_dense(words: UInt32, n_rows: int, layout: DenseLayout, threads: int = 1) -> UInt8 | UInt16:
    """The (rows, features) matrix of symbols, uint8 or uint16; a view of the words where the layout is aligned."""
    if layout.is_aligned:
        return dense_view(words, n_rows, layout)
    from daskboost.devices.cpu.quantize import unpack_rows

    out = np.empty((n_rows, layout.n_features), layout.symbol_dtype)
    packed, stride = words.view(np.uint8), layout.row_stride_bytes
    by_ranges(lambda start, stop: unpack_rows(packed, layout.bits, stride, start, stop, out), n_rows, threads)
    return out


def dense_view(words: UInt32, n_rows: int, layout: DenseLayout) -> UInt8 | UInt16:
    """The words of an aligned layout as a (rows, features) matrix, without a copy."""
    n = n_rows * layout.n_features
    return words.view(layout.symbol_dtype)[:n].reshape(n_rows, layout.n_features)


def pack_csr(bins: UInt32, layout: CsrLayout, threads: int = 1) -> UInt32:
    """Pack the global bins of all entries into words."""
    words = np.zeros(n_words(len(bins) * layout.bits), SYMBOL_WORD)
    if layout.bits == 32:
        words[: len(bins)] = bins
        return words
    from daskboost.devices.cpu.quantize import pack_stream

    out = words.view(np.uint8)
    by_ranges(lambda start, stop: pack_stream(bins, layout.bits, start, stop, out), len(bins), threads)
    return words


def unpack_csr(words: UInt32, n_entries: int, layout: CsrLayout, threads: int = 1) -> UInt32:
    """The global bins of all entries, uint32; a view of the words where they take 32 bits."""
    if layout.bits == 32:
        return words[:n_entries]
    from daskboost.devices.cpu.quantize import unpack_stream

    out = np.empty(n_entries, SYMBOL_WORD)
    packed = words.view(np.uint8)
    by_ranges(lambda start, stop: unpack_stream(packed, layout.bits, start, stop, out), n_entries, threads)
    return out


def _widths(n_symbols: npt.NDArray[np.integer]) -> UInt8:
    """Bits that hold the symbols `0..n-1` of each feature, at least 1."""
    if np.any(n_symbols > MAX_SYMBOLS):
        feature = int(np.argmax(n_symbols))
        raise DataError(
            f"feature {feature} has {n_symbols[feature]} bins (missing included), more than {MAX_SYMBOLS}: "
            f"use max_bin <= {MAX_SYMBOLS - 1}"
        )
    last = np.maximum(n_symbols.astype(np.int64) - 1, 1)
    return (np.frexp(last.astype(np.float64))[1]).astype(np.uint8)
