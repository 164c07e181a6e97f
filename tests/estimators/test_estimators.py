"""What both estimators share: parameters, inputs, evaluation sets, early stopping, continuation, files."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from strategies.frames import COLUMNS, LOCAL_FRAMES, Stream
from strategies.models import tree_bytes
from strategies.rows import regression

from daskboost import (
    Booster,
    Callback,
    DaskBoostClassifier,
    DaskBoostRegressor,
    QuantizedDataset,
    plot_learning_curve,
    train,
)
from daskboost.errors import DataTypeError, ParameterError
from daskboost.estimators.presets import Facts
from daskboost.params import TrainParams
from daskboost.training.callbacks import RoundInfo

X, Y = regression(400, 4)
FRAME = pd.DataFrame(X, columns=list("abcd"))
SMALL: dict[str, Any] = {"n_estimators": 8, "max_depth": 3, "n_jobs": 1}
ESTIMATORS = [DaskBoostRegressor, DaskBoostClassifier]


def model(**params: Any) -> DaskBoostRegressor:
    return DaskBoostRegressor(**{**SMALL, **params})


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_parameter_is_declared_documented_and_has_the_default_of_training(kind: Any) -> None:
    parameters = kind().get_params()
    assert list(parameters) == sorted(inspect.signature(kind).parameters)
    fields = {name for name in TrainParams.__dataclass_fields__} - {"explicit", "num_class"}
    assert fields <= set(parameters)
    documented = kind.__doc__.split("Attributes\n")[0].replace(",", " ").split()
    assert [name for name in parameters if name not in documented] == []
    # None here, in the words of scikit-learn:
    given = {"objective", "eval_metric", "ignored_features", "random_state", "n_jobs"}
    given |= kind().unset_values(Facts(100)).keys()  # chosen by a preset
    for name in fields - given:
        assert parameters[name] == TrainParams.__dataclass_fields__[name].default


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_parameters_are_got_set_cloned_and_pickled(kind: Any) -> None:
    estimator = kind(max_depth=3, missing=-999.0)
    assert estimator.get_params()["max_depth"] == 3
    assert estimator.set_params(learning_rate=0.1, objective=None) is estimator
    for copy in (clone(estimator), pickle.loads(pickle.dumps(estimator))):
        assert copy.get_params() == estimator.get_params()
        assert copy.learning_rate == 0.1
    assert "max_depth=3" in repr(estimator) and "reg_lambda" not in repr(estimator)
    with pytest.raises(ValueError, match="Invalid parameter 'max_dept'"):
        estimator.set_params(max_dept=3)


def test_a_grid_search_works() -> None:
    search = GridSearchCV(model(), {"max_depth": [1, 3]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"max_depth": 3}


def test_the_estimator_is_train_with_the_same_parameters() -> None:
    params: dict[str, Any] = {"max_depth": 3, "subsample": 0.5, "random_state": 7, "reg_alpha": 0.1, "n_jobs": 1}
    with QuantizedDataset.from_dask(X, Y) as data:
        expected = train(params, data, 8)
    assert DaskBoostRegressor(n_estimators=8, **params).fit(X, Y).booster_.to_bytes() == expected.to_bytes()


INPUTS: dict[str, Any] = {
    "list": lambda: (X.tolist(), Y.tolist()),
    "fortran": lambda: (np.asfortranarray(X), Y),
    "float64": lambda: (X.astype("f8"), Y.astype("f8")),
    "column of y": lambda: (FRAME.assign(y=Y), "y"),
    "arrow": lambda: (pa.Table.from_pandas(FRAME), pa.array(Y)),
    "polars": lambda: (pl.from_pandas(FRAME), pl.Series(Y)),
    "polars column": lambda: (pl.from_pandas(FRAME.assign(y=Y)), "y"),
    "narwhals": lambda: (nw.from_native(pl.from_pandas(FRAME)), nw.from_native(pl.Series(Y), series_only=True)),
    "stream": lambda: (Stream(pa.Table.from_pandas(FRAME)), pa.array(Y)),
    "nullable": lambda: (FRAME.astype("Float32"), pd.Series(Y, dtype="Float32")),
    "dask frame": lambda: (dd.from_pandas(FRAME.assign(y=Y), npartitions=5), "y"),
    "dask series": lambda: (dd.from_pandas(FRAME, npartitions=5), dd.from_pandas(pd.Series(Y), npartitions=5)),
    "dask array": lambda: (da.from_array(X, chunks=(90, 2)), da.from_array(Y, chunks=90)),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_of_input_gives_the_same_trees(kind: str) -> None:
    expected = model().fit(X, Y)
    fitted = model().fit(*INPUTS[kind]())
    assert tree_bytes(fitted.booster_) == tree_bytes(expected.booster_)
    names = kind not in ("list", "fortran", "float64", "dask array")
    assert fitted.n_features_in_ == 4
    assert getattr(fitted, "feature_names_in_", np.array([])).tolist() == (list("abcd") if names else [])


@pytest.mark.parametrize("names", [[0, 1, 2, 3], ["a", 1, "c", "d"]])
def test_columns_whose_names_are_no_texts_are_matched_without_feature_names(names: list[Any]) -> None:
    """Tools of scikit-learn take `feature_names_in_` for the names of frames, and warn where these are numbers."""
    frame = FRAME.set_axis(names, axis=1)
    fitted = model().fit(frame, Y)
    assert not hasattr(fitted, "feature_names_in_") and fitted.n_features_in_ == 4
    np.testing.assert_array_equal(fitted.predict(frame[names[::-1]]), model().fit(FRAME, Y).predict(FRAME))
    if names[0] == 0:
        assert SelectFromModel(model()).fit(frame, Y).transform(frame).shape[0] == len(Y)


@pytest.mark.parametrize("kind", LOCAL_FRAMES)
def test_columns_of_every_frame_are_matched_by_name(kind: str) -> None:
    """Columns in another order and further ones change nothing, and predictions are NumPy's."""
    made, labels = LOCAL_FRAMES[kind], Y > np.median(Y)
    other = FRAME[["d", "b", "a", "c"]].assign(text="x")
    fitted = DaskBoostClassifier(**SMALL).fit(made(FRAME), labels, eval_set=[(made(other), COLUMNS["polars"](labels))])
    reference = DaskBoostClassifier(**SMALL).fit(FRAME, labels, eval_set=[(FRAME, labels)])
    assert fitted.booster_.to_bytes() == reference.booster_.to_bytes()
    assert fitted.evals_result_ == reference.evals_result_
    assert fitted.feature_names_in_.tolist() == list("abcd")
    for method in ("predict", "predict_proba"):
        found = getattr(fitted, method)(made(other))
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, getattr(reference, method)(FRAME))
    assert fitted.score(made(other), pl.Series(labels)) == reference.score(FRAME, labels)
    margin = pl.Series(np.arange(len(Y)) / 100)
    np.testing.assert_array_equal(
        fitted.booster_.predict(made(other), base_margin=margin),
        reference.booster_.predict(FRAME, base_margin=margin.to_numpy()),
    )
    found, expected = fitted.plan(made(other[list("abcd")]), memory="1GB"), reference.plan(FRAME, memory="1GB")
    assert str(found) == str(expected)


def test_what_would_lose_its_names_is_refused_by_every_method() -> None:
    lazy, fitted = pl.from_pandas(FRAME).lazy(), model().fit(FRAME, Y)
    calls: list[Callable[[], Any]] = [
        lambda: model().fit(lazy, Y), lambda: model().fit(FRAME, Y, eval_set=[(lazy, Y)]),
        lambda: fitted.predict(lazy), lambda: fitted.score(lazy, Y), lambda: fitted.booster_.predict(lazy),
        lambda: fitted.plan(lazy), lambda: QuantizedDataset(lazy, Y),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DataTypeError, match=r"a lazy frame, .* pass X\.collect\(\)"):
            call()


def test_parquet_files_and_sparse_matrices(tmp_path: Path) -> None:
    FRAME.assign(y=Y).to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    expected = model().fit(X, Y)
    fitted = model().fit(tmp_path / "rows.parquet", "y")
    assert tree_bytes(fitted.booster_) == tree_bytes(expected.booster_)
    sparse = scipy.sparse.csr_matrix(np.nan_to_num(X, nan=0.0))  # absent entries are the missing ones
    fitted = model().fit(sparse, Y)
    assert tree_bytes(fitted.booster_) == tree_bytes(expected.booster_)
    np.testing.assert_array_equal(fitted.predict(sparse), expected.predict(X))


def test_a_missing_value_of_the_users(rng: Any) -> None:
    marked = np.where(np.isnan(X), np.float32(-999), X)
    fitted = model(missing=-999).fit(marked, Y)
    np.testing.assert_array_equal(fitted.predict(marked), model().fit(X, Y).predict(X))


def test_evaluation_sets_of_any_kind_partitioning_and_size() -> None:
    valid_X, valid_y = regression(150, 4, seed=3)
    frame = pd.DataFrame(valid_X, columns=list("abcd"))
    kinds = [
        (frame, valid_y),
        (dd.from_pandas(frame.assign(y=valid_y), npartitions=1), "y"),
        (dd.from_pandas(frame, npartitions=4)[["d", "b", "a", "c"]], dd.from_pandas(pd.Series(valid_y), npartitions=4)),
        (pa.Table.from_pandas(frame), valid_y),
        (pl.from_pandas(frame[["c", "b", "d", "a"]]), pl.Series(valid_y)),
        (FRAME, Y),
    ]
    fitted = model(eval_metric=["rmse", "mae"]).fit(FRAME, Y, eval_set=kinds)
    result = fitted.evals_result_
    assert list(result) == [f"validation_{i}" for i in range(6)] and fitted.evals_result() is result
    for i in range(1, 4):
        assert result[f"validation_{i}"] == result["validation_0"]
    for i in range(8):
        predicted = fitted.predict(valid_X, iteration_range=(0, i + 1))
        assert result["validation_0"]["mae"][i] == pytest.approx(np.abs(predicted - valid_y).mean(), rel=1e-5)


def test_weights_and_margins_of_evaluation_sets(rng: Any) -> None:
    weight, margin = rng.uniform(0, 2, 400).astype("f4"), rng.normal(size=400).astype("f4")
    fitted = model().fit(
        X, Y, eval_set=[(X, Y), (X, Y)], sample_weight_eval_set=[None, weight], base_margin_eval_set=[margin, None]
    )
    rmse = {name: values["rmse"][-1] for name, values in fitted.evals_result_.items()}
    first = np.sqrt(np.mean((fitted.predict(X, base_margin=margin) - Y) ** 2))
    second = np.sqrt(np.average((fitted.predict(X) - Y) ** 2, weights=weight))
    assert rmse == {"validation_0": pytest.approx(first, rel=1e-5), "validation_1": pytest.approx(second, rel=1e-5)}


def test_an_evaluation_set_that_is_the_training_set_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = QuantizedDataset.from_source.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return original(cls, *args, **kwargs)

    monkeypatch.setattr(QuantizedDataset, "from_source", classmethod(counted))
    fitted = model().fit(X, Y, eval_set=[(X, Y), (X, Y.copy())])
    assert len(made) == 2
    assert fitted.evals_result_["validation_0"] == fitted.evals_result_["validation_1"]


def test_early_stopping_and_the_best_iteration() -> None:
    valid = regression(200, 4, seed=9)
    fitted = model(n_estimators=200, learning_rate=0.8, early_stopping_rounds=4).fit(X, Y, eval_set=[valid])
    history = fitted.evals_result_["validation_0"]["rmse"]
    assert fitted.best_iteration == int(np.argmin(history)) and fitted.best_score == min(history)
    assert len(history) == fitted.best_iteration + 5 < 200
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict(X, iteration_range=(0, fitted.best_iteration + 1)))
    plain = model().fit(X, Y)
    assert not hasattr(plain, "best_iteration") and not hasattr(plain, "best_score")
    assert plain.evals_result_ == {}


@pytest.mark.parametrize("as_what", ["booster", "estimator", "path", "xgb_model"])
def test_a_model_is_continued(as_what: str, tmp_path: Path) -> None:
    whole, first = model(n_estimators=16).fit(X, Y), model().fit(X, Y)
    first.save_model(tmp_path / "first.ubj")
    given: Any = {"booster": first.booster_, "path": tmp_path / "first.ubj"}.get(as_what, first)
    second = model().fit(X, Y, **{"xgb_model" if as_what == "xgb_model" else "init_model": given})
    assert second.booster_.to_bytes() == whole.booster_.to_bytes()


def test_callbacks_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    class Stop(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            return info.iteration == 4

    fitted = model(callbacks=[Stop()]).fit(X, Y, eval_set=[(X, Y)], verbose=2)
    assert fitted.booster_.n_iterations == 5
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["[0]", "[2]", "[4]"]
    for silent in (None, False, 0):
        model().fit(X, Y, eval_set=[(X, Y)], verbose=silent)
    assert capsys.readouterr().out == ""


def test_importances_and_leaves() -> None:
    fitted = model(importance_type="total_gain").fit(FRAME, Y)
    importances = fitted.feature_importances_
    assert importances.dtype == np.float32 and importances.shape == (4,)
    assert importances.sum() == pytest.approx(1, rel=1e-6)
    assert importances.argmax() == 0
    assert not np.allclose(importances, fitted.set_params(importance_type="weight").feature_importances_)
    with pytest.raises(ParameterError, match="importance_type='size' is unknown"):
        fitted.set_params(importance_type="size").feature_importances_  # noqa: B018
    assert model(n_estimators=0).fit(X, Y).feature_importances_.tolist() == [0, 0, 0, 0]
    leaves = fitted.apply(FRAME)
    assert leaves.shape == (400, 8) and leaves.dtype == np.int32
    lazy = fitted.apply(dd.from_pandas(FRAME, npartitions=2), iteration_range=(2, 4))
    np.testing.assert_array_equal(lazy.compute().to_numpy(), leaves[:, 2:4])


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_files_and_pickles(tmp_path: Path, suffix: str) -> None:
    fitted = model().fit(FRAME, Y)
    fitted.save_model(tmp_path / f"m.{suffix}")
    loaded = DaskBoostRegressor().load_model(tmp_path / f"m.{suffix}")
    assert loaded.get_booster() == fitted.booster_ == Booster.load_model(tmp_path / f"m.{suffix}")
    for other in (loaded, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(FRAME), fitted.predict(FRAME))
        assert other.feature_names_in_.tolist() == list("abcd")


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_what_needs_a_fit_says_so(kind: Any) -> None:
    estimator = kind()
    for name in ("booster_", "feature_importances_", "best_iteration", "classes_"):
        assert not hasattr(estimator, name)
    for method, *args in ((estimator.predict, X), (estimator.apply, X), (estimator.score, X, Y)):
        with pytest.raises(NotFittedError, match=rf"This {kind.__name__} is not fitted yet. Call fit, or load_model"):
            method(*args)


def test_the_score_is_that_of_scikit_learn_wherever_rows_lie(rng: Any) -> None:
    weight = rng.uniform(0, 2, 400).astype("f4")
    labels = (Y + 1000).astype("f4")  # far from 0, where a careless sum of squares loses digits
    fitted = model().fit(FRAME, labels)
    frame = FRAME.assign(y=labels, w=weight)
    for given, sample_weight in ((None, None), ("w", weight)):
        expected = r2_score(labels, fitted.predict(X).astype("f8"), sample_weight=sample_weight)
        scores = {fitted.score(dd.from_pandas(frame, npartitions=k), "y", given) for k in (1, 3)}
        scores |= {fitted.score(X, labels, sample_weight)}
        assert len(scores) == 1
        assert scores.pop() == pytest.approx(expected, rel=1e-9)
    assert model().fit(X, np.ones(400)).score(X, np.ones(400)) == 1.0
    assert fitted.score(X, np.full(400, 1000.0)) == 0.0
    assert np.isnan(fitted.score(X[:1], labels[:1]))


def test_several_quantiles_at_once() -> None:
    fitted = model(objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]).fit(X, Y)
    low, high = fitted.predict(X).T
    assert 0.05 < (Y < low).mean() < 0.2 and 0.05 < (Y > high).mean() < 0.2
    with pytest.raises(ParameterError, match="the model predicts several"):
        fitted.score(X, Y)


@pytest.mark.parametrize("seed", [None, 3, np.random.RandomState(3), np.random.default_rng(3)], ids=str)
def test_seeds_of_any_kind(seed: Any) -> None:
    params = {"subsample": 0.5, "random_state": seed}
    fitted = model(**params).fit(X, Y)
    assert int(fitted.booster_.params["random_state"]) >= 0
    if seed is None or isinstance(seed, int):
        assert model(**params).fit(X, Y).booster_ == fitted.booster_
    else:
        assert model(**params).fit(X, Y).booster_ != fitted.booster_, "a generator moves on"


@pytest.mark.parametrize("n_jobs", [None, -1, 0, 2])
def test_the_number_of_threads_leaves_no_trace(n_jobs: int | None) -> None:
    assert model(n_jobs=n_jobs).fit(X, Y).booster_.to_bytes() == model().fit(X, Y).booster_.to_bytes()


@pytest.mark.parametrize("kind, params", [
    (DaskBoostRegressor, {}), (DaskBoostRegressor, {"objective": "reg:absoluteerror"}),
    (DaskBoostRegressor, {"objective": "count:poisson"}), (DaskBoostRegressor, {"grow_policy": "symmetric"}),
    (DaskBoostRegressor, {"max_bin": 7, "learning_rate": 1.0}), (DaskBoostClassifier, {}),
    (DaskBoostClassifier, {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0}),
])  # fmt: skip
@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize("n_rows", [10, 57, 400])
def test_weights_of_small_data_are_repeated_rows(
    n_rows: int, lost: float, kind: Any, params: dict[str, Any], rng: Any
) -> None:
    """The same trees, to the last bit."""
    for seed in range(3):
        weight = rng.integers(0, 5, n_rows)
        weight[:2] = 3
        kept = rng.permutation(n_rows)
        rows = np.where(rng.random((n_rows, 4)) < lost, np.nan, X[:n_rows]).astype(np.float32)
        rows[0] = X[0]
        target = np.digitize(Y[:n_rows], np.quantile(Y[:n_rows], [0.3, 0.6])) if kind is DaskBoostClassifier else Y
        target = np.abs(target[:n_rows])
        common = {**SMALL, "random_state": seed, **params}
        by_weight = kind(**common).fit(rows[kept], target[kept], sample_weight=weight[kept])
        repeated = kind(**common).fit(np.repeat(rows, weight, axis=0), np.repeat(target, weight))
        assert tree_bytes(by_weight.booster_) == tree_bytes(repeated.booster_)


def test_the_learning_curve_of_a_fit_is_drawn() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fitted = model(early_stopping_rounds=3).fit(X, Y, eval_set=[(X, Y), regression(50, 4, seed=2)])
    axes = plot_learning_curve(fitted.evals_result_, best_iteration=fitted.best_iteration)
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert any(values == fitted.evals_result_["validation_0"]["rmse"] for values in drawn)
    pyplot.close("all")


def test_importing_the_package_does_not_import_scikit_learn() -> None:
    look = "print('sklearn' in sys.modules)"
    code = f"import sys, daskboost; {look}; daskboost.DaskBoostRegressor; {look}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("precision", ["exact", "packed"])
def test_a_parameter_that_was_removed_is_refused_with_the_remedy(precision: str) -> None:
    arguments: dict[str, Any] = {"gradient_precision": precision}
    with pytest.raises(TypeError, match=r"'gradient_precision'; it was removed, .* slower: leave it out"):
        DaskBoostRegressor(**arguments)
