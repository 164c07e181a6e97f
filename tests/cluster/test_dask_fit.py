"""Fits on real clusters: odd partitions, failures, several at once.

That all places give the same bytes is `test_same_bytes_on_cluster.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import WORKER_MEMORY, all_freed, check_prompt, eventually
from cluster.dask_tables import FEATURES, fit_bytes, frame, table

import daskboost as db
from daskboost.data.saved import shard_files
from daskboost.devices.budget import partition
from daskboost.errors import DaskBoostError, DataError, EngineError, ParameterError, StorageError, WorkerLostError
from daskboost.fit import scales


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=3, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=WORKER_MEMORY
    ) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster) as made:
        made.wait_for_workers(3, timeout=60)
        yield made


@pytest.fixture(autouse=True)
def spread_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """These data sets are small enough for one worker, and are here to be spread out."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)


def test_one_row_per_partition_and_empty_partitions(client: Any) -> None:
    import dask.dataframe as dd
    import pandas as pd

    features, labels, _ = table()
    rows = pd.DataFrame(features[:5], columns=[f"x{i}" for i in range(FEATURES)]).assign(label=labels[:5])
    parts = [rows[i : i + 1] for i in range(5)]
    empty = rows[:0]
    collection = dd.concat([dd.from_pandas(part, npartitions=1) for part in (empty, *parts[:3], empty, *parts[3:])])
    with db.QuantizedDataset.from_dask(collection, "label") as data:
        model = db.train({"objective": "reg:squarederror", "min_child_weight": 0}, data, 3)
    with db.QuantizedDataset.from_dask(rows, "label") as local:
        assert (
            model.to_bytes() == db.train({"objective": "reg:squarederror", "min_child_weight": 0}, local, 3).to_bytes()
        )


def test_evaluation_sets_of_other_partitions_and_places(client: Any) -> None:
    features, labels, weights = table()
    collection = frame(features, labels, weights, 5)
    history: dict[str, Any] = {}
    with (
        db.QuantizedDataset.from_dask(collection, "label", weight="weight") as data,
        db.QuantizedDataset.from_dask(frame(features[:501], labels[:501], weights[:501], 2), "label", weight="weight",
                                      reference=data) as small,
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 1).compute(), "label", weight="weight",
                                      reference=data) as local,
    ):  # fmt: skip
        params = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"]}
        model = db.train(params, data, 10, evals=[(small, "small"), (local, "local")], evals_result=history)
    from sklearn.metrics import log_loss, roc_auc_score

    names = [f"x{i}" for i in range(FEATURES)]
    import pandas as pd

    predicted = model.predict(pd.DataFrame(features, columns=names))
    assert history["local"]["auc"][-1] == pytest.approx(
        roc_auc_score(labels, predicted, sample_weight=weights), abs=1e-6
    )
    expected = log_loss(labels[:501], predicted[:501].astype(np.float64), sample_weight=weights[:501])
    assert history["small"]["logloss"][-1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n_partitions", [1, 5])
@pytest.mark.parametrize("reduction", ["coordinator", "peers"])
@pytest.mark.parametrize("sketch", [0, 1, 3])
def test_vectors(client: Any, sketch: int, reduction: str, n_partitions: int) -> None:
    """The bytes of a fit in this process; on one worker whole rounds grow beside the rows."""
    features, labels, weights = table("classes")
    more = {"sketch_outputs": sketch, "reduction": reduction}
    with (
        db.QuantizedDataset.from_dask(frame(features, labels, weights, n_partitions), "label", weight="weight") as data,
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 1).compute(), "label", weight="weight") as local,
    ):
        assert fit_bytes(data, "vectors", **more) == fit_bytes(local, "vectors", **more)


@pytest.mark.parametrize("mode", [
    {"out_of_core": "certified", "certify_tolerance": 0.03}, {"out_of_core": "sampled", "subsample": 0.3},
], ids=["certified", "sampled"])  # fmt: skip
@pytest.mark.parametrize("n_partitions", [1, 5])
@pytest.mark.parametrize("reduction", ["coordinator", "peers"])
def test_trees_that_grow_on_samples(
    client: Any, reduction: str, n_partitions: int, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes and the report of a fit in this process; one worker alone grows rounds beside its rows, and several
    partitions stay on theirs."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", partition.ONE_ENGINE_BYTES if n_partitions == 1 else 0)
    features, labels, weights = table("classes")
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 4, **mode, "reduction": reduction}
    found: list[tuple[bytes, Any]] = []
    for data in (frame(features, labels, weights, n_partitions), frame(features, labels, weights, 1).compute()):
        history: dict[str, Any] = {}
        with db.QuantizedDataset.from_dask(data, "label", weight="weight") as dataset:
            model = db.train(params, dataset, 3, evals=[(dataset, "train")], evals_result=history)
        found.append((model.to_bytes(), history))
    assert found[0] == found[1]
    assert (max(found[0][1]["out_of_core"]["passes"]) > 1) == (mode["out_of_core"] == "certified")


def test_several_gpus_of_one_process_are_refused(client: Any) -> None:
    """Each worker has one; nothing is read before that is said."""
    features, labels, weights = table("classes")
    rows = frame(features, labels, weights, 2)
    params: dict[str, Any] = {"device": "cuda", "n_gpus": 2}
    message = "n_gpus=2 shares rows of this process out to its GPUs, and the rows are on a Dask cluster"
    with pytest.raises(ParameterError, match=message):
        db.DaskBoostClassifier(**params).fit(rows, "label")
    with db.QuantizedDataset.from_dask(rows, "label") as dataset:
        with pytest.raises(ParameterError, match=message):
            db.train(params, dataset, 1)
    with pytest.raises(ParameterError, match=message):
        db.plan(params, n_rows=1_000, n_features=5, n_workers=2)


def test_custom_callables_travel(client: Any) -> None:
    features, labels, weights = table("regression")

    def squared(label: Any, margin: Any) -> tuple[Any, Any]:
        return margin - label, np.ones_like(margin)

    def spread(label: Any, prediction: Any) -> float:
        return float(np.ptp(label - prediction))

    history: dict[str, Any] = {}
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label") as data:
        model = db.train({}, data, 3, objective=squared, custom_metric=spread, evals=[(data, "train")],
                         evals_result=history)  # fmt: skip
    assert model.n_iterations == 3
    assert len(history["train"]["spread"]) == 3


def test_an_exception_on_one_worker_reaches_the_client_and_frees_the_others(client: Any) -> None:
    features, labels, weights = table("regression")
    labels = labels.copy()
    labels[-1] = 1_000.0

    def fails_on_one_row(label: Any, margin: Any) -> tuple[Any, Any]:
        if (label == 1_000.0).any():
            raise ZeroDivisionError("this row is cursed")
        return margin - label, np.ones_like(margin)

    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 6), "label") as data:
        with pytest.raises(EngineError, match="this row is cursed"):
            db.train({"base_score": 0.0}, data, 3, objective=fails_on_one_row)
        assert all_freed(client)
        assert db.train({}, data, 2).n_iterations == 2


def test_closing_a_data_set_frees_the_workers(client: Any) -> None:
    def held(dask_worker: Any) -> list[str]:
        from daskboost.cluster.dask_plugins import worker_host

        return worker_host(dask_worker).shards.datasets()

    features, labels, weights = table()
    data = db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label")
    assert any(data.shards.name in names for names in client.run(held).values())
    data.close()
    assert not any(data.shards.name in names for names in client.run(held).values())


def test_a_worker_that_lost_its_partitions_is_not_trained_without(client: Any) -> None:
    """A restarted worker is back under another address; one that only forgot its data is worse."""

    def forget(dask_worker: Any) -> None:
        from daskboost.cluster.dask_plugins import worker_host

        for name in worker_host(dask_worker).shards.datasets():
            worker_host(dask_worker).shards.drop(name)

    features, labels, weights = table()
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 6), "label") as data:
        client.run(forget, workers=[data.shards.owners[0]])
        with pytest.raises(EngineError, match=r"holds 0 of its \d partitions: .*make the data set again"):
            db.train({}, data, 2)


def test_sets_that_are_closed_or_elsewhere_are_refused(client: Any) -> None:
    features, labels, weights = table()
    with (
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 3), "label", weight="weight") as data,
        db.QuantizedDataset.from_dask(features, labels) as local,
    ):
        with pytest.raises(DataError, match="evaluation set 'v' is not where the training set is"):
            db.train({}, local, 1, evals=[(data, "v")])
    with pytest.raises(DataError, match="dtrain was closed; make it again"):
        db.train({}, data, 1)
    with pytest.raises(DataError, match="dtrain was closed; make it again"):
        db.train({}, local, 1)


def test_two_fits_at_once(client: Any) -> None:
    features, labels, weights = table()
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 6), "label") as data:
        expected = fit_bytes(data, "logistic")
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(fit_bytes(data, "logistic"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected, expected]


def test_an_asynchronous_client_awaits(cluster: Any) -> None:
    from distributed import Client

    features, labels, weights = table()

    async def work() -> bytes:
        async with Client(cluster.scheduler_address, asynchronous=True):
            data: Any = db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label", weight="weight")
            data = await data
            model: Any = db.train({"objective": "binary:logistic"}, data, 3)
            result: bytes = (await model).to_bytes()
            await asyncio.to_thread(data.close)
            return result

    found = asyncio.run(work())
    names = [f"x{i}" for i in range(FEATURES)]
    with db.QuantizedDataset.from_dask(features, labels, weight=weights, feature_names=names) as local:
        assert found == db.train({"objective": "binary:logistic"}, local, 3).to_bytes()


class Strike(db.Callback):
    """Ctrl-C in the midst of a fit."""

    def after_round(self, info: Any) -> bool:
        if info.iteration == 2:
            self.at = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)
        return False


def test_interrupting_a_fit_ends_it_within_a_second(client: Any) -> None:
    features, labels, weights = table()
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label") as data:
        fit_bytes(data, "logistic")  # compiled kernels, so that only the fit is timed

        def attempt() -> float:
            strike = Strike()
            with pytest.raises(KeyboardInterrupt):
                db.train({"objective": "binary:logistic"}, data, 100_000, callbacks=[strike])
            took = time.monotonic() - strike.at
            assert all_freed(client)
            return took

        check_prompt(attempt, within_s=1.0)


def test_bad_rows_on_a_worker_are_named_at_the_client(client: Any) -> None:
    features, labels, weights = table()
    features = features.copy()
    features[-1, 3] = np.inf
    with pytest.raises(DataError, match="x3"):
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label")


@pytest.mark.parametrize("reduction", ["coordinator", "auto"])
def test_gradients_that_are_no_numbers_are_refused_as_such(
    client: Any, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds out: the coordinator, or the engines themselves where they grow rounds in step."""
    monkeypatch.setattr(scales, "SMALL_ROWS", 0)  # weights of small data are no part of gradients
    features, labels, weights = table()
    labels, weights = labels.astype(np.float32), np.ones(len(labels), np.float32)
    labels[5], weights[5] = 1e6, 1e38
    params = {"base_score": 0.0, "reduction": reduction, "device": "cpu", "objective": "reg:squarederror"}
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 6), "label", weight="weight") as data:
        with pytest.raises(DataError, match=r"gave a gradient of inf in iteration 0; check labels and weights"):
            db.train(params, data, 3)
        assert all_freed(client)


def test_a_callback_stops_a_cluster_fit_where_it_stops_an_embedded_one(client: Any) -> None:
    class StopAtThree(db.Callback):
        def after_round(self, info: Any) -> bool:
            return bool(info.iteration == 2)

    features, labels, weights = table()
    names = [f"x{i}" for i in range(FEATURES)]
    with (
        db.QuantizedDataset.from_dask(frame(features, labels, weights, 4), "label", weight="weight") as data,
        db.QuantizedDataset.from_dask(features, labels, weight=weights, feature_names=names) as local,
    ):
        models = [db.train({"objective": "binary:logistic"}, d, 50, callbacks=[StopAtThree()]) for d in (data, local)]
    assert models[0].n_iterations == 3
    assert models[0].to_bytes() == models[1].to_bytes()


def test_saved_on_one_cluster_opened_anywhere(client: Any, tmp_path: Any) -> None:
    features, labels, weights = table()
    with db.QuantizedDataset.from_dask(frame(features, labels, weights, 7), "label", weight="weight",
                                       chunk_rows=200) as data:  # fmt: skip
        expected = fit_bytes(data, "logistic")
        data.save(tmp_path / "saved")
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    on_disk: dict[str, Any] = {"host_memory_limit": 1, "spill_directory": spilled}
    with (
        db.QuantizedDataset.open(tmp_path / "saved") as here,
        db.QuantizedDataset.open(tmp_path / "saved", client=client, **on_disk) as there,
    ):
        assert len(set(there.shards.owners)) == len(list(spilled.iterdir())) > 1
        assert fit_bytes(here, "logistic") == expected
        assert fit_bytes(there, "logistic") == expected


def test_a_spill_directory_that_workers_cannot_write_to_is_refused_before_rows_are_read(client: Any) -> None:
    import dask.array as da
    from dask import delayed

    def never() -> Any:
        raise AssertionError("read")

    lazy = da.from_delayed(delayed(never)(), (60, 3), np.float32)
    with pytest.raises(StorageError, match="spill_directory cannot be written to: Not a directory; name"):
        db.QuantizedDataset.from_dask(lazy, np.zeros(60), client=client, spill_directory="/dev/null/below")


def test_all_data_sets_of_a_worker_share_its_budget(client: Any) -> None:
    from daskboost.cluster.dask_plugins import worker_host

    def ram(dask_worker: Any) -> int:
        shards = worker_host(dask_worker).shards
        return sum(shards.parts(name)["store"].counters().ram_bytes for name in shards.datasets())

    collection = client.persist(frame(*table(), 6))
    with db.QuantizedDataset.from_dask(collection, "label", chunk_rows=64) as data:
        first = client.run(ram)
        limit = max(first.values()) * 5 // 4
        with db.QuantizedDataset.from_dask(
            collection, "label", reference=data, chunk_rows=64, host_memory_limit=limit
        ):
            both = client.run(ram)
    assert sum(first.values()) < sum(both.values())
    assert max(both.values()) <= limit
    assert sum(client.run(ram).values()) == 0


def test_a_dead_worker_ends_the_fit_with_a_clear_error() -> None:
    from distributed import Client, LocalCluster

    features, labels, weights = table()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=WORKER_MEMORY
        ) as made,
        Client(made) as own,
    ):
        collection = own.persist(frame(features, labels, weights, 8))
        data = db.QuantizedDataset.from_dask(collection, "label")
        victim = sorted(set(data.shards.owners))[0]
        pid = own.run(os.getpid, workers=[victim])[victim]

        class Kill(db.Callback):
            def after_round(self, info: Any) -> bool:
                if info.iteration == 2:
                    os.kill(pid, signal.SIGKILL)
                return False

        with pytest.raises(WorkerLostError, match=r"worker .* (left|died|lost|gone|closed)"):
            db.train({"objective": "binary:logistic"}, data, 100_000, callbacks=[Kill()])
        assert eventually(lambda: victim not in own.nthreads(), 20)
        started = time.monotonic()
        with pytest.raises(WorkerLostError, match=f"worker {victim} was lost, .*make the data set again"):
            db.train({"objective": "binary:logistic"}, data, 1)
        assert time.monotonic() - started < 10  # Dask calls a dead worker for half a minute


def test_workers_open_the_data_set_that_the_client_has_read(
    client: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that replaces it meanwhile may have as many rows and the same labels, in other chunks and bins."""
    features, labels, _ = table()
    path = tmp_path / "saved"
    with db.QuantizedDataset.from_dask(features, labels, chunk_rows=200) as data:
        data.save(path)
    read = shard_files.read_dataset

    def replaced(given: Any) -> Any:
        found = read(given)
        with db.QuantizedDataset.from_dask(features, labels, chunk_rows=200, max_bin=4) as data:
            data.save(path, overwrite=True)
        return found

    monkeypatch.setattr(shard_files, "read_dataset", replaced)
    with pytest.raises(DaskBoostError, match="was replaced or removed while it was opened: open it again"):
        db.QuantizedDataset.open(path, client=client)
    monkeypatch.undo()
    with db.QuantizedDataset.open(path, client=client) as data:
        assert data.info.max_bin == 4
