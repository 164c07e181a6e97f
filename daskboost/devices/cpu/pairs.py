"""Which level of a combination of columns each row has: a search among the few that have the row's first code."""

from __future__ import annotations

from daskboost.devices.cpu import njit
from daskboost.dtypes import Int32, Int64


@njit(cache=True, nogil=True)
def find_pairs(
    first: Int32, second: Int32, size: int, keys: Int64, starts: Int64, absent: int, places: Int32
) -> None:
    """Set the place of each row's pair of codes among the keys of pairs, or `absent`.

    Parameters
    ----------
    first, second : int32 arrays, shape (rows,)
        Codes of all columns but one, and of that one; -1 is missing, a code of its own. A lower one is of no pair.
    size : int
        Codes of the one column, that of missing values among them.
    keys : int64 array, shape (pairs,)
        Increasing: `(a + 1) * size + b + 1` of codes a and b.
    starts : int64 array, shape (codes of the first column + 1,)
        Where the keys of each first code begin, and behind the last one.
    places : int32 array, shape (rows,), changed
    """
    for i in range(len(first)):
        places[i] = absent
        if first[i] >= -1 and second[i] >= -1:
            row = first[i] + 1
            key, low, high = row * size + second[i] + 1, starts[row], starts[row + 1]
            end = high
            while low < high:
                middle = (low + high) >> 1
                if keys[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            if low < end and keys[low] == key:
                places[i] = low
