"""What `plan` refuses: arguments that are none, contradict each other, or that `train` would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from daskboost import QuantizedDataset, plan
from daskboost.errors import DataError, ParameterError

PARAMS = {"objective": "binary:logistic", "max_depth": 6, "device": "cuda", "max_bin": 64}


@pytest.fixture
def dataset() -> Iterator[QuantizedDataset]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    with QuantizedDataset.from_dask(X, (X[:, 0] > 0).astype(np.float32), max_bin=64, n_jobs=1) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ParameterError, "a plan needs the shape of the data; pass data, or both n_rows and n_features"),
        ({"n_rows": 5}, ParameterError, "pass data, or both n_rows and n_features"),
        ({"n_rows": 0, "n_features": 3}, ParameterError, "n_rows=0 must be an integer of at least 1"),
        ({"n_rows": 2.5, "n_features": 3}, ParameterError, "n_rows=2.5 must be an integer"),
        ({"n_rows": 2, "n_features": True}, ParameterError, "n_features=True must be an integer"),
        ({"n_rows": 2, "n_features": 2, "n_workers": 0}, ParameterError, "n_workers=0 must be"),
        ({"n_rows": 2, "n_features": 2, "nonzeros_per_row": 3}, ParameterError, "nonzeros_per_row=3 must lie between"),
        ({"n_rows": 2, "n_features": 2, "memory": "much"}, ParameterError, "memory='much' is not a size"),
        ({"n_rows": 2, "n_features": 2, "evals": 7}, ParameterError, "evals=7: give a list"),
        ({"n_rows": 2, "n_features": 2, "evals": [-1]}, ParameterError, "n_rows=-1 must be an integer"),
        ({"n_rows": 2, "n_features": 2, "memory": True}, ParameterError, "memory=True is not a size"),
        ({"n_rows": 2, "n_features": 2, "memory": float("inf")}, ParameterError, "memory=inf is not a size"),
        ({"n_rows": 2, "n_features": 2, "n_workers": None}, ParameterError, "n_workers=None must be an integer"),
        ({"n_rows": 2, "n_features": 2, "nonzeros_per_row": "1"}, ParameterError, "nonzeros_per_row='1' must be a num"),
        ({"n_rows": 2, "n_features": 2, "weight": np.ones(2)}, ParameterError, "weight is of type ndarray; a plan ne"),
        ({"n_rows": 2, "n_features": 2, "missing": "yes"}, ParameterError, "missing is of type str; a plan needs"),
        ({"n_rows": 2, "n_features": 2, "num_boost_round": -1}, ParameterError, "num_boost_round=-1 must be an integ"),
        ({"n_rows": 2, "n_features": 2, "num_boost_round": "9"}, ParameterError, "num_boost_round='9' must be an int"),
        ({"data": np.zeros((4, 3)), "n_rows": 5}, ParameterError, "n_rows=5 contradicts data, which has 4"),
        ({"data": np.zeros((4, 3)), "n_features": 2}, ParameterError, "n_features=2 contradicts data, which has 3"),
        ({"data": np.zeros((4, 3)), "evals": [5, np.zeros((4, 2))]}, ParameterError, r"contradicts evals\[1\], which"),
        ({"data": object()}, DataError, "X is of type builtins.object, which is not supported"),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan({"device": "cpu"}, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spill_directory": 5}, "spill_directory=5 must be the path of a directory"),
        ({"spill_directory": ""}, "spill_directory='' must be the path of a directory"),
        ({"eval_metric": ["auc", "auc"]}, "eval_metric has 'auc' twice"),
        ({"eval_metric": "mlogloss"}, "eval_metric='mlogloss' does not suit objective 'reg:squarederror'"),
        ({"scale_pos_weight": 3}, "scale_pos_weight=3 has no effect"),
        ({"sketch_outputs": 1}, "sketch_outputs=1 has no effect"),
        ({"out_of_core": "sampled"}, "out_of_core='sampled' draws the share subsample of the rows, which is 1"),
        (
            {"objective": "binary:logistic", "score_function": "l2", "out_of_core": "certified"},
            "score_function='l2' does not go with out_of_core='certified'",
        ),
        (
            {"objective": "binary:logistic", "grow_policy": "symmetric", "out_of_core": "certified"},
            "out_of_core='certified' does not go with grow_policy='symmetric'",
        ),
    ],
)
def test_what_train_refuses_has_no_plan(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        plan({"device": "cpu", **given}, n_rows=2, n_features=2)


def test_evaluation_sets_without_names_are_told_apart(dataset: QuantizedDataset) -> None:
    twice = plan(PARAMS, dataset, evals=[dataset, dataset], memory="1GB")
    assert twice == plan(PARAMS, dataset, evals=[(dataset, "a"), (dataset, "b")], memory="1GB")
    with pytest.raises(ParameterError, match="evaluation set of type int"):
        plan(PARAMS, dataset, evals=[dataset, 3])


def test_evaluation_sets_that_nobody_has_counted() -> None:
    import dask.array as da

    X = da.from_array(np.zeros((100, 3), np.float32), chunks=(50, 3))
    with pytest.raises(ParameterError, match=r"the rows of evals\[0\] cannot be counted .* give its number of rows"):
        plan({"device": "cpu"}, X, evals=[(X[X[:, 0] == 0], "valid")])


def test_contradictions_with_a_data_set_are_named(dataset: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match="a QuantizedDataset knows its rows: leave out n_rows"):
        plan(PARAMS, dataset, n_rows=3)
    with pytest.raises(ParameterError, match="evaluation set of type int beside a QuantizedDataset"):
        plan(PARAMS, dataset, evals=[300])
    with pytest.raises(ParameterError, match="max_bin"):
        plan({**PARAMS, "max_bin": 32}, dataset)
    with pytest.raises(ParameterError, match="unknown parameter 'max_dept'"):
        plan({"max_dept": 3}, dataset)


def test_rows_that_nobody_has_counted() -> None:
    import dask.array as da

    X = da.from_array(np.zeros((100, 3), np.float32), chunks=(50, 3))
    unknown = X[X[:, 0] == 0]
    with pytest.raises(ParameterError, match="the rows of data cannot be counted without computing it: pass n_rows"):
        plan({"device": "cpu"}, unknown)
    assert plan({"device": "cpu"}, unknown, n_rows=100, memory="1GB") == plan({"device": "cpu"}, X, memory="1GB")
