"""The devices that kernels are tested on: each turns a matrix of symbols into a view, in one of its encodings.

A GPU's views join by one more entry in `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.chunk_order import ChunkOrder
from daskboost.devices.cpu.rows import CpuRows
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import DenseView, SlotLayout, SparseView, View


class EagerThreads(Threads):
    """Divides even the smallest work, so that a few rows meet every boundary between threads."""

    def ranges(self, total: int, least: int = 1) -> list[tuple[int, int]]:
        return super().ranges(total, 1)


class DirtyBuffers(Buffers):
    """Memory that was used before."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        return np.full(shape, -7, dtype)


def make_layout(n_bins: list[int]) -> SlotLayout:
    """Every feature has missing values."""
    offsets = np.concatenate([[0], np.cumsum(np.array(n_bins) + 1)]).astype(np.int64)
    return SlotLayout(offsets, np.array(n_bins, np.int32))


def make_symbols(rng: np.random.Generator, n_rows: int, n_bins: list[int]) -> Any:
    """Random symbols; `n_bins[f]` is missing."""
    return rng.integers(0, np.array(n_bins) + 1, (n_rows, len(n_bins)))


def _dense(symbols: Any, layout: SlotLayout, dtype: Any, columns: bool) -> View:
    return DenseView(np.ascontiguousarray(symbols, dtype), layout, EagerThreads(2) if columns else None)


def _sparse(symbols: Any, layout: SlotLayout) -> View:
    present = symbols < layout.n_bins
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseView(indptr, (symbols + layout.offsets[:-1])[present].astype(np.int32), layout)


VIEWS: dict[str, Callable[[Any, SlotLayout], View]] = {
    "uint8": lambda symbols, layout: _dense(symbols, layout, np.uint8, False),
    "uint8 and columns": lambda symbols, layout: _dense(symbols, layout, np.uint8, True),
    "uint16": lambda symbols, layout: _dense(symbols, layout, np.uint16, False),
    "uint16 and columns": lambda symbols, layout: _dense(symbols, layout, np.uint16, True),
    "csr": _sparse,
}
WIDE_VIEWS = [name for name in VIEWS if not name.startswith("uint8")]


PAIRS = {"large": 15, "small": 31}
"""Bits that the pairs of large and of small data have room for; only of small data's, all rows' sums must fit 32."""


def make_rows(view: View, n_rows: int, layout: SlotLayout, threads: Threads, data: str = "large") -> CpuRows:
    """One chunk's row state."""
    weights = [np.ones(n_rows, np.float32)] if data == "small" else None
    rows = CpuRows(lambda: [(0, view)], [n_rows], [[(0, 0)]], layout, threads, weights)
    rows._buffers = DirtyBuffers()
    return rows


def put_rows(chunk: ChunkOrder, segments: list[list[int]], g: Any, h: Any) -> None:
    """Node `i` gets the rows of `segments[i]`, in that order; `g`, `h` are by row."""
    rows = np.array([row for segment in segments for row in segment], np.uint32)
    chunk.kept = len(rows)
    chunk.order[: len(rows)] = rows
    chunk.pairs[: len(rows)] = pack(g[rows], h[rows], chunk.pairs.dtype)
    ends = np.cumsum([len(segment) for segment in segments])
    chunk.bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64)


def pack(g: Any, h: Any, dtype: Any) -> Any:
    """Pairs as chunks hold them."""
    half = 8 * np.dtype(dtype).itemsize // 2
    return ((g.astype(np.int64) << half) | h.astype(np.int64)).astype(dtype)


def unpack(pairs: Any) -> tuple[Any, Any]:
    """g and h of pairs."""
    half = 8 * pairs.dtype.itemsize // 2
    return pairs >> half, pairs & ((1 << half) - 1)


def make_pairs(rng: np.random.Generator, n_rows: int, data: str = "large") -> tuple[Any, Any]:
    """Quantized gradients by row, as large as they get: the extremes among them, or in sum if data are small."""
    largest = 2 ** PAIRS[data] - 1
    if data == "small":
        parts = rng.dirichlet(np.ones(n_rows), 2) * largest
        return (parts[0] * rng.choice([-1, 1], n_rows)).astype(np.int64), parts[1].astype(np.int64)
    g, h = rng.integers(-largest - 1, largest + 1, n_rows), rng.integers(0, largest + 1, n_rows)
    if n_rows > 1:
        g[:2], h[:2] = (-largest - 1, largest), (largest, 0)
    return g, h


def segments_of(rng: np.random.Generator, sizes: list[int], n_rows: int) -> list[list[int]]:
    """Distinct rows for nodes of these sizes, each in increasing order."""
    rows = rng.permutation(n_rows)[: sum(sizes)]
    ends = np.cumsum(sizes)
    return [np.sort(part).tolist() for part in np.split(rows, ends[:-1])]
