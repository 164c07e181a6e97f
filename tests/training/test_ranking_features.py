"""Trials of columns by metrics of queries: paired differences of queries, and intervals of their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from reference.ranking import ranking_metric
from strategies.trees import marks_of

from daskboost import QuantizedDataset, evaluate_features, train
from daskboost.training.evaluate_features import paired_interval
from daskboost.training.folds import make_folds

PARAMS: dict[str, Any] = {"objective": "rank:ndcg", "max_depth": 2, "learning_rate": 0.3, "eval_metric": "ndcg@3",
                          "n_jobs": 2}  # fmt: skip
RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 4)).astype(np.float32)
QID = RNG.integers(0, 50, N)
LABEL = np.clip(np.rint(X[:, 0] + X[:, 1] + RNG.normal(size=N)), 0, 3).astype(np.float32)
WEIGHT = RNG.uniform(0.5, 2, 50).astype(np.float32)[QID]


@pytest.mark.parametrize("baseline", ["rest", "all"])
def test_differences_are_those_of_queries_of_separate_fits(baseline: str) -> None:
    data = QuantizedDataset(X, LABEL, qid=QID, weight=WEIGHT)
    trials = evaluate_features(PARAMS, data, [1, 3], 4, folds=3, n_repeats=2, baseline=baseline)
    without: tuple[int, ...] = (1, 3) if baseline == "rest" else (1,)
    values = np.zeros((2, 50))
    for repeat in range(2):
        for rows, held_out in make_folds(data, 3, 0, repeat):
            own = np.flatnonzero(marks_of(held_out))
            for k, ignored in enumerate((tuple(set(without) - {1}), without)):
                params = {**PARAMS, "ignored_features": ignored, "random_state": repeat}
                score = train(params, rows, 4).predict(X[own])
                for query in np.unique(QID[own]):
                    chosen = QID[own] == query
                    queries = [(LABEL[own][chosen], score[chosen], 1.0)]
                    values[k, query] += ranking_metric("ndcg", 3, False, True, queries) / 2
    np.testing.assert_allclose(trials[0].differences, values[0] - values[1], atol=1e-12)
    weight = WEIGHT[np.unique(QID, return_index=True)[1]]
    assert trials[0].mean == pytest.approx(np.average(values[0] - values[1], weights=weight), rel=1e-6)
    assert len(trials[0].with_scores) == 6
    assert trials[0].verdict == "helps" and trials[1].verdict != "helps"
    again = evaluate_features(PARAMS, data, [1, 3], 4, folds=3, n_repeats=2, baseline=baseline, models_at_once=1)
    assert [str(trial) for trial in again] == [str(trial) for trial in trials]


def test_intervals_of_equal_weights_are_students() -> None:
    differences = RNG.normal(0.1, 1, 40)
    low, high, p_value = paired_interval(differences, 0.9, 0.0, np.full(40, 2.0))
    found = scipy.stats.ttest_1samp(differences, 0)
    assert (low, high) == pytest.approx(tuple(found.confidence_interval(0.9)))
    assert p_value == pytest.approx(found.pvalue)


def test_the_round_that_counts_is_the_best_one() -> None:
    data = QuantizedDataset(X, LABEL, qid=QID)
    (trial,) = evaluate_features({**PARAMS, "eval_metric": ["map", "query-auc"]}, data, [0], 6, folds=2,
                                 early_stopping_rounds=2)  # fmt: skip
    assert trial.metric == "query-auc" and trial.verdict == "helps"
    counts = np.array([np.count_nonzero(QID == query) for query in np.unique(QID)])
    relevant = np.array([np.count_nonzero(LABEL[QID == query]) for query in np.unique(QID)])
    assert len(trial.differences) == np.count_nonzero((relevant > 0) & (relevant < counts))
