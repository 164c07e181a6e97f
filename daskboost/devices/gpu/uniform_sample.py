"""A share of the rows, drawn in a pass: launches of `kernels/draw_share.cu`.

`devices/cpu/uniform_sample.py` has its twin. The host waits once for each chunk, as in `candidates.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.gpu.gradients import THREADS, device_pieces, stretches
from daskboost.devices.gpu.row_columns import Choice, ColumnTypes, RowColumns
from daskboost.devices.gpu.runtime import DeviceArray
from daskboost.devices.gpu.taken_rows import RoomSize
from daskboost.devices.gpu.views import DeviceLayout, GpuView
from daskboost.devices.sampling import TakenSample, TurnRows, UniformSize, draws_below


class GpuUniformSample:
    """Rows of a round's sample.

    Parameters
    ----------
    layout : DeviceLayout
    size : UniformSize
    room : RoomSize
        What is expected of the sample; it may have more.
    """

    def __init__(self, layout: DeviceLayout, size: UniformSize, room: RoomSize) -> None:
        self._runtime, self._n_outputs = layout.runtime, size.n_outputs
        self._below = np.uint64(draws_below(size.share))
        weight: ColumnTypes = {"weight": (np.float32, ())} if size.has_weight else {}
        self._columns = RowColumns(layout, room, {
            "ids": (np.int64, ()), "margin": (np.float32, (size.n_outputs,)), "label": (np.float32, ()), **weight,
        })  # fmt: skip
        self._choice = Choice(layout.runtime, size.turn_rows)
        self._pieces: dict[int, tuple[DeviceArray, int]] = {}
        """Ids of each chunk's rows."""
        self.start(0)

    def start(self, key: int) -> None:
        """Begin the sample of this key, see `UniformSample`."""
        self._key = np.uint64(key)
        self._columns.rows.clear()

    def add(self, view: GpuView, rows: TurnRows) -> None:
        """Take a chunk's rows of the sample; waits for how many that are."""
        n_rows = len(rows.margin)
        if n_rows == 0:
            return
        if rows.index not in self._pieces:
            self._pieces[rows.index] = device_pieces(self._runtime, rows.pieces)
        blocks, block_rows = stretches(self._runtime, n_rows)
        drawn: tuple[Any, ...] = (*self._pieces[rows.index], n_rows, block_rows, self._key, self._below)
        count, keep = (self._runtime.kernel("draw_share", entry) for entry in ("count_share", "keep_share"))
        count(blocks, THREADS, *drawn, self._choice.counts)
        n = self._choice.counted(blocks)
        if n == 0:
            return
        to, chosen = self._columns.behind(n), self._choice.room(n)
        keep(
            blocks, THREADS, *drawn, self._choice.counts, self._n_outputs, rows.margin, rows.label, rows.weight, chosen,
            to["ids"], to["margin"], to["label"], to.get("weight"),
        )  # fmt: skip
        self._columns.rows.add(view, chosen)

    def taken(self) -> TakenSample | None:
        """The sample, see `UniformSample`."""
        rows = self._columns.rows
        if not rows.n_rows:
            return None
        arrays: dict[str, Any] = {"weight": None} | self._columns.there()
        return TakenSample(rows.n_rows, rows.view(), room_rows=self._columns.room_rows, **arrays)
