"""Key counts made on a GPU, or its emulation: the CPU's bytes, and the naive twin's numbers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from reference import sketch as reference
from strategies.device_rows import device_dense, device_sparse

from daskboost.data.cuts import sketch
from daskboost.data.cuts.sketch import DataSketch, integer_weights, refine_batch, sketch_batch
from daskboost.data.input.device_read import looked_at
from daskboost.data.input.row_batch import DenseRows, SparseRows
from daskboost.devices.gpu.quantize import sketch as gpu
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.dtypes import Float32


def dump(part: DataSketch) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in {**part.table.to_arrays(), "missing": part.missing}.items()}


def sparse(values: Float32) -> SparseRows:
    present = ~np.isnan(values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), values[present], values.shape[1])


def table(n: int, rng: np.random.Generator) -> Float32:
    """Columns whose resolution is found on the first, second and third level, or on none."""
    columns = [
        rng.standard_normal(n),
        np.round(rng.standard_normal(n) * 3),
        np.exp(rng.normal(0, 12, n)),
        np.where(rng.random(n) < 0.6, 0, rng.random(n)),
        np.full(n, np.nan),
        np.where(rng.random(n) < 0.7, np.nan, 5 + rng.integers(0, 2000, n) * 2.0**-21),
        np.where(rng.random(n) < 0.99, 1 + 2.0**-20 * rng.random(n), rng.standard_normal(n) * 1e30),
        np.where(rng.random(n) < 0.5, -0.0, 1e-42 * rng.integers(-3, 3, n)),
        np.full(n, -7.25),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


@pytest.mark.parametrize("storage", ["rows", "columns", "strided", "entries", "entries sorted"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("capacity", [1, 2, 100, 700])
def test_the_cpus_bytes(
    runtime: Runtime, capacity: int, weighted: bool, storage: str, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    values = table(900, rng)
    weight = np.where(rng.random(900) < 0.2, 0, rng.random(900) * 5).astype(np.float32) if weighted else None
    exponent = 40 if weighted else None
    host: Any = DenseRows(values)
    if storage == "entries sorted":
        values[rng.integers(0, 900, 850)[:, None], [0, 2, 3, 7]] = np.nan
        monkeypatch.setattr(sketch, "MANY_THIN", 1)
        monkeypatch.setattr(gpu, "MOST_ENTRIES", 600)
    if storage.startswith("entries"):
        host = sparse(values)
        features: Any = device_sparse(runtime, host)
    elif storage == "strided":
        spaced = np.repeat(np.repeat(values, 2, axis=0), 3, axis=1)
        whole = device_dense(runtime, spaced)
        features = type(whole)(runtime, whole.values[::2, ::3], whole.missing, whole.n_missing[::3] // 2)
    else:
        features = device_dense(runtime, values if storage == "rows" else np.asfortranarray(values))
    there = None if weight is None else looked_at(runtime, runtime.xp.asarray(weight))
    expected = sketch_batch(host, weight, capacity=capacity, weight_exponent=exponent)
    for weights in (weight, there):
        found = sketch_batch(features, weights, capacity=capacity, weight_exponent=exponent)
        assert dump(found) == dump(expected)
    assert dump(sketch_batch(host, there, capacity=capacity, weight_exponent=exponent)) == dump(expected)
    for max_bin in (3, 50):
        refinement = expected.cells().heavy(max_bin)
        if refinement is not None:
            fine = [
                refine_batch(each, weights, refinement, weight_exponent=exponent)
                for each, weights in ((host, weight), (features, there))
            ]
            assert dump(fine[1]) == dump(fine[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("capacity", [2, 700])
def test_blocks_counted_together_are_one(
    runtime: Runtime, weighted: bool, capacity: int, rng: np.random.Generator
) -> None:
    """Whatever their orders of axes; one of them is empty."""
    values, exponent = table(900, rng), 40 if weighted else None
    weight = np.where(rng.random(900) < 0.2, 0, rng.random(900) * 5).astype(np.float32) if weighted else None
    rows = [slice(0, 300), slice(300, 300), slice(300, 650), slice(650, 900)]
    blocks: list[sketch.Weighted] = [
        (device_dense(runtime, order(values[own])), None if weight is None else weight[own])
        for own, order in zip(rows, [np.asfortranarray, np.ascontiguousarray] * 2, strict=True)
    ]
    if weight is not None:
        blocks[0] = blocks[0][0], looked_at(runtime, runtime.xp.asarray(weight[rows[0]]))
    options: dict[str, Any] = {"weight_exponent": exponent}
    expected = sketch_batch(DenseRows(values), weight, capacity=capacity, **options)
    assert dump(sketch_batch(*blocks[0], capacity=capacity, beside=blocks[1:], **options)) == dump(expected)
    refinement = expected.cells().heavy(20)
    if refinement is not None:
        fine = refine_batch(DenseRows(values), weight, refinement, **options)
        assert dump(refine_batch(*blocks[0], refinement, beside=blocks[1:], **options)) == dump(fine)


def test_the_naive_twins_numbers(runtime: Runtime, rng: np.random.Generator) -> None:
    values = table(60, rng)[:, [0, 3, 6]]
    weight = rng.integers(0, 3, 60).astype(np.float32)
    units = integer_weights(weight, 3)
    found = sketch_batch(device_dense(runtime, values), weight, capacity=9, weight_exponent=3)
    for feature, column in enumerate(reference.columns(DenseRows(values))):
        own = slice(*found.table.offsets[feature : feature + 2])
        bits, cells = reference.key_counts([x for _, x in column], [[int(units[row])] for row, _ in column], 9)
        assert found.table.bits[feature] == bits
        assert list(zip(found.table.lower[own].tolist(), found.table.upper[own].tolist(),
                        found.table.counts[own].tolist(), strict=True)) == cells  # fmt: skip


def test_a_further_value_stands_for_missing(runtime: Runtime, rng: np.random.Generator) -> None:
    values = rng.integers(-2, 3, (500, 3)).astype(np.float32)
    hidden = np.where(values == 0, np.float32(np.nan), values)
    found = sketch_batch(device_dense(runtime, values, missing=0.0), capacity=50)
    assert dump(found) == dump(sketch_batch(DenseRows(hidden), capacity=50))


@pytest.mark.parametrize(("n", "columns"), [(0, 2), (1, 1), (3, 70), (40_000, 1)])
def test_shapes(runtime: Runtime, n: int, columns: int, rng: np.random.Generator) -> None:
    """Nothing, one value, more series than a batch, rows enough to be sampled first."""
    values = rng.standard_normal((n, columns)).astype(np.float32)
    found = sketch_batch(device_dense(runtime, values), capacity=1 << 11)
    assert dump(found) == dump(sketch_batch(DenseRows(values), capacity=1 << 11))


@pytest.mark.parametrize("first_bits", [5, 9, 14])
def test_levels(runtime: Runtime, first_bits: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tree is cut into levels; narrow ones below many cells."""
    monkeypatch.setattr(gpu, "FIRST_BITS", first_bits)
    monkeypatch.setattr(gpu, "NEXT_BITS", 9 if first_bits == 14 else 14)
    monkeypatch.setattr(gpu, "MORE_NEXT_BITS", 16)
    monkeypatch.setattr(gpu, "MORE_CELLS", 20)
    values = table(400, rng)
    for capacity in (5, 64, 399):
        found = sketch_batch(device_dense(runtime, values), capacity=capacity)
        assert dump(found) == dump(sketch_batch(DenseRows(values), capacity=capacity))


@pytest.mark.gpu
def test_many_rows(rng: np.random.Generator) -> None:
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    values = table(1_000_000, rng)
    capacity = sketch.default_capacity(256, values.shape[1])
    expected = sketch_batch(DenseRows(values), capacity=capacity)
    for order in (values, np.asfortranarray(values)):
        assert dump(sketch_batch(device_dense(get_runtime(), order), capacity=capacity)) == dump(expected)


def test_thin_columns_all_of_whose_rows_weigh_nothing(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "MANY_THIN", 1)
    host = sparse(np.array([[1, np.nan, np.nan], [np.nan, 2, np.nan], [3, 4, np.nan]], np.float32))
    weight = np.zeros(3, np.float32)
    expected = sketch_batch(host, weight, capacity=8, weight_exponent=40)
    assert dump(sketch_batch(device_sparse(runtime, host), weight, capacity=8, weight_exponent=40)) == dump(expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_columns_without_any_value(runtime: Runtime, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "MANY_THIN", 1)
    host = sparse(np.full((5, 4), np.nan, np.float32))
    weight, exponent = (np.ones(5, np.float32), 40) if weighted else (None, None)
    expected = sketch_batch(host, weight, capacity=8, weight_exponent=exponent)
    found = sketch_batch(device_sparse(runtime, host), weight, capacity=8, weight_exponent=exponent)
    assert dump(found) == dump(expected)


@pytest.mark.parametrize(("n_columns", "scratch", "free", "n_sorted"), [
    (660, sys.maxsize, 1 << 30, 650), (660, 3_000_000, 1 << 30, 650), (660, 200_000, 1 << 30, 650),
    (132, sys.maxsize, 1 << 30, 130), (132, sys.maxsize, 20_000, 0), (132, 10_000, 1 << 30, 0),
    (132, 600_000, 20_000, 0),
])  # fmt: skip
def test_hundreds_of_thin_columns_are_sorted(
    n_columns: int, scratch: int, free: int, n_sorted: int, runtime: Runtime, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together, where there is room for that, beside columns that have more values than cells.

    Without room each is counted by itself, which takes the emulation 20 ms: a fifth of the columns, in a fifth of the
    room, where so few count as hundreds.
    """
    shape = 300, n_columns
    values = np.where(rng.random(shape) < 0.03, rng.integers(-5, 5, shape), np.nan).astype(np.float32)
    values[:, 7::66] = rng.standard_normal((300, n_columns // 66))
    host = sparse(values)
    found: list[int] = []

    def noted(runtime: Runtime, source: Any, columns: Any, *more: Any) -> Any:
        found.append(len(columns))
        return gpu.count_thin(runtime, source, columns, *more)

    if n_columns < sketch.MANY_THIN:
        monkeypatch.setattr(sketch, "MANY_THIN", n_columns - n_columns // 66)
    monkeypatch.setattr(sketch, "count_thin", noted)
    monkeypatch.setattr(type(runtime), "free_bytes", free)
    capacities, columns = np.full(n_columns, 64, np.int64), np.arange(n_columns)
    wanted = sketch.Counting(columns, capacities, scratch_bytes=scratch)
    counted, missing = sketch.count_on_device([(device_sparse(runtime, host), np.empty(0, np.int64))], wanted)
    expected = sketch_batch(host, capacity=64)
    assert sum(found) == n_sorted
    assert dump(DataSketch(counted, missing)) == dump(expected)
