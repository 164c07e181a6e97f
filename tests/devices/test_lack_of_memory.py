"""A GPU's lack of memory is told from that of the host, and from other errors of CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from daskboost.devices.gpu.runtime.launches import OUT_OF_MEMORY, is_lack, lack_of_memory
from daskboost.errors import DeviceError


class CUDADriverError(RuntimeError):
    """As CuPy's CUDADriverError and CUDARuntimeError."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status = status


CUDADriverError.__module__ = "cupy_backends.cuda.api.driver"


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


OutOfMemoryError.__module__ = "cupy.cuda.memory"


class UsersError(RuntimeError):
    """Whose number is another's."""

    status = OUT_OF_MEMORY


LACKS = (MemoryError("std::bad_alloc: out_of_memory: RMM"), OutOfMemoryError(), CUDADriverError(OUT_OF_MEMORY))
ILLEGAL_ADDRESS = 700
OTHERS = (CUDADriverError(ILLEGAL_ADDRESS), UsersError(), ValueError())


@pytest.mark.parametrize("error", LACKS, ids=repr)
def test_told(error: Exception) -> None:
    assert is_lack(error)
    with pytest.raises(DeviceError) as caught, lack_of_memory(lambda error: f"no room for this: {error}"):
        raise error
    assert str(caught.value) == f"no room for this: {error}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_others_go_on(error: Exception) -> None:
    assert not is_lack(error)
    with pytest.raises(type(error)) as caught, lack_of_memory(str):
        raise error
    assert caught.value is error


def test_the_hosts_is_its_own() -> None:
    with pytest.raises(MemoryError, match="Unable to allocate") as caught, lack_of_memory(str):
        np.empty(1 << 50)  # beyond what addresses there are
    assert not is_lack(caught.value)
