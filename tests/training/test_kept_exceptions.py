"""Who keeps an exception, as notebooks do, keeps neither the rows of the fit nor the memory of its GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cluster.takes_of_rounds import search_entries
from data.test_upload import small_blocks
from devices.test_lack_of_memory import CUDADriverError
from kernels.emulation import EmulatedKernel
from kernels.tracked import PoolMeter, TrackedRuntime
from model.random_models import random_booster, random_rows
from model.test_device_predict import fake
from training.test_device_memory_limit import FITS, PARAMS, chunked, least_of, no_thread_is_left, rows, runtime
from training.test_stream_failures import Interrupt

from daskboost import QuantizedDataset, plan, tracebacks, train, train_many
from daskboost.devices.gpu.runtime.launches import OUT_OF_MEMORY
from daskboost.errors import DataError, DeviceError
from daskboost.fit import coordinator
from daskboost.objectives.classification import SoftProb

__all__ = ["no_thread_is_left", "rows", "runtime", "small_blocks"]

pytestmark = [pytest.mark.emulated, pytest.mark.large]  # the same launches as of other fits, many times

NAMES = (
    "samples", "classes", "absolute error", "lossguide", "symmetric", "certified", "sampled", "by weight", "vectors",
)  # fmt: skip


@pytest.fixture(autouse=True)
def stand_ins_are_forgotten_as_cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what of this module stands in for kernels."""
    monkeypatch.setattr(tracebacks, "PACKAGES", tracebacks.PACKAGES | {"kernels", "numpy", __name__})


@pytest.fixture(autouse=True)
def rounds_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU's, which take a millisecond; one that fails is told when it is the next."""
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)


def ended(runtime: TrackedRuntime, error: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """The exception of a call, of whose device arrays none is left while it is kept."""
    before = runtime.meter.peak_bytes = runtime.meter.bytes
    with pytest.raises(error) as caught:
        call()
    gc.collect()  # exceptions and functions' variables refer to each other, as `make_device` knows
    runtime.recorded.clear()
    assert runtime.meter.peak_bytes > before
    assert runtime.meter.bytes == before
    return caught.value


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
        errors = KeyboardInterrupt(), MemoryError("no more"), CUDADriverError(OUT_OF_MEMORY, "no more")
        for i, last in enumerate(range(1, n + 1, max(1, n // 4))):
            for error in errors if n < 4 else [errors[i % 3]]:
                self.count, self.last, self.error = 0, last, error
                if isinstance(error, KeyboardInterrupt):
                    ended(runtime, KeyboardInterrupt, call)
                else:
                    text = str(ended(runtime, DeviceError, call))
                    assert "the GPU's memory does not hold" in text and "(no more" in text
        self.last = 0


def data_of(name: str, rows: dict[str, Any]) -> QuantizedDataset:
    if FITS[name].get("num_class"):
        rows = {**rows, "y": np.arange(len(rows["y"])) % 5}
    return chunked(rows)


STREAMED = ("absolute error", "lossguide", "sampled", "vectors")
FITTED = [*((name, False) for name in NAMES), *((name, True) for name in STREAMED)]


@pytest.mark.parametrize(("name", "streams"), FITTED)
def test_fits(
    name: str, streams: bool, rows: dict[str, Any], runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between rounds, and within them."""
    params = {**PARAMS, **FITS[name]}
    with data_of(name, rows) as dataset:
        if streams:
            params["device_memory_limit"] = plan({**params, "device_memory_limit": 1}, dataset).total_bytes
            assert plan(params, dataset).resident is not None
        ended(runtime, KeyboardInterrupt, lambda: train(params, dataset, 3, callbacks=[Interrupt()]))
        launches = Launches(monkeypatch)
        expected = train(params, dataset, 2).to_bytes()
        runtime.recorded.clear()
        launches.ends(launches.count, runtime, partial(train, params, dataset, 2))
        assert train(params, dataset, 2).to_bytes() == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_full_gpu(
    name: str, rows: dict[str, Any], runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment of a fit, which is clear about it and can be had again."""
    count, room = PoolMeter.count, [0]

    def bounded(meter: PoolMeter, array: Any) -> None:
        if meter.bytes + array.nbytes > room[0] > 0:
            raise MemoryError("no more")
        count(meter, array)

    monkeypatch.setattr(PoolMeter, "count", bounded)
    params = {**PARAMS, **FITS[name]}
    with data_of(name, rows) as dataset:
        expected = train(params, dataset, 2).to_bytes()
        runtime.recorded.clear()
        gc.collect()
        peak = runtime.meter.peak_bytes
        for share in (0.02, 0.5, 0.8, 0.95, 0.999):
            room[0] = int(peak * share)
            error = ended(runtime, DeviceError, partial(train, params, dataset, 2))
            assert "the GPU's memory does not hold the fit (no more" in str(error)
        room[0] = peak
        assert train(params, dataset, 2).to_bytes() == expected


def test_sorted_entries(
    runtime: TrackedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_entries(monkeypatch)
    X = scipy.sparse.random(5_000, 60, 0.05, "csr", random_state=rng)
    with QuantizedDataset.from_dask(X, rng.random(5_000) < 0.5, max_bin=16, n_jobs=1, encoding="csr") as dataset:
        assert plan(PARAMS, dataset).by_entries
        launches = Launches(monkeypatch)
        train(PARAMS, dataset, 2)
        runtime.recorded.clear()
        launches.ends(launches.count, runtime, partial(train, PARAMS, dataset, 2))


@pytest.mark.parametrize("calls", [1, 3, 5])
def test_users_own_functions(calls: int, rows: dict[str, Any], runtime: TrackedRuntime) -> None:
    """In a round that was asked for together with those before it, too."""
    left = [0]

    def pulled(margins: Any, labels: Any) -> tuple[Any, Any]:
        left[0] -= 1
        if left[0] == 0:
            raise LookupError("the objective's own")
        return margins - labels, np.ones_like(margins)

    def scored(values: Any, labels: Any) -> tuple[str, float]:
        left[0] -= 1
        if left[0] == 0:
            raise LookupError("the metric's own")
        return "own", 1.0

    with chunked(rows) as dataset:
        for given in ({"objective": pulled}, {"custom_metric": scored, "evals": [(dataset, "rows")]}):
            left[0] = calls
            error = ended(runtime, LookupError, partial(train, PARAMS, dataset, 9, **given))
            assert "own" in str(error)


def test_models_that_are_trained_together(
    rows: dict[str, Any], runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(monkeypatch)
    with chunked(rows) as dataset:
        for limit in (None, least_of(dataset)):
            given = [{**PARAMS, "device_memory_limit": limit, "max_depth": depth} for depth in (2, 3)]
            call = partial(train_many, given, dataset, 3, callbacks=lambda _: [Interrupt()])
            ended(runtime, KeyboardInterrupt, call)
            launches.count = 0
            train_many(given, dataset, 2)
            runtime.recorded.clear()
            launches.ends(launches.count, runtime, partial(train_many, given, dataset, 2))


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
