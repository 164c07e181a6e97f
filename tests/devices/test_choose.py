"""Which device a name stands for, and what users are told where there is no GPU."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout
from kernels.emulation import EmulatedKernel, EmulatedRuntime
from strategies.device_arrays import EmulatedPlace

from daskboost import DaskBoostRegressor, QuantizedDataset, train
from daskboost.devices import choose
from daskboost.devices.choose import gpu_of, make_device
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import DeviceError, MissingDependencyError, NoDeviceError, ParameterError
from daskboost.params import TrainParams

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


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "has_driver", lambda: False)


@pytest.mark.usefixtures("no_cupy", "no_driver")
def test_auto_says_that_it_takes_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        device = make_device("auto", LAYOUT, Threads(1))
    assert isinstance(device, CpuDevice)
    assert "device='auto' trains on the CPU: device='cuda' needs CuPy" in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"], "nobody expected a GPU"


@pytest.mark.usefixtures("no_cupy")
def test_a_gpu_that_is_here_and_not_used_is_told_to_all(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CuPy, who has a GPU would not know that it idles; who hides it does."""
    monkeypatch.setattr(choose, "DRIVER_FILES", (str(tmp_path),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for hidden, level in ((None, "WARNING"), ("0", "WARNING"), ("", "INFO"), ("-1", "INFO")):
        if hidden is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            make_device("auto", LAYOUT, Threads(1))
        assert [record.levelname for record in caplog.records] == [level]


def test_a_driver_is_seen_by_its_files_or_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(choose, "DRIVER_FILES", (str(tmp_path / "none"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not choose.has_driver()
    (tmp_path / "nvidia-smi").touch(0o755)
    assert choose.has_driver()


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize(("error", "level"), [(NoDeviceError, "INFO"), (DeviceError, "WARNING")])
def test_a_gpu_that_is_refused_is_told_to_all(
    error: type[Exception], level: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise error("too old")

    monkeypatch.setattr(cuda, "get_runtime", refuse)
    with caplog.at_level(logging.INFO):
        assert isinstance(make_device("auto", LAYOUT, Threads(1)), CpuDevice)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (level, "device='auto' trains on the CPU: too old")
    ]


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
    message = r"allocating 7,000 bytes; 123 MB are free\): use more GPUs"
    with pytest.raises(DeviceError, match=message), device.errors():
        device.xp.zeros(3)


class Several:
    """GPUs of one process, of which CuPy's current one is the first; `used` are those that kernels ran on."""

    def __init__(self, n: int) -> None:
        self.current, self.used = [0], set[int]()
        self.runtimes = [self._make(number) for number in range(n)]

    def _make(self, number: int) -> EmulatedRuntime:
        several = self

        class Xp:
            """NumPy, and which device is the current one."""

            @staticmethod
            @contextmanager
            def device(number: int) -> Iterator[None]:
                several.current.append(number)
                yield
                several.current.pop()

            def __init__(self) -> None:
                self.cuda = SimpleNamespace(Device=self.device)

            def __getattr__(self, name: str) -> Any:
                return getattr(np, name)

        class Numbered(EmulatedRuntime):
            def kernel(self, file: str, entry: str, **constants: int) -> EmulatedKernel:
                assert several.current[-1] == self.device, f"{entry} runs on GPU {self.device}, not the current one"
                several.used.add(self.device)
                return super().kernel(file, entry, **constants)

        runtime = Numbered()
        runtime.__dict__.update(xp=Xp(), device=number)
        return runtime

    def get(self, number: int | None = None) -> EmulatedRuntime:
        return self.runtimes[self.current[-1] if number is None else number]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Several:
    found = Several(3)
    monkeypatch.setattr(cuda, "get_runtime", found.get)
    return found


def small_data(rng: np.random.Generator) -> tuple[Any, Any]:
    X = rng.normal(size=(300, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.float32)


@pytest.mark.emulated
@pytest.mark.parametrize(("name", "number"), [("cuda", 0), ("cuda:1", 1), ("gpu:2", 2), ("auto", 0)])
def test_a_fit_runs_on_the_gpu_that_is_asked_for(
    name: str, number: int, gpus: Several, rng: np.random.Generator
) -> None:
    X, y = small_data(rng)
    params = {"objective": "binary:logistic", "max_depth": 3, "eval_metric": ["auc", "logloss"]}
    with QuantizedDataset.from_dask(X, y, max_bin=16) as data:
        found = train({**params, "device": name}, data, 2, evals=[(data, "train")])
        assert gpus.used == {number} and gpus.current == [0]
        assert found.to_bytes() == train({**params, "device": "cpu"}, data, 2, evals=[(data, "train")]).to_bytes()


@pytest.mark.emulated
def test_a_fit_goes_where_its_rows_lie(
    gpus: Several, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another GPU is the current one: reading, sketching, quantizing, training and predicting."""
    X, y = small_data(rng)
    x = EmulatedPlace().array(X)
    x.device = SimpleNamespace(id=2)
    params = {"objective": "binary:logistic", "max_depth": 3}

    class Lying(np.ndarray[Any, Any]):
        device: Any = SimpleNamespace(id=2)

    monkeypatch.setattr("daskboost.data.input.device_read.as_device_array", lambda given: given.host.view(Lying))
    with QuantizedDataset.from_dask(x, y, max_bin=16) as data:
        found = train({**params, "device": "cuda"}, data, 2)
        assert gpus.used == {2}
        with pytest.raises(DeviceError, match="device='cuda:1' was asked for, but rows lie on GPU 2: use device='c"):
            train({**params, "device": "cuda:1"}, data, 2)
        assert found.to_bytes() == train({**params, "device": "cpu"}, data, 2).to_bytes(), "whose chunks are fetched"


def test_rows_on_several_gpus_have_no_engine() -> None:
    with pytest.raises(DeviceError, match=r"an engine works on one GPU, but rows lie on GPUs \[0, 2\]"):
        gpu_of("cuda", None, frozenset({0, 2}))


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cuda:x", "cuda:\u0661", "cpu:0", "auto:1", ":1", 1])
def test_numbers_that_are_none(name: Any) -> None:
    with pytest.raises(ParameterError, match=r"device=.* must be one of 'auto', .* \(or 'cuda:1' for the GPU of"):
        TrainParams(device=name)


@pytest.mark.gpu
def test_a_gpu_that_is_not_there() -> None:
    import cupy

    n = cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(DeviceError, match=f"GPU {n} was asked for, and CUDA sees {n}, numbered from 0"):
        make_device(f"cuda:{n}", LAYOUT, Threads(1))
    assert isinstance(make_device(f"cuda:{n - 1}", LAYOUT, Threads(1)), GpuDevice)
