"""Milliseconds a tree of ranking objectives on one GPU, beside XGBoost's in the same process.

    python -m benchmarks.gpu_ranking                          # 11.3M x 136 in 95,000 queries
    python -m benchmarks.gpu_ranking --device cpu --rows 20000 --queries 200 --features 20 --trees 5 --repeats 1

Rows are made on the device. Queries have sizes that differ, and rows of a query follow one another. A tree's time is
that by which a fit of all trees exceeds one of a fifth. Both libraries pair each query's first rows with all that come
after them (`lambdarank_pair_method="topk"`). Models are scored on the first training queries; ours must not be worse.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours, peers
from benchmarks.generators import EFFECT_ROW, LABEL_COLUMN, WORKLOADS, Array, hashes, normals
from benchmarks.gpu_contenders import array_module, host
from benchmarks.gpu_speed import gpu_name
from benchmarks.harness import RESULTS, Run, beside_row, comparison_rows, interleave, record, timed

OBJECTIVES = ("rank:ndcg", "rank:pairwise", "rank:map")
SHARES = (0.55, 0.8, 0.92, 0.98)
"""Shares of the rows whose grade is at most 0, 1, 2 and 3; for "rank:map" those above the first are relevant."""
SCORED_QUERIES = 2000
LEEWAY = 0.005
"""By how much NDCG of ours may be lower."""


@dataclass(frozen=True)
class Config:
    """A case."""

    objective: str = OBJECTIVES[0]
    n_rows: int = 11_300_000
    n_features: int = 136
    n_queries: int = 95_000
    trees: int = 50
    depth: int = 6
    learning_rate: float = 0.1
    pairs: int = 32
    """`lambdarank_num_pair_per_sample`."""
    device: str = "cuda"
    repeats: int = 3
    asked: float = 5.0
    """How many times as long as ours XGBoost's tree takes at least."""


def sizes(config: Config) -> npt.NDArray[np.int64]:
    """Rows of each query: lognormal, 1 at least, `n_rows` in all."""
    ids = EFFECT_ROW + np.arange(config.n_queries, dtype=np.int64)
    wanted = np.exp(0.6 * normals(hashes(ids, np.array([0]), 0, np), np)[:, 0].astype(np.float64))
    ends = np.rint(np.cumsum(wanted) * ((config.n_rows - config.n_queries) / wanted.sum())).astype(np.int64)
    found: npt.NDArray[np.int64] = np.diff(ends, prepend=0) + 1
    return found


def rows(config: Config) -> tuple[Array, Array, npt.NDArray[np.int32]]:
    """Features and grades in the memory of the device, and queries of rows in the host's."""
    xp = array_module(config.device)
    x, _ = WORKLOADS["epsilon"].wide(config.n_features).rows(config.n_rows, xp=xp)
    noise = normals(hashes(xp.arange(config.n_rows, dtype=xp.int64), xp.array([LABEL_COLUMN + 1]), 0, xp), xp)[:, 0]
    score = x[:, 0] + 0.7 * x[:, 1] - 0.5 * x[:, 2] * x[:, 3] + 0.5 * xp.abs(x[:, 4]) + 0.8 * noise
    grades = xp.searchsorted(xp.quantile(score[: 1_000_000], xp.array(SHARES)), score).astype(xp.float32)
    if config.objective == "rank:map":
        grades = (grades > 0).astype(xp.float32)
    return x, grades, np.repeat(np.arange(config.n_queries, dtype=np.int32), sizes(config))


def ndcg(
    grades: npt.NDArray[np.float32], margins: npt.NDArray[Any], qid: npt.NDArray[np.int32], top: int = 10
) -> float:
    """Mean NDCG of queries that have a relevant row, whose rows follow one another."""

    def dcg(by: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        order = np.lexsort((np.arange(len(qid)), -by, qid))
        begins = np.flatnonzero(np.diff(qid, prepend=-1))
        places = np.arange(len(qid)) - np.repeat(begins, np.diff(np.append(begins, len(qid))))
        gains = np.where(places < top, (2.0 ** grades[order] - 1) / np.log2(places + 2), 0.0)
        sums: npt.NDArray[np.float64] = np.add.reduceat(gains, begins)
        return sums

    ideal = dcg(grades)
    return float(np.mean(dcg(margins)[ideal > 0] / ideal[ideal > 0]))


def contender(config: Config, data: Any, train: Callable[..., Any], predict: Callable[..., Any],
              scored: tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.int32]]) -> Callable[[], Run]:  # fmt: skip
    """Return what gives the seconds of a tree; a model is scored once."""
    params = {
        "objective": config.objective, "max_depth": config.depth, "learning_rate": config.learning_rate,
        "device": config.device, "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": config.pairs,
    }  # fmt: skip
    found: dict[str, float] = {}
    x, grades, qid = scored

    def run() -> Run:
        short = max(1, config.trees // 5)
        few = timed(lambda: train(params, data, short))[0]
        all_, model = timed(lambda: train(params, data, config.trees))
        if not found:
            found["ndcg"] = ndcg(grades, np.asarray(predict(model, x)), qid)
        return Run((all_ - few) / (config.trees - short), found)

    return run


def no_worse(runs: Mapping[str, Run]) -> None:
    """The check that ours ranks as well."""
    values = {name: run.answer["ndcg"] for name, run in runs.items()}
    if values["daskboost"] < max(values.values()) - LEEWAY:
        raise AssertionError(f"NDCG of ours is lower: {values}")


def bench(config: Config, names: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of repeats, and of ours beside XGBoost."""
    x, y, qid = rows(config)
    n = int(np.searchsorted(qid, SCORED_QUERIES))
    scored = host(x[:n]), host(y[:n]), qid[:n]
    kinds: dict[str, Callable[[], Callable[[], Run]]] = {
        "daskboost": lambda: contender(
            config, ours.quantize(x, y, qid=qid, device=config.device), ours.train, ours.predict, scored
        ),
        "xgboost": lambda: contender(
            config, peers.xgboost_query_matrix(x, y, qid), peers.xgboost_train, peers.xgboost_predict, scored
        ),
    }
    result = interleave({name: kinds[name]() for name in names}, config.repeats, no_worse)
    for name in names:
        ms, score = 1e3 * result.seconds(name), result.runs[name][0].answer["ndcg"]
        print(f"  {config.objective} {name}: {ms:.3f} ms a tree, NDCG@10 {score:.4f}", flush=True)
    beside = [beside_row(config.objective, result, *names, asked=config.asked)] if len(names) == 2 else []
    return [*comparison_rows(config.objective, result), *beside]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--features", type=int, default=Config.n_features)
    parser.add_argument("--queries", type=int, default=Config.n_queries)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--contenders", default="daskboost,xgboost")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for objective in options.objectives.split(","):
        config = Config(
            objective, options.rows, options.features, options.queries, options.trees, device=options.device,
            repeats=options.repeats,
        )  # fmt: skip
        found = [{"gpu": gpu_name(config.device), **row} for row in bench(config, options.contenders.split(","))]
        record("gpu_ranking", config, found, options.results)


if __name__ == "__main__":
    main()
