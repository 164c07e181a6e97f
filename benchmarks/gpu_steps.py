"""Each step of a tree that the host grows on one GPU, beside the least it could take.

    python -m benchmarks.gpu_steps                                     # 11M x 28 and 4M x 200
    python -m benchmarks.gpu_steps --sizes 400000x2000 --results /some/folder

Bins are random, and trees are split in the middle everywhere. A step is what a host that grows the tree itself asks of
the GPU by a message and waits for: its time has the upload of splits and of nodes' numbers, memory for histograms, one
launch after the other outside of any graph, and a synchronization on the host. So updates per second are a step's, and
fewer than the kernel's, which `gpu_histogram` times; `gpu_speed` has trees that grow without the host.
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

from benchmarks.gpu_floors import memory_ms, updates_ms
from benchmarks.gpu_speed import gpu_name
from benchmarks.harness import RESULTS, record, timed

REPEATS = 7
PAIR_BYTES = 4
"""Of a row's gradients, 16 bits each."""


@dataclass(frozen=True)
class Config:
    """Rows of random bins and the depth to which they are split."""

    name: str
    n_rows: int
    n_features: int
    max_depth: int = 8
    n_bins: int = 256


def step_times(config: Config, runtime: Any) -> list[dict[str, Any]]:
    """Median ms of the steps of a tree over random bins that is split in the middle everywhere."""
    from daskboost.devices.cpu.rows import Rounding
    from daskboost.devices.cpu.views import SlotLayout
    from daskboost.devices.gpu.rows.row_state import GpuRows
    from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
    from daskboost.devices.row_order import RowSplits

    xp, n, f = runtime.xp, config.n_rows, config.n_features
    synchronize = (lambda: None) if xp is np else xp.cuda.Device().synchronize
    layout = SlotLayout(np.arange(f + 1, dtype=np.int64) * config.n_bins, np.full(f, config.n_bins, np.int32))
    symbols = xp.random.default_rng(0).integers(0, config.n_bins, (n, f), dtype=np.uint8)
    view = DenseView(DeviceLayout(runtime, layout), [symbols], n, copy_columns=True)
    rows = GpuRows(runtime, lambda: [(0, view)], [n], [[(0, 0)]], layout)
    g, h = (xp.random.default_rng(seed).random(n, dtype=np.float32) for seed in (1, 2))

    def clocked(work: Callable[[], Any]) -> float:
        synchronize()
        seconds, _ = timed(lambda: (work(), synchronize()))
        return 1e3 * seconds

    def tree() -> dict[str, float]:
        rounding = Rounding(2.0**14, 2.0**14, 1, 2, 2**32)
        found = {"gradients": clocked(lambda: rows.start_tree(lambda _: (g, h), rounding))}
        found["root histogram"] = clocked(lambda: rows.grow(None, np.zeros(1, np.int32)))
        nodes, nothing = np.zeros(1, np.int32), np.empty(0, np.int32)
        for depth in range(1, config.max_depth):
            left = (2 * nodes + 1).astype(np.int32)
            splits = RowSplits(
                nodes, left, left + 1, np.full(len(nodes), depth % f, np.int32),
                np.full(len(nodes), config.n_bins // 2 - 1, np.int32), np.zeros(len(nodes), np.uint8),
            )  # fmt: skip
            found[f"split into {2 * len(nodes)}"] = clocked(partial(rows.grow, splits, nothing))
            found[f"histograms of {len(left)}"] = clocked(partial(rows.grow, None, left))
            nodes = np.stack([left, left + 1], axis=1).reshape(-1)
        return found

    tree()
    runs = [tree() for _ in range(REPEATS)]
    found = []
    for step in runs[0]:
        share = 0.0 if "split" in step or step == "gradients" else (1.0 if "root" in step else 0.5)
        ms = statistics.median(run[step] for run in runs)
        updates = n * f * share
        found.append({"case": f"{config.name}: {step}", "contender": "daskboost", "ms": round(ms, 4)})
        if share:
            floor = max(updates_ms(updates), memory_ms(n * share * (f + PAIR_BYTES)))
            found[-1] |= {"updates_per_s": round(updates / ms * 1e3), "floor_ms": round(floor, 4),
                          "fraction_of_floor": round(floor / ms, 4)}  # fmt: skip
    return found


def parse_size(text: str) -> Config:
    """Of "ROWSxFEATURES"."""
    n_rows, n_features = (int(number) for number in text.split("x"))
    return Config(text, n_rows, n_features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="11000000x28,4000000x200", help="comma-separated")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    gpu = gpu_name("cuda")
    for config in map(parse_size, options.sizes.split(",")):
        steps = step_times(config, get_runtime())
        record("gpu_steps", config, [{**row, "gpu": gpu} for row in steps], options.results)
        for row in steps:
            rate = f"{row['updates_per_s'] / 1e12:6.2f} T updates/s" if "updates_per_s" in row else ""
            print(f"{row['case']:<40} {row['ms']:8.3f} ms {rate}", flush=True)


if __name__ == "__main__":
    main()
