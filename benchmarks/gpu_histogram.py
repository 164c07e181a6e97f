"""The histogram kernel alone, on one GPU: T updates per second at the root and below, beside what the GPU could do.

    python -m benchmarks.gpu_histogram                          # all of CASES, under a minute
    python -m benchmarks.gpu_histogram --cases 11m_28 --bins 256
    python -m benchmarks.gpu_histogram --results /some/folder   # rows go there instead of benchmarks/results

An update adds one row's g and h to one feature's bin. The root reads all rows in sequence, and once more from the copy
that narrow rows may have for that, whose sums are the same; the levels below gather half of the rows, dealt at random
to 2, 8 or 64 nodes. Sums of some features and nodes are compared with CuPy's `bincount` before
the clock counts. Times are medians of CUDA events around recorded launches: of all that makes histograms of memory
that held anything; and of the histogram kernel, which adds to what is there. Rows since a4275466 have the launch that
maps tiles in the second, those before have no map in either. Floors are of an H200 (`gpu_floors.py`): what is read,
histograms written once, and native atomics in shared memory, two each update.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_floors import memory_ms, updates_ms
from benchmarks.harness import RESULTS, record
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.feature_groups import cut_tiles
from daskboost.devices.gpu.rows.row_state import BUILD_ROWS
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.devices.gpu.runtime.launches import DeviceArray

REPEATS = 20
LAUNCHES = 10
"""Recorded one behind the other, as a tree's are: starting a graph takes as long as a small kernel."""
WARM_UPS = 3
BUSY_BYTES = 1 << 31
"""Written before the clock runs, so that launches queue up and none waits for the host."""
LEVELS = (0, 2, 8, 64)
"""Nodes of a level; 0 is the root."""
HOT_SHARE = 179 / 256
"""Of skewed symbols, in bin 0."""
CHECKED_ROWS = 2_000_000
"""At most so many of a node are compared with `bincount` at a time."""


@dataclass(frozen=True)
class Config:
    """Rows of one shape."""

    name: str
    n_rows: int
    n_features: int


CASES = {
    case.name: case
    for case in (
        Config("11m_28", 11_000_000, 28),
        Config("4m_200", 4_000_000, 200),
        Config("400k_2000", 400_000, 2000),
        Config("100k_28", 100_000, 28),
    )
}


@dataclass(frozen=True)
class Level:
    """The rows of some nodes."""

    bounds: DeviceArray
    order: DeviceArray | None
    """None at the root."""
    n_rows: int


def make_symbols(runtime: CudaRuntime, config: Config, n_bins: int, skewed: bool) -> DeviceArray:
    """uint8, shape (rows, features), uniform or mostly 0."""
    random, shape = runtime.xp.random.RandomState(7), (config.n_rows, config.n_features)
    symbols = random.randint(0, n_bins, shape, dtype=np.uint8)
    if skewed:
        symbols *= random.randint(0, 256, shape, dtype=np.uint8) >= int(256 * HOT_SHARE)
    found: DeviceArray = symbols
    return found


def make_pairs(runtime: CudaRuntime, n_rows: int) -> DeviceArray:
    """Return random pairs of 15 bits; int32, shape (rows,)."""
    random = runtime.xp.random.RandomState(5)
    found: DeviceArray = random.randint(-(2**30), 2**30, n_rows, dtype=np.int32) & -0x8001  # 15-bit h
    return found


def make_level(runtime: CudaRuntime, n_rows: int, n_nodes: int) -> Level:
    """The root, or half of the rows, stably in the order of their nodes."""
    xp = runtime.xp
    if n_nodes == 0:
        return Level(xp.asarray(np.array([[0, n_rows]], np.int64)), None, n_rows)
    node = xp.random.RandomState(11).randint(0, 2 * n_nodes, n_rows, dtype=np.int32)
    ends = xp.cumsum(xp.bincount(node, minlength=2 * n_nodes))[:n_nodes].astype(np.int64)
    bounds = xp.zeros((n_nodes, 2), np.int64)
    bounds[1:, 0], bounds[:, 1] = ends[:-1], ends
    order = xp.argsort(node, kind="stable").astype(np.uint32)
    return Level(bounds, order, int(ends[-1]))


def check(runtime: CudaRuntime, symbols: DeviceArray, level: Level, pairs: DeviceArray, out: DeviceArray, n_bins: int
          ) -> None:  # fmt: skip
    """The first and the last feature's sums in the first and the last node.

    Raises
    ------
    AssertionError
        One is not what `bincount` finds.
    """
    xp = runtime.xp
    for node in (0, len(level.bounds) - 1):
        begin, end = (int(bound) for bound in level.bounds[node])
        for feature in (0, symbols.shape[1] - 1):
            expected = xp.zeros((n_bins, 2))
            for start in range(begin, end, CHECKED_ROWS):
                places = slice(start, min(end, start + CHECKED_ROWS))
                own = symbols[places if level.order is None else level.order[places], feature].astype(np.int64)
                for statistic, values in enumerate((pairs[places] >> 16, pairs[places] & 0xFFFF)):
                    expected[:, statistic] += xp.bincount(own, values.astype(np.float64), n_bins)
            found = out[node, feature * n_bins : (feature + 1) * n_bins]
            assert bool((found == expected.astype(np.int64)).all()), f"wrong sums: node {node}, feature {feature}"


def median_ms(runtime: CudaRuntime, work: Callable[[], None]) -> float:
    """Of `work`, ms on the GPU."""
    cuda, busy = runtime.xp.cuda, runtime.xp.empty(BUSY_BYTES, np.uint8)

    def several() -> None:
        for _ in range(LAUNCHES):
            work()

    replay = runtime.record(several)
    for _ in range(WARM_UPS):
        replay()
    busy.fill(0)
    events = [(cuda.Event(), cuda.Event()) for _ in range(REPEATS)]
    for begin, end in events:
        begin.record()
        replay()
        end.record()
    events[-1][1].synchronize()
    return statistics.median(float(cuda.get_elapsed_time(begin, end)) / LAUNCHES for begin, end in events)


def bench_once(runtime: CudaRuntime, config: Config, n_bins: int, skewed: bool) -> Iterator[dict[str, Any]]:
    """A row per level."""
    xp = runtime.xp
    symbols = make_symbols(runtime, config, n_bins, skewed)
    offsets = np.arange(config.n_features + 1, dtype=np.int64) * n_bins
    layout = SlotLayout(offsets, np.full(config.n_features, n_bins, np.int32))
    views = [
        DenseView(DeviceLayout(runtime, layout), [symbols], config.n_rows, copy_columns=False, turn_rows=turn_rows)
        for turn_rows in (False, True)
    ]
    has_copy = views[1].nbytes > views[0].nbytes
    pairs = make_pairs(runtime, config.n_rows)
    passes = [(0, view) for view in views[: 1 + has_copy]] + [(n_nodes, views[0]) for n_nodes in LEVELS[1:]]
    of_rows: DeviceArray | None = None
    for n_nodes, view in passes:
        level = make_level(runtime, config.n_rows, n_nodes)
        nodes = xp.arange(len(level.bounds), dtype=np.int32)
        out = xp.full((len(nodes), layout.n_slots, 2), -1, np.int64)
        tiles = cut_tiles(level.bounds, nodes, BUILD_ROWS, level.n_rows)

        name = f"{n_nodes} nodes" if n_nodes else "root, copy" if view is views[1] else "root"
        work = partial(view.build, tiles, level.order, pairs, out)
        work()
        check(runtime, symbols, level, pairs, out, n_bins)
        if view is views[1]:
            assert of_rows is not None and bool((out == of_rows).all()), "other sums than of the rows themselves"
        of_rows = out.copy() if n_nodes == 0 else None
        updates = level.n_rows * config.n_features
        n_bytes = level.n_rows * (config.n_features + (4 if level.order is None else 8)) + out.nbytes
        floor_ms = max(updates_ms(updates), memory_ms(n_bytes))
        ms, kernel_ms = median_ms(runtime, work), median_ms(runtime, partial(work, adds=True))
        yield {
            "case": config.name, "bins": n_bins, "symbols": "70 % in one bin" if skewed else "uniform",
            "level": name, "ms": round(ms, 4),
            "kernel_ms": round(kernel_ms, 4), "t_updates_per_s": round(updates / ms / 1e9, 3),
            "kernel_t_updates_per_s": round(updates / kernel_ms / 1e9, 3), "floor_ms": round(floor_ms, 4),
            "fraction_of_floor": round(floor_ms / ms, 3),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--bins", default="64,256", help="at most 256")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    from daskboost.devices.gpu.runtime.cuda import get_runtime

    runtime = get_runtime()
    gpu = runtime.xp.cuda.runtime.getDeviceProperties(runtime.device)["name"].decode()
    for config in (CASES[name] for name in options.cases.split(",")):
        for n_bins in map(int, options.bins.split(",")):
            for skewed in (False, True):
                rows = []
                for row in bench_once(runtime, config, n_bins, skewed):
                    rows.append({**row, "gpu": gpu})
                    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                record("gpu_histogram", config, rows, options.results)


if __name__ == "__main__":
    main()
