"""Loops over byte strings against naive twins, also where all hashes are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.levels import hash_of

from daskboost.devices.cpu.byte_strings import (
    HashedStrings,
    find_strings,
    hash_strings,
    mark_first,
    measure_utf8,
    write_utf8,
)
from daskboost.dtypes import Int64, read_only

STRINGS = st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"a", b"ab", b"a\0", b"abcdefgh", b"abcdefghi"]))
TEXTS = st.text(max_size=6) | st.sampled_from(["", "a\0b", "é", "\u07ff\u0800", "\uffff\U00010000", "\U0010ffff"])


def hashed(strings: list[bytes], *, collide: bool = False) -> HashedStrings:
    ends = np.cumsum([0, *map(len, strings)], dtype=np.int64)
    data, hashes = np.frombuffer(b"".join([*strings, b"-"]), np.uint8)[:-1], np.empty(len(strings), np.uint64)
    hash_strings(data, read_only(ends), hashes)
    if collide:
        hashes[:] = [len(string) % 2 for string in strings]
    return HashedStrings(data, read_only(ends), read_only(hashes))


def by_hash(strings: HashedStrings) -> Int64:
    return np.argsort(strings.hashes, kind="stable")


@settings(max_examples=200, deadline=None)
@given(STRINGS)
def test_hashes_are_those_of_words(strings: list[bytes]) -> None:
    assert hashed(strings).hashes.tolist() == [hash_of(string) for string in strings]


def test_hashes_stay_the_same() -> None:
    assert hashed([b"", b"a", b"daskboost levels"]).hashes.tolist() == [
        0, 11365220231941867557, 15791776536953206559,
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(STRINGS, st.booleans())
def test_equal_strings_are_marked_whatever_their_hashes(strings: list[bytes], collide: bool) -> None:
    found = hashed(strings, collide=collide)
    order, is_first = by_hash(found), np.empty(len(strings), np.bool_)
    mark_first(found, order, is_first)
    wanted = sorted(range(len(strings)), key=lambda i: (found.hashes[i], strings[i]))
    assert [strings[i] for i in order] == [strings[i] for i in wanted]
    assert sorted(order.tolist()) == list(range(len(strings)))
    sorted_strings = [strings[i] for i in wanted]
    assert is_first.tolist() == [i == 0 or sorted_strings[i - 1] != sorted_strings[i] for i in range(len(strings))]


@settings(max_examples=200, deadline=None)
@given(STRINGS, STRINGS, st.booleans())
def test_strings_are_found_whatever_their_hashes(known: list[bytes], wanted: list[bytes], collide: bool) -> None:
    known, wanted = list(dict.fromkeys(known)), [*wanted, *known[::2]]
    here, there = hashed(known, collide=collide), hashed(wanted, collide=collide)
    order, places = by_hash(here), np.empty(len(wanted), np.int32)
    find_strings(here._replace(hashes=read_only(here.hashes[order])), order, there, by_hash(there), -7, places)
    assert places.tolist() == [known.index(string) if string in known else -7 for string in wanted]


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=1))
def test_texts_become_utf8(texts: list[str]) -> None:
    array = np.array(texts)
    points = read_only(array.view(np.uint32).reshape(len(texts), -1))
    ends = np.empty(len(texts) + 1, np.int64)
    assert measure_utf8(points, ends) == -1
    data = np.empty(ends[-1], np.uint8)
    write_utf8(points, ends, data)
    encoded = [text.encode() for text in array.tolist()]
    assert ends.tolist() == np.cumsum([0, *map(len, encoded)]).tolist()
    assert data.tobytes() == b"".join(encoded)


def test_what_is_no_unicode_is_found() -> None:
    for point in (0xD800, 0xDFFF, 0x110000):
        points = read_only(np.array([[65, 66], [67, point]], np.uint32))
        assert measure_utf8(points, np.empty(3, np.int64)) == 1
