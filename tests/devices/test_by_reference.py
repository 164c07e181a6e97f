"""Records: attributes are the tuple's, whatever they are called, in Python and in compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.cpu.by_reference import by_reference, change
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.team import TEAM_WORDS, part, start


class Inner(NamedTuple):
    """Members whose names a record might want for itself."""

    words: Any
    kind: int
    address: float


class Pair(NamedTuple):
    """A tuple that is no record."""

    low: Any
    flag: bool


class Outer(NamedTuple):
    """Members of every type that records have."""

    inner: Inner
    pair: Pair
    nothing: Any
    small: Any
    large: Any
    out: Any


@part
def _sum(state: Outer, thread: int) -> None:
    inner, pair = state.inner, state.pair
    for i in range(inner.words.shape[0]):
        for j in range(inner.words.shape[1]):
            state.out[0] += inner.words[i, j]
    state.out[1], state.out[2] = inner.kind, inner.address
    state.out[3] = pair.low[1] if pair.flag else -1.0
    state.out[4] = 1.0 if state.nothing is None else 0.0
    state.out[5], state.out[6] = state.small, state.large >> np.uint64(60)


def test_compiled_code_reads_what_the_tuple_holds() -> None:
    words = np.arange(12.0).reshape(3, 4)[:, ::2]
    inner = by_reference(Inner(words, -7, 0.25))
    pair = Pair(np.array([3, 5], np.int32), True)
    state = by_reference(Outer(inner, pair, None, np.float32(1.5), np.uint64(2**63), np.zeros(7)))
    start(np.zeros(TEAM_WORDS, np.int64), 1, addresses_of([_sum], state, 1)[0], state)
    assert state.out.tolist() == [words.sum(), -7, 0.25, 5, 1, 1.5, 8]
    assert (inner.words is words, inner.kind, inner.address, state.inner is inner) == (True, -7, 0.25, True)


def test_members_that_change_are_read_as_they_are_then() -> None:
    inner, other = (by_reference(Inner(np.full((2, 2), each), 1, each)) for each in (1.0, 2.0))
    pair = Pair(np.zeros(2, np.int32), False)
    state = by_reference(Outer(inner, pair, None, np.float32(0), np.uint64(0), np.zeros(7)))
    change(inner, kind=5, address=0.5)
    change(state, pair=Pair(np.array([3, 7], np.int32), True), small=np.float32(2.5), large=np.uint64(2**64 - 1))
    address = addresses_of([_sum], state, 1)[0]
    start(np.zeros(TEAM_WORDS, np.int64), 1, address, state)
    assert state.out.tolist() == [4, 5, 0.5, 7, 1, 2.5, 15]
    assert (inner.kind, state.pair.flag, state.small) == (5, True, 2.5)
    change(state, inner=other, out=np.zeros(7))
    start(np.zeros(TEAM_WORDS, np.int64), 1, address, state)
    assert state.out.tolist() == [8, 1, 2, 7, 1, 2.5, 15]
