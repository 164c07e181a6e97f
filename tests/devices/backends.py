"""The devices that kernels are tested on: each turns a matrix of symbols into a view, in one of its encodings.

The CUDA kernels run twice: by the emulation of `tests/kernels`, everywhere, and on a GPU where there is one (marker
`gpu`). Where a test divides work among so many threads, the emulation takes the number as the seed of its schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.rows import CpuRows, walk
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import DenseView, SlotLayout, SparseView, WalkArrays
from daskboost.devices.gpu.device import GpuDevice, tree_kind
from daskboost.devices.gpu.rows import views as gpu_views
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.runtime.kernel_source import source_folder
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.known_tree import device_tree
from daskboost.dtypes import Int64

LARGE = [pytest.param(EmulatedRuntime(seed, sm=90), marks=pytest.mark.emulated) for seed in (0, 1)]
"""The emulation with the shared memory of a large GPU."""


def declared(file: str, constant: str) -> str:
    """What a constant of `kernels/`, given with its type, is declared to be."""
    found = re.search(rf"constexpr {constant} = ([^;]+);", (source_folder() / file).read_text())
    assert found, f"{file} has no {constant}"
    return found[1]


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


def lack_features(rng: np.random.Generator, symbols: Any, rows: list[int], n_bins: list[int]) -> None:
    """Have all of some rows lack each feature but the fourth, one time in four."""
    for f in range(len(n_bins)):
        if f != 3 and rng.random() < 0.25:
            symbols[rows, f] = n_bins[f]


def _dense(symbols: Any, layout: SlotLayout, threads: int, dtype: Any, columns: bool) -> Any:
    return DenseView(np.ascontiguousarray(symbols, dtype), layout, EagerThreads(2) if columns else None)


def csr(symbols: Any, layout: SlotLayout) -> tuple[Any, Any]:
    """Row pointers, and slots of the symbols that are not missing."""
    present = symbols < layout.n_bins
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return indptr, (symbols + layout.offsets[:-1])[present].astype(np.int32)


def _sparse(symbols: Any, layout: SlotLayout, threads: int) -> Any:
    return SparseView(*csr(symbols, layout), layout)


def _emulated(threads: int) -> Runtime:
    return EmulatedRuntime(seed=threads - 1)


def _cuda(threads: int) -> Runtime:
    return get_runtime()


def _gpu_dense(symbols: Any, layout: SlotLayout, threads: int, runtime: Callable[[int], Runtime], dtype: Any,
               columns: bool) -> Any:  # fmt: skip
    parts = np.array_split(np.ascontiguousarray(symbols, dtype), [len(symbols) // 3])
    device_layout = gpu_views.DeviceLayout(runtime(threads), layout)
    return gpu_views.DenseView(device_layout, parts, len(symbols), copy_columns=columns)


def _gpu_sparse(symbols: Any, layout: SlotLayout, threads: int, runtime: Callable[[int], Runtime]) -> Any:
    return gpu_views.SparseView(gpu_views.DeviceLayout(runtime(threads), layout), *csr(symbols, layout))


ENCODINGS: dict[str, tuple[Any, ...]] = {
    "uint8": (np.uint8, False),
    "uint8 and columns": (np.uint8, True),
    "uint16": (np.uint16, False),
    "uint16 and columns": (np.uint16, True),
    "csr": (),
}
_MAKERS: dict[str, Callable[..., Any]] = {
    encoding: partial(_dense, dtype=how[0], columns=how[1]) if how else _sparse for encoding, how in ENCODINGS.items()
}
for _device, _runtime in (("emulated", _emulated), ("cuda", _cuda)):
    for _encoding, _how in ENCODINGS.items():
        _MAKERS[f"{_device} {_encoding}"] = (
            partial(_gpu_dense, runtime=_runtime, dtype=_how[0], columns=_how[1])
            if _how else partial(_gpu_sparse, runtime=_runtime)
        )  # fmt: skip


def _marked(name: str, *others: str) -> Any:
    mark = {"cuda": [pytest.mark.gpu], "emulated": [pytest.mark.emulated]}
    return pytest.param(name, *others, marks=mark.get(name.split()[0], []))


VIEWS = [_marked(name) for name in _MAKERS]
"""All views, for `parametrize`."""
WIDE_VIEWS = [_marked(name) for name in _MAKERS if "uint8" not in name]
FORMS = [_marked(name, form) for name in _MAKERS for form in ("pairs", "words") if form == "pairs" or name in ENCODINGS]
"""Views and the forms of histograms that they give."""


def make_view(name: str, symbols: Any, layout: SlotLayout, threads: int = 1) -> Any:
    """The view of that name."""
    return _MAKERS[name](symbols, layout, threads)


def device_of(view: Any, layout: SlotLayout, threads: Threads) -> CpuDevice | GpuDevice:
    """The device that a view is of."""
    on_gpu = isinstance(view, (gpu_views.DenseView, gpu_views.SparseView))
    return GpuDevice(view.runtime, layout, threads) if on_gpu else CpuDevice(layout, threads)


PAIRS = {"large": 15, "small": 31}
"""Bits that the pairs of large and of small data have room for; only of small data's, all rows' sums must fit 32."""


def make_rows(view: Any, n_rows: int, layout: SlotLayout, threads: Threads, data: str = "large") -> Any:
    """One chunk's row state."""
    weights = [np.ones(n_rows, np.float32)] if data == "small" else None
    if isinstance(view, (gpu_views.DenseView, gpu_views.SparseView)):
        return tree_kind(layout).rows(view.runtime, lambda: [(0, view)], [n_rows], [[(0, 0)]], layout, weights)
    rows = CpuRows(lambda: [(0, view)], [n_rows], [[(0, 0)]], layout, threads, weights)
    rows._buffers = DirtyBuffers()
    return rows


def put_order(chunk: Any, segments: list[list[int]]) -> Any:
    """Node `i` gets the rows of `segments[i]`, in that order; all of them, one after the other."""
    rows = np.array([row for segment in segments for row in segment], np.uint32)
    ends = np.cumsum([len(segment) for segment in segments])
    bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64)
    chunk.kept = len(rows)
    chunk.order[: len(rows)] = put_beside(chunk.order, rows)
    chunk.bounds = put_beside(chunk.order, bounds)
    return rows


def put_beside(array: Any, values: Any) -> Any:
    """`values` where `array` lies."""
    return values if isinstance(array, np.ndarray) else get_runtime().xp.asarray(values)


def put_rows(chunk: Any, segments: list[list[int]], g: Any, h: Any) -> None:
    """As `put_order`, with the rows' pairs; `g`, `h` are by row."""
    rows = put_order(chunk, segments)
    chunk.pairs[: len(rows)] = put_beside(chunk.order, pack(g[rows], h[rows], chunk.pairs.dtype))


def rows_in(rows: Any, node: int) -> list[int]:
    """The rows of a node, in order."""
    begin, end = to_host(rows.chunks[0].bounds[int(node)]).tolist()
    found: list[int] = to_host(rows.chunks[0].order[begin:end]).tolist()
    return found


def pairs_in(rows: Any, node: int) -> Any:
    """The pairs of a node's rows, in order."""
    begin, end = to_host(rows.chunks[0].bounds[int(node)]).tolist()
    return to_host(rows.chunks[0].pairs[begin:end])


def walks_all(view: Any) -> bool:
    """Whether a view walks all of its rows, and never some of them."""
    return isinstance(view, (gpu_views.DenseView, gpu_views.SparseView))


def walk_rows(view: Any, tree: WalkArrays, some: Any, margins: Any, output: int, threads: int) -> Any:
    """The margins after the tree's values were added to one output of some rows."""
    if not walks_all(view):
        walk(view, tree, some, margins[:, output], EagerThreads(threads))
        return margins
    assert len(some) == len(margins)
    on_device = view.runtime.xp.asarray(margins)
    device_tree(view.runtime, tree, view._layout.host.n_bins).walk(view, on_device[:, output])
    return to_host(on_device)


def built(rows: Any, splits: Any, nodes: Any, form: str = "pairs") -> Int64:
    """Histograms that `grow` built, in the form that was expected of them, as pairs."""
    found = to_host(rows.grow(splits, nodes, words=form == "words"))
    if found.ndim == 4:  # a GPU's
        found = found.reshape(len(found), found.shape[1] * found.shape[2], 2)
    assert found.ndim == {"words": 2, "pairs": 3}[form]
    return np.stack([found >> 32, found & 0xFFFFFFFF], axis=2) if form == "words" else found


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
