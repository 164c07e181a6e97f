"""Buffers come back when nobody uses them, and never before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daskboost.devices.buffers import KEPT, Buffers


def test_memory_is_used_again_once_all_views_are_gone() -> None:
    buffers = Buffers()
    first = buffers.zeros((4, 2_000, 2))
    view = first[1]
    address = first.ctypes.data
    del first
    assert buffers.empty((4, 2_000, 2)).ctypes.data != address  # a view still reads it
    del view
    assert buffers.empty((3, 2_000, 2)).ctypes.data == address


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40))
def test_arrays_in_use_never_share_memory(requests: list[tuple[int, bool]]) -> None:
    buffers, held = Buffers(), []
    for number, (size, keep) in enumerate(requests):
        array = buffers.zeros((size, 4_000))
        assert not array.any()
        array[:] = number
        if keep:
            held.append((number, array))
        for expected, kept in held:
            np.testing.assert_array_equal(kept, expected)


def test_only_a_few_buffers_are_kept() -> None:
    buffers = Buffers()
    held = [buffers.empty((10_000 * size,)) for size in range(1, 4 * KEPT)]
    del held
    for size in range(4 * KEPT, 6 * KEPT):
        buffers.empty((10_000 * size,))
    assert len(buffers._owners) <= 4 * KEPT
    buffers.clear()
    assert not buffers._owners
