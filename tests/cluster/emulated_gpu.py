"""Preloaded by Dask workers: gives each process an emulated GPU of its own, whose waits end as those for NCCL do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from kernels.emulation import EmulatedRuntime, JoinedByHost

from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.collective import Members
from daskboost.local.links import PeerLostError

LONG_S = 60.0


class WakesByAbort(JoinedByHost):
    """Joins devices as NCCL does: who waits for another one ends when it is aborted, and for nothing else."""

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self.is_aborted = threading.Event()

    def add_up(self, values: Any) -> None:
        self._until_aborted(super().add_up, values)

    def add_up_shares(self, values: Any) -> None:
        self._until_aborted(super().add_up_shares, values)

    def find_largest(self, values: Any) -> None:
        self._until_aborted(super().find_largest, values)

    def gather(self, values: Any, out: Any) -> None:
        self._until_aborted(super().gather, values, out)

    def check(self) -> None:
        if self.is_aborted.is_set():
            raise RuntimeError("the devices were parted")

    def abort(self) -> None:
        self.is_aborted.set()

    def _until_aborted(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except PeerLostError:
            assert self.is_aborted.wait(LONG_S)
            raise


def dask_setup(worker: Any) -> None:
    """Called by Dask in a worker's process."""
    runtime = EmulatedRuntime(seed=3)
    runtime.name = f"emulated by {os.getpid()}"
    cuda.get_runtime = lambda number=None: runtime  # type: ignore[assignment, return-value]
    EmulatedRuntime.joined = lambda self, members, gpus: WakesByAbort(members)  # type: ignore[method-assign]
