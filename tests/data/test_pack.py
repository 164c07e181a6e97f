"""Bit layouts: packing loses nothing at any width and shape, and layouts are chosen by bytes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.pack import bit_offsets
from reference.quantize import packed_bits

from daskboost.data.chunks.packing import (
    CsrLayout,
    DenseLayout,
    Packing,
    choose_layout,
    pack_csr,
    pack_dense,
    unpack_csr,
    unpack_dense,
)
from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.cpu.threads import by_ranges
from daskboost.errors import DataError


def cuts_with(n_bins: list[int]) -> Cuts:
    n_cuts = np.array(n_bins) - 1
    values = np.concatenate([np.arange(n, dtype=np.float32) for n in n_cuts])
    offsets = np.concatenate([[0], np.cumsum(n_cuts)]).astype(np.int32)
    return Cuts(values, offsets, np.zeros(len(n_bins), bool))


def bits_of(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), bitorder="little")


@st.composite
def dense_symbols(draw: st.DrawFn) -> tuple[DenseLayout, np.ndarray]:
    widths = draw(st.lists(st.integers(1, 16), min_size=1, max_size=9))
    n_rows = draw(st.integers(0, 40))
    layout = DenseLayout(np.array(widths, np.uint8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    symbols = rng.integers(0, 1 << np.array(widths), (n_rows, len(widths))).astype(layout.symbol_dtype)
    return layout, symbols


@given(dense_symbols(), st.integers(1, 3))
@settings(deadline=None)
def test_dense_rows_survive_packing(case: tuple[DenseLayout, np.ndarray], threads: int) -> None:
    layout, symbols = case
    words = pack_dense(symbols, layout, threads)
    unpacked = unpack_dense(words, len(symbols), layout, threads)
    np.testing.assert_array_equal(unpacked, symbols)
    assert unpacked.dtype == layout.symbol_dtype
    assert words.nbytes - 8 < layout.nbytes(len(symbols), 0) <= words.nbytes - 4


@given(dense_symbols())
@settings(deadline=None)
def test_dense_bits_lie_where_the_layout_says(case: tuple[DenseLayout, np.ndarray]) -> None:
    layout, symbols = case
    bits = bits_of(pack_dense(symbols, layout))
    for row, row_symbols in enumerate(symbols.tolist()):
        first = 8 * row * layout.row_stride_bytes
        expected = packed_bits(row_symbols, layout.bits.tolist())
        assert bits[first : first + bit_offsets(layout)[-1]].tolist() == expected


@pytest.mark.parametrize("width", range(1, 17))
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (33, 5), (100, 31)])
def test_every_common_width(width: int, shape: tuple[int, int]) -> None:
    layout = DenseLayout.tight(np.full(shape[1], 1 << width), common=True)
    assert layout.bits.tolist() == [width] * shape[1]
    symbols = np.random.default_rng(width).integers(0, 1 << width, shape).astype(layout.symbol_dtype)
    symbols.flat[-1] = (1 << width) - 1
    for threads in (1, 2):
        np.testing.assert_array_equal(unpack_dense(pack_dense(symbols, layout, threads), shape[0], layout), symbols)


@given(st.integers(1, 32), st.integers(0, 300), st.integers(1, 4), st.integers(0, 2**32))
@settings(deadline=None)
def test_csr_entries_survive_packing(width: int, n_entries: int, threads: int, seed: int) -> None:
    layout = CsrLayout(width)
    bins = np.random.default_rng(seed).integers(0, 1 << width, n_entries).astype(np.uint32)
    words = pack_csr(bins, layout, threads)
    assert bits_of(words)[: n_entries * width].tolist() == packed_bits(bins.tolist(), [width] * n_entries)
    np.testing.assert_array_equal(unpack_csr(words, n_entries, layout, threads), bins)


@pytest.mark.parametrize(("n_bins", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16")])
def test_aligned_symbols_are_a_view(n_bins: int, dtype: str) -> None:
    layout = DenseLayout.aligned(np.array([2, n_bins, 3]))
    words = pack_dense(np.arange(12).reshape(4, 3).astype(layout.symbol_dtype), layout)
    symbols = unpack_dense(words, 4, layout)
    assert symbols.dtype == dtype and np.shares_memory(symbols, words)


def test_widths_at_the_borders() -> None:
    layout = DenseLayout.tight(np.array([1, 2, 3, 4, 5, 255, 256, 257, 65_535, 65_536]))
    assert layout.bits.tolist() == [1, 1, 2, 2, 3, 8, 8, 9, 16, 16]
    assert [CsrLayout.tight(n).bits for n in (1, 3, 4, 255, 256, 2**31 - 1)] == [1, 2, 3, 8, 9, 31]


def test_symbols_count_missing_where_it_occurs() -> None:
    cuts = replace(cuts_with([1, 4, 256]), has_missing=np.array([True, False, True]))
    assert cuts.n_slots.tolist() == [2, 4, 257]


def test_auto_takes_the_smaller_encoding() -> None:
    cuts, has_missing = cuts_with([200] * 100), np.ones(100, bool)
    for packing in ("aligned", "tight", "common"):
        full = choose_layout(cuts, has_missing, n_rows=1000, n_entries=100_000, packing=packing)
        few = choose_layout(cuts, has_missing, n_rows=1000, n_entries=5000, packing=packing)
        assert isinstance(full, DenseLayout) and isinstance(few, CsrLayout)
    assert choose_layout(cuts, has_missing, n_rows=1, n_entries=100, encoding="csr", packing="tight") == CsrLayout(15)
    assert isinstance(choose_layout(cuts, has_missing, n_rows=9, n_entries=1, encoding="dense"), DenseLayout)


def test_tight_widths_differ_and_common_ones_do_not() -> None:
    cuts, none = cuts_with([2, 16, 100]), np.zeros(3, bool)
    expected: dict[Packing, list[int]] = {"aligned": [8, 8, 8], "tight": [1, 4, 7], "common": [7, 7, 7]}
    for packing, bits in expected.items():
        layout = choose_layout(cuts, none, n_rows=10, n_entries=30, encoding="dense", packing=packing)
        assert layout == DenseLayout(np.array(bits, np.uint8))


def test_layouts_compare_by_value() -> None:
    assert DenseLayout.tight(np.array([4, 5])) == DenseLayout(np.array([2, 3], np.uint8))
    assert DenseLayout.tight(np.array([4, 5])) != DenseLayout.tight(np.array([4, 4]))
    assert hash(DenseLayout.tight(np.array([4, 5]))) == hash(DenseLayout(np.array([2, 3], np.uint8)))
    assert DenseLayout.tight(np.array([4])) != CsrLayout(2)


def test_too_many_bins_names_the_feature_and_the_remedy() -> None:
    with pytest.raises(DataError, match=r"feature 1 has 65537 bins .* use max_bin <= 65535"):
        DenseLayout.aligned(np.array([3, 65_537]))


def test_too_many_bins_together_are_refused() -> None:
    n_features = 70_000
    offsets = np.linspace(0, 2**31 - n_features, n_features + 1).astype(np.int32)
    values = np.broadcast_to(np.float32(0), (2**31 - n_features,))  # takes no memory
    with pytest.raises(DataError, match=r"2147483648 bins together, more than 2\*\*31 - 1: use a smaller max_bin"):
        choose_layout(
            Cuts(values, offsets, np.zeros(n_features, bool)), np.zeros(n_features, bool), n_rows=1, n_entries=1
        )


@pytest.mark.parametrize("bits", [np.array([0], np.uint8), np.array([17], np.uint8), np.array([8], np.int64)])
def test_a_dense_layout_refuses_impossible_widths(bits: np.ndarray) -> None:
    with pytest.raises(DataError, match="uint8 from 1 to 16"):
        DenseLayout(bits)


@pytest.mark.parametrize("bits", [0, 33])
def test_a_csr_layout_refuses_impossible_widths(bits: int) -> None:
    with pytest.raises(DataError, match="from 1 to 32"):
        CsrLayout(bits)


@given(st.integers(0, 200), st.integers(1, 9))
def test_ranges_cover_everything_once_and_start_at_multiples_of_8(n: int, threads: int) -> None:
    ranges = by_ranges(lambda start, stop: (start, stop), n, threads)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(n))
    assert len(ranges) <= threads and all(start % 8 == 0 for start, _ in ranges)
