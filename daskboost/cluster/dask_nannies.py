"""Whether a worker that shows no sign of life computes: its nanny looks, which is a process of its own on that host.

Signs of life need Python's lock and some of a processor. A worker lacks them for long where compiled code of others
holds the lock, or where its host has more to do than processors; it is no more lost than one that answers. A process
that is frozen does not compute, and a host that vanished has no nanny that says so. Workers without a nanny, and hosts
that are no Linux, leave the question open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.comm import connect
from distributed.protocol.pickle import dumps

from daskboost.cluster.limits import CONNECT_TIMEOUT_S, LOOK_APART_S, OPINION_S

if TYPE_CHECKING:
    from distributed import Nanny

LOOKS = 10
"""A nanny looks so many times at its worker's process before it says what that does."""
LEAST_FOUND = 8
"""A process computes that does so in this many of the looks."""


async def find_computing(scheduler: str, connection_args: dict[str, Any], suspects: Iterable[str]) -> set[str]:
    """Return those of some workers whose processes compute, as their nannies see them, within `OPINION_S`.

    Parameters
    ----------
    scheduler : str
        The scheduler's address, over which nannies are asked: workers may not be reachable from here.
    connection_args : dict
        This process's own, from the cluster's Security.
    suspects : iterable of str
        The workers' addresses.
    """
    with contextlib.suppress(OSError):  # a timeout is one as well
        async with asyncio.timeout(OPINION_S):
            comm = await connect(scheduler, timeout=CONNECT_TIMEOUT_S, **connection_args)
            try:
                await comm.write({"op": "identity", "n_workers": -1, "reply": True})
                workers = (await comm.read())["workers"]
                asked = [each for each in suspects if each in workers and workers[each]["nanny"] is not None]
                message = {"op": "run", "function": dumps(is_computing), "wait": True}
                await comm.write(
                    {"op": "broadcast", "msg": message, "workers": asked, "nanny": True, "on_error": "ignore",
                     "reply": True}
                )  # fmt: skip
                answers = await comm.read()
            finally:
                comm.abort()
            return {each for each in asked if _says_so(answers.get(each))}
    return set()


def _says_so(answer: object) -> bool:
    """Return whether a nanny's answer, which may be an error, is yes."""
    return isinstance(answer, dict) and answer.get("status") == "OK" and answer["result"] is True


async def is_computing(dask_worker: Nanny) -> bool:
    """Return whether the worker of a nanny, in whose process this runs, computes all the time, or nearly.

    Threads that wait for Python's lock wake up now and then to ask for it: that is no computing.
    """
    found = 0
    for _ in range(LOOKS):
        found += wants_processor(dask_worker.pid)
        await asyncio.sleep(LOOK_APART_S)
    return found >= LEAST_FOUND


def wants_processor(pid: int | None) -> bool:
    """Return whether a thread of a process runs, or waits for nothing but a processor or a disk; False if unknown."""
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            if file.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False
