"""Metrics of rankings against an obvious reference, XGBoost and scikit-learn."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xgboost
from reference.ranking import ranking_metric
from sklearn.metrics import ndcg_score
from strategies.pairs import pairs_of

from daskboost.data.input.labels import LabelStats
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.metric import RatioState
from daskboost.metrics.metric_names import make_metric


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
    metric = make_metric(name, params)
    return metric.value(metric.of_queries(QueryRows.of(qid.astype(np.int64), label, weight), score))


@pytest.mark.parametrize("case", pairs_of({
    "name": ("ndcg", "map", "pre", "mrr"), "top": (0, 1, 5, 1000), "minus": (False, True), "ties": (False, True),
    "weighted": (False, True), "exponential": (False, True),
}), ids=lambda case: "-".join(map(str, case.values())))  # fmt: skip
def test_values_are_those_of_the_reference(case: dict[str, Any]) -> None:
    qid, label, score, weight = make_rows(case["name"] != "ndcg", case["ties"])
    weight = weight if case["weighted"] else np.ones_like(weight)
    weight[qid == 7] = 0
    weight[::11] = 0
    rows = [np.flatnonzero((qid == query) & (weight > 0)) for query in np.unique(qid[weight > 0])]
    queries = [(label[own], score[own], float(weight[own[0]])) for own in rows]
    expected = ranking_metric(case["name"], case["top"], case["minus"], case["exponential"], queries)
    name = case["name"] + (f"@{case['top']}" if case["top"] else "") + "-" * case["minus"]
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


def test_states_travel_and_larger_is_better() -> None:
    qid, label, score, _ = make_rows(True, True)
    metric = make_metric("map@3")
    state = metric.of_queries(QueryRows.of(qid, label, None), score)
    assert metric.value(metric.state_from_arrays(state.to_arrays())) == metric.value(state)
    assert metric.maximize and metric.by_query
    assert np.isnan(metric.value(RatioState()))


@pytest.mark.parametrize("name", ["ndcg@", "ndcg@0", "ndcg@ten", "map@-3", "mrr@1.5", "pre@3--"])
def test_bad_arguments_are_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="give how many rows count"):
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
])  # fmt: skip
def test_bad_labels_are_refused(name: str, least: float, most: float, whole: bool, message: str) -> None:
    stats = LabelStats(2, least, most, whole, 1.0, 2)
    with pytest.raises(DataError, match=re.escape(message)):
        make_metric(name).prepare(stats)
    make_metric("ndcg", {"ndcg_exp_gain": False}).prepare(LabelStats(2, 0.0, most, whole, 1.0, 2))
