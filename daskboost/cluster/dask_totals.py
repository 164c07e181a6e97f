"""Sums of what a reader makes of partitions: each worker adds its own up in place, and only these sums travel.

    worker A   reads a partition, adds it to its sum; reads the next ...  -->  sum of A
    worker B   reads a partition, adds it to its sum; reads the next ...  -->  sum of B, to where A's is: added up

Levels and counts of categories take up to a gigabyte, and sums of a few partitions as much as those of all: with a sum
for every few partitions, as a tree of Dask tasks has, a worker would hold many of them at once.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import iadd
from typing import TYPE_CHECKING, Any, Generic

from daskboost.cluster.context import name_of
from daskboost.cluster.dask_kept import KeptValue, ask, kept, new_name, put, run_on
from daskboost.cluster.dask_plugins import ensure_worker_plugin, worker_host
from daskboost.cluster.dask_sums import LOST
from daskboost.cluster.dask_tasks import compute, drop
from daskboost.cluster.dask_watch import WorkerSilentError, on_loop
from daskboost.data.chunks.build import A
from daskboost.data.input.held import value_of
from daskboost.data.input.source import AnyReader, Source
from daskboost.errors import WorkerLostError

if TYPE_CHECKING:
    from distributed import Client, Worker

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

    reader: AnyReader[A]
    name: str
    """Under which workers keep their sums."""

    def read(self, x: object, given: Mapping[str, Any], *, where: str = "") -> tuple[int, str, str]:
        """Return the rows of the partition, the worker's address, and a token of what was added."""
        from distributed import get_worker

        place, token = worker_host(get_worker()).place, secrets.token_hex(8)
        part = value_of(self.reader).read(x, given, where=where)
        n_rows = part.n_rows  # of a part that is the first one, and grows
        place.shards.made(self.name, SUM, WorkerSum).add(token, part)
        return n_rows, place.address, token


def summed(client: Client, source: Source, reader: AnyReader[A]) -> tuple[list[int], KeptValue[A]]:
    """Return the rows of each partition, and the sum of what a reader makes of them, which a worker keeps; all is done
    once more where a worker was lost."""
    try:
        return _summed(client, source, reader)
    except WorkerSilentError:
        raise  # Dask believes it to be there, and would wait for it again
    except WorkerLostError:
        return _summed(client, source, reader)


def _summed(client: Client, source: Source, reader: AnyReader[A]) -> tuple[list[int], KeptValue[A]]:
    name, value = name_of("sum", client.id), new_name(client)
    on_loop(client, ensure_worker_plugin(client))
    try:
        tokens: dict[str, frozenset[str]] = {}
        read = compute(client, source.delayed(AddingReader(reader, name)))
        for _, worker, token in read:
            tokens[worker] = tokens.get(worker, frozenset()) | {token}
        owner = _joined(client, name, tokens)
        run_on(client, {owner: partial(_end, name=name, tokens=tokens[owner], value=value)})
        return [n_rows for n_rows, _, _ in read], kept(client, value, owner)
    finally:
        on_loop(client, drop(client, name))


def _joined(client: Client, name: str, tokens: dict[str, frozenset[str]]) -> str:
    """Add up workers' sums, two at a time, so that no worker has to hold more; return the worker that has the last."""
    workers = sorted(tokens)
    while len(workers) > 1:
        pairs = list(zip(workers[::2], workers[1::2], strict=False))
        run_on(client, {
            own: partial(_add, name=name, tokens=tokens[own], other=other, others=tokens[other]) for own, other in pairs
        })  # fmt: skip
        tokens.update((own, tokens[own] | tokens[other]) for own, other in pairs)
        workers = workers[::2]
    return workers[0]


def _add(worker: Worker, name: str, tokens: frozenset[str], other: str, others: frozenset[str]) -> None:
    """Add the sum of another worker, which forgets it, to that of the worker that runs this."""
    own = _sum_of(worker, name, tokens)
    own.total = reduce(iadd, [own.total, ask(worker, other, _give, name, others)])
    own.tokens |= others


def _give(name: str, tokens: frozenset[str], dask_worker: Worker) -> object:
    total = _sum_of(dask_worker, name, tokens).total
    worker_host(dask_worker).shards.drop(name)
    return total


def _end(worker: Worker, name: str, tokens: frozenset[str], value: str) -> None:
    """Keep the sum as a value."""
    shards = worker_host(worker).shards
    put(shards, value, _sum_of(worker, name, tokens).total)
    shards.drop(name)


def _sum_of(worker: Worker, name: str, tokens: frozenset[str]) -> WorkerSum:
    """Return a worker's sum; WorkerLostError where it is of other partitions, as it is if a worker was lost and others
    have read its partitions."""
    own: WorkerSum | None = worker_host(worker).shards.parts(name).get(SUM)
    if own is None or own.tokens != tokens:
        raise WorkerLostError(LOST)
    return own
