"""Splits by sets of categories: of a feature of codes, which of them go right.

A feature of few codes tries each of them against all others. One of more orders its codes by the leaf values that they
would have alone, of which the best set of two sides is a beginning of the order (Fisher, "On grouping for maximum
homogeneity", 1958, for convex losses without penalties): all ways are tried to cut the order in two. Both are those of
XGBoost's `hist` (`src/tree/hist/evaluate_splits.h`), so that the same histograms give the same sets:

    codes in order       A B C D E         [ ] has the missing values
    missing values left  [BCDE] A   [CDE] AB   [DE] ABC   [E] ABCD
    and right            E [ABCD]   DE [ABC]   CDE [AB]   BCDE [A]

What is written last goes right. The feature's last bin is of values that are no code: in no set, so that they go left.

Leaf values that are vectors have no order: codes are ordered by the projections of theirs on the direction in which
codes differ most (`project`).

Rules may hold sets to what LightGBM does: codes of few rows stay with those that are not taken, sets are tried only
where some more rows have been taken, and gains have a larger penalty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
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


OUTPUT_ROWS = 4
MISSING, RIGHT, GROUP, DIRECTION = range(OUTPUT_ROWS)
"""Rows of `BinGains.outputs`: sums of g and h of missing values, of what a set sends right, and of the codes that were
taken since a set was allowed; and what `project` takes."""
STEPS = 4
"""Steps of the power iteration in `project`; two to thirty are as good (`docs/categories.md`)."""


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


@uncounted()
def project(leaves: Float64, weights: Float64, n_codes: int, direction: Float64, out: Float64) -> None:
    """Write to `out` by what number each code is ordered: its leaf value, or of vectors v[c] the projection on the
    direction in which those of codes differ most.

    With p[c] = sum_k d[k] v[c, k] and its mean m over codes, by their `weights` w, a step of the power iteration makes
    d[k] = H[k] sum_c w[c] (p[c] - m) v[c, k], where H[k] is the sum of output k's hessians. It begins with the output
    whose own values vary most, H[k] sum_c w[c] (v[c, k] - m[k])**2 with their mean m[k], so that steps only improve on
    that output's order, and ends after `STEPS`. Sums run in the order of codes, so that nothing depends on who computes
    them. The limit is the first principal component of the values, an output's times the root of H[k]: in these units
    squares of distances are what splits gain. Coppersmith, Hong and Hosking, "Partitioning nominal attributes in
    decision trees" (1999), order categories so by their shares of classes.

    Parameters
    ----------
    leaves : float64, shape (2 * outputs, at least n_codes)
        Leaf value and hessians of one output after the other.
    weights : float64, shape (at least n_codes,)
        Hessians of all outputs; 0 of codes that have no part in it.
    direction : float64, shape (2 * outputs,)
        Memory.
    out : float64, shape (at least n_codes,)
    """
    n_outputs, total, most = len(leaves) // 2, 0.0, -1.0
    d, hessians, first = direction[:n_outputs], direction[n_outputs:], 0
    for code in range(n_codes):
        total += weights[code]
    for k in range(n_outputs):
        d[k], hessians[k] = 0.0, 0.0
        for code in range(n_codes):
            hessians[k] += leaves[2 * k + 1, code]
        spread = hessians[k] * _spread(leaves[2 * k], weights, n_codes, total)
        if spread > most:
            most, first = spread, k
    d[first] = 1.0
    _write_projections(leaves, n_codes, d, out)
    for _ in range(STEPS if len(leaves) > 2 and most > 0.0 else 0):
        _turn(leaves, weights, n_codes, hessians, _mean(out, weights, n_codes, total), out, d)
        _write_projections(leaves, n_codes, d, out)


@uncounted()
def _write_projections(leaves: Float64, n_codes: int, d: Float64, out: Float64) -> None:
    """Write the projections of codes' leaf values on a direction."""
    out[:n_codes] = 0.0
    for k in range(len(d)):
        for code in range(n_codes):
            out[code] += d[k] * leaves[2 * k, code]


@njit(inline="always")
def _mean(values: Float64, weights: Float64, n_codes: int, total: float) -> float:
    """Return the mean of codes' values by their weights, which sum to `total`; 0 where that is 0."""
    found = 0.0
    for code in range(n_codes):
        found += weights[code] * values[code]
    return found / total if total > 0.0 else 0.0


@njit(inline="always")
def _spread(values: Float64, weights: Float64, n_codes: int, total: float) -> float:
    """Return the weighted sum of squares of what codes' values differ from their mean."""
    mean, found = _mean(values, weights, n_codes, total), 0.0
    for code in range(n_codes):
        found += weights[code] * (values[code] - mean) ** 2
    return found


@uncounted()
def _turn(
    leaves: Float64, weights: Float64, n_codes: int, hessians: Float64, mean: float, projected: Float64, d: Float64
) -> None:
    """Take a step of the power iteration: write the next direction, whose largest part is 1 or -1, to `d`, given the
    projections on the last one and their mean."""
    most = 0.0
    for k in range(len(d)):
        found = 0.0
        for code in range(n_codes):
            found += weights[code] * (projected[code] - mean) * leaves[2 * k, code]
        d[k] = hessians[k] * found
        most = max(most, abs(d[k]))
    for k in range(len(d)):
        d[k] /= most if most > 0.0 else 1.0


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
