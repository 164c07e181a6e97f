"""Training, quantizing and predicting on one GPU beside peers in the same process, with the least time they could take.

    python -m benchmarks.gpu_speed                                   # all of `gpu_cases.CASES`: about 15 minutes
    python -m benchmarks.gpu_speed --cases higgs_11m_depth8,classes_80 --seconds 500 --results /some/folder
    python -m benchmarks.gpu_speed --cases watched_2k,watched_20k,watched_100k,evaluated_11m,bynode_5m,interactions_5m
    python -m benchmarks.gpu_speed --device cpu --rows 3000 --trees 5 --results /tmp/rehearsal

Contenders take turns after a warm-up each, over rows made on the device. Peers that are not installed are recorded as
absent. A time counts if the scores of ours, compared before, are not worse than the peer's: AUC by more than 0.0005,
log-loss by more than 0.2 %; of some cases the scores are means over several sets of training rows.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.gpu_cases import CASES, Case, Config
from benchmarks.gpu_contenders import VECTOR_LEAVES, array_module, contenders, floor_of_contender
from benchmarks.harness import RESULTS, Check, Comparison, Contender, Run, comparison_rows, record, take_turns

AUC_TOLERANCE = 0.0005
LOSS_TOLERANCE = 0.002


def complaint(own: Mapping[str, float], peer: Mapping[str, float], leeway: float = 1.0) -> str:
    """Why the time of ours does not count, by so many times the usual tolerances; empty if it does."""
    less, more = leeway * AUC_TOLERANCE, leeway * LOSS_TOLERANCE
    for share, name in (("auc", "AUC"), ("accuracy", "accuracy")):
        if own.get(share, 1.0) < peer.get(share, 0.0) - less:
            return f"{name} {own[share]:.5f} is lower than the peer's {peer[share]:.5f} by more than {less:g}"
    for loss, name in (("logloss", "log-loss"), ("pinball", "pinball loss")):
        if own.get(loss, 0.0) > peer.get(loss, float("inf")) * (1 + more):
            return f"{name} {own[loss]:.5f} exceeds the peer's {peer[loss]:.5f} by over {more:.1%}"
    return ""


def not_worse(leeway: float) -> Check:
    """A check that ours has no complaint beside XGBoost's, where that took part."""

    def check(runs: Mapping[str, Run]) -> None:
        if "xgboost" in runs and (why := complaint(runs["daskboost"].answer, runs["xgboost"].answer, leeway)):
            raise AssertionError(why)

    return check


def warm_up(config: Config, ours_on: str, draw: int = 0) -> tuple[dict[str, Contender], dict[str, Run], dict[str, str]]:
    """Contenders that ran once, what they gave, and why others take no part."""
    ready: dict[str, Contender] = {}
    first: dict[str, Run] = {}
    missing: dict[str, str] = {}
    for name, make in contenders(config, ours_on, draw):
        if importlib.util.find_spec(name.split()[0]) is None:
            missing[name] = "not installed"
            continue
        try:
            contender = make()
            first[name], ready[name] = contender(), contender
        except Exception as error:  # one that cannot do a case must not end those of the others
            missing[name] = brief(error)
        finally:
            give_back(config.device)
    return ready, first, missing


Draws = Mapping[str, Mapping[str, list[float]]]
"""Each contender's scores of all draws."""


def scores_of_draws(config: Config, ours_on: str, first: Mapping[str, Run]) -> Draws:
    """Of those who took part in the first draw."""
    found = {name: {score: [value] for score, value in run.answer.items()} for name, run in first.items()}
    for draw in range(1, config.draws):
        again = warm_up(config, ours_on, draw)[1]
        for name, scores in found.items():
            for score, values in scores.items():
                values.append(again[name].answer[score])
    return found


def means(draws: Draws) -> dict[str, dict[str, float]]:
    """Over all draws."""
    return {name: {score: statistics.fmean(values) for score, values in own.items()} for name, own in draws.items()}


def standard_errors(own: Mapping[str, list[float]], peer: Mapping[str, list[float]]) -> dict[str, float]:
    """Of the mean differences of scores, which tells what a number of draws is good for."""
    found = {}
    for score, values in own.items():
        differences = [a - b for a, b in zip(values, peer[score], strict=True)]
        if len(differences) > 1:
            found[score] = round(statistics.stdev(differences) / len(differences) ** 0.5, 6)
    return found


def brief(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def summaries(case: Case, draws: Draws, missing: Mapping[str, str], result: Comparison) -> list[dict[str, Any]]:
    """One row for each contender of ours: both times, their ratio, the floor, and whether they count."""
    config, answers = case.config, means(draws)
    ms = {name: round(1e3 * result.seconds(name), 4) for name in result.runs}
    rows = []
    for name in [name for name in result.runs if name.startswith("daskboost") and name != config.peer]:
        peer, floor = peer_of(name, config.peer, result), floor_of_contender(name, config)
        why_not = "no peer took part" if peer is None else complaint(answers[name], answers[peer], config.leeway)
        if min(ms[name], ms[peer or name]) <= 0:
            why_not = "the fits are too short to be told apart"
        rows.append({
            "case": config.name, "contender": f"{name} beside {peer or config.peer}", "ms": ms[name],
            "peer_ms": None if peer is None else ms[peer], "all_ms": ms,
            "ratio": None if peer is None or why_not else round(result.ratio(peer, name), 3),
            "score_functions": score_functions(config), "does_not_count": why_not,
            "asked": (VECTOR_LEAVES in name and case.vectors_asked) or case.asked,
            "stretch": case.stretch, "published_ms": dict(case.published), "absent": dict(missing),
            "answers": answers, "standard_errors": standard_errors(draws[name], draws[peer]) if peer else {},
            "draws": draws, "floor_ms": round(floor.ms, 4),
            "floor_parts_ms": {part: round(value, 4) for part, value in asdict(floor).items()},
            "fraction_of_floor": round(floor.ms / ms[name], 4) if ms[name] > 0 else None,
        })  # fmt: skip
    return rows


def score_functions(config: Config) -> dict[str, str]:
    """What both sides score splits by, where that is a choice."""
    if config.kind != "train" or not config.peer_score_function:
        return {}
    own = ours.score_function({**config.params(), "score_function": config.score_function})
    return {"daskboost": own, config.peer: config.peer_score_function}


def peer_of(name: str, peer: str, result: Comparison) -> str | None:
    """Who a contender of ours is compared with: vector leaves, which learn otherwise, with the peer's."""
    found = peer + VECTOR_LEAVES if VECTOR_LEAVES in name else peer
    return found if found in result.runs else None


def described(row: Mapping[str, Any]) -> str:
    """A summary as one line for people."""
    peer = "" if row["peer_ms"] is None else f", peer {row['peer_ms']:.3f} ms"
    ratio = f", {row['ratio']:.2f} times (asked {row['asked']}, stretch {row['stretch']})" if row["ratio"] else ""
    published = "".join(f", published {name} {ms} ms" for name, ms in row["published_ms"].items())
    against = f"; does not count: {row['does_not_count']}" if row["does_not_count"] else ""
    floor = f"floor {row['floor_ms']:.3f} ms, {row['fraction_of_floor'] or 0:.0%} of it reached"
    return f"{row['case']}: {row['contender']}: {row['ms']:.3f} ms{peer}{ratio}, {floor}{published}{against}"


def bench_once(case: Case, ours_on: str) -> list[dict[str, Any]]:
    """All rows of one case."""
    config = case.config
    ready, first, missing = warm_up(config, ours_on)
    for name, why in missing.items():
        print(f"{config.name}: {name} takes no part: {why}", flush=True)
    result = take_turns(ready, config.repeats) if ready else Comparison({})
    del ready
    found = summaries(case, scores_of_draws(config, ours_on, first), missing, result)
    for row in found:
        print(described(row), flush=True)
    absent = [{"case": config.name, "contender": name, "absent": why} for name, why in missing.items()]
    return comparison_rows(config.name, result) + found + absent


def rehearsed(case: Case, options: argparse.Namespace) -> Case:
    """The case on the device and with the sizes of the command line."""
    config = replace(case.config, device=options.device, repeats=options.repeats or case.config.repeats)
    if options.draws:
        config = replace(config, draws=min(config.draws, options.draws))
    return replace(case, config=config.sized(options.rows, options.trees))


def give_back(device: str) -> None:
    """Free what nobody refers to, so that the next contender, with an allocator of its own, finds it."""
    gc.collect()
    if device != "cpu":
        array_module(device).get_default_memory_pool().free_all_blocks()


def gpu_name(device: str) -> str:
    if device == "cpu":
        return "none"
    name: str = array_module(device).cuda.runtime.getDeviceProperties(0)["name"].decode()
    return name


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case that would end later")
    parser.add_argument("--ours-on", choices=("device", "host"), default="device", help="where the rows of ours are")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument("--rows", type=int, default=0, help="at most so many")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--draws", type=int, default=0, help="at most so many sets of rows")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options, start = parse(arguments), time.monotonic()
    gpu = gpu_name(options.device)
    unknown = sorted(set(options.cases.split(",")) - set(CASES))
    if unknown:
        raise SystemExit(f"no case is named {', '.join(unknown)}; there are {', '.join(CASES)}")
    for name in options.cases.split(","):
        case, spent = rehearsed(CASES[name], options), time.monotonic() - start
        if spent + (0 if options.rows else case.estimate_s) > options.seconds:
            print(f"{name}: skipped, takes about {case.estimate_s:.0f} s of the {options.seconds - spent:.0f} s left",
                  flush=True)  # fmt: skip
            continue
        print(f"{name}: begins after {spent:.0f} s on {gpu}: {case.config}", flush=True)
        try:
            rows = bench_once(case, options.ours_on)
        except Exception as error:  # after a warm-up that went well; further cases may go better
            print(f"{name}: failed: {brief(error)}", flush=True)
            rows = [{"case": name, "contender": "all", "absent": brief(error)}]
        took = round(time.monotonic() - start - spent, 1)
        record("gpu_speed", case.config, [{**row, "gpu": gpu, "case_s": took} for row in rows], options.results)
        print(f"{name}: took {took} s, estimated {case.estimate_s}", flush=True)
        give_back(options.device)


if __name__ == "__main__":
    main()
