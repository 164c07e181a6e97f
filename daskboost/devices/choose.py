"""The device that a parameter's name stands for."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Callable

from daskboost.devices.budget.plan import FitSize
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.protocols import Device
from daskboost.errors import DeviceError, MissingDependencyError, NoDeviceError, ParameterError
from daskboost.params import ALL_GPUS, shown, split_device

logger = logging.getLogger(__name__)

DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Of NVIDIA's driver on Linux, and of Windows' under it."""
HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES by which a user wants no GPU to be seen."""


def check_device(name: str) -> None:
    """Refuse a GPU that this process cannot use, before any row is read.

    Raises
    ------
    MissingDependencyError, DeviceError
        As `make_device` does.
    """
    kind, number = split_device(name)
    if kind == "cuda":
        from daskboost.devices.gpu.runtime.cuda import get_runtime

        get_runtime(number)


def finds_gpu(name: str) -> bool:
    """Whether a device of this name would be a GPU, if it has room."""
    try:
        check_device("cuda" if name == "auto" else name)
    except (MissingDependencyError, DeviceError):
        return False
    return name != "cpu"


def gpus_meant(n_gpus: int | str) -> int:
    """Return the number that `n_gpus` of a fit's parameters means: of "all", how many GPUs this process sees.

    Raises
    ------
    MissingDependencyError, DeviceError
        "all", where there is none.
    """
    if not isinstance(n_gpus, str):
        return n_gpus
    from daskboost.devices.gpu.runtime.cuda import n_visible

    return n_visible()


def check_n_gpus(n_gpus: int | str, is_on_cluster: bool = False) -> None:
    """Refuse several GPUs of this process where rows are on a cluster, or where there are not so many, before any row
    is read.

    Raises
    ------
    ParameterError
        Rows are on a cluster.
    MissingDependencyError, DeviceError
        There are fewer GPUs, or none.
    """
    if n_gpus == 1:
        return
    if is_on_cluster:
        raise ParameterError(
            f"n_gpus={shown(n_gpus)} shares rows of this process out to its GPUs, and the rows are on a Dask cluster, "
            "where each worker has one GPU: leave n_gpus out, and start a worker for each GPU (dask-cuda)"
        )
    if gpus_meant(n_gpus) > (found := gpus_meant(ALL_GPUS)):
        raise DeviceError(
            f"n_gpus={shown(n_gpus)} was asked for, and CUDA sees {found}: check CUDA_VISIBLE_DEVICES, or use "
            "n_gpus='all'"
        )


def check_one_gpu(n_gpus: int | str) -> None:
    """Refuse several GPUs where models are trained together, over bins that lie on one: ParameterError."""
    if n_gpus != 1:
        raise ParameterError(
            f"n_gpus={shown(n_gpus)} is of one model at a time; models that are trained together share the bins on one "
            "GPU: leave n_gpus out, or call train for one model after the other"
        )


def told_of_gpus(n_gpus: int | str, n_engines: int) -> str:
    """Say how many of the GPUs that were asked for a fit takes, and why fewer; empty where one was."""
    if n_gpus == 1:
        return ""
    wanted = gpus_meant(n_gpus)
    if n_engines < wanted:
        return f"{n_engines} of {wanted} GPUs have the rows: with more, the fit would be slower"
    return f"{n_engines} GPUs have a share of the rows each"


def several_gpus(n: int, lies_on: frozenset[int]) -> list[int]:
    """Numbers of `n` GPUs for a fit of this process: first those that rows lie on already, then CuPy's current one."""
    from daskboost.devices.gpu.runtime.cuda import get_runtime, n_visible

    current = get_runtime().device
    every = sorted(range(n_visible()), key=lambda gpu: (gpu not in lies_on, gpu != current, gpu))
    return sorted(every[:n])


def budget_of(name: str, limit: int | None) -> int | None:
    """Bytes that a fit on the device of that name may take of a GPU's memory, `limit` at most; None where it would be
    the CPU."""
    if not finds_gpu(name):
        return None
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    free = get_runtime(split_device(name)[1]).free_bytes
    return free if limit is None else min(free, limit)


def make_device(name: str, layout: SlotLayout, threads: Threads, size_of: Callable[[], FitSize] | None = None,
                shared_bytes: int = 0) -> Device:  # fmt: skip
    """An engine's device.

    Parameters
    ----------
    name : {"cpu", "cuda", "gpu", "auto"}, or "cuda:1"
        "auto" is a GPU where CuPy and one with room for the fit are there, and otherwise the CPU, which the log says.
        Without a number, a GPU is the one that rows lie on, else CuPy's current one.
    layout : SlotLayout
        Of the fit's histograms.
    threads : Threads
        Of the engine; closed by the device's `close`.
    size_of : callable, optional
        Returns that of the engine's fit, which a GPU must have room for; the GPU then knows whether column-major copies
        fit too.
    shared_bytes : int
        Of what the fit shares with others and a GPU holds already.

    Raises
    ------
    MissingDependencyError, DeviceError
        "cuda" or "gpu" where there is no CuPy, no driver, no GPU that can be used, or no room for the fit; and where
        rows lie on another GPU.
    """
    kind, number = split_device(name)
    if kind != "cpu":
        from daskboost.devices.budget.gpu_plans import gpu_plan
        from daskboost.devices.gpu.device import GpuDevice
        from daskboost.devices.gpu.runtime.cuda import get_runtime

        try:
            size = None if size_of is None else size_of()
            runtime = get_runtime(gpu_of(name, number, frozenset() if size is None else size.gpus))
            size = None if size is None else size.on_gpu(runtime)
            plan = None if size is None else gpu_plan(size, runtime.free_bytes + shared_bytes)
            if size is not None and plan is not None and not plan.fits:
                gc.collect()  # arrays of a fit that failed may wait for it
                plan = gpu_plan(size, runtime.free_bytes + shared_bytes)
                plan.check()
            if plan is not None:
                logger.info("on GPU %d, %s", runtime.device, "; ".join(filter(None, (plan.growth, plan.evaluation))))
            return GpuDevice(runtime, layout, threads, plan)
        except (MissingDependencyError, DeviceError) as error:
            if kind != "auto":
                raise
            # Python shows warnings to all; where there is no GPU, the CPU is what is expected.
            is_absent = isinstance(error, (MissingDependencyError, NoDeviceError)) and not has_driver()
            logger.log(logging.INFO if is_absent else logging.WARNING, "device='auto' trains on the CPU: %s", error)
    return CpuDevice(layout, threads)


def has_driver() -> bool:
    """Whether an NVIDIA driver is here, and with it most likely a GPU that somebody wants to be used."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return False
    return any(map(os.path.exists, DRIVER_FILES)) or shutil.which("nvidia-smi") is not None


def gpu_of(name: str, number: int | None, lies_on: frozenset[int]) -> int | None:
    """The number of the GPU to take, None for the current one; rows lie on these already."""
    remedy = "Copy them to one GPU, or start a Dask worker for each (dask-cuda)."
    if len(lies_on) > 1:
        raise DeviceError(f"an engine works on one GPU, but rows lie on GPUs {sorted(lies_on)}. {remedy}")
    if not lies_on:
        return number
    (found,) = lies_on
    if number not in (None, found):
        raise DeviceError(
            f"device={name!r} was asked for, but rows lie on GPU {found}: use device='cuda:{found}', or copy them"
        )
    return found
