"""Quantizing: every encoding holds the bins that the naive twin counts one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import quantize as naive

from daskboost.data.chunks.chunk import CsrChunk, DenseChunk, QuantizedChunk
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, Encoding, Layout, Packing, choose_layout
from daskboost.data.chunks.quantizer import Quantizer
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows, Features, SparseRows
from daskboost.data.input.row_columns import RowColumns
from daskboost.errors import DataError


def random_cuts(rng: np.random.Generator, n_features: int, max_bin: int) -> Cuts:
    per_feature = [
        np.unique(rng.normal(size=rng.integers(0, max_bin)).round(2).astype(np.float32)) for _ in range(n_features)
    ]
    offsets = np.concatenate([[0], np.cumsum([len(c) for c in per_feature])]).astype(np.int32)
    return Cuts(np.concatenate(per_feature), offsets, np.ones(n_features, bool))


def random_rows(rng: np.random.Generator, cuts: Cuts, n_rows: int, missing: float) -> DenseRows:
    """Values of which many lie exactly on cut points, and signed zeros."""
    values = rng.normal(size=(n_rows, cuts.n_features)).round(2).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = -0.0
    values[rng.random(values.shape) < missing] = np.nan
    return DenseRows(values)


def to_sparse(rows: DenseRows) -> SparseRows:
    present = ~np.isnan(rows.values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), rows.values[present], rows.n_features)


def quantize(features: Features, cuts: Cuts, layout: Layout, first_row: int, threads: int = 1) -> QuantizedChunk:
    return Quantizer.of(cuts, layout).quantize(features, first_row, threads)


def assert_bins(chunk: QuantizedChunk, features: Features, cuts: Cuts) -> None:
    if isinstance(chunk, DenseChunk):
        np.testing.assert_array_equal(chunk.symbols(), naive.symbols(features, cuts))
        return
    indptr, bins = chunk.global_bins()
    expected_indptr, expected_bins = naive.global_bins(features, cuts)
    np.testing.assert_array_equal(indptr, expected_indptr)
    np.testing.assert_array_equal(bins, expected_bins)
    assert indptr.dtype == np.int64 and bins.dtype == np.int32


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(0, 300),
    n_features=st.integers(1, 12),
    max_bin=st.sampled_from([1, 2, 17, 255, 400]),
    missing=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    encoding=st.sampled_from(["dense", "csr"]),
    packing=st.sampled_from(["aligned", "tight", "common"]),
    threads=st.integers(1, 3),
)
@settings(deadline=None)
def test_every_encoding_equals_the_naive_twin(
    seed: int,
    n_rows: int,
    n_features: int,
    max_bin: int,
    missing: float,
    encoding: Encoding,
    packing: Packing,
    threads: int,
) -> None:
    rng = np.random.default_rng(seed)
    cuts = random_cuts(rng, n_features, max_bin)
    dense = random_rows(rng, cuts, n_rows, missing)
    layout = choose_layout(cuts, cuts.has_missing, n_rows=9, n_entries=9, encoding=encoding, packing=packing)
    for features in (dense, to_sparse(dense)):
        chunk = quantize(features, cuts, layout, 7, threads)
        assert (chunk.first_row, chunk.n_rows) == (7, n_rows)
        assert_bins(chunk, features, cuts)


def test_a_value_on_a_cut_point_belongs_to_the_bin_above() -> None:
    cuts = Cuts(np.array([-1, 0, 2.5], np.float32), np.array([0, 3], np.int32), np.array([True]))
    values = np.array([-9, -1, -0.5, -0.0, 0, 2.4, 2.5, 9, np.nan], np.float32)
    chunk = quantize(DenseRows(values[:, None]), cuts, DenseLayout.aligned(np.array([5])), 0)
    assert chunk.symbols()[:, 0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_65535_bins_and_missing_fill_16_bits() -> None:
    cuts = Cuts(np.arange(65_534, dtype=np.float32), np.array([0, 65_534], np.int32), np.array([True]))
    values = np.array([-1, 0, 65_532, 65_533, np.nan], np.float32)[:, None]
    for packing in ("aligned", "tight"):
        layout = choose_layout(cuts, cuts.has_missing, n_rows=5, n_entries=5, encoding="dense", packing=packing)
        chunk = quantize(DenseRows(values), cuts, layout, 0)
        assert chunk.symbols()[:, 0].tolist() == [0, 1, 65_533, 65_534, 65_535]


def test_a_missing_value_seen_only_in_evaluation_data_has_its_symbol() -> None:
    cuts = Cuts(np.zeros(3, np.float32), np.arange(4, dtype=np.int32), np.zeros(3, bool))
    seen = np.array([False, True, False])
    rows = DenseRows(np.array([[1, np.nan, -1]], np.float32))
    layout = choose_layout(cuts, seen, n_rows=1, n_entries=2, encoding="dense", packing="tight")
    assert layout == DenseLayout(np.array([1, 2, 1], np.uint8))
    assert quantize(rows, cuts, layout, 0).symbols().tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("to_features", [lambda rows: rows, to_sparse])
def test_a_missing_value_without_a_symbol_is_refused(to_features: object, threads: int) -> None:
    cuts = Cuts(np.zeros(2, np.float32), np.arange(3, dtype=np.int32), np.zeros(2, bool))
    values = np.ones((40, 2), np.float32)
    values[3, 1] = np.nan
    with pytest.raises(DataError, match=r"feature 1 has missing values.* pass has_missing"):
        quantize(to_features(DenseRows(values)), cuts, DenseLayout.tight(np.array([2, 2])), 0, threads)  # type: ignore[operator]


def test_rows_with_other_features_than_the_cuts_are_refused() -> None:
    cuts = Cuts(np.zeros(0, np.float32), np.zeros(3, np.int32), np.zeros(2, bool))
    with pytest.raises(DataError, match="the rows have 3 features, the cuts have 2"):
        quantize(DenseRows(np.ones((1, 3), np.float32)), cuts, CsrLayout(8), 0)
    with pytest.raises(DataError, match="the layout has 3 features, the cuts have 2"):
        Quantizer.of(cuts, DenseLayout.aligned(np.ones(3, np.int64)))


def test_a_chunk_of_too_many_entries_is_refused_before_any_memory_is_taken() -> None:
    cuts = Cuts(np.zeros(0, np.float32), np.zeros(2, np.int32), np.ones(1, bool))
    values = np.broadcast_to(np.float32(0), (1 << 32,))  # takes no memory
    rows = SparseRows(np.array([0, 1 << 32]), np.broadcast_to(np.int32(0), values.shape), values, 1)
    with pytest.raises(DataError, match=r"4294967296 entries, more than 2\*\*32 - 1: use a smaller chunk_rows"):
        quantize(rows, cuts, CsrLayout(32), 0)


def test_a_layout_too_narrow_for_the_cuts_is_refused() -> None:
    cuts = Cuts(np.arange(4, dtype=np.float32), np.array([0, 4], np.int32), np.zeros(1, bool))
    with pytest.raises(DataError, match=r"feature 0 has 5 bins, more than the layout's 2 bits"):
        Quantizer.of(cuts, DenseLayout.tight(np.array([4])))


def test_aligned_symbols_do_not_copy_and_the_wrong_accessor_says_so() -> None:
    rng = np.random.default_rng(0)
    cuts = random_cuts(rng, 3, 20)
    rows = random_rows(rng, cuts, 10, 0.1)
    dense = quantize(rows, cuts, DenseLayout.aligned(np.full(3, 21)), 0)
    csr = quantize(rows, cuts, CsrLayout(32), 0)
    assert np.shares_memory(dense.symbols(), dense.words)
    assert np.shares_memory(csr.global_bins()[1], csr.words)
    assert dense.nbytes == dense.words.nbytes and isinstance(csr, CsrChunk)
    assert csr.nbytes == csr.words.nbytes + csr.indptr.nbytes
    with pytest.raises(TypeError, match=r"a dense chunk has symbols\(\)"):
        dense.global_bins()
    with pytest.raises(TypeError, match=r"a CSR chunk has global_bins\(\)"):
        csr.symbols()


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_rows_that_may_not_be_written_to(encoding: Encoding) -> None:
    rng = np.random.default_rng(5)
    cuts = random_cuts(rng, 3, 20)
    rows = random_rows(rng, cuts, 50, 0.2)
    layout = choose_layout(cuts, cuts.has_missing, n_rows=9, n_entries=9, encoding=encoding)
    for features in (rows, to_sparse(rows)):
        for name in ("values", "indptr", "indices"):
            if hasattr(features, name):
                getattr(features, name).flags.writeable = False
        assert_bins(quantize(features, cuts, layout, 0), features, cuts)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**32))
@settings(deadline=None)
def test_slices_of_rows(first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = random_cuts(rng, 4, 9)
    dense = random_rows(rng, cuts, 50, 0.4)
    start, stop = min(first, second), max(first, second)
    expected = dense.values[start:stop]
    for features in (dense, to_sparse(dense)):
        part = features.part(start, stop)
        assert part.n_rows == stop - start
        np.testing.assert_array_equal(naive.dense_values(part), expected)


@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize("packing", ["aligned", "tight", "common"])
def test_parts_of_chunks(encoding: Encoding, packing: Packing, rng: np.random.Generator) -> None:
    """The bins of some rows, where these were quantized alone; of dense rows without a copy."""
    cuts = random_cuts(rng, 7, 40)
    rows = random_rows(rng, cuts, 331, 0.2)
    layout = choose_layout(
        cuts, np.ones(7, np.bool_), n_rows=331, n_entries=1_000, encoding=encoding, packing=packing
    )
    whole = quantize(rows, cuts, layout, 1_000)
    for begin, end in ((0, 331), (0, 64), (64, 128), (64, 331), (320, 331), (128, 128)):
        expected = quantize(DenseRows(rows.values[begin:end]), cuts, layout, 1_000 + begin)
        found = whole.part(begin, end)
        assert (found.first_row, found.n_rows, found.nbytes) == (1_000 + begin, end - begin, expected.nbytes)
        assert_bins(found, DenseRows(rows.values[begin:end]), cuts)
        assert found.fault(cuts) == ""
        assert np.shares_memory(found.words, whole.words) == (encoding == "dense")


def test_rows_data_is_copied() -> None:
    label, margin = np.arange(6, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(6, 2)
    part = RowColumns(label, None, margin).copied(1, 4)
    assert part.label is not None and part.base_margin is not None and part.weight is None
    assert part.label.tolist() == [1, 2, 3] and part.base_margin.tolist() == margin[1:4].tolist()
    assert not np.shares_memory(part.label, label) and not np.shares_memory(part.base_margin, margin)
