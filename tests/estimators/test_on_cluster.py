"""Estimators over a cluster: the bytes of the embedded fit, predictions and scores where the partitions lie."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from strategies.rows import classes, regression

from daskboost import Booster, Callback, Checkpoint, DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError
from daskboost.training.callbacks import RoundInfo

if TYPE_CHECKING:
    from distributed import Client

X, CODES = classes(600, 3)
NAMES = np.array(["ant", "bee", "cat"])[CODES.astype(int)]
FRAME = pd.DataFrame(X, columns=list("abcde")).assign(label=NAMES, y=regression(600)[1])
SMALL: dict[str, Any] = {"n_estimators": 6, "max_depth": 3, "subsample": 0.8, "n_jobs": 1}


def lazy(n_partitions: int = 5) -> Any:
    return dd.from_pandas(FRAME, npartitions=n_partitions)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_a_classifier_on_a_cluster_has_the_bytes_of_the_embedded_one(
    cluster_client: Client, class_weight: Any
) -> None:
    features = list("abcde")
    valid = FRAME[:100]
    model = DaskBoostClassifier(**SMALL, class_weight=class_weight)
    local = model.fit(FRAME[features], FRAME["label"], eval_set=[(valid[features], valid["label"])])
    expected, history = local.booster_.to_bytes(), local.evals_result_
    frame, valid = lazy(), dd.from_pandas(valid, npartitions=1)
    model.fit(frame[features], frame["label"], eval_set=[(valid[features], valid["label"])])
    assert model.booster_.to_bytes() == expected
    assert model.evals_result_ == history
    assert model.classes_.tolist() == ["ant", "bee", "cat"]
    np.testing.assert_array_equal(np.asarray(model.predict(frame).compute()), model.predict(FRAME))
    assert model.score(frame, "label") == model.score(FRAME, "label")


@pytest.mark.parametrize(("train_lazily", "valid_lazily"), [(True, False), (False, True), (True, True)])
def test_training_and_evaluation_sets_may_lie_in_different_places(
    cluster_client: Client, train_lazily: bool, valid_lazily: bool
) -> None:
    features, valid = list("abc"), FRAME[400:]
    expected = DaskBoostRegressor(**SMALL).fit(FRAME[features], FRAME["y"], eval_set=[(valid[features], valid["y"])])
    rows = lazy() if train_lazily else FRAME
    others = dd.from_pandas(valid, npartitions=2) if valid_lazily else valid
    model = DaskBoostRegressor(**SMALL).fit(rows[features], rows["y"], eval_set=[(others[features], others["y"])])
    assert model.booster_.to_bytes() == expected.booster_.to_bytes()
    assert model.evals_result_ == expected.evals_result_


@pytest.mark.parametrize("path", ["same data set", "margins of the model"])
def test_a_fit_is_continued_on_a_cluster(cluster_client: Client, path: str) -> None:
    params = {"max_depth": 3, "subsample": 0.8}
    with QuantizedDataset.from_dask(lazy()[["a", "b", "c", "y"]], "y") as data:
        whole, first = train(params, data, 8), train(params, data, 4)
        second = train(params, data, 4, init_model=first)
    if path != "same data set":
        with QuantizedDataset.from_dask(lazy(3)[["a", "b", "c", "y"]], "y", init_model=first) as rest:
            second = train(params, rest, 4, init_model=first)
    assert second.to_bytes() == whole.to_bytes()


def test_early_stopping_and_callbacks_on_a_cluster(cluster_client: Client, tmp_path: Path) -> None:
    class Stop(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            return info.iteration == 2

    frame = lazy()[["a", "b", "c", "y"]]
    pair = (frame, "y")
    stopped = DaskBoostRegressor(n_estimators=500, callbacks=[Stop(), Checkpoint(tmp_path / "m.ubj", 1)]).fit(*pair)
    assert 3 <= stopped.booster_.n_iterations < 500
    assert Booster.load_model(tmp_path / "m.ubj") == stopped.booster_
    valid = dd.from_pandas(FRAME[["a", "b", "c", "y"]][:150] * 1.01, npartitions=2)
    early = DaskBoostRegressor(n_estimators=200, learning_rate=1.0, early_stopping_rounds=3)
    early.fit(*pair, eval_set=[(valid, "y")])
    local = DaskBoostRegressor(n_estimators=200, learning_rate=1.0, early_stopping_rounds=3)
    local.fit(FRAME[["a", "b", "c"]], FRAME["y"], eval_set=[(valid.compute(), "y")])
    assert early.booster_.to_bytes() == local.booster_.to_bytes()
    assert early.best_iteration == local.best_iteration


def test_bad_rows_on_a_cluster_are_named(cluster_client: Client) -> None:
    broken = FRAME[["a", "b", "y"]].copy()
    broken.loc[300, "b"] = np.inf
    with pytest.raises(DataError, match=r"partition 2: X has values that are infinite .* in: 'b'"):
        DaskBoostRegressor(n_estimators=2).fit(dd.from_pandas(broken, npartitions=4), "y")
    with pytest.raises(DataError, match=r"y has only one class, 'ant', in all rows"):
        DaskBoostClassifier(n_estimators=2).fit(lazy().assign(label="ant").drop(columns="y"), "label")
    one = dd.from_pandas(FRAME[FRAME.label == "ant"], npartitions=2)
    features = list("abcde")
    with pytest.raises(DataError, match=r"'auc' of evaluation set 'validation_0' was NaN"):
        DaskBoostClassifier(n_estimators=9, eval_metric="auc", early_stopping_rounds=2).fit(
            lazy()[features], lazy()["label"] == "ant", eval_set=[(one[features], one["label"] == "ant")]
        )


def test_an_estimator_under_an_asynchronous_client() -> None:
    from distributed import Client, LocalCluster

    async def run() -> tuple[Any, float]:
        async with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit="4GiB",
                asynchronous=True,
            ) as cluster,
            Client(cluster, asynchronous=True),
        ):  # fmt: skip
            frame = lazy()[[*"abcde", "label"]]
            model: Any = DaskBoostClassifier(**SMALL)
            fitted = await model.fit(frame, "label", eval_set=[(frame, "label")])
            assert fitted is model
            return model, await model.score(frame, "label")

    model, score = asyncio.run(run())
    expected = DaskBoostClassifier(**SMALL).fit(FRAME[[*"abcde", "label"]], "label")
    assert model.booster_.to_bytes() == expected.booster_.to_bytes()
    assert score == expected.score(FRAME, "label")
