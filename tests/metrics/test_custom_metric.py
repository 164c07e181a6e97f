"""Metrics that users bring: functions of all rows, and registered classes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numba
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from strategies.metrics import evaluate

from daskboost import DaskBoostRegressor, QuantizedDataset, train
from daskboost.dtypes import Float64
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.elementwise import MeanMetric
from daskboost.metrics.metric_names import make_metric, register_metric
from daskboost.training.callbacks import Callback, RoundInfo

LABEL = np.array([3, 1, 2, 5, 4, 0], np.float32)
PREDICTION = np.array([2, 1, 2, 7, 4, 1], np.float32)
WEIGHT = np.array([1, 2, 0, 1, 1, 3], np.float32)


def order_matters(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    return float((np.arange(1, len(y_true) + 1) * (y_true - y_pred)).sum())


@given(data=st.data(), outputs=st.integers(1, 3), weighted=st.booleans())
def test_rows_arrive_in_global_order(data: st.DataObject, outputs: int, weighted: bool) -> None:
    seen = []

    def spy(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: Any = None) -> float:
        seen.append((y_true.copy(), y_pred.copy(), sample_weight))
        return 0.0

    n = data.draw(st.integers(1, 20))
    label = np.arange(n, dtype=np.float32)
    prediction = np.arange(n * outputs, dtype=np.float32).reshape(n, outputs)
    weight = label + 1 if weighted else None
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, n), max_size=5))), n]
    metric = make_metric(spy)
    states = []
    for begin, end in pairwise(bounds):
        part = None if weight is None else weight[begin:end]
        state = metric.partial(label[begin:end], prediction[begin:end], part, first_row=begin)
        states.append(metric.state_from_arrays(state.to_arrays()))
    total = None
    for i in data.draw(st.permutations(range(len(states)))):
        total = states[i] if total is None else total + states[i]
    assert metric.value(total) == 0.0
    y_true, y_pred, sample_weight = seen[0]
    np.testing.assert_array_equal(y_true, label)
    np.testing.assert_array_equal(y_pred, prediction[:, 0] if outputs == 1 else prediction)
    if weighted:
        np.testing.assert_array_equal(sample_weight, weight)
    else:
        assert sample_weight is None


def test_value_and_name() -> None:
    metric = make_metric(order_matters)
    assert metric.name == "order_matters" and metric.needs_rows and not metric.maximize
    assert evaluate(metric, LABEL, PREDICTION) == order_matters(LABEL, PREDICTION)
    assert math.isnan(evaluate(metric, LABEL[:0], PREDICTION[:0]))


def test_weights_reach_functions_that_take_them() -> None:
    metric = make_metric(sklearn.metrics.mean_absolute_error)
    expected = sklearn.metrics.mean_absolute_error(LABEL, PREDICTION, sample_weight=WEIGHT)
    assert evaluate(metric, LABEL, PREDICTION, WEIGHT) == pytest.approx(expected)
    assert evaluate(make_metric(order_matters), LABEL, PREDICTION, WEIGHT) == order_matters(LABEL, PREDICTION)


def test_a_function_that_must_have_weights_gets_none_where_there_are_none() -> None:
    def weighted(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray | None) -> float:
        return 1.0 if sample_weight is None else float(sample_weight.sum())

    assert evaluate(make_metric(weighted), LABEL, PREDICTION) == 1.0
    assert evaluate(make_metric(weighted), LABEL, PREDICTION, WEIGHT) == WEIGHT.sum()


def test_a_function_of_other_arguments_is_refused_before_any_round() -> None:
    with pytest.raises(ParameterError, match=r"fbeta_score.* cannot be called as f\(y_true, y_pred\): .*'beta'"):
        make_metric(sklearn.metrics.fbeta_score)
    with pytest.raises(ParameterError, match=r"too many positional arguments; take these two arguments"):
        make_metric(lambda y_true: 0.0)


def test_a_decorator_may_change_how_a_function_is_called() -> None:
    """`functools.wraps` says that it takes what the function does that it wraps."""
    def weighted(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray | None) -> float:
        return 1.0 if sample_weight is None else float(sample_weight.sum())

    @functools.wraps(weighted)
    def unweighted(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        return weighted(y_true, y_pred, None)

    @functools.wraps(weighted)
    def passing(*arguments: Any, **keywords: Any) -> float:
        return weighted(*arguments, **keywords)

    @functools.wraps(sklearn.metrics.fbeta_score)
    def squared(*arguments: Any, **keywords: Any) -> float:
        return float(sklearn.metrics.fbeta_score(*arguments, beta=2.0, **keywords))

    assert evaluate(make_metric(squared), LABEL > 1, LABEL > 2) == pytest.approx(15 / 19)
    for function, expected in ((unweighted, 1.0), (passing, WEIGHT.sum()), (numba.njit(heaviest), WEIGHT.max())):
        assert evaluate(make_metric(function), LABEL, PREDICTION, WEIGHT) == expected
    assert [evaluate(make_metric(function), LABEL, PREDICTION) for function in (unweighted, passing)] == [1.0, 1.0]


def heaviest(y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray) -> float:
    return sample_weight.max()  # type: ignore[no-any-return]


def test_a_function_may_name_its_value_and_its_direction() -> None:
    def named(y_true: np.ndarray, y_pred: np.ndarray) -> tuple[str, float]:
        return "my-score", 3.5

    named.maximize = True  # type: ignore[attr-defined]
    metric = make_metric(named)
    assert metric.maximize
    assert metric.named_value(metric.partial(LABEL, PREDICTION)) == ("my-score", 3.5)


def test_a_function_that_returns_no_number_is_refused() -> None:
    def bad(y_true: np.ndarray, y_pred: np.ndarray) -> Any:
        return "good"

    with pytest.raises(ParameterError, match=r"metric 'bad' returned 'good'; it must return a number"):
        evaluate(make_metric(bad), LABEL, PREDICTION)
    with pytest.raises(ParameterError, match=r"eval_metric=3 is no name and no function"):
        make_metric(3)


def test_contradicting_states_are_refused() -> None:
    metric = make_metric(order_matters)
    first = metric.partial(LABEL, PREDICTION, first_row=0)
    with pytest.raises(DataError, match=r"first_row: two partitions claim row 5; number"):
        first + metric.partial(LABEL, PREDICTION, first_row=5)
    with pytest.raises(DataError, match=r"weight: given for some partitions .*for all or for none"):
        first + metric.partial(LABEL, PREDICTION, WEIGHT, first_row=6)
    with pytest.raises(DataError, match=r"prediction has 2 rows, labels have 6"):
        metric.partial(LABEL, PREDICTION[:2])
    assert metric.state_from_arrays(metric.partial(LABEL[:0], PREDICTION[:0]).to_arrays()).segments == ()
    with pytest.raises(DataError, match=r"'lengths'\] are absent"):
        metric.state_from_arrays({"first_rows": LABEL})
    arrays = first.to_arrays()
    with pytest.raises(DataError, match=r"'label'.* are absent"):
        metric.state_from_arrays({k: v for k, v in arrays.items() if k != "label"})
    with pytest.raises(DataError, match=r"lengths contradict"):
        metric.state_from_arrays({**arrays, "label": arrays["label"][:3]})


@dataclass(frozen=True)
class Bias(MeanMetric):
    base_name: ClassVar[str] = "test-bias"

    def loss(self, label: Float64, prediction: Float64) -> Float64:
        return prediction - label


def test_a_registered_class_is_found_by_name() -> None:
    assert register_metric(register_metric(Bias)) is Bias
    assert evaluate(make_metric("test-bias"), LABEL, PREDICTION) == pytest.approx((PREDICTION - LABEL).mean())


def test_a_taken_or_malformed_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Taken(Bias):
        base_name: ClassVar[str] = "rmse"

    with pytest.raises(ParameterError, match=r"metric 'rmse' is already registered by Rmse; choose another name"):
        register_metric(Taken)

    class Malformed(Bias):
        base_name: ClassVar[str] = "a@b"

    with pytest.raises(ParameterError, match=r"Malformed has no name; set its class attribute `base_name`"):
        register_metric(Malformed)


def test_scores_of_scikit_learn_are_maximised() -> None:
    assert make_metric(sklearn.metrics.r2_score).maximize
    assert not make_metric(sklearn.metrics.mean_absolute_error).maximize

    def my_score(y_true: Any, y_pred: Any) -> float:
        return 0.0

    assert not make_metric(my_score).maximize
    my_score.maximize = True  # type: ignore[attr-defined]
    assert make_metric(my_score).maximize


def test_early_stopping_by_a_score_keeps_its_best_round() -> None:
    x = np.arange(200.0).reshape(-1, 1)
    model = DaskBoostRegressor(n_estimators=20, eval_metric=sklearn.metrics.r2_score, early_stopping_rounds=3)
    model.fit(x, x[:, 0], eval_set=[(x, x[:, 0])])
    scores = model.evals_result_["validation_0"]["r2_score"]
    assert model.best_iteration == int(np.argmax(scores)) > 5


def rmse(y_true: Any, y_pred: Any) -> float:
    return 1.0


@pytest.mark.parametrize(("metrics", "name"), [
    ([lambda y_true, y_pred: 1.0, lambda y_true, y_pred: 2.0], "<lambda>"),
    (["rmse", lambda y_true, y_pred: ("rmse", 2.0)], "rmse"),
    ([rmse, "mae", "rmse"], "rmse"),
])  # fmt: skip
def test_two_metrics_of_one_name_are_refused_once_both_are_known(metrics: list[Any], name: str) -> None:
    x = np.arange(50.0).reshape(-1, 1)
    rounds: list[int] = []

    class Rounds(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            rounds.append(info.iteration)
            return False

    with QuantizedDataset.from_dask(x, x[:, 0]) as data:
        with pytest.raises(ParameterError, match=rf"two metrics of eval_metric are named '{name}'.*return \(name, val"):
            train({"eval_metric": metrics}, data, 5, evals=[(data, "fit")], callbacks=[Rounds()])
        assert rounds == []  # before the first round's report
        result: dict[str, dict[str, list[float]]] = {}
        apart = ["rmse", lambda y_true, y_pred: ("mine", 2.0), lambda y_true, y_pred: 3.0]
        train({"eval_metric": apart}, data, 2, evals=[(data, "fit"), (data, "again")], evals_result=result)
    assert list(result["fit"]) == ["rmse", "mine", "<lambda>"] == list(result["again"])
    assert result["fit"]["mine"] == [2.0, 2.0]
