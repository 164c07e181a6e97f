"""Clusters and helpers for tests of the transport on Dask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.toys import Script
from distributed import Client, LocalCluster
from distributed.security import Security

from daskboost.cluster.context import RemoteCall

TLS = Path(__file__).parent / "tls"  # a key that guards nothing but these tests


@contextmanager
def local_cluster(
    n_workers: int = 2, threads_per_worker: int = 1, processes: bool = True, tls: bool = False
) -> Iterator[Client]:
    settings: dict[str, Any] = {}
    if tls:
        roles = ("client", "scheduler", "worker")
        files = {f"tls_{role}_{kind}": str(TLS / f"{kind}.pem") for role in roles for kind in ("cert", "key")}
        security = Security(tls_ca_file=str(TLS / "cert.pem"), require_encryption=True, **files)
        settings = {"security": security, "protocol": "tls://"}
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=processes,
            dashboard_address=":0",
            **settings,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers, timeout=60)
        yield client


def worker_addresses(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def toy_engines(client: Client, name: str = "toy", function: str = "open_toy") -> list[tuple[str, RemoteCall]]:
    return [(worker, RemoteCall.of(f"cluster.toys:{function}", name)) for worker in worker_addresses(client)]


def ask(*messages: Any, report: bool = False) -> RemoteCall:
    return RemoteCall.of("cluster.toys:coordinate", Script(messages, report))


def running_fits(dask_worker: Any) -> int:
    from daskboost.cluster.dask_plugins import worker_host

    return worker_host(dask_worker).fits()


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def all_freed(client: Client, within_s: float = 2.0) -> bool:
    return eventually(lambda: not any(client.run(running_fits).values()), within_s)
