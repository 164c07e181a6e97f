"""Rows drawn by their gradients in a pass: launches of `kernels/draw_rows.cu` and `take_drawn.cu`.

`devices/cpu/candidates.py` has its twin. A chunk's drawn rows are copied out of its bins while these are on the device,
behind those of the chunks before. The host waits once for each chunk, for the number of its drawn rows: copies of two
more chunks are under way by then, and memory need not be taken for rows that are not drawn.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.gradients import THREADS, Columns, device_pieces, stretches
from daskboost.devices.gpu.losses import given_columns
from daskboost.devices.gpu.row_columns import Choice, ColumnTypes, RowColumns
from daskboost.devices.gpu.runtime import DeviceArray, element_stride, to_host
from daskboost.devices.gpu.taken_rows import RoomSize
from daskboost.devices.gpu.views import DeviceLayout, GpuView
from daskboost.devices.sampling import N_CELLS, RowsToDraw, Sample
from daskboost.dtypes import Int64

FLOATS = ("g", "h", "margin", "label", "weight")
OF_OUTPUTS = ("g", "h", "margin")
"""Columns that have an entry for each output."""


class GpuCandidates:
    """Candidates of a round's sample, and the sample, which stays until the next one is taken.

    Parameters
    ----------
    layout : DeviceLayout
    n_outputs : int
    candidates, sample : RoomSize
        What is expected of them; they may have more.
    """

    def __init__(self, layout: DeviceLayout, n_outputs: int, candidates: RoomSize, sample: RoomSize) -> None:
        self._runtime, self._n_outputs = layout.runtime, n_outputs
        columns: ColumnTypes = {
            "ids": (np.int64, ()), **{name: (np.float32, (n_outputs,) * (name in OF_OUTPUTS)) for name in FLOATS},
        }  # fmt: skip
        drawn: ColumnTypes = {**columns, "norms": (np.float64, ()), "draws": (np.float64, ())}
        self._kept = RowColumns(layout, candidates, drawn)
        self._sample = RowColumns(layout, sample, columns)
        self._choice = Choice(layout.runtime, candidates.n_rows)  # where all rows are one chunk
        self._cells = layout.runtime.xp.zeros(N_CELLS, np.uint64)
        self._pieces: dict[int, tuple[DeviceArray, int]] = {}
        """Ids of each chunk's rows."""
        self.start(0, np.inf, 0)

    def start(self, key: int, threshold: float, most_rows: int) -> None:
        """Begin a pass, see `Candidates`."""
        self._key, self._threshold, self._most_rows = int(key), float(threshold), most_rows
        self._kept.rows.clear()
        self._cells.fill(0)
        self.n_drawn = 0

    @property
    def counts(self) -> Int64:
        """Counts of norms by cell; waits."""
        return to_host(self._cells).view(np.int64)

    def add(self, view: GpuView, rows: RowsToDraw) -> None:
        """Count a chunk's norms and keep its drawn rows; waits for how many that are."""
        n_rows = len(rows.margin)
        if n_rows == 0:
            return
        columns = rows.gradients
        if not isinstance(columns, Columns):
            g, h = columns
            columns = given_columns(g, h, 0)
        if rows.index not in self._pieces:
            self._pieces[rows.index] = device_pieces(self._runtime, rows.pieces)
        blocks, block_rows = stretches(self._runtime, n_rows)
        drawn = (
            columns.first, columns.second, columns.weight, element_stride(columns.first),
            element_stride(columns.second), columns.next_first, columns.next_second, columns.parameters,
            self._n_outputs, rows.searched, 0 if rows.searched is None else element_stride(rows.searched),
            *self._pieces[rows.index], n_rows, block_rows, np.uint64(self._key), self._threshold,
        )  # fmt: skip
        count, keep = (
            self._runtime.kernel("draw_rows", entry, OBJECTIVE=int(columns.kernel))
            for entry in ("count_drawn", "keep_drawn")
        )
        count(blocks, THREADS, *drawn, self._cells, self._choice.counts)
        if self._most_rows == 0:
            return
        n = self._choice.counted(blocks)
        self.n_drawn += n
        if self.n_drawn > self._most_rows:
            self._kept.rows.clear()
        elif n:
            to, chosen = self._kept.behind(n), self._choice.room(n)
            keep(
                blocks, THREADS, *drawn, self._choice.counts, rows.margin, rows.label, rows.weight, chosen, to["ids"],
                to["norms"], to["draws"], *(to[name] for name in FLOATS),
            )  # fmt: skip
            self._kept.rows.add(view, chosen)

    def take(self, threshold: float) -> Sample | None:
        """The sample, see `Candidates`; waits for how many rows it has."""
        kept, sample = self._kept.rows, self._sample
        sample.rows.clear()
        if kept.n_rows == 0:
            return None
        of = self._kept.there()
        blocks, block_rows = stretches(self._runtime, kept.n_rows)
        drawn = (of["norms"], of["draws"], kept.n_rows, block_rows, float(threshold), self._choice.counts)
        self._runtime.kernel("take_drawn", "count_taken")(blocks, THREADS, *drawn)
        n = self._choice.counted(blocks)
        if n == 0:
            return None
        to, chosen = sample.behind(n), self._choice.room(n)
        self._runtime.kernel("take_drawn", "take_drawn")(
            blocks, THREADS, *drawn, self._n_outputs, of["ids"], *(of[name] for name in FLOATS), chosen, to["ids"],
            *(to[name] for name in FLOATS),
        )  # fmt: skip
        sample.rows.add(kept.view(), chosen)
        return Sample(n, sample.rows.view(), room_rows=sample.room_rows, **to)
