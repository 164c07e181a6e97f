"""Labels that a metric is not defined for are refused when a fit begins, as scikit-learn's functions refuse them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from daskboost import QuantizedDataset, train
from daskboost.data.input.labels import LabelStats
from daskboost.errors import DataError
from daskboost.metrics.metric_names import make_metric, metric_names

ALLOWED = {
    "logloss": "from 0 to 1", "error": "from 0 to 1", "error@0.7": "from 0 to 1", "rmsle": "above -1",
    "poisson-nloglik": "at least 0", "gamma-nloglik": "at least 0", "tweedie-nloglik": "at least 0",
    "poisson-deviance": "at least 0", "gamma-deviance": "above 0", "tweedie-deviance": "at least 0",
    "tweedie-deviance@3": "above 0",
}  # fmt: skip


def stats(minimum: float, maximum: float) -> LabelStats:
    return LabelStats(n_rows=10, minimum=minimum, maximum=maximum, max_weight=1.0)


@pytest.mark.parametrize(("name", "allowed"), ALLOWED.items())
def test_labels_outside_are_refused(name: str, allowed: str) -> None:
    with pytest.raises(DataError, match=rf"label -2 for metric '{name.split('@')[0]}.*: labels must be {allowed}; use"):
        make_metric(name).prepare(stats(-2, 0.5))
    make_metric(name).prepare(stats(0.5, 1.0))
    make_metric(name).prepare(stats(math.inf, -math.inf))  # no rows


def test_bounds_themselves() -> None:
    for name in ("logloss", "poisson-deviance", "tweedie-deviance@1.9", "gamma-nloglik"):
        make_metric(name).prepare(stats(0, 1))
    for name, bound in (("gamma-deviance", 0), ("tweedie-deviance@2", 0), ("rmsle", -1)):
        with pytest.raises(DataError, match=f"label {bound} for metric"):
            make_metric(name).prepare(stats(bound, 1))
    for name in ("logloss", "auc"):
        with pytest.raises(DataError, match=f"label 2 for metric '{name}'"):
            make_metric(name).prepare(stats(0, 2))


@pytest.mark.parametrize("name", sorted({"rmse", "mae", "mape", "mphe", "quantile"} & set(metric_names())))
def test_the_others_take_any_label(name: str) -> None:
    make_metric(name).prepare(stats(-1e9, 1e9))


@pytest.mark.parametrize("name", ["logloss", "auc", "gamma-deviance"])
def test_a_fit_ends_before_its_first_round(name: str) -> None:
    x = np.arange(20.0).reshape(-1, 1)
    with QuantizedDataset.from_dask(x, x[:, 0] - 5) as data, pytest.raises(DataError, match=f"for metric '{name}'"):
        train({"eval_metric": name}, data, 1, evals=[(data, "train")])
