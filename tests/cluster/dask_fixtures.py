"""Clusters and helpers for tests of the transport on Dask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from cluster.toys import Script
from distributed import Client, LocalCluster
from distributed.security import Security

from daskboost.cluster import on_dask
from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_tasks import PartitionFunction, call_on_workers, drop, submit

TLS = Path(__file__).parent / "tls"  # a key that guards nothing but these tests

WORKER_MEMORY = "4GiB"
"""Dask's default is the machine's memory over its cores: too little to live on machines of many cores."""


@contextmanager
def local_cluster(
    n_workers: int = 2, threads_per_worker: int = 1, processes: bool = True, tls: bool = False
) -> Iterator[Client]:
    """A cluster whose processes let toys be called, those of replaced workers too."""
    settings: dict[str, Any] = {}
    if tls:
        roles = ("client", "scheduler", "worker")
        files = {f"tls_{role}_{kind}": str(TLS / f"{kind}.pem") for role in roles for kind in ("cert", "key")}
        security = Security(tls_ca_file=str(TLS / "cert.pem"), require_encryption=True, **files)
        settings = {"security": security, "protocol": "tls://"}
    with (
        dask.config.set({"distributed.worker.preload": ["cluster.toys"]}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=processes,
            dashboard_address=":0",
            memory_limit=WORKER_MEMORY,
            **settings,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers, timeout=60)
        yield client


def worker_addresses(client: Client) -> list[str]:
    return sorted(client.nthreads())


def toy_engines(client: Client, name: str = "toy", function: str = "open_toy") -> list[tuple[str, RemoteCall]]:
    return [(worker, RemoteCall.of(f"toys.{function}", name)) for worker in worker_addresses(client)]


def ask(*messages: Any, report: bool = False) -> RemoteCall:
    return RemoteCall.of("toys.coordinate", Script(messages, report))


async def fit_async(
    client: Client, engines: Sequence[tuple[str, RemoteCall]], coordinator: RemoteCall, on_progress: on_dask.Progress
) -> Any:
    """Await a fit on the client's event loop, which cancelling the coroutine ends, as Ctrl-C does."""
    return await on_dask._run_fit(client, on_dask._make_request(engines, coordinator), {}, on_progress, "auto")


def submit_partitions(
    client: Client, partitions: Sequence[Any], function: PartitionFunction, *arguments: Any, shared: Any = None
) -> Any:
    """Call `submit` from any thread; an awaitable for an asynchronous client."""
    return client.sync(submit, client, partitions, function, arguments, shared, step="reading the partitions")


def map_workers(client: Client, function: Callable[..., Any], *arguments: Any, workers: Sequence[str]) -> Any:
    """Call `call_on_workers` from any thread."""
    return client.sync(call_on_workers, client, function, arguments, list(workers), "a call on workers")


def drop_shards(client: Client, dataset: str) -> None:
    """Call `drop` from any thread."""
    client.sync(drop, client, dataset)


def running_fits(dask_worker: Any) -> int:
    """How many fits run on a worker: none on one that no fit has set up yet."""
    from daskboost.cluster.dask_plugins import PLUGIN, worker_host

    return len(worker_host(dask_worker)._sessions) if PLUGIN in dask_worker.extensions else 0


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def all_freed(client: Client, within_s: float = 10.0) -> bool:
    """Whether no engine runs any more; workers that cannot say (yet) have to be asked again."""

    def freed() -> bool:
        found = client.run(running_fits, on_error="return")
        return all(type(fits) is int and fits == 0 for fits in found.values())

    return eventually(freed, within_s)


@contextmanager
def during_fit(action: Callable[[], Any], after_s: float = 0.3) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives an `on_progress` that has something done a little after the fit's first report, from another thread.

    So it happens in the midst of the fit however long that took to begin, and never after the block.
    """
    over = threading.Event()

    def act() -> None:
        if not over.wait(after_s):
            action()

    with ThreadPoolExecutor(1) as pool:
        acting: list[Any] = []

        def start(event: dict[str, Any]) -> None:
            if not acting:
                acting.append(pool.submit(act))

        try:
            yield start
        finally:
            over.set()
        for each in acting:
            each.result()


def check_prompt(attempt: Callable[[], float], within_s: float, tries: int = 5) -> None:
    """The best of some tries takes no longer: a promise kept, whatever else the machine does at times."""
    took: list[float] = []
    while not took or (min(took) > within_s and len(took) < tries):
        took.append(attempt())
    assert min(took) <= within_s, took
