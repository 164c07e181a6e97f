"""Sums that workers keep: every partition once, whatever becomes of the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cluster.dask_fixtures import all_freed, eventually, local_cluster
from distributed import Client, Worker, get_worker

from daskboost.cluster import dask_totals
from daskboost.cluster.dask_data import ClusterRunner
from daskboost.cluster.dask_kept import run_on
from daskboost.cluster.dask_plugins import worker_host
from daskboost.data.input.held import Held
from daskboost.data.input.source import Source, make_source
from daskboost.errors import WorkerLostError


@dataclass(frozen=True, eq=False)
class Seen:
    """The ids of rows, of which those of a sum are in no order."""

    n_rows: int
    ids: list[int]

    def __iadd__(self, other: Seen) -> Seen:
        self.ids.extend(other.ids)
        return Seen(self.n_rows + other.n_rows, self.ids)


@dataclass(frozen=True)
class SeenReader:
    """Returns the ids of a partition's rows; ends the worker at one of them, once."""

    marker: str = ""
    """A file that is there from then on; empty for workers that live on."""

    def read(self, x: Any, given: Mapping[str, Any], *, where: str = "") -> Seen:
        ids = [int(each) for each in np.asarray(x)[:, 0]]
        if self.marker and 70 in ids and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os._exit(1)
        return Seen(len(ids), ids)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(n_workers=2) as client:
        yield client


def numbered() -> Source:
    frame = pd.DataFrame({"id": np.arange(100.0), "other": 1.0})
    return make_source(dd.from_pandas(frame, npartitions=9, sort=False))


def test_sums_are_of_every_partition_once(client: Client) -> None:
    sizes, total = ClusterRunner(client).total(numbered(), SeenReader())
    found = ids_of(client, total)
    assert found == list(range(100)) and len(found) == sum(sizes) == 100 and len(sizes) == 9
    del total
    assert all_freed(client) and nothing_kept(client)


def ids_of(client: Client, total: Held[Seen]) -> list[int]:
    return sorted(ClusterRunner(client).told(total, attrgetter("ids")))


def nothing_kept(client: Client) -> bool:
    return eventually(lambda: not any(client.run(kept_names).values()), 10)


def kept_names(dask_worker: Worker) -> list[str]:
    return worker_host(dask_worker).shards.datasets()


def test_a_sum_that_was_lost_is_made_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Any] = []
    run = dask_totals._summed

    def forgetful(client: Client, source: Source, reader: Any) -> Any:
        attempts.append(run(client, source, reader))
        if len(attempts) == 1:
            raise WorkerLostError("gone")
        return attempts[-1]

    monkeypatch.setattr(dask_totals, "_summed", forgetful)
    sizes, total = ClusterRunner(client).total(numbered(), SeenReader())
    assert len(attempts) == 2 and ids_of(client, total) == list(range(100)) and sum(sizes) == 100


def test_sums_of_other_partitions_are_refused(client: Client) -> None:
    def added(name: str, tokens: list[str]) -> None:
        shards = worker_host(get_worker()).place.shards
        for token in tokens:
            shards.made(name, dask_totals.SUM, dask_totals.WorkerSum).add(token, [token])

    first, second = sorted(client.nthreads())
    for name, tokens in (("more", ["a", "b"]), ("others", ["b"]), ("none", [])):
        for worker in (first, second):
            client.submit(added, name, tokens, workers=[worker], pure=False).result()
        end = partial(dask_totals._end, name=name, tokens=frozenset(["a"]), value="end")
        with pytest.raises(WorkerLostError, match="call again"):
            run_on(client, {first: end})
        own = frozenset(tokens)
        add = partial(dask_totals._add, name=name, tokens=own, other=second, others=frozenset(["a"]))
        with pytest.raises(WorkerLostError, match="call again"):
            run_on(client, {first: add})


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    with local_cluster(n_workers=2) as client:
        sizes, total = ClusterRunner(client).total(numbered(), SeenReader(str(tmp_path / "died")))
        assert (tmp_path / "died").exists()
        assert ids_of(client, total) == list(range(100)) and sum(sizes) == 100
