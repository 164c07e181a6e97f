"""Narrowed histograms add up to what the wide ones do; shares cover all features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu.views import SlotLayout
from daskboost.fit.peers import feature_shares, narrow, total

EDGES = [0, 1, -1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**40]


@given(st.lists(st.sampled_from(EDGES), min_size=1, max_size=12))
def test_narrow_keeps_every_value_and_is_narrow_where_it_can(values: list[int]) -> None:
    sums = np.array(values, np.int64).reshape(-1, 1, 1)
    found = narrow(sums, Buffers())
    np.testing.assert_array_equal(found, sums)
    assert found.shape == sums.shape
    fits = all(-(2**31) <= value < 2**31 for value in values)  # the naive twin
    assert found.dtype == (np.int32 if fits else np.int64)


@pytest.mark.parametrize("n_parts", [1, 2, 3, 5])
def test_total_adds_wide_and_narrow_parts(n_parts: int) -> None:
    rng = np.random.default_rng(n_parts)
    wide = [rng.integers(-limit, limit, (3, 4, 2)) for limit in ([9, 2**33] * 3)[:n_parts]]
    found = total([narrow(part, Buffers()) for part in wide], Buffers())
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.sum(wide, axis=0))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=10), st.integers(1, 15))
def test_shares_are_consecutive_ranges_of_all_features(bins: list[int], n_peers: int) -> None:
    n_bins = np.array(bins, np.int32)
    shares = feature_shares(SlotLayout(np.concatenate([[0], np.cumsum(n_bins)]).astype(np.int64), n_bins), n_peers)
    assert len(shares) == n_peers
    assert [f for first, last in shares for f in range(first, last)] == list(range(len(bins)))
