"""The Dask client that a call uses, and how calls behave under asynchronous clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from daskboost.data.source import Source

T = TypeVar("T")


def current_client() -> Any:
    """The current Dask client, or None; does not import distributed where nobody has."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.client.default_client()
    except ValueError:
        return None


def computed_by(client: Any, source: Source) -> Source:
    """Return the source with Dask's objects computed on the client's cluster, by workers that show signs of life; where
    the client is None, by Dask's current scheduler."""
    if client is None or not source.is_dask:
        return source
    from daskboost.cluster.dask_tasks import compute

    return replace(source, compute=partial(compute, client))


def run_or_await(client: Any, call: Callable[[], T]) -> T:
    """Run a blocking call; on the event loop of an asynchronous client, give an awaitable of it instead.

    The call then runs in a thread, where the same client can be waited for.
    """
    if client is not None and client.asynchronous:
        return asyncio.to_thread(call)  # type: ignore[return-value]  # typed for the common, synchronous case
    return call()
