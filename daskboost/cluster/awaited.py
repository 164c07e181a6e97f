"""Calls that are awaited on the event loop of an asynchronous client: a thread makes them, and cancelling ends them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from daskboost.cluster.limits import CLEAN_UP_S
from daskboost.errors import FitCancelledError

T = TypeVar("T")

_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)
"""The event of the call that a thread makes, set once nobody awaits it any longer."""


async def awaited(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread, in which the client's event loop can be waited for.

    A call whose awaiting is cancelled ends at its next wait for the cluster, as one that Ctrl-C interrupts, and frees
    what it has there.
    """
    event = threading.Event()
    token = _given_up.set(event)
    try:
        task = asyncio.create_task(asyncio.to_thread(call))  # which has a copy of these variables
    finally:
        _given_up.reset(token)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        event.set()
        await asyncio.wait([task], timeout=2 * CLEAN_UP_S)
        if task.done() and not task.cancelled():
            task.exception()  # is known: nobody is to be told that it was never looked at
        raise


def check_awaited() -> None:
    """Raise FitCancelledError where nobody awaits this thread's call any longer; once, so that it can clean up."""
    event = _given_up.get()
    if event is not None and event.is_set():
        event.clear()
        raise FitCancelledError("the call was cancelled by whoever awaited it")
