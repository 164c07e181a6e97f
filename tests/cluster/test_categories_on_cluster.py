"""Categorical columns over Dask: the model of this process, whatever the partitions and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import all_freed, local_cluster
from distributed import Client

from daskboost import DaskBoostClassifier
from daskboost.cluster import dask_data
from daskboost.data.categories import combinations, encode, level_rooms

ADULT = Path(__file__).parents[1] / "data" / "adult.parquet"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(n_workers=2) as client:
        yield client


@pytest.fixture(scope="module")
def adult() -> pd.DataFrame:
    rows = pd.read_parquet(ADULT).iloc[:1500].drop(columns="split")
    return rows.astype({"race": "category"})


PARTITIONS: dict[str, Any] = {
    "one": lambda rows: dd.from_pandas(rows, npartitions=1),
    "many": lambda rows: dd.from_pandas(rows, npartitions=11, sort=False),
    "uneven, with empty ones": lambda rows: dd.concat([
        dd.from_pandas(rows.iloc[:1], npartitions=1), dd.from_pandas(rows.iloc[1:1], npartitions=1),
        dd.from_pandas(rows.iloc[1:1300], npartitions=2), dd.from_pandas(rows.iloc[1300:], npartitions=1),
    ]),
    "unknown categories": lambda rows: dd.from_pandas(rows, npartitions=3).astype(
        {"sex": "category", "education": "category"}
    ),
    "in workers' memory": lambda rows: dd.from_pandas(rows, npartitions=4).persist(),
}  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {"folds": {}, "native": {"encodings": "native"}, "time": {"has_time": True}}
"""Parameters of categorical columns."""


@pytest.mark.parametrize("own", KINDS)
@pytest.mark.parametrize("kind", PARTITIONS)
def test_the_same_model_and_predictions(client: Client, adult: pd.DataFrame, kind: str, own: str) -> None:
    x, y = adult.drop(columns="income"), adult["income"]
    parameters: dict[str, Any] = {"n_estimators": 5, "max_depth": 4, "device": "cpu", **KINDS[own]}
    expected = DaskBoostClassifier(**parameters).fit(x, y)
    rows = PARTITIONS[kind](adult)
    found = DaskBoostClassifier(**parameters).fit(rows.drop(columns="income"), rows["income"])
    assert found.booster_ == expected.booster_
    by_name = DaskBoostClassifier(**parameters).fit(rows, "income", eval_set=[(rows, "income")])
    np.testing.assert_array_equal(by_name.predict_proba(x), expected.predict_proba(x))
    lazy = found.predict_proba(rows.drop(columns="income"))
    np.testing.assert_array_equal(np.asarray(lazy.compute()), expected.predict_proba(x))
    del rows, lazy
    assert all_freed(client)


def test_sets_of_vectors_are_the_same(client: Client, adult: pd.DataFrame) -> None:
    """Trees of all of three classes, which several engines grow by messages and one in compiled calls."""
    parameters: dict[str, Any] = {"n_estimators": 3, "max_depth": 4, "device": "cpu", "encodings": "native",
                                  "multi_strategy": "multi_output_tree"}  # fmt: skip
    rows = adult.drop(columns="income").assign(age=pd.qcut(adult["age"], 3, labels=False))
    expected = DaskBoostClassifier(**parameters).fit(rows.drop(columns="age"), rows["age"])
    assert all(tree.has_vectors and tree.has_set.any() for tree in expected.booster_.trees)
    shared = PARTITIONS["uneven, with empty ones"](rows)
    assert DaskBoostClassifier(**parameters).fit(shared, "age").booster_ == expected.booster_


@pytest.mark.parametrize("has_time", [False, True])
def test_a_fit_that_goes_on(client: Client, adult: pd.DataFrame, has_time: bool) -> None:
    """It is the one at once: no row sees its own label in the statistics of the model that it goes on from."""
    x, y = adult.drop(columns="income"), adult["income"]
    parameters: dict[str, Any] = {"max_depth": 4, "device": "cpu", "has_time": has_time, "learning_rate": 0.3}
    expected = DaskBoostClassifier(n_estimators=4, **parameters).fit(x, y).predict_proba(x)
    rows, half = PARTITIONS["many"](adult), DaskBoostClassifier(n_estimators=2, **parameters)
    first = half.fit(rows.drop(columns="income"), rows["income"]).booster_
    found = DaskBoostClassifier(n_estimators=2, **parameters).fit(
        rows.drop(columns="income"), rows["income"], init_model=first
    )
    np.testing.assert_array_equal(found.predict_proba(x), expected)
    del rows
    assert all_freed(client)


def test_columns_that_are_split_by_sets_by_default(
    client: Client, adult: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "SETS_FROM_ROWS", 1500)
    monkeypatch.setattr(encode, "SETS_ROWS_A_LEVEL", 100)
    x, y = adult.drop(columns="income"), adult["income"]
    expected = DaskBoostClassifier(n_estimators=5, device="cpu").fit(x, y)
    assert expected.booster_.schema.is_code.any()
    rows = PARTITIONS["many"](adult)
    found = DaskBoostClassifier(n_estimators=5, device="cpu").fit(rows.drop(columns="income"), rows["income"])
    assert found.booster_ == expected.booster_
    del rows
    assert all_freed(client)


@pytest.mark.parametrize("complexity", [2, 3])
@pytest.mark.parametrize("has_time", [False, True])
def test_combinations_of_columns_too(
    client: Client, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, has_time: bool, complexity: int
) -> None:
    monkeypatch.setattr(combinations, "LEAST_LEVELS", 6)
    monkeypatch.setattr(dask_data, "ADDED_AT_ONCE", 2)
    first, second, third = rng.integers(0, 12, 900), rng.integers(0, 10, 900), rng.integers(0, 7, 900)
    x = pd.DataFrame({"a": pd.Series(first).astype(str), "n": rng.random(900), "b": pd.Series(second).astype(str)})
    x["c"] = pd.Series(third).astype(str)
    rows = x.assign(y=(first * second + third) % 3 > 0)
    parameters: dict[str, Any] = {"n_estimators": 4, "has_time": has_time, "max_ctr_complexity": complexity}
    expected = DaskBoostClassifier(**parameters).fit(x, rows["y"])
    assert expected.booster_.n_features == {2: 10, 3: 11}[complexity], "and one of each combination"
    for kind in ("many", "in workers' memory"):
        own = dd.from_pandas(rows, npartitions=7, sort=False) if kind == "many" else PARTITIONS[kind](rows)
        found = DaskBoostClassifier(**parameters).fit(own.drop(columns="y"), own["y"])
        assert found.booster_ == expected.booster_
        lazy = found.predict_proba(own.drop(columns="y"))
        np.testing.assert_array_equal(np.asarray(lazy.compute()), expected.predict_proba(x))
        del own, lazy
    assert all_freed(client)


def test_columns_of_more_levels_than_there_is_room_for(
    client: Client, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "daskboost")
    monkeypatch.setattr(level_rooms, "LEAST_BYTES", 20_000)
    names = (2000 * rng.random(4000) ** 2).astype(int)
    rows = pd.DataFrame({"id": [f"id {name}" for name in names], "y": rng.random(4000) < (names % 7 + 1) / 9})
    parameters: dict[str, Any] = {"n_estimators": 3, "device": "cpu", "host_memory_limit": 80_000}
    expected = DaskBoostClassifier(**parameters).fit(rows[["id"]], rows["y"])
    assert "1 columns have more levels than there is room for" in caplog.text
    own = dd.from_pandas(rows, npartitions=7, sort=False)
    found = DaskBoostClassifier(**parameters).fit(own[["id"]], own["y"])
    assert found.booster_ == expected.booster_
    del own
    assert all_freed(client)
