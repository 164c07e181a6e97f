"""Rows on the host that a GPU, or its emulation, quantizes: the CPU's cut points, chunks and refusals to the byte."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from data.test_device_source import DTYPES, frame, numbers
from kernels.emulation import EmulatedRuntime
from kernels.tracked import DeviceLike, TrackedRuntime

from daskboost import DaskBoostClassifier, QuantizedDataset, train
from daskboost.cluster.dask_data import largest_part
from daskboost.data.chunks import build
from daskboost.data.chunks.device_chunk import DeviceChunk, is_whole, joined_runs
from daskboost.data.chunks.quantizer import DeviceHome, Quantizer
from daskboost.data.input import blocks, parquet
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.gpu.quantize import sketch as gpu_sketch
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.transfers import Uploader
from daskboost.errors import DataError, DeviceError, ParameterError

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes data of any size, in small blocks."""
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    monkeypatch.setattr(upload, "WHOLE_SHARE", 0.0)
    monkeypatch.setattr(upload, "LEAST_ROWS", 8)
    monkeypatch.setattr(upload, "MOST_BLOCK_BYTES", 50 * 5 * upload.VALUE_BYTES)  # 50 rows of five features
    monkeypatch.setattr(gpu_sketch, "FIRST_BITS", 14)  # fewer words to visit, which takes the emulation long
    monkeypatch.setattr(gpu_sketch, "NEXT_BITS", 9)


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpu(request: pytest.FixtureRequest, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, or the emulation."""
    if request.param == "emulated":
        emulate(monkeypatch, EmulatedRuntime(seed=3))


@pytest.fixture
def emulated(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulation alone, for what would be the same on a GPU."""
    emulate(monkeypatch, EmulatedRuntime(seed=3))


def emulate(monkeypatch: pytest.MonkeyPatch, runtime: Any) -> Any:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    return runtime


def chunks_of(data: QuantizedDataset) -> Iterator[Any]:
    for shard in data.shards.shards:
        yield from (chunk for _, chunk in shard.chunks())


def assert_same(X: Any, host: Any = None, *, kept: bool | None = True, **options: Any) -> None:
    """Quantized on the GPU, the data set is what the CPU makes of the same input, `host` if it can be read but once.

    `kept` : whether bins lie on the device; None for either.
    """
    with (
        QuantizedDataset.from_dask(X, device="cuda", **options) as found,
        QuantizedDataset.from_dask(X if host is None else host, **options) as expected,
    ):
        for name in ("values", "offsets", "has_missing"):
            assert getattr(found.cuts, name).tobytes() == getattr(expected.cuts, name).tobytes(), name
        assert (found.info.stats, found.info.n_entries) == (expected.info.stats, expected.info.n_entries)
        pairs = list(zip(chunks_of(found), chunks_of(expected), strict=True))
        for own, other in pairs:
            assert kept is None or isinstance(own, DeviceChunk) == kept
            packed = own.on_host()
            assert (packed.first_row, packed.n_rows, packed.layout) == (other.first_row, other.n_rows, other.layout)
            assert [array.tobytes() for array in packed.arrays] == [array.tobytes() for array in other.arrays]
        for own, other in zip(found.shards.shards[0].entries, expected.shards.shards[0].entries, strict=True):
            for name in ("label", "weight", "base_margin"):
                np.testing.assert_array_equal(getattr(own.rows, name), getattr(other.rows, name))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", [*DTYPES, ">f4", "longdouble"])
def test_arrays_of_any_type(dtype: str, order: str, rng: np.random.Generator) -> None:
    values = numbers(dtype, rng, (140, 10)) if dtype in DTYPES else rng.standard_normal((140, 10)).astype(dtype)
    X = values[3::2, ::-2] if order == "strided" else np.asarray(values[:69, :5], order=order)  # type: ignore[call-overload]
    assert_same(X, y=rng.random(69), chunk_rows=40)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A GPU takes arrays whole; shapes of matrices that came there."""
    monkeypatch.setattr(upload, "WHOLE_SHARE", 0.25)
    seen: list[tuple[int, ...]] = []
    array = Uploader.array

    def counted(self: Uploader, values: Any) -> Any:
        seen.append(values.shape)
        return array(self, values)

    monkeypatch.setattr(Uploader, "array", counted)
    return seen


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize(("dtype", "order"), [("float32", "C"), ("float64", "C"), ("float64", "F"), ("int16", "F"),
                                              (">f4", "strided"), ("bool", "strided")])  # fmt: skip
def test_arrays_that_come_whole(
    dtype: str, order: str, encoding: str, uploads: list[tuple[int, ...]], rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They come once, and are in the chunks of the partitions that the host cuts them into."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 130)
    values = (3 * rng.standard_normal((760, 8))).astype(dtype)
    X = values[::2, ::-2] if order == "strided" else np.asarray(values[:380, :4], order=order)  # type: ignore[call-overload]
    weight = np.where(rng.random(380) < 0.2, 0, rng.random(380))
    beside: dict[str, Any] = {"y": rng.random(380), "weight": weight, "base_margin": rng.normal(size=(380, 2))}
    assert_same(X, chunk_rows=50, encoding=encoding, missing=1.0, **beside)
    assert uploads == [(380, 4)]


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_which_rows_come_whole(
    uploads: list[tuple[int, ...]], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MAX_ROWS", 100)
    runtime: Any = cuda.get_runtime(0)
    X, y = rng.standard_normal((120, 4)), rng.integers(0, 2, 120)

    def uploaded(given: Any, **options: Any) -> int:
        """Rows that came to the device in both reads."""
        uploads.clear()
        with QuantizedDataset.from_dask(given, y, device="cuda", **options) as data:
            assert data.n_rows == 120
        return sum(shape[0] for shape in uploads)

    assert uploaded(X) == 120
    with QuantizedDataset.from_dask(X, y) as reference:
        assert uploaded(X, reference=reference) == 120
    assert uploaded(X, device_memory_limit=1 << 29) == 240
    assert uploaded(np.ma.masked_array(X)) == uploaded(pd.DataFrame(X)) == 240
    needed_bytes = 120 * (4 * upload.VALUE_BYTES + upload.WHOLE_ROW_BYTES)
    monkeypatch.setattr(upload, "WHOLE_SHARE", needed_bytes / runtime.free_bytes)
    assert uploaded(X) == 120
    monkeypatch.setattr(upload, "WHOLE_SHARE", (needed_bytes - 1) / runtime.free_bytes)
    assert uploaded(X) == 240


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_rows_that_find_no_room_whole_come_in_parts(
    uploads: list[tuple[int, ...]], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: upload.UploadedRows, threads: int) -> Any:
        raise DeviceError(f"no room for {rows.n_rows} rows")

    monkeypatch.setattr(upload.UploadedRows, "taken", refuse)
    assert_same(rng.standard_normal((120, 3)), y=rng.random(120))
    assert sum(shape[0] for shape in uploads) == 240


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("missing", [math.nan, 0.0])
@pytest.mark.parametrize("max_bin", [2, 7, 256, 65_535])
def test_bins_weights_and_margins(
    max_bin: int, missing: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several partitions, more than a block each; cells that are counted again; symbols of one and two bytes."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 130)
    monkeypatch.setattr(build, "default_capacity", lambda *_: 40 if max_bin < 256 else 4096)
    X = np.stack([rng.integers(-2, 3, 380), rng.standard_normal(380), np.exp(rng.normal(0, 9, 380))], axis=1)
    X[rng.random(X.shape) < 0.1] = np.nan
    weight = np.where(rng.random(380) < 0.2, 0, rng.random(380))
    options: dict[str, Any] = {"weight": weight, "missing": missing, "max_bin": max_bin}
    options["base_margin"] = rng.normal(size=(380, 2))
    assert_same(X.astype(np.float32), y=rng.integers(0, 3, 380), **options)
    assert_same(X, y=rng.random(380), encoding="csr", chunk_rows=50, **options)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sparse_matrices(dtype: str, encoding: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_ROWS", 100)
    matrix = scipy.sparse.random(170, 9, 0.3, "csr", np.float64, rng)
    matrix.data = numbers(dtype, rng, (len(matrix.data), 1)).ravel()
    if dtype != "int64":
        matrix.data[20:23] = [np.nan, 0.0, -1.0]
    for missing in (math.nan, -1.0):
        assert_same(matrix, missing=missing, encoding=encoding, chunk_rows=64)
    assert_same(matrix.tocoo(), encoding=encoding)


@pytest.mark.usefixtures("gpu")
def test_frames_tables_and_files(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame(rng)
    assert_same(table, y="y", chunk_rows=20)
    assert_same(table, y="y", weight="u", feature_names=["b", "i"])
    plain = pd.DataFrame(rng.standard_normal((90, 4)), columns=list("abcd"))
    assert_same(plain, y="d")
    assert_same(plain.astype({"a": "float32", "b": "float16"}), y="d", chunk_rows=40)
    arrow = pa.concat_tables([pa.Table.from_pandas(table)] * 2)  # in two pieces each
    assert_same(arrow, y="y")
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 17)
    path = tmp_path / "rows.parquet"
    pd.concat([table] * 3).to_parquet(path, row_group_size=64, index=False)
    assert_same(path, y="y", chunk_rows=40)


@pytest.mark.usefixtures("gpu")
def test_dask_partitions(rng: np.random.Generator) -> None:
    """One of them empty, one of more than a block."""
    X = rng.standard_normal((145, 3))
    parts = [dask.delayed(X[a:b]) for a, b in ((0, 45), (45, 45), (45, 145))]
    lazy = da.concatenate([da.from_delayed(part, (np.nan, 3), X.dtype) for part in parts])
    with dask.config.set(scheduler="synchronous"):
        assert_same(lazy)
        assert_same(lazy_frame([1.5] * 40, [None] * 40))


def lazy_frame(*columns: Any) -> Any:
    """A partition each of `a` and random `b`; columns of objects where the metadata says float."""
    parts = [pd.DataFrame({"a": pd.Series(values, dtype=object), "b": np.arange(40.0)}) for values in columns]
    parts[0] = parts[0].astype("float64") if None not in columns[0] else parts[0]
    meta = pd.DataFrame({"a": [0.0], "b": [0.0]})
    return dd.from_delayed([dask.delayed(part) for part in parts], meta=meta, verify_meta=False)


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_where_bins_stay(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device, in one array for a single engine, while it has room; else in RAM, then in files. Partitions are of
    more than a block each."""
    monkeypatch.setattr(blocks, "MAX_ROWS", 50)
    X, y = rng.standard_normal((120, 7)).astype(np.float32), rng.random(120)
    with QuantizedDataset.from_dask(X, y, device="cuda", chunk_rows=30) as data:
        (run,) = joined_runs(list(chunks_of(data)))
        assert is_whole(run) and data.shards.device_bytes > 0
    other = QuantizedDataset.from_dask(X[:50], y[:50], reference=data, device="cuda")
    assert len(joined_runs(list(chunks_of(other)))) == 1
    monkeypatch.setattr("daskboost.data.chunks.quantizer.KEPT_SHARE", 0.0)
    for encoding in ("dense", "csr"):
        assert_same(X, y=y, kept=False, chunk_rows=30, encoding=encoding)
        assert_same(X, y=y, kept=False, packing="tight", encoding=encoding)
    with QuantizedDataset.from_dask(
        X, y, device="cuda", chunk_rows=30, host_memory_limit=400, spill_directory=tmp_path
    ) as data:
        (shard,) = data.shards.shards
        assert {shard.store.residency(entry.handle) for entry in shard.entries} == {"ram", "disk"}
        assert shard.store.counters().device_bytes == 0


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_a_worker_needs_room_for_its_part(encoding: str, rng: np.random.Generator) -> None:
    """So that bins stay on the GPUs of a cluster which hold them together."""
    sizes, owners = [300, 100, 200, 200], ["a", "b", "a", "c"]
    assert (largest_part(sizes, owners), largest_part(sizes[:1], owners[:1])) == (500 / 800, 1.0)
    runtime = EmulatedRuntime()
    with QuantizedDataset.from_dask(rng.standard_normal((6_400, 8)), encoding=encoding) as data:
        quantizer = Quantizer.of(data.info.cuts, data.info.layout)
        needs = [DeviceHome(data.info, False, share=part).need_bytes(runtime, quantizer) for part in (1.0, 1 / 4)]
    assert needs[1] == pytest.approx(needs[0] / 4, rel=0.01)


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_device_memory_is_bounded(encoding: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition larger than the limit comes in more blocks; what has no room at all is refused with what it needs."""
    monkeypatch.setattr(upload, "MOST_BLOCK_BYTES", 1 << 30)
    for module in (upload, gpu_sketch):
        monkeypatch.setattr(module, "SERIES_BYTES", 1 << 17)  # of 2**8 cells, and nine bits below each
    monkeypatch.setattr(gpu_sketch, "MORE_NEXT_BITS", 9)
    monkeypatch.setattr(build, "default_capacity", lambda *_: 256)
    runtime = emulate(monkeypatch, TrackedRuntime())
    X = rng.standard_normal((6000, 8))
    for limit in (530_000, 800_000, 1_300_000):
        runtime.meter.restart()
        with QuantizedDataset.from_dask(X, device="cuda", device_memory_limit=limit, encoding=encoding, max_bin=2):
            assert 0.3 * limit < runtime.meter.peak_bytes <= limit
    DeviceLike.meter = None
    with pytest.raises(DeviceError, match=r"needs 524,288 bytes of its memory at least, and there are 100,000"):
        QuantizedDataset.from_dask(X, device="cuda", device_memory_limit=100_000)


def refusal(X: Any, device: str | None, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        QuantizedDataset.from_dask(X, device=device, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


def with_values(rng: np.random.Generator, places: dict[tuple[int, int], float]) -> Any:
    X = rng.standard_normal((200, 3))
    for place, value in places.items():
        X[place] = value
    return X


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_errors_are_the_cpus(share: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words, naming the same rows and columns, whatever else is wrong and in whatever block, or whole."""
    monkeypatch.setattr(upload, "WHOLE_SHARE", share)
    monkeypatch.setattr(blocks, "MAX_ROWS", 100)
    infinite = with_values(rng, {(90, 0): np.inf, (110, 2): -np.inf, (195, 1): 1e39})
    later = with_values(rng, {(110, 2): np.inf, (195, 1): 1e39})
    holes = np.where(rng.random((200, 3)) < 0.5, 0, later)
    holes[150, 1] = np.inf
    sparse = scipy.sparse.csr_matrix(holes)
    bad_labels = np.where(np.arange(200) < 5, np.nan, 1.0)
    for X in (infinite, later, later.astype(np.float32), pd.DataFrame(later, columns=list("abc")), sparse):
        for y in (np.ones(200), bad_labels, np.where(np.arange(200) > 198, np.nan, 1.0)):
            said = refusal(X, "cuda", y=y)
            assert said == refusal(X, None, y=y)
    for options in ({"y": bad_labels}, {"weight": -np.ones(200)}, {"base_margin": np.full(200, np.inf)}):
        assert refusal(with_values(rng, {}), "cuda", **options) == refusal(with_values(rng, {}), None, **options)
    with dask.config.set(scheduler="synchronous"):
        text = lazy_frame([1.5] * 40, [None] * 35 + ["x"] * 5)
        assert refusal(text, "cuda") == refusal(text, None)
        assert "column 'a' is of type" in refusal(text, "cuda")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("later", ["missing", "infinite", "fewer columns", "too many rows"])
def test_partitions_that_change_between_two_reads(later: str, rng: np.random.Generator) -> None:
    X = rng.permuted(np.tile(np.arange(280.0) % 256, (2, 1)), axis=1).T
    changed = X.copy()
    changed[70, 0] = changed[200, 1] = np.nan  # no symbol is left of a byte
    changed[230, 1] = changed[230, 1] if later == "missing" else np.inf
    changed = {"fewer columns": X[:, :1], "too many rows": np.concatenate([X, X])}.get(later, changed)

    def refused(device: str | None) -> str:
        reads: list[int] = []

        def read() -> Any:
            reads.append(0)
            return X if len(reads) == 1 else changed

        first = da.from_delayed(dask.delayed(read, pure=False)(), X.shape, X.dtype)
        lazy = da.concatenate([first, da.from_array(X, chunks=(-1, -1))])
        with dask.config.set(scheduler="synchronous"):
            return refusal(lazy, device, max_bin=256, chunk_rows=80, encoding="dense")

    assert refused("cuda") == refused(None)


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_which_rows_a_gpu_takes(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    X = rng.standard_normal((60, 3))

    def places(**options: Any) -> set[str]:
        caplog.clear()
        QuantizedDataset.from_dask(X, **options).close()
        lines = [record.getMessage() for record in caplog.records]
        return {line for line in lines if line.startswith("rows 0 to 59 were quantized on")}

    with caplog.at_level(logging.DEBUG, "daskboost"):
        for device, where in ((None, "the CPU"), ("cpu", "the CPU"), ("auto", "GPU 0"), ("cuda:1", "GPU 0")):
            assert places(device=device) == {f"rows 0 to 59 were quantized on {where}"}
        monkeypatch.setattr(upload, "TINY_VALUES", 181)
        assert places(device="cuda") == {"rows 0 to 59 were quantized on the CPU"}
        monkeypatch.setattr(upload, "TINY_VALUES", 180)

        def refuse(*_: Any) -> Any:
            raise DeviceError("no GPU here")

        monkeypatch.setattr(cuda, "get_runtime", refuse)
        assert places(device="auto") == {"rows 0 to 59 were quantized on the CPU"}
        with pytest.raises(DeviceError, match="no GPU here"):
            QuantizedDataset.from_dask(X, device="cuda")
    with pytest.raises(ParameterError, match="device='gpus' must be one of"):
        QuantizedDataset.from_dask(X, device="gpus")


@pytest.mark.emulated
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sparse", [False, True])
def test_auto_quantizes_on_the_cpu_where_the_gpu_has_no_room(
    sparse: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = emulate(monkeypatch, EmulatedRuntime())
    X, y = rng.standard_normal((600, 30)), np.arange(600) % 2
    given = scipy.sparse.csr_matrix(X) if sparse else da.from_array(X, chunks=(200, 30))
    labels = y if sparse else da.from_array(y, chunks=200)
    options: dict[str, Any] = {"n_estimators": 2, "max_depth": 3, "n_jobs": 1}
    expected = DaskBoostClassifier(**options, device="cpu").fit(given, labels).booster_.to_bytes()
    for free_bytes, level in ((2 << 30, []), (1000, ["WARNING"])):
        runtime.free_bytes = free_bytes
        upload.say_no_room.cache_clear()
        caplog.clear()
        assert DaskBoostClassifier(**options).fit(given, labels).booster_.to_bytes() == expected
        QuantizedDataset.from_dask(given, device="auto").close()
        said = [record for record in caplog.records if "quantizes rows of 30 features on" in record.getMessage()]
        assert [record.levelname for record in said] == level
    with pytest.raises(DeviceError, match=r"quantizing rows of 30 features on a GPU needs [\d,]+ bytes .*device='cpu'"):
        DaskBoostClassifier(**options, device="cuda").fit(given, labels)


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("pattern", ["110", "0111111", "1111111110"])
def test_room_that_comes_and_goes(pattern: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition, of two blocks, is read several times, and whether there is room is asked anew each time."""
    X, y = rng.standard_normal((300, 6)), da.from_array(np.arange(300) % 2, chunks=50)
    params = {"objective": "binary:logistic", "max_depth": 3, "max_bin": 16, "n_jobs": 1}

    def model(place: str, device: str | None) -> bytes:
        given = da.from_array(X, chunks=(50, 6))
        with QuantizedDataset.from_dask(given, y, max_bin=16, n_jobs=1, device=device) as data:
            return train({**params, "device": place}, data, 2).to_bytes()

    expected, found = model("cpu", None), itertools.cycle(pattern)
    monkeypatch.setattr(upload.UploadedRows, "has_room", property(lambda rows: next(found) == "1"))
    monkeypatch.setattr(upload.UploadedRows, "_check_room", lambda rows: None)
    assert [model(place, "auto") for place in ("cpu", "cuda")] == [expected] * 2


@pytest.mark.gpu
def test_many_rows_through_pinned_buffers(rng: np.random.Generator) -> None:
    values = rng.standard_normal((1_500_000, 9))
    for X in (
        values.astype(np.float32), np.asfortranarray(values.astype(np.float32)), values[::2, ::3],
        (1000 * values).astype(np.int16), pd.DataFrame(values), pd.DataFrame(values).astype({3: "float32"}),
    ):  # fmt: skip
        assert_same(X, kept=None, y=np.zeros(len(X)))
