"""Rows drawn by their gradients in a pass, copied out of its chunks: `devices/gpu/candidates.py` has the twin.

Each chunk's are a part of their own, since nobody knows how many there will be; parts are freed one after the other
while the sample is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.cpu.gradients import RowRange
from daskboost.devices.cpu.rows import Pieces, row_ranges
from daskboost.devices.cpu.sampling import RowNorms, draw_rows
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import CpuView, SlotLayout, joined_view
from daskboost.devices.sampling import N_CELLS, RowsToDraw, Sample
from daskboost.dtypes import Array, Float32, Float64, Int64, UInt64


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
