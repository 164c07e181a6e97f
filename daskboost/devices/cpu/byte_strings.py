"""Loops over byte strings that lie one behind the other: their hashes, and which are the same.

String `i` is `data[ends[i]:ends[i + 1]]`, as in Arrow's large binary arrays. Hashes alone decide nothing: wherever two
are equal, the bytes are compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.gradients import row_bits
from daskboost.dtypes import Bool, Int32, Int64, UInt8, UInt32, UInt64

WORD_BYTES = 8


class HashedStrings(NamedTuple):
    """Byte strings and their hashes."""

    data: UInt8
    ends: Int64
    """Where each string ends, behind a 0; shape (strings + 1,)."""
    hashes: UInt64


@uncounted(cache=True)
def hash_strings(data: UInt8, ends: Int64, hashes: UInt64) -> None:
    """Compute `hashing.key(length, *words)` of each string: its words are little-endian, the last one filled up with
    zeros.

    Parameters
    ----------
    data : uint8 array
    ends : int64 array, shape (strings + 1,)
    hashes : uint64 array, shape (strings,), changed
    """
    for i in range(len(hashes)):
        begin, end = ends[i], ends[i + 1]
        state = np.uint64(end - begin)
        for start in range(begin, end, WORD_BYTES):
            word = np.uint64(0)
            for place in range(min(WORD_BYTES, end - start)):
                word |= np.uint64(data[start + place]) << np.uint64(8 * place)
            state = row_bits(state + word, np.uint64(1))
        hashes[i] = row_bits(state, np.uint64(0))


@njit(nogil=True)
def compare(data: UInt8, begin: int, end: int, other_data: UInt8, other_begin: int, other_end: int
            ) -> np.int64 | int:  # fmt: skip
    """Return a negative number, 0 or a positive one, as the first string comes before, equals or follows the other."""
    for place in range(min(end - begin, other_end - other_begin)):
        difference = np.int64(data[begin + place]) - np.int64(other_data[other_begin + place])
        if difference != 0:
            return difference
    return (end - begin) - (other_end - other_begin)


@uncounted(cache=True)
def mark_first(strings: HashedStrings, order: Int64, is_first: Bool) -> None:
    """Order strings of the same hash by their bytes, and mark the first of those that are the same.

    Parameters
    ----------
    order : int64 array, shape (strings,), changed
        The strings by hash; afterwards by hash, then by bytes.
    is_first : bool array, shape (strings,), changed
        Whether a string in this order differs from the one before it.
    """
    data, ends, hashes = strings.data, strings.ends, strings.hashes
    for i in range(len(order)):
        own, place = order[i], i
        while place > 0 and hashes[order[place - 1]] == hashes[own]:
            other = order[place - 1]
            difference = compare(data, ends[own], ends[own + 1], data, ends[other], ends[other + 1])
            if difference >= 0:
                break
            order[place] = other
            place -= 1
        order[place] = own
    for i in range(len(order)):
        is_first[i] = True
        if i > 0 and hashes[order[i - 1]] == hashes[order[i]]:
            own, other = order[i], order[i - 1]
            is_first[i] = compare(data, ends[own], ends[own + 1], data, ends[other], ends[other + 1]) != 0


@uncounted(cache=True)
def find_strings(known: HashedStrings, order: Int64, wanted: HashedStrings, wanted_order: Int64, absent: int,
                 places: Int32) -> None:  # fmt: skip
    """Find strings among known ones.

    Parameters
    ----------
    known : HashedStrings
        Distinct strings; their hashes in the order of hashes.
    order : int64 array, shape (known strings,)
        The known strings by hash.
    wanted : HashedStrings
    wanted_order : int64 array, shape (wanted strings,)
        The wanted strings by hash, so that the known ones are passed once; few of them skip most of these.
    absent : int
        What stands for strings that are not known.
    places : int32 array, shape (wanted strings,), changed
        Where each wanted string is among the known ones.
    """
    first, n_known = 0, len(order)
    for i in wanted_order:
        wanted_hash, last, step = wanted.hashes[i], first, 1
        while last < n_known and known.hashes[last] < wanted_hash:
            first = last + 1
            last += step
            step *= 2
        last = min(last, n_known)
        while first < last:
            middle = (first + last) // 2
            if known.hashes[middle] < wanted_hash:
                first = middle + 1
            else:
                last = middle
        places[i] = absent
        at = first
        while at < n_known and known.hashes[at] == wanted_hash:
            place = order[at]
            if compare(
                known.data, known.ends[place], known.ends[place + 1],
                wanted.data, wanted.ends[i], wanted.ends[i + 1],
            ) == 0:  # fmt: skip
                places[i] = place
                break
            at += 1


@uncounted(cache=True)
def find_sorted(known: HashedStrings, wanted: HashedStrings, places: Int64) -> int:
    """Find distinct strings among others, both by hash, then by bytes; return how many there are.

    `places` : int64 array, shape (wanted strings,), changed: where a string is among the known ones, or `-1 - place` of
    the first known one that follows it.
    """
    at, n_found, n_known = 0, 0, len(known.hashes)
    for i in range(len(wanted.hashes)):
        own, begin, end = wanted.hashes[i], wanted.ends[i], wanted.ends[i + 1]
        is_same = False
        while at < n_known and known.hashes[at] <= own:
            difference = np.int64(-1)
            if known.hashes[at] == own:
                difference = np.int64(compare(
                    known.data, known.ends[at], known.ends[at + 1], wanted.data, begin, end
                ))  # fmt: skip
            if difference >= 0:
                is_same = difference == 0
                break
            at += 1
        places[i] = at if is_same else -1 - at
        n_found += is_same
    return n_found


@uncounted(cache=True)
def merge_strings(known: HashedStrings, known_counts: Int64, wanted: HashedStrings, wanted_counts: Int64, places: Int64,
                  merged: HashedStrings, counts: Int64) -> None:  # fmt: skip
    """Write the strings of both in their order, and add up their counts.

    Parameters
    ----------
    known, wanted, places
        As of `find_sorted`, which has set the places.
    known_counts, wanted_counts : int64 arrays
        Of each string.
    merged : HashedStrings, changed
        As many strings and bytes as are different.
    counts : int64 array, shape (merged strings,), changed
    """
    i, n, end = 0, 0, 0
    for at in range(len(known.hashes) + 1):
        while i < len(places) and places[i] == -1 - at:
            for place in range(wanted.ends[i], wanted.ends[i + 1]):
                merged.data[end] = wanted.data[place]
                end += 1
            merged.ends[n + 1], merged.hashes[n], counts[n] = end, wanted.hashes[i], wanted_counts[i]
            i, n = i + 1, n + 1
        if at < len(known.hashes):
            for place in range(known.ends[at], known.ends[at + 1]):
                merged.data[end] = known.data[place]
                end += 1
            merged.ends[n + 1], merged.hashes[n], counts[n] = end, known.hashes[at], known_counts[at]
            if i < len(places) and places[i] == at:
                counts[n] += wanted_counts[i]
                i += 1
            n += 1


@uncounted(cache=True)
def count_cells(hashes: UInt64, counts: Int64, n_bits: int, most: int, cells: UInt8) -> None:
    """Add the counts of strings to those of their cells, which stay at the most that there can be.

    Parameters
    ----------
    hashes : uint64 array, shape (strings,)
        Their first bits are the cell.
    counts : int64 array, shape (strings,)
    n_bits, most : int
        Bits of a cell's number, and the largest count.
    cells : uint8 array, shape (2**n_bits,), changed
    """
    for i in range(len(hashes)):
        cell = np.int64(hashes[i] >> np.uint64(64 - n_bits))
        cells[cell] = min(np.int64(cells[cell]) + counts[i], most)


@uncounted(cache=True)
def measure_utf8(points: UInt32, ends: Int64) -> int:
    """Compute where the UTF-8 of each text ends; return the first text that is no Unicode, or -1.

    Parameters
    ----------
    points : uint32 array, shape (texts, letters)
        Code points, filled up with zeros.
    ends : int64 array, shape (texts + 1,), changed
    """
    ends[0] = 0
    for i in range(len(points)):
        n_bytes, n_zeros = 0, 0  # zeros count once something follows
        for point in points[i]:
            if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
                return i
            if point == 0:
                n_zeros += 1
                continue
            n_bytes += n_zeros + 1 + (point >= 0x80) + (point >= 0x800) + (point >= 0x10000)
            n_zeros = 0
        ends[i + 1] = ends[i] + n_bytes
    return -1


@uncounted(cache=True)
def write_utf8(points: UInt32, ends: Int64, data: UInt8) -> None:
    """Write the UTF-8 of texts, whose ends `measure_utf8` has computed.

    Parameters
    ----------
    data : uint8 array, shape (ends[-1],), changed
    """
    for i in range(len(points)):
        at, end, letter = ends[i], ends[i + 1], 0
        while at < end:
            point = points[i, letter]
            letter += 1
            n_more = (point >= 0x80) + (point >= 0x800) + (point >= 0x10000)
            lead = 0 if n_more == 0 else 0xFF00 >> (n_more + 1) & 0xFF  # 110, 1110 or 11110, and zeros
            data[at] = lead | point >> np.uint32(6 * n_more)
            for more in range(n_more):
                data[at + 1 + more] = 0x80 | point >> np.uint32(6 * (n_more - 1 - more)) & 0x3F
            at += 1 + n_more
