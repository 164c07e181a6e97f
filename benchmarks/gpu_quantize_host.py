"""Quantizing rows of the host on a GPU: seconds of a QuantizedDataset of arrays or frames, and of its steps.

    python -m benchmarks.gpu_quantize_host                                # 11M x 28, two minutes of an H200
    python -m benchmarks.gpu_quantize_host --cases numpy --repeats 9
    python -m benchmarks.gpu_quantize_host --results /some/folder         # rows go there instead of benchmarks/results

The clock covers reading, cut points and bins, labels included, until the device is idle. "daskboost cpu" quantizes the
same rows on the CPU, whose cut points and chunks must be the same before a time counts. XGBoost takes part where it is
installed: its QuantileDMatrix has no device of its own, so "xgboost" is given the arrays as they are, and "xgboost
copied" a CuPy copy made within the clock, which needs room for all rows. The floor is one read of all values over the
bus, at 55.5 GB/s; of frames, and in rows up to 965d7b2 of arrays too, two.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generators import WORKLOADS
from benchmarks.gpu_quantize import Steps, stopwatches
from benchmarks.harness import RESULTS, Run, comparison_rows, interleave, record, timed
from daskboost import QuantizedDataset
from daskboost.data.chunks import quantizer
from daskboost.data.cuts import sketch as device_sketch
from daskboost.data.cuts.key_counts import KeyTable
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.gpu.runtime.transfers import Uploader

BUS_BYTES_PER_S = 55.5e9
READS = {"numpy": 1, "columns": 1, "pandas": 2}
"""How often rows come to the device: arrays stay there from one read to the next."""
STEPS: Steps = {
    "upload": (Uploader, "array"),
    "look at values": (upload, "inspected"),
    "sketch": (device_sketch, "count_keys"),
    "merge": (KeyTable, "merged"),
    "quantize": (quantizer, "quantize_rows"),
}


@dataclass(frozen=True)
class Config:
    """Rows to quantize."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    dtype: str = "float32"
    kind: str = "numpy"
    """"numpy", "columns" (a NumPy array of contiguous columns) or "pandas"."""
    max_bin: int = 256
    repeats: int = 5

    @property
    def floor_s(self) -> float:
        return READS[self.kind] * np.dtype(self.dtype).itemsize * self.n_rows * self.n_features / BUS_BYTES_PER_S

    def rows(self) -> tuple[Any, Any]:
        """Features as this case has them, and labels."""
        x, y = WORKLOADS[self.workload].wide(self.n_features).rows(self.n_rows)
        x = np.asarray(x, self.dtype, order="C" if self.kind == "numpy" else "F")
        if self.kind != "pandas":
            return x, y
        import pandas as pd

        return pd.DataFrame(x), y


CASES = {
    case.name: case
    for case in (
        Config("numpy", "higgs", 11_000_000, 28),
        Config("numpy_float64", "higgs", 11_000_000, 28, "float64"),
        Config("numpy_columns", "higgs", 11_000_000, 28, kind="columns"),
        Config("pandas", "higgs", 11_000_000, 28, kind="pandas"),
    )
}


def contenders(config: Config, x: Any, y: Any, wait: Callable[[], None]) -> dict[str, Callable[[], Run]]:
    """Ours on the GPU and on the CPU, and XGBoost's if it is there; `wait` until the device is idle."""

    def ours(device: str) -> Run:
        def quantize() -> QuantizedDataset:
            made = QuantizedDataset.from_dask(x, y, max_bin=config.max_bin, device=device)
            wait()
            return made

        seconds, dataset = timed(quantize)
        with dataset:
            return Run(seconds, {"bins": float(dataset.cuts.total_bins)})

    found: dict[str, Callable[[], Run]] = {"daskboost": lambda: ours("cuda"), "daskboost cpu": lambda: ours("cpu")}
    if importlib.util.find_spec("xgboost") is not None:
        import xgboost

        def theirs(copy: Callable[[Any], Any]) -> Run:
            seconds, matrix = timed(lambda: xgboost.QuantileDMatrix(copy(x), y, max_bin=config.max_bin))
            wait()
            return Run(seconds, {"bins": float(len(matrix.get_quantile_cut()[1]))})

        def copied(values: Any) -> Any:
            import cupy

            return cupy.asarray(np.asarray(values))

        found |= {"xgboost": lambda: theirs(lambda values: values), "xgboost copied": lambda: theirs(copied)}
    return found


def check_same(config: Config, x: Any, y: Any) -> None:
    """Cut points and chunks made on the device are those made on the CPU."""
    with (
        QuantizedDataset.from_dask(x, y, max_bin=config.max_bin, device="cuda") as there,
        QuantizedDataset.from_dask(x, y, max_bin=config.max_bin, device="cpu") as here,
    ):
        pairs = [(there.cuts.values, here.cuts.values)]
        for (_, own), (_, other) in zip(
            there.shards.shards[0].chunks(), here.shards.shards[0].chunks(), strict=True
        ):  # fmt: skip
            pairs.append((own.on_host().words, other.words))
        if not all(np.array_equal(own, other) for own, other in pairs):
            raise AssertionError("cut points or bins differ between the device and the CPU")


def agree(runs: Mapping[str, Run]) -> None:
    """A check that ours made the same bins, and others some."""
    if runs["daskboost"].answer != runs["daskboost cpu"].answer or not all(run.answer["bins"] for run in runs.values()):
        raise AssertionError(f"bins differ: {runs}")


def step_rows(config: Config, x: Any, y: Any, wait: Callable[[], None]) -> list[dict[str, Any]]:
    """Medians of the steps, the device idle before and after each."""
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(config.repeats):
        seconds = dict.fromkeys(STEPS, 0.0)
        with stopwatches(seconds, wait, STEPS):
            QuantizedDataset.from_dask(x, y, max_bin=config.max_bin, device="cuda").close()
        for step, times in found.items():
            times.append(seconds[step])
    medians = {step: 1e3 * statistics.median(times) for step, times in found.items()}
    for step, median in medians.items():
        print(f"  {config.name:<20} {step:<16} {median:8.2f} ms", flush=True)
    return [
        {"case": config.name, "step": step, "milliseconds": round(median, 3)} for step, median in medians.items()
    ]  # fmt: skip


def run_case(config: Config, results: Path, wait: Callable[[], None]) -> None:
    """Time one case and record it."""
    x, y = config.rows()
    check_same(config, x, y)
    comparison = interleave(contenders(config, x, y, wait), config.repeats, agree)
    rows = [{**row, "floor_s": round(config.floor_s, 5)} for row in comparison_rows(config.name, comparison)]
    for name in comparison.runs:
        median = comparison.seconds(name)
        print(f"{config.name:<20} {name:<16} {median:.4f} s, {config.floor_s / median:.1%} of the floor's speed")
    record("gpu_quantize_host", config, [*rows, *step_rows(config, x, y, wait)], results)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    import cupy

    for name in given.cases:
        config = CASES[name]
        run_case(
            config if given.repeats is None else replace(config, repeats=given.repeats), given.results,
            cupy.cuda.Device().synchronize,
        )  # fmt: skip
        cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
