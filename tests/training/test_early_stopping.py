"""Early stopping: the best iteration, ties, NaN, and what predictions use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies.rows import classes, regression

from daskboost import QuantizedDataset, train
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import DataError, ParameterError
from daskboost.fit import coordinator
from daskboost.fit.spec import EarlyStopping
from daskboost.metrics.own_metric import CustomMetric
from daskboost.params import TrainParams
from daskboost.training.train import prepare_fit, with_callables

PARAMS: dict[str, Any] = {"max_depth": 3, "n_jobs": 1, "learning_rate": 0.5}


@pytest.fixture(scope="module")
def data() -> QuantizedDataset:
    return QuantizedDataset.from_dask(*regression(300))


def scripted(values: Sequence[float], maximize: bool = False) -> CustomMetric:
    """A metric that gives one value after the other."""
    rest = iter(values)

    def script(y_true: Any, y_pred: Any) -> float:
        return next(rest)

    return CustomMetric(script, maximize)


def run(data: QuantizedDataset, values: Sequence[float], rounds: int, maximize: bool = False) -> Any:
    result: dict[str, dict[str, list[float]]] = {}
    model = train(
        PARAMS, data, len(values), evals=[(data, "fit")], early_stopping_rounds=rounds, evals_result=result,
        custom_metric=scripted(values, maximize),
    )  # fmt: skip
    return model, result["fit"]["script"]


@pytest.mark.parametrize(
    ("values", "maximize", "best", "n_rounds"),
    [
        ([5, 4, 3, 2, 1], False, 4, 5),
        ([5, 4, 4, 4, 1], False, 1, 4),  # a tie is no improvement
        ([1, 2, 3, 3, 3], True, 2, 5),
        ([1, 2, 0, 0, 9], True, 1, 4),
        ([math.nan, 4, 3, 3.5, 3.6], False, 2, 5),  # NaN comes first
        ([math.nan, 4, 5, 6, 1], False, 1, 4),
        ([4, math.nan, math.nan, 1, 1], False, 0, 3),  # NaN improves nothing
        ([4, math.nan, 3, math.nan, math.nan], True, 0, 3),
        ([math.inf, 3, 2, 1, 0], False, 4, 5),
    ],
)
def test_the_best_iteration(
    data: QuantizedDataset, values: list[float], maximize: bool, best: int, n_rounds: int
) -> None:
    model, history = run(data, values, 2, maximize)
    assert (model.best_iteration, model.n_iterations) == (best, n_rounds)
    assert model.best_score == values[best]
    np.testing.assert_array_equal(history, values[:n_rounds])


@pytest.mark.parametrize(("values", "rounds", "seen"), [([math.nan] * 5, 2, 2), ([math.nan] * 3, 10, 3)])
def test_a_metric_that_is_always_nan_is_refused(
    data: QuantizedDataset, values: list[float], rounds: int, seen: int
) -> None:
    with pytest.raises(DataError, match=rf"'script' of evaluation set 'fit' was NaN in all of the first {seen} rounds"):
        run(data, values, rounds)


def test_auc_of_one_class_is_refused_with_the_reason() -> None:
    X, y = classes(200, 2)
    with (
        QuantizedDataset.from_dask(X, y) as data,
        QuantizedDataset.from_dask(X[y == 1], y[y == 1], reference=data) as ones,
        pytest.raises(DataError, match=r"'auc' of evaluation set 'ones' was NaN .* \(auc needs both classes\)"),
    ):
        params = {**PARAMS, "objective": "binary:logistic", "eval_metric": "auc"}
        train(params, data, 20, evals=[(ones, "ones")], early_stopping_rounds=3)


def test_the_last_metric_of_the_last_set_decides(data: QuantizedDataset) -> None:
    with QuantizedDataset.from_dask(*regression(200, seed=5), reference=data) as valid:
        result: dict[str, dict[str, list[float]]] = {}
        model = train(
            {**PARAMS, "eval_metric": ["rmse", "mae"]}, data, 60, evals=[(data, "fit"), (valid, "valid")],
            early_stopping_rounds=5, evals_result=result,
        )  # fmt: skip
    assert model.best_iteration == int(np.argmin(result["valid"]["mae"]))
    assert model.best_score == min(result["valid"]["mae"])
    assert model.n_iterations == model.best_iteration + 6 < 60
    assert list(result) == ["fit", "valid"] and list(result["fit"]) == ["rmse", "mae"]


def test_predictions_stop_at_the_best_iteration(data: QuantizedDataset) -> None:
    X, _ = regression(300)
    model, _ = run(data, [3, 1, 2, 2, 2], 3)
    assert (model.best_iteration, model.n_iterations) == (1, 5)
    np.testing.assert_array_equal(model.predict(X), model.predict(X, iteration_range=(0, 2)))
    assert np.abs(model.predict(X) - model.predict(X, iteration_range=(0, 5))).max() > 0


@pytest.mark.parametrize("rounds", [0, -1, 2.5, "3", True])
def test_a_bad_number_of_rounds_is_refused(data: QuantizedDataset, rounds: Any) -> None:
    with pytest.raises(ParameterError, match=rf"early_stopping_rounds={rounds!r} must be an integer of at least 1"):
        train(PARAMS, data, 3, evals=[(data, "fit")], early_stopping_rounds=rounds)


def test_early_stopping_needs_an_evaluation_set(data: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match=r"early_stopping_rounds needs an evaluation set; pass evals="):
        train(PARAMS, data, 3, early_stopping_rounds=2)


@pytest.mark.parametrize(("values", "maximize", "limits", "n_rounds"), [
    ([9, 8, 7, 6, 5, 4], False, [0, 0], 2),  # before two rounds nothing counts
    ([9, 8, 7, 6, 5, 4], False, [0, 9, 8, 7, 6, 5], 6),
    ([9, 8, 7, 6, 5, 4], False, [0, 9, 8, 6, 6, 5], 4),  # an equal score is no better
    ([9, 8, 7, 7, 5, 4], False, [0, 9, 8], 6),  # the last limit is that of all later rounds
    ([9, 8, 7, 6, 5, 4], False, [0, 9, 4], 3),
    ([1, 2, 3, 4, 5, 6], True, [9, 1, 2, 3, 4, 5], 6),
    ([1, 2, 3, 4, 5, 6], True, [9, 1, 2, 4, 4, 5], 4),
])  # fmt: skip
def test_fits_end_where_their_best_score_is_no_better_than_a_limit(
    data: QuantizedDataset, values: list[float], maximize: bool, limits: list[float], n_rounds: int
) -> None:
    params = with_callables(TrainParams.from_mapping(PARAMS), None, scripted(values, maximize))
    history: dict[str, dict[str, list[float]]] = {}
    fit = prepare_fit(params, data, len(values), [(data, "fit")], None, None, [], history)
    fit = replace(fit, spec=replace(fit.spec, early_stopping=EarlyStopping(2, limits=tuple(limits))))
    fit.run(fit.fit)
    assert history["fit"]["script"] == values[:n_rounds]


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_no_more_rounds_than_are_sure_to_come(
    data: QuantizedDataset, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines grow none that the fit drops, unless so few would take less time than they wait for messages."""
    grown = []
    take = WholeRounds._take

    def noting(self: WholeRounds, n: int) -> Any:
        found = take(self, n)
        grown.append(len(found))
        return found

    monkeypatch.setattr(WholeRounds, "_take", noting)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)
    monkeypatch.setattr(coordinator, "LEAST_PART", least)
    rows, labels = regression(200, seed=4)
    with QuantizedDataset.from_dask(rows, labels, reference=data) as other:
        model = train(PARAMS, data, 200, evals=[(other, "other")], early_stopping_rounds=5)
    assert model.best_iteration is not None
    end = model.best_iteration + 5 + 1
    assert end < 200
    assert sum(grown) == end if least == 0 else sum(grown) > end
    assert max(grown) > 1
