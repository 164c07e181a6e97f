"""Which device a name stands for, and what users are told where there is no GPU."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout
from kernels.emulation import EmulatedRuntime

from daskboost import DaskBoostRegressor, QuantizedDataset, train
from daskboost.devices.choose import make_device
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu import cuda
from daskboost.devices.gpu.device import GpuDevice
from daskboost.errors import DeviceError, MissingDependencyError

LAYOUT = make_layout([3, 2])


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.make_runtime.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.arange(20, dtype=np.float32).reshape(-1, 1), np.arange(20, dtype=np.float32)
    with QuantizedDataset.from_dask(X, y) as data, pytest.raises(MissingDependencyError, match="needs CuPy, which is"):
        train({"device": "cuda"}, data, 1)
    monkeypatch.setattr(QuantizedDataset, "from_source", None)  # refused before rows are read
    with pytest.raises(MissingDependencyError, match=r"pip install 'daskboost\[cuda13\]'"):
        DaskBoostRegressor(device="gpu").fit(X, y)


@pytest.mark.usefixtures("no_cupy")
def test_auto_says_that_it_takes_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        device = make_device("auto", LAYOUT, Threads(1))
    assert isinstance(device, CpuDevice)
    assert "device='auto' trains on the CPU: device='cuda' needs CuPy" in caplog.text


@pytest.mark.parametrize("name", ["auto", "cuda", "gpu"])
def test_a_gpu_that_is_there_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime())
    assert isinstance(make_device(name, LAYOUT, Threads(1)), GpuDevice)
    assert isinstance(make_device("cpu", LAYOUT, Threads(1)), CpuDevice)


def test_lack_of_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(EmulatedRuntime):
        free_bytes = 123_000_000

    def refuse(*arguments: Any, **options: Any) -> None:
        raise MemoryError("out of memory allocating 7,000 bytes")

    device = GpuDevice(Full(), LAYOUT, Threads(1))
    monkeypatch.setattr(np, "zeros", refuse)
    message = r"allocating 7,000 bytes; 0.12 GB are free\): use more GPUs"
    with pytest.raises(DeviceError, match=message), device.errors():
        device.xp.zeros(3)
