"""Nodes that split by sets of categories: what the place of a code is, and whether a set holds it.

Only codes that some set of a column holds have a place in it, so sets are short whatever the codes are. A dense set is
bits, one for each place up to its last; a sparse one is the list of its places. Neither takes more than `LIST_WORDS`
words for each of its places, and one more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import MAX_CATEGORIES, Int32, Int64, UInt32

OUTSIDE = np.uint32(0)
"""Place of what no set holds: a code of none, a number that is no code, a missing value that goes left."""
INSIDE = np.uint32(1)
"""Place of a missing value that goes right: every set holds it."""
FIRST_PLACE = 2
"""Place of a column's first code."""
LIST_WORDS = 4
"""A set is a list where bits would take more words than so many times its places."""

_BIT = np.uint32(1)
_FIVE = np.uint32(5)
_ONE = np.uint64(1)
_LAST_BIT = np.uint32(31)


class PackedSets(NamedTuple):
    """The sets of a forest, whose last columns are of codes."""

    code_start: Int64
    """Per column of codes, where its codes begin, and last where they end; shape (columns of codes + 1,)."""
    codes: Int32
    """The codes that sets of each column hold, increasing within a column."""
    words: UInt32
    """Per set, twice the number of words that follow, plus 1 if these are a list of places; then those words."""


class HeapSets(NamedTuple):
    """What a walk down a heap needs of sets that are bits."""

    words: UInt32
    """The sets, laid out as in `PackedSets`."""
    first_column: np.uint32
    """The first column of codes, as nodes of a heap have it."""


@njit(cache=True, nogil=True)
def place_of(sets: PackedSets, column: int, bits: np.uint32, missing: np.uint32) -> np.uint32:
    """Return the place of a value, the bits of a float32, in a column of codes; the value's whole part is its code.

    `column` : counts the columns of codes alone. `missing` : the place of NaN.
    """
    value = np.uint32(bits).view(np.float32)
    if value != value:
        return missing
    if not 0 <= value < MAX_CATEGORIES:
        return OUTSIDE
    code, first, stop = np.int32(value), sets.code_start[column], sets.code_start[column + 1]
    low, high = first, stop
    while low < high:
        middle = (low + high) // 2
        if sets.codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return np.uint32(FIRST_PLACE + low - first) if low < stop and sets.codes[low] == code else OUTSIDE


@njit(cache=True, nogil=True)
def holds_bit(words: UInt32, start: np.uint32, place: np.uint32) -> bool:
    """Whether the set of bits that begins at `start` of `PackedSets.words` holds a place; without a branch."""
    header, word = np.uint64(start), np.uint64(place >> _FIVE)
    size = np.uint64(words[header] >> _BIT)
    bits = words[header + min(word + _ONE, size)]
    return bool(np.uint32(word < size) & (bits >> (place & _LAST_BIT)))


@njit(cache=True, nogil=True)
def holds(words: UInt32, start: np.uint32, place: np.uint32) -> bool:
    """Whether the set that begins at `start` of `PackedSets.words`, bits or a list, holds a place."""
    if not words[start] & _BIT:
        return holds_bit(words, start, place)
    low = np.int64(start) + 1
    high = low + np.int64(words[start] >> _BIT)
    stop = high
    while low < high:
        middle = (low + high) // 2
        if words[middle] < place:
            low = middle + 1
        else:
            high = middle
    return bool(low < stop and words[low] == place)
