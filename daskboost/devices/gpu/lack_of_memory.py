"""A GPU's lack of memory, however it is told, as an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daskboost.errors import DeviceError

OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation` of CUDA's runtime, and `CUDA_ERROR_OUT_OF_MEMORY` of its driver."""
OF_CUDA = ("CUDARuntimeError", "CUDADriverError")
"""CuPy's names of what these two raise; those of its libraries have numbers of their own."""


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
    """Whether a GPU has too little memory. CuPy's and RMM's errors are MemoryErrors, of which NumPy's alone tells that
    it is of the host; where CUDA itself takes memory, for modules and graphs, its error has a number."""
    kind = type(error)
    if isinstance(error, MemoryError):
        return not kind.__module__.startswith("numpy")
    of_cuda = kind.__module__.startswith("cupy") and kind.__name__ in OF_CUDA
    return of_cuda and getattr(error, "status", None) == OUT_OF_MEMORY
