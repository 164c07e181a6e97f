"""Loops over counted cells equal their naive twins, whichever features one call takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cuts as reference

from daskboost.data.cuts.cell_counts import CellCounts, by_features
from daskboost.data.cuts.cut_points import choose_borders, make_cuts
from daskboost.devices.cpu.cuts import (
    FeatureCells,
    cut_features,
    divide_equally,
    heavy_divisor,
    mark_heavy,
    refine_cells,
)

unhurried = settings(deadline=None, max_examples=100)
Cells = list[list[reference.Cell]]
weights_of_cells = st.lists(st.integers(1, 60), min_size=2, max_size=50)


def arrays(features: Cells) -> FeatureCells:
    """Cells of all features as kernels take them."""
    offsets = np.cumsum([0, *map(len, features)]).astype(np.int64)
    flat = np.array([cell for own in features for cell in own], np.int64).reshape(-1, 3)
    return FeatureCells(offsets, flat[:, 0].astype(np.uint32), flat[:, 1].astype(np.uint32), flat[:, 2].copy())


def features_of(cells: FeatureCells) -> Cells:
    flat = list(zip(*(column.tolist() for column in cells[1:]), strict=True))
    return [flat[begin:end] for begin, end in zip(cells.offsets[:-1], cells.offsets[1:], strict=True)]


@st.composite
def some_cells(draw: st.DrawFn) -> Cells:
    """Features of a few cells, some of them none; cells of a feature do not overlap."""
    features = []
    for _ in range(draw(st.integers(1, 4))):
        keys = sorted(draw(st.sets(st.integers(0, 2**32 - 1), max_size=16)))
        pairs = list(zip(keys[::2], keys[1::2], strict=False))
        features.append([
            (low, draw(st.sampled_from([low, high])), draw(st.integers(1, 2**40))) for low, high in pairs
        ])  # fmt: skip
    return features


@unhurried
@given(some_cells(), st.integers(1, 8), st.data())
def test_heavy_cells_are_marked_and_refined(features: Cells, parts: int, data: st.DataObject) -> None:
    cells, n = arrays(features), len(features)
    is_heavy, n_heavy = np.empty(len(cells.lower), np.bool_), np.empty(n, np.int64)
    split = data.draw(st.integers(0, n))
    for first, last in ((0, split), (split, n)):
        mark_heavy(cells, parts, first, last, is_heavy, n_heavy)
    expected = [reference.heavy(own, parts) for own in features]
    assert is_heavy.tolist() == [heavy for own in expected for heavy in own]
    assert n_heavy.tolist() == [sum(own) for own in expected]
    finer = [  # each in two, if it weighs enough
        [part for (low, high, count), heavy in zip(own, marks, strict=True) if heavy
         for part in ([(low, low, 1), (high, high, count - 1)] if count > 1 else [(low, high, count)])]
        for own, marks in zip(features, expected, strict=True)
    ]  # fmt: skip
    refined = [reference.refined(*each) for each in zip(features, expected, finer, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(n_heavy)])
    blank = arrays(refined)
    out = FeatureCells(blank.offsets, blank.lower * 0, blank.upper * 0, blank.counts * 0)
    ranges = ((split, n), (0, split))
    assert all([refine_cells(cells, offsets, cells.lower[is_heavy], arrays(finer), *each, out) for each in ranges])
    assert features_of(out) == refined
    if n_heavy.any():  # something changed meanwhile
        short = [[(low, high, count + 1) for low, high, count in own] for own in finer]
        assert not refine_cells(cells, offsets, cells.lower[is_heavy], arrays(short), 0, n, out)


@unhurried
@given(weights_of_cells, st.integers(1, 7), st.data())
def test_equal_bins(weights: list[int], scale: int, data: st.DataObject) -> None:
    bins = data.draw(st.integers(2, len(weights)))
    beside = np.array([5, *weights, 7], np.int64) * scale
    divisor, is_heavy = heavy_divisor(beside, 1, len(beside) - 1, bins)
    common = scale * math.gcd(*weights)
    assert divisor == common
    assert is_heavy == (max(weights) * scale // common >= -(-sum(weights) * scale // common // bins))
    borders = np.empty(bins - 1, np.int64)
    divide_equally(beside, 1, len(beside) - 1, divisor, borders)
    assert borders.tolist() == reference.equal_borders(weights, bins)


@unhurried
@given(st.lists(weights_of_cells, min_size=1, max_size=4), st.integers(2, 30), st.data())
def test_features_are_cut_as_borders_are_chosen(features: list[list[int]], bins: int, data: st.DataObject) -> None:
    offsets = np.cumsum([0, *map(len, features)]).astype(np.int64)
    counts, n = np.array([weight for own in features for weight in own], np.int64), len(features)
    cut_after, is_left = np.ones(len(counts), np.bool_), np.zeros(n, np.bool_)
    split = data.draw(st.integers(0, n))
    for first, last in ((0, split), (split, n)):
        cut_features(offsets, counts, np.empty(bins - 1, np.int64), first, last, cut_after, is_left)
    for feature, own in enumerate(features):
        found = np.flatnonzero(cut_after[offsets[feature] : offsets[feature + 1]]) + 1
        if len(own) <= bins:
            assert found.tolist() == list(range(1, len(own) + 1))
        elif is_left[feature]:
            assert not len(found)
        else:
            assert found.tolist() == choose_borders(np.array(own), bins).tolist() == reference.equal_borders(own, bins)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_leave_no_trace(threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daskboost.data.cuts.cell_counts.LEAST_CELLS", 64)
    monkeypatch.setattr("daskboost.data.cuts.cut_points.MANY_CELLS", 0)
    lengths = rng.integers(0, 90, 70)
    n = int(lengths.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.concatenate([np.arange(length) for length in lengths])
    lower = ((1 << 31) + starts * 1000 + rng.integers(0, 500, n)).astype(np.uint32)
    heavy = rng.integers(1, 50, n) ** 4
    cells = CellCounts(offsets, lower, lower + 400, np.where(rng.random(n) < 0.5, 1, heavy), np.zeros(70, bool))
    assert len(by_features(lambda first, last: None, offsets, threads)) > 1
    alone, together = (make_cuts(cells, 16, each) for each in (1, threads))
    assert alone.values.tobytes() == together.values.tobytes()
    assert alone.offsets.tobytes() == together.offsets.tobytes()
    monkeypatch.setattr("daskboost.data.cuts.cut_points.MANY_CELLS", n + 1)
    assert make_cuts(cells, 16).values.tobytes() == alone.values.tobytes()
    one, many = (cells.heavy(4, each) for each in (1, threads))
    assert one is not None and many is not None
    for name in ("offsets", "lower", "upper"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes()
