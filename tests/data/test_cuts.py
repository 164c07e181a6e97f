"""Cut points: exact for few values, within the promised rank error for many, equal for any partitioning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import sketch as reference

from daskboost.data.cuts.cell_counts import Refinement
from daskboost.data.cuts.cut_points import Cuts, choose_borders, make_cuts
from daskboost.data.cuts.cut_search import find_cuts
from daskboost.data.cuts.sketch import (
    DataSketch,
    default_capacity,
    integer_weights,
    refine_batch,
    sketch_batch,
    weight_exponent,
)
from daskboost.data.input.row_batch import DenseRows, SparseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.dtypes import Float32, Int64
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum

unhurried = settings(deadline=None, max_examples=150)
RANK_ERROR = 0.2


def cuts_of(values: Float32, max_bin: int, weight: Float32 | None = None, capacity: int | None = None) -> Cuts:
    """Cut points of a matrix, or of one column."""
    rows = DenseRows(np.ascontiguousarray(values if values.ndim == 2 else values[:, None]))
    exponent = None if weight is None else weight_exponent(ExactSum.of(weight).value())
    return cuts_of_batches([RowBatch(rows, RowColumns(weight=weight))], max_bin, exponent, capacity)


def cuts_of_batches(batches: list[RowBatch], max_bin: int, exponent: int | None, capacity: int | None = None,
                    max_workers: int = 1) -> Cuts:  # fmt: skip
    """Cut points of rows that lie in several partitions."""
    cells = default_capacity(max_bin, batches[0].features.n_features) if capacity is None else capacity
    options: dict[str, Any] = {"weight_exponent": exponent, "max_workers": max_workers}

    def refine(refinement: Refinement) -> DataSketch:
        return reduce(add, [
            refine_batch(rows.features, rows.columns.weight, refinement, **options) for rows in batches
        ])  # fmt: skip

    sketch = reduce(add, [
        sketch_batch(rows.features, rows.columns.weight, capacity=cells, **options) for rows in batches
    ])  # fmt: skip
    return find_cuts(sketch, refine, max_bin)


def same(first: Cuts, second: Cuts) -> bool:
    fields = ("values", "offsets", "has_missing")
    return all(getattr(first, name).tobytes() == getattr(second, name).tobytes() for name in fields)


def bin_weights(values: Float32, weights: Int64, cuts: Float32) -> tuple[Int64, Int64]:
    """Weight and number of distinct values of each bin."""
    bins = np.searchsorted(cuts, values, side="right")
    distinct = np.searchsorted(cuts, np.unique(values), side="right")
    sums = np.zeros(len(cuts) + 1, np.int64)
    np.add.at(sums, bins, weights)
    return sums, np.bincount(distinct, minlength=len(cuts) + 1)


@unhurried
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30))
def test_few_distinct_values_get_a_bin_each_at_their_midpoints(values: list[float]) -> None:
    array = np.array(values, np.float32)
    distinct = np.unique(array)
    cuts = cuts_of(array, 30).of(0)
    assert len(cuts) == len(distinct) - 1
    low, high = distinct[:-1], distinct[1:]
    assert ((low < cuts) & (cuts <= high)).all()
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    assert ((cuts == middle) | (middle == low)).all()
    assert not (np.signbit(cuts) & (cuts == 0)).any()


def test_neighbouring_floats_are_told_apart() -> None:
    tiny = np.finfo(np.float32).smallest_subnormal
    largest = np.finfo(np.float32).max
    values = np.array(
        [-largest, -tiny, -0.0, 0.0, tiny, 2 * tiny, 1, np.nextafter(np.float32(1), 2), largest], np.float32
    )
    cuts = cuts_of(values, 8).of(0)
    assert np.searchsorted(cuts, values, side="right").tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7]


Shape = Callable[[np.random.Generator, int], np.ndarray]
SHAPES: dict[str, Shape] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.random(n),
    "lognormal": lambda rng, n: rng.lognormal(0, 10, n),
    "narrow band": lambda rng, n: 1000 + rng.random(n),
    "narrow band and outliers": lambda rng, n: np.where(
        rng.random(n) < 0.5, 1 + rng.random(n) / 9, rng.normal(0, 1e20, n)
    ),
    "narrow band and all magnitudes": lambda rng, n: np.where(
        rng.random(n) < 0.9, 7 + rng.random(n) / 99, 2.0 ** rng.uniform(-126, 127, n)
    ),
    "integers": lambda rng, n: rng.integers(0, 50_000, n),
    "many equal values": lambda rng, n: rng.integers(0, 600, n),
    "denormals": lambda rng, n: rng.integers(0, 2**20, n) * 2.0**-149,
}


@pytest.mark.parametrize("max_bin", [2, 16, 256, 4096])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_without_heavy_values_lie_within_the_rank_error(
    name: str, max_bin: int, weighted: bool, rng: np.random.Generator
) -> None:
    n = 100_000
    values = SHAPES[name](rng, n).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, n).astype(np.float32) if weighted else None
    units = np.ones(n, np.int64) if weight is None else integer_weights(weight, 20)
    cuts = cuts_of(values, max_bin, weight, capacity=max(8 * max_bin, 512))
    distinct, inverse = np.unique(values, return_inverse=True)
    if len(distinct) <= max_bin:
        assert len(cuts.of(0)) == len(distinct) - 1
        return
    heaviest = np.bincount(inverse, units).max()
    assert heaviest * max_bin < units.sum(), "a value as heavy as a bin moves the quantiles to compare with"
    assert cuts.n_bins.tolist() == [max_bin]
    assert max(reference.rank_errors(values, units, cuts.of(0), max_bin)) <= RANK_ERROR / max_bin


@pytest.mark.parametrize("max_bin", [8, 64, 256])
def test_heavy_values_get_a_bin_of_their_own_and_the_rest_is_shared(max_bin: int, rng: np.random.Generator) -> None:
    n = 100_000
    values = np.where(rng.random(n) < 0.5, 0.25, rng.random(n)).astype(np.float32)
    values[rng.random(n) < 0.2] = 0.75
    cuts = cuts_of(values, max_bin)
    weights, distinct = bin_weights(values, np.ones(n, np.int64), cuts.of(0))
    assert cuts.n_bins.tolist() == [max_bin]
    single = distinct == 1
    assert set(np.searchsorted(cuts.of(0), [0.25, 0.75], side="right")) == set(np.flatnonzero(single))
    # The continuous values between the heavy ones: equal shares, but for three runs divided into whole bins.
    mean = weights[~single].sum() / (max_bin - 2)
    assert weights[~single].max() <= mean * (1 + 4 / max_bin + RANK_ERROR)


def test_weights_over_twelve_orders_of_magnitude(rng: np.random.Generator) -> None:
    n = 50_000
    values = rng.standard_normal(n).astype(np.float32)
    weight = (10 ** rng.uniform(-6, 6, n)).astype(np.float32)
    units = integer_weights(weight, weight_exponent(ExactSum.of(weight).value()))
    cuts = cuts_of(values, 64, weight, capacity=512).of(0)
    assert len(cuts) == 63
    weights, distinct = bin_weights(values, units, cuts)
    assert (weights[distinct > 1] <= units.sum() / 64 * (1 + 2 * RANK_ERROR)).all()


def test_rows_of_weight_zero_do_not_shape_bins() -> None:
    values = np.array([1, 2, 3, 4, np.nan], np.float32)
    cuts = cuts_of(values, 8, np.array([1, 0, 1, 1, 0], np.float32))
    assert cuts.values.tolist() == [2.0, 3.5]
    assert cuts.has_missing.tolist() == [True]


def test_features_without_values_or_of_one_value_have_one_bin() -> None:
    values = np.array([[np.nan, 3, 1], [np.nan, 3, np.nan]], np.float32)
    cuts = cuts_of(values, 4)
    assert cuts.n_bins.tolist() == [1, 1, 1]
    assert cuts.has_missing.tolist() == [True, False, True]
    assert same(cuts_of(values[:0], 4), Cuts(cuts.values, cuts.offsets, np.zeros(3, bool)))


@pytest.mark.parametrize("weighted", [False, True])
def test_partitions_storage_and_threads_leave_no_trace(weighted: bool, rng: np.random.Generator) -> None:
    n = 20_000
    columns = [shape(rng, n) for shape in SHAPES.values()]
    values = np.stack(columns, axis=1).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    weight = rng.random(n).astype(np.float32) if weighted else None
    whole = cuts_of(values, 100, weight, capacity=500)
    exponent = None if weight is None else weight_exponent(ExactSum.of(weight).value())
    order = rng.permutation(n)
    for n_parts, workers in ((1, 2), (7, 1), (50, 2)):
        batches = []
        for i, rows in enumerate(np.array_split(order, n_parts)):
            part = values[rows]
            present = ~np.isnan(part)
            indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
            csr = SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), part[present], part.shape[1])
            own: RowColumns[Any] = RowColumns(weight=None if weight is None else weight[rows])
            batches.append(RowBatch(csr if i % 2 else DenseRows(part), own))
        assert same(cuts_of_batches(batches, 100, exponent, 500, workers), whole)


@unhurried
@given(st.lists(st.integers(1, 50), min_size=3, max_size=60), st.data())
def test_borders_are_as_many_as_asked_and_single_out_heavy_cells(weights: list[int], data: st.DataObject) -> None:
    max_bin = data.draw(st.integers(2, len(weights) - 1))
    borders = choose_borders(np.array(weights), max_bin)
    assert len(borders) == max_bin - 1
    assert (np.diff([0, *borders, len(weights)]) > 0).all()
    np.testing.assert_array_equal(choose_borders(np.array(weights) << 9, max_bin), borders)  # rows as weights


def test_borders_of_equal_cells_are_balanced() -> None:
    sums = np.diff(np.concatenate([[0], choose_borders(np.ones(1000, np.int64), 256), [1000]]))
    assert sorted(set(sums.tolist())) == [3, 4, 5] or sorted(set(sums.tolist())) == [3, 4]


def test_more_heavy_cells_than_the_bins_can_part_keep_their_borders_where_most_weighs() -> None:
    weights = np.array([100, 1, 100, 30, 100, 1, 100, 1])
    # Four heavy cells leave one bin for four runs: the heaviest run gets it, the others join a neighbour.
    assert choose_borders(weights, 5).tolist() == [1, 3, 4, 5]


@pytest.mark.parametrize("name", ["higgs_11k", "california_housing", "covtype_20k", "letter"])
def test_real_columns(name: str, bundled_data: Path) -> None:
    import pyarrow.parquet as pq

    frame = pq.read_table(bundled_data / f"{name}.parquet").to_pandas().select_dtypes("number")
    values = np.ascontiguousarray(frame.to_numpy(np.float32))
    for max_bin in (16, 256):
        cuts = cuts_of(values, max_bin)
        for feature in range(values.shape[1]):
            column = values[:, feature][~np.isnan(values[:, feature])]
            _, distinct = bin_weights(column, np.ones(len(column), np.int64), cuts.of(feature))
            n_distinct = len(np.unique(column))
            assert cuts.n_bins[feature] == min(max_bin, n_distinct)
            assert (distinct >= 1).all()
            heaviest = np.unique(column, return_counts=True)[1].max()
            if n_distinct > max_bin and heaviest * max_bin < len(column):
                errors = reference.rank_errors(column, np.ones(len(column), np.int64), cuts.of(feature), max_bin)
                assert max(errors) <= RANK_ERROR / max_bin


@pytest.mark.parametrize("max_bin", [1, 65_536])
def test_max_bin_out_of_range_is_refused(max_bin: int) -> None:
    cells = sketch_batch(DenseRows(np.ones((2, 1), np.float32)), capacity=4).cells()
    with pytest.raises(ParameterError, match=rf"max_bin: {max_bin} is out of range; choose 2 to 65535"):
        make_cuts(cells, max_bin)


def test_the_largest_max_bin() -> None:
    values = np.random.default_rng(0).random(200_000).astype(np.float32)
    cuts = cuts_of(values, 65_535)
    assert cuts.n_bins.tolist() == [65_535]


GOOD = Cuts(np.array([1, 2, 0], np.float32), np.array([0, 2, 2, 3], np.int32), np.zeros(3, bool))


def test_validate_returns_good_cuts() -> None:
    assert GOOD.validate() is GOOD
    nothing = Cuts(np.empty(0, np.float32), np.zeros(3, np.int32), np.zeros(2, bool))
    assert nothing.validate() is nothing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.array([1.0, 2, 0])}, "are not cut points"),
        ({"has_missing": np.zeros(2, bool)}, "are not cut points"),
        ({"values": np.array([[1], [2], [0]], np.float32)}, "are not cut points"),
        ({"offsets": np.array([0, 2, 1, 3], np.int32)}, "do not divide the 3 values"),
        ({"offsets": np.array([0, 2, 2, 4], np.int32)}, "do not divide the 3 values"),
        ({"offsets": np.array([1, 2, 2, 3], np.int32)}, "do not divide the 3 values"),
        ({"values": np.array([1, np.nan, 0], np.float32)}, "contain NaN or infinity"),
        ({"values": np.array([1, 1, 0], np.float32)}, "not strictly increasing"),
    ],
)
def test_validate_refuses(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=f"cuts: .*{message}"):
        replace(GOOD, **changes).validate()


def test_validate_refuses_more_bins_than_symbols() -> None:
    cuts = Cuts(np.arange(65_535, dtype=np.float32), np.array([0, 65_535], np.int32), np.zeros(1, bool))
    with pytest.raises(DataError, match="a feature has 65536 bins; at most 65535 are allowed"):
        cuts.validate()
