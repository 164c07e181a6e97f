"""Requests of Dask's that no fit makes, to workers and schedulers: one refusal, a line in the log, and they hang up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import toys
from cluster.dask_fixtures import local_cluster
from cluster.toys import altered
from distributed import Client
from distributed.comm import CommClosedError, connect

from daskboost.cluster.context import RemoteCall
from daskboost.cluster.dask_comms import OP
from daskboost.cluster.dask_coordinator import FitRequest
from daskboost.cluster.dask_plugins import FIT_OP, scheduler_plugin
from daskboost.cluster.on_dask import run_fit
from daskboost.wire import decode, encode

TOY = RemoteCall.of("toys.open_toy", "toy")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(n_workers=1, processes=False) as client:
        run_fit(client, [(worker, TOY) for worker in client.nthreads()],
                RemoteCall.of("toys.coordinate", toys.Script(())))  # fmt: skip
        yield client


def tell(client: Client, address: str, request: dict[str, Any], within_s: float = 20.0) -> tuple[Any, bool]:
    """What is answered to a message of Dask's, and whether the connection closes then, in time."""

    async def converse() -> tuple[Any, bool]:
        comm = await connect(address, **client.connection_args)
        try:
            await comm.write(request)
            answer = await asyncio.wait_for(comm.read(), 20)
            try:
                await asyncio.wait_for(comm.read(), within_s)
            except CommClosedError:
                return answer, True
            except TimeoutError:
                pass
            return answer, False
        finally:
            comm.abort()

    found: tuple[Any, bool] = client.sync(converse)
    return found


@pytest.mark.parametrize("reply", [True, False])
@pytest.mark.parametrize(
    "request_", [{}, {"raw": None}, {"raw": 1}, {"raw": {}}, {"raw": True, "more": 1}, {"more": []}], ids=str
)
def test_odd_requests_for_a_channel(
    client: Client, request_: dict[str, Any], reply: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (worker,) = client.nthreads()
    with caplog.at_level(logging.WARNING, "daskboost"):
        answer, closed = tell(client, worker, {"op": OP, "reply": reply, **request_})
    assert closed and "says whether it is raw" in answer["refused"]
    assert len([record for record in caplog.records if "refused a request" in record.message]) == 1


REQUEST = FitRequest("fit", "stranger", ("tcp://127.0.0.1:1",), (TOY,), RemoteCall.of("toys.coordinate", None), 5.0)


def frames_of(message: Any) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ({}, "a message is a list of bytes, got NoneType"),
        ({"request": 5}, "a message is a list of bytes, got int"),
        ({"request": [2**40]}, "a message is a list of bytes"),
        ({"request": []}, "a message has 1 to"),
        ({"request": [b"\xc1"]}, "corrupt message header"),
        ({"request": frames_of(7)}, "the message is int, where FitRequest belongs"),
        ({"request": frames_of(TOY)}, "the message is RemoteCall, where FitRequest belongs"),
        ({"request": frames_of(altered(REQUEST, token=1))}, "has int as its 'token'"),
        ({"request": frames_of(altered(REQUEST, workers=()))}, "1 engines for the workers"),
        ({"request": frames_of(altered(REQUEST, silence_s=float("nan")))}, "silence_s is nan"),
        ({"request": frames_of(REQUEST)}, "no client has announced such a fit to this scheduler"),
        ({"request": frames_of(REQUEST), "more": 1}, "no client has announced such a fit to this scheduler"),
    ],
)
def test_odd_requests_for_a_fit(
    client: Client, request_: dict[str, Any], match: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster: Any = client.cluster
    scheduler, before = cluster.scheduler.address, threading.active_count()
    with caplog.at_level(logging.WARNING, "daskboost"):
        answer, closed = tell(client, scheduler, {"op": FIT_OP, "reply": False, **request_})
    assert closed and answer["event"] == "failure"
    assert match in decode(answer["frames"]).message
    assert len([record for record in caplog.records if "refused a request" in record.message]) == 1
    assert threading.active_count() <= before + 1


def test_an_announced_fit_starts_once_and_calls_registered_functions_only(client: Client) -> None:
    cluster: Any = client.cluster
    plugin = scheduler_plugin(cluster.scheduler)
    plugin.admissions.announce("mine", {})
    request = altered(REQUEST, token="mine", coordinator=altered(TOY, function="os:getcwd"))
    message = {"op": FIT_OP, "reply": False, "request": frames_of(request)}
    answers = [tell(client, cluster.scheduler.address, message, within_s=0.1)[0] for _ in range(2)]
    texts = [decode(answer["frames"]).message for answer in answers]
    assert "'os:getcwd' is no function that other processes may call" in texts[0]
    assert "no client has announced such a fit" in texts[1]
