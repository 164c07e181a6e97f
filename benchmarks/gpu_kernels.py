"""Where the time of a tree goes on one GPU: the kernels of a fit, the gaps between them, and the least it could take.

    python -m benchmarks.gpu_kernels                                 # all of NAMES: about 4 minutes
    python -m benchmarks.gpu_kernels --cases sparse_1m_cupy --trace /some/folder    # for chrome://tracing as well

PyTorch's profiler sees all kernels of a process, those inside CUDA graphs too. As in `gpu_speed`, what trees take is
the difference of two fits; the time without a profiler is measured before, and what of it no kernel accounts for is
"gaps": the host, launches, and waiting. Kernels that run at the same time count in full, which gaps make up for.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.gpu_cases import CASES, Config
from benchmarks.gpu_contenders import VECTORS, floor_of_contender, make_rows
from benchmarks.gpu_speed import give_back, gpu_name
from benchmarks.harness import RESULTS, record, timed

NAMES = (
    "higgs_11m_depth6", "higgs_11m_depth8", "higgs_11m_lossguide", "higgs_100k", "symmetric_11m_depth6",
    "symmetric_11m_depth8", "epsilon_400k", "symmetric_400k", "higgs_40m", "skewed_20m_18", "skewed_10m_39",
    "skewed_1m_50", "skewed_20k_50", "watched_2k", "evaluated_11m", "sparse_1m_cupy", "sparse_wide",
    "sparse_wide_l1", "sparse_wide_best_first", "sparse_many_bins", "classes_10_small", "classes_80", "quantize_11m",
    "quantize_40m", "predict_11m",
)  # fmt: skip
MOST_TREES = 50
SHARE_SHOWN = 0.01
"""Of a tree's time; kernels that take less are not printed."""


Work = Callable[[int], Any]
"""Does so many units of work and waits for them."""


@dataclass(frozen=True)
class Profile:
    """Kernels by name; copies and fills are kernels too."""

    ms: Mapping[str, float]
    launches: Mapping[str, float]

    def less(self, other: Profile, n: int) -> Profile:
        """An n-th of what this has more than another."""
        return Profile(
            {name: (ms - other.ms.get(name, 0.0)) / n for name, ms in self.ms.items()},
            {name: (count - other.launches.get(name, 0.0)) / n for name, count in self.launches.items()},
        )


def profiled(work: Work, n: int, trace: Path | None = None) -> Profile:
    """What the GPU does during so many units of work."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        work(n)
    if trace is not None:
        found.export_chrome_trace(str(trace))
    return profile_of((event.name, event.device_time_total) for event in found.events())


def profile_of(events: Any) -> Profile:
    """Of names and microseconds."""
    ms, launches = Counter[str](), Counter[str]()
    for name, us in events:
        if us > 0:
            ms[name] += us / 1e3
            launches[name] += 1
    return Profile(dict(ms), dict(launches))


def works(config: Config) -> dict[str, tuple[Work, int]]:
    """By contender: the work, and how many units of it are profiled."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, max(1000, config.eval_rows), config.device)

    def train(data: Any, params: Mapping[str, Any], n: int) -> None:
        ours.train(params, data, n, evals=evals)
        rows.synchronize()

    def quantize(n: int) -> None:
        for _ in range(n):
            ours.quantize(rows.x, rows.y, max_bin=config.max_bin)
            rows.synchronize()

    if config.kind == "quantize":
        return {"daskboost": (quantize, 5)}
    data = ours.quantize(rows.x, rows.y, max_bin=config.max_bin)
    evals, metrics = [], {}
    if config.eval_rows:
        some = slice(0, config.eval_rows)
        test = ours.quantize(rows.x_test[some], rows.y_test[some], max_bin=config.max_bin, reference=data)
        evals, metrics = [(test, "test")], {"eval_metric": list(config.eval_metric)}
    if config.kind == "predict":
        model = ours.train(config.params(), data, config.trees)

        def predict(n: int) -> None:
            for _ in range(n):
                model.predict(rows.x)
                rows.synchronize()

        return {"daskboost": (predict, 5)}
    trees = min(config.trees, MOST_TREES)
    kinds: dict[str, Mapping[str, Any]] = {"daskboost": {}} | (
        {"daskboost vector leaves": VECTORS} if config.n_classes > 2 else {}
    )
    params = {**config.params(), **metrics}
    return {name: (functools.partial(train, data, {**params, **more}), trees) for name, more in kinds.items()}


def one_ms(work: Work, n: int, short: int) -> float:
    """Of a unit of work, the best of three."""
    long_s, short_s = (min(timed(functools.partial(work, count))[0] for _ in range(3)) for count in (n, short))
    return 1e3 * (long_s - short_s) / (n - short)


def profile_rows(profile: Profile, total: float, floor: float) -> list[dict[str, Any]]:
    """A row for each kernel, the dearest first, for the gaps and for the whole, which took `total` ms."""
    rows: list[dict[str, Any]] = [
        {"kernel": name, "ms": round(ms, 4), "launches": round(profile.launches[name], 2)}
        for name, ms in sorted(profile.ms.items(), key=lambda pair: -pair[1])
    ]
    gaps, launches = total - sum(profile.ms.values()), round(sum(profile.launches.values()), 2)
    reached = {"floor_ms": round(floor, 4), "fraction_of_floor": round(floor / total, 4)}
    rows += [{"kernel": "gaps", "ms": round(gaps, 4)}, {"kernel": "all", "ms": total, "launches": launches, **reached}]
    return [{**row, "share": round(row["ms"] / total, 4)} for row in rows]


def bench_once(config: Config, trace: Path | None) -> list[dict[str, Any]]:
    """All contenders of a case."""
    found = []
    for contender, (work, n) in works(config).items():
        short = max(1, n // 5)
        work(short)
        total = round(one_ms(work, n, short), 4)
        file = None if trace is None else trace / f"{config.name}_{contender.replace(' ', '_')}.json"
        profile = profiled(work, n).less(profiled(work, short, file), n - short)
        rows = profile_rows(profile, total, floor_of_contender(contender, config).ms)
        found += [{"case": config.name, "contender": contender, **row} for row in rows]
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(NAMES), help="comma-separated names of gpu_cases.CASES")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0, help=f"of the longer fit, at most {MOST_TREES}")
    parser.add_argument("--trace", type=Path, help="folder of traces of the shorter fits")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    gpu = gpu_name("cuda")
    for name in options.cases.split(","):
        config, start = CASES[name].config.sized(options.rows, options.trees), time.monotonic()
        rows = bench_once(config, options.trace)
        give_back(config.device)
        record("gpu_kernels", config, [{**row, "gpu": gpu} for row in rows], options.results)
        for row in rows:
            if abs(row["share"]) >= SHARE_SHOWN:
                print(f"{name}: {row['contender']}: {row['kernel'][:60]:<40} {row['ms']:9.4f} ms {row['share']:7.1%} "
                      f"{row.get('launches', 0):8.1f} launches", flush=True)  # fmt: skip
        print(f"{name}: took {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
