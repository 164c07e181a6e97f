"""Small data on a cluster: one worker has it all and grows whole rounds by itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import WORKER_MEMORY, local_cluster
from cluster.dask_tables import FEATURES, PARAMS, ROWS, fit_bytes, frame, table

import daskboost as db
from daskboost.cluster import dask_data


@pytest.fixture
def client() -> Iterator[Any]:
    with local_cluster(3) as made:
        yield made


def test_small_data_goes_to_one_worker_that_grows_whole_trees(client: Any) -> None:
    features, labels, weights = table("classes")
    names = [f"x{i}" for i in range(FEATURES)]
    history: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    with (
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 6), "label", weight="weight") as data,
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 3), "label", weight="weight",
                                      reference=data) as valid,
        db.QuantizedDataset.from_dask(features, labels, weight=weights, feature_names=names) as local,
    ):  # fmt: skip
        assert len(set(data.shards.owners)) == 1
        assert set(valid.shards.owners) == set(data.shards.owners)
        for kind in ("classes", "regression"):
            assert fit_bytes(data, kind, grow_policy="lossguide") == fit_bytes(local, kind, grow_policy="lossguide")
            params = {**PARAMS[kind], "max_depth": 3}
            model = db.train(params, data, 5, evals=[(valid, "v")], evals_result=history)
            assert model == db.train(params, local, 5, evals=[(local, "v")], evals_result=expected)
            assert history == expected
        # Rounds that the worker grew ahead of a stop are not in the model.
        noise = frame(features, labels[::-1].copy(), weights, 3)
        with (
            db.QuantizedDataset.from_dask(noise, "label", weight="weight", reference=data) as there,
            db.QuantizedDataset.from_dask(noise.compute(), "label", weight="weight", reference=local) as here,
        ):
            stop: dict[str, Any] = {"num_boost_round": 40, "early_stopping_rounds": 2}
            model = db.train(PARAMS["classes"], data, evals=[(there, "v")], evals_result=history, **stop)
            assert model == db.train(PARAMS["classes"], local, evals=[(here, "v")], evals_result=expected, **stop)
            assert model.n_iterations < 40 and history == expected

        class StopAtThree(db.Callback):
            def after_round(self, info: Any) -> bool:
                return bool(info.iteration == 3)

        assert db.train(PARAMS["classes"], data, 40, callbacks=[StopAtThree()]).n_iterations == 4
        absolute = {"objective": "reg:absoluteerror"}
        assert db.train(absolute, data, 3).to_bytes() == db.train(absolute, local, 3).to_bytes()


def test_small_data_survives_the_worker_that_it_was_meant_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    features, labels, weights = table()
    parts = np.array_split(np.arange(ROWS), 4)
    columns = [f"x{i}" for i in range(FEATURES)]
    deadly = tmp_path / "deadly"  # while it exists, the next reader of a partition dies

    def read(rows: Any) -> Any:
        import pandas as pd

        with contextlib.suppress(FileNotFoundError):
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return pd.DataFrame(features[rows], columns=columns).assign(label=labels[rows], weight=weights[rows])

    chosen: list[list[str]] = []
    choose = dask_data.ClusterRunner._owners

    def choose_and_kill(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        deadly.touch()
        return chosen[-1]

    monkeypatch.setattr(dask_data.ClusterRunner, "_owners", choose_and_kill)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=WORKER_MEMORY
        ) as made,
        Client(made),
    ):
        lazy = dd.from_map(read, parts, meta=read(slice(0)))
        with db.QuantizedDataset.from_dask(lazy, "label", weight="weight") as data:
            assert not deadly.exists()
            assert chosen[0][0] not in data.shards.owners
            model = db.train(PARAMS["logistic"], data, 3)
    with db.QuantizedDataset.from_dask(features, labels, weight=weights, feature_names=columns) as local:
        assert model == db.train(PARAMS["logistic"], local, 3)
