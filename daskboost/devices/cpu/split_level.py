"""Split search for symmetric trees: one split for all nodes of a level, by what it gains in all of them together.

Sums of gains run in the order of nodes, so they do not depend on threads. A node in which a split is not allowed for
lack of weight adds nothing; one in which it breaks a monotone constraint rules it out. Sets of categories are cut from
one order for the whole level: that of the leaf values that codes would have alone among the rows of all its nodes.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.split import (
    BinGains,
    FeatureSlots,
    NodeBatch,
    NodeTotals,
    Regular,
    SplitTable,
    VectorTotals,
    bin_sums,
    breaks,
    code_sums,
    empty_gains,
    gains_of_sets,
    is_code,
    leaf_gain,
    leaf_weight,
    of_output,
    order_codes,
    right_of_set,
    running_sums,
    scan_feature,
    totals_of,
    widest,
)
from daskboost.devices.cpu.split_sets import MISSING, CodeOrder, best_of_sets, sets_of_side, write_set
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Float64, Int64


@njit(nogil=True)
def add_to_level(
    own: Int64, n_bins: int, totals: VectorTotals, regular: Regular, feature: int, order: CodeOrder, found: BinGains,
    sums: Float64,
) -> bool:  # fmt: skip
    """Add the gains of a feature's splits in one node of one output to `sums`, for missing values going right and left,
    float64 of shape (2, bins); whether the node has missing values. `own` begins with the feature's first bin.

    `order` : of a feature of codes, which sets are cut from; of others without meaning.
    """
    right, left, monotone, node = found.gains[0], found.gains[1], regular.monotone[feature], of_output(totals, 0)
    parent = leaf_gain(node.g * node.unit_g, node.h * node.unit_h, regular, node.low, node.high)
    if is_code(regular.sets, feature):
        add_sets(own, n_bins, totals, parent, regular, order, found, sums)
        return True
    some_missing = scan_feature(own, n_bins, node, regular, 0, found)
    for b in range(n_bins):
        if right[b] > -np.inf:
            sums[0, b] += right[b] - parent
        other = left[b] if some_missing else right[b]
        if other > -np.inf:
            sums[1, b] += other - parent
    if monotone != 0:
        _rule_out(found.prefix, n_bins, node, regular, monotone, sums)
    return some_missing


@uncounted()
def add_sets(
    own: Int64, n_bins: int, node: VectorTotals, parent: float, regular: Regular, order: CodeOrder, found: BinGains,
    sums: Float64,
) -> None:  # fmt: skip
    """Do `add_to_level` for sets of a feature of codes; `parent` is the node's gain."""
    code_sums(own, n_bins, node, found.prefix, found.outputs[MISSING])
    gains_of_sets(found.prefix, node, regular, order, found)
    for i in range(sets_of_side(order, regular.sets)):
        for side in range(2):
            if found.gains[side, i] > -np.inf:
                sums[side, i] += found.gains[side, i] - parent


@uncounted()
def add_codes(own: Int64, n_bins: int, node: VectorTotals, found: BinGains, sums: Float64) -> None:
    """Add a node's sums of g and h by bin to those of a level, shape (2 * outputs, at least n_bins)."""
    code_sums(own, n_bins, node, found.prefix, found.outputs[MISSING])
    for i in range(len(node.units)):
        for b in range(n_bins):
            sums[i, b] += found.prefix[i, b]


@njit(nogil=True)
def best_in_level(
    sums: Float64, any_missing: bool, regular: Regular, order: CodeOrder, feature: int, best: float, out: SplitTable,
    row: int,
) -> float:  # fmt: skip
    """Write a feature's best split to a row of `out`, but for its sums, if its gain in the level is more than `best`;
    return the larger of the two. `sums` of its bins and `any_missing` are of `add_to_level`.

    Ties go to missing right, then to the lowest bin, or to the set that is tried first.
    """
    if is_code(regular.sets, feature):
        gain, place, side = best_of_sets(sums, order, regular.sets, 0.0, best)
        if place >= 0:
            write_set(place, side, order, regular.sets, out.right_bins[row])
            out.gain[row], out.feature[row], out.split_bin[row], out.default_left[row] = gain, feature, BY_SET, side
        return gain
    for side in range(2 if any_missing else 1):
        for b in range(sums.shape[1]):
            if sums[side, b] > best:
                best = sums[side, b]
                out.gain[row], out.feature[row], out.split_bin[row], out.default_left[row] = best, feature, b, side
    return best


@njit(cache=True, nogil=True)
def best_of_level(
    histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], units: Float64,
    regular: Regular, out: SplitTable,
) -> None:  # fmt: skip
    """Write the split among some features whose gain, summed over all nodes, is largest, to the first row of `out`,
    but for its sums; the row stays as it is where no split gains anything. `nodes` says of each what is allowed."""
    most = widest(slots.n_bins, features)
    _search_level(histograms, nodes, slots, features, units, regular, (empty_gains(1, most), np.empty((2, most))), out)


@njit(inline="always")
def may_split(nodes: NodeBatch, feature: int) -> bool:
    """Whether all nodes of a level may use a feature."""
    usable = True
    for n in range(len(nodes.sums)):
        usable = usable and nodes.allowed[n, feature] != 0
    return usable


@uncounted()
def _search_level(
    histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], units: Float64,
    regular: Regular, memory: tuple[BinGains, Float64], out: SplitTable,
) -> None:  # fmt: skip
    """Do `best_of_level` in memory for the bins of a feature, and for the gains of all nodes together."""
    (found, of_level), best = memory, 0.0
    for f in range(features[0], features[1]):
        if not may_split(nodes, f):
            continue
        n_bins, begin, any_missing = slots.n_bins[f], slots.offsets[f] - slots.first_slot, False
        sums, order = of_level[:, :n_bins], CodeOrder(found.order, 0, 0)
        if is_code(regular.sets, f):
            order = order_level(histograms[:, begin:], n_bins, nodes, units, regular, found, sums)
        sums[:] = 0.0
        for n in range(len(nodes.sums)):
            some_missing = add_to_level(
                histograms[n, begin:], n_bins, totals_of(nodes, units, n), regular, f, order, found, sums
            )
            any_missing = any_missing or some_missing
        best = best_in_level(sums, any_missing, regular, order, f, best, out, 0)


@uncounted()
def order_level(
    histograms: Int64, n_bins: int, nodes: NodeBatch, units: Float64, regular: Regular, found: BinGains, sums: Float64
) -> CodeOrder:
    """Return the order of a feature's codes by the rows of all nodes of a level; `histograms` begin with its first bin,
    `sums` is memory, shape (2 * outputs, at least n_bins)."""
    sums[:] = 0.0
    for n in range(len(nodes.sums)):
        add_codes(histograms[n], n_bins, totals_of(nodes, units, n), found, sums)
    order: CodeOrder = order_codes(sums, n_bins - 1, units, regular, found)
    return order


@njit(cache=True, nogil=True)
def _rule_out(
    prefix: Float64, n_bins: int, node: NodeTotals, regular: Regular, monotone: int, sums: Float64
) -> None:
    """Set the sums of splits, for missing values going right and left, to -inf where they break a monotone constraint
    in this node; `prefix` of `running_sums`."""
    total_g, total_h, unit_g, unit_h = node.g, node.h, node.unit_g, node.unit_h
    for side in range(2):
        from_g = 0.0 if side == 0 else total_g - prefix[0, n_bins - 1]
        from_h = 0.0 if side == 0 else total_h - prefix[1, n_bins - 1]
        for b in range(n_bins - 1):
            g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
            left = leaf_weight(g * unit_g, h * unit_h, regular, node.low, node.high)
            right = leaf_weight((total_g - g) * unit_g, (total_h - h) * unit_h, regular, node.low, node.high)
            if breaks(monotone, left, right):
                sums[side, b] = -np.inf


@njit(nogil=True)
def left_of_node(
    own: Int64, n_bins: int, node: NodeTotals, split: SplitTable, row: int, sums: Float64
) -> tuple[float, float]:
    """Return the sums of a node's rows that go left under one split, missing ones included.

    `own` begins with the first bin of the split's feature; `sums` is memory, shape (2, at least n_bins).
    """
    default_left = split.default_left[row]
    if split.split_bin[row] == BY_SET:
        missing = bin_sums(own, n_bins, node, sums)
        g, h = right_of_set(sums, n_bins - 1, missing, default_left, split.right_bins[row])
        return node.g - g, node.h - h
    running_sums(own, n_bins, sums)
    place, last = split.split_bin[row], n_bins - 1
    if default_left == 0:
        return sums[0, place], sums[1, place]
    return sums[0, place] + (node.g - sums[0, last]), sums[1, place] + (node.h - sums[1, last])


@njit(cache=True, nogil=True)
def left_sums(histograms: Int64, slots: FeatureSlots, sums: Int64, split: SplitTable, out: Int64) -> None:
    """Sum each node's rows that go left under the split in the first row of a table into `out`; it and `sums` int64,
    shape (nodes, 2)."""
    feature = split.feature[0]
    n_bins, begin = slots.n_bins[feature], slots.offsets[feature] - slots.first_slot
    room = np.empty((2, n_bins))
    for n in range(len(sums)):
        totals = NodeTotals(np.float64(sums[n, 0]), np.float64(sums[n, 1]), 0.0, 0.0, 0.0, 0.0)
        g, h = left_of_node(histograms[n, begin:], n_bins, totals, split, 0, room)
        out[n, 0], out[n, 1] = np.int64(g), np.int64(h)
