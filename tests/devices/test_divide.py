"""Rows of a node are divided, whole or in pieces, against the naive twin."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from reference import partition as reference

from daskboost.devices.cpu import partition
from daskboost.devices.cpu.views import DenseView, SlotLayout, SparseView
from daskboost.devices.row_order import RowOrder

divide: Any = numba.njit(lambda *given: partition.divide(*given))  # which are for compiled code alone
put_back: Any = numba.njit(lambda *given: partition.put_back(*given))
N_BINS, MISSING_LEFT = np.array([7, 3], np.int32), (True, False)


def _views(symbols: Any, layout: SlotLayout) -> list[Any]:
    """Return the same rows as a matrix, with and without a copy by column, and as lists of slots."""
    present = symbols < N_BINS
    slots = (layout.offsets[:-1] + symbols)[present].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return [DenseView(symbols, layout), SparseView(indptr, slots, layout)]


def _rows(order: Any) -> RowOrder:
    return RowOrder(order.astype(np.uint32), (order * 3).astype(np.int32))


@pytest.mark.parametrize("pieces", [[(5, 95)], [(5, 40), (40, 41), (41, 95)]], ids=["whole", "pieces"])
@pytest.mark.parametrize("view", [0, 1], ids=["dense", "sparse"])
@pytest.mark.parametrize("feature", [0, 1])
@pytest.mark.parametrize("default_left", MISSING_LEFT)
def test_divided_rows_are_the_twins(view: int, feature: int, default_left: bool, pieces: Any) -> None:
    rng = np.random.default_rng(view + 2 * feature)
    symbols = rng.integers(0, N_BINS + 1, (100, 2)).astype(np.uint8)
    layout = SlotLayout(np.array([0, 8, 12], np.int64), N_BINS)
    bins = _views(symbols, layout)[view].bins
    order = rng.permutation(100)
    rows, spare = _rows(order), _rows(np.zeros(100, np.int64))
    split = partition.OneSplit(feature, 1, default_left, np.zeros((1, 1), np.uint32), 0)
    wanted = reference.split(order[5:95].tolist(), symbols[:, feature], 1, int(N_BINS[feature]), default_left)
    if len(pieces) == 1:
        n_left = int(divide(bins, rows, rows, spare, (5, 95), split))
        put_back(spare, rows, 5 + n_left, 95, 0, 5, 5 + n_left)
    else:
        found = [int(divide(bins, rows, spare, spare, piece, split)) for piece in pieces]
        to_left, to_right = 5, 5 + sum(found)
        for (begin, end), n_left in zip(pieces, found, strict=True):
            put_back(spare, rows, begin, end, n_left, to_left, to_right)
            to_left, to_right = to_left + n_left, to_right + end - begin - n_left
    expected = np.concatenate([order[:5], *wanted, order[95:]])
    assert (rows.order == expected).all()
    assert (rows.pairs == 3 * expected).all()
