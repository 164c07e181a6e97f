"""GPUs joined by NCCL, which sums integers here, so that the order in which it adds does not show.

A communicator takes about a second to make, so it is kept for the next fit of the same GPUs; a fit that fails ends its
own.

Two of NCCL's calls wait for what may never come, so each has a thread of its own. Making a communicator waits for all
GPUs, one of which may have been lost. Aborting one ends kernels that wait at once, but returns only when all CUDA
graphs are gone that hold some of these: they go with the engine, which the caller may be about to close.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol

from daskboost.devices.gpu.runtime.collective import Members
from daskboost.devices.gpu.runtime.launches import DeviceArray

logger = logging.getLogger(__name__)

CLOSE_S = 5.0
"""Seconds in which rounds that have been enqueued and that nobody wants have ended: else another GPU has stopped."""
FREE_S = 2.0
"""Seconds in which an abort has freed a communicator, whose memory the next fit may need: not where another GPU's
process was stopped, without which NCCL may not let go."""
LOOK_S = 0.001
"""Seconds between two looks whether they have."""
MAKING_LOOK_S = 0.01
"""Seconds between two looks whether a communicator is made, or another GPU will not come."""
ENQUEUE_S = 1.0
"""What is being enqueued may take so many seconds before its communicator is aborted all the same: the first use of a
communicator connects GPUs, and may wait for one that does not come."""


class Handle(Protocol):
    """CuPy's communicator, of one GPU."""

    def allReduce(self, source: int, target: int, count: int, dtype: int, how: int, stream: int, /) -> None: ...

    def reduceScatter(self, source: int, target: int, count: int, dtype: int, how: int, stream: int, /) -> None: ...

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int, /) -> None: ...

    def abort(self) -> None: ...


class AbortedError(RuntimeError):
    """What joined GPUs was aborted: results of what had been enqueued are worth nothing."""


@dataclass(eq=False)
class Communicator:
    """A communicator that may be kept. Every method is for any thread."""

    handle: Handle
    name: str
    """The same for all its GPUs, and no other communicator's."""
    is_aborted: bool = False
    _enqueuing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the handle is used, which an abort frees."""
    _deciding: threading.Lock = field(default_factory=threading.Lock)
    _has_ended: threading.Event = field(default_factory=threading.Event)

    def enqueue(self, work: Callable[[Handle], None]) -> None:
        """Call `work` with the handle.

        Raises
        ------
        AbortedError
            The communicator was aborted.
        """
        with self._enqueuing:
            self.check()
            work(self.handle)

    def check(self) -> None:
        """Raise `AbortedError` if it was aborted, so that its GPUs have other numbers than they should."""
        if self.is_aborted:
            raise AbortedError("the GPUs of this fit are joined no longer: one of them stopped, or the fit ended")

    def abort(self) -> None:
        """End what waits in it, without waiting for that; nothing can be enqueued afterwards."""
        if self._is_first():
            threading.Thread(target=self._abort, name="daskboost-nccl-abort", daemon=True).start()

    def abort_idle(self) -> None:
        """Abort it in this thread, when nothing is enqueued: a process that ends starts no threads."""
        if self._is_first():
            self._abort()

    def has_ended(self, timeout_s: float) -> bool:
        """Whether an abort has freed it within the timeout."""
        return self._has_ended.wait(timeout_s)

    def _is_first(self) -> bool:
        with self._deciding:
            is_first, self.is_aborted = not self.is_aborted, True
            return is_first

    def _abort(self) -> None:
        if self._enqueuing.acquire(timeout=ENQUEUE_S):
            self._enqueuing.release()  # whoever comes now sees that it is aborted
        try:
            self.handle.abort()
        except RuntimeError:
            logger.exception("NCCL failed to abort a communicator")
        finally:
            self._has_ended.set()


class Communicators:
    """Communicators of a GPU that no fit uses now, by the GPUs that they join, in their order.

    Parameters
    ----------
    on_device : callable, optional
        Returns a context in which a thread's current device is the GPU.
    """

    def __init__(self, on_device: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._on_device = on_device
        self._idle: dict[tuple[str, ...], Communicator] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def take(self, names: tuple[str, ...], members: Members) -> Communicator:
        """Return the one that joined the same GPUs before, if all of them have it, or a new one; collective."""
        with self._lock:
            kept = self._idle.pop(names, None)
        if kept is None:
            members.share("")
            return self._make(members)
        is_shared = False
        try:
            is_shared = set(members.share(kept.name)) == {kept.name}
        finally:
            if not is_shared:  # another GPU has given it up, or is lost
                kept.abort()
        return kept if is_shared else self._make(members)

    def _make(self, members: Members) -> Communicator:
        """Return a new one, as soon as all GPUs have come; raise what the members do if one of them will not."""
        nccl = nccl_module()
        own_id = bytes(nccl.get_unique_id()) if members.rank == 0 else b""
        unique_id = members.share(own_id)[0]
        logger.info("NCCL joins %d GPUs", members.n_peers)
        made: Future[Communicator] = Future()

        def make() -> None:
            try:
                with self._on_device():
                    handle = nccl.NcclCommunicator(members.n_peers, unique_id, members.rank)
                made.set_result(Communicator(handle, unique_id.hex()))
            except BaseException as error:  # for the thread that waits
                made.set_exception(error)

        threading.Thread(target=make, name="daskboost-nccl", daemon=True).start()
        try:
            while not made.done():
                members.check()
                wait([made], timeout=MAKING_LOOK_S)
        except BaseException:
            made.add_done_callback(_unwanted)
            raise
        return made.result()

    def give_back(self, names: tuple[str, ...], used: Communicator) -> None:
        """Keep one that a fit has ended with, unless it was aborted or there is another one."""
        with self._lock:
            if not used.is_aborted and self._idle.setdefault(names, used) is used:
                return
        used.abort()
        if not used.has_ended(FREE_S):
            logger.warning("NCCL has not freed what joined %d GPUs yet", len(names))

    def close(self) -> None:
        """End all that no fit uses: a process that ends with communicators may hang."""
        with self._lock:
            idle, self._idle = list(self._idle.values()), {}
        for each in idle:
            each.abort_idle()


def _unwanted(made: Future[Communicator]) -> None:
    """Abort a communicator that was made when nobody waited for it any more."""
    if made.exception() is None:
        made.result().abort()


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
        self.n_members, self.rank = members.n_peers, members.rank
        self._joined = kept.take(names, members)
        nccl = self._nccl = nccl_module()
        self._types = {
            "i4": nccl.NCCL_INT32, "u4": nccl.NCCL_UINT32, "i8": nccl.NCCL_INT64, "u8": nccl.NCCL_UINT64,
        }  # fmt: skip

    def add_up(self, values: DeviceArray) -> None:
        self._reduce(values, self._nccl.NCCL_SUM)

    def add_up_shares(self, values: DeviceArray) -> None:
        assert values.flags.c_contiguous
        n, begin, kind = values.size // self.n_members, _address(values), self._types[values.dtype.str[1:]]
        own, stream = begin + self.rank * n * values.itemsize, self._cuda.get_current_stream().ptr
        self._joined.enqueue(lambda handle: handle.reduceScatter(begin, own, n, kind, self._nccl.NCCL_SUM, stream))

    def find_largest(self, values: DeviceArray) -> None:
        self._reduce(values, self._nccl.NCCL_MAX)

    def gather(self, values: DeviceArray, out: DeviceArray) -> None:
        assert values.flags.c_contiguous and out.flags.c_contiguous
        stream = self._cuda.get_current_stream().ptr
        what = _address(values), _address(out), values.size, self._types[values.dtype.str[1:]]
        self._joined.enqueue(lambda handle: handle.allGather(*what, stream))

    def _reduce(self, values: DeviceArray, how: int) -> None:
        assert values.flags.c_contiguous
        address, kind = _address(values), self._types[values.dtype.str[1:]]
        stream = self._cuda.get_current_stream().ptr
        self._joined.enqueue(lambda handle: handle.allReduce(address, address, values.size, kind, how, stream))

    def check(self) -> None:
        self._joined.check()

    def abort(self) -> None:
        self._joined.abort()

    def close(self) -> None:
        """Wait for what is enqueued, though not for GPUs that do not come."""
        try:
            self._await_end()
        except BaseException:
            self._joined.abort()
            raise
        finally:
            self._kept.give_back(self._names, self._joined)

    def _await_end(self) -> None:
        """Wait until all that was enqueued has ended; abort it if it takes too long."""
        end = self._cuda.Event(disable_timing=True)
        end.record()
        deadline = time.monotonic() + CLOSE_S
        while not (end.done or self._joined.is_aborted):
            if time.monotonic() > deadline:
                self._joined.abort()
            time.sleep(LOOK_S)


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
