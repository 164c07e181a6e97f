"""What an engine, a coordinator and a quantizing task are given when they start; none of it knows of Dask.

Code travels as the name of a function that this library lets other processes call, plus a message with its arguments,
never pickled. Python callables of users (custom objectives and metrics) come as `extras`, carried by Dask's own
serialization.
"""

from __future__ import annotations

import contextlib
import importlib
import reprlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from daskboost.data.chunks.tiers import RamUse
from daskboost.fit.peers import Peers
from daskboost.local.links import Engines
from daskboost.wire import WireError, decode, encode, register

T = TypeVar("T")

CALLS: dict[str, str] = {
    "open_engine": "daskboost.cluster.dask_fit:open_engine",
    "coordinate": "daskboost.cluster.dask_fit:coordinate",
}
"""All that another process may have called here, by name: import paths, since importing them takes a while. What comes
from the network chooses among these, and can neither name nor import anything else."""


@register
@dataclass(frozen=True)
class RemoteCall:
    """A function to call in another process. Make it with `RemoteCall.of`."""

    function: str
    """The function's name among those that may be called (`CALLS`)."""
    argument: tuple[bytes, ...]
    """Its message, encoded, so that those who only pass the call on need not know the message's class."""

    @classmethod
    def of(cls, function: str, argument: object) -> RemoteCall:
        """A call of `function(context, argument)`; the argument is anything that `wire.encode` takes."""
        return cls(function, tuple(bytes(frame) for frame in encode(argument)))

    def resolve(self) -> tuple[Callable[..., Any], Any]:
        """The function, imported, and its argument.

        Raises
        ------
        WireError
            It is not among those that may be called, or the argument is corrupt.
        """
        path = CALLS.get(self.function)
        if path is None:
            raise WireError(
                f"{reprlib.repr(self.function)} is no function that other processes may call here; "
                "client, scheduler and workers need the same version of daskboost"
            )
        module_name, _, name = path.partition(":")
        function = getattr(importlib.import_module(module_name), name)
        # Only now: importing the module has registered the classes of the message.
        return function, decode([bytearray(frame) for frame in self.argument])


DROPPED_NAMES = 1000
"""How many dropped data sets a worker remembers: more than have tasks that still run."""


def name_of(kind: str, client_id: str) -> str:
    """Return a name for what workers keep for a client, which they drop once that has left (`WorkerShards.leave`)."""
    return f"{kind}-{client_id}-{secrets.token_hex(8)}"


def _is_of(name: str, client_id: str) -> bool:
    """Return whether something of this name is kept for a client."""
    return f"-{client_id}-" in name


class WorkerShards:
    """Parts of data sets that stay on one worker between tasks and fits. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[str, dict[Hashable, threading.Lock]] = {}
        self._parts: dict[str, dict[Any, Any]] = {}
        self._dropped: deque[str] = deque(maxlen=DROPPED_NAMES)
        self._left: deque[str] = deque(maxlen=DROPPED_NAMES)
        """Clients."""
        self.ram_use = RamUse()
        """RAM that the chunks of all data sets here take."""

    def put(self, dataset: str, key: Hashable, part: object) -> None:
        """Keep a part; one with the same key is replaced, which makes a repeated task harmless.

        A part of a data set that was dropped is closed: cancelling tasks does not stop those that run, and nobody would
        ever drop what they bring.
        """
        with self._lock:
            if dataset in self._dropped or any(_is_of(dataset, client) for client in self._left):
                old = part
            else:
                parts = self._parts.setdefault(dataset, {})
                old = parts.get(key)
                parts[key] = part
                old = None if old is part else old
        if old is not None:
            _close(old)

    def made(self, dataset: str, key: Hashable, make: Callable[[], T]) -> T:
        """Return a part, which is made and kept for the first who asks: a worker may run several tasks at a time."""
        with self._lock:
            making = self._making.setdefault(dataset, {}).setdefault(key, threading.Lock())
        with making:
            found: T | None = self.parts(dataset).get(key)
            if found is None:
                found = make()
                self.put(dataset, key, found)
            return found

    def parts(self, dataset: str) -> dict[Any, Any]:
        """All parts of a data set that lie here, by key; empty if none do."""
        with self._lock:
            return dict(self._parts.get(dataset, {}))

    def drop(self, dataset: str) -> None:
        """Forget a data set, and call `close()` on those of its parts that have it."""
        with self._lock:
            parts = self._parts.pop(dataset, {})
            self._making.pop(dataset, None)
            if dataset not in self._dropped:
                self._dropped.append(dataset)
        for part in parts.values():
            _close(part)

    def leave(self, client_id: str) -> None:
        """Drop what is kept for a client that has left, and what is yet to come for it."""
        with self._lock:
            self._left.append(client_id)
        with contextlib.ExitStack() as stack:  # all are dropped even if one fails
            for dataset in self.datasets():
                if _is_of(dataset, client_id):
                    stack.callback(self.drop, dataset)

    def datasets(self) -> list[str]:
        """Names of the data sets with parts here."""
        with self._lock:
            return sorted(self._parts)

    def close(self) -> None:
        """Drop everything."""
        with contextlib.ExitStack() as stack:  # all are closed even if one fails
            for dataset in self.datasets():
                stack.callback(self.drop, dataset)


def _close(part: object) -> None:
    close = getattr(part, "close", None)
    if close is not None:
        close()


@dataclass(frozen=True)
class WorkerPlace:
    """The worker on which something runs."""

    address: str
    n_threads: int
    memory_limit_bytes: int | None
    """None for a worker without a limit."""
    local_directory: str
    """The worker's own; Dask removes it when the worker ends."""
    shards: WorkerShards


@dataclass(frozen=True)
class EngineContext:
    """First argument of functions that open an engine: `open(context, message) -> Engine`."""

    place: WorkerPlace
    peers: Peers
    extras: Mapping[str, Any]


@dataclass(frozen=True)
class CoordinatorContext:
    """First argument of functions that coordinate a fit: `coordinate(context, message) -> result`."""

    engines: Engines
    place: str
    """"scheduler" or "client": whose process this is."""
    report: Callable[[Mapping[str, Any]], None]
    """Sends a small progress event of plain values to the client; does not wait."""
    extras: Mapping[str, Any]
