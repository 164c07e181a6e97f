"""Views of chunks that come to the device packed: of those that stay, one view of all, unpacked one behind the other;
of those that stream, a view of each group, unpacked into the memory that the last one had.

`kernels/unpack_chunk.cu` makes of packed chunks what `DenseView` and `SparseView` read, several chunks' rows as one
view's. Kernels that use a view and those that unpack the next group are of one stream, so that one group's memory is
enough.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from daskboost.devices.cpu.views import CsrParts
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.devices.gpu.runtime.launches import DeviceArray
from daskboost.devices.gpu.runtime.ring import PackedChunks, PackedGroup, Ring, placed
from daskboost.dtypes import Int32, Int64, UInt8, UInt32

THREADS = 256
"""Threads of a block, as in `kernels/unpack_chunk.cu`."""
TILE_UNITS = 16 * THREADS
"""About so many units are a block's work."""
UNIT_SYMBOLS, UNIT_TYPES = {1: 4, 2: 1}, {1: np.uint32, 2: np.uint16}
"""Symbols of a unit by their bytes, and its type, as there."""


@dataclass(frozen=True)
class DenseChunks:
    """What packed dense rows have in common."""

    bits: UInt8
    """Bits of each feature's symbols."""
    stride_bytes: int
    """Bytes from one row to the next."""
    symbol_dtype: np.dtype[np.generic]
    """Type of unpacked symbols."""
    most_rows: int
    """Most rows of a view."""

    def room(self, layout: DeviceLayout) -> UnpackedDense:
        """Return room for the rows, unpacked."""
        return UnpackedDense(layout, self)


@dataclass(frozen=True)
class SparseChunks:
    """What packed CSR rows have in common."""

    bits: int
    """Bits of an entry."""
    slot_of_bin: Int32
    """The histogram slot of each global bin."""
    most_rows: int
    most_entries: int
    """Most rows, or entries, of a view."""

    def room(self, layout: DeviceLayout) -> UnpackedSparse:
        """Return room for the rows, unpacked."""
        return UnpackedSparse(layout, self)


class OpensViews(Protocol):
    """A GPU, which knows what copies its plan has room for."""

    def dense_view(self, parts: Iterable[DeviceSymbols], n_rows: int, *, copy_columns: bool) -> DenseView: ...

    def sparse_view(self, parts: CsrParts, *, copy_columns: bool) -> SparseView: ...


class UnpackedDense:
    """Planes of rows that come packed, and the view over them; fewer rows leave their ends as they are."""

    def __init__(self, layout: DeviceLayout, chunks: DenseChunks) -> None:
        self._runtime, self._stride_bytes, xp = layout.runtime, chunks.stride_bytes, layout.runtime.xp
        places = layout.places(np.dtype(chunks.symbol_dtype))
        columns, units = _units(places, chunks.bits, chunks.most_rows)
        self._columns, self._places = xp.asarray(columns), xp.asarray(units)
        self._layout, self._symbols = layout, DeviceSymbols.empty(self._runtime, places, chunks.most_rows)
        self._n_rows = 0
        self._view: DenseView | None = None
        self.nbytes = int(self._symbols.flat.nbytes)

    def clear(self) -> None:
        """Begin with the first row again."""
        self._n_rows = 0

    def add(self, group: PackedGroup, memory: DeviceArray) -> None:
        """Unpack the group whose bytes these are behind the rows that are there."""
        n_units, symbol_bytes = len(self._places), self._symbols.places.dtype.itemsize
        kernel = self._runtime.kernel("unpack_chunk", "unpack_planes", SYMBOL_BYTES=symbol_bytes)
        planes = self._symbols.flat.view(UNIT_TYPES[symbol_bytes])
        tile_rows = max(1, TILE_UNITS // max(1, n_units))
        for rows, place in placed(group) if n_units else ():
            if rows.n_rows:
                kernel(
                    -(-rows.n_rows // tile_rows), THREADS, memory[place].view(np.uint32), self._columns, self._places,
                    n_units, self._stride_bytes, self._n_rows, rows.n_rows, tile_rows, planes,
                )  # fmt: skip
            self._n_rows += rows.n_rows

    def view(self) -> DenseView:
        """Return the view of all rows that there is room for; made once."""
        if self._view is None:
            self._view = DenseView(self._layout, [self._symbols], self._symbols.n_rows, copy_columns=False)
        return self._view

    def opened(self, device: OpensViews, *, copy_columns: bool) -> DenseView:
        """Return a view of these rows that stays."""
        return device.dense_view([self._symbols], self._symbols.n_rows, copy_columns=copy_columns)


def _units(places: SymbolPlaces, bits: UInt8, n_rows: int) -> tuple[UInt32, Int64]:
    """Tables of `unpack_planes` for planes of so many rows: (units, symbols, 2) and (units, 2)."""
    offsets, n = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)]), UNIT_SYMBOLS[places.dtype.itemsize]
    columns: list[list[tuple[int, int]]] = []
    units: list[tuple[int, int]] = []
    start = 0
    for each in places.groups:
        for plane, first, n_features, low, _ in each.groups.tolist():
            for begin in range(0, n_features if low == 0 else 0, n):  # further groups of the same features: other bins
                of = [first + begin + k if begin + k < n_features else -1 for k in range(n)]
                columns.append([(int(offsets[f]), int(bits[f])) if f >= 0 else (0, 0) for f in of])
                units.append(((start + plane * n_rows * each.columns + begin) // n, each.columns // n))
        start += each.n_planes * n_rows * each.columns
    return np.array(columns, np.uint32).reshape(-1, n, 2), np.array(units, np.int64).reshape(-1, 2)


class UnpackedSparse:
    """Row pointers and slots of rows that come packed."""

    def __init__(self, layout: DeviceLayout, chunks: SparseChunks) -> None:
        self._layout, self._runtime, self._bits, xp = layout, layout.runtime, chunks.bits, layout.runtime.xp
        self._slot_of_bin = xp.asarray(chunks.slot_of_bin)
        self._slots, self._indptr = xp.empty(chunks.most_entries, np.int32), xp.empty(chunks.most_rows + 1, np.int64)
        self._n_rows = self._n_entries = 0
        self.nbytes = int(self._slots.nbytes + self._indptr.nbytes)

    def clear(self) -> None:
        """Forget the rows that are there, like `UnpackedDense.clear`."""
        self._n_rows = self._n_entries = 0

    def add(self, group: PackedGroup, memory: DeviceArray) -> None:
        """Unpack a group behind the rows that are there, like `UnpackedDense.add`."""
        kernel = self._runtime.kernel("unpack_chunk", "unpack_slots", SYMBOL_BYTES=1)
        for rows, place in placed(group):
            words = memory[place].view(np.uint32)
            pointers = words[len(words) - rows.n_rows - 1 :]
            blocks = -(-max(rows.n_entries, rows.n_rows + 1) // TILE_UNITS)
            kernel(
                blocks, THREADS, words, self._bits, rows.n_entries, self._slot_of_bin, pointers, rows.n_rows,
                self._n_entries, self._slots[self._n_entries :], self._indptr[self._n_rows :],
            )  # fmt: skip
            self._n_rows, self._n_entries = self._n_rows + rows.n_rows, self._n_entries + rows.n_entries

    def _entries(self) -> tuple[DeviceArray, DeviceArray]:
        return self._indptr[: self._n_rows + 1], self._slots[: self._n_entries]

    def view(self) -> SparseView:
        """Return the view of the rows that are there."""
        return SparseView(self._layout, *self._entries(), copy_columns=False)

    def opened(self, device: OpensViews, *, copy_columns: bool) -> SparseView:
        """Return a view of these rows that stays."""
        return device.sparse_view([self._entries()], copy_columns=copy_columns)


class ChunkStream:
    """The streamed chunks of a set, pass after pass."""

    def __init__(self, layout: DeviceLayout, ring: Ring, chunks: PackedChunks, kind: DenseChunks | SparseChunks
                 ) -> None:  # fmt: skip
        self._ring, self._chunks, self._rows = ring, chunks, kind.room(layout)

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory, but for the ring."""
        return self._rows.nbytes

    def close(self) -> None:
        """Let go of the chunks; the ring must have been closed."""
        self._chunks.close()

    def views(self) -> Generator[GpuView, None, None]:
        """The view of each group, which is gone when the next one comes."""
        return self._ring.passing(self._chunks, self._unpack)

    def _unpack(self, group: PackedGroup, memory: DeviceArray) -> GpuView:
        self._rows.clear()
        self._rows.add(group, memory)
        return self._rows.view()
