"""Trials of columns: the fits they are made of, their statistics, and that they tell signal from noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import r2_score
from strategies.trees import Data, quantized

from daskboost import QuantizedDataset, evaluate_features, train
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.source import make_source
from daskboost.errors import DataError, ParameterError
from daskboost.training.evaluate_features import paired_interval
from daskboost.training.folds import make_folds

PARAMS: dict[str, Any] = {"max_depth": 3, "learning_rate": 0.3, "subsample": 0.7, "n_jobs": 2}


def rows(n_rows: int = 600, seed: int = 0) -> Data:
    """The label follows columns 0 and 1; column 2 repeats 1; 3 and 4 are noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 5)).astype(np.float32)
    X[:, 2] = X[:, 1]
    return Data(X, (X[:, 0] + 2 * X[:, 1] + 0.3 * rng.normal(size=n_rows)).astype(np.float32))


@pytest.fixture
def dataset() -> QuantizedDataset:
    return quantized(rows(), chunk_rows=200)


def test_columns_of_worth_help_and_noise_does_not(dataset: QuantizedDataset) -> None:
    signal, repeated, noise = evaluate_features(PARAMS, dataset, [1, 2, (3, 4)], 15)
    assert signal.verdict == repeated.verdict == "helps"
    assert noise.verdict != "helps"
    assert signal.mean > 10 * abs(noise.mean)
    assert signal.interval[0] > 0
    assert noise.features == (dataset.schema.label(3), dataset.schema.label(4))
    assert "helps, rmse better by" in str(signal)


def test_columns_that_say_the_same_stand_in_for_each_other(dataset: QuantizedDataset) -> None:
    one, both = evaluate_features(PARAMS, dataset, [1, (1, 2)], 15, baseline="all", folds=3)
    assert one.verdict != "helps"
    assert both.verdict == "helps"


def test_scores_are_those_of_separate_fits(dataset: QuantizedDataset) -> None:
    params = {**PARAMS, "random_state": 4, "eval_metric": ["mae", "rmse"]}
    (trial,) = evaluate_features(params, dataset, [1], 4, folds=3, n_repeats=2, early_stopping_rounds=2)
    expected: dict[tuple[int, ...], list[float]] = {(): [], (1,): []}
    ratios = []
    for repeat in range(2):
        for fold in make_folds(dataset, 3, 4, repeat):
            ratios.append(fold[1].n_rows / fold[0].n_rows)
            for ignored, scores in expected.items():
                history: Any = {}
                own = {**params, "random_state": 4 + repeat, "ignored_features": ignored}
                model = train(own, fold[0], 4, evals=[(fold[1], "v")], early_stopping_rounds=2, evals_result=history)
                assert model.best_iteration is not None
                scores.append(history["v"]["rmse"][model.best_iteration])
                assert not any((tree.feature[~tree.is_leaf] == 1).any() for tree in model.trees if ignored)
    assert trial.with_scores.tolist() == expected[()]
    assert trial.without_scores.tolist() == expected[(1,)]
    np.testing.assert_array_equal(trial.differences, trial.without_scores - trial.with_scores)
    low, high, p_value = paired_interval(trial.differences, 0.95, float(np.mean(ratios[:3])))
    assert (trial.interval, trial.p_value) == ((low, high), p_value)
    (again,) = evaluate_features(params, dataset, [1], 4, folds=3, n_repeats=2, early_stopping_rounds=2)
    assert again.with_scores.tolist() == trial.with_scores.tolist()


def test_seeds_on_one_evaluation_set(dataset: QuantizedDataset) -> None:
    """Larger is better, and nothing corrects for folds."""
    with quantized(rows(300, 1), reference=dataset) as other:
        (trial,) = evaluate_features(
            {"eval_metric": ["rmse"], **PARAMS}, dataset, [0], 5, folds=None, n_repeats=4, evals=[(other, "other")],
            custom_metric=r2_score, confidence=0.9,
        )  # fmt: skip
    assert trial.metric == "r2_score"
    assert len(trial.differences) == 4
    np.testing.assert_array_equal(trial.differences, trial.with_scores - trial.without_scores)
    assert trial.verdict == "helps"
    assert trial.interval == paired_interval(trial.differences, 0.9, 0)[:2]


def test_the_interval_is_students() -> None:
    """Without a correction; with it the spread is wider by the ratio of Nadeau and Bengio."""
    differences = np.random.default_rng(3).normal(0.3, 1, 10)
    low, high, p_value = paired_interval(differences, 0.95, 0)
    reference = scipy.stats.ttest_1samp(differences, 0)
    assert (low, high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert p_value == pytest.approx(reference.pvalue)
    wide = paired_interval(differences, 0.95, 1 / 4)
    assert (wide[1] - wide[0]) / (high - low) == pytest.approx(np.sqrt((1 / 10 + 1 / 4) / (1 / 10)))
    assert paired_interval(np.zeros(3), 0.95, 0.5) == (0, 0, 1)


def test_corrected_intervals_cover_where_plain_ones_do_not() -> None:
    """Of an effect that is not there, over samples whose folds share rows: means of training rows as models."""
    rng, missed, plain = np.random.default_rng(11), 0, 0
    for _ in range(300):
        a, b = rng.normal(size=(2, 60))
        fold = rng.permutation(60) % 5
        scores = [
            np.mean((a[fold == k] - a[fold != k].mean()) ** 2) - np.mean((b[fold == k] - b[fold != k].mean()) ** 2)
            for k in range(5)
        ]
        low, high, _p = paired_interval(np.array(scores), 0.95, 1 / 4)
        missed += not low <= 0 <= high
        low, high, _p = paired_interval(np.array(scores), 0.95, 0)
        plain += not low <= 0 <= high
    assert missed <= 0.05 * 300
    assert missed < plain


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"features": ["nothing"]}, "features names the unknown feature 'nothing'"),
    "beyond": ({"features": [5]}, "features names feature 5, but there are 5 features"),
    "empty": ({"features": []}, r"features=\[\]: give a list of column names"),
    "text": ({"features": "a"}, "features='a': give a list"),
    "empty group": ({"features": [0, ()]}, r"features\[1\] is an empty group"),
    "whole group": ({"features": [range(5), tuple(range(5))]}, "features names"),
    "no rest": ({"features": [0, 1, (2, 3, 4)]}, "features names all columns, so that no rest is left"),
    "ignored": ({"params": {"ignored_features": [0]}}, "features and ignored_features both name"),
    "baseline": ({"baseline": "none"}, "baseline='none' must be 'rest' or 'all'"),
    "confidence": ({"confidence": 95}, "confidence=95 must lie between 0 and 1"),
    "repeats": ({"n_repeats": 0}, "n_repeats=0 must be an integer of at least 1"),
    "one of each": ({"folds": None, "evals": None}, "n_repeats=1 must be an integer of at least 2, as folds=None"),
    "no evals": ({"folds": None, "n_repeats": 2}, "folds=None scores on evals"),
    "evals": ({"evals": [1]}, "evals has no effect with folds"),
    "one fold": ({"folds": [([0, 1], [2, 3])]}, "a single pair of models has no spread"),
    "rounds": ({"num_boost_round": 0}, "num_boost_round=0 trains nothing"),
    "several": ({"params": [PARAMS]}, "params is of type list; give one mapping"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_work(name: str, dataset: QuantizedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    given, message = REFUSED[name]
    monkeypatch.setattr("daskboost.training.train_many.fit_together", lambda *_: pytest.fail("work has begun"))
    arguments: dict[str, Any] = {"params": PARAMS, "features": [0], **given}
    with pytest.raises(ParameterError, match=message):
        evaluate_features(arguments.pop("params"), dataset, arguments.pop("features"), **arguments)


def test_a_score_that_is_none() -> None:
    y = np.zeros(40)
    y[:3] = 1
    source = make_source(rows(40).X, y.astype(np.float32))
    with QuantizedDataset.from_source(source, BuildOptions(16), n_jobs=1) as dataset:
        with pytest.raises(DataError, match="NaN in fold 1; use a metric that is defined on its rows"):
            evaluate_features(
                {"objective": "binary:logistic", "eval_metric": "auc"}, dataset, [0], 1,
                folds=[(range(1, 30), [0, 35]), (range(30), range(30, 40))],
            )  # fmt: skip
