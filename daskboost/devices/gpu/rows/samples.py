"""Rows that kernels choose out of chunks, and what goes with them, in memory that is used again from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.rows.gradients import Columns, device_pieces, given_columns
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride, to_host
from daskboost.devices.gpu.runtime.stretches import BLOCKS_PER_MULTIPROCESSOR, THREADS, stretches
from daskboost.devices.sampling import N_CELLS, RowsToDraw, Sample, TakenSample, TurnRows, UniformSize, draws_below
from daskboost.dtypes import Int64

TAKING_THREADS = 256
"""Threads of a block, as in `kernels/take_rows.cu`."""
TAKING_BLOCKS = 8
"""Blocks, of as many as fit; threads stride over the rest."""


def _blocks(runtime: Runtime, n_threads: int) -> int:
    return min(-(-n_threads // TAKING_THREADS), TAKING_BLOCKS * runtime.multiprocessors)


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
            blocks, TAKING_THREADS, indptr, slots, rows, len(rows), places, to
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
            self._symbols_for(view, end).take(begin, view.planes, rows)
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


ColumnTypes = Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]
"""Type of each array, and the shape of what a row has of it."""


class RowColumns:
    """Bins of rows and arrays beside them.

    Parameters
    ----------
    layout : DeviceLayout
    size : RoomSize
    columns : ColumnTypes
    """

    def __init__(self, layout: DeviceLayout, size: RoomSize, columns: ColumnTypes) -> None:
        self.rows, self._runtime, self._expected = RowRoom(layout, size), layout.runtime, size.n_rows
        self._columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            name: (np.dtype(dtype), shape) for name, (dtype, shape) in columns.items()
        }
        self._arrays: dict[str, DeviceArray] = {}
        """Arrays of the columns that memory was taken for."""

    @property
    def room_rows(self) -> int:
        """Rows that there is memory for."""
        return len(self._arrays["ids"]) if "ids" in self._arrays else 0

    def behind(self, n_rows: int) -> dict[str, DeviceArray]:
        """Arrays of so many rows behind those that are there."""
        begin = self.rows.n_rows
        end = begin + n_rows
        for name, (dtype, shape) in self._columns.items():
            self._arrays[name] = grown(self._runtime, self._arrays.get(name), begin, end, self._expected, shape, dtype)
        return {name: array[begin:end] for name, array in self._arrays.items()}

    def there(self) -> dict[str, DeviceArray]:
        """Arrays of the rows that are there."""
        return {name: array[: self.rows.n_rows] for name, array in self._arrays.items()}


class Choice:
    """Numbers of rows that a kernel's blocks choose, each behind those of the blocks before.

    Parameters
    ----------
    runtime : Runtime
    expected : int
        Rows that are chosen at a time; memory grows where that is not enough.
    """

    def __init__(self, runtime: Runtime, expected: int) -> None:
        self._runtime, self._expected = runtime, expected
        self.counts = runtime.xp.empty(BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors, np.uint32)
        """Rows that each block chooses."""
        self._numbers: DeviceArray | None = None

    def counted(self, blocks: int) -> int:
        """The sum of the blocks' counts; waits."""
        return int(to_host(self.counts[:blocks]).sum(dtype=np.int64))

    def room(self, n_rows: int) -> DeviceArray:
        """For numbers of so many rows; uint32, until the next time."""
        self._numbers = grown(self._runtime, self._numbers, 0, n_rows, self._expected, (), np.dtype(np.uint32))
        return self._numbers[:n_rows]


# Rows drawn by their gradients in a pass: launches of `kernels/draw_rows.cu` and `take_drawn.cu`.
#
# `devices/cpu/samples.py` has its twin. A chunk's drawn rows are copied out of its bins while these are on the
# device, behind those of the chunks before. The host waits once for each chunk, for the number of its drawn rows:
# copies of two more chunks are under way by then, and memory need not be taken for rows that are not drawn.

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


# A share of the rows, drawn in a pass: launches of `kernels/draw_share.cu`.
#
# `devices/cpu/samples.py` has its twin. The host waits once for each chunk, as where candidates are taken.

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
