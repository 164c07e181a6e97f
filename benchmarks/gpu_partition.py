"""Moving rows to their children on one GPU: ms per level beside the least it could take, and adding leaf values.

    python -m benchmarks.gpu_partition                          # 11M x 28 and 100k x 28
    python -m benchmarks.gpu_partition --results /some/folder   # rows go there instead of benchmarks/results

Rows have random bins, and every node is split in the middle of some feature. Work is recorded as a CUDA graph, as in a
fit, so that launches cost what they cost there; CUDA events take the time. Before the clock counts, 100,000 rows are
moved and compared with what NumPy says. Floors are bytes over an H200's 4.5 TB/s: each row's place and pair read and
written once, and the 32-byte sectors that its symbols and margins lie in.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_floors import memory_ms
from benchmarks.harness import RESULTS, record

SECTOR_BYTES = 32
REPEATS = 9
TIMES = 5
"""That a graph does the same: splitting leaves the parents' rows where they are."""
CHECKED_ROWS = 100_000


@dataclass(frozen=True)
class Config:
    """One size."""

    n_rows: int
    n_features: int = 28
    max_bin: int = 256
    depth: int = 8


CONFIGS = (Config(11_000_000), Config(100_000))


def sector_bytes(item_bytes: int, share: float) -> float:
    """Bytes that memory hands out per item if of each `1 / share` neighbours one is wanted, at random places."""
    items = SECTOR_BYTES // item_bytes
    return SECTOR_BYTES * (1 - (1 - share) ** items) / (items * share)


def split_floor_ms(config: Config, level: int, has_columns: bool) -> float:
    """Of splitting a level: 1 is the root's."""
    symbol = sector_bytes(1, 0.5 ** (level - 1)) if has_columns else SECTOR_BYTES
    return memory_ms(config.n_rows * (16 + symbol))


def values_floor_ms(config: Config) -> float:
    """Of adding the values of the leaves of a full tree by the order of rows."""
    return memory_ms(config.n_rows * (4 + 2 * sector_bytes(4, 0.5**config.depth)))


def walk_floor_ms(config: Config) -> float:
    """Of adding them by walking."""
    return memory_ms(config.n_rows * (SECTOR_BYTES + 8))


class Tree:
    """Row state, and a full tree whose splits are at random features; levels are split one after the other."""

    def __init__(self, config: Config, has_columns: bool) -> None:
        from daskboost.devices.cpu.views import SlotLayout
        from daskboost.devices.gpu.rows.row_state import GpuRows
        from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
        from daskboost.devices.gpu.runtime.cuda import get_runtime

        self.config, self.runtime = config, get_runtime()
        xp, n, f = self.runtime.xp, config.n_rows, config.n_features
        slots = np.arange(f + 1, dtype=np.int64) * config.max_bin
        layout = SlotLayout(slots, np.full(f, config.max_bin - 1, np.int32))  # the last symbol is missing
        self.symbols = xp.random.default_rng(0).integers(0, config.max_bin, (n, f), dtype=np.uint8)
        self.view = DenseView(DeviceLayout(self.runtime, layout), [self.symbols], n, copy_columns=has_columns)
        self.rows = GpuRows(self.runtime, lambda: [(0, self.view)], [n], [[(0, 0)]], layout)
        self.chunk = self.rows.chunks[0]
        self.chunk.order[:n] = xp.arange(n, dtype=np.uint32)
        self.chunk.pairs[:n] = xp.arange(n, dtype=np.int32)
        self.rows.reserve(self.n_nodes, 1 << (config.depth - 1))
        self.chunk.start(n)
        self.chunk.bounds[0] = xp.asarray(np.array([0, n], np.int64))
        rng = np.random.default_rng(1)
        inner = np.arange(self.n_nodes) < self.n_nodes // 2
        nodes = np.arange(self.n_nodes, dtype=np.int32)
        left = np.where(inner, 2 * nodes + 1, -1).astype(np.int32)
        feature = rng.integers(0, f, self.n_nodes).astype(np.int32)
        split_bin = np.full(self.n_nodes, config.max_bin // 2 - 1, np.int32)
        default_left = rng.integers(0, 2, self.n_nodes).astype(np.int32)
        self.splits = np.stack([nodes, left, left + 1, feature, split_bin, default_left])
        self.value = rng.normal(size=self.n_nodes).astype(np.float32)

    @property
    def n_nodes(self) -> int:
        return int(2 ** (self.config.depth + 1)) - 1

    def level(self, level: int) -> Any:
        """The splits of a level, 1 being the root's, on the GPU."""
        first = (1 << (level - 1)) - 1
        return self.runtime.xp.asarray(np.ascontiguousarray(self.splits[:, first : 2 * first + 1]))

    @property
    def columns(self) -> tuple[Any, ...]:
        """The tree as walks take it."""
        _, left, right, feature, split_bin, default_left = self.splits
        right = np.where(left < 0, -1, right).astype(np.int32)
        arrays = (left, right, feature, split_bin, default_left.astype(np.uint8), self.value)
        return tuple(self.runtime.xp.asarray(np.ascontiguousarray(array)) for array in arrays)

    @property
    def leaves(self) -> Any:
        return self.runtime.xp.arange(self.n_nodes // 2, self.n_nodes, dtype=np.int32)


def check(has_columns: bool) -> None:
    """Every node's rows, in order, and all margins, against NumPy."""
    from daskboost.devices.gpu.rows.views import WalkColumns
    from daskboost.devices.gpu.runtime.launches import to_host
    from daskboost.devices.gpu.trees.known_tree import ScalarTree, add_leaf_values

    tree = Tree(Config(CHECKED_ROWS), has_columns)
    xp, symbols = tree.runtime.xp, to_host(tree.symbols)
    for level in range(1, tree.config.depth + 1):
        tree.rows.split_rows(tree.view, tree.chunk, tree.level(level))
    bounds, order, pairs = (to_host(array) for array in (tree.chunk.bounds, tree.chunk.order, tree.chunk.pairs))
    expected = [np.arange(CHECKED_ROWS)]
    margin = np.zeros(CHECKED_ROWS, np.float32)
    for node, left, _, feature, split_bin, default_left in tree.splits.T.tolist():
        rows = expected[node]
        if left < 0:
            found = slice(*bounds[node])
            if not np.array_equal(order[found], rows) or not np.array_equal(pairs[found], rows):
                raise AssertionError(f"the rows of node {node} are not those that splitting one by one gives")
            margin[rows] += tree.value[node]
            continue
        own = symbols[rows, feature]
        goes_left = np.where(own == tree.config.max_bin - 1, default_left != 0, own <= split_bin)
        expected += [rows[goes_left], rows[~goes_left]]
    in_order, walked = xp.zeros(CHECKED_ROWS, np.float32), xp.zeros(CHECKED_ROWS, np.float32)
    add_leaf_values(tree.runtime, tree.chunk, tree.leaves, xp.asarray(tree.value), in_order)
    ScalarTree(tree.runtime, WalkColumns.of(tree.columns)).walk(tree.view, walked)
    if not np.array_equal(to_host(in_order), margin) or not np.array_equal(to_host(walked), margin):
        raise AssertionError("margins are not those that the leaves of the rows give")


def repeat(work: Callable[[], None]) -> None:
    for _ in range(TIMES):
        work()


def graph_ms(runtime: Any, work: Callable[[], None]) -> float:
    """Median ms of `work`, of which a graph holds several."""
    cuda = runtime.xp.cuda
    work()  # compiles
    replay = runtime.record(partial(repeat, work))
    found: list[float] = []
    for _ in range(REPEATS):
        start, end = cuda.Event(), cuda.Event()
        start.record()
        replay()
        end.record()
        end.synchronize()
        found.append(float(cuda.get_elapsed_time(start, end)) / TIMES)
    return statistics.median(found[1:])


def bench_once(config: Config, has_columns: bool) -> list[dict[str, Any]]:
    """ms of every level, and of adding leaf values in both ways."""
    from daskboost.devices.gpu.rows.views import WalkColumns
    from daskboost.devices.gpu.trees.known_tree import ScalarTree, add_leaf_values

    tree = Tree(config, has_columns)
    xp, rows = tree.runtime.xp, []

    def clock(case: str, floor_ms: float, work: Callable[[], None]) -> None:
        ms = graph_ms(tree.runtime, work)
        rows.append({"case": case, "columns": has_columns, "ms": round(ms, 5), "floor_ms": round(floor_ms, 5)})

    for level in range(1, config.depth + 1):
        clock(
            f"level {level}", split_floor_ms(config, level, has_columns),
            partial(tree.rows.split_rows, tree.view, tree.chunk, tree.level(level)),
        )  # fmt: skip
    margin = xp.zeros(config.n_rows, np.float32)
    clock(
        "leaf values in order", values_floor_ms(config),
        partial(add_leaf_values, tree.runtime, tree.chunk, tree.leaves, xp.asarray(tree.value), margin),
    )  # fmt: skip
    walk = partial(ScalarTree(tree.runtime, WalkColumns.of(tree.columns)).walk, tree.view, margin)
    clock("walk", walk_floor_ms(config), walk)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for has_columns in (True, False):
        check(has_columns)
        for config in CONFIGS:
            rows = bench_once(config, has_columns)
            record("gpu_partition", config, [{**row, "gpu": gpu} for row in rows], options.results)
            for row in rows:
                print(
                    f"{config.n_rows:>9} x {config.n_features} {'columns' if has_columns else 'rows':<8} "
                    f"{row['case']:<22} {row['ms']:8.4f} ms, floor {row['floor_ms']:.4f}", flush=True,
                )  # fmt: skip
            cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
