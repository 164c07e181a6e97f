"""A share of the rows, drawn in a pass and copied out of its chunks: `devices/gpu/uniform_sample.py` has the twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from daskboost.devices.cpu.gradients import RowDraw, RowRange
from daskboost.devices.cpu.rows import Pieces, row_ranges
from daskboost.devices.cpu.sampling import draw_share
from daskboost.devices.cpu.taken_rows import RowRoom
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, SlotLayout
from daskboost.devices.sampling import TakenSample, TurnRows, UniformSize, draws_below
from daskboost.dtypes import UInt32, UInt64


class CpuUniformSample:
    """Rows of a round's sample.

    Parameters
    ----------
    layout : SlotLayout
    threads : Threads
    size : UniformSize
    copies_columns : bool
        Whether dense rows get a column-major copy.
    """

    def __init__(self, layout: SlotLayout, threads: Threads, size: UniformSize, *, copies_columns: bool) -> None:
        self._threads, self._expected, self._share = threads, size.n_rows, size.share
        self._room = RowRoom(layout, size.n_rows, threads, copies_columns=copies_columns)
        self._arrays: dict[str, Any] = {}
        self.start(0)

    def start(self, key: int) -> None:
        """Begin the sample of this key, see `UniformSample`."""
        self._draws, self._n_rows = RowDraw(np.uint64(key), np.uint64(draws_below(self._share))), 0
        self._room.clear()

    def add(self, view: CpuView, rows: TurnRows) -> None:
        """Take a chunk's rows of the sample."""
        drawn = self._draw(rows.pieces, len(rows.margin))
        chosen = np.concatenate([np.empty(0, np.uint32), *(part for _, part in drawn)])
        if not len(chosen):
            return
        begin, end = self._n_rows, self._n_rows + len(chosen)
        self._room.add(view, chosen)
        values = {"margin": rows.margin, "label": rows.label, "weight": rows.weight}
        there = {name: array for name, array in values.items() if array is not None}
        arrays = self._reserved(end, there)
        for name, array in there.items():
            arrays[name][begin:end] = array[chosen]
        at = begin
        for first_row, part in drawn:
            own = arrays["ids"][at : at + len(part)]
            if isinstance(first_row, np.ndarray):
                own[:] = first_row[part]
            else:
                np.add(part, np.uint64(first_row), out=own, dtype=np.uint64)
            at += len(part)
        self._n_rows = end

    def _draw(self, pieces: Pieces, n_rows: int) -> list[tuple[int | UInt64, UInt32]]:
        """Numbers of a chunk's rows of the sample, range by range, and the id that row 0 would have, or all ids."""
        ranges = list(row_ranges(pieces, n_rows, self._threads))
        found = self._threads.run([partial(self._drawn, rows) for rows in ranges])
        return [(own.first_row, rows) for rows, own in zip(found, ranges, strict=True)]

    def _drawn(self, rows: RowRange) -> UInt32:
        drawn = np.empty(rows.end - rows.begin, np.uint32)
        return drawn[: draw_share(self._draws, rows, drawn)].copy()

    def _reserved(self, n_rows: int, like: dict[str, Any]) -> dict[str, Any]:
        """Arrays of so many rows at least, the first of which are those that are there."""
        old = self._arrays
        if not old or len(old["ids"]) < n_rows:
            most = max(n_rows, len(old["ids"]) * 9 // 8 if old else self._expected)
            self._arrays = {"ids": np.empty(most, np.uint64)} | {
                name: np.empty((most, *values.shape[1:]), np.float32) for name, values in like.items()
            }
            for name, array in old.items():
                self._arrays[name][: self._n_rows] = array[: self._n_rows]
        return self._arrays

    def taken(self) -> TakenSample | None:
        """The sample, see `UniformSample`."""
        if not self._n_rows:
            return None
        arrays = {"weight": None} | {name: array[: self._n_rows] for name, array in self._arrays.items()}
        return TakenSample(self._n_rows, self._room.view(), room_rows=len(self._arrays["ids"]), **arrays)
