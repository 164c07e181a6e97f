"""The runtimes that tests of CUDA kernels run on, as parameters: `@pytest.fixture(params=["cpu", *RUNTIMES])`.

Most tests take the fixture `runtime` (`tests/conftest.py`) instead, which is parametrised by these alone.
"""

from __future__ import annotations

from functools import partial

import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.gpu.runtime.cuda import get_runtime

EMULATED = [
    pytest.param(EmulatedRuntime, id="emulated", marks=pytest.mark.emulated),
    pytest.param(partial(EmulatedRuntime, seed=1), id="emulated out of order", marks=pytest.mark.emulated),
]
RUNTIMES = [*EMULATED, pytest.param(get_runtime, id="cuda", marks=pytest.mark.gpu)]
"""Each is called without arguments and gives a `Runtime`."""
