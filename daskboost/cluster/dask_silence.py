"""Whether a worker that shows no sign of life is lost: its nanny looks, which is a process of its own on that host.

Signs of life need Python's lock and some of a processor. A worker lacks them for long where compiled code of others
holds the lock, or where its host has more to do than processors; it is no more lost than one that answers. A process
that was stopped by a signal will give none, and its nanny can tell soon. A host that vanished has no nanny that says
anything. Workers without a nanny, and hosts that are no Linux, leave the question open until the limit of silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from distributed.comm import connect
from distributed.protocol.pickle import dumps

from daskboost.cluster.limits import CONNECT_TIMEOUT_S, LOOK_APART_S, OPINION_S, STOPPED_S

if TYPE_CHECKING:
    from distributed import Nanny

Doing = Literal["computes", "is stopped", "waits"]
"""What a process does, or None where nobody can tell."""
LOOKS = 10
"""A nanny looks so many times at its worker's process before it says what that does."""
LEAST_FOUND = 8
"""A process computes that does so in this many of the looks."""


@dataclass
class Silence:
    """Judges one worker by how long nothing has come from it, and by what its process does meanwhile."""

    limit_s: float
    """A worker is lost after so long, unless it computes."""
    first_s: float = STOPPED_S
    """After so long it is lost if its process is stopped."""

    def __post_init__(self) -> None:
        self._first_s = self._next_s = min(self.first_s, self.limit_s)

    def needs_look(self, quiet_s: float) -> bool:
        """Whether somebody should look at the worker's process, which was silent for so long."""
        if quiet_s <= self._first_s:  # something has come since
            self._next_s = self._first_s
        return quiet_s > self._next_s

    def why_lost(self, quiet_s: float, doing: Doing | None) -> str:
        """Return why the worker counts as lost, given what a look has found; empty where it does not."""
        if doing == "is stopped":
            return "no sign of life, and its process is stopped, by a signal or a debugger"
        if self._next_s >= self.limit_s and doing != "computes":
            return f"no sign of life for {self.limit_s:g} s"
        self._next_s = self.limit_s if self._next_s < self.limit_s else quiet_s + self.limit_s
        return ""


async def find_doing(scheduler: str, connection_args: dict[str, Any], suspects: Iterable[str]) -> dict[str, Doing]:
    """Return what processes of some workers do, as those nannies see it who answer within `OPINION_S`.

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
                message = {"op": "run", "function": dumps(what_it_does), "wait": True}
                await comm.write(
                    {"op": "broadcast", "msg": message, "workers": asked, "nanny": True, "on_error": "ignore",
                     "reply": True}
                )  # fmt: skip
                answers = await comm.read()
            finally:
                comm.abort()
            told = {each: _told(answers.get(each)) for each in asked}
            return {each: doing for each, doing in told.items() if doing is not None}
    return {}


def _told(answer: object) -> Doing | None:
    """Return what a nanny's answer says, which may be an error."""
    if not isinstance(answer, dict) or answer.get("status") != "OK" or answer["result"] not in get_args(Doing):
        return None
    return cast(Doing, answer["result"])


async def what_it_does(dask_worker: Nanny) -> Doing:
    """Return what the worker of a nanny does, in whose process this runs.

    It computes if it does so all the time, or nearly: threads that wait for Python's lock wake up now and then to ask
    for it, which is no computing. It is stopped if no thread may run at any time.
    """
    computing = stopped = 0
    for _ in range(LOOKS):
        states = thread_states(dask_worker.pid)
        computing += wants_processor(states)
        stopped += is_stopped(states)
        await asyncio.sleep(LOOK_APART_S)
    if stopped == LOOKS:
        return "is stopped"
    return "computes" if computing >= LEAST_FOUND else "waits"


def thread_states(pid: int | None) -> str:
    """Return a letter for each thread of a process, as proc(5) has them; none if unknown."""
    states = ""
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            states += file.read_text().rpartition(")")[2].split()[0]
    return states


def wants_processor(states: str) -> bool:
    """Return whether a thread runs, or waits for nothing but a processor or a disk."""
    return not set("RD").isdisjoint(states)


def is_stopped(states: str) -> bool:
    """Return whether all threads were stopped, by a signal or a debugger."""
    return states != "" and set(states) <= set("Tt")
