"""Pictures and tables take fitted estimators and stay quick for thousands of trees."""

from __future__ import annotations

import time
from typing import Any

import matplotlib
import numpy as np
import pytest

from daskboost import DaskBoostRegressor, QuantizedDataset, plot_importance, plot_learning_curve, plot_tree, train
from daskboost.errors import ParameterError
from daskboost.model.plotting import to_graphviz

matplotlib.use("agg")
X = np.arange(60.0).reshape(-1, 2)


@pytest.fixture(scope="module")
def estimator() -> DaskBoostRegressor:
    return DaskBoostRegressor(n_estimators=3).fit(X, X[:, 0], eval_set=[(X, X[:, 0])])


def test_estimators_are_drawn_as_their_models(estimator: DaskBoostRegressor) -> None:
    booster = estimator.booster_
    assert to_graphviz(estimator, 1) == to_graphviz(booster, 1)
    assert len(plot_tree(estimator).texts) == len(plot_tree(booster).texts) > 1
    assert len(plot_importance(estimator).patches) == 1
    (line,) = plot_learning_curve(estimator).lines
    assert list(np.asarray(line.get_ydata())) == estimator.evals_result_["validation_0"]["rmse"]


@pytest.mark.parametrize("draw", [plot_importance, plot_tree, to_graphviz])
def test_what_is_no_model_is_refused(draw: Any) -> None:
    with pytest.raises(ParameterError, match="booster is ndarray; pass a Booster or a fitted estimator"):
        draw(X)
    with pytest.raises(ParameterError, match="evals_result is ndarray; pass what train filled"):
        plot_learning_curve(X)


def test_a_table_of_thousands_of_trees() -> None:
    with QuantizedDataset.from_dask(X, X[:, 0]) as data:
        booster = train({"max_depth": 1, "learning_rate": 0.01}, data, 4000)
    start = time.perf_counter()
    table = booster.trees_to_dataframe()
    assert time.perf_counter() - start < 1  # a frame per tree took 0.7 ms each
    assert table["Tree"].nunique() == 4000
    assert table["ID"].iloc[-1] == f"3999-{booster.trees[-1].n_nodes - 1}"
