"""Prediction on one GPU: ms, node visits per second, and the least it could take.

    python -m benchmarks.gpu_predict                             # all of CASES
    python -m benchmarks.gpu_predict --cases random --repeats 5
    python -m benchmarks.gpu_predict --results /some/folder      # rows go there instead of benchmarks/results
    python -m benchmarks.gpu_predict --cases host_float32 --device cpu --rows 9000 --trees 20      # without a GPU

The input is a CuPy array and the output stays on the GPU; in cases named `host` the input is a NumPy array or a pandas
frame, the output is NumPy's, and ours is timed on the CPU as well. XGBoost, where it is installed, reads the same model
file and predicts in place; before timing, all margins must agree to 1e-5 of their range. The first call of ours, which
lays the forest out and uploads it, is timed apart. Floors are of an H200 (`gpu_floors.py`): device memory, the cycles
of shared memory that `kernels/predict.cu` counts, on 132 multiprocessors at 1.75 GHz, and the bus.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours, peers
from benchmarks.generators import WORKLOADS
from benchmarks.gpu_contenders import array_module, host
from benchmarks.gpu_floors import prediction_floor
from benchmarks.gpu_quantize_host import BUS_BYTES_PER_S
from benchmarks.gpu_speed import give_back, gpu_name
from benchmarks.harness import RESULTS, Comparison, Run, beside_row, comparison_rows, interleave, record, timed

AGREEMENT = 1e-5
FIT_ROWS = 200_000


@dataclass(frozen=True)
class Config:
    """One forest and how many rows it predicts."""

    name: str
    fitted: bool
    """Whether the trees come from a fit on `FIT_ROWS` rows, or are complete and random."""
    n_rows: int = 11_000_000
    n_features: int = 28
    trees: int = 500
    max_depth: int = 8
    repeats: int = 5
    host: str = ""
    """What rows of the host's memory are: a NumPy type, "F" for float32 in columns, or "pandas"; empty for CuPy's."""
    device: str = "cuda"


_HOST: dict[str, Any] = {"n_rows": 4_000_000, "n_features": 50, "trees": 300, "max_depth": 6}
CASES = {
    case.name: case
    for case in (
        Config("random", False),
        Config("fitted", True),
        Config("fitted_depth6", True, max_depth=6),
        Config("random_depth10", False, n_rows=2_000_000, max_depth=10),
        Config("random_600_features", False, n_rows=1_000_000, n_features=600, trees=200),
        Config("host_float32", False, **_HOST, host="float32"),
        Config("host_float64", False, **_HOST, host="float64"),
        Config("host_columns", False, **_HOST, host="F"),
        Config("host_pandas", False, **_HOST, host="pandas"),
    )
}


def floor_ms(config: Config) -> float:
    """The same that `gpu_speed` states; of rows of the host's memory, if that is longer, their way over the bus."""
    on_device = prediction_floor(config.n_rows, config.n_features, config.trees, config.max_depth).ms
    value_bytes = 0 if not config.host else 8 if config.host == "float64" else 4
    return max(on_device, 1e3 * value_bytes * config.n_rows * config.n_features / BUS_BYTES_PER_S)


def given_rows(config: Config, x: Any) -> Any:
    """Rows as a case has them, of CuPy's."""
    if not config.host:
        return x
    values = host(x)
    if config.host == "pandas":
        import pandas as pd

        return pd.DataFrame({f"f{i}": values[:, i].copy() for i in range(values.shape[1])})
    return np.asfortranarray(values) if config.host == "F" else values.astype(config.host, copy=False)


def forest(config: Config) -> Any:
    """A model of ours."""
    workload = WORKLOADS["higgs"].wide(config.n_features)
    if not config.fitted:
        return ours.random_model(config.n_features, config.trees, config.max_depth)
    x, y = workload.rows(FIT_ROWS, first=config.n_rows)
    params = {"objective": "binary:logistic", "max_depth": config.max_depth, "min_child_weight": 1}
    return ours.train({**params, "device": config.device}, ours.quantize(x, y), config.trees)


def bench_once(config: Config) -> tuple[Comparison, float]:
    """All repeats of one case, and the seconds of our first call."""
    xp = array_module(config.device)
    synchronize = (lambda: None) if xp is np else xp.cuda.Device().synchronize
    x = given_rows(config, WORKLOADS["higgs"].wide(config.n_features).rows(config.n_rows, xp=xp)[0])
    model = forest(config)
    margins: dict[str, Any] = {}

    def run(name: str, predict: Any) -> Run:
        synchronize()
        seconds, margins[name] = timed(lambda: (predict(), synchronize())[0])
        return Run(seconds, {})

    def agree(_: Mapping[str, Run]) -> None:
        first, *others = (values.ravel() for values in margins.values())
        spread = max(1.0, float(abs(first).max()))
        for other in others:
            if (furthest := float(abs(first - other).max())) > AGREEMENT * spread:
                raise AssertionError(f"{config.name}: margins differ by {furthest}")

    first_s = run("daskboost", lambda: ours.margins(model, x)).seconds
    found = {"daskboost": lambda: run("daskboost", lambda: ours.margins(model, x))}
    if config.host:
        found["daskboost on the CPU"] = lambda: run("daskboost on the CPU", lambda: ours.margins(model, x, "cpu"))
    if importlib.util.find_spec("xgboost") is not None:
        peer = peers.xgboost_predictor(ours.as_bytes(model), config.device, "margin")
        found["xgboost"] = lambda: run("xgboost", lambda: peer(x))
    return interleave(found, config.repeats, agree), first_s


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    gpu = gpu_name(options.device)
    for name in options.cases.split(","):
        given = CASES[name]
        config = replace(
            given, repeats=options.repeats, n_rows=min(given.n_rows, options.rows or given.n_rows),
            trees=options.trees or given.trees, device=options.device,
        )  # fmt: skip
        print(f"{name}: {asdict(config)} on {gpu}", flush=True)
        result, first_s = bench_once(config)
        give_back(config.device)
        visits, floor = config.n_rows * config.trees * config.max_depth, floor_ms(config)
        extra = {"gpu": gpu, "floor_ms": round(floor, 3), "first_call_s": round(first_s, 3)}
        rows = [
            {**row, **extra, "ms": round(1e3 * result.runs[row["contender"]][row["repeat"]].seconds, 3)}
            for row in comparison_rows(name, result)
        ]
        rows += [
            beside_row(name, result, "daskboost", peer, **extra) for peer in result.runs.keys() & {"xgboost"}
        ]
        record("gpu_predict", config, rows, options.results)
        for contender in result.runs:
            seconds = result.seconds(contender)
            print(
                f"{name}: {contender} {1e3 * seconds:.2f} ms, {visits / seconds / 1e12:.2f} T visits/s, "
                f"floor {floor:.2f} ms, our first call {first_s:.2f} s, "
                f"{result.ratio(contender, 'daskboost'):.2f} times ours",
                flush=True,
            )


if __name__ == "__main__":
    main()
