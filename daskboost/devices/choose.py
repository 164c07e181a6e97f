"""The device that a parameter's name stands for."""

from __future__ import annotations

import logging

from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.device import Device
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


def make_device(name: str, layout: SlotLayout, threads: Threads) -> Device:
    """An engine's device.

    Parameters
    ----------
    name : {"cpu", "cuda", "gpu", "auto"}
        "auto" is a GPU where CuPy and one are there, and otherwise the CPU, which the log then says.
    layout : SlotLayout
        Of the fit's histograms.
    threads : Threads
        Of the engine; closed by the device's `close`.

    Raises
    ------
    MissingDependencyError, DeviceError
        "cuda" or "gpu" where there is no CuPy, no driver or no GPU that can be used.
    """
    if name != "cpu":
        from daskboost.devices.gpu.cuda import get_runtime
        from daskboost.devices.gpu.device import GpuDevice

        try:
            return GpuDevice(get_runtime(), layout, threads)
        except (MissingDependencyError, DeviceError) as error:
            if name != "auto":
                raise
            logger.info("device='auto' trains on the CPU: %s", error)
    return CpuDevice(layout, threads)
