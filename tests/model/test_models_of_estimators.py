"""Pictures and tables take fitted estimators and stay quick for thousands of trees."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from daskboost import (
    DaskBoostClassifier,
    DaskBoostRegressor,
    QuantizedDataset,
    plot_importance,
    plot_learning_curve,
    plot_tree,
    to_graphviz,
    train,
)
from daskboost.errors import ParameterError

matplotlib.use("agg")
X = np.arange(60.0).reshape(-1, 2)


@pytest.fixture(scope="module")
def estimator() -> DaskBoostRegressor:
    return DaskBoostRegressor(n_estimators=3).fit(X, X[:, 0], eval_set=[(X, X[:, 0])])


def test_estimators_are_drawn_as_their_models(estimator: DaskBoostRegressor) -> None:
    booster = estimator.booster_
    assert to_graphviz(estimator, 1).source == to_graphviz(booster, 1).source
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


def test_a_classifier_takes_no_model_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.ubj"
    numbers = DaskBoostRegressor(n_estimators=2).fit(X, X[:, 0])
    numbers.save_model(path)
    classifier = DaskBoostClassifier(n_estimators=2).fit(X, X[:, 0] > 20)
    known = classifier.booster_
    message = r"DaskBoostClassifier cannot be a model of objective 'reg:squarederror', whose predictions are numbers"
    with pytest.raises(ParameterError, match=message):
        classifier.load_model(path)
    assert classifier.booster_ is known
    for model in (path, numbers, numbers.booster_):
        with pytest.raises(ParameterError, match=message):
            DaskBoostClassifier(n_estimators=1).fit(X, X[:, 0] > 20, init_model=model)


@pytest.mark.parametrize("labels", [X[:, 0] > 20, X[:, 0] // 20], ids=["two", "three"])
def test_a_regressor_takes_no_model_of_classes(labels: Any, tmp_path: Path) -> None:
    classifier = DaskBoostClassifier(n_estimators=2).fit(X, labels)
    classifier.save_model(tmp_path / "m.ubj")
    name = classifier.booster_.objective.name
    with pytest.raises(ParameterError, match=rf"DaskBoostRegressor cannot be a model of objective '{name}'.*are class"):
        DaskBoostRegressor().load_model(tmp_path / "m.ubj")


def test_a_regressor_of_probabilities_loads_what_it_saved(tmp_path: Path) -> None:
    model = DaskBoostRegressor(n_estimators=2, objective="binary:logistic").fit(X, (X[:, 0] > 20).astype(float))
    model.save_model(tmp_path / "m.ubj")
    again = DaskBoostRegressor(objective="binary:logistic").load_model(tmp_path / "m.ubj")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ParameterError, match="use DaskBoostClassifier"):
        DaskBoostRegressor().load_model(tmp_path / "m.ubj")


def steps(label: Any, margin: Any) -> tuple[Any, Any]:
    return np.where(label == 1, -1.0, 1.0), np.ones_like(margin)


@pytest.mark.parametrize("labels", [np.arange(30) > 9, np.arange(30) // 10 * 10 > 0, (np.arange(30) > 9) * 1])
def test_classes_of_a_custom_objective_are_kept(labels: Any, tmp_path: Path) -> None:
    """Its file has an objective of numbers, so the classes must say what the model is."""
    model = DaskBoostClassifier(n_estimators=3, objective=steps).fit(X, labels)
    model.save_model(tmp_path / "m.ubj")
    loaded = DaskBoostClassifier().load_model(tmp_path / "m.ubj")
    for again in (loaded, pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(loaded))):
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        np.testing.assert_array_equal(again.classes_, model.classes_)
    with pytest.raises(ParameterError, match="objective 'reg:squarederror' with classes"):
        DaskBoostRegressor().load_model(tmp_path / "m.ubj")
