"""Values of odd kinds for every parameter and argument: taken, or refused by a ParameterError with the name."""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from strategies.rows import classes, regression

from daskboost import DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.own_metric import CustomMetric
from daskboost.params import PARAMETERS

X, Y = regression(60, 3)
CODES = classes(60, 3)[1]

ODD: dict[str, Any] = {
    "huge integer": 10**400, "beyond printing": 10**5000, "minus huge": -(10**400), "array": np.array([1.0, 2.0]),
    "matrix": np.ones((2, 2)), "array of one": np.array([0.5]), "number in an array": np.array(0.5),
    "empty array": np.array([]), "texts in an array": np.array(["a", "b"]), "NA": pd.NA, "not a time": pd.NaT,
    "list of NA": [pd.NA], "series": pd.Series([1.0, 2.0]), "frame": pd.DataFrame({"a": [1.0, 2.0]}), "NaN": np.nan,
    "infinity": np.inf, "object": object(), "bytes": b"1", "complex": 1j, "set": {1, 2}, "mapping": {"a": np.ones(2)},
    "nested": [[np.ones(2)]], "empty": [], "text": "zzz",
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> QuantizedDataset:
    return QuantizedDataset.from_dask(X, Y, n_jobs=1)


def taken_or_named(name: str, call: Any, refusal: Any = ParameterError) -> None:
    """Fail but for a refusal that names what is wrong, in one line of bearable length."""
    try:
        call()
    except refusal as error:
        assert name in str(error), f"{error!r} does not name {name}"
        assert "\n" not in str(error) and len(str(error)) < 1000


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_a_training_parameter(name: str, value: Any, data: QuantizedDataset) -> None:
    noun = "metric" if name == "eval_metric" else name  # a metric of an unknown name is called so
    taken_or_named(noun, lambda: train({"n_jobs": 1, name: value}, data, 1, evals=[(data, "own")]))


@pytest.mark.parametrize("name", [
    "num_boost_round", "evals", "early_stopping_rounds", "evals_result", "init_model", "callbacks", "objective",
    "custom_metric", "verbose",
])  # fmt: skip
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_an_argument_of_train(name: str, value: Any, data: QuantizedDataset) -> None:
    value = dict(value) if isinstance(value, dict) else value  # a fit fills what is given as evals_result
    arguments: dict[str, Any] = {"num_boost_round": 1, "evals": [(data, "own")], name: value}
    if name == "init_model" and isinstance(value, str):
        return  # a file's name
    taken_or_named(name, lambda: train({"n_jobs": 1}, data, **arguments))


@pytest.mark.parametrize("name", sorted(DaskBoostClassifier().get_params()))
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_a_parameter_of_an_estimator(name: str, value: Any) -> None:
    if name == "categorical_features" and isinstance(value, set):
        return  # columns of numbers, which are no categories
    kind, labels = (DaskBoostClassifier, CODES) if name == "class_weight" else (DaskBoostRegressor, Y)
    values: dict[str, Any] = {"n_estimators": 1, "n_jobs": 1, name: value}
    noun = "metric" if name == "eval_metric" else name
    taken_or_named(noun, lambda: kind(**values).fit(X, labels, eval_set=[(X, labels)]).feature_importances_)


@pytest.mark.parametrize("name", [
    "eval_set", "sample_weight_eval_set", "base_margin_eval_set", "verbose", "init_model", "eval_metric",
    "early_stopping_rounds", "callbacks",
])  # fmt: skip
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_an_argument_of_fit(name: str, value: Any) -> None:
    if name == "init_model" and isinstance(value, str):
        return  # a file's name
    arguments: dict[str, Any] = {"eval_set": [(X, Y)], name: value}
    # An entry of the right list is data of a set; it is refused as such, under the name that it has there.
    nouns = {"eval_metric": "metric", "sample_weight_eval_set": "weight", "base_margin_eval_set": "base_margin"}
    taken_or_named(
        nouns.get(name, name), lambda: DaskBoostRegressor(n_estimators=1, n_jobs=1).fit(X, Y, **arguments),
        (ParameterError, DataError) if name.endswith("_eval_set") else ParameterError,
    )  # fmt: skip


def in_place(label: Any, margin: Any) -> Any:
    """Squared error's derivatives, with the least memory."""
    margin -= label
    label[:] = 1.0
    return margin, label


def mae_in_place(label: Any, prediction: Any, sample_weight: Any) -> float:
    sample_weight /= sample_weight.sum()
    label -= prediction
    return float(np.abs(label, out=label) @ sample_weight)


def test_functions_of_users_may_write_to_what_they_are_given() -> None:
    weight = 0.5 + np.arange(len(Y)) % 3
    with QuantizedDataset(X, Y, weight=weight) as rows:
        def fit(objective: Any, metrics: list[Any]) -> tuple[bytes, Any]:
            params = {"objective": objective, "eval_metric": metrics, "device": "cpu", "base_score": 0.0}
            result: dict[str, Any] = {}
            model = train(params, rows, 4, evals=[(rows, "own")], evals_result=result)
            return model.predict(X).tobytes(), result["own"]

        expected, history = fit("reg:squarederror", ["mae"])
        found, other = fit(in_place, [mae_in_place, "mae"])
        assert fit("reg:squarederror", ["mae"]) == (expected, history)
    assert found == expected
    assert other["mae"] == history["mae"]
    np.testing.assert_allclose(other["mae_in_place"], history["mae"], rtol=1e-5)


@pytest.mark.parametrize("name", ["min_child_weight", "gamma", "learning_rate", "base_score", "huber_slope"])
def test_numbers_of_any_type_give_the_same_bytes(name: str, data: QuantizedDataset) -> None:
    beside = {"objective": "reg:pseudohubererror"} if name == "huber_slope" else {}
    kinds = (int, float, np.int64, np.float32, np.float64)
    models = {train({"n_jobs": 1, name: kind(1), **beside}, data, 2).to_bytes() for kind in kinds}
    assert len(models) == 1


def _functions_of_a_user() -> dict[str, Any]:
    """Return functions that are the same each time, and lie elsewhere in memory."""

    def derivatives(label: Any, margin: Any, slope: float = 1.0) -> Any:
        return slope * (margin - label), np.ones_like(margin)

    def mean(label: Any, prediction: Any) -> float:
        return float(prediction.mean())

    class Loss:
        def __call__(self, label: Any, margin: Any) -> Any:
            return derivatives(label, margin)

    return {
        "function": {"objective": derivatives}, "partial": {"objective": partial(derivatives, slope=1.0)},
        "object": {"objective": Loss()}, "metric": {"eval_metric": ["rmse", mean]},
        "metric's object": {"eval_metric": CustomMetric(mean)}, "metric's partial": {"eval_metric": partial(mean)},
    }  # fmt: skip


@pytest.mark.parametrize("name", _functions_of_a_user())
def test_models_do_not_tell_where_functions_lie(name: str, data: QuantizedDataset) -> None:
    made = [_functions_of_a_user()[name] for _ in range(3)]
    models = [train({"n_jobs": 1, **params}, data, 2) for params in made]
    assert len({model.to_bytes() for model in models}) == 1
    assert " at 0x" not in str(models[0].params)


def test_enumerations_give_the_bytes_of_what_they_stand_for(data: QuantizedDataset) -> None:
    class Policy(str, Enum):  # noqa: UP042 - whose text is another than that of a StrEnum
        SYMMETRIC = "symmetric"

    class Direction(IntEnum):
        DOWN, NONE, UP = -1, 0, 1

    for name, own, plain in (
        ("grow_policy", Policy.SYMMETRIC, "symmetric"),
        ("monotone_constraints", [Direction.UP, Direction.NONE, Direction.DOWN], [1, 0, -1]),
    ):  # fmt: skip
        models = [train({"n_jobs": 1, name: each}, data, 1) for each in (own, plain)]
        assert models[0].to_bytes() == models[1].to_bytes()


def test_lists_arrays_series_and_sets_give_the_same_bytes() -> None:
    kinds: list[Any] = [list, tuple, np.array, pd.Series]
    with QuantizedDataset.from_dask(pd.DataFrame(X, columns=["a", "b", "c"]), Y) as data:
        for name, value, more in (
            ("monotone_constraints", [0, 1, -1], []), ("eval_metric", ["mae", "rmse"], []),
            ("interaction_constraints", [["a", "b"], ["c"]], [lambda groups: [set(group) for group in groups]]),
        ):  # fmt: skip
            taken = kinds if name != "interaction_constraints" else kinds[:2]
            models = {train({"n_jobs": 1, name: kind(value)}, data, 2).to_bytes() for kind in (*taken, *more)}
            assert len(models) == 1, name
