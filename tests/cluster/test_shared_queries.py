"""Rankings whose rows lie on several engines: the model and the metrics of one engine, wherever rows of a query lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import local_cluster, worker_addresses
from cluster.test_several_gpus import emulated, share_any_data
from dask import delayed
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.tracked import TrackedRuntime
from reference.query_owners import most_rows
from strategies.pairs import every_pair

from daskboost import DaskBoostRanker, QuantizedDataset, plan, train
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.row_columns import ChunkRows
from daskboost.data.input.source import make_source
from daskboost.devices.budget import partition
from daskboost.devices.gpu.rows.moved_rows import MovedRows, MovedScores
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import whole_rounds
from daskboost.engine.passes import RowSets
from daskboost.engine.query_owners import OwnedQueries
from daskboost.engine.row_groups import RowGroup
from daskboost.errors import DataError, DeviceError
from daskboost.fit import recipe
from daskboost.fit.peers import Peers
from daskboost.local.links import local_peers

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
N, PARTS = 4_500, 9
"""Rows, more than small data have, and partitions, of which the last engine has fewer."""
DRAWN: dict[str, Any] = {"subsample": 0.6, "sampling_unit": "group"}
METRICS = ["rmse", "ndcg@5", "map-", "mrr"]
BASE: dict[str, Any] = {"max_depth": 3, "max_bin": 32, "n_jobs": 1, "eval_metric": METRICS, "min_child_weight": 0}


def make_rows(n: int = N, *, by_query: bool = False) -> pd.DataFrame:
    """Return rows in no order, or query by query; one query of a tenth of them, labels 0 and 1, and a weight of each
    query, which some rows lack."""
    rng = np.random.default_rng(7)
    qid = rng.integers(0, n // 15, n)
    qid[: n // 10] = n
    frame = pd.DataFrame(rng.integers(0, 25, (n, 4)), columns=list("abcd"), dtype=np.float32)
    frame = frame.assign(q=[f"query {own}" for own in np.sort(qid)] if by_query else qid)
    frame["y"] = (frame.a + frame.b + rng.normal(size=n) * 8 > 28).astype(np.float32)
    weight = rng.uniform(0.5, 2, n + 1).astype(np.float32)
    return frame.assign(w=weight[pd.factorize(frame.q)[0]] * (np.arange(n) % 40 > 0))


def dataset(
    frame: pd.DataFrame, n_engines: int, *, weighted: bool = True, chunk_rows: int = 300,
    reference: QuantizedDataset | None = None,
) -> QuantizedDataset:  # fmt: skip
    """Return rows of this process, partitions of which go round the engines."""
    parts = dd.from_pandas(frame, npartitions=PARTS, sort=False)
    source = make_source(parts[list("abcd")], parts["y"], qid=parts["q"], weight=parts["w"] if weighted else None)
    options = BuildOptions(32, "dense", "aligned", chunk_rows)
    return QuantizedDataset.from_source(source, options, n_engines=n_engines, reference=reference)


def outcome(params: dict[str, Any], data: QuantizedDataset, rounds: int = 3) -> tuple[bytes, Any]:
    """Return a model's file, and its metrics on the training rows."""
    history: dict[str, Any] = {}
    model = train({**BASE, **params}, data, rounds, evals=[(data, "train")], evals_result=history)
    assert all(tree.n_nodes > 1 for tree in model.trees)
    return model.to_bytes(), history


LOSSES: dict[str, dict[str, Any]] = {
    "ndcg": {"objective": "rank:ndcg"}, "map": {"objective": "rank:map"},
    "drawn": {"objective": "rank:pairwise", "lambdarank_pair_method": "mean"}, "no ranking": {},
    "clicks": {"objective": "rank:ndcg", "lambdarank_unbiased": True, "lambdarank_num_pair_per_sample": 300},
}  # fmt: skip


@every_pair({
    "loss": LOSSES, "n_engines": [2, 3], "reduction": ["auto", "coordinator"], "n": [600, N],
    "by_query": [False, True], "weighted": [False, True], "by_host": [False, True], "growth": [{}, DRAWN],
})  # fmt: skip
def test_engines_of_a_process_give_the_model_of_one(
    loss: str, n_engines: int, reduction: str, n: int, by_query: bool, weighted: bool, by_host: bool,
    growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    frame, params = make_rows(n, by_query=by_query), {**LOSSES[loss], **growth, "reduction": reduction}
    expected = outcome(params, dataset(frame, 1, weighted=weighted, chunk_rows=65_536))
    if by_host:
        monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    assert outcome(params, dataset(frame, n_engines, weighted=weighted)) == expected


@every_pair({
    "loss": LOSSES, "n_gpus": [2, 3], "joined": [True, True, False], "n": [600, N], "by_query": [False, True],
    "weighted": [False, True], "watched": [False, True],
    "growth": [{}, {"subsample": 0.6}, DRAWN],
})  # fmt: skip
@pytest.mark.emulated
def test_gpus_give_the_model_of_one_cpu(
    loss: str, n_gpus: int, joined: bool, n: int, by_query: bool, weighted: bool, watched: bool,
    growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Joined GPUs tell each other scores and gradients within a round; others by their hosts."""
    share_any_data(monkeypatch)
    emulated(monkeypatch, n_gpus)
    moved = noted_moves(monkeypatch)
    evaluate = RowSets.evaluate
    where: list[str] = []

    def noted(self: RowSets, message: Any) -> Any:
        where.append(self._device.name)
        return evaluate(self, message)

    monkeypatch.setattr(RowSets, "evaluate", noted)
    frame, params = make_rows(n, by_query=by_query), {**LOSSES[loss], **growth}
    if not watched:
        monkeypatch.setattr(recipe, "_metrics_reason", lambda *_: "the test says so")
    data = dataset(frame, 1, weighted=weighted, chunk_rows=65_536)
    expected = outcome({**params, "device": "cpu"}, data)
    where.clear()
    reduction = "auto" if joined else "peers"
    assert outcome({**params, "device": "cuda", "n_gpus": n_gpus, "reduction": reduction}, data) == expected
    assert (not where) == (watched and joined)
    assert moved == (set() if not joined or (loss == "no ranking" and not watched) else {"scores"} | (
        {"gradients"} if loss != "no ranking" else set()))


def noted_moves(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return what GPUs tell each other of rows, as it is told."""
    found: set[str] = set()

    def note(kind: Any, name: str, what: str) -> None:
        work = getattr(kind, name)

        def noted(*arguments: Any) -> Any:
            found.add(what)
            return work(*arguments)

        monkeypatch.setattr(kind, name, noted)

    note(MovedScores, "of_all", "scores")
    note(MovedRows, "fill", "gradients")
    return found


@pytest.mark.emulated
def test_gpus_stay_within_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of queries in no order, of which each GPU sends about a half; one meter counts both."""
    share_any_data(monkeypatch)
    runtimes = [TrackedRuntime(), TrackedRuntime()]
    for number, each in enumerate(runtimes):
        each.device, each.name, each.meter = number, f"GPU {number}", runtimes[-1].meter
    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: runtimes[number or 0])
    monkeypatch.setattr(cuda, "n_visible", lambda: 2)
    params = {**BASE, "objective": "rank:ndcg", "device": "cuda", "n_gpus": 2}
    with dataset(make_rows(), 1, chunk_rows=65_536) as data:
        planned = plan(params, data, evals=[(data, "train")], num_boost_round=2)
        train(params, data, 2, evals=[(data, "train")])
    taken = runtimes[-1].meter.pool.total_bytes
    assert 1.2 * planned.total_bytes <= taken <= 2 * planned.total_bytes, f"took {taken:,} bytes of twice\n{planned}"


@pytest.mark.emulated
@pytest.mark.parametrize("growth", [{}, {"partition_by": "columns"}])
def test_an_evaluation_set_that_one_gpu_has(growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other GPUs tell it nothing, but do so together with it. GPUs that share features refuse rankings."""
    share_any_data(monkeypatch)
    emulated(monkeypatch, 2)
    few = make_rows(600)[:9]
    found: list[tuple[bytes, Any]] = []
    with dataset(make_rows(), 1, chunk_rows=65_536) as data, dataset(few, 1, reference=data) as valid:
        for device in ({"device": "cpu"}, {"device": "cuda", "n_gpus": 2, **growth}):
            history: dict[str, Any] = {}
            evals = [(valid, "few"), (data, "train")]
            if growth and device["device"] == "cuda":
                with pytest.raises(DeviceError, match="partition_by='columns' was asked for, and rows are ranked by q"):
                    train({**BASE, "objective": "rank:map", **device}, data, 2, evals=evals)
                continue
            model = train({**BASE, "objective": "rank:map", **device}, data, 2, evals=evals, evals_result=history)
            found.append((model.to_bytes(), history))
    assert found[0] == found[-1]


def test_what_is_selected_and_what_is_continued() -> None:
    """Weight 0 of the rows that are left out, and margins of a model that goes on."""
    frame, found = make_rows(), []
    rows = np.flatnonzero(np.random.default_rng(5).random(N) < 0.7)
    for n_engines in (1, 3):
        data = dataset(frame, n_engines)
        history: dict[str, Any] = {}
        part = data.subset(rows)
        params = {**BASE, "objective": "rank:ndcg", "subsample": 0.7}
        first = train(params, part, 2)
        model = train(params, part, 2, init_model=first, evals=[(data, "all"), (part, "part")], evals_result=history)
        found.append((model.to_bytes(), history))
    assert found[0] == found[1]


def together(n: int, work: Callable[[int, Peers], T]) -> list[T]:
    """Return what engines in threads of their own find, each by its place."""
    peers = local_peers(n)
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n), peers))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_each_query_has_one_owner_that_has_most_of_its_rows(n: int, rows: list[tuple[int, int]]) -> None:
    """Owners see all rows of their queries in the order of their ids, and each row has back what its owner says."""
    engines = [[(row, query) for row, (query, own) in enumerate(rows) if own % n == rank] for rank in range(n)]

    def work(rank: int, peers: Peers) -> Any:
        own = engines[rank]
        groups = [
            RowGroup(range(0, 1), 1, ((0, row),), ChunkRows(np.array([row], np.float32), qid=np.array([query])))
            for row, query in own
        ]  # fmt: skip
        found = OwnedQueries.of(groups, peers)
        scores = found.scores(np.array([row for row, _ in own], np.float32))
        answers = found.moves.from_owners(np.stack([scores[len(own) :] * 2, scores[len(own) :] * 3]))
        sent = np.array([row for row, _ in own], np.float32)[found.moves.sent]
        np.testing.assert_array_equal(answers, np.stack([sent * 2, sent * 3]))
        ranked = scores[found.rows.order]
        np.testing.assert_array_equal(ranked, found.rows.label)
        np.testing.assert_array_equal(ranked, found.rows.ids)
        room = found.moves.most_sent
        with_room = np.full(len(own) + n * room, np.nan, np.float32)
        with_room[found.with_room(room).order] = found.rows.label
        told = peers.share(np.pad(sent, (0, room - len(sent))))
        beside = np.concatenate([np.array([row for row, _ in own], np.float32), *told])
        is_ranked = ~np.isnan(with_room)
        np.testing.assert_array_equal(with_room[is_ranked], beside[is_ranked])
        assert found.rows.n_everywhere == len({query for query, _ in rows})
        return np.split(ranked.astype(int), found.rows.begins[1:-1]) if len(ranked) else []

    owned = together(n, work)
    seen = [tuple(ids.tolist()) for queries in owned for ids in queries]
    expected = {query: tuple(row for row, (own, _) in enumerate(rows) if own == query) for query, _ in rows}
    assert sorted(seen) == sorted(expected.values())
    for rank, queries in enumerate(owned):
        for ids in queries:
            assert rank in most_rows([rows[row][1] % n for row in ids.tolist()])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of three workers that are threads of this process, to whom no data are too small to share."""
    with pytest.MonkeyPatch.context() as patch, local_cluster(3, processes=False) as made:
        patch.setattr(partition, "ONE_ENGINE_BYTES", 0)
        yield made


def spread(client: Client, frame: pd.DataFrame, n_workers: int, edges: Sequence[int]) -> Any:
    """Return a Dask DataFrame whose partitions go round some workers."""
    workers = itertools.cycle(worker_addresses(client)[:n_workers])
    parts = [
        client.scatter(frame[a:b], workers=[next(workers)], hash=False) for a, b in itertools.pairwise(edges)
    ]  # fmt: skip
    return dd.from_delayed([delayed(part) for part in parts], meta=frame[:0], verify_meta=False)


@pytest.mark.parametrize(("n_workers", "by_query"), [(1, False), (2, True), (3, False)])
def test_a_ranker_on_a_cluster_is_that_of_this_process(client: Client, n_workers: int, by_query: bool) -> None:
    """Borders of partitions cut queries. Queries are named by a column, or by a collection beside X."""
    frame, valid = make_rows(by_query=by_query), make_rows(900)
    model = DaskBoostRanker(**{**BASE, **DRAWN, "eval_metric": ["ndcg@5", "map"]}, n_estimators=3)

    def fitted(rows: Any, others: Any, by_name: bool) -> tuple[bytes, Any]:
        def name(one: Any, column: str) -> Any:
            return column if by_name else one[column]

        features = list("abcd")
        x = rows if by_name else rows[features]
        model.fit(
            x, name(rows, "y"), qid=name(rows, "q"), sample_weight=name(rows, "w"),
            eval_set=[(x, name(rows, "y")), (others if by_name else others[features], name(others, "y"))],
            eval_qid=[name(rows, "q"), name(others, "q")], sample_weight_eval_set=[name(rows, "w"), None],
        )  # fmt: skip
        return model.booster_.to_bytes(), model.evals_result_

    expected = fitted(frame, valid, by_name=False)
    there = spread(client, frame, n_workers, [0, 500, 501, 1_700, 2_900, 4_000, N])
    others = spread(client, valid, n_workers, [0, 70, 600, 900])
    assert fitted(there, others, by_name=False) == expected
    assert fitted(there, others.drop(columns="w"), by_name=True) == expected


def test_arrays_and_other_losses_with_metrics_of_queries(client: Client) -> None:
    frame = make_rows(900)
    given = {"X": frame[list("abcd")].to_numpy(), "y": frame.y.to_numpy(), "qid": frame.q.to_numpy()}
    there = {name: da.from_array(own, chunks=(250, *own.shape[1:])) for name, own in given.items()}
    with QuantizedDataset.from_dask(**given, max_bin=32) as data:
        expected = outcome({}, data)
    with QuantizedDataset.from_dask(**there, max_bin=32, client=client) as data:
        assert outcome({}, data) == expected


def test_bad_rows_are_refused_wherever_they_lie(client: Client) -> None:
    frame = make_rows(900).assign(w=1.0)
    own = np.flatnonzero(frame.q == 5)
    frame.loc[own[-1], "w"] = 2.0
    message = rf"weight differs within a query: its row {own[0]} weighs 1, its row {own[-1]} 2\. Ranking weighs queries"
    for n_engines in (1, 3):
        with pytest.raises(DataError, match=message):
            train({**BASE, "objective": "rank:ndcg"}, dataset(frame, n_engines), 2)
    there = spread(client, frame, 3, [0, 300, 600, 900])
    with pytest.raises(DataError, match=message):
        DaskBoostRanker(n_estimators=2).fit(there, "y", qid="q", sample_weight="w")
    with pytest.raises(DataError, match="objective='rank:ndcg' ranks the rows of queries; pass qid"):
        DaskBoostRanker(n_estimators=2).fit(there, "y")
    with pytest.raises(DataError, match=r"eval_set\[0\] has no queries"):
        DaskBoostRanker(n_estimators=2).fit(there, "y", qid="q", eval_set=[(there, "y")])
    with QuantizedDataset.from_dask(there[list("abcd")], there["y"], client=client) as data:
        with pytest.raises(DataError, match="dtrain has no qids; make it with qid"):
            train({"objective": "rank:ndcg"}, data, 2)
