"""What parts of ranking on one GPU cost: gradients, metrics of every round, and one query of a million rows.

    python -m benchmarks.gpu_ranking_parts                    # every case
    python -m benchmarks.gpu_ranking_parts --cases metrics,large
    python -m benchmarks.gpu_ranking_parts --cases gradients --objectives rank:ndcg,rank:map
    python -m benchmarks.gpu_ranking_parts --device cpu --rows 20000 --queries 200 --features 20 --trees 5 --repeats 1

gradients
    Milliseconds of the gradients of all rows at a model's scores, median between events, as a share of those of a tree.
    Rows are those of `benchmarks.gpu_ranking`.
metrics
    A tree's time with NDCG@10 of the training set and of one evaluation set of a tenth as many rows, every round,
    beside that without them. Models must be the same bytes.
large
    A tree's time of 10,000 queries of 100 rows on average and one of a million, beside that of the small ones alone,
    and beside that of as many rows in small queries.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours
from benchmarks.generators import Array
from benchmarks.gpu_contenders import array_module, host
from benchmarks.gpu_gradients import median_ms
from benchmarks.gpu_ranking import (
    OBJECTIVES,
    USUAL,
    Config,
    borders,
    changed,
    contender,
    first_queries,
    grades,
    parameters,
    queries,
    rows,
    scored_features,
    sizes,
)
from benchmarks.gpu_speed import gpu_name
from benchmarks.harness import (
    RESULTS,
    Run,
    beside_row,
    comparison_rows,
    interleave,
    record,
    scores_agree,
    timed,
)

GRADIENTS_ASKED, METRICS_ASKED, LARGE_ASKED = 0.12, 0.08, 2.0
"""Shares of a tree's time, and how many times the time without the large query, at most."""
METRIC = "ndcg@10"
LARGE = Config(n_rows=2_000_000, n_queries=10_001, largest=1_000_000)


def ms_of(device: str, work: Callable[[], None], repeats: int = 15) -> float:
    """Median milliseconds of some work: between events on a GPU, of the call on a CPU."""
    if device == "cuda":
        return median_ms(array_module(device), work, repeats)
    work()
    return 1e3 * statistics.median(timed(work)[0] for _ in range(repeats))


def gradients(config: Config) -> Iterator[dict[str, Any]]:
    """Measure the gradients beside a tree."""
    xp = array_module(config.device)
    x, y, qid = rows(config)
    data = ours.quantize(x, y, qid=qid, device=config.device)
    tree = contender(config, data, ours.train, ours.predict, first_queries(x, y, qid))
    tree()
    runs = [tree() for _ in range(config.repeats)]
    model = ours.train(parameters(config), data, config.trees)
    scores = xp.asarray(ours.margins(model, x), np.float32)
    fill = ours.query_gradients(parameters(config), host(y), qid, config.device)
    ms = ms_of(config.device, partial(fill, scores, xp.zeros_like(scores), xp.zeros_like(scores)))
    tree_ms = 1e3 * statistics.median(run.seconds for run in runs)
    print(f"  {config.objective}: gradients {ms:.3f} ms of a tree's {tree_ms:.3f}", flush=True)
    yield {
        "case": f"gradients of {config.objective}", "contender": "daskboost", "ms": round(ms, 4),
        "tree_ms": round(tree_ms, 4), "share": round(ms / tree_ms, 4), "asked": GRADIENTS_ASKED,
        "answer": dict(runs[0].answer),
    }  # fmt: skip


def held_out(config: Config, x: Array, qid: npt.NDArray[np.int32]) -> tuple[Array, Array, npt.NDArray[np.int32]]:
    """Return the rows of a tenth of the queries, which follow those of the training set."""
    n = int(sizes(config)[: max(1, config.n_queries // 10)].sum())
    xp_rows, score = scored_features(config, config.n_rows, n)
    begins = borders(config, scored_features(config, 0, min(config.n_rows, 1_000_000))[1])
    return xp_rows, grades(config, score, begins), qid[:n]


def metrics(config: Config) -> Iterator[dict[str, Any]]:
    """Measure a tree with and without metrics of every round."""
    x, y, qid = rows(config)
    data = ours.quantize(x, y, qid=qid, device=config.device)
    other = ours.quantize(*(tail := held_out(config, x, qid))[:2], qid=tail[2], device=config.device, reference=data)
    scored = first_queries(x, y, qid)
    watched = partial(ours.train, evals=[(data, "train"), (other, "held out")], evals_result={}, verbose=False)
    own = replace(config, more={**config.more, "eval_metric": METRIC})
    yield from beside({
        "with metrics": contender(own, data, watched, ours.predict, scored),
        "without metrics": contender(own, data, ours.train, ours.predict, scored),
    }, config, f"metrics of {config.objective}", asked=1 + METRICS_ASKED, same_model=True)  # fmt: skip


def large(config: Config) -> Iterator[dict[str, Any]]:
    """Measure a tree of rows of which a query has many."""
    small = replace(config, n_rows=config.n_rows - config.largest, n_queries=config.n_queries - 1, largest=0)
    n_alike = round(config.n_rows / (small.n_rows / small.n_queries))
    alike = replace(config, n_queries=n_alike, largest=0)
    found: dict[str, Callable[[], Run]] = {}
    for name, own in (("with it", config), ("without it", small), ("its rows in small queries", alike)):
        x, score = scored_features(own, config.n_rows - own.n_rows, own.n_rows)
        y, qid = grades(own, score, borders(own, score[:1_000_000])), queries(own)
        data = ours.quantize(x, y, qid=qid, device=own.device)
        found[name] = contender(own, data, ours.train, ours.predict, first_queries(x, y, qid))
    yield from beside(found, config, "a query of many rows", asked=LARGE_ASKED)


def beside(found: Mapping[str, Callable[[], Run]], config: Config, case: str, *, asked: float, same_model: bool = False
           ) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Measure contenders; the rows of repeats, and of the first one beside each other one, `times` being how many times
    as long the first one takes."""
    check = scores_agree("model", 0.0) if same_model else scores_agree("ndcg", 1.0)
    result = interleave(found, config.repeats, check)
    yield from comparison_rows(case, result)
    for name in found:
        print(f"  {case}, {name}: {1e3 * result.seconds(name):.3f} ms a tree", flush=True)
    first, *others = found
    for name in others:
        yield beside_row(case, result, first, name, times=round(result.ratio(first, name), 4), asked=asked)


CASES: dict[str, tuple[tuple[Config, ...], Callable[[Config], Iterator[dict[str, Any]]]]] = {
    "gradients": (tuple(USUAL.values()), gradients),
    "metrics": (tuple(USUAL[objective] for objective in OBJECTIVES[:1]), metrics),
    "large": ((LARGE,), large),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--objectives", default=",".join(USUAL), help="of gradients and metrics")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--largest", type=int, help="rows of the query of many rows")
    parser.add_argument("--trees", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for case in options.cases.split(","):
        configs, measure = CASES[case]
        for usual in configs:
            if case != "large" and usual.objective not in options.objectives.split(","):
                continue
            config = changed(usual, options)
            if not usual.largest:
                config = replace(config, largest=0)
            found = list(measure(config))
            about = {"gpu": gpu_name(config.device)}
            record("gpu_ranking_parts", config, [{**about, **row} for row in found], options.results)


if __name__ == "__main__":
    main()
