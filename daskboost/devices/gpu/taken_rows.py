"""Views of rows that are taken from other views: launches of `kernels/take_rows.cu`.

A view need not outlive its turn: all that reads it is queued up before the next one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_host
from daskboost.devices.gpu.symbols import DeviceSymbols
from daskboost.devices.gpu.views import DenseView, DeviceLayout, GpuView, SparseView

THREADS = 256
"""Threads of a block, as in `kernels/take_rows.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Blocks, of as many as fit; threads stride over the rest."""
WORD_BYTES = (16, 4, 2)
"""Widths that the kernel is compiled for, the widest first; rows of a plane have powers of two of bytes."""


def _blocks(runtime: Runtime, n_threads: int) -> int:
    return min(-(-n_threads // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)


def _take_rows(view: DenseView, rows: DeviceArray, symbols: DeviceSymbols, begin: int) -> None:
    """Enqueue: rows of a view become those of `symbols` from `begin` on."""
    runtime = view.runtime
    for own, to in zip(view.planes if len(rows) else [], symbols.planes, strict=False):
        n_planes, from_rows, columns = own.shape
        row_bytes = columns * own.itemsize
        word_bytes = next(width for width in WORD_BYTES if row_bytes % width == 0)
        shift = (row_bytes // word_bytes).bit_length() - 1
        runtime.kernel("take_rows", "take_rows", WORD_BYTES=word_bytes)(
            _blocks(runtime, len(rows) << shift), THREADS, own.view(np.uint8), from_rows, rows, len(rows), n_planes,
            shift, to.view(np.uint8), symbols.n_rows, begin,
        )  # fmt: skip


def _entry_places(view: SparseView, rows: DeviceArray) -> tuple[DeviceArray, int]:
    """Row pointers of some rows, one behind the other, and where the last one ends; waits."""
    xp, indptr = view.runtime.xp, view.symbols[1]
    own = xp.zeros(len(rows) + 1, np.int64)
    own[1:] = xp.cumsum(indptr[rows + 1] - indptr[rows])
    return own, int(to_host(own[-1:])[0])


def _take_entries(view: SparseView, rows: DeviceArray, places: DeviceArray, to: DeviceArray) -> None:
    """Enqueue: the entries of some rows become those of `to`, from each row's place on."""
    runtime, (slots, indptr) = view.runtime, view.symbols[:2]
    if len(rows) and len(to):
        blocks = _blocks(runtime, 32 * len(rows))
        runtime.kernel("take_rows", "take_entries", WORD_BYTES=16)(
            blocks, THREADS, indptr, slots, rows, len(rows), places, to
        )


@dataclass(frozen=True)
class RoomSize:
    """What a `RowRoom` has memory for at first."""

    n_rows: int = 0
    n_entries: int = 0
    """Of CSR rows."""


class RowRoom:
    """Rows that are taken of views one after the other, in memory that is used again and again: what comes and goes in
    another size each time would leave CuPy's pool in pieces.

    Parameters
    ----------
    layout : DeviceLayout
    size : RoomSize
        What is expected; memory grows where that is not enough.
    """

    def __init__(self, layout: DeviceLayout, size: RoomSize) -> None:
        self._layout, self._runtime, self._size = layout, layout.runtime, size
        self.n_rows = self._n_entries = 0
        self._symbols: DeviceSymbols | None = None
        self._dense: DenseView | None = None
        """The view of all rows that there is room for."""
        self._indptr: DeviceArray | None = None
        self._slots: DeviceArray | None = None

    def clear(self) -> None:
        """No row is there."""
        self.n_rows = self._n_entries = 0

    def add(self, view: GpuView, rows: DeviceArray) -> None:
        """Take some rows, uint32, behind those that are there. Of CSR rows, the number of entries is waited for."""
        begin, end = self.n_rows, self.n_rows + len(rows)
        if isinstance(view, DenseView):
            _take_rows(view, rows, self._symbols_for(view, end), begin)
        elif isinstance(view, SparseView):
            places, n_entries = _entry_places(view, rows)
            last = self._n_entries + n_entries
            self._indptr = grown(
                self._runtime, self._indptr, begin + 1, end + 1, self._size.n_rows + 1, (), np.dtype(np.int64)
            )
            self._slots = grown(
                self._runtime, self._slots, self._n_entries, last, self._size.n_entries, (), np.dtype(np.int32)
            )
            own = self._indptr[begin : end + 1]
            own[:] = places + self._n_entries
            _take_entries(view, rows, own, self._slots)
            self._n_entries = last
        self.n_rows = end

    def view(self) -> GpuView:
        """The view of the rows that are there; until `clear`."""
        if self._dense is not None:
            return self._dense
        assert self._indptr is not None and self._slots is not None  # rows were added
        indptr, slots = self._indptr[: self.n_rows + 1], self._slots[: self._n_entries]
        return SparseView(self._layout, indptr, slots, copy_columns=False)

    def _symbols_for(self, view: DenseView, n_rows: int) -> DeviceSymbols:
        """Memory for so many rows."""
        old = self._symbols
        if old is None or old.n_rows < n_rows:
            most = max(n_rows, self._size.n_rows) if old is None else larger(old.n_rows, n_rows)
            self._dense = None
            made = DeviceSymbols.empty(self._runtime, self._layout.places(view.planes[0].dtype), most)
            for own, to in zip([] if old is None else old.planes, made.planes, strict=False):
                to[:, : self.n_rows] = own[:, : self.n_rows]
            self._symbols = made
            self._dense = DenseView(self._layout, [made], most, copy_columns=False)
        assert self._symbols is not None
        return self._symbols


def grown(runtime: Runtime, array: DeviceArray | None, used: int, wanted: int, expected: int,
          shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:  # fmt: skip
    """An array of at least `wanted` items of a shape, the first `used` of which are those of `array`: that itself if it
    is large enough; of at least `expected` items where there is none."""
    if array is not None and len(array) >= wanted:
        return array
    made = runtime.xp.empty((max(wanted, expected) if array is None else larger(len(array), wanted), *shape), dtype)
    if array is not None and used:
        made[:used] = array[:used]
    found: DeviceArray = made
    return found


def larger(n: int, wanted: int) -> int:
    """Items of what has had `n`, and must have more: an eighth at least, so that few copies make all of it."""
    return max(wanted, n * 9 // 8)
