"""The sketch of all features: against the naive twin, in any storage and partitioning, refined where it must be."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import sketch as reference

from daskboost.data.cuts import feature_keys
from daskboost.data.cuts.cell_counts import CellCounts
from daskboost.data.cuts.sketch import (
    DataSketch,
    default_capacity,
    integer_weights,
    refine_batch,
    sketch_batch,
    weight_exponent,
)
from daskboost.data.input.row_batch import DenseRows, Features, SparseRows
from daskboost.dtypes import Float32
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum

unhurried = settings(deadline=None, max_examples=80)


def sparse(values: Float32) -> SparseRows:
    """The same rows as CSR: NaN absent, zeros stored."""
    present = ~np.isnan(values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), values[present], values.shape[1])


def dump(part: DataSketch) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in {**part.table.to_arrays(), "missing": part.missing}.items()}


def merged(parts: Iterable[DataSketch]) -> DataSketch:
    return functools.reduce(DataSketch.__add__, parts)


@st.composite
def matrices(draw: st.DrawFn) -> Float32:
    rows, columns = draw(st.integers(0, 25)), draw(st.integers(1, 4))
    value = st.one_of(st.just(float("nan")), st.sampled_from([0.0, -0.0, 1.0, 7.5, -2.0]), st.floats(-9, 9, width=32))
    values = draw(st.lists(value, min_size=rows * columns, max_size=rows * columns))
    return np.array(values, np.float32).reshape(rows, columns)


@unhurried
@given(matrices(), st.integers(1, 12), st.data())
def test_the_sketch_equals_the_naive_twin(values: Float32, capacity: int, data: st.DataObject) -> None:
    n = len(values)
    weights = data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=n, max_size=n))
    weight = None if weights is None else np.array(weights, np.float32)
    units = np.ones(n, np.int64) if weight is None else integer_weights(weight, 3)
    for features in (DenseRows(values), sparse(values)):
        found = sketch_batch(features, weight, capacity=capacity, weight_exponent=None if weight is None else 3)
        for feature, column in enumerate(reference.columns(features)):
            own = slice(*found.table.offsets[feature : feature + 2])
            counts = [[int(units[row])] for row, _ in column]
            bits, cells = reference.key_counts([value for _, value in column], counts, capacity)
            assert found.table.bits[feature] == bits
            assert found.table.lower[own].tolist() == [low for low, _, _ in cells]
            assert found.table.upper[own].tolist() == [high for _, high, _ in cells]
            assert found.table.counts[own].tolist() == [sums for _, _, sums in cells]
            assert found.missing[feature] == n - len(column)


@pytest.fixture
def table(rng: np.random.Generator) -> Float32:
    n = 3000
    values = np.stack(
        [
            rng.standard_normal(n),
            np.round(rng.standard_normal(n) * 3),
            np.exp(rng.normal(0, 12, n)),
            np.where(rng.random(n) < 0.5, 0, rng.random(n)),
            np.full(n, np.nan),
            np.where(rng.random(n) < 0.7, np.nan, 5 + rng.integers(0, 2000, n) * 2.0**-21),
            np.where(rng.random(n) < 0.99, 1 + 2.0**-20 * rng.random(n), rng.standard_normal(n) * 1e30),
        ],
        axis=1,
    )
    return values.astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_storage_blocks_threads_and_partitions_leave_no_trace(
    table: Float32, weighted: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = rng.random(len(table)).astype(np.float32) if weighted else None
    exponent = weight_exponent(ExactSum.of(weight).value()) if weight is not None else None
    whole = sketch_batch(DenseRows(table), weight, capacity=100, weight_exponent=exponent)
    refinement = whole.cells().heavy(50)
    assert refinement is not None
    finer = refine_batch(DenseRows(table), weight, refinement, weight_exponent=exponent)
    order = rng.permutation(len(table))
    monkeypatch.setattr(feature_keys, "_BLOCK_ROWS", 211)
    monkeypatch.setattr(feature_keys, "_BLOCK_ENTRIES", 500)
    monkeypatch.setattr(feature_keys, "_GROUP_KEYS", 600)
    for storage in (DenseRows, sparse):
        for workers, n_parts in ((1, 1), (3, 5), (2, 40)):
            parts: list[tuple[Features, Float32 | None]] = [
                (storage(table[rows]), None if weight is None else weight[rows])
                for rows in np.array_split(order, n_parts)
            ]
            sketches = [
                sketch_batch(rows, w, capacity=100, weight_exponent=exponent, max_workers=workers) for rows, w in parts
            ]
            assert dump(merged(sketches)) == dump(whole)
            refined = [
                refine_batch(rows, w, refinement, weight_exponent=exponent, max_workers=workers) for rows, w in parts
            ]
            assert dump(merged(refined)) == dump(finer)


def refine(features: DenseRows, max_bin: int, capacity: int) -> tuple[CellCounts, int]:
    """Refined cells, and the passes over the data."""
    cells, passes = sketch_batch(features, capacity=capacity).cells(), 1
    while refinement := cells.heavy(max_bin):
        cells = cells.refined(refinement, refine_batch(features, None, refinement))
        passes += 1
    return cells, passes


@pytest.mark.parametrize("max_bin", [2, 16, 256])
def test_refinement_ends_within_four_passes_with_no_heavy_cell_left(table: Float32, max_bin: int) -> None:
    features = DenseRows(np.tile(table, (20, 1)) + np.float32(0))
    cells, passes = refine(features, max_bin, capacity=1 << 11)
    assert 1 <= passes <= 4
    for feature in range(features.n_features):
        own = slice(*cells.offsets[feature : feature + 2])
        low, high, counts = cells.lower[own], cells.upper[own], cells.counts[own]
        assert (low[1:] > high[:-1]).all()
        assert counts.sum() == (~np.isnan(features.values[:, feature])).sum()
        assert (counts[low < high] <= 0.2 / max_bin * counts.sum()).all()


def test_nested_bands_need_more_than_one_refinement() -> None:
    """Each band holds most of the rows of the one around it, so every pass sees one more of them."""
    rng = np.random.default_rng(1)
    n = 200_000
    width = 2.0 ** -rng.integers(0, 24, n)
    values = ((1 + width * rng.random(n)) * np.exp2(rng.integers(-100, 100, n) * (rng.random(n) < 0.3))).astype(
        np.float32
    )
    cells, passes = refine(DenseRows(values[:, None]), 64, capacity=1 << 9)
    assert passes > 2
    assert cells.heavy(64) is None
    assert cells.counts.sum() == n


def test_well_behaved_data_needs_one_pass(rng: np.random.Generator) -> None:
    n = 200_000
    columns = [
        rng.standard_normal(n),
        rng.random(n),
        rng.lognormal(0, 3, n),
        rng.integers(0, 100_000, n),
        np.where(rng.random(n) < 0.6, 0, rng.exponential(2, n)),
        rng.integers(0, 2, n),
    ]
    features = DenseRows(np.stack(columns, axis=1).astype(np.float32))
    assert refine(features, 256, default_capacity(256, 6))[1] == 1


def test_a_change_between_passes_is_noticed(table: Float32) -> None:
    cells = sketch_batch(DenseRows(table), capacity=50).cells()
    refinement = cells.heavy(50)
    assert refinement is not None
    finer = refine_batch(DenseRows(table[1:]), None, refinement)
    with pytest.raises(DataError, match="it changed between two passes; persist it"):
        cells.refined(refinement, finer)


def test_weights_far_lighter_than_the_heaviest_still_count() -> None:
    weight = np.array([1e6, *[1e-6] * 1000], np.float32)
    exponent = weight_exponent(ExactSum.of(weight).value())
    units = integer_weights(weight, exponent)
    assert 2**60 <= int(units.sum()) < 2**62
    assert units[1:].tolist() == [units[1]] * 1000
    np.testing.assert_allclose(units[1] / units[0], weight[1] / weight[0], rtol=1e-5)


@pytest.mark.parametrize("total", [-1.0, float("nan"), float("inf")])
def test_impossible_totals_of_weights_are_refused(total: float) -> None:
    with pytest.raises(DataError, match=r"total_weight: .* is not a finite sum of weights"):
        weight_exponent(total)


def test_weights_and_their_exponent_come_together(table: Float32) -> None:
    with pytest.raises(DataError, match="weight_exponent: it and weight must be given together"):
        sketch_batch(DenseRows(table), np.ones(len(table), np.float32), capacity=9)
    with pytest.raises(DataError, match="weight_exponent: it and weight must be given together"):
        sketch_batch(DenseRows(table), capacity=9, weight_exponent=1)


def test_weighted_and_unweighted_sketches_do_not_merge(table: Float32) -> None:
    weight = np.ones(len(table), np.float32)
    weighted = sketch_batch(DenseRows(table), weight, capacity=9, weight_exponent=1)
    with pytest.raises(DataError, match="weight_exponent: 1 and None differ"):
        weighted + sketch_batch(DenseRows(table), capacity=9)


@pytest.mark.parametrize(
    ("max_bin", "n_features", "expected"),
    [
        (2, 1, 2**14),
        (256, 28, 2**14),
        (1024, 10, 2**16),
        (65_535, 1, 2**19),
        (256, 10_000, 2**11),
        (2, 10**6, 2**11),
        (256, 2000, 2**13),
    ],
)
def test_default_capacity_bounds_memory(max_bin: int, n_features: int, expected: int) -> None:
    assert default_capacity(max_bin, n_features) == expected
