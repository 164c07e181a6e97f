"""Who keeps an exception, as notebooks do, keeps neither the rows of the fit nor the memory of its GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from data.test_upload import small_blocks
from devices.test_lack_of_memory import CudaError
from kernels.emulation import EmulatedKernel
from kernels.tracked import PoolMeter, TrackedRuntime
from model.random_models import random_booster, random_rows
from model.test_device_predict import fake
from training.test_device_memory_limit import FITS, PARAMS, chunked, least_of, no_thread_is_left, rows, runtime
from training.test_stream_failures import Interrupt

from daskboost import QuantizedDataset, tracebacks, train, train_many
from daskboost.devices.gpu.lack_of_memory import OUT_OF_MEMORY
from daskboost.errors import DataError, DeviceError
from daskboost.objectives.multiclass import SoftProb

__all__ = ["no_thread_is_left", "rows", "runtime", "small_blocks"]

pytestmark = pytest.mark.emulated


@pytest.fixture(autouse=True)
def stand_ins_are_forgotten_as_cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what of this module stands in for kernels."""
    monkeypatch.setattr(tracebacks, "PACKAGES", tracebacks.PACKAGES | {"kernels", "numpy", __name__})


def ended(runtime: TrackedRuntime, error: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """The exception of a call, of whose device arrays none is left while it is kept."""
    before = runtime.meter.bytes
    with pytest.raises(error) as caught:
        call()
    gc.collect()  # exceptions and functions' variables refer to each other, as `make_device` knows
    runtime.recorded.clear()
    assert runtime.meter.peak_bytes > before
    assert runtime.meter.bytes == before
    return caught.value


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that a device has, in a list; 0 for any."""
    count, room = PoolMeter.count, [0]

    def bounded(meter: PoolMeter, array: Any) -> None:
        if meter.bytes + array.nbytes > room[0] > 0:
            raise MemoryError("no more")
        count(meter, array)

    monkeypatch.setattr(PoolMeter, "count", bounded)
    return room


SHARES = (0.02, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.999)
"""Of what would be enough."""


def scored(values: Any, labels: Any) -> tuple[str, float]:
    raise LookupError("the metric's own")


def pulled(margins: Any, labels: Any) -> tuple[Any, Any]:
    raise LookupError("the objective's own")


@pytest.mark.parametrize("name", ["samples", "absolute error", "lossguide", "certified", "sampled", "vectors"])
@pytest.mark.parametrize("streams", [False, True], ids=["resident", "streamed"])
def test_interrupted_fits(name: str, streams: bool, rows: dict[str, Any], runtime: TrackedRuntime) -> None:
    params = {**PARAMS, **FITS[name], "max_bin": 16}
    with chunked(rows) as dataset:
        if streams:
            params["device_memory_limit"] = 3 * least_of(dataset)
        ended(runtime, KeyboardInterrupt, lambda: train(params, dataset, 3, callbacks=[Interrupt()]))


def test_users_own_functions(rows: dict[str, Any], runtime: TrackedRuntime) -> None:
    with chunked(rows) as dataset:
        for given in ({"objective": pulled}, {"custom_metric": scored, "evals": [(dataset, "rows")]}):
            error = ended(runtime, LookupError, partial(train, PARAMS, dataset, 3, **given))
            assert "own" in str(error)


def test_models_that_are_trained_together(rows: dict[str, Any], runtime: TrackedRuntime) -> None:
    with chunked(rows) as dataset:
        for limit in (None, least_of(dataset)):
            given = [{**PARAMS, "device_memory_limit": limit, "max_depth": depth} for depth in (2, 3)]
            call = partial(train_many, given, dataset, 3, callbacks=lambda _: [Interrupt()])
            ended(runtime, KeyboardInterrupt, call)


@pytest.mark.parametrize("name", ["samples", "classes", "lossguide", "symmetric", "certified", "sampled", "vectors"])
def test_a_full_gpu(name: str, rows: dict[str, Any], runtime: TrackedRuntime, room: list[int]) -> None:
    """At any moment of a fit, which is clear about it and can be had again."""
    if FITS[name].get("num_class"):
        rows = {**rows, "y": np.arange(len(rows["y"])) % 5}
    params = {**PARAMS, **FITS[name]}
    with chunked(rows) as dataset:
        expected = train(params, dataset, 2).to_bytes()
        runtime.recorded.clear()
        gc.collect()
        peak = runtime.meter.peak_bytes
        for share in SHARES:
            room[0] = int(peak * share)
            error = ended(runtime, DeviceError, partial(train, params, dataset, 2))
            assert "the GPU's memory does not hold the fit (no more" in str(error)
        room[0] = peak
        assert train(params, dataset, 2).to_bytes() == expected


class Launches:
    """Of an emulated device; the last one that is allowed raises instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.last, self.error = 0, 0, BaseException()
        launch = EmulatedKernel.__call__

        def noted(kernel: EmulatedKernel, *arguments: Any, **options: Any) -> None:
            self.count += 1
            if self.count == self.last:
                raise self.error
            launch(kernel, *arguments, **options)

        monkeypatch.setattr(EmulatedKernel, "__call__", noted)

    def ends(self, n: int, runtime: TrackedRuntime, call: Callable[[], Any]) -> None:
        """Fail in some of the `n` launches of a call, by Ctrl-C or for lack of memory."""
        for last in range(1, n + 1, max(1, n // 9)):
            for error in (KeyboardInterrupt(), MemoryError("no more"), CudaError(OUT_OF_MEMORY, "no more")):
                self.count, self.last, self.error = 0, last, error
                if isinstance(error, KeyboardInterrupt):
                    ended(runtime, KeyboardInterrupt, call)
                else:
                    text = str(ended(runtime, DeviceError, call))
                    assert "the GPU's memory does not hold" in text and "(no more" in text
        self.last = 0


@pytest.mark.usefixtures("small_blocks")
def test_rows_that_are_quantized(
    runtime: TrackedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either read of them."""
    X, y = rng.standard_normal((400, 5)), rng.random(400)
    quantize = partial(QuantizedDataset.from_dask, y=y, device="cuda", chunk_rows=100)
    infinite = X.copy()
    infinite[380, 2] = np.inf
    assert "infinite" in str(ended(runtime, DataError, partial(quantize, infinite)))
    launches = Launches(monkeypatch)
    with quantize(X):
        assert runtime.meter.bytes > 0
    launches.ends(launches.count, runtime, partial(quantize, X))


def test_predictions(runtime: TrackedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    booster, X = random_booster(rng, SoftProb(3)), random_rows(rng, 300)
    expected = booster.predict(fake(X)).tobytes()  # and the model stays there for the next rows
    gc.collect()
    infinite = X.copy()
    infinite[7, 1] = np.inf
    assert "infinite" in str(ended(runtime, DataError, partial(booster.predict, fake(infinite))))
    launches = Launches(monkeypatch)
    assert booster.predict(fake(X)).tobytes() == expected
    assert launches.count == 2
    launches.ends(launches.count, runtime, partial(booster.predict, fake(X)))
    assert booster.predict(fake(X)).tobytes() == expected
