"""Objectives that users bring: functions and classes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import dask.array as da
import numba
import numpy as np
import pytest
from dask import delayed
from strategies.callbacks import Rounds
from strategies.rows import regression

from daskboost import DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import make_objective, objective_from_config, register_objective
from daskboost.objectives.own_objective import CustomObjective, CustomQueryObjective

LABEL = np.array([0.0, 1.0, 2.0], dtype=np.float32)
MARGIN = np.array([[0.5], [0.25], [-1.0]], dtype=np.float32)


def squared(label: np.ndarray, margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return margin.astype(np.float64) - label, np.ones(len(label))


def test_a_function_becomes_the_objective() -> None:
    objective = make_objective(squared, {"num_class": 0})
    g, h = objective.gradients(LABEL, MARGIN)
    expected = make_objective("reg:squarederror").gradients(LABEL, MARGIN)
    for mine, theirs in zip((g, h), expected, strict=True):
        assert mine.dtype == np.float32 and mine.flags.c_contiguous
        np.testing.assert_array_equal(mine, theirs)
    assert objective.n_outputs == 1 and objective.base_score_constant == 0.5
    assert (
        objective_from_config(objective.config()).prediction(MARGIN).tolist() == objective.prediction(MARGIN).tolist()
    )


def test_a_function_of_several_outputs_sees_the_matrix() -> None:
    def gradients(label: np.ndarray, margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert margin.shape == (3, 2)
        return margin - label[:, None], np.ones_like(margin)

    g, h = make_objective(gradients, {"num_class": 2}).gradients(LABEL, np.zeros((3, 2), np.float32))
    assert g.shape == h.shape == (3, 2)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(3), r"'bad' returned ndarray; it must return \(gradient, hessian\)"),
        ((np.zeros(3),), r"'bad' returned tuple; it must return"),
        (
            (np.zeros(2), np.ones(3)),
            r"'bad' returned a gradient of shape \(2,\); it must have the margin's shape \(3,\)",
        ),
        ((np.zeros(3), np.ones((3, 1))), r"'bad' returned a hessian of shape \(3, 1\)"),
        ((np.full(3, np.nan), np.ones(3)), r"'bad' returned NaN, infinity .* in its gradient; guard"),
        ((np.zeros(3), np.full(3, np.inf)), r"'bad' returned NaN, infinity .* in its hessian"),
        ((np.full(3, 1e300), np.ones(3)), r"'bad' returned .* beyond float32 in its gradient"),
        ((np.zeros(3), -np.ones(3)), r"'bad' returned a negative hessian"),
        ((np.array(["a"] * 3), np.ones(3)), r"'bad' returned a gradient of dtype <U1; return numbers"),
    ],
)
def test_wrong_results_are_refused_by_the_functions_name(result: Any, message: str) -> None:
    def bad(label: np.ndarray, margin: np.ndarray) -> Any:
        return result

    bad.__qualname__ = "bad"
    with pytest.raises(ParameterError, match=message):
        CustomObjective(bad).gradients(LABEL, MARGIN)


def test_what_a_function_raises_keeps_its_cause() -> None:
    def broken(label: np.ndarray, margin: np.ndarray) -> Any:
        try:
            return dict[str, Any]()["missing"]
        except KeyError as error:
            raise RuntimeError("no table") from error

    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    data = QuantizedDataset.from_dask(features, features[:, 0])
    with pytest.raises(RuntimeError, match="no table") as caught:
        train({"objective": broken, "base_score": 0.0, "device": "cpu"}, data, 1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_something_that_is_no_objective_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"objective=3 is no function"):
        make_objective(3)


@pytest.mark.parametrize(("function", "message"), [
    (lambda label, margin, weight: (margin, margin), "missing a required argument: 'weight'; take these two"),
    (lambda label: (label, label), "too many positional arguments; take these two"),
    (type("Loss", (), {"__call__": lambda self, label, margin: (margin, margin)}), r"f\(label, margin\): "),
])  # fmt: skip
def test_a_function_of_other_arguments_is_refused_before_rows_are_read(function: Any, message: str) -> None:
    never = da.from_delayed(delayed(lambda: 1 / 0)(), (4, 2), np.float32)
    with pytest.raises(ParameterError, match=message):
        DaskBoostRegressor(objective=function).fit(never, np.arange(4.0))


def test_a_decorator_may_change_how_a_function_is_called() -> None:
    """`functools.wraps` says that it takes what the function does that it wraps."""
    def weighted(label: Any, margin: Any, weight: float) -> Any:
        return weight * (margin - label), np.full_like(margin, weight)

    def of_queries(label: Any, margin: Any, group: Any) -> Any:
        return margin - label, np.ones_like(margin)

    @functools.wraps(weighted)
    def halved(label: Any, margin: Any) -> Any:
        return weighted(label, margin, 0.5)

    @functools.wraps(of_queries)
    def of_one_query(label: Any, margin: Any) -> Any:
        return of_queries(label, margin, [len(label)])

    @functools.wraps(of_queries)
    def passing(*arguments: Any, **keywords: Any) -> Any:
        return of_queries(*arguments, **keywords)

    for function, factor in ((halved, 0.5), (of_one_query, 1.0)):
        made = make_objective(function)
        assert isinstance(made, CustomObjective)
        gradient, _ = made.gradients(LABEL, MARGIN)
        np.testing.assert_array_equal(gradient[:, 0], factor * (MARGIN[:, 0] - LABEL))
    assert isinstance(make_objective(passing), CustomQueryObjective)
    with pytest.raises(ParameterError, match="missing a required argument: 'weight'; take these two"):
        make_objective(numba.njit(weighted))


@dataclass(frozen=True)
class Cubic(Objective):
    name: ClassVar[str] = "test:cubic"

    @property
    def default_metric(self) -> str:
        return "mae"

    def gradients(self, label: Any, margin: Any, xp: Any = np) -> tuple[Any, Any]:
        return margin - label[:, None], xp.ones_like(margin)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_a_registered_class_is_found_by_name() -> None:
    register_objective(Cubic)
    assert register_objective(Cubic) is Cubic  # a module may be imported twice
    assert make_objective("test:cubic") == Cubic() == objective_from_config({"name": "test:cubic"})
    assert make_objective(Cubic()) == Cubic()


def test_a_taken_or_missing_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Taken(Cubic):
        name: ClassVar[str] = "reg:gamma"

    with pytest.raises(ParameterError, match=r"'reg:gamma' is already registered by Gamma; choose another name"):
        register_objective(Taken)

    class Nameless(Cubic):
        name: ClassVar[str] = ""

    with pytest.raises(ParameterError, match=r"Nameless has no name; set its class attribute"):
        register_objective(Nameless)


def scaled(gradient: float, hessian: float) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A loss of one slope everywhere, as its gradients do not look at margins that have become infinite."""
    def loss(label: Any, margin: Any) -> tuple[Any, Any]:
        sign = np.sign(label).reshape(-1, *[1] * (margin.ndim - 1))
        return np.float32(gradient) * sign * np.ones_like(margin), np.full_like(margin, hessian)

    return loss


@pytest.mark.parametrize("n_rows", [60, 5_000])
@pytest.mark.parametrize("params", [
    {}, {"grow_policy": "symmetric"}, {"grow_policy": "lossguide", "max_leaves": 5}, {"num_class": 2},
    {"num_class": 2, "multi_strategy": "multi_output_tree"}, {"out_of_core": "certified"},
    {"out_of_core": "sampled", "subsample": 0.5},
], ids=str)  # fmt: skip
def test_margins_that_would_become_infinite_end_the_fit_in_their_round(params: dict[str, Any], n_rows: int) -> None:
    X, y = regression(n_rows)
    counted = Rounds()
    with (
        QuantizedDataset.from_dask(X, y) as data,
        pytest.raises(DataError, match=r"objective 'custom' gave leaf values up to .*, with which margins") as caught,
    ):
        train({"max_depth": 2, "learning_rate": 0.9, "reg_lambda": 0, "n_jobs": 1, "device": "cpu", **params}, data, 9,
              objective=scaled(1e38, 1), callbacks=[counted])  # fmt: skip
    assert counted.finished in (3, 4, 5)
    assert f"in iteration {counted.finished}," in str(caught.value)


def test_a_leaf_value_beyond_float32_ends_the_fit_at_once() -> None:
    X, y = regression(60)
    with (
        QuantizedDataset.from_dask(X, y) as data,
        pytest.raises(DataError, match=r"leaf values up to 3.40282e\+38 in iteration 0"),
    ):
        train({"reg_lambda": 0, "min_child_weight": 0}, data, 3, objective=scaled(1e20, 1e-30))


def test_gradients_of_1e38_whose_margins_stay_finite_are_learned() -> None:
    X, y = regression(60)
    with QuantizedDataset.from_dask(X, y) as data:
        predicted = train({"max_delta_step": 1.0}, data, 3, objective=scaled(1e38, 1)).predict(X)
    assert np.isfinite(predicted).all() and np.ptp(predicted) > 0
