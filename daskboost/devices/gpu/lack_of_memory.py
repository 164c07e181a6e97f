"""A GPU's lack of memory, however it is told, as an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daskboost.errors import DeviceError

OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation` of CUDA's runtime, and `CUDA_ERROR_OUT_OF_MEMORY` of its driver."""


@contextmanager
def lack_of_memory(message: Callable[[Exception], str]) -> Iterator[None]:
    """Within it, a GPU's lack of memory is a `DeviceError`; `message` makes its sentence of what was raised."""
    try:
        yield
    except Exception as error:
        if not is_lack(error):
            raise
        raise DeviceError(message(error)) from error


def is_lack(error: Exception) -> bool:
    """Whether a GPU has too little memory: CuPy's and RMM's error is a MemoryError, and so is NumPy's, of the host;
    where CUDA itself takes memory, for modules and graphs, it says a number."""
    module = type(error).__module__
    if isinstance(error, MemoryError):
        return not module.startswith("numpy")
    return module.startswith("cupy") and getattr(error, "status", None) == OUT_OF_MEMORY
