"""Splits by sets of categories: of a feature of codes, which of them go right.

A feature of few codes tries each of them against all others. One of more orders its codes by the leaf values that they
would have alone, of which the best set of two sides is a beginning of the order (Fisher, "On grouping for maximum
homogeneity", 1958, for convex losses without penalties): all ways are tried to cut the order in two. Both are those of
XGBoost's `hist` (`src/tree/hist/evaluate_splits.h`), so that the same histograms give the same sets:

    codes in order       A B C D E         [ ] has the missing values
    missing values left  [BCDE] A   [CDE] AB   [DE] ABC   [E] ABCD
    and right            E [ABCD]   DE [ABC]   CDE [AB]   BCDE [A]

What is written last goes right. The feature's last bin is of values that are no code: in no set, so that they go left.

Rules may hold sets to what LightGBM does: codes of few rows stay with those that are not taken, sets are tried only
where some more rows have been taken, and gains have a larger penalty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Float64, UInt8, UInt32


class SetRules(NamedTuple):
    """Which features are split by sets, and how."""

    is_code: UInt8
    """Whether each feature is of codes, shape (features,); empty where none is."""
    max_onehot: int
    """Codes of a feature from which on sets have several of them."""
    max_threshold: int
    """One more than the codes that are taken from an end of the order."""
    smooth: float = 0.0
    """What lambda is more where codes are ordered, and the least sum of hessians of a code that is taken."""
    l2: float = 0.0
    """What lambda is more in the gains of sets of several codes."""
    least_group: float = 0.0
    """Least sum of hessians of the codes that are taken from one tried set to the next, and of all others."""


NO_SET_RULES = SetRules(np.zeros(0, np.uint8), 0, 0)
"""Rules of fits without features of codes."""


class CodeOrder(NamedTuple):
    """The order of a feature's codes that sets are cut from."""

    places: Float64
    """Codes in their order, shape (at least n_codes,)."""
    n_codes: int
    n_light: int
    """Codes at the beginning that have too few rows to be taken."""


@njit(nogil=True)
def _comes_later(values: Float64, a: float, b: float) -> bool:
    """Whether place a comes behind b: by their values, then by themselves."""
    of_a, of_b = values[np.int64(a)], values[np.int64(b)]
    return of_a > of_b or (of_a == of_b and a > b)


@njit(nogil=True)
def _sift(values: Float64, order: Float64, root: int, n: int) -> None:
    """Bring the place at the root of a heap's part down to where it belongs; the latest place is on top."""
    moved = order[root]
    while 2 * root + 1 < n:
        child = 2 * root + 1
        if child + 1 < n and _comes_later(values, order[child + 1], order[child]):
            child += 1
        if not _comes_later(values, order[child], moved):
            break
        order[root], root = order[child], child
    order[root] = moved


@njit(nogil=True)
def sort_places(values: Float64, n: int, order: Float64) -> None:
    """Write the places of the first `n` values in increasing order, the lower one first where they are the same.

    A heap sort, as compiled trees allocate no memory; `order` : places as floats, shape (at least n,).
    """
    for i in range(n):
        order[i] = i
    for root in range(n // 2 - 1, -1, -1):
        _sift(values, order, root, n)
    for last in range(n - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        _sift(values, order, 0, last)


@njit(nogil=True)
def sets_of_side(order: CodeOrder, sets: SetRules) -> int:
    """Return how many sets are tried with missing values on either side."""
    if order.n_codes < sets.max_onehot:
        return order.n_codes
    return min(sets.max_threshold, order.n_codes - order.n_light) - 1


@njit(nogil=True)
def best_of_sets(gains: Float64, order: CodeOrder, sets: SetRules, parent: float, best: float
                 ) -> tuple[float, int, int]:  # fmt: skip
    """Return the gain of the best set, where it is more than `best`, its place, and whether missing values go left;
    else `best` and a place of -1.

    `gains` : of sets by side, before `parent` is taken off; shape (2, at least n_codes). Of equal gains the one that
    is tried first is taken: codes one after the other, with missing values on the left and then on the right, or first
    all beginnings of an order with missing values on the left.
    """
    n, chosen, side = sets_of_side(order, sets), -1, 0
    if order.n_codes < sets.max_onehot:
        for place in range(n):
            for to_left in (1, 0):
                if gains[to_left, place] - parent > best:
                    best, chosen, side = gains[to_left, place] - parent, place, to_left
        return best, chosen, side
    for to_left in (1, 0):
        for place in range(n):
            if gains[to_left, place] - parent > best:
                best, chosen, side = gains[to_left, place] - parent, place, to_left
    return best, chosen, side


@njit(nogil=True)
def write_set(place: int, side: int, order: CodeOrder, sets: SetRules, right_bins: UInt32) -> None:
    """Write the codes of a set that was tried; `right_bins` : a bit for each code, shape (words,)."""
    right_bins[:] = 0
    first, last = place, place + 1
    if order.n_codes >= sets.max_onehot:
        first, last = 0, order.n_codes - 1 - place
        if side == 1:
            first, last = order.n_light, order.n_light + place + 1
    for i in range(first, last):
        code = np.int64(order.places[i])
        right_bins[code >> 5] |= np.uint32(1) << np.uint32(code & 31)
