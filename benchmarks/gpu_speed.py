"""Training time on one GPU: ms per tree of real fits, and of each step of a tree beside the least it could take.

    python -m benchmarks.gpu_speed                              # the cases of CASES, then the steps of a tree
    python -m benchmarks.gpu_speed --cases higgs_11m --trees 100 --repeats 3
    python -m benchmarks.gpu_speed --steps higgs_11m            # the steps alone
    python -m benchmarks.gpu_speed --results /some/folder       # rows go there instead of benchmarks/results

The clock covers training alone: both sides quantize beforehand. Rows are made on the GPU. A peer takes part if it is
installed; before timing, both models must reach the same test AUC within 0.005. Floors are of an H200: 4.5 TB/s of
device memory and 7.7 T native shared-memory atomics per second.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours, peers
from benchmarks.generators import WORKLOADS
from benchmarks.harness import RESULTS, Comparison, Run, comparison_rows, interleave, record, scores_agree, timed

TEST_ROWS = 200_000
BYTES_PER_S = 4.5e12
ATOMICS_PER_S = 7.7e12
STEP_REPEATS = 7


@dataclass(frozen=True)
class Config:
    """One workload and how long to train on it."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    max_depth: int
    max_bin: int = 256
    trees: int = 50
    repeats: int = 3
    learning_rate: float = 0.1
    grow_policy: str = "depthwise"
    max_leaves: int = 0


CASES = {
    case.name: case
    for case in (
        Config("higgs_11m", "higgs", 11_000_000, 28, 8),
        Config("higgs_11m_depth6", "higgs", 11_000_000, 28, 6),
        Config("higgs_11m_64bins", "higgs", 11_000_000, 28, 8, max_bin=64),
        Config("higgs_11m_lossguide", "higgs", 11_000_000, 28, 0, grow_policy="lossguide", max_leaves=255),
        Config("higgs_11m_symmetric", "higgs", 11_000_000, 28, 6, max_bin=128, grow_policy="symmetric"),
        Config("epsilon_400k", "epsilon", 400_000, 2000, 8),
        Config("higgs_100k", "higgs", 100_000, 28, 6),
    )
}


def floor_ms(config: Config) -> float:
    """Least time of a tree: every row's bins and gradients are read once at the root and, of the smaller siblings, half
    of them at each level below, with two atomics per bin."""
    passes = 1 + ((config.max_depth or 8) - 1) / 2
    updates = config.n_rows * config.n_features * passes
    n_bytes = config.n_rows * (config.n_features + 4) * passes
    return 1e3 * max(2 * updates / ATOMICS_PER_S, n_bytes / BYTES_PER_S)


def on_device(config: Config) -> tuple[Any, Any, Any, Any]:
    """Training and test rows, made on the GPU and copied to the host."""
    import cupy

    workload = WORKLOADS[config.workload].wide(config.n_features)
    train = workload.rows(config.n_rows, xp=cupy)
    test = workload.rows(TEST_ROWS, first=config.n_rows, xp=cupy)
    host = [array.get() for array in (*train, *test)]
    del train, test
    cupy.get_default_memory_pool().free_all_blocks()
    return host[0], host[1], host[2], host[3]


def contenders(config: Config) -> dict[str, Callable[[], Run]]:
    """Ours, and XGBoost's if it is here, on the same rows."""
    from sklearn.metrics import roc_auc_score

    x, y, x_test, y_test = on_device(config)
    params = {
        "objective": "binary:logistic", "max_depth": config.max_depth, "max_bin": config.max_bin, "device": "cuda",
        "learning_rate": config.learning_rate, "max_leaves": config.max_leaves, "grow_policy": config.grow_policy,
    }  # fmt: skip
    seconds, dataset = timed(lambda: ours.quantize(x, y, max_bin=config.max_bin))
    print(f"{config.name}: quantized in {seconds:.1f} s", flush=True)

    def run(train: Callable[[], Any], predict: Callable[[Any, Any], Any]) -> Run:
        seconds, booster = timed(train)
        return Run(seconds, {"auc": float(roc_auc_score(y_test, predict(booster, x_test)))})

    found = {"daskboost": lambda: run(lambda: ours.train(params, dataset, config.trees), ours.predict)}
    if importlib.util.find_spec("xgboost") is not None and config.grow_policy != "symmetric":
        matrix = peers.xgboost_matrix(x, y, max_bin=config.max_bin)
        found["xgboost"] = lambda: run(
            lambda: peers.xgboost_train(params, matrix, config.trees), peers.xgboost_predict
        )
    return found


def bench_once(config: Config) -> Comparison:
    """All repeats of one case."""
    return interleave(contenders(config), config.repeats, scores_agree("auc", 0.005))


def step_times(config: Config) -> list[dict[str, Any]]:
    """Median ms of the steps of a tree over random bins that is split in the middle everywhere."""
    from daskboost.devices.cpu.chunk_order import RowSplits
    from daskboost.devices.cpu.rows import Rounding
    from daskboost.devices.cpu.views import SlotLayout
    from daskboost.devices.gpu.cuda import get_runtime
    from daskboost.devices.gpu.rows import GpuRows
    from daskboost.devices.gpu.views import DenseView, DeviceLayout

    runtime, (n, f) = get_runtime(), (config.n_rows, config.n_features)
    xp = runtime.xp
    layout = SlotLayout(np.arange(f + 1, dtype=np.int64) * config.max_bin, np.full(f, config.max_bin, np.int32))
    symbols = xp.random.default_rng(0).integers(0, config.max_bin, (n, f), dtype=np.uint8)
    view = DenseView(DeviceLayout(runtime, layout), [symbols], n, copy_columns=True)
    rows = GpuRows(runtime, lambda: [(0, view)], [n], [[(0, 0)]], layout)
    g, h = (xp.random.default_rng(seed).random(n, dtype=np.float32) for seed in (1, 2))

    def clocked(work: Callable[[], Any]) -> float:
        xp.cuda.Device().synchronize()
        seconds, _ = timed(lambda: (work(), xp.cuda.Device().synchronize()))
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
                np.full(len(nodes), config.max_bin // 2 - 1, np.int32), np.zeros(len(nodes), np.uint8),
            )  # fmt: skip
            found[f"split into {2 * len(nodes)}"] = clocked(partial(rows.grow, splits, nothing))
            found[f"histograms of {len(left)}"] = clocked(partial(rows.grow, None, left))
            nodes = np.stack([left, left + 1], axis=1).reshape(-1)
        return found

    tree()
    runs = [tree() for _ in range(STEP_REPEATS)]
    found = []
    for step in runs[0]:
        share = 0.0 if "split" in step or step == "gradients" else (1.0 if "root" in step else 0.5)
        ms = statistics.median(run[step] for run in runs)
        updates = n * f * share
        rate = {"updates_per_s": updates / ms * 1e3, "floor_ms": 2e3 * updates / ATOMICS_PER_S} if share else {}
        found.append({"case": f"{config.name}: {step}", "contender": "daskboost", "ms": round(ms, 4), **rate})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names; empty for none")
    parser.add_argument("--steps", default="higgs_11m,epsilon_400k", help="cases whose steps are timed; empty for none")
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for name in filter(None, options.steps.split(",")):
        steps = step_times(CASES[name])
        record("gpu_speed", CASES[name], [{**row, "gpu": gpu} for row in steps], options.results)
        for row in steps:
            rate = f"{row['updates_per_s'] / 1e12:6.2f} T updates/s" if "updates_per_s" in row else ""
            print(f"{row['case']:<40} {row['ms']:8.3f} ms {rate}", flush=True)
    for name in filter(None, options.cases.split(",")):
        config = replace(CASES[name], trees=options.trees, repeats=options.repeats)
        print(f"{name}: {asdict(config)} on {gpu}", flush=True)
        result = bench_once(config)
        floor = floor_ms(config)
        rows = [
            {**row, "ms_per_tree": round(1e3 * row["seconds"] / config.trees, 3), "floor_ms": round(floor, 3)}
            for row in comparison_rows(name, result)
        ]
        record("gpu_speed", config, [{**row, "gpu": gpu} for row in rows], options.results)
        for contender in result.runs:
            ms = 1e3 * result.seconds(contender) / config.trees
            print(f"{name}: {contender} {ms:.2f} ms per tree, floor {floor:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
