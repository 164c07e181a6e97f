"""Sizes of features: what they have above a size, from a few numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskboost.devices.budget.set_size import FeatureSizes, SparseSet

COUNTS = st.lists(st.one_of(st.integers(0, 70), st.integers(2**31 - 2, 2**31 + 2), st.integers(0, 2**50)), max_size=20)


@given(COUNTS, st.integers(0, 50))
def test_what_features_have_above_a_size(counts: list[int], digits: int) -> None:
    sizes, limit = FeatureSizes.of(np.array(counts, np.int64)), 1 << digits
    above = [count for count in counts if count > limit]
    assert sizes.above(limit) == (len(above), sum(above))
    known = SparseSet(1, len(counts), sum(counts), feature_sizes=sizes)
    assert known.features_above(limit) == (len(above), sum(above))
    most = SparseSet(1, len(counts), sum(counts)).features_above(limit)
    assert most >= (len(above), sum(above))
    assert most[1] == sum(counts)


@given(st.integers(0, 50), st.integers(0, 10_000))
def test_even_features_have_all_entries(n_features: int, n_entries: int) -> None:
    sizes = FeatureSizes.even(n_features, n_entries)
    assert sum(sizes.n_entries) == (n_entries if n_features else 0)
    assert sum(sizes.n_features) == min(n_features, n_entries)


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_nothing_is_above_nothing(counts: list[int]) -> None:
    assert FeatureSizes.of(np.array(counts, np.int64)).above(1) == (0, 0)
