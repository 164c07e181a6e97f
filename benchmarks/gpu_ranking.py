"""Milliseconds a tree of ranking objectives on one GPU, beside a peer's in the same process; or on several over Dask.

    python -m benchmarks.gpu_ranking                          # 11.3M x 136 in 95,000 queries, beside XGBoost
    python -m benchmarks.gpu_ranking --objectives yetirank,querysoftmax    # 4M x 136 in 33,000, beside CatBoost
    python -m benchmarks.gpu_ranking --gpus 1,2 --objectives rank:ndcg    # 22M x 136 in 190,000, in two orders
    python -m benchmarks.gpu_ranking --gpus 1,2 --device cpu --rows 20000 --queries 200 --features 20 --trees 5
    python -m benchmarks.gpu_ranking --device cpu --rows 20000 --queries 200 --features 20 --trees 5 --repeats 1

Rows are made on the device. Queries have sizes that differ, and rows of a query follow one another. A tree's time is
that by which a fit of all trees exceeds one of a fifth; CatBoost's is by its own record of when trees end, after the
same fifth. Ours and XGBoost pair each query's first rows with all that come after them
(`lambdarank_pair_method="topk"`). Models are scored on the first training queries; ours must not be worse.

Beside CatBoost, whose trees are symmetric, ours are measured both level by level and symmetric. CatBoost's GPU takes
queries of up to 1,023 rows for YetiRank, so that no query is larger there; for QuerySoftMax one has 5,000 rows.

With `--gpus`, a LocalCUDACluster for each number of GPUs has rows that its GPUs made, first query by query, then in an
order that scatters the rows of each query over all workers. Models must be the same bytes on any number of GPUs, which
are joined. The scored rows are then the first ones, query by query in either order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours, peers
from benchmarks.generators import EFFECT_ROW, LABEL_COLUMN, WORKLOADS, Array, hashes, normals
from benchmarks.gpu_contenders import array_module, host
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
from benchmarks.many_gpus import BLOCKS_PER_GPU, digest_of, open_cluster

OBJECTIVES = ("rank:ndcg", "rank:pairwise", "rank:map")
SHARES = (0.55, 0.8, 0.92, 0.98)
"""Shares of the rows whose grade is at most 0, 1, 2 and 3; for "rank:map" those above the first are relevant."""
SCORED_QUERIES = 2000
LEEWAY = {"xgboost": 0.005, "catboost": 0.1}
"""By how much NDCG of ours may be lower than a peer's. CatBoost's QuerySoftMax takes gradient steps, which are larger
than Newton's; with those it ranks as ours does."""
OF_CATBOOST = {"yetirank": "YetiRank", "querysoftmax": "QuerySoftMax"}
"""Objectives that are measured beside CatBoost, and its names of them."""
CATBOOST_BORDERS = 254


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
    """How many times as long as ours XGBoost's tree takes at least; on several GPUs, ours on one as on two."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of fits."""
    largest: int = 0
    """Rows of the first query; 0 where it is like the others."""
    most: int = 0
    """Rows of a query, at most; 0 for any."""
    order: str = "sorted"
    """Whether rows of a query follow one another, "sorted", or lie anywhere, "scattered"."""


MANY = Config(n_rows=22_000_000, n_queries=190_000, asked=1.7)
"""On several GPUs, where two are so many times as fast as one."""
USUAL = {
    "yetirank": Config("yetirank", 4_000_000, n_queries=33_000, most=1023),
    "querysoftmax": Config("querysoftmax", 4_000_000, n_queries=33_000, largest=5000),
    **{objective: Config(objective) for objective in OBJECTIVES},
}
"""On one GPU, by objective."""
ORDERS = ("sorted", "scattered")


def sizes(config: Config) -> npt.NDArray[np.int64]:
    """Rows of each query: lognormal, 1 at least, `n_rows` in all."""
    n_queries, n_rows = config.n_queries - (config.largest > 0), config.n_rows - config.largest
    ids = EFFECT_ROW + np.arange(n_queries, dtype=np.int64)
    wanted = np.exp(0.6 * normals(hashes(ids, np.array([0]), 0, np), np)[:, 0].astype(np.float64))
    ends = np.rint(np.cumsum(wanted) * ((n_rows - n_queries) / wanted.sum())).astype(np.int64)
    found: npt.NDArray[np.int64] = np.diff(ends, prepend=0) + 1
    if config.most:
        found = np.minimum(found, config.most)
        while left := n_rows - int(found.sum()):  # the smallest queries have what others had too many
            found[np.argsort(found, kind="stable")[: min(left, int((found < config.most).sum()))]] += 1
    return np.concatenate([[config.largest], found]) if config.largest else found


def scored_features(config: Config, first: int, n_rows: int) -> tuple[Array, Array]:
    """Features of some rows in the memory of the device, and the scores that their grades follow from."""
    xp = array_module(config.device)
    x, _ = WORKLOADS["epsilon"].wide(config.n_features).rows(n_rows, first=first, xp=xp)
    ids = xp.arange(first, first + n_rows, dtype=xp.int64)
    noise = normals(hashes(ids, xp.array([LABEL_COLUMN + 1]), 0, xp), xp)[:, 0]
    return x, x[:, 0] + 0.7 * x[:, 1] - 0.5 * x[:, 2] * x[:, 3] + 0.5 * xp.abs(x[:, 4]) + 0.8 * noise


def borders(config: Config, score: Array) -> Array:
    """Scores at which grades begin, by those of some rows."""
    xp = array_module(config.device)
    return xp.quantile(score, xp.array(SHARES))


def grades(config: Config, score: Array, begins: Array) -> Array:
    """Grades of rows by their scores; float32."""
    xp = array_module(config.device)
    found = xp.searchsorted(begins, score).astype(xp.float32)
    return (found > 0).astype(xp.float32) if config.objective == "rank:map" else found


def queries(config: Config) -> npt.NDArray[np.int32]:
    """Return the query of each row."""
    found = np.repeat(np.arange(config.n_queries, dtype=np.int32), sizes(config))
    return found if config.order == "sorted" else np.random.default_rng(0).permutation(found)


def rows(config: Config) -> tuple[Array, Array, npt.NDArray[np.int32]]:
    """Features and grades in the memory of the device, and queries of rows in the host's."""
    x, score = scored_features(config, 0, config.n_rows)
    return x, grades(config, score, borders(config, score[:1_000_000])), queries(config)


def make_block(config: Config, first: int, n_rows: int, begins: Sequence[float]) -> tuple[Array, Array]:
    """Features and grades of some rows in the memory of the worker's device."""
    x, score = scored_features(config, first, n_rows)
    return x, grades(config, score, array_module(config.device).array(begins))


def collections(config: Config, n_blocks: int, begins: Sequence[float]) -> tuple[Any, Any, Any]:
    """Features, grades and queries as Dask arrays, of which workers make the first two."""
    import dask.array as da
    from dask import delayed

    meta, size = array_module(config.device).empty((0,), np.float32), -(-config.n_rows // n_blocks)
    features, labels = [], []
    for first in range(0, config.n_rows, size):
        n_rows = min(size, config.n_rows - first)
        block = delayed(make_block, nout=2)(config, first, n_rows, begins)
        features.append(da.from_delayed(block[0], (n_rows, config.n_features), meta=meta[:, None]))
        labels.append(da.from_delayed(block[1], (n_rows,), meta=meta))
    return da.concatenate(features), da.concatenate(labels), da.from_array(queries(config), chunks=size)


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


Scored = tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.int32]]
"""Features, grades and queries of the rows that models are scored on, in the memory of the host."""


def first_queries(x: Array, y: Array, qid: npt.NDArray[np.int32]) -> Scored:
    """Return the rows that models are scored on."""
    n = int(np.searchsorted(qid, SCORED_QUERIES))
    return host(x[:n]), host(y[:n]), qid[:n]


def parameters(config: Config) -> dict[str, Any]:
    """Return the parameters of a fit, by names that XGBoost knows but for those of ours alone."""
    pairs = {"lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": config.pairs}
    return {
        "objective": config.objective, "max_depth": config.depth, "learning_rate": config.learning_rate,
        "device": config.device, **(pairs if config.objective in OBJECTIVES else {}), **config.more,
    }  # fmt: skip


def contender(config: Config, data: Any, train: Callable[..., Any], predict: Callable[..., Any], scored: Scored
              ) -> Callable[[], Run]:  # fmt: skip
    """Return what gives the seconds of a tree; a model is scored once."""
    params = parameters(config)

    def tree_seconds() -> tuple[float, Any]:
        short = max(1, config.trees // 5)
        few = timed(lambda: train(params, data, short))[0]
        all_, model = timed(lambda: train(params, data, config.trees))
        return (all_ - few) / (config.trees - short), model

    return scored_once(tree_seconds, predict, scored)


def catboost_contender(config: Config, x: Array, y: Array, qid: npt.NDArray[np.int32], scored: Scored
                       ) -> Callable[[], Run]:  # fmt: skip
    """Return what gives the seconds of CatBoost's tree; a model is scored once."""
    pool = peers.catboost_query_pool(host(x), host(y), qid, CATBOOST_BORDERS, config.device)
    train = partial(
        peers.catboost_rank, pool, OF_CATBOOST[config.objective], config.depth, config.learning_rate, config.device
    )
    return scored_once(
        lambda: peers.catboost_tree_seconds(train, config.trees), lambda model, rows: model.predict(rows), scored
    )


def scored_once(tree_seconds: Callable[[], tuple[float, Any]], predict: Callable[..., Any], scored: Scored
                ) -> Callable[[], Run]:  # fmt: skip
    """Return a contender whose first model is scored; `tree_seconds` : gives the seconds of a tree, and the model."""
    found: dict[str, float] = {}
    x, y, qid = scored

    def run() -> Run:
        seconds, model = tree_seconds()
        if not found:
            found.update(ndcg=ndcg(y, np.asarray(predict(model, x)), qid), **digest_of(model))
        return Run(seconds, found)

    return run


def no_worse(runs: Mapping[str, Run]) -> None:
    """The check that ours ranks as well."""
    values = {name: run.answer["ndcg"] for name, run in runs.items()}
    for peer, leeway in LEEWAY.items():
        if any(values[name] < values.get(peer, 0.0) - leeway for name in values if name.startswith("daskboost")):
            raise AssertionError(f"NDCG of ours is lower: {values}")


def bench(config: Config, names: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of repeats, and of each of ours beside the peer, which is named last."""
    x, y, qid = rows(config)
    scored = first_queries(x, y, qid)
    own = ours.quantize(x, y, qid=qid, device=config.device) if any("daskboost" in name for name in names) else None
    symmetric = replace(config, more={**config.more, "grow_policy": "symmetric"})
    kinds: dict[str, Callable[[], Callable[[], Run]]] = {
        "daskboost": lambda: contender(config, own, ours.train, ours.predict, scored),
        "daskboost symmetric": lambda: contender(symmetric, own, ours.train, ours.predict, scored),
        "xgboost": lambda: contender(
            config, peers.xgboost_query_matrix(x, y, qid), peers.xgboost_train, peers.xgboost_predict, scored
        ),
        "catboost": lambda: catboost_contender(config, x, y, qid, scored),
    }
    result = interleave({name: kinds[name]() for name in names}, config.repeats, no_worse)
    for name in names:
        ms, score = 1e3 * result.seconds(name), result.runs[name][0].answer["ndcg"]
        print(f"  {config.objective} {name}: {ms:.3f} ms a tree, NDCG@10 {score:.4f}", flush=True)
    *mine, peer = names
    beside = [beside_row(config.objective, result, name, peer, asked=config.asked) for name in mine]
    return [*comparison_rows(config.objective, result), *beside]


def bench_many(config: Config, clients: Mapping[int, Any]) -> Iterator[dict[str, Any]]:
    """Measure ours on several numbers of workers; give the rows of repeats, and of each number beside the fewest."""
    from distributed import wait

    from daskboost import QuantizedDataset

    by_query = queries(replace(config, order="sorted"))
    n = int(np.searchsorted(by_query, SCORED_QUERIES))
    x, score = scored_features(config, 0, max(n, min(config.n_rows, 100_000)))
    begins = borders(config, score)
    scored = host(x[:n]), host(grades(config, score[:n], begins)), by_query[:n]
    name, contenders = f"{config.objective} {config.order}", {}
    with ExitStack() as stack:
        for n_gpus, client in clients.items():
            with client.as_current():
                made = client.persist([*collections(config, BLOCKS_PER_GPU * max(clients), host(begins).tolist())])
                wait(made)
            data = stack.enter_context(
                QuantizedDataset.from_dask(*made[:2], qid=made[2], client=client, device=config.device)
            )
            joins = {"reduction": "nccl"} if n_gpus > 1 and config.device != "cpu" else {}
            del made
            contenders[f"daskboost on {n_gpus}"] = contender(
                replace(config, more=joins), data, ours.train, ours.predict, scored
            )
        result = interleave(contenders, config.repeats, scores_agree("model", 0.0))
    yield from comparison_rows(name, result)
    for own in contenders:
        print(f"  {name}: {own}: {1e3 * result.seconds(own):.3f} ms a tree", flush=True)
    fewest, *others = contenders
    for own in others:
        yield beside_row(name, result, own, fewest, asked=config.asked)


def contenders_of(objective: str) -> list[str]:
    """Return which are measured on one GPU, the peer last."""
    return ["daskboost", "daskboost symmetric", "catboost"] if objective in OF_CATBOOST else ["daskboost", "xgboost"]


def changed(config: Config, options: argparse.Namespace) -> Config:
    """Return a case with what options give."""
    given = {
        "n_rows": options.rows, "n_features": options.features, "n_queries": options.queries,
        "largest": options.largest, "trees": options.trees, "device": options.device, "repeats": options.repeats,
    }  # fmt: skip
    return replace(config, **{name: value for name, value in given.items() if value is not None})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--features", type=int, default=Config.n_features)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--largest", type=int, help="rows of the first query; 0 where it is like the others")
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--contenders", default="", help="the peer last; none: those of the objective")
    parser.add_argument("--gpus", default="", help="numbers of GPUs, each a cluster; none: one GPU in this process")
    parser.add_argument("--orders", default=",".join(ORDERS), help="of rows on several GPUs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    n_gpus = [int(n) for n in options.gpus.split(",") if n]
    with ExitStack() as stack:
        clients = {n: open_cluster(n, options.device, stack) for n in n_gpus}
        for objective in options.objectives.split(","):
            usual = replace(MANY, objective=objective) if n_gpus else USUAL[objective]
            config = changed(usual, options)
            for order in options.orders.split(",") if n_gpus else (config.order,):
                own = replace(config, order=order)
                names = options.contenders.split(",") if options.contenders else contenders_of(objective)
                found = [*bench_many(own, clients)] if n_gpus else bench(own, names)
                about = {"gpu": gpu_name(own.device)}
                record("gpu_ranking", own, [{**about, **row} for row in found], options.results)


if __name__ == "__main__":
    main()
