"""Words of other libraries in every function: taken where they mean the same, explained where they do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from strategies.callbacks import Rounds
from strategies.rows import regression

from daskboost import Callback, DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, cv, train, train_many
from daskboost.errors import ParameterError
from daskboost.training.callbacks import RoundInfo

X, Y = regression(200, 3)
BINARY = (Y > 0).astype(np.float32)


@pytest.fixture(scope="module")
def data() -> QuantizedDataset:
    return QuantizedDataset.from_dask(X, Y, n_jobs=1)


def test_fit_takes_what_belongs_to_the_fit(capsys: pytest.CaptureFixture[str]) -> None:
    counted, model = Rounds(), DaskBoostRegressor(n_estimators=60, n_jobs=1, learning_rate=1.0, callbacks=[])
    before = model.get_params()
    noise = np.random.default_rng(1).permutation(Y)
    verbose: Any = {"verbose_eval": 10}
    fitted = model.fit(X, Y, eval_set=[(X, noise)], eval_metric=["mae", "rmse"], early_stopping_rounds=2,
                       callbacks=[counted], **verbose)  # fmt: skip
    assert fitted is model and model.get_params() == before
    assert list(model.evals_result_["validation_0"]) == ["mae", "rmse"]
    assert counted.finished == len(model.evals_result_["validation_0"]["rmse"]) < 60
    assert model.best_iteration == counted.finished - 3
    assert capsys.readouterr().out.startswith("[0]\t")
    given = DaskBoostRegressor(n_estimators=60, n_jobs=1, learning_rate=1.0, early_stopping_rounds=2,
                               eval_metric=["mae", "rmse"])  # fmt: skip
    assert given.fit(X, Y, eval_set=[(X, noise)]).booster_ == model.booster_


def test_what_one_fit_was_given_is_not_the_next_fits() -> None:
    model = DaskBoostClassifier(n_estimators=3, n_jobs=1)
    model.fit(X, BINARY, eval_set=[(X, BINARY)], eval_metric="auc", early_stopping_rounds=1)
    model.fit(X, BINARY, eval_set=[(X, BINARY)])
    assert list(model.evals_result_["validation_0"]) == ["logloss"]
    assert clone(model).early_stopping_rounds is None
    with pytest.raises(AttributeError, match="only after a fit that an eval_set stopped"):
        model.best_iteration  # noqa: B018


def test_a_fit_that_fails_leaves_what_an_earlier_one_learned() -> None:
    model = DaskBoostRegressor(n_estimators=2, n_jobs=1).fit(X, Y)
    first = model.booster_

    class Fails(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y, callbacks=[Fails()])
    assert model.booster_ is first and model.callbacks is None


def test_train_takes_xgboosts_names(data: QuantizedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    first = train({"eta": 0.1, "seed": 3, "n_jobs": 1}, data, 2)
    more: Any = {"xgb_model": first, "verbose_eval": 2}
    second = train({"eta": 0.1, "seed": 3, "n_jobs": 1}, data, 3, evals=[(data, "own")], **more)
    assert second == train({"learning_rate": 0.1, "random_state": 3, "n_jobs": 1}, data, 3, init_model=first)
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["[2]", "[4]"]
    quiet: Any = {"verbose_eval": False, "xgb_model": None}
    train({"n_jobs": 1}, data, 2, evals=[(data, "own")], init_model=first, **quiet)
    assert capsys.readouterr().out == ""


def test_cv_takes_xgboosts_names(data: QuantizedDataset) -> None:
    given: Any = {"nfold": 3, "metrics": ["mae"]}
    params = {"n_jobs": 1, "eval_metric": "rmse"}
    found = cv(params, data, 2, **given)
    assert [name for name in found if "rmse" in name] == []
    expected = cv({**params, "eval_metric": ["mae"]}, data, 2, folds=3)
    assert found.equals(expected)
    assert len(train_many({"n_jobs": 1}, data, 1, **{"nfold": 2})) == 2  # type: ignore[arg-type]


def test_estimators_take_xgboosts_names() -> None:
    given: Any = {"eta": 0.1, "seed": 7, "nthread": 1}
    model = DaskBoostRegressor(n_estimators=2, subsample=0.5, **given)
    assert (model.learning_rate, model.random_state, model.n_jobs) == (0.1, 7, 1)
    assert "eta" not in model.get_params() and clone(model).get_params() == model.get_params()
    assert model.set_params(eta=0.2, max_depth=3).learning_rate == 0.2
    assert set(inspect.signature(DaskBoostRegressor).parameters) == set(model.get_params())


REGRESSOR: Any = DaskBoostRegressor(n_estimators=1)
PLACES: dict[str, Callable[..., Any]] = {
    "fit": lambda data, **given: REGRESSOR.fit(X, Y, **given),
    "train": lambda data, **given: train({}, data, 1, **given),
    "cv": lambda data, **given: cv({}, data, 1, **given),
    "train_many": lambda data, **given: train_many({}, data, 1, **given),
    "from_dask": lambda data, **given: QuantizedDataset.from_dask(X, Y, **given),
}


@pytest.mark.parametrize(("place", "word", "message"), [
    ("fit", "cat_features", "give it to the constructor: categorical_features=..."),
    ("fit", "one_hot_max_size", "use encodings={'column': 'onehot'}"),
    ("fit", "eta", "give it to the constructor: learning_rate=..."),
    ("fit", "max_depth", "give it to the constructor: max_depth=..."),
    ("fit", "verbosity", "metrics are printed by train and fit with verbose=True"),
    ("fit", "eval_group", "give the query of each row in its place"),
    ("fit", "evals", r"evaluation sets are evals=\[\(data, 'valid'\)\] of train, eval_set=\[\(X, y\)\] of fit"),
    ("fit", "sample_weigth", "did you mean 'sample_weight'"),
    ("fit", "zzzz", "arguments are X, base_margin, .*y"),
    ("train", "max_depth", r"give it in params: \{'max_depth': ...\}"),
    ("train", "seed", r"give it in params: \{'random_state': ...\}"),
    ("train", "enable_categorical", "columns of texts and categories are always taken as such"),
    ("train", "categorical_feature", "it is a parameter of the estimators and of QuantizedDataset.from_dask"),
    ("train", "feval", "use custom_metric of train"),
    ("train", "n_estimators", "rounds are num_boost_round of train"),
    ("train", "valid_sets", "evaluation sets are evals="),
    ("train", "early_stoping_rounds", "did you mean 'early_stopping_rounds'"),
    ("cv", "seed", r"give it in params: \{'random_state': ...\}"),
    ("cv", "verbose_eval", "metrics are printed by train and fit"),
    ("cv", "as_pandas", "the result is a pandas.DataFrame"),
    ("train_many", "metrics", r"give it in params: \{'eval_metric': ...\}"),
    ("from_dask", "enable_categorical", "columns of texts and categories are always taken as such"),
    ("from_dask", "learning_rate", r"give it to train, in params: \{'learning_rate': ...\}"),
    ("from_dask", "eval_group", "give the query of each row in its place"),
    ("train", "lambdarank_unbiased", r"give it in params: \{'lambdarank_unbiased': ...\}"),
    ("train", "qid", "give qid, the query of each row, to fit of DaskBoostRanker"),
])  # fmt: skip
def test_other_words_are_explained(place: str, word: str, message: str, data: QuantizedDataset) -> None:
    with pytest.raises(TypeError, match=rf"^{place}\(\) got an unexpected keyword argument '{word}'; {message}"):
        PLACES[place](data, **{word: 1})


@pytest.mark.parametrize(("place", "names"), [
    ("fit", ("init_model", "xgb_model")), ("train", ("init_model", "xgb_model")), ("cv", ("folds", "nfold")),
    ("from_dask", ("n_jobs", "nthread")),
])  # fmt: skip
def test_two_names_of_one_argument_are_refused(place: str, names: tuple[str, str], data: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match=f"'{names[0]}' and '{names[1]}' are two names of one argument; give one"):
        PLACES[place](data, **dict.fromkeys(names, 2))
