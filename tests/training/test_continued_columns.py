"""A model is continued by rows whose named columns come in any order: they are matched to its own by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed import Client
from strategies.rows import regression

from daskboost import Booster, DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError

X, Y = regression(240, 3)
NUMBERS = pd.DataFrame({"a": X[:, 0], "b": np.arange(240) % 7, "c": X[:, 2] > 0, "d": X[:, 1]})
MIXED = NUMBERS.assign(b=NUMBERS["b"].astype(str).astype("category"), d=np.array(["x", "y", "z"])[np.arange(240) % 3])
TURNED = ["d", "b", "a", "c"]
INPUTS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": lambda frame: pl.from_pandas(frame),
    "arrow": pa.Table.from_pandas,
    "dask": lambda frame: dd.from_pandas(frame, npartitions=3, sort=False),
}


def labels_of(x: object) -> Any:
    own = pd.Series(Y, NUMBERS.index)
    return dd.from_pandas(own, npartitions=3, sort=False) if isinstance(x, dd.DataFrame) else own


@pytest.mark.parametrize("frame", [NUMBERS, MIXED], ids=["numbers", "categories"])
@pytest.mark.parametrize("kind", INPUTS)
def test_columns_in_another_order_give_the_same_bytes(frame: pd.DataFrame, kind: str) -> None:
    make, given = INPUTS[kind], DaskBoostRegressor(
        n_estimators=3, max_depth=3, monotone_constraints={"a": 1}, device="cpu", random_state=1
    )  # fmt: skip
    start = given.fit(frame, Y).booster_
    models = []
    for columns in (list(frame), TURNED):
        rows, valid = make(frame[columns]), make(frame[columns[::-1]])
        given.fit(rows, labels_of(rows), init_model=start, eval_set=[(valid, labels_of(valid)), (frame, Y)])
        models.append((given.booster_.to_bytes(), given.evals_result_, list(given.feature_names_in_)))
    assert models[0] == models[1] and models[0][2] == list(frame)
    assert given.evals_result_["validation_0"] == given.evals_result_["validation_1"]


@pytest.mark.parametrize("kind", INPUTS)
def test_data_sets_of_a_model_have_its_columns(kind: str) -> None:
    make = INPUTS[kind]
    with QuantizedDataset.from_dask(NUMBERS, Y) as data:
        start = train({"max_depth": 3}, data, 3)

    def continued(columns: list[str]) -> Booster:
        rows, valid = make(NUMBERS[columns].assign(y=Y)), make(NUMBERS[columns[::-1]])
        with QuantizedDataset.from_dask(rows, "y", init_model=start) as data:
            assert data.schema.names == start.schema.names
            with QuantizedDataset.from_dask(valid, labels_of(valid), init_model=start, reference=data) as other:
                result: dict[str, dict[str, list[float]]] = {}
                evals = [(data, "train"), (other, "valid")]
                model = train({"max_depth": 3}, data, 3, init_model=start, evals=evals, evals_result=result)
                assert result["train"] == result["valid"]
                return model

    assert continued(list(NUMBERS)).to_bytes() == continued(TURNED).to_bytes()


def test_named_matrices_files_and_clusters(tmp_path: Path, cluster_client: Client) -> None:
    turned = [2, 0, 1]
    names = ["a", "b", "c"]
    with QuantizedDataset.from_dask(X, Y, feature_names=names, client=None) as data:
        start = train({"max_depth": 3}, data, 3)
    pd.DataFrame(X, columns=names)[[names[i] for i in turned]].to_parquet(tmp_path / "rows.parquet")
    frame = dd.from_pandas(pd.DataFrame(X[:, turned], columns=[names[i] for i in turned]), npartitions=2, sort=False)
    models = set()
    for rows, named in (
        (X, names), (X[:, turned], [names[i] for i in turned]), (X, None), (tmp_path / "rows.parquet", None),
        (frame, None),
    ):  # fmt: skip
        labels = dd.from_pandas(pd.Series(Y), npartitions=2, sort=False) if rows is frame else Y
        with QuantizedDataset.from_dask(rows, labels, feature_names=named, init_model=start) as data:
            assert (getattr(data.shards, "client", None) is cluster_client) == (rows is frame)
            models.add(train({"max_depth": 3}, data, 3, init_model=start).to_bytes())
    assert len(models) == 2, "unnamed columns make a model without names"


def test_classes_and_weights_go_on_too() -> None:
    labels = np.array(["no", "yes"])[(Y > np.median(Y)).astype(int)]
    given = DaskBoostClassifier(n_estimators=2, device="cpu").fit(MIXED, labels)
    start = given.booster_
    models = {
        given.fit(MIXED[columns], labels, sample_weight=np.arange(240), init_model=start).booster_.to_bytes()
        for columns in (list(MIXED), TURNED)
    }
    assert len(models) == 1


@pytest.mark.parametrize("given", [
    {"monotone_constraints": [1, 0, 0, 0]}, {"monotone_constraints": "(1, 0, 0, 0)"},
    {"encodings": {1: "native", 3: "onehot"}}, {"ignored_features": [0]}, {"interaction_constraints": [[0, 1], [2, 3]]},
    {"categorical_features": [1, 2], "encodings": {"c": "onehot"}},
])  # fmt: skip
def test_positions_in_parameters_are_those_of_the_models_columns(given: dict[str, Any]) -> None:
    """Columns of categories may come first in the rows, where such a position would mean another one."""
    made = DaskBoostRegressor(n_estimators=3, max_depth=3, device="cpu", random_state=1, **given)
    start = made.fit(MIXED, Y).booster_
    models = {made.fit(MIXED[columns], Y, init_model=start).booster_.to_bytes() for columns in (list(MIXED), TURNED)}
    assert len(models) == 1


def test_a_data_set_in_another_order_is_led_to_from_dask() -> None:
    with QuantizedDataset.from_dask(NUMBERS, Y) as data, QuantizedDataset.from_dask(NUMBERS[TURNED], Y) as turned:
        start = train({}, data, 1)
        with pytest.raises(DataError, match=r"from_dask\(\.\.\., init_model=model\), which takes .* the model's order"):
            train({}, turned, 1, init_model=start)
