"""Metrics of rankings against an obvious reference, XGBoost and scikit-learn."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xgboost
from reference.ranking import ranking_metric
from sklearn.metrics import ndcg_score, roc_auc_score
from strategies.pairs import pairs_of

from daskboost.data.input.labels import LabelStats
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.metric import RatioState
from daskboost.metrics.metric_names import make_metric
from daskboost.metrics.ranking import ExpectedReciprocalRank


def make_rows(binary: bool, ties: bool, n: int = 400) -> tuple[Any, Any, Any, Any]:
    """Return queries, labels, scores and weights in no order: queries of one row and of one label among them."""
    rng = np.random.default_rng(5)
    qid = np.concatenate([[0], [1], np.full(9, 2), np.full(5, 3), rng.integers(4, 40, n - 16)])
    label = rng.integers(0, 2 if binary else 5, n).astype(np.float32)
    label[:2], label[qid == 2] = (0, 1), 0
    score = rng.normal(size=n).astype(np.float32)
    weight = rng.uniform(0.5, 2, 40).astype(np.float32)[qid]
    order = rng.permutation(n)
    return qid[order], label[order], (score.round(1) if ties else score)[order], weight[order]


def value(name: str, qid: Any, label: Any, score: Any, weight: Any = None, **params: Any) -> float:
    n, least, most = len(label), float(label.min()), float(label.max())
    stats = LabelStats(n, least, most, bool((label % 1 == 0).all()), 1.0, n)
    metric = make_metric(name, params).prepare(stats)
    return metric.value(metric.of_queries(QueryRows.of(qid.astype(np.int64), label, weight), score))


@pytest.mark.parametrize("case", pairs_of({
    "name": ("ndcg", "map", "pre", "mrr", "recall", "err", "pfound", "query-auc"),
    "top": (0, 1, 5, 1000), "minus": (False, True), "ties": (False, True),
    "weighted": (False, True), "exponential": (False, True),
}), ids=lambda case: "-".join(map(str, case.values())))  # fmt: skip
def test_values_are_those_of_the_reference(case: dict[str, Any]) -> None:
    qid, label, score, weight = make_rows(case["name"] not in ("ndcg", "err", "recall", "query-auc"), case["ties"])
    if case["name"] == "pfound":
        label *= np.array([0.14, 0.4, 1], np.float32)[np.arange(len(label)) % 3]
    weight = weight if case["weighted"] else np.ones_like(weight)
    weight[qid == 7] = 0
    weight[::11] = 0
    rows = [np.flatnonzero((qid == query) & (weight > 0)) for query in np.unique(qid[weight > 0])]
    queries = [(label[own], score[own], float(weight[own[0]])) for own in rows]
    expected = ranking_metric(case["name"], case["top"], case["minus"], case["exponential"], queries)
    name = case["name"] + (f"@{case['top']}" if case["top"] else "") + "-" * case["minus"]
    name = "query-auc" if case["name"] == "query-auc" else name
    found = value(name, qid, label, score, weight, ndcg_exp_gain=case["exponential"])
    assert found == pytest.approx(expected, rel=1e-12)
    assert make_metric(name).name == name


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("exponential", [True, False], ids=["exponential", "linear"])
def test_values_are_those_of_xgboost(weighted: bool, exponential: bool) -> None:
    names = ["ndcg-", "ndcg@5-", "map", "map@1", "map@5", "map@5-", "pre", "pre@5", "pre@9"]
    if not weighted:  # XGBoost's ndcg counts queries without a relevant row by weight 1, whatever theirs
        names += ["ndcg", "ndcg@1", "ndcg@5"]
    qid, label, score, weight = make_rows(True, True)
    order = np.argsort(qid, kind="stable")
    qid, label, score, weight = qid[order], label[order], score[order], weight[order]
    own = weight[np.unique(qid, return_index=True)[1]] if weighted else None
    matrix = xgboost.DMatrix(np.zeros((len(qid), 1)), label, qid=qid, base_margin=score, weight=own)
    booster = xgboost.train(
        {"objective": "rank:ndcg", "ndcg_exp_gain": str(int(exponential)), "eval_metric": names}, matrix, 0
    )
    theirs = [float(number) for number in re.findall(r":([\d.]+)", booster.eval(matrix))]
    ours = [value(name, qid, label, score, weight if weighted else None, ndcg_exp_gain=exponential) for name in names]
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("top", [0, 3])
def test_linear_ndcg_is_that_of_scikit_learn(top: int) -> None:
    qid, label, score, _ = make_rows(False, False)
    rows = [np.flatnonzero(qid == query) for query in np.unique(qid)]
    rows = [own for own in rows if len(own) > 1 and label[own].max() > 0]
    expected = np.mean([ndcg_score(label[own][None], score[own][None], k=top or None) for own in rows])
    kept = np.concatenate(rows)
    name = f"ndcg@{top}" if top else "ndcg"
    found = value(name, qid[kept], label[kept], score[kept], ndcg_exp_gain=False)
    assert found == pytest.approx(expected, rel=1e-12)


def test_areas_are_those_of_scikit_learn_where_there_are_any() -> None:
    qid, label, score, _ = make_rows(True, True)
    rows = [np.flatnonzero(qid == query) for query in np.unique(qid)]
    own = [roc_auc_score(label[each], score[each]) for each in rows if 0 < label[each].mean() < 1]
    assert len(own) < len(rows)
    assert value("query-auc", qid, label, score) == pytest.approx(np.mean(own), rel=1e-12)
    assert np.isnan(value("query-auc", qid, np.zeros_like(label), score))


def test_values_are_those_of_catboost() -> None:
    """Its labels of ERR are probabilities; its AUC counts queries without an area as 0."""
    utils = pytest.importorskip("catboost.utils")
    qid, grade, score, _ = make_rows(False, False)
    order = np.argsort(qid, kind="stable")
    qid, grade, score = qid[order], grade[order], score[order]
    relevant, chance = (grade > 2).astype(np.float32), ((2**grade - 1) / 2 ** grade.max()).astype(np.float32)
    areas = np.mean([0 < relevant[qid == query].mean() < 1 for query in np.unique(qid)])
    for name, theirs, ours, given, share in (
        ("recall@3", "RecallAt:top=3", relevant, relevant, 1), ("recall", "RecallAt", relevant, relevant, 1),
        ("pfound", "PFound", chance, chance, 1), ("pfound@4", "PFound:top=4", chance, chance, 1),
        ("err", "ERR", grade, chance, 1), ("err@4", "ERR:top=4", grade, chance, 1),
        ("query-auc", "QueryAUC", relevant, relevant, areas),
    ):  # fmt: skip
        expected = utils.eval_metric(given, score, theirs, group_id=qid)[0]
        assert value(name, qid, ours, score) * share == pytest.approx(expected, rel=1e-6), name


def test_the_largest_grade_is_that_of_the_rows_or_the_given_one() -> None:
    qid, label, score = np.zeros(2, np.int64), np.array([2, 0], np.float32), np.array([1, 0], np.float32)
    assert value("err", qid, label, score) == 0.75
    metric = ExpectedReciprocalRank(10, largest=4).prepare(LabelStats(2, 0.0, 2.0, True, 1.0, 2))
    assert metric.name == "err@10"
    assert metric.value(metric.of_queries(QueryRows.of(qid, label, None), score)) == 3 / 16
    with pytest.raises(ParameterError, match="call prepare"):
        make_metric("err").of_queries(QueryRows.of(qid, label, None), score)


def test_states_travel_and_larger_is_better() -> None:
    qid, label, score, _ = make_rows(True, True)
    metric = make_metric("map@3")
    state = metric.of_queries(QueryRows.of(qid, label, None), score)
    assert metric.value(metric.state_from_arrays(state.to_arrays())) == metric.value(state)
    assert metric.maximize and metric.by_query
    assert np.isnan(metric.value(RatioState()))


@pytest.mark.parametrize("name", ["ndcg@5", "recall@2", "err@5", "pfound", "query-auc"])
def test_states_of_queries_add_up_to_that_of_all(name: str) -> None:
    qid, label, score, weight = make_rows(True, True)
    metric = make_metric(name).prepare(LabelStats(len(label), 0.0, 1.0, True, 2.0, len(label)))
    parts = [
        metric.of_queries(QueryRows.of(qid[own], label[own], weight[own]), score[own])
        for own in (qid % 3 == 1, qid % 3 == 0, qid % 3 == 2)
    ]
    expected = metric.of_queries(QueryRows.of(qid, label, weight), score)
    assert parts[0] + (parts[1] + parts[2]) == expected


@pytest.mark.parametrize("name", ["ndcg@", "ndcg@0", "ndcg@ten", "map@-3", "mrr@1.5", "pre@3--", "recall@0", "err@x"])
def test_bad_arguments_are_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="give how many rows count"):
        make_metric(name)


@pytest.mark.parametrize("name", ["query-auc@3", "query-auc-"])
def test_areas_are_of_all_rows(name: str) -> None:
    with pytest.raises(ParameterError, match="'query-auc' takes no argument"):
        make_metric(name)


def test_rows_without_queries_and_scores_without_order_are_refused() -> None:
    qid, label, score, _ = make_rows(True, True)
    with pytest.raises(DataError, match="make the data set with qid"):
        make_metric("ndcg@5").partial(label, score)
    score[3] = np.nan
    with pytest.raises(DataError, match="cannot rank"):
        value("ndcg@5", qid, label, score)


@pytest.mark.parametrize(("name", "least", "most", "whole", "message"), [
    ("ndcg", 0.0, 32.0, True, "up to 31, not label 32; set ndcg_exp_gain=False"),
    ("ndcg@3", 0.0, 2.5, False, "not labels that are not whole"), ("map", -1.0, 1.0, True, "label -1 for metric 'map'"),
    ("err@3", 0.0, 32.0, True, "metric 'err@3' takes whole labels from 0 to 31, not label 32"),
    ("err", 0.0, 2.5, False, "not labels that are not whole"), ("err", -1.0, 2.0, True, "label -1 for metric 'err'"),
    ("pfound", 0.0, 4.0, True, "label 4 for metric 'pfound': labels must be from 0 to 1"),
])  # fmt: skip
def test_bad_labels_are_refused(name: str, least: float, most: float, whole: bool, message: str) -> None:
    stats = LabelStats(2, least, most, whole, 1.0, 2)
    with pytest.raises(DataError, match=re.escape(message)):
        make_metric(name).prepare(stats)
    make_metric("ndcg", {"ndcg_exp_gain": False}).prepare(LabelStats(2, 0.0, most, whole, 1.0, 2))
