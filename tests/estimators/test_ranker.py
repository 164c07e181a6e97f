"""`DaskBoostRanker`, and queries in the other estimators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from reference.ranking import ranking_metric
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from daskboost import DaskBoostClassifier, DaskBoostRanker, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, ParameterError

RNG = np.random.default_rng(0)
N = 900
X = RNG.normal(size=(N, 4)).astype(np.float32)
QID = RNG.integers(0, 60, N)
Y = np.clip(np.rint(X[:, 0] + RNG.normal(size=N) + 1), 0, 4)
OPTIONS: dict[str, Any] = {"n_estimators": 10, "max_depth": 3, "n_jobs": 2}


def test_the_model_is_that_of_train() -> None:
    ranker = DaskBoostRanker(**OPTIONS, lambdarank_num_pair_per_sample=5).fit(X, Y, qid=QID)
    params = {"objective": "rank:ndcg", "max_depth": 3, "lambdarank_num_pair_per_sample": 5}
    expected = train(params, QuantizedDataset(X, Y, qid=QID), 10)
    assert ranker.booster_.to_bytes("json") == expected.to_bytes("json")
    assert ranker.predict(X).shape == (N,)
    assert clone(ranker).get_params()["lambdarank_num_pair_per_sample"] == 5


@pytest.mark.parametrize("exponential", [True, False])
def test_score_is_ndcg_of_any_kind_of_rows(exponential: bool) -> None:
    weight = RNG.uniform(0.5, 2, 60).astype(np.float32)[QID]
    ranker = DaskBoostRanker(**OPTIONS, ndcg_exp_gain=exponential).fit(X, Y, qid=QID, sample_weight=weight)
    score = ranker.predict(X)
    rows = [np.flatnonzero(QID == query) for query in range(60)]
    queries = [(Y[own], score[own], float(weight[own[0]])) for own in rows]
    expected = ranking_metric("ndcg", 0, False, exponential, queries)
    assert ranker.score(X, Y, QID, weight) == pytest.approx(expected, rel=1e-12)
    frame = pd.DataFrame(X).rename(columns=str).assign(y=Y, q=QID, w=weight)
    fitted = DaskBoostRanker(**OPTIONS, ndcg_exp_gain=exponential).fit(frame, "y", qid="q", sample_weight="w")
    for given in (frame, dd.from_pandas(frame, npartitions=3)):
        assert fitted.score(given, "y", qid="q", sample_weight="w") == pytest.approx(expected, rel=1e-12)
    with pytest.raises(DataError, match=r"score needs qid.*set_score_request"):
        ranker.score(X, Y)
    with pytest.raises(DataError, match="sample_weight is 0 in all rows; give a weight above 0"):
        ranker.score(X, Y, QID, np.zeros(N))


def test_a_search_of_scikit_learn_passes_queries_on() -> None:
    """Searches route metadata that the ranker asks for, and keep queries whole by their groups."""
    with config_context(enable_metadata_routing=True):
        ranker = DaskBoostRanker(**OPTIONS).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"max_depth": [1, 3]}, cv=GroupKFold(2)).fit(X, Y, qid=QID, groups=QID)
        assert search.best_score_ > 0.7
        assert search.score(X, Y, qid=QID) == search.best_estimator_.score(X, Y, QID)


def test_evaluation_sets_have_queries_of_their_own() -> None:
    ranker = DaskBoostRanker(**OPTIONS, eval_metric=["map@3", "ndcg@10"], early_stopping_rounds=3)
    ranker.fit(X[:600], Y[:600] > 1, qid=QID[:600], eval_set=[(X[:600], Y[:600] > 1), (X[600:], Y[600:] > 1)],
               eval_qid=[QID[:600], QID[600:]])  # fmt: skip
    assert list(ranker.evals_result_["validation_1"]) == ["map@3", "ndcg@10"]
    assert ranker.best_score == max(ranker.evals_result_["validation_1"]["ndcg@10"])


def test_default_metrics() -> None:
    for objective, name in (("rank:pairwise", "ndcg@32"), ("rank:map", "map@32")):
        ranker = DaskBoostRanker(**OPTIONS, objective=objective)
        ranker.fit(X, Y > 1, qid=QID, eval_set=[(X, Y > 1)], eval_qid=[QID])
        assert list(ranker.evals_result_["validation_0"]) == [name]


def test_regressors_and_classifiers_take_metrics_of_queries() -> None:
    regressor = DaskBoostRegressor(**OPTIONS, eval_metric="ndcg@5")
    regressor.fit(X, Y, qid=QID, eval_set=[(X, Y)], eval_qid=[QID])
    assert regressor.evals_result_["validation_0"]["ndcg@5"][-1] > 0.8
    classifier = DaskBoostClassifier(**OPTIONS, eval_metric="map")
    classifier.fit(X, Y > 1, qid=QID, eval_set=[(X, Y > 1)], eval_qid=[QID])
    assert classifier.evals_result_["validation_0"]["map"][-1] > 0.8


def test_files_keep_the_kind_of_model(tmp_path: Path) -> None:
    ranker = DaskBoostRanker(**OPTIONS).fit(X, Y, qid=QID)
    ranker.save_model(tmp_path / "ranker.json")
    loaded = DaskBoostRanker().load_model(tmp_path / "ranker.json")
    assert np.array_equal(loaded.predict(X), ranker.predict(X))
    assert loaded.score(X, Y, QID) == ranker.score(X, Y, QID)
    with pytest.raises(ParameterError, match="DaskBoostRegressor cannot be a model of objective 'rank:ndcg'"):
        DaskBoostRegressor().load_model(tmp_path / "ranker.json")
    DaskBoostRegressor(**OPTIONS).fit(X, Y).save_model(tmp_path / "regressor.json")
    with pytest.raises(ParameterError, match="DaskBoostRanker cannot be a model of objective 'reg:squarederror'"):
        DaskBoostRanker().load_model(tmp_path / "regressor.json")


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (DaskBoostRanker(), {}, DataError, "objective='rank:ndcg' ranks the rows of queries; pass qid"),
    (DaskBoostRanker(), {}, DataError, "set_fit_request(qid=True).set_score_request(qid=True)"),
    (DaskBoostRanker(), {"qid": QID, "sample_weight": 1 + RNG.random(N)}, DataError, "weight differs within a query"),
    (DaskBoostRanker(eval_metric="map"), {"qid": QID, "eval_set": [(X, Y)], "eval_qid": [QID],
                                          "sample_weight_eval_set": [1 + RNG.random(N)]},
     DataError, "eval_set[0]: weight differs within a query"),
    (DaskBoostRanker(), {"qid": QID[1:]}, DataError, "qid has 899 rows, but X has 900"),
    (DaskBoostRanker(), {"qid": QID, "eval_set": [(X, Y)]}, DataError, "eval_set[0] has no queries"),
    (DaskBoostRanker(), {"qid": QID, "eval_set": [(X, Y)], "eval_qid": QID}, ParameterError, "eval_qid is of type"),
    (DaskBoostRanker(), {"qid": QID, "y": Y - 1}, DataError, "label -1 is out of range"),
    (DaskBoostRanker(objective="reg:squarederror"), {"qid": QID}, ParameterError, "ranks nothing"),
    (DaskBoostRegressor(objective="rank:ndcg"), {"qid": QID}, ParameterError, "use DaskBoostRanker"),
    (DaskBoostRegressor(eval_metric="ndcg"), {"eval_set": [(X, Y)]}, DataError, "which eval_metric='ndcg' needs"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "given", "error", "message"), REFUSED)
def test_bad_input_is_refused_before_rows_are_quantized(
    model: Any, given: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("rows are quantized")

    monkeypatch.setattr("daskboost.training.dataset.quantize_here", never)
    with pytest.raises(error, match=re.escape(message)):
        model.fit(**{"X": X, "y": Y, **given})


@pytest.mark.parametrize("objective", ["queryrmse", "pairlogit", "querysoftmax"])
def test_labels_may_be_their_own_gains_beside_any_objective(objective: str) -> None:
    """The default fit, held-out rows, `score` and `train` all take what the message advises."""
    parts = Y / 7
    with pytest.raises(DataError, match="set ndcg_exp_gain=False, with which the label is the gain, or name another"):
        DaskBoostRanker(objective=objective).fit(X, parts, qid=QID)
    ranker = DaskBoostRanker(objective=objective, ndcg_exp_gain=False, preset="fast").fit(X, parts, qid=QID)
    rows = [np.flatnonzero(QID == query) for query in range(60)]
    score = ranker.predict(X)
    expected = ranking_metric("ndcg", 0, False, False, [(parts[own], score[own], 1.0) for own in rows])
    assert ranker.score(X, parts, QID) == pytest.approx(expected, rel=1e-6)
    data = QuantizedDataset(X, Y, qid=QID)
    result: dict[str, Any] = {}
    params = {"objective": objective, "label_gain": [0, 1, 2, 3, 4.5]}
    train(params, data, 2, evals=[(data, "v")], evals_result=result)
    assert len(result["v"]["ndcg"]) == 2


@pytest.mark.parametrize("n_queries", [1, 3])
def test_too_few_queries_to_hold_some_out(n_queries: int) -> None:
    few = np.arange(N) % n_queries
    with pytest.raises(DataError, match=r"too few rows, or queries, to hold some .*: pass early_stopping=False"):
        DaskBoostRanker().fit(X, Y, qid=few)
    assert DaskBoostRanker(early_stopping=False, n_estimators=2).fit(X, Y, qid=few).booster_.n_iterations == 2
