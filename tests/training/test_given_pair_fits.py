"""Fits of pairs that users name: bytes that depend on rows and pairs alone, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.test_several_gpus import emulated, share_any_data
from cluster.test_shared_queries import client as client
from cluster.test_shared_queries import dataset, make_rows, spread
from kernels.tracked import TrackedRuntime
from reference.given_pairs import pair_gradients
from training.plan_shapes import within
from training.test_ranking_fits import WHERE, emulate

from daskboost import Booster, DaskBoostRanker, DaskBoostRegressor, QuantizedDataset, cv, plan, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import whole_rounds
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.pair_logit import PairLogit, pair_logit

PARAMS: dict[str, Any] = {"objective": "pairlogit", "max_depth": 3, "n_jobs": 1, "min_child_weight": 0}
FEATURES = list("abcd")


def make_pairs(frame: pd.DataFrame, n: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of rows of a query, the first of which mostly has the larger a + b, and their weights."""
    rng = np.random.default_rng(5)
    order = np.argsort(pd.factorize(frame.q)[0], kind="stable")
    code = pd.factorize(frame.q)[0][order]
    first = rng.integers(0, len(frame), n)
    begins, ends = np.searchsorted(code, code[first]), np.searchsorted(code, code[first], side="right")
    second = begins + (rng.random(n) * (ends - begins)).astype(int)
    pairs = np.stack([order[first], order[second]], axis=1)[first != second]
    value = (frame.a + frame.b).to_numpy()[pairs] + rng.normal(size=pairs.shape) * 4
    pairs[value[:, 0] < value[:, 1]] = pairs[value[:, 0] < value[:, 1]][:, ::-1]
    return pairs, rng.uniform(0, 2, len(pairs)).astype(np.float32)


def values(model: Booster) -> tuple[bytes, ...]:
    assert all(tree.n_nodes > 1 for tree in model.trees)
    return tuple(tree.value.tobytes() for tree in model.trees)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("n_rows", [600, 4_500])
def test_models_depend_on_rows_and_pairs_alone(n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever chunks, threads, device and order of pairs."""
    emulate(where, monkeypatch)
    frame, found = make_rows(n_rows), []
    pairs, weight = make_pairs(frame)
    order = np.random.default_rng(1).permutation(len(pairs))
    given = {"X": frame[FEATURES], "y": frame.y, "qid": frame.q, "weight": frame.w}
    for device, chunk_rows, jobs in (("cpu", 0, 1), ("cpu", 333, 3), ("cuda", 0, 1)):
        with QuantizedDataset.from_dask(**given, max_bin=32, n_jobs=1, chunk_rows=chunk_rows) as data:
            params = {**PARAMS, "device": device, "n_jobs": jobs}
            begun = train(params, data, 2, pairs=pairs, pair_weight=weight)
            found += [train(params, data, 4, pairs=pairs[order], pair_weight=weight[order]),
                      train(params, data, 2, pairs=pairs, pair_weight=weight, init_model=begun)]  # fmt: skip
    assert len(set(map(values, found))) == 1


def test_the_first_tree_steps_along_the_gradients_of_pairs() -> None:
    """Each leaf's value is minus the sum of its rows' gradients over that of their second derivatives."""
    frame = make_rows(600)
    pairs, weight = make_pairs(frame)
    with QuantizedDataset.from_dask(frame[FEATURES], frame.y, qid=frame.q, weight=frame.w) as data:
        model = train({**PARAMS, "learning_rate": 1, "reg_lambda": 0}, data, 1, pairs=pairs, pair_weight=weight)
    g, h = pair_gradients(pairs, weight, frame.q.to_numpy(), np.zeros(len(frame)), frame.w.to_numpy())
    leaf, predicted = model.predict(frame[FEATURES], output="leaf")[:, 0], model.predict(frame[FEATURES])
    for own in np.unique(leaf):
        rows = leaf == own
        np.testing.assert_allclose(predicted[rows], -g[rows].sum() / h[rows].sum(), rtol=2e-3, atol=1e-4)


def test_leaves_are_those_of_catboost() -> None:
    """One split of two values of a feature. CatBoost adds a constant to all leaves, which no pair sees."""
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (60, 1)).astype(np.float32)
    qid = np.repeat(np.arange(6), 10)
    pairs = np.array([(a, b) for a in range(60) for b in range(60) if a // 10 == b // 10 and a != b
                      and rng.random() < (0.3 if x[a] > x[b] else 0.1)])  # fmt: skip
    weight = rng.uniform(0.5, 2, len(pairs))
    pool = catboost.Pool(x, group_id=qid, pairs=pairs, pairs_weight=weight)
    theirs = catboost.CatBoost({
        "loss_function": "PairLogit", "iterations": 1, "depth": 1, "learning_rate": 1, "l2_leaf_reg": 0,
        "leaf_estimation_method": "Newton", "leaf_estimation_iterations": 1, "verbose": 0, "allow_writing_files": False,
        "boosting_type": "Plain", "bootstrap_type": "No", "random_strength": 0, "thread_count": 1,
    }).fit(pool)  # fmt: skip
    with QuantizedDataset.from_dask(x, qid=qid) as data:
        ours = train({**PARAMS, "max_depth": 1, "learning_rate": 1, "reg_lambda": 0}, data, 1,
                     pairs=pairs, pair_weight=weight)  # fmt: skip
    found = [np.diff(model.predict(np.array([[0], [1]], np.float32))) for model in (ours, theirs)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert found[0] > 1


@pytest.mark.parametrize(("n", "n_engines", "reduction", "by_host"), [
    (600, 2, "auto", False), (4_500, 3, "auto", True), (4_500, 3, "coordinator", False),
])  # fmt: skip
def test_engines_give_the_model_of_one(
    n: int, n_engines: int, reduction: str, by_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, params = make_rows(n), {**PARAMS, "reduction": reduction}
    pairs, weight = make_pairs(frame)
    expected = train(params, dataset(frame, 1, chunk_rows=65_536), 3, pairs=pairs, pair_weight=weight)
    if by_host:
        monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    found = train(params, dataset(frame, n_engines), 3, pairs=pairs, pair_weight=weight)
    assert found.to_bytes() == expected.to_bytes() and values(found)


@pytest.mark.emulated
@pytest.mark.parametrize(("n", "joined"), [(4_500, True), (600, False)])
def test_gpus_give_the_model_of_one_cpu(n: int, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    share_any_data(monkeypatch)
    emulated(monkeypatch, 2)
    frame = make_rows(n)
    pairs, weight = make_pairs(frame)
    with dataset(frame, 1, chunk_rows=65_536) as data:
        gpus = {"device": "cuda", "n_gpus": 2, "reduction": "auto" if joined else "peers"}
        found = [
            train({**PARAMS, **place}, data, 3, pairs=pairs, pair_weight=weight).to_bytes()
            for place in ({"device": "cpu"}, gpus)
        ]  # fmt: skip
    assert found[0] == found[1]


def test_rankers_take_pairs_wherever_rows_lie(client: Any) -> None:
    """Pairs are arrays, frames or Dask's collections of them; labels need not be there."""
    frame = make_rows(900)
    pairs, weight = make_pairs(frame)
    there = spread(client, frame, 3, [0, 300, 301, 800, 900])
    lazy = da.from_array(pairs, chunks=(500, 2)), da.from_array(weight, chunks=700)
    columns = dd.from_pandas(pd.DataFrame(pairs, columns=["winner", "loser"]), npartitions=2), lazy[1]
    found = []
    for rows, given, y in (
        (frame, (pairs, weight), frame.y), (frame, (pairs.tolist(), weight.tolist()), None), (there, lazy, there.y),
        (there, columns, None), (frame, lazy, frame.y),
    ):  # fmt: skip
        model = DaskBoostRanker(
            objective="pairlogit", n_estimators=3, max_depth=3, max_bin=32, learning_rate=0.3, min_child_weight=0
        )
        model.fit(rows[FEATURES], y, qid=rows.q, sample_weight=rows.w, pairs=given[0], pair_weight=given[1])
        found.append(model.booster_.to_bytes())
        assert model.objective == "pairlogit" and model.booster_.objective == PairLogit()
    assert len(set(found)) == 1
    with QuantizedDataset.from_dask(there[FEATURES], qid=there.q, weight=there.w, max_bin=32, client=client) as data:
        direct = train({**PARAMS, "n_jobs": 0}, data, 3, pairs=lazy[0], pair_weight=lazy[1])
    assert values(direct) == values(Booster.from_bytes(found[0]))


def test_pairs_are_learned_and_files_keep_the_loss_alone() -> None:
    frame = make_rows(4_500)
    pairs, _ = make_pairs(frame, 20_000)
    data = QuantizedDataset(frame[FEATURES], qid=frame.q)
    model = train(PARAMS, data, 30, pairs=pairs[:15_000])
    score = model.predict(frame[FEATURES])[pairs[15_000:]]
    assert (score[:, 0] > score[:, 1]).mean() > 0.75
    for form in ("json", "ubj"):
        again = Booster.from_bytes(model.to_bytes(form))
        assert again.objective == model.objective == PairLogit()
        assert again.to_bytes("json") == model.to_bytes("json")
    document = json.loads(model.to_bytes("json"))["learner"]
    assert document["objective"]["name"] == "rank:pairwise"


def test_pairs_of_all_labels_are_what_is_done_without_pairs() -> None:
    frame = make_rows(600)
    code, y = frame.q.to_numpy(), frame.y.to_numpy()
    first, second = np.nonzero((code[:, None] == code) & (y[:, None] > y))
    data = QuantizedDataset(frame[FEATURES], frame.y, qid=frame.q)
    found = [train(PARAMS, data, 5, pairs=pairs).predict(frame[FEATURES]) if pairs is not None
             else train(PARAMS, data, 5).predict(frame[FEATURES])
             for pairs in (None, np.stack([first, second], axis=1))]  # fmt: skip
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_rows_that_do_not_count_have_no_pairs() -> None:
    """Rows of weight 0, and those that a subset or a fold leaves out."""
    frame = make_rows(900)
    pairs, weight = make_pairs(frame)
    is_in = frame.q.to_numpy() % 3 > 0
    kept = is_in[pairs].all(axis=1)
    with QuantizedDataset.from_dask(frame[FEATURES], frame.y, qid=frame.q) as data:
        part = data.subset(np.flatnonzero(is_in))
        found = [train(PARAMS, part, 3, pairs=pairs[own], pair_weight=weight[own]) for own in (slice(None), kept)]
        result = cv({**PARAMS, "objective": pair_logit(pairs, weight), "eval_metric": "ndcg@5"}, data, 3, folds=3)
    assert values(found[0]) == values(found[1])
    assert len(result) == 3


@pytest.mark.emulated
def test_a_fit_stays_within_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    frame = make_rows(8_000)
    objective = pair_logit(make_pairs(frame, 60_000)[0])
    params = {**PARAMS, "objective": objective, "device": "cuda"}
    with QuantizedDataset.from_dask(frame[FEATURES], frame.y, qid=frame.q, max_bin=64, n_jobs=1) as data:
        planned = plan(params, data, num_boost_round=3)
        assert planned.without_host
        train(params, data, 3)
    within(runtime.meter.pool.total_bytes, planned)


def test_pairs_take_room_in_plans_of_cpus() -> None:
    frame = make_rows(600)
    pairs, _ = make_pairs(frame)
    with QuantizedDataset.from_dask(frame[FEATURES], frame.y, qid=frame.q) as data:
        few, many = (
            plan({**PARAMS, "objective": pair_logit(own), "device": "cpu"}, data).total_bytes
            for own in (pairs[:100], pairs)
        )
    assert many - few == 150 * (len(pairs) - 100)


BAD: list[tuple[Any, Any, str]] = [
    (np.zeros((3, 3), int), None, "pairs has the shape (3, 3); give an array of shape (pairs, 2)"),
    (np.zeros((0, 2), int), None, "pairs has the shape (0, 2)"),
    ([(0, 1), (1, np.nan)], None, "pairs[1] is (1.0, nan), which are no numbers of rows"),
    ([(0, 1), (-1, 1)], None, "pairs[1] is (-1, 1), which are no numbers of rows"),
    ([(0.5, 1)], None, "pairs[0] is (0.5, 1.0), which are no numbers of rows"),
    ([("a", "b")], None, "pairs has the dtype <U1"),
    ([(0, 30), (4, 4)], None, "pairs[1] has row 4 twice"),
    ([(0, 600)], None, "pairs[0] is (0, 600), but the training data has 600 rows, numbered from 0 on"),
    ([(0, 30)], [1, 2], "pair_weight has the shape (2,) and dtype int64 for 1 pairs"),
    ([(0, 30)], [-1.0], "pair_weight[0] is -1.0; weights must be finite and at least 0"),
    ([(0, 30), (0, 30)], [1, np.inf], "pair_weight[1] is inf"),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "weight", "message"), BAD)
def test_bad_pairs_are_refused(pairs: Any, weight: Any, message: str) -> None:
    frame = make_rows(600)
    data = QuantizedDataset(frame[FEATURES], qid=frame.q)
    with pytest.raises(DataError, match=re.escape(message)):
        train(PARAMS, data, 1, pairs=pairs, pair_weight=weight)
    with pytest.raises(DataError, match=re.escape(message)):
        DaskBoostRanker(objective="pairlogit").fit(frame[FEATURES], qid=frame.q, pairs=pairs, pair_weight=weight)


def test_pairs_across_queries_are_refused_wherever_they_lie(client: Any) -> None:
    frame = make_rows(900).assign(w=1.0)
    first = np.flatnonzero(frame.q == 5)[0]
    other = np.flatnonzero(frame.q == 7)[-1]
    pairs = np.concatenate([make_pairs(frame)[0][:9], [(other, first)]])
    message = re.escape(f"pairs[9] is of rows {other} and {first}, which are of different queries, 5 and 7: scores")
    for n_engines in (1, 3):
        with pytest.raises(DataError, match=message):
            train(PARAMS, dataset(frame, n_engines), 1, pairs=pairs)
    ranker = DaskBoostRanker(objective="pairlogit", n_estimators=1)
    for rows in (frame, spread(client, frame, 3, [0, 300, 600, 900])):
        with pytest.raises(DataError, match=message):
            ranker.fit(rows[FEATURES], qid=rows.q, pairs=pairs)


def test_what_does_not_go_with_pairs_is_refused() -> None:
    frame = make_rows(600)
    pairs, weight = make_pairs(frame)
    data = QuantizedDataset(frame[FEATURES], qid=frame.q)
    with pytest.raises(DataError, match="dtrain has no qids; make it with qid"):
        train(PARAMS, QuantizedDataset(frame[FEATURES], frame.y), 1, pairs=pairs)
    with pytest.raises(DataError, match="train has no labels; make it with y"):
        train(PARAMS, data, 1, pairs=pairs, evals=[(data, "train")])
    with pytest.raises(DataError, match="dtrain has no labels; make it with y"):
        train(PARAMS, data, 1)
    with pytest.raises(ParameterError, match="lambdarank_unbiased=True has no effect with objective='pairlogit'"):
        train({**PARAMS, "lambdarank_unbiased": True}, data, 1, pairs=pairs)
    with pytest.raises(ParameterError, match=r"pairs has no effect with objective='rank:ndcg'.*use objective='pair"):
        train({**PARAMS, "objective": "rank:ndcg"}, data, 1, pairs=pairs)
    with pytest.raises(ParameterError, match="pair_weight has no effect without pairs"):
        train(PARAMS, data, 1, pair_weight=weight)
    with pytest.raises(ParameterError, match="'certified' does not go with objective='pairlogit'"):
        train({**PARAMS, "out_of_core": "certified"}, data, 1, pairs=pairs)
    with pytest.raises(ParameterError, match="pairs has no effect with objective='reg:squarederror'"):
        DaskBoostRegressor().fit(frame[FEATURES], frame.y, pairs=pairs)
    with pytest.raises(DataError, match="DaskBoostRanker requires y to be passed"):
        DaskBoostRanker(objective="pairlogit").fit(frame[FEATURES], qid=frame.q)
    catboosts: dict[str, Any] = {"pairs_weight": weight}
    with pytest.raises(ParameterError, match="pair_weight has no effect without pairs"):
        DaskBoostRanker().fit(frame[FEATURES], frame.y, qid=frame.q, **catboosts)
