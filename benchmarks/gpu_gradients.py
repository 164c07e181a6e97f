"""Gradients on one GPU: ms of a round's range and of its quantizing, beside the least that memory allows.

    python -m benchmarks.gpu_gradients                      # every case, under ten seconds of the GPU
    python -m benchmarks.gpu_gradients --cases logistic     # some
    python -m benchmarks.gpu_gradients --results /some/folder

Times are medians between CUDA events. The first rows are checked against the array expressions and the host's scales
before the clock counts. Floors are of an H200: bytes that must be read and written once, over 4.5 TB/s.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.gpu_floors import memory_ms
from benchmarks.harness import RESULTS, record

if TYPE_CHECKING:
    from daskboost.devices.gpu.runtime.launches import Runtime

CHECKED_ROWS = 10_000


@dataclass(frozen=True)
class Config:
    """One loss and how many rows."""

    name: str
    objective: str
    n_rows: int = 11_000_000
    n_outputs: int = 1
    subsample: float = 1.0
    repeats: int = 15
    parameters: dict[str, Any] = field(default_factory=dict)


CASES = {
    case.name: case
    for case in (
        Config("logistic", "binary:logistic"),
        Config("squared", "reg:squarederror"),
        Config("tweedie", "reg:tweedie"),
        Config("logistic_sampled", "binary:logistic", subsample=0.5),
        Config("softmax", "multi:softprob", 1_000_000, 80, parameters={"num_class": 80}),
    )
}


def step_bytes(config: Config) -> dict[str, float]:
    """Bytes that each step must move, by name.

    The range reads label and margin, or for several outputs writes g and h as well; quantizing reads two numbers and
    writes a pair, and where rows are sampled or the order is asked for, their order.
    """
    n, k, kept = config.n_rows, config.n_outputs, config.n_rows * config.subsample
    found = {"range": 8.0 * n if k == 1 else (4 + 12 * k) * float(n), "quantize and order": 8 * n + 8 * kept}
    if config.subsample == 1:
        found["quantize"] = 12.0 * n
    return found


class Round:
    """Rows on the device and the launches of one round."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        from daskboost.devices.gpu.rows.gradients import Quantizer, RoundGradients, loss_source
        from daskboost.devices.gpu.rows.rounding import DeviceRounding
        from daskboost.devices.gpu.runtime.launches import overwrite
        from daskboost.devices.sampling import draws_below
        from daskboost.fit.scales import scale_rule, tree_keys
        from daskboost.objectives.objective import kernel_of
        from daskboost.objectives.objective_names import make_objective
        from daskboost.params import TrainParams

        n, k = config.n_rows, config.n_outputs
        self.xp, self.config = cast(Any, runtime.xp), config
        self.params = TrainParams(subsample=config.subsample)
        self.objective = make_objective(config.objective, config.parameters)
        random = self.xp.random.default_rng(0)
        self.label = random.integers(0, max(2, k), n).astype(np.float32)
        self.margin = random.random((n, k), dtype=np.float32) * np.float32(4) - np.float32(2)
        loss = kernel_of(self.objective)
        source = None
        if loss is not None:
            source = loss_source(runtime, loss, self.label, self.margin, None, small_data=False)
        if source is None:
            raise ValueError(f"{config.objective} with {k} outputs has no kernel")
        self.rule = scale_rule(None, self.params.reg_lambda, 0.0)
        self.rounding = DeviceRounding(runtime, k)
        seed = self.params.random_state
        keys = np.array([tree_keys(seed, 0, output) for output in range(k)], np.uint64)
        overwrite(runtime, self.rounding.keys, keys)
        quantizer = Quantizer(runtime, [(0, 0)], n)
        self.gradients = RoundGradients(source, quantizer, self.rounding, draws_below(self.params.subsample))
        self.order, self.pairs = self.xp.empty(n, np.uint32), self.xp.empty(n, np.int32)
        self.bounds = self.xp.zeros((1, 2), np.int64)

    def range(self) -> None:
        self.gradients.find_range()

    def scale(self) -> None:
        self.rounding.find_scales(self.rule)

    def quantize(self) -> None:
        self.gradients.quantize(0, None, self.pairs, self.bounds)

    def quantize_and_order(self) -> None:
        self.gradients.quantize(0, self.order, self.pairs, self.bounds)

    def check(self) -> None:
        """The first rows are those of the array expressions, rounded by the host."""
        from daskboost.devices.cpu.gradients import Gradients, RowRange, quantize_gradients
        from daskboost.devices.gpu.runtime.launches import to_host
        from daskboost.devices.row_order import RowOrder
        from daskboost.fit.messages import GradientRange
        from daskboost.fit.scales import Scales, joined_range

        self.range()
        self.scale()
        self.quantize_and_order()
        ranges = [GradientRange(*self.rounding.largest())]
        scales = Scales(self.config.objective, self.params.random_state, self.params.subsample, 0, joined_range(ranges))
        (made,) = scales.exact([0])
        n = min(CHECKED_ROWS, self.config.n_rows)
        g, h = self.objective.gradients(to_host(self.label[:n]), to_host(self.margin[:n]))
        order, pairs = np.empty(n, np.uint32), np.empty(n, np.int32)
        columns, into = Gradients(g[:, 0], h[:, 0], None), RowOrder(order, pairs)
        kept, _, _ = quantize_gradients(columns, made.quanta, made.draw, RowRange(0, n, 0), into)
        np.testing.assert_array_equal(to_host(self.order[:kept]), order[:kept])
        np.testing.assert_array_equal(to_host(self.pairs[:kept]), pairs[:kept])


def median_ms(xp: Any, work: Callable[[], None], repeats: int) -> float:
    """Median time of some launches on the device, between events."""
    work()
    times = []
    for _ in range(repeats):
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(xp.cuda.get_elapsed_time(begin, end)))
    return statistics.median(times)


def bench_once(config: Config) -> list[dict[str, Any]]:
    """One row per step of a round."""
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    round_ = Round(config, get_runtime())
    round_.check()
    steps: dict[str, Callable[[], None]] = {"range": round_.range, "quantize and order": round_.quantize_and_order}
    if config.subsample == 1:
        steps["quantize"] = round_.quantize
    least = step_bytes(config)
    rows = []
    for step, work in {**steps, "scale": round_.scale}.items():
        ms = median_ms(round_.xp, work, config.repeats)
        floor = memory_ms(least.get(step, 0.0))
        rows.append({
            "case": f"{config.name}: {step}", "contender": "daskboost", "ms": round(ms, 4), "floor_ms": round(floor, 4)
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for name in options.cases.split(","):
        rows = bench_once(CASES[name])
        record("gpu_gradients", CASES[name], [{**row, "gpu": gpu} for row in rows], options.results)
        for row in rows:
            print(f"{row['case']:<40} {row['ms']:8.4f} ms, floor {row['floor_ms']:.4f} ms", flush=True)
        cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
