"""Rows of the host's memory that a GPU, or its emulation, predicts: the CPU's bytes and refusals, whatever the blocks.
"""

from __future__ import annotations

import gc
import logging
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from data.test_device_source import DTYPES, frame, numbers
from kernels.emulation import EmulatedLane, EmulatedRuntime
from kernels.runtimes import EMULATED
from kernels.tracked import DeviceLike, TrackedRuntime
from model.random_models import random_booster, random_rows
from model.test_lazy_predict import CASES

from daskboost import Booster, DaskBoostClassifier, DaskBoostRegressor
from daskboost.data.input import blocks, parquet
from daskboost.data.input import uploaded_rows as upload
from daskboost.data.input.source import make_source
from daskboost.devices.gpu.runtime import cuda, transfers
from daskboost.devices.gpu.runtime.launches import taking_turns, to_device
from daskboost.errors import DataError, DeviceError, MissingDependencyError, NoDeviceError, ParameterError
from daskboost.model import placement, predict_uploads
from daskboost.model.output import Output, PredictRequest, make_request
from daskboost.model.placement import Place, PredictionSize
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import SquaredError

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

BLOCK_ROWS = 20
"""Rows of a block of five features, of which one number is predicted."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = 5 * upload.VALUE_BYTES + 4 * predict_uploads.RESULT_COPIES + 4
    monkeypatch.setattr(predict_uploads, "BLOCK_BYTES", BLOCK_ROWS * row_bytes)
    monkeypatch.setattr(upload, "LEAST_ROWS", 4)


@pytest.fixture(params=[*EMULATED, pytest.param(None, id="cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, or the emulation."""
    if request.param is not None:
        runtime = request.param()
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)


@pytest.fixture
def emulated(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> EmulatedRuntime:
    """The emulation alone, for what would be the same on a GPU."""
    runtime = EmulatedRuntime(seed=3)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    return runtime


def assert_same(booster: Booster, X: Any, **options: Any) -> None:
    """Predicted on the GPU, rows give what they give on the CPU."""
    booster.device_forests.clear()
    found, expected = booster.predict(X, device="cuda", **options), booster.predict(X, device="cpu", **options)
    assert type(found) is type(expected) is np.ndarray
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.flags.c_contiguous
    assert found.tobytes() == expected.tobytes()
    assert booster.device_forests, "they were predicted on the CPU"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", [*DTYPES, ">f4", "longdouble"])
def test_arrays_of_any_type(dtype: str, order: str, rng: np.random.Generator) -> None:
    values = numbers(dtype, rng, (140, 10)) if dtype in DTYPES else rng.standard_normal((140, 10)).astype(dtype)
    X = values[3::2, ::-2] if order == "strided" else np.asarray(values[:69, :5], order=order)  # type: ignore[call-overload]
    booster = random_booster(rng, SoftProb(3))
    assert_same(booster, X)
    assert_same(booster, X, output="leaf", missing=0.0)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("objective", "output"), CASES)
def test_every_output(objective: Objective, output: Output, rng: np.random.Generator) -> None:
    assert_same(random_booster(rng, objective), random_rows(rng, 70), output=output)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("n_rows", [1, *(BLOCK_ROWS * n + more for n in (1, 2, 3) for more in (-1, 0, 1))])
def test_sizes_around_the_borders_of_blocks(n_rows: int, rng: np.random.Generator) -> None:
    values, margin = random_rows(rng, n_rows), rng.normal(size=n_rows)
    booster = random_booster(rng, SquaredError())
    for X in (values, values.astype(np.float64), pd.DataFrame(values).astype({2: np.float64})):
        assert_same(booster, X)
        assert_same(booster, X, base_margin=margin)
    assert_same(booster, values, output="leaf", iteration_range=(1, 3))


@pytest.mark.emulated
def test_rows_are_cut_where_the_sizes_say(
    emulated: EmulatedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Borders that these tests are about; leaves, of which there are many to a row, make shorter blocks."""
    sizes: list[int] = []
    original = PredictRequest.run_on_device

    def counted(request: Any, forest: Any, rows: Any, *more: Any) -> Any:
        sizes.append(rows.n_rows)
        return original(request, forest, rows, *more)

    monkeypatch.setattr(PredictRequest, "run_on_device", counted)
    booster = random_booster(rng, SquaredError())
    booster.predict(random_rows(rng, 2 * BLOCK_ROWS + 1), device="cuda")
    assert sizes == [BLOCK_ROWS, BLOCK_ROWS, 1]
    sizes.clear()
    booster.predict(random_rows(rng, 2 * BLOCK_ROWS + 1), output="leaf", device="cuda")
    assert sum(sizes) == 2 * BLOCK_ROWS + 1 and len(sizes) > 3


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("n_features", [5, 400])
def test_vectors_and_wide_rows(n_features: int, rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(7), n_features=n_features, vectors=True)
    values = random_rows(rng, 50, n_features)
    outputs: tuple[Output, ...] = ("margin", "prediction", "class", "leaf")
    for output in outputs:
        assert_same(booster, values, output=output)
    assert_same(booster, values, base_margin=rng.normal(size=(50, 7)))
    assert_same(random_booster(rng, SquaredError(), n_features=n_features, n_splits=n_features), values)


def sparse_of(values: Any) -> Any:
    present = ~np.isnan(values)
    return sp.csr_matrix((values[present], np.nonzero(present)), values.shape)


@pytest.mark.usefixtures("gpu")
def test_sparse_matrices(rng: np.random.Generator) -> None:
    booster, matrix = random_booster(rng, SoftProb(3)), sparse_of(random_rows(rng, 90))
    matrix.data[:4] = [0.0, -0.0, np.nan, 7.0]
    for X in (matrix, matrix.tocoo(), matrix.tocsc(), matrix.astype(np.float64), matrix[:0]):
        assert_same(booster, X)
        assert_same(booster, X, output="leaf", missing=7.0)


@pytest.mark.usefixtures("gpu")
def test_frames_tables_and_files(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of many types, nulls among them, in the model's order, in pieces and in several partitions."""
    table = frame(rng)
    booster = random_booster(rng, Logistic(), n_features=table.shape[1])
    schema = make_source(table).schema
    booster = replace(booster, schema=schema)
    shuffled = table[table.columns[::-1]].assign(more="text")
    assert_same(booster, shuffled)
    plain = pd.DataFrame(random_rows(rng, 90), columns=[f"feature {i}" for i in range(5)])
    named = random_booster(rng, SquaredError(), names=True)
    for X in (plain, plain.astype({"feature 1": "float64"}), pl.from_pandas(plain), plain[plain.columns[::-1]]):
        assert_same(named, X)
    assert_same(named, plain.assign(margin=rng.normal(size=90)), base_margin="margin")
    assert_same(named, pa.concat_tables([pa.Table.from_pandas(plain)] * 2))
    monkeypatch.setattr(blocks, "MAX_ROWS", 50)
    assert_same(named, plain)
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 17)
    path = tmp_path / "rows.parquet"
    pd.concat([plain] * 3).to_parquet(path, row_group_size=64, index=False)
    assert_same(named, path)


@pytest.mark.usefixtures("gpu")
def test_dask_collections(rng: np.random.Generator) -> None:
    """Also of unknown sizes, with an empty partition, and with margins."""
    booster, values = random_booster(rng, SoftProb(3), names=True), random_rows(rng, 100)
    margin = rng.normal(size=(100, 3)).astype(np.float32)
    table = pd.DataFrame(values, columns=[f"feature {i}" for i in range(5)], index=np.arange(100) * 3)
    with dask.config.set(scheduler="synchronous"):
        for X in (da.from_array(values, chunks=(45, 5)), da.from_array(values, chunks=(45, 5))[values[:, 0] < 0.5]):
            np.testing.assert_array_equal(
                booster.predict(X, device="cuda").compute(), booster.predict(X, device="cpu").compute()
            )
        assert booster.device_forests
        lazy, margins = dd.from_pandas(table, npartitions=3), da.from_array(margin, chunks=(45, 3))
        found, expected = (booster.predict(lazy, device=place).compute() for place in ("cuda", "cpu"))
        pd.testing.assert_frame_equal(found, expected)
        X = da.from_array(values, chunks=(45, 5))
        np.testing.assert_array_equal(
            booster.predict(X, base_margin=margins, device="cuda").compute(),
            booster.predict(values, base_margin=margin, device="cpu"),
        )
        parts = [dask.delayed(values[a:b]) for a, b in ((0, 45), (45, 45), (45, 100))]
        unknown = da.concatenate([da.from_delayed(part, (np.nan, 5), values.dtype) for part in parts])
        np.testing.assert_array_equal(
            booster.predict(unknown, device="cuda").compute(), booster.predict(values, device="cpu")
        )


def refusal(booster: Booster, X: Any, device: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        booster.predict(X, device=device, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.usefixtures("gpu")
def test_errors_are_the_cpus(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words, naming the same rows and columns, whatever else is wrong and in whatever block."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 50)
    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 100)
    infinite = values.copy()
    infinite[1, 0], infinite[60, 2], infinite[99, 1] = np.inf, -np.inf, np.finfo(np.float32).max
    later = values.copy()
    later[99, 3] = np.inf
    for X in (infinite, later, later.astype(np.float64), sparse_of(later), pd.DataFrame(infinite)):
        assert "infinite" in refusal(booster, X, "cuda")
        every: list[dict[str, Any]] = [{}, {"base_margin": np.full(100, np.nan)}, {"output": "leaf"}]
        for options in every:
            assert refusal(booster, X, "cuda", **options) == refusal(booster, X, "cpu", **options)
    for wrong in (rng.normal(size=(100, 2)), np.zeros(99), np.full(100, np.inf)):
        for X in (values, infinite):
            assert refusal(booster, X, "cuda", base_margin=wrong) == refusal(booster, X, "cpu", base_margin=wrong)
    assert refusal(booster, values[:, :4], "cuda") == refusal(booster, values[:, :4], "cpu")
    text = pd.DataFrame(values).astype({1: object})
    text.iloc[97, 1] = "x"
    assert refusal(booster, text, "cuda") == refusal(booster, text, "cpu")


@pytest.mark.emulated
def test_contributions_stay_on_the_cpu(emulated: EmulatedRuntime, rng: np.random.Generator) -> None:
    booster, values = random_booster(rng, SoftProb(3)), random_rows(rng, 30)
    found = booster.predict(values, output="contributions", device="cuda")
    np.testing.assert_array_equal(found, booster.predict(values, output="contributions", device="cpu"))
    assert not booster.device_forests


# What is held.


@pytest.mark.emulated
@pytest.mark.parametrize("failing", ["data", "memory", "fetch", None])
def test_nothing_is_held_afterwards(
    failing: str | None, small_blocks: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it fails in the middle, and the exception is kept: but the model, which stays for the next call."""
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 5 * BLOCK_ROWS + 3)
    expected = booster.predict(values, device="cpu")
    booster.predict(values[:1], device="cuda")
    gc.collect()
    of_model, calls = runtime.meter.bytes, [0]
    runtime.meter.peak_bytes = 0
    if failing == "data":
        values[-1, 0] = np.inf
    elif failing is not None:
        name, original = ("to_device", to_device) if failing == "memory" else ("Download", transfers.Download)

        def third_fails(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                arguments = ()  # this frame is not forgotten
                raise MemoryError("out of memory allocating 7,000 bytes")
            return original(*arguments)

        monkeypatch.setattr(f"daskboost.model.predict_uploads.{name}", third_fails)
    kept: list[BaseException] = []
    try:
        found = booster.predict(values, base_margin=np.zeros(len(values)), device="cuda")
        np.testing.assert_array_equal(found.shape, expected.shape)
    except (DataError, DeviceError) as error:
        kept.append(error)
    assert bool(kept) == (failing is not None)
    gc.collect()
    assert runtime.meter.bytes == of_model
    block_bytes = BLOCK_ROWS * (5 * 4 + 3 * 4)
    assert runtime.meter.peak_bytes < of_model + 4 * block_bytes, "two blocks at a time"
    monkeypatch.undo()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    np.testing.assert_array_equal(booster.predict(random_rows(rng, 0), device="cuda"), expected[:0])
    DeviceLike.meter = None


class Lane(EmulatedLane):
    """Knows what it was given, and how far the host has waited."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name, self.log = name, log

    def __enter__(self) -> None:
        self.log.append(f"{self.name}(")

    def __exit__(self, *_: object) -> None:
        self.log.append(")")

    def wait_event(self, event: Any) -> None:
        self.log.append(f"{self.name} waits")

    def synchronize(self) -> None:
        self.log.append(f"{self.name} ends")


class WithLanes(EmulatedRuntime):
    """Its lanes, kernels and downloads are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self._own = Lane("a", self.log), Lane("b", self.log)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self._own


@pytest.mark.emulated
@pytest.mark.parametrize("fails", [False, True])
def test_blocks_take_turns_on_two_streams(
    fails: bool, small_blocks: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is fetched in its own stream, after the next one was queued up; the end waits for both."""
    runtime = WithLanes()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    run, fetch = PredictRequest.run_on_device, transfers.Download

    def queue(*arguments: Any) -> Any:
        runtime.log.append("queue")
        if fails and runtime.log.count("queue") == 2:
            raise DeviceError("gone")
        return run(*arguments)

    def download(*arguments: Any) -> Any:
        runtime.log.append("fetch")
        return fetch(*arguments)

    monkeypatch.setattr(PredictRequest, "run_on_device", queue)
    monkeypatch.setattr("daskboost.model.predict_uploads.Download", download)
    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 2 * BLOCK_ROWS + 1)
    begun = ["a waits", "b waits", "a(", "queue", ")", "b(", "queue", ")"]
    if fails:
        with pytest.raises(DeviceError, match="gone"):
            booster.predict(values, device="cuda")
        assert runtime.log == [*begun, "a ends", "b ends"]
        return
    booster.predict(values, device="cuda")
    assert runtime.log == [
        *begun, "a(", "fetch", ")", "a(", "queue", ")", "b(", "fetch", ")", "b(", ")", "a(", "fetch", ")",
        "a ends", "b ends",
    ]  # fmt: skip


def test_lanes_end_however_work_ends() -> None:
    runtime = WithLanes()
    with pytest.raises(ZeroDivisionError), taking_turns(runtime) as lanes:
        next(lanes)
        raise ZeroDivisionError
    assert runtime.log == ["a waits", "b waits", "a ends", "b ends"]


# Which rows a GPU takes.


def test_what_pays() -> None:
    """Many rows and trees; not what the CPU has done before a GPU has begun."""
    size = PredictionSize(n_rows=4_000_000, row_bytes=200, n_trees=300, n_threads=16)
    assert size.pays(has_begun=True) and not size.pays(has_begun=False)
    assert replace(size, n_threads=1).pays(has_begun=False)
    assert replace(size, n_rows=20_000).pays(has_begun=True) and not replace(size, n_rows=1_000).pays(has_begun=True)
    assert replace(size, n_rows=20_000, n_trees=100, n_threads=1).pays(has_begun=True)
    few = replace(size, n_trees=1)
    assert few.pays(has_begun=True) and not replace(few, n_rows=20_000).pays(has_begun=True)


def used(booster: Booster) -> bool:
    """Whether a GPU has had the model since the last call."""
    found = bool(booster.device_forests)
    booster.device_forests.clear()
    return found


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU may take it takes: rows of more than a thread of the CPU walks in a microsecond or so."""
    monkeypatch.setattr(placement, "FIRST_CALL_S", 1e-6)
    monkeypatch.setattr(placement, "CALL_S", 1e-6)
    monkeypatch.setattr(placement, "WALK_S", 1e-4)


@pytest.mark.emulated
def test_who_predicts(
    emulated: EmulatedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 40)
    booster.predict(values)
    assert not used(booster), "few rows"
    booster.predict(values, device="cuda:0")
    assert used(booster), "whatever their number"
    monkeypatch.setattr(placement, "FIRST_CALL_S", 0.0)
    monkeypatch.setattr(placement, "CALL_S", 0.0)
    monkeypatch.setattr(placement, "WALK_S", 1e-3)
    booster.predict(values)
    assert used(booster)
    booster.predict(values, device="cpu")
    assert not used(booster)
    monkeypatch.setattr(placement, "CALL_S", 1.0)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    booster.predict(values, n_threads=1)
    assert not used(booster), "6 trees and 40 rows, .24 s"
    monkeypatch.setattr(placement, "CALL_S", 0.1)
    booster.predict(values, n_threads=1)
    assert used(booster)
    booster.predict(values, n_threads=3)
    assert not used(booster), ".08 s"
    with pytest.raises(ParameterError, match="device='tpu' must be one of 'auto', 'cpu', 'cuda'"):
        booster.predict(values, device="tpu")


@pytest.mark.emulated
def test_all_rows_of_a_call_decide(
    emulated: EmulatedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each partition that they are cut into; of a Dask collection each is on its own."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 10)
    monkeypatch.setattr(placement, "WALK_S", 1e-3)
    monkeypatch.setattr(placement, "FIRST_CALL_S", 0.1)
    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 40)
    booster.predict(values, n_threads=1)
    assert used(booster)
    lazy = booster.predict(da.from_array(values, chunks=(10, 5)))
    lazy.compute(scheduler="sync")
    assert not used(booster), ".06 s each"


@pytest.mark.emulated
@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_estimators_predict_where_their_device_says(
    device: str, emulated: EmulatedRuntime, rng: np.random.Generator
) -> None:
    X = rng.normal(size=(120, 4)).astype(np.float32)
    y = np.array(["no", "yes"], object)[(X[:, 0] > 0).astype(int)]
    settings: dict[str, Any] = {"n_estimators": 3, "max_depth": 2}
    classifier = DaskBoostClassifier(**settings, device="cpu").fit(X, y)
    regressor = DaskBoostRegressor(**settings, device="cpu").fit(X, X[:, 0])
    names = ("predict", "predict_proba", "apply")
    calls = [(model, name) for model in (classifier, regressor) for name in names if hasattr(model, name)]
    expected = [getattr(model, name)(X) for model, name in calls]
    scores = classifier.score(X, y), regressor.score(X, X[:, 0])
    assert not used(classifier.booster_) and not used(regressor.booster_)
    for model in (classifier, regressor):
        model.set_params(device=device)
    for (model, name), values in zip(calls, expected, strict=True):
        np.testing.assert_array_equal(getattr(model, name)(X), values)
        assert used(model.booster_), name
    lazy = da.from_array(X, chunks=(50, 4))
    np.testing.assert_array_equal(regressor.predict(lazy).compute(scheduler="sync"), regressor.predict(X))
    assert (classifier.score(X, y), regressor.score(X, X[:, 0])) == scores
    assert used(classifier.booster_) and used(regressor.booster_)
    with dask.config.set(scheduler="synchronous"):
        assert regressor.score(lazy, da.from_array(X[:, 0], chunks=50)) == scores[1]
    assert used(regressor.booster_)


@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize(("error", "device", "level"), [
    (MissingDependencyError, "auto", "DEBUG"), (NoDeviceError, "auto", "DEBUG"), (DeviceError, "auto", "WARNING"),
    (MissingDependencyError, "cuda", "WARNING"),
])  # fmt: skip
def test_where_no_gpu_can_be_used(
    error: type[Exception], device: str, level: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Estimators predict as before, on another machine than the fit's; a call that names a GPU says that it cannot."""

    def refuse(*_: Any) -> Any:
        raise error("not here")

    X = rng.normal(size=(60, 4)).astype(np.float32)
    model = DaskBoostRegressor(n_estimators=2, device="cpu").fit(X, X[:, 0])
    expected = model.predict(X)
    monkeypatch.setattr(cuda, "get_runtime", refuse)
    with caplog.at_level(logging.DEBUG, "daskboost.model"):
        np.testing.assert_array_equal(model.set_params(device=device).predict(X), expected)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (level, f"device={device!r} predicts on the CPU: not here")
    ]
    np.testing.assert_array_equal(model.booster_.predict(X), expected)
    with pytest.raises(error, match="not here"):
        model.booster_.predict(X, device="cuda")


@pytest.mark.emulated
@pytest.mark.usefixtures("pays", "emulated")
@pytest.mark.parametrize("lack", ["memory", "pinned"])
def test_a_gpu_that_is_full(
    lack: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that names it is told so; where it may be the CPU, that predicts, and the log has the reason."""

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("out of it") if lack == "memory" else DeviceError("the host does not page-lock 16 bytes")

    booster, values = random_booster(rng, Logistic()), random_rows(rng, 50)
    expected = booster.predict(values, device="cpu")
    monkeypatch.setattr(transfers.Uploader, "numbers", refuse)
    said = {
        "memory": r"does not hold the model and a block of rows \(out of it; 1.07 GB are free\): free what",
        "pinned": "the host does not page-lock 16 bytes",
    }[lack]
    with pytest.raises(DeviceError, match=said):
        booster.predict(values, device="cuda")
    with caplog.at_level(logging.WARNING, "daskboost.model"):
        np.testing.assert_array_equal(booster.predict(values), expected)
    (record,) = caplog.records
    assert record.getMessage().startswith("device='auto' predicts on the CPU: the ")


def test_requests_that_name_no_place_stay_on_the_cpu(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SquaredError())
    assert make_request(booster, "margin", None, None).place == Place("cpu", is_asked=False)
    assert Place.of_call("gpu:1").is_asked and not Place.of_call("auto").is_asked


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["C", "F", "float64", "frame", "mixed", "sparse", "leaf"])
def test_many_rows(kind: str, rng: np.random.Generator) -> None:
    """Blocks as large as they are, on real streams: half a million rows, races and all."""
    booster = random_booster(rng, SoftProb(3), n_features=28, n_splits=60, n_iterations=20)
    values = random_rows(rng, 500_001, 28)
    made: dict[str, Any] = {
        "C": values, "F": np.asfortranarray(values), "float64": values.astype(np.float64),
        "frame": pd.DataFrame(values), "mixed": pd.DataFrame(values).astype({3: np.float64, 9: np.float64}),
        "sparse": sparse_of(values), "leaf": values[:100_000],
    }  # fmt: skip
    for _ in range(3):
        assert_same(booster, made[kind], output="leaf" if kind == "leaf" else "prediction", missing=math.nan)
