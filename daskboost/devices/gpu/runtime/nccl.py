"""GPUs joined by NCCL, which sums integers here, so that the order in which it adds does not show.

A communicator takes about a second to make, so it is kept for the next fit of the same GPUs; a fit that fails ends its
own.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import threading
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol

from daskboost.devices.gpu.runtime.collective import Members
from daskboost.devices.gpu.runtime.launches import DeviceArray

logger = logging.getLogger(__name__)

CLOSE_S = 5.0
"""Seconds in which rounds that have been enqueued and that nobody wants have ended: else another GPU has stopped."""
LOOK_S = 0.001
"""Seconds between two looks whether they have."""


class Handle(Protocol):
    """CuPy's communicator, of one GPU."""

    def allReduce(self, source: int, target: int, count: int, dtype: int, how: int, stream: int, /) -> None: ...

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int, /) -> None: ...

    def abort(self) -> None: ...


@dataclass(eq=False)
class Communicator:
    """A communicator that may be kept."""

    handle: Handle
    name: str
    """The same for all its GPUs, and no other communicator's."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_aborted: bool = False

    def abort(self) -> None:
        """End what waits in it; nothing can be enqueued afterwards."""
        with self.lock:
            if not self.is_aborted:
                self.is_aborted = True
                self.handle.abort()


class Communicators:
    """Communicators of a GPU that no fit uses now, by the GPUs that they join, in their order."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, ...], Communicator] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def take(self, names: tuple[str, ...], members: Members) -> Communicator:
        """Return the one that joined the same GPUs before, if all of them have it, or a new one; collective."""
        with self._lock:
            kept = self._idle.pop(names, None)
        told = members.share("" if kept is None else kept.name)
        if kept is not None and set(told) == {kept.name}:
            return kept
        if kept is not None:
            kept.abort()  # another GPU has given it up
        nccl = nccl_module()
        own_id = bytes(nccl.get_unique_id()) if members.rank == 0 else b""
        unique_id = members.share(own_id)[0]
        logger.info("NCCL joins %d GPUs", members.n_peers)
        handle = nccl.NcclCommunicator(members.n_peers, unique_id, members.rank)
        return Communicator(handle, unique_id.hex())

    def give_back(self, names: tuple[str, ...], used: Communicator) -> None:
        """Keep one that a fit has ended with, unless there is another one."""
        with self._lock:
            if not used.is_aborted and self._idle.setdefault(names, used) is used:
                return
        used.abort()

    def close(self) -> None:
        """End all that no fit uses: a process that ends with communicators may hang."""
        with self._lock:
            idle, self._idle = list(self._idle.values()), {}
        for each in idle:
            each.abort()


class NcclCollective:
    """Joins GPUs by NCCL.

    Parameters
    ----------
    cuda : module
        CuPy's `cuda`, of whose current stream everything is.
    kept : Communicators
        Those of this GPU.
    members : Members
    names : tuple of str
        What tells the GPUs from all others, in the members' order.
    """

    def __init__(self, cuda: ModuleType, kept: Communicators, members: Members, names: tuple[str, ...]) -> None:
        self._cuda, self._kept, self._names = cuda, kept, names
        self._joined = kept.take(names, members)
        nccl = self._nccl = nccl_module()
        self._types = {
            "i4": nccl.NCCL_INT32, "u4": nccl.NCCL_UINT32, "i8": nccl.NCCL_INT64, "u8": nccl.NCCL_UINT64,
        }  # fmt: skip

    def add_up(self, values: DeviceArray) -> None:
        self._reduce(values, self._nccl.NCCL_SUM)

    def find_largest(self, values: DeviceArray) -> None:
        self._reduce(values, self._nccl.NCCL_MAX)

    def gather(self, values: DeviceArray, out: DeviceArray) -> None:
        assert values.flags.c_contiguous and out.flags.c_contiguous
        stream = self._cuda.get_current_stream().ptr
        self._joined.handle.allGather(
            _address(values), _address(out), values.size, self._types[values.dtype.str[1:]], stream
        )

    def _reduce(self, values: DeviceArray, how: int) -> None:
        assert values.flags.c_contiguous
        address, kind = _address(values), self._types[values.dtype.str[1:]]
        stream = self._cuda.get_current_stream().ptr
        self._joined.handle.allReduce(address, address, values.size, kind, how, stream)

    def abort(self) -> None:
        self._joined.abort()

    def close(self) -> None:
        """Wait for what is enqueued, though not for GPUs that do not come."""
        end = self._cuda.Event(disable_timing=True)
        end.record()
        deadline = time.monotonic() + CLOSE_S
        while not (end.done or self._joined.is_aborted):
            if time.monotonic() > deadline:
                self._joined.abort()
            time.sleep(LOOK_S)
        self._kept.give_back(self._names, self._joined)


def _address(values: DeviceArray) -> int:
    """Return where an array of CuPy's begins."""
    return int(values.data.ptr)  # type: ignore[attr-defined]


def nccl_module() -> ModuleType:
    """Return CuPy's NCCL, which is loaded when it is first asked for."""
    return importlib.import_module("cupy.cuda.nccl")


def why_no_nccl() -> str:
    """Say why GPUs cannot be joined by CuPy's NCCL; empty where they can."""
    try:
        nccl_module().get_version()
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        return f"NCCL cannot be loaded ({error}; pip install nvidia-nccl-cu13, or nvidia-nccl-cu12 with CUDA 12)"
    return ""
