"""Rows that are taken of views one after the other: `devices/gpu/taken_rows.py` has the twin."""

from __future__ import annotations

from functools import partial

import numpy as np

from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, DenseView, SlotLayout, SparseView
from daskboost.dtypes import Int32, Int64, Symbols, UInt32


class RowRoom:
    """Memory for rows of views, used again and again.

    Parameters
    ----------
    layout : SlotLayout
    n_rows : int
        What is expected; memory grows where that is not enough.
    threads : Threads
    copies_columns : bool
        Whether dense rows get a column-major copy.
    """

    def __init__(self, layout: SlotLayout, n_rows: int, threads: Threads, *, copies_columns: bool) -> None:
        self._layout, self._expected, self._threads, self._copies_columns = layout, n_rows, threads, copies_columns
        self._symbols: Symbols | None = None
        self.clear()

    def clear(self) -> None:
        """No row is there."""
        self.n_rows = 0
        self._pointers: list[Int64] = [np.zeros(1, np.int64)]
        self._slots: list[Int32] = []
        self._n_entries = 0

    def add(self, view: CpuView, rows: UInt32) -> None:
        """Take some rows behind those that are there."""
        parts = [rows[begin:end] for begin, end in self._threads.ranges(len(rows))]
        for taken in self._threads.run([partial(view.take, part) for part in parts]):
            if isinstance(taken, tuple):
                indptr, slots = taken
                self._pointers.append(indptr[1:] + self._n_entries)
                self._slots.append(slots)
                self._n_entries += len(slots)
                self.n_rows += len(indptr) - 1
            else:
                self._add_symbols(taken)

    def _add_symbols(self, symbols: Symbols) -> None:
        end, old = self.n_rows + len(symbols), self._symbols
        if old is None or len(old) < end:
            n_rows = max(end, self._expected if old is None else len(old) * 9 // 8)
            self._symbols = np.empty((n_rows, symbols.shape[1]), symbols.dtype)
            if old is not None:
                self._symbols[: self.n_rows] = old[: self.n_rows]
        assert self._symbols is not None
        self._symbols[self.n_rows : end] = symbols
        self.n_rows = end

    def view(self) -> CpuView:
        """The view of the rows that are there; until `clear`."""
        if self._symbols is not None:
            threads = self._threads if self._copies_columns else None
            return DenseView(self._symbols[: self.n_rows], self._layout, threads)
        return SparseView(np.concatenate(self._pointers), np.concatenate(self._slots), self._layout)
