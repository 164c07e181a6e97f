"""A share of the rows, drawn in a pass and copied out of its chunks: `devices/gpu/rows/samples.py` has the twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.gradients import RowDraw, RowRange, global_id, row_bits
from daskboost.devices.cpu.rows import Pieces, row_ranges
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, DenseView, SlotLayout, SparseView, joined_view
from daskboost.devices.sampling import (
    CELL_BITS,
    FIRST_CELL,
    N_CELLS,
    NORM_LAMBDA,
    RowsToDraw,
    Sample,
    TakenSample,
    TurnRows,
    UniformSize,
    draws_below,
)
from daskboost.dtypes import Array, Float32, Float64, Int32, Int64, Symbols, UInt32, UInt64

_SHIFT = np.int64(52 - CELL_BITS)


class RowNorms(NamedTuple):
    """Norms of a range's rows, counted, and those of the rows that are kept; room for all rows of the range."""

    counts: Int64
    """The norms by their cells, shape (N_CELLS,); rows of norm 0 are left out."""
    rows: Int64
    """Kept rows, at the start, as of all that follow."""
    norms: Float64
    draws: Float64

    @classmethod
    def empty(cls, n_rows: int) -> RowNorms:
        """Room for so many rows, of which none is counted."""
        return cls(np.zeros(N_CELLS, np.int64), np.empty(n_rows, np.int64), np.empty(n_rows), np.empty(n_rows))


@njit(cache=True, nogil=True)
def draw_share(draw: RowDraw, rows: RowRange, drawn: UInt32) -> int:
    """Write the rows of a range that are drawn to the start of `drawn`, shape (rows of the range,); return how many
    they are."""
    first_row, kept = rows.first_row, 0
    for row in range(rows.begin, rows.end):
        drawn[kept] = row
        kept += int((row_bits(draw.key, global_id(first_row, row)) >> np.uint64(32)) < draw.below)
    return kept


@njit(cache=True, nogil=True)
def draw_rows(g: Float32, h: Float32, key: np.uint64, threshold: float, rows: RowRange, found: RowNorms) -> int:
    """Count the norms of a range's rows and keep those with draw < norm / threshold; return how many that are.

    `g`, `h` : float32, shape (rows, outputs). Rows whose norms are 0 are never kept; norms that are not finite become
    infinite, so that their rows always are, and whoever looks for the range finds their gradients.
    """
    counts, first_row = found.counts, rows.first_row
    one = np.empty(1, np.float64)
    bits = one.view(np.int64)
    kept = 0
    for row in range(rows.begin, rows.end):
        square = 0.0
        for k in range(g.shape[1]):
            own_g, own_h = np.float64(g[row, k]), np.float64(h[row, k])
            square += own_g * own_g + NORM_LAMBDA * (own_h * own_h)
        norm = np.sqrt(square)
        if not norm < np.inf:
            norm = np.inf
        if norm == 0.0:
            continue
        one[0] = norm
        counts[min(max((bits[0] >> _SHIFT) - FIRST_CELL, 0), N_CELLS - 1)] += 1
        draw = np.float64(row_bits(key, global_id(first_row, row)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
        if draw < norm / threshold:
            found.rows[kept], found.norms[kept], found.draws[kept] = row, norm, draw
            kept += 1
    return kept


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


# Rows drawn by their gradients in a pass, copied out of its chunks: `devices/gpu/rows/samples.py` has the twin.
#
# Each chunk's are a part of their own, since nobody knows how many there will be; parts are freed one after the other
# while the sample is put together.

class _Part(NamedTuple):
    """Candidates of one chunk, as they are at its turn in a pass."""

    view: CpuView
    ids: UInt64
    norms: Float64
    draws: Float64
    g: Float32
    h: Float32
    margin: Float32
    label: Float32
    weight: Float32


class CpuCandidates:
    """Candidates of a round's sample.

    Parameters
    ----------
    layout : SlotLayout
    threads : Threads
    copies_columns : callable
        Whether a sample of so many rows gets a column-major copy.
    """

    def __init__(self, layout: SlotLayout, threads: Threads, copies_columns: Callable[[int], bool]) -> None:
        self._layout, self._threads, self._copies_columns = layout, threads, copies_columns
        self._parts: list[_Part] = []
        self.start(0, np.inf, 0)

    def start(self, key: int, threshold: float, most_rows: int) -> None:
        """Begin a pass, see `Candidates`."""
        self._key, self._threshold, self._most_rows = np.uint64(key), threshold, most_rows
        self._parts.clear()
        self._counts, self.n_drawn = np.zeros(N_CELLS, np.int64), 0

    @property
    def counts(self) -> Int64:
        """Counts of norms by cell."""
        return self._counts

    def add(self, view: CpuView, rows: RowsToDraw) -> None:
        """Count a chunk's norms and keep its drawn rows."""
        chosen, norms, draws = self._draw(rows)
        self.n_drawn += len(chosen)
        if self.n_drawn > self._most_rows:
            self._parts.clear()
        elif len(chosen):
            (g, h), n = rows.gradients, len(chosen)
            self._parts.append(_Part(
                joined_view([view.take(chosen)], n, self._layout, None), _ids(rows.pieces, chosen), norms, draws,
                g[chosen], h[chosen], rows.margin[chosen], rows.label[chosen],
                np.ones(n, np.float32) if rows.weight is None else rows.weight[chosen],
            ))  # fmt: skip

    def _draw(self, rows: RowsToDraw) -> tuple[Int64, Float64, Float64]:
        """The drawn rows of a chunk, their norms and draws."""
        g, h = rows.gradients
        if rows.searched is not None:
            h = np.ascontiguousarray(np.broadcast_to(rows.searched[:, None], g.shape))

        def draw(own: RowRange) -> tuple[Int64, tuple[Int64, Float64, Float64]]:
            found = RowNorms.empty(own.end - own.begin)
            kept = draw_rows(g, h, self._key, self._threshold, own, found)
            return found.counts, (found.rows[:kept].copy(), found.norms[:kept].copy(), found.draws[:kept].copy())

        parts = self._threads.run([partial(draw, own) for own in row_ranges(rows.pieces, len(g), self._threads)])
        for own, _ in parts:
            self._counts += own
        chosen, norms, draws = (np.concatenate(arrays) for arrays in zip(*(drawn for _, drawn in parts), strict=True))
        return chosen, norms, draws

    def take(self, threshold: float) -> Sample | None:
        """The sample, see `Candidates`."""
        parts = self._parts
        shares = [np.minimum(part.norms / threshold, 1) for part in parts]
        kept = [np.flatnonzero(part.draws < share) for part, share in zip(parts, shares, strict=True)]
        n_rows = sum(map(len, kept))
        if not n_rows:
            parts.clear()
            return None

        def joined(name: str) -> Array:
            return np.concatenate([getattr(part, name)[rows] for part, rows in zip(parts, kept, strict=True)])

        share = np.concatenate([own[rows] for own, rows in zip(shares, kept, strict=True)])
        columns: dict[str, Any] = {name: joined(name) for name in ("g", "h", "weight", "margin", "label", "ids")}
        with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
            for name in ("g", "h"):
                columns[name] = (columns[name] / share[:, None]).astype(np.float32)
            columns["weight"] = (columns["weight"] / share).astype(np.float32)
        threads = self._threads if self._copies_columns(n_rows) else None
        return Sample(n_rows, joined_view(self._handed_over(kept), n_rows, self._layout, threads), **columns)

    def _handed_over(self, kept: Sequence[Int64]) -> Iterator[Any]:
        """Bins of the taken rows; candidates are freed one part after the other."""
        for rows in kept:
            yield self._parts.pop(0).view.take(rows)


def _ids(pieces: Pieces, rows: Int64) -> UInt64:
    """Global ids of some rows."""
    if isinstance(pieces, np.ndarray):
        return pieces[rows]
    begins, firsts = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    piece = np.searchsorted(begins, rows, side="right") - 1
    return np.asarray(firsts[piece] + rows - begins[piece], np.uint64)
