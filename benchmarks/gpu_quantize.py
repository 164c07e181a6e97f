"""Sketching and quantizing rows that lie on a GPU: seconds of a QuantizedDataset of CuPy arrays, and of its steps.

    python -m benchmarks.gpu_quantize                           # 11M x 28 and 40M x 100, under a minute of an H200
    python -m benchmarks.gpu_quantize --cases higgs_11m --repeats 9
    python -m benchmarks.gpu_quantize --results /some/folder    # rows go there instead of benchmarks/results

The clock covers reading, checking, cut points and bins, labels included, until the device is idle; rows are made on it
beforehand. XGBoost's QuantileDMatrix takes part where it is installed. Before timing, 200,000 of the rows must give the
cut points that the CPU gives. The floor reads 4 bytes of a value and writes 1, at an H200's 4.5 TB/s.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.generators import WORKLOADS
from benchmarks.gpu_floors import BYTES_PER_S
from benchmarks.harness import RESULTS, Run, comparison_rows, interleave, record, timed
from daskboost import QuantizedDataset
from daskboost.data.chunks import quantizer
from daskboost.data.cuts import sketch as device_sketch
from daskboost.data.input import read, row_columns

CHECKED_ROWS = 200_000
Steps = Mapping[str, tuple[Any, str]]
STEPS: Steps = {
    "look at values": (read, "device_rows"),
    "look at labels": (row_columns, "device_column"),
    "sketch": (device_sketch, "count_keys"),
    "quantize": (quantizer, "quantize_rows"),
}
"""Functions that are timed on their own, by where they are called."""


@dataclass(frozen=True)
class Config:
    """Rows to quantize."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    max_bin: int = 256
    repeats: int = 5
    order: str = "C"
    """Whether rows or columns are contiguous: "C" or "F"."""

    @property
    def floor_s(self) -> float:
        return 5 * self.n_rows * self.n_features / BYTES_PER_S


CASES = {
    case.name: case
    for case in (
        Config("higgs_11m", "higgs", 11_000_000, 28),
        Config("higgs_11m_columns", "higgs", 11_000_000, 28, order="F"),
        Config("higgs_40m", "higgs", 40_000_000, 100),
    )
}


def contenders(config: Config, x: Any, y: Any, wait: Callable[[], None]) -> dict[str, Callable[[], Run]]:
    """Ours, and XGBoost's if it is there; `wait` until the device is idle."""

    def ours() -> Run:
        seconds, dataset = timed(lambda: _waited(QuantizedDataset.from_dask(x, y, max_bin=config.max_bin), wait))
        bins = dataset.cuts.total_bins
        dataset.close()
        return Run(seconds, {"bins": float(bins)})

    found = {"daskboost": ours}
    if importlib.util.find_spec("xgboost") is not None:
        import xgboost

        def theirs() -> Run:
            seconds, matrix = timed(lambda: _waited(xgboost.QuantileDMatrix(x, y, max_bin=config.max_bin), wait))
            return Run(seconds, {"bins": float(len(matrix.get_quantile_cut()[1]))})

        found["xgboost"] = theirs
    return found


def _waited(made: Any, wait: Callable[[], None]) -> Any:
    wait()
    return made


def check_cuts(config: Config, x: Any, to_host: Callable[[Any], Any]) -> None:
    """Cut points made on the device are those made of the same rows on the host."""
    part = x[:CHECKED_ROWS]
    with QuantizedDataset.from_dask(part, max_bin=config.max_bin) as there:
        with QuantizedDataset.from_dask(to_host(part), max_bin=config.max_bin) as here:
            if there.cuts.values.tobytes() != here.cuts.values.tobytes():
                raise AssertionError("cut points differ between the device and the host")


def has_bins(runs: Mapping[str, Run]) -> None:
    """A check that everybody made bins."""
    if not all(run.answer["bins"] > 0 for run in runs.values()):
        raise AssertionError(f"no bins: {runs}")


@contextmanager
def stopwatches(seconds: dict[str, float], wait: Callable[[], None], steps: Steps = STEPS) -> Iterator[None]:
    """Within it, the calls of each step add up their time, the device idle before and after."""
    with ExitStack() as stack:
        for step, (module, name) in steps.items():
            stack.enter_context(mock.patch.object(module, name, _watched(getattr(module, name), step, seconds, wait)))
        yield


def _watched(function: Callable[..., Any], step: str, seconds: dict[str, float], wait: Callable[[], None]) -> Any:
    def watched(*args: Any, **options: Any) -> Any:
        wait()
        start = time.perf_counter()
        result = _waited(function(*args, **options), wait)
        seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
        return result

    return watched


def step_rows(config: Config, x: Any, y: Any, wait: Callable[[], None]) -> list[dict[str, Any]]:
    """Medians of the steps; all that is on the host (cut points, fetching labels) is the rest of the whole."""
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(config.repeats):
        seconds: dict[str, float] = {}
        with stopwatches(seconds, wait):
            QuantizedDataset.from_dask(x, y, max_bin=config.max_bin).close()
        for step in STEPS:
            found[step].append(seconds[step])
    rows = []
    for step, times in found.items():
        median = statistics.median(times)
        print(f"  {config.name:<20} {step:<16} {1e3 * median:8.2f} ms", flush=True)
        rows.append({"case": config.name, "step": step, "milliseconds": round(1e3 * median, 3)})
    return rows


def run_case(config: Config, results: Path) -> None:
    """Time one case and record it."""
    import cupy

    def wait() -> None:
        cupy.cuda.get_current_stream().synchronize()

    x, y = WORKLOADS[config.workload].wide(config.n_features).rows(config.n_rows, xp=cupy)
    if config.order == "F":
        x = cupy.asfortranarray(x)
    check_cuts(config, x, cupy.asnumpy)
    comparison = interleave(contenders(config, x, y, wait), config.repeats, has_bins)
    rows = [{**row, "floor_s": round(config.floor_s, 5)} for row in comparison_rows(config.name, comparison)]
    for name in comparison.runs:
        median = comparison.seconds(name)
        print(f"{config.name:<20} {name:<10} {median:.4f} s, {config.floor_s / median:.1%} of the floor's speed")
    record("gpu_quantize", config, [*rows, *step_rows(config, x, y, wait)], results)
    del x, y
    cupy.get_default_memory_pool().free_all_blocks()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    for name in given.cases:
        config = CASES[name]
        run_case(config if given.repeats is None else replace(config, repeats=given.repeats), given.results)


if __name__ == "__main__":
    main()
