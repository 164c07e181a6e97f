"""The device that a parameter's name stands for."""

from __future__ import annotations

import gc
import logging

from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.device import Device
from daskboost.devices.plan import FitSize
from daskboost.errors import DeviceError, MissingDependencyError

logger = logging.getLogger(__name__)


def check_device(name: str) -> None:
    """Refuse a GPU that this process cannot use, before any row is read.

    Raises
    ------
    MissingDependencyError, DeviceError
        As `make_device` does.
    """
    if name in ("cuda", "gpu"):
        from daskboost.devices.gpu.cuda import get_runtime

        get_runtime()


def finds_gpu(name: str) -> bool:
    """Whether a device of this name would be a GPU, if it has room."""
    try:
        check_device("cpu" if name == "cpu" else "cuda")
    except (MissingDependencyError, DeviceError):
        return False
    return name != "cpu"


def make_device(name: str, layout: SlotLayout, threads: Threads, size: FitSize | None = None,
                shared_bytes: int = 0) -> Device:  # fmt: skip
    """An engine's device.

    Parameters
    ----------
    name : {"cpu", "cuda", "gpu", "auto"}
        "auto" is a GPU where CuPy and one with room for the fit are there, and otherwise the CPU, which the log says.
    layout : SlotLayout
        Of the fit's histograms.
    threads : Threads
        Of the engine; closed by the device's `close`.
    size : FitSize, optional
        Of the engine's fit, which a GPU must have room for; the GPU then knows whether column-major copies fit too.
    shared_bytes : int
        Of what the fit shares with others and a GPU holds already.

    Raises
    ------
    MissingDependencyError, DeviceError
        "cuda" or "gpu" where there is no CuPy, no driver, no GPU that can be used, or no room for the fit.
    """
    if name != "cpu":
        from daskboost.devices.gpu.cuda import get_runtime
        from daskboost.devices.gpu.device import GpuDevice
        from daskboost.devices.gpu.memory import gpu_plan

        try:
            runtime = get_runtime()
            plan = None if size is None else gpu_plan(size, runtime.free_bytes + shared_bytes)
            if size is not None and plan is not None and not plan.fits:
                gc.collect()  # arrays of a fit that failed may wait for it
                plan = gpu_plan(size, runtime.free_bytes + shared_bytes)
                plan.check()
            return GpuDevice(runtime, layout, threads, plan)
        except (MissingDependencyError, DeviceError) as error:
            if name != "auto":
                raise
            logger.info("device='auto' trains on the CPU: %s", error)
    return CpuDevice(layout, threads)
