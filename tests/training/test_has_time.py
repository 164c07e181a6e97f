"""Fits of rows in the order of time: statistics of categories know nothing of what comes later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskboost import Booster, DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.data.categories.encoder import Encoder
from daskboost.errors import ParameterError

N = 600


@pytest.fixture
def rows(rng: np.random.Generator) -> tuple[pd.DataFrame, pd.Series]:
    """A column of texts and one of numbers."""
    shop = rng.integers(0, 9, N)
    x = pd.DataFrame({"shop": pd.Series(shop).map("shop {}".format), "size": rng.random(N)})
    return x, pd.Series((rng.random(N) < shop / 9).astype(int))


def test_an_estimator_and_a_data_set_make_the_same_model(rows: Any, tmp_path: Path) -> None:
    fitted = DaskBoostClassifier(n_estimators=4, has_time=True).fit(*rows)
    with QuantizedDataset(*rows, has_time=True) as data:
        data.save(tmp_path / "rows")
        made = train({"objective": "binary:logistic", "has_time": True}, data, 4)
    with QuantizedDataset.open(tmp_path / "rows") as data:
        again = train({"objective": "binary:logistic", "has_time": True}, data, 4)
    for model in (made, again):
        np.testing.assert_array_equal(model.predict(rows[0]), fitted.predict_proba(rows[0])[:, 1])
    other = DaskBoostClassifier(n_estimators=4).fit(*rows)
    assert not np.array_equal(other.predict_proba(rows[0]), fitted.predict_proba(rows[0]))


def test_models_say_that_they_were_fitted_so(rows: Any, tmp_path: Path) -> None:
    for has_time in (True, False):
        fitted = DaskBoostClassifier(n_estimators=2, has_time=has_time).fit(*rows)
        fitted.save_model(tmp_path / "model.json")
        again = Booster.load_model(tmp_path / "model.json")
        encoder = again.schema.encoder
        assert isinstance(encoder, Encoder) and encoder.has_time == has_time
        assert ("has_time" in encoder.to_json()) == has_time
        assert again == fitted.booster_


def test_continued_fits_keep_the_first_ones_statistics(rows: Any) -> None:
    first = DaskBoostClassifier(n_estimators=2, has_time=True).fit(*rows)
    for has_time in (True, False):
        more = DaskBoostClassifier(n_estimators=2, has_time=has_time).fit(*rows, init_model=first.booster_)
        assert more.booster_.n_iterations == 4


def test_numbers_are_fitted_as_without(rng: np.random.Generator) -> None:
    x, y = rng.random((N, 3)), rng.random(N)
    first, other = (DaskBoostRegressor(n_estimators=2, has_time=has_time).fit(x, y) for has_time in (False, True))
    np.testing.assert_array_equal(first.predict(x), other.predict(x))


def test_what_cannot_be_is_refused(rows: Any) -> None:
    match = r"has_time=True contradicts dtrain, .* make the data set with QuantizedDataset.from_dask\(.*has_time=True\)"
    with QuantizedDataset(*rows) as data, pytest.raises(ParameterError, match=match):
        train({"objective": "binary:logistic", "has_time": True}, data, 2)
    wrong: Any = "no"
    with pytest.raises(ParameterError, match=r"has_time='no' must be True or False"):
        DaskBoostClassifier(has_time=wrong).fit(*rows)
    with pytest.raises(ParameterError, match=r"has_time='no' must be True or False"):
        QuantizedDataset(*rows, has_time=wrong)
