"""`cv` and the folds it makes, against loops that say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold
from strategies.trees import make_data, marks_of, quantized

from daskboost import QuantizedDataset, cv, train
from daskboost.errors import DataError, ParameterError
from daskboost.training.folds import make_folds

PARAMS: dict[str, Any] = {
    "objective": "binary:logistic", "max_depth": 3, "eval_metric": ["logloss", "auc"], "n_jobs": 2
}


def dataset(n_rows: int = 400, seed: int = 0) -> QuantizedDataset:
    return quantized(make_data(np.random.default_rng(seed), "binary:logistic", n_rows), chunk_rows=150)


def naive(data: QuantizedDataset, params: Any, n_rounds: int, folds: Any) -> dict[str, Any]:
    histories: list[Any] = []
    for rows, held_out in folds:
        inside = data.subset(rows)
        histories.append({})
        evals = [(inside, "train"), (data.subset(held_out), "valid")]
        train(params, inside, n_rounds, evals=evals, evals_result=histories[-1])
    table: dict[str, Any] = {}
    for name in ("train", "valid"):
        for metric in histories[0][name]:
            values = np.array([history[name][metric] for history in histories])
            table |= {f"{name}-{metric}-mean": values.mean(axis=0), f"{name}-{metric}-std": values.std(axis=0)}
    return table


def test_means_of_folds_of_scikit_learn() -> None:
    with dataset() as data:
        folds = list(KFold(3, shuffle=True, random_state=1).split(np.empty((400, 0))))
        found = cv(PARAMS, data, 4, folds=folds)
        expected = naive(data, PARAMS, 4, folds)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("metric", ["logloss", "auc"])
def test_stops_by_the_mean(metric: str) -> None:
    params = {**PARAMS, "eval_metric": metric, "learning_rate": 1.0, "max_depth": 6}
    with dataset() as data:
        whole = cv(params, data, 20, folds=3)
        found = cv(params, data, 20, folds=3, early_stopping_rounds=3)
        alone = cv(params, data, 20, folds=3, early_stopping_rounds=3, models_at_once=1)
    means = whole[f"valid-{metric}-mean"].to_numpy() * (-1 if metric == "auc" else 1)
    best = next(i for i in range(17) if means[i] == means[: i + 4].min() and means[i] < means[:i].min(initial=np.inf))
    assert best < 15
    assert found.equals(whole[: best + 1])
    assert alone.equals(found)


@given(n_rows=st.integers(2, 60), n=st.integers(2, 5), seed=st.integers(0, 9), stratified=st.booleans())
def test_folds_divide_the_rows_evenly(n_rows: int, n: int, seed: int, stratified: bool) -> None:
    n = min(n, n_rows)
    rng = np.random.default_rng(seed)
    data = make_data(rng, "binary:logistic", n_rows)
    with quantized(data, chunk_rows=20) as made:
        folds = make_folds(made, n, seed, stratified=stratified)
        marks = [np.flatnonzero(marks_of(held_out)) for _, held_out in folds]
        assert sorted(np.concatenate(marks).tolist()) == list(range(n_rows))
        assert max(map(len, marks)) - min(map(len, marks)) <= 1
        for train_rows, held_out in folds:
            np.testing.assert_array_equal(marks_of(train_rows), ~marks_of(held_out))
        if stratified:
            ones = [int(data.y[rows].sum()) for rows in marks]
            assert max(ones) - min(ones) <= 1


def test_folds_depend_on_seed_and_repeat_alone() -> None:
    with dataset(200) as data:
        first, same, repeat, seed = (
            marks_of(make_folds(data, 3, *which)[0][1]) for which in ((1, 0), (1, 0), (1, 1), (2, 0))
        )
    np.testing.assert_array_equal(first, same)
    assert (first != repeat).any()
    assert (first != seed).any()


def test_no_rounds_make_an_empty_table() -> None:
    with dataset(50) as data:
        assert len(cv(PARAMS, data, 0, folds=2)) == 0


def test_refusals() -> None:
    with dataset(50) as data:
        with pytest.raises(ParameterError, match="params is of type list; give one mapping"):
            cv([PARAMS], data)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="folds=None: give their number"):
            cv(PARAMS, data, folds=None)
        with pytest.raises(ParameterError, match="stratified=True has no effect"):
            cv(PARAMS, data, folds=[([0, 1], [2])], stratified=True)
        with pytest.raises(ParameterError, match="early_stopping_rounds=0 must be"):
            cv(PARAMS, data, early_stopping_rounds=0)
        with pytest.raises(DataError, match="mean metric of held-out rows was NaN in all rounds"):
            cv(PARAMS, data, 5, folds=[(range(2, 50), [0]), (range(2, 50), [1])], early_stopping_rounds=2)
