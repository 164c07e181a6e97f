"""Gradients of ranking losses against pairs in float64, and against those of XGBoost."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import xgboost
from reference.ranking import ranking_gradients
from strategies.pairs import pairs_of

from daskboost.data.input.labels import LabelStats
from daskboost.devices.cpu.queries import Queries, QueryLoops, query_tasks
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import QueryLoss
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.objectives.objective_names import make_objective, objective_from_config

NAMES = ("rank:ndcg", "rank:pairwise", "rank:map")
KEY = 77
CASES = pairs_of({
    "name": NAMES, "lambdarank_pair_method": ("topk", "mean"), "lambdarank_num_pair_per_sample": (None, 1, 3, 100),
    "lambdarank_normalization": (True, False), "lambdarank_score_normalization": (True, False),
    "ndcg_exp_gain": (True, False), "weighted": (True, False), "ties": ("none", "some", "all"),
})  # fmt: skip


def make_rows(name: str, ties: str, n: int = 300, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return queries, labels and margins in no order: queries of one row, of one label and of 60 rows among them."""
    rng = np.random.default_rng(seed)
    qid = np.concatenate([[-5], np.zeros(7), np.full(60, 1), rng.integers(2, 12, n - 68)]).astype(np.int64)
    label = rng.integers(0, 2 if name == "rank:map" else 5, n).astype(np.float32)
    label[qid == 0] = 1
    margin = rng.normal(size=n).astype(np.float32) * 2
    margin = {"none": margin, "some": margin.round(1), "all": np.zeros_like(margin)}[ties]
    order = rng.permutation(n)
    return qid[order], label[order], margin[order]


def fill(loss: Any, qid: Any, label: Any, margin: Any, weight: Any = None, threads: int = 1) -> tuple[Any, Any]:
    """Return the gradients of rows as a fit computes them; rows of no query have 0."""
    rows = QueryRows.of(qid, label, weight)
    ids = rows.order.astype(np.uint64) if loss.drawn else np.empty(0, np.uint64)
    queries = Queries(rows.order, rows.begins, rows.label, ids, rows.factors(by_weight=True))
    pool = Threads(threads)
    g, h = np.zeros((2, len(qid)), np.float32)
    QueryLoops(loss, queries, pool).fill(np.uint64(KEY), margin, g, h)
    pool.close()
    return g, h


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_gradients_are_those_of_pairs(case: dict[str, Any]) -> None:
    params = dict(case)
    name, weighted, ties = params.pop("name"), params.pop("weighted"), params.pop("ties")
    qid, label, margin = make_rows(name, ties)
    weight = np.random.default_rng(1).uniform(0.5, 3, 20)[qid].astype(np.float32) if weighted else None
    if weight is not None:
        weight[::9] = 0
        weight[qid == 3] = 0
    loss = make_objective(name, params).query_loss
    assert isinstance(loss, QueryLoss)
    found, expected = fill(loss, qid, label, margin, weight), ranking_gradients(loss, qid, label, margin, weight, KEY)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
    assert (found[0] != 0).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["topk", "mean"])
def test_neither_threads_nor_other_queries_nor_order_show(name: str, method: str) -> None:
    qid, label, margin = make_rows(name, "none", 3000)
    loss = make_objective(name, {"lambdarank_pair_method": method}).query_loss
    g, h = fill(loss, qid, label, margin)
    for threads in (2, 5):
        again = fill(loss, qid, label, margin, threads=threads)
        assert np.array_equal(again[0], g) and np.array_equal(again[1], h)
    renamed = fill(loss, -qid, label, margin)
    assert np.array_equal(renamed[0], g) and np.array_equal(renamed[1], h)
    if method == "topk":  # which pairs are drawn depends on the numbers of rows
        order = np.random.default_rng(2).permutation(len(qid))
        moved = fill(loss, qid[order], label[order], margin[order])
        assert np.array_equal(moved[0], g[order]) and np.array_equal(moved[1], h[order])


def test_scores_that_are_not_finite_have_no_gradients() -> None:
    qid, label, margin = make_rows("rank:ndcg", "none")
    margin[np.flatnonzero(qid == 1)[3]] = np.inf
    g, h = fill(make_objective("rank:ndcg").query_loss, qid, label, margin)
    assert np.isnan(g[qid == 1]).all() and np.isnan(h[qid == 1]).all()
    assert np.isfinite(g[qid != 1]).all()


def test_tasks_have_all_queries_once() -> None:
    for sizes in ([], [5], [10**6], [1] * 5000, [10**6, *[10] * 1000], [*[10] * 1000, 10**6]):
        begins = np.cumsum([0, *sizes]).astype(np.int64)
        tasks = query_tasks(begins, 32, 4)
        assert [query for first, last in tasks for query in range(first, last)] == list(range(len(sizes)))


def test_weights_that_differ_within_a_query_are_refused() -> None:
    qid, label, _ = make_rows("rank:ndcg", "none")
    weight = np.ones(len(qid), np.float32)
    rows = np.flatnonzero(qid == 1)
    weight[rows[4]] = 3
    with pytest.raises(DataError, match=f"its row {rows[0]} weighs 1, its row {rows[4]} 3"):
        QueryRows.of(qid, label, weight)


# XGBoost does not tell its gradients, but the sums in the leaves of a tree that it refreshes: here of a row each.

@cache
def leaf_per_row(n: int) -> tuple[xgboost.Booster, Any]:
    """Return a model of one tree that has a leaf for each of `n` rows, whose only feature is their number; and these
    leaves."""
    rows = np.arange(n, dtype=np.float32)[:, None]
    matrix = xgboost.DMatrix(rows, np.random.default_rng(0).permutation(n) * 10.0)
    booster = xgboost.train(
        {"max_depth": 30, "lambda": 0, "min_child_weight": 0, "tree_method": "exact", "eta": 1, "base_score": 0},
        matrix, 1,
    )  # fmt: skip
    leaves = booster.predict(matrix, pred_leaf=True).ravel()
    assert len(np.unique(leaves)) == n
    return booster, leaves


@pytest.mark.filterwarnings("ignore:.*updater")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("params", [
    {}, {"lambdarank_num_pair_per_sample": 4}, {"lambdarank_normalization": False},
    {"lambdarank_score_normalization": False}, {"ndcg_exp_gain": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
def test_gradients_are_those_of_xgboost(name: str, params: dict[str, Any], weighted: bool) -> None:
    qid, label, margin = make_rows(name, "some", 250)
    order = np.argsort(qid, kind="stable")
    qid, label, margin = qid[order], label[order], margin[order]
    own = np.random.default_rng(3).uniform(0.5, 3, len(np.unique(qid))).astype(np.float32) if weighted else None
    weight = None if own is None else np.repeat(own, np.unique(qid, return_counts=True)[1])
    booster, leaves = leaf_per_row(len(qid))
    rows = np.arange(len(qid), dtype=np.float32)[:, None]
    given = {
        "objective": name, "process_type": "update", "updater": "refresh", "lambda": 1.0, "eta": 1, "nthread": 1,
        "min_child_weight": 0, **{key: str(int(value)) for key, value in params.items()},
    }  # fmt: skip
    matrix = xgboost.DMatrix(rows, label, qid=np.unique(qid, return_inverse=True)[1], base_margin=margin, weight=own)
    table = xgboost.train(given, matrix, 1, xgb_model=booster).trees_to_dataframe().set_index("Node").loc[leaves]
    h = table["Cover"].to_numpy()
    g = -table["Gain"].to_numpy() * (h + 1)
    ours = fill(make_objective(name, params).query_loss, qid, label, margin, weight)
    np.testing.assert_allclose(ours[0], g, rtol=1e-4, atol=1e-5 * np.abs(g).max())
    np.testing.assert_allclose(ours[1], h, rtol=1e-4, atol=1e-5 * np.abs(h).max())


@pytest.mark.parametrize("name", NAMES)
def test_files_say_what_those_of_xgboost_say(name: str) -> None:
    for params in ({}, {"lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 3, "ndcg_exp_gain": False}):
        objective = make_objective(name, params)
        booster = xgboost.train({"objective": name, **params}, xgboost.DMatrix([[0.0], [1.0]], [0, 1], qid=[0, 0]), 0)
        theirs = json.loads(booster.save_config())["learner"]["objective"]
        assert objective.config() == theirs
        assert objective_from_config(theirs) == objective
    with pytest.raises(ModelFormatError, match="no number"):
        objective_from_config({"name": name, "lambdarank_param": {"ndcg_exp_gain": "perhaps"}})


BAD_LABELS: list[tuple[str, dict[str, Any], list[float], str]] = [
    ("rank:ndcg", {}, [-1, 2], "label -1 is out of range"),
    ("rank:pairwise", {}, [-1, 2], "label -1 is out of range"),
    ("rank:ndcg", {}, [0, 32], "takes whole labels up to 31, not label 32; set ndcg_exp_gain=False"),
    ("rank:ndcg", {}, [0, 1.5], "takes whole labels up to 31, not labels that are not whole"),
    ("rank:map", {}, [0, 2], "needs labels 0 and 1, relevant or not, but the largest is 2"),
    ("rank:map", {}, [0, 0.5], "needs labels 0 and 1"),
]


@pytest.mark.parametrize(("name", "params", "labels", "message"), BAD_LABELS)
def test_labels_without_gains_are_refused(
    name: str, params: dict[str, Any], labels: list[float], message: str
) -> None:
    whole = all(label == int(label) for label in labels)
    with pytest.raises(DataError, match=re.escape(message)):
        make_objective(name, params).check_labels(LabelStats(2, min(labels), max(labels), whole, 1.0, 2))


def test_linear_gains_take_any_label() -> None:
    stats = LabelStats(2, 0.0, 1000.5, False, 1.0, 2)
    make_objective("rank:ndcg", {"ndcg_exp_gain": False}).check_labels(stats)
    make_objective("rank:pairwise").check_labels(stats)


@pytest.mark.parametrize(("params", "message"), [
    ({"lambdarank_pair_method": "all"}, "lambdarank_pair_method='all' must be one of 'topk', 'mean'"),
    ({"lambdarank_num_pair_per_sample": 0}, "lambdarank_num_pair_per_sample=0 must be an integer of at least 1"),
    ({"ndcg_exp_gain": "yes"}, "ndcg_exp_gain='yes' must be True or False"),
])  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        make_objective("rank:ndcg", params)


def test_rows_without_queries_have_no_gradients() -> None:
    label = np.zeros(2, np.float32)
    with pytest.raises(DataError, match="train it with qid"):
        make_objective("rank:ndcg").gradients(label, label[:, None])
