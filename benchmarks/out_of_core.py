"""Training on rows that are streamed: time per tree, passes and scores beside XGBoost's external memory and the floor.

    python -m benchmarks.out_of_core --cases 80m_exact,80m_xgboost,in_core_overhead,train_many_5_folds --seconds 560
    python -m benchmarks.out_of_core --cases 80m_certified,passes_to_score_80m --seconds 560 --keep /some/folder
    python -m benchmarks.out_of_core --device cpu --rows 3000 --trees 3 --rounds 3 --results /tmp/rehearsal

Rows are made block by block on the device and are nowhere as a whole but as bins (`out_of_core_data.py`); `--keep`
saves these for the next call. Answers are checked before a time counts: models that must be the same are compared byte
by byte, others by the AUC on rows that no fit has seen. Then contenders take turns, and a tree's time is that of two
fits' difference over that of their trees. Each row has the floor by the bandwidth that this run has measured.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_speed import brief, give_back, gpu_name
from benchmarks.harness import RESULTS, comparison_rows, record
from benchmarks.out_of_core_cases import CASES, Case
from benchmarks.out_of_core_data import bandwidth
from benchmarks.out_of_core_kinds import KINDS, Bench


def case_rows(case: Case, bench: Bench) -> list[dict[str, Any]]:
    """All rows of one case: a row for each figure that is asked, and those of all repeats."""
    found = KINDS[case.kind](bench)
    seconds = {name: round(found.runs.seconds(name), 5) for name in found.runs.runs}
    own = seconds.get("daskboost", found.figures.get("seconds_per_tree"))
    floor = None if found.floor_s is None else round(found.floor_s, 9)
    common = {
        "does_not_count": found.why_not, "seconds_per_tree": seconds, "floor_s": floor,
        "fraction_of_floor": round(floor / own, 4) if floor and own else None,
        "bytes_per_s": round(bench.bytes_per_s), "answers": found.answers, **found.notes,
    }  # fmt: skip
    rows = []
    for name, value in found.figures.items():
        goal = case.goals[name]
        rows.append({
            "case": case.config.name, "contender": "daskboost", "figure": name, "value": round(value, 6),
            **asdict(goal), "holds": None if found.why_not else goal.holds(value), **common,
        })  # fmt: skip
        asked = "" if goal.asked is None else f", asked at {'most' if goal.at_most else 'least'} {goal.asked:g}"
        against = f"; does not count: {found.why_not}" if found.why_not else ""
        print(f"{case.config.name}: {goal.what}: {value:.4g}{asked}; floor {floor} s, {seconds}{against}", flush=True)
    return comparison_rows(case.config.name, found.runs) + rows


def rehearsed(case: Case, options: argparse.Namespace) -> Case:
    """The case on the device and with the sizes of the command line."""
    sizes = {name: getattr(options, name) for name in ("trees", "repeats", "rounds", "chunk_rows")}
    given = {name: size for name, size in sizes.items() if size}
    config = replace(
        case.config, device=options.device, quantize_on=options.quantize_on, host_gb=options.host_gb, **given
    )
    if options.rows and options.rows < config.n_rows:
        config = replace(
            config, n_rows=options.rows, test_rows=min(config.test_rows, options.rows),
            block_rows=min(config.block_rows, -(-options.rows // 4)),
            chunk_rows=options.chunk_rows or max(64, options.rows // 16),
        )  # fmt: skip
    if options.features:
        config = replace(config, n_features=min(config.n_features, options.features))
    return replace(case, config=config)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case that would end later")
    parser.add_argument("--keep", type=Path, help="folder to save bins in, and to open them from")
    parser.add_argument("--exact-from", type=Path, help="file of rows that tell what exact trees reach")
    parser.add_argument("--quantize-on", choices=("device", "host"), default="device", help="of large data, ours")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--features", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--chunk-rows", type=int, default=0, help="of our chunks; 0 for the default of data sets")
    parser.add_argument("--host-gb", type=float, default=0.0, help="memory of a host that shows less of it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options, start = parse(arguments), time.monotonic()
    gpu, bytes_per_s = gpu_name(options.device), bandwidth(options.device)
    unknown = sorted(set(options.cases.split(",")) - set(CASES))
    if unknown:
        raise SystemExit(f"no case is named {', '.join(unknown)}; there are {', '.join(CASES)}")
    print(f"{gpu}: {bytes_per_s / 1e9:.1f} GB/s reach it", flush=True)
    for name in options.cases.split(","):
        case, spent = rehearsed(CASES[name], options), time.monotonic() - start
        if spent + (0 if options.rows else case.estimate_s) > options.seconds:
            print(f"{name}: skipped, takes about {case.estimate_s:.0f} s of the {options.seconds - spent:.0f} s left",
                  flush=True)  # fmt: skip
            continue
        print(f"{name}: begins after {spent:.0f} s: {case.config}", flush=True)
        try:
            rows = case_rows(case, Bench(case.config, bytes_per_s, options.keep, options.exact_from))
        except Exception as error:  # further cases may go better
            print(f"{name}: failed: {brief(error)}", flush=True)
            rows = [{"case": name, "contender": "all", "absent": brief(error)}]
        took = round(time.monotonic() - start - spent, 1)
        record("out_of_core", case.config, [{**row, "gpu": gpu, "case_s": took} for row in rows], options.results)
        print(f"{name}: took {took} s, estimated {case.estimate_s}", flush=True)
        give_back(options.device)


if __name__ == "__main__":
    main()
