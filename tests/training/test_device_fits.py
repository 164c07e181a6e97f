"""Fits on rows in a GPU's memory, or a stand-in for it: the models and saved files of the same rows on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from strategies.device_arrays import Place, place
from strategies.pairs import every_pair
from strategies.trees import Data, make_data

from daskboost import Booster, DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.data.chunks import build
from daskboost.data.chunks.device_chunk import joined_runs
from daskboost.data.input import blocks
from daskboost.data.input.device_read import device_rows
from daskboost.devices.gpu.quantize import sketch as gpu_sketch
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.errors import DeviceError

__all__ = ["place"]

PARAMS = {"objective": "binary:logistic", "max_depth": 4, "subsample": 0.8}
ROWS = 5_000


@pytest.fixture
def data(rng: np.random.Generator) -> Data:
    return make_data(rng, "binary:logistic", ROWS, 6, n_values=900, missing=0.3)


def quantized(X: Any, y: Any, weight: Any, **options: Any) -> QuantizedDataset:
    return QuantizedDataset.from_dask(X, y, weight=weight, max_bin=32, n_jobs=1, **options)


def model(dataset: QuantizedDataset, device: str, **more: Any) -> bytes:
    return train({**PARAMS, "device": device, "n_jobs": 1, **more.pop("params", {})}, dataset, 2, **more).to_bytes()


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@every_pair({
    "kind": ["array", "columns", "csr", "frame"], "encoding": ["dense", "csr"], "packing": ["aligned", "tight"],
    "chunk_rows": [65_536, 700],
})  # fmt: skip
def test_model_and_files_are_the_hosts(
    kind: str, encoding: str, packing: str, chunk_rows: int, place: Place, data: Data, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    options: dict[str, Any] = {"encoding": encoding, "packing": packing, "chunk_rows": chunk_rows}
    monkeypatch.setattr(blocks, "MAX_ROWS", 2_100)  # so that the host reads three partitions
    X: Any = data.X
    if kind == "csr":
        X = scipy.sparse.csr_matrix(np.where(np.isnan(X), 0, X + 9))
        given = place.csr(X)
    elif kind == "frame":
        X = pd.DataFrame({f"c{i}": column for i, column in enumerate(X.T)})
        given = place.frame(X)
    else:
        given = place.array(np.asfortranarray(X) if kind == "columns" else X)
    with quantized(X, data.y, data.weight, **options) as host:
        expected = model(host, "cpu")
        host.save(tmp_path / "host")
    with quantized(given, place.array(data.y), place.array(data.weight), **options) as there:
        (store,) = {shard.store for shard in there.shards.shards}
        counters = store.counters()
        assert counters.device_bytes > 0
        assert counters.ram_bytes == counters.disk_bytes == 0
        assert model(there, "cuda") == expected
        assert model(there, "cpu") == expected
        there.save(tmp_path / "there")
    assert store.counters().device_bytes == 0
    assert files(tmp_path / "there") == files(tmp_path / "host")


@pytest.mark.parametrize("kind", ["array", "csr"])
def test_a_limit_of_memory_has_fewer_features_counted_at_a_time(
    kind: str, place: Place, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every read that counts."""
    together: list[tuple[int, bool]] = []
    begin = gpu_sketch._Batch.__init__

    def noted(batch: Any, runtime: Any, source: Any, columns: Any, *rest: Any) -> None:
        together.append((len(columns), rest[-1] is not None))
        begin(batch, runtime, source, columns, *rest)

    monkeypatch.setattr(gpu_sketch._Batch, "__init__", noted)
    monkeypatch.setattr(build, "default_capacity", lambda *_: 40)  # too few cells, whose values are counted again
    given = place.csr(scipy.sparse.csr_matrix(data.X)) if kind == "csr" else place.array(data.X)
    found = []
    for limit, batches in ((None, (6,)), (2 * gpu_sketch.SERIES_BYTES * 16 // 15 + 1, (2, 2, 2)), (1, 6 * (1,))):
        together.clear()
        with quantized(given, data.y, None, device_memory_limit=limit) as dataset:
            assert together == [(width, again) for again in (False, True) for width in batches]
            found.append([column.tobytes() for column in (dataset.cuts.values, dataset.cuts.offsets)])
    assert found[0] == found[1] == found[2]


def test_evaluation_sets_and_earlier_models(place: Place, data: Data) -> None:
    first = slice(0, 1_000)
    outcomes = []
    for put, device in ((place.array, "cuda"), (np.asarray, "cpu")):
        results: Any = {}
        with (
            quantized(put(data.X), put(data.y), put(data.weight)) as dataset,
            quantized(put(data.X[first]), put(data.y[first]), None, reference=dataset, encoding="csr") as other,
        ):
            earlier = train({**PARAMS, "device": device}, dataset, 2)
            evals = [(dataset, "a"), (other, "b")]
            found = model(dataset, device, evals=evals, evals_result=results, init_model=earlier)
        with quantized(put(data.X), put(data.y), None, init_model=earlier) as dataset:
            outcomes.append((found, results, model(dataset, device, init_model=earlier)))
    assert outcomes[0] == outcomes[1]


def test_no_second_copy_of_the_symbols(place: Place, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is the chunks' own array, whatever the number of chunks."""
    from daskboost.devices.gpu.rows import views

    seen: list[Any] = []

    class Watched(views.DenseView):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            seen.append(self._rows)

    monkeypatch.setattr("daskboost.devices.gpu.device.DenseView", Watched)
    with quantized(place.array(data.X), data.y, None, chunk_rows=999) as dataset:
        model(dataset, "cuda")
        (shard,) = dataset.shards.shards
        chunks = [chunk for _, chunk in shard.chunks()]
    assert len(chunks) == 6
    addresses = [getattr(array, "ctypes", array.data) for array in (seen[0], chunks[0].whole.flat)]
    assert len({getattr(address, "ptr", None) or address.data for address in addresses}) == 1
    assert all(chunk.whole is chunks[0].whole for chunk in chunks)


@pytest.mark.parametrize(("kind", "n_reads"), [("array", 1), ("columns", 1), ("float64", 2), ("frame", 2), ("dask", 2)])
def test_rows_that_are_lent_are_looked_at_once(
    kind: str, n_reads: int, place: Place, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """What a read copies is freed after it, and read again; cut points, labels and weights are the same."""
    given: Any = place.array(np.asfortranarray(data.X) if kind == "columns" else data.X)
    if kind == "float64":
        given = place.array(data.X.astype(np.float64))
    elif kind == "frame":
        given = place.frame(pd.DataFrame(data.X))
    elif kind == "dask":
        given = da.from_array(data.X, chunks=data.X.shape).map_blocks(
            place.array, dtype=data.X.dtype, meta=np.empty((0, 0), np.float32)
        )
    looks: list[Any] = []

    def watched(*args: Any) -> Any:
        looks.append(device_rows(*args))
        return looks[-1]

    monkeypatch.setattr("daskboost.data.input.read.device_rows", watched)
    y, weight = (place.array(column) if kind != "dask" else column for column in (data.y, data.weight))
    with quantized(given, y, weight, chunk_rows=999) as there, quantized(data.X, data.y, data.weight) as host:
        assert len(looks) == n_reads
        assert [rows.is_lent for rows, _ in looks] == [n_reads == 1 or kind == "dask"] * n_reads
        assert there.cuts.values.tobytes() == host.cuts.values.tobytes()
        (shard,) = there.shards.shards
        for name in ("label", "weight"):
            found = np.concatenate([getattr(entry.rows, name) for entry in shard.entries])
            np.testing.assert_array_equal(found, getattr(data, "y" if name == "label" else name))


@pytest.mark.parametrize("module", [
    "cuts.sketch.count_keys", "chunks.quantizer.quantize_rows", "input.device_read.as_float32"
])  # fmt: skip
def test_too_little_memory(module: str, place: Place, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise MemoryError("Out of memory allocating 7 bytes")

    monkeypatch.setattr(f"daskboost.data.{module}", exhausted)
    with pytest.raises(DeviceError, match=r"does not hold the rows and .* \(Out of memory allocating"):
        quantized(place.array(data.X), data.y, None)


@pytest.mark.parametrize("partitions", [1, 3])
def test_dask_arrays(partitions: int, place: Place, data: Data) -> None:
    """Partitions on the device, labels there or not."""
    lengths = tuple(len(part) for part in np.array_split(data.y, partitions))
    X, y = (da.from_array(a, chunks=(lengths, *a.shape[1:])).map_blocks(
        place.array, dtype=a.dtype, meta=np.empty((0,) * a.ndim, a.dtype)) for a in (data.X, data.y))  # fmt: skip
    with quantized(data.X, data.y, None) as host, quantized(X, y, None) as there:
        (shard,) = there.shards.shards
        assert shard.store.counters().ram_bytes == 0
        assert len(joined_runs(chunk for _, chunk in shard.chunks())) == 1, "views take one array as it is"
        assert model(there, "cuda") == model(host, "cpu")


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_bins_without_room_go_to_the_host(
    encoding: str, place: Place, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that lie on the device, as partitions that are read there may be more than it holds."""
    monkeypatch.setattr("daskboost.data.chunks.quantizer.PART_VALUES", 150 * data.X.shape[1])
    options: dict[str, Any] = {"max_bin": 16, "encoding": encoding, "chunk_rows": 400}
    X = da.from_array(data.X, chunks=(2000, -1)).map_blocks(
        place.array, dtype=data.X.dtype, meta=np.empty((0, 0), data.X.dtype)
    )
    limited: dict[str, Any] = {"device_memory_limit": 40 * len(data.X), "host_memory_limit": "20kB"}
    with (
        QuantizedDataset.from_dask(data.X, data.y, **options) as host,
        QuantizedDataset.from_dask(X, data.y, device="cuda", spill_directory=tmp_path, **limited, **options) as there,
    ):
        (shard,) = there.shards.shards
        counters = shard.store.counters()
        assert counters.device_bytes == 0 and counters.ram_bytes > 0 and counters.disk_bytes > 0
        for (_, found), (_, expected) in zip(shard.chunks(), host.shards.shards[0].chunks(), strict=True):
            assert (found.first_row, found.n_rows) == (expected.first_row, expected.n_rows)
            assert found.on_host().words.tobytes() == expected.on_host().words.tobytes()
        assert model(there, "cuda") == model(host, "cpu")


def test_estimators(place: Place, data: Data) -> None:
    X, y = np.nan_to_num(data.X), data.X[:, 0] * 3
    found = DaskBoostRegressor(n_estimators=2, device="cuda", max_bin=16).fit(place.array(X), place.array(y))
    expected = DaskBoostRegressor(n_estimators=2, device="cpu", max_bin=16).fit(X, y)
    assert found.booster_.to_bytes() == expected.booster_.to_bytes()
    names = np.array(["no", "yes"])[(y > 1).astype(int)]
    classified = DaskBoostClassifier(n_estimators=2, device="cuda", max_bin=16).fit(place.array(X), names)
    numbered = DaskBoostClassifier(n_estimators=2, device="cpu", max_bin=16).fit(X, names)
    assert classified.classes_.tolist() == ["no", "yes"]
    assert classified.booster_.to_bytes() == numbered.booster_.to_bytes()
    coded = DaskBoostClassifier(n_estimators=2, device="cuda", max_bin=16).fit(place.array(X), place.array(y > 1))
    assert coded.classes_.tolist() == [False, True]


def test_categories_of_frames_on_a_gpu(place: Place, rng: np.random.Generator) -> None:
    """Categorical columns come to the host, and features of them go where the others are quantized."""
    n = 900
    town = pd.Series(rng.choice(["Ulm", "Bonn", "Rom"], n), dtype=object).where(pd.Series(rng.random(n) < 0.9), None)
    frame = pd.DataFrame({"size": rng.standard_normal(n), "town": town, "zone": rng.integers(0, 40, n)})
    y = ((town == "Ulm") ^ (frame["zone"] % 3 == 0)).to_numpy(np.float32)
    with quantized(frame, y, None, categorical_features=["zone"]) as host:
        expected = model(host, "cpu")
    with quantized(place.frame(frame), y, None, categorical_features=["zone"]) as there:
        assert model(there, "cuda") == expected
    booster = Booster.from_bytes(expected)
    np.testing.assert_array_equal(to_host(booster.predict(place.frame(frame))), booster.predict(frame))
    with quantized(frame, y, None, categorical_features=["zone"], device="cuda") as uploaded:
        assert model(uploaded, "cuda") == expected
