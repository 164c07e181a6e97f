"""Sums of what a reader makes of partitions: each worker adds its own up in place, and only these sums travel.

    worker A   reads a partition, adds it to its sum; reads the next ...  -->  sum of A
    worker B   reads a partition, adds it to its sum; reads the next ...  -->  sum of B, to where A's is: added up

Levels and counts of categories take up to a gigabyte, and sums of a few partitions as much as those of all: with a sum
for every few partitions, as a tree of Dask tasks has, a worker would hold many of them at once.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import iadd
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from daskboost.cluster.dask_plugins import ensure_worker_plugin, worker_host
from daskboost.cluster.dask_sums import LOST
from daskboost.cluster.dask_tasks import compute, drop
from daskboost.cluster.dask_watch import WorkerSilentError, on_loop
from daskboost.data.chunks.build import A
from daskboost.data.input.source import Reader, Source
from daskboost.errors import WorkerLostError

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client

R = TypeVar("R")
T = TypeVar("T")
SUM = "sum"
"""Under which a worker keeps its sum."""


class WorkerSum:
    """The sum of the partitions that a worker has read, and their tokens. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total: object = None
        self.tokens: frozenset[str] = frozenset()

    def add(self, token: str, part: object) -> None:
        """Add what was made of a partition."""
        with self._lock:
            self.total = reduce(iadd, [self.total, part] if self.tokens else [part])
            self.tokens |= {token}


@dataclass(frozen=True)
class AddingReader(Generic[A]):
    """Reads a partition, and adds what another reader makes of it to the sum of the worker."""

    reader: Reader[A]
    name: str
    """Under which workers keep their sums."""

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> tuple[int, str, str]:
        """Return the rows of the partition, the worker's address, and a token of what was added."""
        from distributed import get_worker

        place, token = worker_host(get_worker()).place, secrets.token_hex(8)
        part = self.reader.read(x, given, where=where)
        n_rows = part.n_rows  # of a part that is the first one, and grows
        place.shards.made(self.name, SUM, WorkerSum).add(token, part)
        return n_rows, place.address, token


def _taken(name: str, tokens: frozenset[str]) -> object:
    """Return the sum of the worker that runs this, which forgets it; WorkerLostError where it is of other partitions,
    as it is if a worker was lost and others have read its partitions."""
    from distributed import get_worker

    shards = worker_host(get_worker()).place.shards
    own: WorkerSum | None = shards.parts(name).get(SUM)
    shards.drop(name)
    if own is None or own.tokens != tokens:
        raise WorkerLostError(LOST)
    return own.total


def summed(client: Client, source: Source, reader: Reader[Any], use: Callable[[Delayed], R]) -> tuple[list[int], R]:
    """Return the rows of each partition, and what is made of the sum of what a reader makes of them; all is done once
    more where a worker was lost.

    `use` : takes the sum, which lies on a worker.
    """
    try:
        return _summed(client, source, reader, use)
    except WorkerSilentError:
        raise  # Dask believes it to be there, and would wait for it again
    except WorkerLostError:
        return _summed(client, source, reader, use)


def _summed(client: Client, source: Source, reader: Reader[Any], use: Callable[[Delayed], R]) -> tuple[list[int], R]:
    from dask import delayed

    name = f"sum-{secrets.token_hex(8)}"
    on_loop(client, ensure_worker_plugin(client))
    try:
        tokens: dict[str, frozenset[str]] = {}
        read = compute(client, source.delayed(AddingReader(reader, name)))
        for _, worker, token in read:
            tokens[worker] = tokens.get(worker, frozenset()) | {token}
        taken = [
            client.submit(_taken, name, tokens[worker], workers=[worker], allow_other_workers=False, pure=False)
            for worker in sorted(tokens)
        ]  # fmt: skip
        found = use(_sum_of([delayed(_itself, pure=False)(own) for own in taken]))
        return [n_rows for n_rows, _, _ in read], found
    finally:
        on_loop(client, drop(client, name))


def _itself(value: T) -> T:
    return value


def _sum_of(parts: Sequence[Delayed]) -> Delayed:
    """Return the sum of workers' sums, two at a time, so that no worker has to hold more."""
    from dask import delayed

    added = delayed(partial(reduce, iadd), pure=False)
    while len(parts) > 1:
        parts = [added(list(parts[first : first + 2])) for first in range(0, len(parts), 2)]
    return parts[0]
