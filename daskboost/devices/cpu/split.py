"""Split search: the gain of every (feature, bin, default direction), from integer histograms.

Sums stay integers up to the last step; gains are float64 functions of single pairs of integers, so they do not
depend on who computes them. A histogram is an int64 array of pairs, shape (slots, 2), or of words, shape (slots,): see
`histogram.py`. Formulae: Chen and Guestrin, "XGBoost: a scalable tree boosting system" (2016), eq. 6
and 7, without the factor 1/2, as XGBoost reports gains.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.histogram import LOW_HALF
from daskboost.devices.cpu.split_sets import (
    DIRECTION,
    GROUP,
    MISSING,
    OUTPUT_ROWS,
    RIGHT,
    CodeOrder,
    SetRules,
    best_of_sets,
    project,
    sets_of_side,
    sort_places,
    write_set,
)
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Float64, Int32, Int64, UInt8, UInt32


class Regular(NamedTuple):
    """Penalties and limits of leaf values, the same for all trees of a fit."""

    reg_lambda: float
    alpha: float
    max_step: float
    """Largest leaf value before the learning rate; 0 for any."""
    least_h: float
    """Least sum of hessians of a node that has a value other than 0, and may be split off."""
    plain: bool
    """Whether leaf values have no limits, so that the closed form of gains holds."""
    monotone: Int32
    """-1, 0 or 1 per feature."""
    sets: SetRules

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """The members of `Regular` of `kernels/gain.cuh`, as kernels take them."""
        return self.reg_lambda, self.alpha, self.max_step, self.least_h

    @property
    def is_rough(self) -> bool:
        """Whether `kernels/rough.cuh` knows the formula of gains."""
        return self.plain and self.alpha == 0.0


class NodeTotals(NamedTuple):
    """Sums of all rows of a node in one output, and the limits of its leaf value."""

    g: float
    """Integers as floats, exact below 2**53."""
    h: float
    unit_g: float
    """What one quantum of g is worth."""
    unit_h: float
    low: float
    high: float


class VectorTotals(NamedTuple):
    """Sums of all rows of a node in all outputs, which may be one, and the limits of its leaf value."""

    sums: Int64
    """Integers, shape (2 * outputs,): g, h of one output after the other."""
    units: Float64
    """What one quantum of each is worth, shape (2 * outputs,)."""
    low: float
    """The limits of the value of one output; vectors have none."""
    high: float


class NodeBatch(NamedTuple):
    """The nodes that are searched, without their histograms; arrays of shape (nodes, ...)."""

    sums: Int64
    """Integer sums of g and h, shape (nodes, 2), or (nodes, 2 * outputs): g, h of one output after the other."""
    bounds: Float64
    """Limits of leaf values, shape (nodes, 2); of vectors, none."""
    allowed: UInt8
    """Whether a feature may be used, shape (nodes, features), or (1, features) for all nodes."""


class Stack(NamedTuple):
    """Histograms of some of the nodes that are searched, all of words or all of pairs (see `histogram.py`)."""

    rows: Int64
    """Places of the nodes among those that are searched."""
    histograms: Int64
    """int64, shape (at least nodes, slots) or (at least nodes, slots, 2)."""
    places: Int64
    """Each node's place in `histograms`."""
    parents: Int64
    """Where nodes are yet to be computed, their parents' histograms; otherwise empty."""
    parent_places: Int64
    siblings: Int64
    """Histograms of the nodes' siblings."""
    sibling_places: Int64


class FeatureSlots(NamedTuple):
    """Where the bins of features lie in the histograms that are searched."""

    offsets: Int64
    """First slot of each feature in a histogram of all features, shape (features + 1,)."""
    n_bins: Int32
    first_slot: int
    """The slot that histograms begin with."""


class FeatureRange(NamedTuple):
    """Features that are searched."""

    usable: UInt8
    """Whether the node may use each of all features, shape (features,)."""
    first: int
    last: int


class SplitTable(NamedTuple):
    """The best splits that were found; arrays of shape (nodes, ...)."""

    gain: Float64
    feature: Int32
    split_bin: Int32
    default_left: UInt8
    left: Int64
    """Sums of the rows that go left, shape as `NodeBatch.sums`."""
    right_bins: UInt32
    """Bins that go right where `split_bin` is `BY_SET`, a bit for each, shape (nodes, words)."""


class BinGains(NamedTuple):
    """Memory for the bins of a feature, used again from feature to feature."""

    prefix: Float64
    """Sums up to each bin, exact, of g and of h: shape (2, bins), or (2 * outputs, bins)."""
    gains: Float64
    """Gains of splits at each bin, for missing values going right and going left, shape (2, bins)."""
    order: Float64
    """An order of bins that sets are cut from, shape (bins,)."""
    outputs: Float64
    """Sums of each output that sets are searched with, see `split_sets.py`; shape (`OUTPUT_ROWS`, 2 * outputs)."""


@njit(inline="always")
def empty_gains(n_outputs: int, n_bins: int) -> BinGains:
    """Return memory for a feature of so many bins."""
    outputs = np.empty((OUTPUT_ROWS, 2 * n_outputs))
    return BinGains(np.empty((2 * n_outputs, n_bins)), np.empty((2, n_bins)), np.empty(n_bins), outputs)


@njit(inline="always")
def leaf_weight(g: float, h: float, regular: Regular, low: float, high: float) -> float:
    """Return the leaf value before the learning rate: -soft(g, alpha) / (h + lambda), limited by steps and bounds.

    A node of less than `least_h` is worth 0, as in XGBoost: its hessians are no ground to divide by. `least_h` is
    positive where lambda is 0 (`SplitRules.least_h`).
    """
    if h < regular.least_h:
        return min(max(0.0, low), high)
    soft, step = max(abs(g) - regular.alpha, 0.0), regular.max_step
    weight = -(soft if g > 0.0 else -soft) / (h + regular.reg_lambda)
    if step > 0.0:
        weight = min(max(weight, -step), step)
    return min(max(weight, low), high)


@njit(inline="always")
def gain_of_weight(g: float, h: float, weight: float, regular: Regular) -> float:
    """Return the loss reduction of a leaf of any weight."""
    penalty = (h + regular.reg_lambda) * weight * weight
    return -(2.0 * g * weight + penalty + 2.0 * regular.alpha * abs(weight))


@njit(cache=True, nogil=True)
def leaf_weights(sums: Int64, units: tuple[float, float], regular: Regular, bounds: Float64) -> Float64:
    """Leaf values of nodes: `sums` int64, shape (nodes, 2); `bounds` float64, shape (nodes, 2)."""
    unit_g, unit_h = units
    out = np.empty(len(sums))
    for n in range(len(sums)):
        g, h = sums[n, 0] * unit_g, sums[n, 1] * unit_h
        out[n] = leaf_weight(g, h, regular, bounds[n, 0], bounds[n, 1])
    return out


@njit(inline="always")
def leaf_gain(g: float, h: float, regular: Regular, low: float, high: float) -> float:
    """Loss reduction of the leaf that a node would be."""
    return gain_of_weight(g, h, leaf_weight(g, h, regular, low, high), regular)


@njit(nogil=True)
def split_value(
    sums: Int64, left: Int64, units: tuple[float, float], regular: Regular, low: float, high: float
) -> tuple[float, float, float]:
    """Return the gain of a node's own split, and the leaf values of the left and of the right child.

    `left` : sums of the left child; it and `sums` int64, g and h.
    """
    unit_g, unit_h = units
    lg, lh = left[0] * unit_g, left[1] * unit_h
    rg, rh = (sums[0] - left[0]) * unit_g, (sums[1] - left[1]) * unit_h
    of_left, of_right = leaf_weight(lg, lh, regular, low, high), leaf_weight(rg, rh, regular, low, high)
    gain = (
        gain_of_weight(lg, lh, of_left, regular)
        + gain_of_weight(rg, rh, of_right, regular)
        - leaf_gain(sums[0] * unit_g, sums[1] * unit_h, regular, low, high)
    )
    return gain, of_left, of_right


@njit(cache=True, nogil=True)
def split_values(
    sums: Int64, left: Int64, units: tuple[float, float], regular: Regular, bounds: Float64
) -> tuple[Float64, Float64, Float64]:
    """Return `split_value` of several nodes, whose sums and those of their left children have shape (nodes, 2)."""
    gain, of_left, of_right = np.empty(len(sums)), np.empty(len(sums)), np.empty(len(sums))
    for n in range(len(sums)):
        gain[n], of_left[n], of_right[n] = split_value(
            sums[n], left[n], units, regular, bounds[n, 0], bounds[n, 1]
        )
    return gain, of_left, of_right


@njit(inline="always")
def soft_square(g: float, alpha: float) -> float:
    """The square of what the L1 penalty leaves of g."""
    soft = max(abs(g) - alpha, 0.0)
    return soft * soft


@njit(inline="always")
def breaks(monotone: int, left: float, right: float) -> bool:
    """Whether the children's leaf values break a monotone constraint."""
    return (monotone > 0 and left > right) or (monotone < 0 and left < right)


@njit(nogil=True, error_model="numpy")
def _plain_gains(
    prefix: Float64, n_bins: int, missing: tuple[float, float], node: NodeTotals, regular: Regular, out: Float64
) -> None:
    """Closed-form gains of all bins of a feature: straight-line arithmetic that compilers turn into vectors.

    `prefix` : float64, shape (2, bins), sums of g and of h up to each bin; integers below 2**53, so exact. `missing` :
    those of the missing values that go left.
    """
    prefix_g, prefix_h = prefix[0], prefix[1]
    from_g, from_h = missing
    total_g, total_h, unit_g, unit_h = node.g, node.h, node.unit_g, node.unit_h
    reg_lambda, alpha, least_h = regular.reg_lambda, regular.alpha, regular.least_h
    if alpha == 0.0:
        for b in range(n_bins):
            g, h = prefix_g[b] + from_g, prefix_h[b] + from_h
            lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
            gain = lg * lg / (lh + reg_lambda) + rg * rg / (rh + reg_lambda)
            out[b] = gain if min(lh, rh) >= least_h else -np.inf
        return
    for b in range(n_bins):
        g, h = prefix_g[b] + from_g, prefix_h[b] + from_h
        lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
        gain = soft_square(lg, alpha) / (lh + reg_lambda) + soft_square(rg, alpha) / (rh + reg_lambda)
        out[b] = gain if min(lh, rh) >= least_h else -np.inf


@njit(nogil=True)
def _limited_gains(
    prefix: Float64, n_bins: int, missing: tuple[float, float], node: NodeTotals, regular: Regular, monotone: int,
    out: Float64,
) -> None:  # fmt: skip
    """Gains of all bins of a feature where leaf values have limits, as `_plain_gains`; -inf where a split is not
    allowed. The last bin is never held to `monotone`."""
    from_g, from_h = missing
    total_g, total_h, unit_g, unit_h = node.g, node.h, node.unit_g, node.unit_h
    least_h, low, high = regular.least_h, node.low, node.high
    for b in range(n_bins):
        g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
        lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
        out[b] = -np.inf
        if lh >= least_h and rh >= least_h:
            left, right = leaf_weight(lg, lh, regular, low, high), leaf_weight(rg, rh, regular, low, high)
            if not breaks(monotone if b < n_bins - 1 else 0, left, right):
                out[b] = gain_of_weight(lg, lh, left, regular) + gain_of_weight(rg, rh, right, regular)


@njit(nogil=True)
def running_sums(histogram: Int64, n_bins: int, prefix: Float64) -> None:
    """Sums of g and of h up to each bin, as exact floats; `prefix` float64, shape (2, at least n_bins)."""
    if histogram.ndim == 1:
        word = np.int64(0)
        for b in range(n_bins):
            word += histogram[b]
            prefix[0, b], prefix[1, b] = word >> np.int64(32), word & LOW_HALF
    else:
        sum_g, sum_h = np.int64(0), np.int64(0)
        for b in range(n_bins):
            sum_g += histogram[b, 0]
            sum_h += histogram[b, 1]
            prefix[0, b], prefix[1, b] = sum_g, sum_h


@njit(nogil=True)
def scan_feature(
    histogram: Int64, n_bins: int, node: NodeTotals, regular: Regular, monotone: int, found: BinGains
) -> bool:
    """Gains of all bins of one feature in one node, for missing values going right and going left.

    `histogram` starts with the feature's first bin. Writes `found` up to `n_bins`, gains for missing values going left
    only if any row lacks the feature; returns whether any does. The last bin divides present from missing values, which
    breaks no monotone constraint.
    """
    prefix, gains = found.prefix, found.gains
    running_sums(histogram, n_bins, prefix)
    missing = (node.g - prefix[0, n_bins - 1], node.h - prefix[1, n_bins - 1])
    some_missing = bool(missing[0] != 0 or missing[1] != 0)
    for side in range(2 if some_missing else 1):
        of_left = (0.0, 0.0) if side == 0 else missing
        if regular.plain:
            _plain_gains(prefix, n_bins, of_left, node, regular, gains[side])
        else:
            _limited_gains(prefix, n_bins, of_left, node, regular, monotone, gains[side])
    return some_missing


@njit(nogil=True)
def is_zero(histogram: Int64, entry: int) -> bool:
    """Whether an entry is 0."""
    if histogram.ndim == 1:
        return bool(histogram[entry] == 0)
    return bool((histogram[entry, 0] | histogram[entry, 1]) == 0)


@njit(nogil=True)
def _next_filled(histogram: Int64, entry: int, end: int) -> int:
    """Return the first entry of `[entry, end)` that is not 0, or `end`."""
    if histogram.ndim == 1:
        while entry + 4 <= end and (
            histogram[entry] | histogram[entry + 1] | histogram[entry + 2] | histogram[entry + 3]
        ) == 0:
            entry += 4
    while entry < end and is_zero(histogram, entry):
        entry += 1
    return entry


@njit(nogil=True)
def next_with_rows(histogram: Int64, slots: FeatureSlots, feature: int, last: int, width: int) -> int:
    """Return the first of the features `[feature, last)` in whose bins some row of a node is, or `last`. No split by
    others gains anything, which are most of the features of sparse rows.

    `width` : entries of a slot of the histogram.
    """
    offsets, begin, end = slots.offsets, slots.offsets[feature], slots.offsets[last]
    filled = _next_filled(histogram, (begin - slots.first_slot) * width, (end - slots.first_slot) * width)
    slot = slots.first_slot + filled // width
    while feature < last and offsets[feature + 1] <= slot:
        feature += 1
    return feature


@njit(nogil=True)
def top_of(values: Float64, n: int) -> float:
    """The largest of `values[:n]`, by four running maxima: none waits for another, as steps of a single one would."""
    first = second = third = fourth = -np.inf
    whole = n - n % 4
    for b in range(0, whole, 4):
        first, second = max(first, values[b]), max(second, values[b + 1])
        third, fourth = max(third, values[b + 2]), max(fourth, values[b + 3])
    for b in range(whole, n):
        first = max(first, values[b])
    return max(max(first, second), max(third, fourth))


@njit(nogil=True)
def _word_of(histogram: Int64, slot: int) -> Any:
    """Return a slot's sums as a word."""
    if histogram.ndim == 1:
        return histogram[slot]
    return (histogram[slot, 0] << np.int64(32)) + histogram[slot, 1]


@njit(cache=True, nogil=True)
def subtract(parent: Int64, sibling: Int64, out: Int64) -> None:
    """`out` = `parent` - `sibling`, arrays of as many slots; `out` is of words or pairs as `parent` is, or of words."""
    if out.ndim == 1:
        for s in range(len(out)):
            out[s] = _word_of(parent, s) - _word_of(sibling, s)
    elif sibling.ndim == 1:
        for s in range(len(out)):
            out[s, 0] = parent[s, 0] - (sibling[s] >> np.int64(32))
            out[s, 1] = parent[s, 1] - (sibling[s] & LOW_HALF)
    else:
        for s in range(len(out)):
            out[s, 0] = parent[s, 0] - sibling[s, 0]
            out[s, 1] = parent[s, 1] - sibling[s, 1]


@njit(inline="always")
def totals_of(nodes: NodeBatch, units: Float64, n: int) -> VectorTotals:
    """Return the totals of one of the nodes; `units` : shape (2 * outputs,)."""
    return VectorTotals(nodes.sums[n], units, nodes.bounds[n, 0], nodes.bounds[n, 1])


@njit(inline="always")
def of_output(node: VectorTotals, output: int) -> NodeTotals:
    """Return a node's totals in one output."""
    i, j = 2 * output, 2 * output + 1
    return NodeTotals(
        np.float64(node.sums[i]), np.float64(node.sums[j]), node.units[i], node.units[j], node.low, node.high
    )


@njit(inline="always")
def widest(n_bins: Int32, features: tuple[int, int]) -> int:
    """Return the most bins of the features in `[features)`."""
    most = 0
    for f in range(features[0], features[1]):
        most = max(most, n_bins[f])
    return most


@njit(inline="always")
def parent_gain(node: NodeTotals, regular: Regular) -> float:
    """Return the loss reduction of the leaf that a node would be, by the form of those of its children."""
    g, h = node.g * node.unit_g, node.h * node.unit_h
    if regular.plain and h >= regular.least_h:
        return soft_square(g, regular.alpha) / (h + regular.reg_lambda)
    return leaf_gain(g, h, regular, node.low, node.high)


@njit(inline="always")
def is_code(sets: SetRules, feature: int) -> bool:
    """Whether sets of its bins split a feature."""
    return len(sets.is_code) > 0 and sets.is_code[feature] != 0


@njit(inline="always")
def heavy_gain(g: float, h: float, low: float, high: float, regular: Regular) -> float:
    """Return the loss reduction of one output's value in a child; 0 where its hessians sum to less than `least_h`."""
    if h < regular.least_h:
        return 0.0
    if regular.plain:
        return soft_square(g, regular.alpha) / (h + regular.reg_lambda)
    return leaf_gain(g, h, regular, low, high)


@njit(nogil=True)
def _gain_of_right(right: Float64, node: VectorTotals, regular: Regular) -> float:
    """Return the gain of the split that sends rows of these sums right, before the parent's, summed over outputs; -inf
    where it is not allowed, for lack of a child's hessians in all outputs."""
    gain, left_h, right_h = 0.0, 0.0, 0.0
    for i in range(0, len(right), 2):
        unit_g, unit_h = node.units[i], node.units[i + 1]
        lg, lh = (node.sums[i] - right[i]) * unit_g, (node.sums[i + 1] - right[i + 1]) * unit_h
        rg, rh = right[i] * unit_g, right[i + 1] * unit_h
        of_left = heavy_gain(lg, lh, node.low, node.high, regular)
        gain += of_left + heavy_gain(rg, rh, node.low, node.high, regular)
        left_h, right_h = max(left_h, lh), max(right_h, rh)
    return gain if min(left_h, right_h) >= regular.least_h else -np.inf


@njit(inline="always")
def _with_lambda(regular: Regular, more: float) -> Regular:
    """Return the same penalties and limits with a larger lambda."""
    return Regular(
        regular.reg_lambda + more, regular.alpha, regular.max_step, regular.least_h, regular.plain, regular.monotone,
        regular.sets,
    )


@njit(nogil=True)
def bin_sums(histogram: Int64, n_bins: int, node: NodeTotals, sums: Float64) -> tuple[float, float]:
    """Write the sums of g and h of each bin of a feature, as exact floats, and return those of missing values;
    `sums` : shape (2, at least n_bins)."""
    running_sums(histogram, n_bins, sums)
    missing = (node.g - sums[0, n_bins - 1], node.h - sums[1, n_bins - 1])
    for b in range(n_bins - 1, 0, -1):
        sums[0, b] -= sums[0, b - 1]
        sums[1, b] -= sums[1, b - 1]
    return missing


@uncounted()
def code_sums(own: Int64, n_bins: int, node: VectorTotals, sums: Float64, missing: Float64) -> None:
    """Do `bin_sums` for all outputs, whose sums lie side by side in `own`: `sums` has shape (2 * outputs, at least
    n_bins), `missing` becomes those of missing values, shape (2 * outputs,)."""
    n_outputs = len(missing) // 2
    for k in range(n_outputs):
        of_bins = sums[2 * k : 2 * k + 2]
        missing[2 * k], missing[2 * k + 1] = bin_sums(own[k::n_outputs], n_bins, of_output(node, k), of_bins)


@uncounted()
def order_codes(sums: Float64, n_codes: int, units: Float64, regular: Regular, room: BinGains) -> CodeOrder:
    """Return the order of codes that sets are cut from: that of the leaf values which codes would have alone, or of the
    projections of these if they are vectors (`project`), those of too few rows before all others; or, where sets have
    one code, that of codes.

    `sums` : of each code, shape (2 * outputs, at least n_codes); leaf values and hessians lie there afterwards.
    """
    places, values, weights, rules = room.order, room.gains[0], room.gains[1], regular.sets
    for code in range(n_codes):
        places[code] = code
    if n_codes < rules.max_onehot:
        return CodeOrder(places, n_codes, 0)
    # Memory of places, until they are sorted, has the largest sum of hessians of any output of each code.
    heaviest, n_light, ordered = places, 0, _with_lambda(regular, rules.smooth)
    for code in range(n_codes):
        heaviest[code] = weights[code] = 0.0
    for i in range(0, len(units), 2):
        for code in range(n_codes):
            h = sums[i + 1, code] * units[i + 1]
            sums[i, code], sums[i + 1, code] = leaf_weight(sums[i, code] * units[i], h, ordered, -np.inf, np.inf), h
            heaviest[code], weights[code] = max(heaviest[code], h), weights[code] + h
    for code in range(n_codes):
        if heaviest[code] < rules.smooth:
            weights[code] = 0.0
    project(sums, weights, n_codes, room.outputs[DIRECTION], values)
    for code in range(n_codes):
        if heaviest[code] < rules.smooth:
            values[code], n_light = -np.inf, n_light + 1
    sort_places(values, n_codes, places)
    return CodeOrder(places, n_codes, n_light)


@njit(inline="always")
def _heaviest(sums: Float64, units: Float64) -> float:
    """Return the largest sum of hessians of any output; `sums` : shape (2 * outputs,)."""
    found = 0.0
    for j in range(1, len(units), 2):
        found = max(found, sums[j] * units[j])
    return found


@njit(inline="always")
def _heaviest_left(right: Float64, node: VectorTotals) -> float:
    """Return `_heaviest` of the rows that do not go right."""
    found = 0.0
    for j in range(1, len(right), 2):
        found = max(found, (node.sums[j] - right[j]) * node.units[j])
    return found


@uncounted()
def gains_of_sets(sums: Float64, node: VectorTotals, regular: Regular, order: CodeOrder, room: BinGains) -> None:
    """Write what a node's rows gain by each set that is tried, before the parent's gain, by the side of missing values,
    to `room.gains`; -inf where a set is not allowed.

    `sums` : of the node's bins, shape (2 * outputs, bins); those of missing values lie in `room.outputs`.
    """
    sets, n_codes, n, gains = regular.sets, order.n_codes, sets_of_side(order, regular.sets), room.gains
    missing, right, group = room.outputs[MISSING], room.outputs[RIGHT], room.outputs[GROUP]
    if n_codes < sets.max_onehot:
        for code in range(n):
            for i in range(len(right)):
                right[i] = sums[i, code]
            gains[1, code] = _gain_of_right(right, node, regular)
            for i in range(len(right)):
                right[i] += missing[i]
            gains[0, code] = _gain_of_right(right, node, regular)
        return
    scored = _with_lambda(regular, sets.l2)
    for side in (1, 0):
        for i in range(len(right)):
            right[i], group[i] = 0.0 if side == 1 else node.sums[i] - sums[i, n_codes], 0.0
        for at in range(n):
            place = np.int64(order.places[order.n_light + at if side == 1 else n_codes - 1 - at])
            for i in range(len(right)):
                right[i] += sums[i, place] if side == 1 else -sums[i, place]
                group[i] += sums[i, place]
            others = _heaviest_left(right, node) if side == 1 else _heaviest(right, node.units)
            gains[side, at] = -np.inf
            if min(_heaviest(group, node.units), others) >= sets.least_group:
                gains[side, at] = _gain_of_right(right, node, scored)
            if gains[side, at] > -np.inf:
                group[:] = 0.0


@njit(nogil=True)
def right_of_set(
    sums: Float64, n_codes: int, missing: tuple[float, float], default_left: int, right_bins: UInt32
) -> tuple[float, float]:
    """Return the sums of the rows that a set sends right; `sums` : of the node's bins, shape (2, bins)."""
    g, h = (0.0, 0.0) if default_left != 0 else missing
    for code in range(n_codes):
        if (right_bins[code >> 5] >> np.uint32(code & 31)) & np.uint32(1) != 0:
            g, h = g + sums[0, code], h + sums[1, code]
    return g, h


@uncounted()
def best_set(
    own: Int64, n_bins: int, node: VectorTotals, parent: float, regular: Regular, room: BinGains, out: SplitTable,
    at: tuple[int, int],
) -> float:  # fmt: skip
    """Write the best set of a feature's codes to a row of `out`, if it gains more than what is there; return what is
    there then, 0 where nothing gains. `own` begins with the feature's first bin, `parent` is the parent's gain.

    `at` : the row, and the feature.
    """
    row, feature = at
    sums, missing = room.prefix, room.outputs[MISSING]
    code_sums(own, n_bins, node, sums, missing)
    order = order_codes(sums, n_bins - 1, node.units, regular, room)
    code_sums(own, n_bins, node, sums, missing)
    gains_of_sets(sums, node, regular, order, room)
    best, place, side = best_of_sets(room.gains, order, regular.sets, parent, max(0.0, out.gain[row]))
    if place >= 0:
        write_set(place, side, order, regular.sets, out.right_bins[row])
        out.gain[row], out.feature[row], out.split_bin[row], out.default_left[row] = best, feature, BY_SET, side
        for i in range(0, len(missing), 2):
            of_missing = (missing[i], missing[i + 1])
            g, h = right_of_set(sums[i : i + 2], n_bins - 1, of_missing, side, out.right_bins[row])
            out.left[row, i], out.left[row, i + 1] = np.int64(node.sums[i] - g), np.int64(node.sums[i + 1] - h)
    return best


@njit(nogil=True)
def take_better(
    gains: Float64, n_bins: int, parent: float, best: float, out: SplitTable, row: int, feature: int, side: int
) -> int:  # fmt: skip
    """Write a feature's best split, with missing values on one side, to a row of `out` if it gains more than `best`;
    return its bin, the lowest among equals, or -1 where it does not. Sums of the left are the caller's to write."""
    top = top_of(gains, n_bins) - parent
    if not top > best:
        return -1
    place = 0
    while gains[place] - parent != top:
        place += 1
    out.gain[row], out.feature[row], out.split_bin[row], out.default_left[row] = top, feature, place, side
    return place


@njit(nogil=True)
def best_of_node(
    own: Int64, slots: FeatureSlots, features: FeatureRange, totals: VectorTotals, regular: Regular, room: BinGains,
    out: SplitTable, row: int,
) -> None:  # fmt: skip
    """Write the best split of a node of one output among some features to a row of `out`.

    Ties go to the lowest feature, then to missing right, then to the lowest bin. The gain of `out` stays as it is,
    -inf, where no split that is allowed gains anything.
    """
    offsets, n_bins, first_slot, monotone = slots.offsets, slots.n_bins, slots.first_slot, regular.monotone
    prefix, node = room.prefix, of_output(totals, 0)
    parent, best, coming = parent_gain(node, regular), 0.0, features.first
    for f in range(features.first, features.last):
        if f < coming:
            continue
        entry = offsets[f] - first_slot
        if is_zero(own, entry):
            coming = next_with_rows(own, slots, f, features.last, 1)
        if f < coming or features.usable[f] == 0:
            continue
        histogram = own[entry:]
        if is_code(regular.sets, f):
            best = best_set(histogram, n_bins[f], totals, parent, regular, room, out, (row, f))
            continue
        some_missing = scan_feature(histogram, n_bins[f], node, regular, monotone[f], room)
        for side in range(2 if some_missing else 1):
            place = take_better(room.gains[side], n_bins[f], parent, best, out, row, f, side)
            if place < 0:
                continue
            best, last = out.gain[row], n_bins[f] - 1
            out.left[row, 0] = np.int64(prefix[0, place] + (node.g - prefix[0, last] if side == 1 else 0.0))
            out.left[row, 1] = np.int64(prefix[1, place] + (node.h - prefix[1, last] if side == 1 else 0.0))


@njit(cache=True, nogil=True)
def best_per_node(
    stack: Stack, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], members: tuple[int, int],
    units: Float64, regular: Regular, out: SplitTable,
) -> None:  # fmt: skip
    """Do `best_of_node` for the nodes `[members)` of a stack.

    Unless the stack has no parents, a node's histogram is computed here first: its parent's less its sibling's.
    """
    offsets, first_slot = slots.offsets, slots.first_slot
    allowed, parents, siblings = nodes.allowed, stack.parents, stack.siblings
    most = widest(slots.n_bins, features)
    room = empty_gains(1, most)
    low_slot, high_slot = offsets[features[0]] - first_slot, offsets[features[1]] - first_slot
    for n in range(members[0], members[1]):
        row = stack.rows[n]
        own, usable = stack.histograms[stack.places[n]], allowed[row if len(allowed) > 1 else 0]
        if len(parents) > 0:
            subtract(
                parents[stack.parent_places[n], low_slot:high_slot],
                siblings[stack.sibling_places[n], low_slot:high_slot], own[low_slot:high_slot],
            )  # fmt: skip
        searched = FeatureRange(usable, features[0], features[1])
        best_of_node(own, slots, searched, totals_of(nodes, units, row), regular, room, out, row)
