"""Records: attributes are the tuple's, whatever they are called, in Python and in compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError

from daskboost.devices.cpu.by_reference import Record, by_reference, change, kind_of
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.team import TEAM_WORDS, part, part_without, start


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


class Rows(NamedTuple):
    """What comes last is of several types."""

    n: Any
    last: Any


class Table(NamedTuple):
    """Members that a part may not read, within a record and beside it."""

    rows: Rows
    out: Any
    other: Any


@part_without("rows.last", "other")
def _double(state: Table, thread: int) -> None:
    state.out[0] = 2 * state.rows.n[0]


@part_without("rows.last")
def _read_last(state: Table, thread: int) -> None:
    state.out[0] = state.rows.last[0]


def test_a_part_is_compiled_once_for_all_types_of_what_it_does_not_read() -> None:
    lasts: list[Any] = [np.zeros(2, np.uint8), np.zeros((2, 3)), Pair(np.zeros(2), True)]
    states = [
        by_reference(Table(by_reference(Rows(np.full(1, n), last)), np.zeros(1, np.int64), last))
        for n, last in enumerate(lasts)
    ]
    addresses = {addresses_of([_double], state, 1)[0] for state in states}
    assert len(addresses) == len(_double.overloads) == 1
    for n, state in enumerate(states):
        start(np.zeros(TEAM_WORDS, np.int64), 1, next(iter(addresses)), state)
        assert state.out.tolist() == [2 * n]
    others = by_reference(Table(by_reference(Rows(np.full(1, 1.0), 0)), np.zeros(1, np.int64), 0))
    assert addresses.isdisjoint(addresses_of([_double], others, 1))


def test_what_a_part_says_that_it_does_not_read_it_cannot_read() -> None:
    state = by_reference(Table(by_reference(Rows(np.zeros(1, np.int64), np.zeros(1))), np.zeros(1), 0))
    with pytest.raises(TypingError, match="last"):
        addresses_of([_read_last], state, 1)


@pytest.mark.parametrize("path", ["word", "inner.word", "word.kind", "out.kind", "pair.low"])
def test_a_path_that_names_no_attribute_is_refused(path: str) -> None:
    """A misspelt one would otherwise leave all in the type, and the part be compiled for each kind of data."""
    inner = by_reference(Inner(np.zeros(1), 1, 0.5))
    state = by_reference(Outer(inner, Pair(np.zeros(2), True), None, 1, 2, np.zeros(1)))
    assert isinstance(state, Record)
    assert kind_of(state, ("inner.words", "out")) != kind_of(state)
    with pytest.raises(KeyError, match=f"^'{path}'$"):
        kind_of(state, ("inner.words", path))
