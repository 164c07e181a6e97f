"""What workers keep for a client goes with it, however it leaves: data sets, sums, and what its tasks bring later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import all_freed, eventually, local_cluster
from distributed import Client

from daskboost import DaskBoostClassifier, QuantizedDataset, train
from daskboost.cluster.context import name_of
from daskboost.cluster.dask_data import ClusterShards
from daskboost.cluster.dask_plugins import PLUGIN, worker_host
from daskboost.cluster.dask_watch import scheduler_address
from daskboost.errors import DaskBoostError


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with local_cluster(n_workers=2, processes=False) as client:
        yield client


def datasets_kept(dask_worker: Any) -> list[str]:
    """The data sets that a worker keeps: none on one that no fit has set up yet."""
    return worker_host(dask_worker).shards.datasets() if PLUGIN in dask_worker.extensions else []


def names_kept(client: Client) -> set[str]:
    return {name for names in client.run(datasets_kept).values() for name in names if name.startswith("data-")}


def nothing_kept(client: Client) -> bool:
    """Whether no worker keeps anything of a data set, soon."""
    return eventually(lambda: not any(client.run(datasets_kept).values()), 10.0)


def rows_on(client: Client) -> QuantizedDataset:
    """Return a data set of categories and numbers on the client's workers."""
    rows = pd.DataFrame({"a": list("abcd") * 50, "b": np.arange(200.0), "y": np.arange(200) % 2})
    return QuantizedDataset.from_dask(dd.from_pandas(rows, npartitions=4), "y", client=client)


def test_workers_drop_what_they_keep_for_a_client_that_leaves(cluster: Client) -> None:
    """Data sets of others stay; closing one whose client has left does nothing more."""
    own = rows_on(cluster)
    with Client(scheduler_address(cluster), set_as_default=False) as leaving:
        data = rows_on(leaving)
        assert len(names_kept(cluster)) == 2
    assert isinstance(own.shards, ClusterShards)
    name = own.shards.name
    assert eventually(lambda: names_kept(cluster) == {name}, 10.0)
    data.close()
    train({"device": "cpu"}, own, 2)
    own.close()
    assert nothing_kept(cluster)


def test_workers_drop_the_rows_of_a_fit_whose_client_closes(cluster: Client) -> None:
    """What its tasks bring later is not kept either."""
    leaving = Client(scheduler_address(cluster), set_as_default=False)
    data = rows_on(leaving)

    closing = threading.Timer(0.5, leaving.close)
    closing.start()
    with pytest.raises(DaskBoostError, match="client"):
        train({"device": "cpu"}, data, 100_000)
    closing.join()
    assert nothing_kept(cluster)
    cluster.run(put_for, leaving.id)
    assert nothing_kept(cluster)


def put_for(client_id: str, dask_worker: Any) -> None:
    worker_host(dask_worker).shards.put(name_of("data", client_id), 0, object())


def test_cancelling_an_awaited_fit_ends_it() -> None:
    """It changes nothing, and frees what it has on the workers, in its rounds as well as before."""
    model = DaskBoostClassifier(n_estimators=100_000, device="cpu")

    async def cancelled_after(seconds: float, address: str) -> None:
        async with Client(address, asynchronous=True, set_as_default=True):
            rows = dd.from_pandas(pd.DataFrame({"a": np.arange(400.0), "y": np.arange(400) % 2}), npartitions=4)
            fit = asyncio.ensure_future(model.fit(rows[["a"]], rows["y"]))
            await asyncio.sleep(seconds)
            assert not fit.done() and fit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fit

    with local_cluster(n_workers=2, processes=False) as client:
        for seconds in (0.0, 0.05, 2.0):
            asyncio.run(cancelled_after(seconds, scheduler_address(client)))
            assert all_freed(client) and nothing_kept(client)
            assert not hasattr(model, "_booster")
