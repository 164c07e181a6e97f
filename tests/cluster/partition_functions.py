"""Functions that tests send to partitions; importable on workers."""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import Any

import numpy as np
from distributed import get_worker

from daskboost.cluster import common_memory, dask_exchange
from daskboost.cluster.context import WorkerPlace
from daskboost.cluster.dask_exchange import LEAST_ROOM_BYTES
from daskboost.cluster.dask_plugins import RESOURCE
from daskboost.errors import DataError

running = 0
most = 0
lock = threading.Lock()


def read(index: int) -> list[int]:
    """Reads a partition, and notes how many exist on this worker."""
    global running, most
    with lock:
        running += 1
        most = max(most, running)
    return [index] * index


def keep(partition: Any, place: WorkerPlace, index: int, dataset: str, factor: int = 1) -> int:
    """Consumes a partition and leaves a shard."""
    global running
    time.sleep(0.02)
    with lock:
        running -= 1
    place.shards.put(dataset, index, Shard(place, index))
    return factor * len(partition)


def keep_with_plan(partition: Any, place: WorkerPlace, index: int, plan: dict[str, Any]) -> int:
    return keep(partition, place, index, **plan)


def rows(partition: Any, place: WorkerPlace, index: int) -> tuple[int, int]:
    return index, len(partition)


def fail_on_two(partition: Any, place: WorkerPlace, index: int) -> None:
    """Reads without `read`, whose count of partitions in memory it would leave wrong for the tests that follow."""
    global begun
    begun += 1
    if index == 2:
        raise DataError("partition 2: labels are missing")
    time.sleep(0.05)


def describe(place: WorkerPlace, dataset: str) -> tuple[list[int], int, int, int | None]:
    return sorted(place.shards.parts(dataset)), most, place.n_threads, place.memory_limit_bytes


closed: list[int] = []


class Shard:
    def __init__(self, place: WorkerPlace, index: int) -> None:
        self.index = index

    def close(self) -> None:
        closed.append(self.index)


def closed_shards(place: WorkerPlace) -> list[int]:
    return sorted(closed)


async def allow_partitions(at_once: int, dask_worker: Any) -> None:
    """How many partitions the worker may read at a time; with 0 it reads none."""
    await dask_worker.set_resources(**{RESOURCE: at_once})


def chunk_sizes(place: WorkerPlace, dataset: str) -> list[int]:
    """Rows of each chunk that lies here."""
    shards = [part for part in place.shards.parts(dataset).values() if hasattr(part, "entries")]
    return [entry.n_rows for shard in shards for entry in shard.entries]


late_started, late_may_end = threading.Event(), threading.Event()


def outlive(partition: Any, place: WorkerPlace, index: int, dataset: str) -> None:
    """Of two partitions in one process: the first fails once the second is read, which leaves a shard when it may."""
    if index == 0:
        late_started.wait(30)
        raise DataError("partition 0 is bad")
    late_started.set()
    late_may_end.wait(30)
    place.shards.put(dataset, index, Shard(place, index))


def datasets(place: WorkerPlace) -> list[str]:
    return place.shards.datasets()


def tens(place: WorkerPlace, index: int) -> tuple[str, int]:
    """What a worker has for an owner."""
    if index == 7:
        raise DataError("part 7: it changed")
    return place.address, 10 * index


def gathered(place: WorkerPlace, index: int, parts: list[tuple[str, int]]) -> tuple[str, int, list[tuple[str, int]]]:
    return place.address, index, parts


def large(place: WorkerPlace, index: int) -> Any:
    """What a worker has for an owner, of more bytes than are sent."""
    return np.arange(LEAST_ROOM_BYTES) + index


def sums(place: WorkerPlace, index: int, parts: list[Any]) -> tuple[int, list[bool]]:
    """What an owner makes of these: their sum; and which of them lie in common memory."""
    assert all(part.flags.writeable and part.flags.aligned for part in parts)
    return sum(int(part.sum()) for part in parts), [_is_mapped(part) for part in parts]


def _is_mapped(array: Any) -> bool:
    found = array
    while found is not None and not isinstance(found, mmap.mmap):
        found = found.obj if isinstance(found, memoryview) else getattr(found, "base", None)
    return found is not None


def refuses(place: WorkerPlace, index: int, parts: list[Any]) -> None:
    raise DataError("a whole refuses")


def dies(place: WorkerPlace, index: int, parts: list[Any]) -> None:
    os._exit(1)


def give_large(place: WorkerPlace, name: str) -> None:
    """Puts a part into a room, which nobody will open."""
    dask_exchange._given(large, 0, name, place)


def allow_rooms(place: WorkerPlace, has_memory: bool) -> None:
    """Whether there is common memory."""
    common_memory.MOST_BYTES = 1 << 28 if has_memory else 0


def rooms_here(place: WorkerPlace) -> list[str]:
    """Names of this process's rooms."""
    return [path.name for path in common_memory.DIRECTORY.glob(f"{common_memory.PREFIX}{os.getpid()}-*")]


begun = 0


def n_begun(place: WorkerPlace) -> int:
    """Calls of `fail_on_two` on this worker."""
    return begun


alone = threading.Lock()


def alone_here(partition: Any, place: WorkerPlace, index: int) -> tuple[str, bool]:
    """The worker as Dask tells it, and whether no other call runs this."""
    is_alone = alone.acquire(blocking=False)
    time.sleep(0.02)
    if is_alone:
        alone.release()
    return get_worker().address, is_alone


def die_on_two(partition: Any, place: WorkerPlace, index: int) -> None:
    if index == 2:
        os._exit(1)
