"""What a GPU needs beside itself: CuPy, a driver and NVIDIA's run-time compiler; of what is absent, a sentence."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from daskboost.errors import DeviceError, MissingDependencyError, NoDeviceError

LEAST_CUPY = (14, 2)
"""Before it, a sort that finds no memory to work in returns without a word what is in no order."""
EXTRAS = "'daskboost[cuda13]', or 'daskboost[cuda12]' where the NVIDIA driver is older than 580"


def cupy_module() -> ModuleType:
    """CuPy, imported.

    Raises
    ------
    MissingDependencyError
        It is not installed, cannot be imported, or is too old.
    """
    if importlib.util.find_spec("cupy") is None:
        raise MissingDependencyError(f"device='cuda' needs CuPy, which is not installed: pip install {EXTRAS}")
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            "device='cuda' needs CuPy, which is installed but cannot be imported, as the error before this one says: "
            f"pip uninstall what is there of it, then pip install {EXTRAS}"
        ) from error
    if tuple(int(number) for number in re.findall(r"\d+", cupy.__version__)[:2]) < LEAST_CUPY:
        least = ".".join(map(str, LEAST_CUPY))
        raise MissingDependencyError(
            f"device='cuda' needs CuPy {least} or later, and {cupy.__version__} is installed: pip install --upgrade "
            f"{EXTRAS}"
        )
    found: ModuleType = cupy
    return found

def count_devices(cupy: ModuleType) -> int:
    """How many GPUs the process sees; an error where there are none, or no driver."""
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NoDeviceError(
            f"device='cuda' needs a GPU and a working NVIDIA driver, and CUDA says {error}: use device='cpu' here"
        ) from error


def check_compiler(cupy: ModuleType) -> None:
    """Refuse an installation without NVRTC, which CuPy's wheels do not bring and which compiles every kernel."""
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            "device='cuda' compiles kernels with NVRTC, which cannot be loaded, as the error before this one says: pip "
            f"install {EXTRAS}, which brings it"
        ) from error
