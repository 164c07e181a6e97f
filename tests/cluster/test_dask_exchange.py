"""What workers have for owners reaches these, in common memory or over connections, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import drop_shards, eventually, local_cluster, map_workers, worker_addresses
from cluster.partition_functions import (
    allow_rooms,
    datasets,
    dies,
    gathered,
    give_large,
    large,
    refuses,
    rooms_here,
    sums,
    tens,
)
from distributed import Client

from daskboost.cluster.common_memory import DIRECTORY, PREFIX, Room
from daskboost.cluster.dask_exchange import LEAST_ROOM_BYTES, Given, exchange
from daskboost.cluster.dask_plugins import ensure_worker_plugin
from daskboost.errors import DataError, WorkerLostError

NAME = "exchanged"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(threads_per_worker=2) as client:
        client.sync(ensure_worker_plugin, client)
        yield client


def exchanged(client: Client, owners: list[str], part: Any = tens, whole: Any = gathered) -> list[Any]:
    given = Given(part, whole, tuple(owners), tuple(worker_addresses(client)), NAME)
    found: list[Any] = client.sync(exchange, client, given, "an exchange")
    return found


def rooms(client: Client) -> list[str]:
    found = map_workers(client, rooms_here, workers=worker_addresses(client))
    return [name for names in found.values() for name in names]


def test_owners_get_their_parts_of_all_workers(client: Client) -> None:
    workers = worker_addresses(client)
    owners = [workers[1], workers[0], workers[1]]
    expected = [
        (owner, index, [(worker, 10 * index) for worker in workers]) for index, owner in enumerate(owners)
    ]
    assert exchanged(client, owners) == expected
    assert not any(client.has_what().values())


def test_an_exchange_raises_what_a_part_raised(client: Client) -> None:
    with pytest.raises(DataError, match="part 7: it changed"):
        exchanged(client, worker_addresses(client) * 4)


def test_an_exchange_does_not_wait_for_a_worker_that_is_gone(client: Client) -> None:
    with pytest.raises(WorkerLostError, match="was lost, and with it"):
        exchanged(client, [worker_addresses(client)[0], "tcp://127.0.0.1:9"])


@pytest.mark.parametrize("has_memory", [True, False])
def test_large_parts_come_whole_and_leave_no_room(client: Client, has_memory: bool) -> None:
    workers = worker_addresses(client)
    map_workers(client, allow_rooms, has_memory, workers=workers)
    try:
        found = exchanged(client, workers, large, sums)
    finally:
        map_workers(client, allow_rooms, True, workers=workers)
    total = int(np.arange(LEAST_ROOM_BYTES).sum())
    assert [each for each, _ in found] == [2 * (total + index * LEAST_ROOM_BYTES) for index in range(2)]
    in_rooms = [[has_memory and worker != owner for worker in workers] for owner in workers]
    assert [mapped for _, mapped in found] == in_rooms
    assert rooms(client) == []
    drop_shards(client, NAME)
    assert not any(NAME in names for names in map_workers(client, datasets, workers=workers).values())


def test_an_owner_that_fails_leaves_no_room(client: Client) -> None:
    with pytest.raises(DataError, match="a whole refuses"):
        exchanged(client, worker_addresses(client), large, refuses)
    assert rooms(client) == []


@pytest.mark.parametrize("when", ["kept", "dropped"])
def test_a_room_that_nobody_opened_goes_with_its_data_set(client: Client, when: str) -> None:
    worker = worker_addresses(client)[:1]
    name = f"{NAME} {when}"
    if when == "dropped":
        drop_shards(client, name)
    map_workers(client, give_large, name, workers=worker)
    assert len(rooms(client)) == (when == "kept")
    drop_shards(client, name)
    assert rooms(client) == []


def test_an_owner_that_dies_leaves_no_room() -> None:
    with local_cluster() as client:
        client.sync(ensure_worker_plugin, client)
        pids = set(client.run(_process).values())
        with pytest.raises(WorkerLostError, match="was lost"):
            exchanged(client, worker_addresses(client)[:1], large, dies)
        assert eventually(lambda: not rooms_of(pids), 10)
    assert not rooms_of(pids)


def _process() -> int:
    import os

    return os.getpid()


def rooms_of(processes: set[int]) -> list[str]:
    """Rooms of some processes, once another one was made, which removes what those that have ended left."""
    Room(64).forget_name()
    return [path.name for path in Path(DIRECTORY).glob(f"{PREFIX}*") if int(path.name.split("-")[1]) in processes]
