"""Split search for trees whose leaves are vectors: the gain of a split is the sum of its gains in all outputs.

Histograms hold the outputs of a slot side by side (see `histogram.py`), sums and units g and h of one output after the
other. As in XGBoost, an output whose hessians sum to less than `min_child_weight` in a node has the value 0 there and
gains nothing by it. A child in which that is true of all outputs is not worth having, so such a split is not allowed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.split import (
    BinGains,
    FeatureRange,
    FeatureSlots,
    NodeBatch,
    NodeTotals,
    Regular,
    SplitTable,
    Stack,
    VectorTotals,
    best_set,
    empty_gains,
    heavy_gain,
    is_code,
    is_zero,
    leaf_gain,
    leaf_weight,
    next_with_rows,
    running_sums,
    soft_square,
    subtract,
    take_better,
    totals_of,
    widest,
)
from daskboost.devices.cpu.split_level import add_sets, best_in_level, may_split, order_level
from daskboost.devices.cpu.split_sets import CodeOrder
from daskboost.dtypes import Float64, Int64


class VectorGains(NamedTuple):
    """Memory for the bins of a feature, used again from feature to feature."""

    found: BinGains
    heaviest: Float64
    """The largest sums of hessians of any output on the left and on the right, shape (2, bins)."""


class LevelMemory(NamedTuple):
    """Memory for the search of a level's split."""

    room: VectorGains
    parents: Float64
    """Gains of the nodes themselves, shape (nodes,)."""
    summed: Float64
    """Gains of all nodes together, shape (2, bins)."""
    of_codes: Float64
    """Sums of all nodes by bin, shape (2 * outputs, bins)."""


@njit(inline="always")
def _gain(g: float, h: float, regular: Regular) -> float:
    """Loss reduction of one output's value, in the form that trees record."""
    if h < regular.least_h:
        return 0.0
    return leaf_gain(g, h, regular, -np.inf, np.inf)


@njit(cache=True, nogil=True)
def vector_weights(sums: Int64, units: Float64, regular: Regular) -> Float64:
    """Leaf values of nodes; `sums` int64, shape (nodes, 2 * outputs). Float64, shape (nodes, outputs)."""
    out = np.zeros((len(sums), len(units) // 2))
    for n in range(len(sums)):
        for k in range(out.shape[1]):
            g, h = sums[n, 2 * k] * units[2 * k], sums[n, 2 * k + 1] * units[2 * k + 1]
            out[n, k] = leaf_weight(g, h, regular, -np.inf, np.inf)
    return out


@njit(nogil=True)
def gain_of_vectors(sums: Int64, left: Int64, units: Float64, regular: Regular) -> float:
    """Return the gain of a node's own split; `sums` and those of the left child `left`, int64, shape (2 * outputs,)."""
    children, parent = 0.0, 0.0
    for k in range(len(units) // 2):
        i, j = 2 * k, 2 * k + 1
        lg, lh = left[i] * units[i], left[j] * units[j]
        rg, rh = (sums[i] - left[i]) * units[i], (sums[j] - left[j]) * units[j]
        children += _gain(lg, lh, regular) + _gain(rg, rh, regular)
        parent += _gain(sums[i] * units[i], sums[j] * units[j], regular)
    return children - parent


@njit(cache=True, nogil=True)
def vector_gains(sums: Int64, left: Int64, units: Float64, regular: Regular) -> Float64:
    """Gains of nodes' own splits; `sums` and those of the left children `left`, int64, shape (nodes, 2 * outputs)."""
    out = np.zeros(len(sums))
    for n in range(len(sums)):
        out[n] = gain_of_vectors(sums[n], left[n], units, regular)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _parent_gain(sums: Int64, units: Float64, regular: Regular) -> float:
    total = 0.0
    for k in range(len(units) // 2):
        g, h = sums[2 * k] * units[2 * k], sums[2 * k + 1] * units[2 * k + 1]
        total += heavy_gain(g, h, -np.inf, np.inf, regular)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _add_gains(
    prefix: Float64, n_bins: int, missing: tuple[float, float], node: NodeTotals, regular: Regular, gains: Float64,
    heaviest: Float64,
) -> None:  # fmt: skip
    """Add one output's gains of all bins of a feature; `heaviest` becomes the largest sums of hessians on the left and
    on the right, shape (2, bins)."""
    left_h, right_h = heaviest[0], heaviest[1]
    from_g, from_h = missing
    total_g, total_h, unit_g, unit_h = node.g, node.h, node.unit_g, node.unit_h
    reg_lambda, alpha, least_h = regular.reg_lambda, regular.alpha, regular.least_h
    for b in range(n_bins):
        g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
        lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
        if regular.plain:
            left = soft_square(lg, alpha) / (lh + reg_lambda)
            right = soft_square(rg, alpha) / (rh + reg_lambda)
            gains[b] += (left if lh >= least_h else 0.0) + (right if rh >= least_h else 0.0)
        else:
            gains[b] += _gain(lg, lh, regular) + _gain(rg, rh, regular)
        left_h[b], right_h[b] = max(left_h[b], lh), max(right_h[b], rh)


@njit(cache=True, nogil=True)
def scan_vectors(
    histogram: Int64, n_bins: int, totals: Int64, units: Float64, regular: Regular, found: BinGains, heaviest: Float64
) -> bool:
    """`scan_feature` of `split.py`, summed over outputs; `histogram` starts with the feature's first entry.

    `heaviest` is scratch: float64, shape (2, bins).
    """
    width, prefix = len(units) // 2, found.prefix
    some_missing = False
    for k in range(width):
        running_sums(histogram[k::width], n_bins, prefix[2 * k : 2 * k + 2])
        some_missing = some_missing or totals[2 * k] != prefix[2 * k, n_bins - 1]
        some_missing = some_missing or totals[2 * k + 1] != prefix[2 * k + 1, n_bins - 1]
    for side in range(2 if some_missing else 1):
        out = found.gains[side]
        out[:n_bins] = 0.0
        heaviest[:, :n_bins] = 0.0
        for k in range(width):
            i, j, last = 2 * k, 2 * k + 1, n_bins - 1
            from_g = totals[i] - prefix[i, last] if side == 1 else 0.0
            from_h = totals[j] - prefix[j, last] if side == 1 else 0.0
            node = NodeTotals(np.float64(totals[i]), np.float64(totals[j]), units[i], units[j], -np.inf, np.inf)
            _add_gains(prefix[i : j + 1], n_bins, (from_g, from_h), node, regular, out, heaviest)
        for b in range(n_bins):
            if min(heaviest[0, b], heaviest[1, b]) < regular.least_h:
                out[b] = -np.inf
    return some_missing


@njit(nogil=True)
def best_of_vectors(
    own: Int64, slots: FeatureSlots, features: FeatureRange, node: VectorTotals, regular: Regular, room: VectorGains,
    out: SplitTable, row: int,
) -> None:  # fmt: skip
    """`best_of_node` of `split.py` for vectors, with the same ties."""
    offsets, n_bins, first_slot = slots.offsets, slots.n_bins, slots.first_slot
    totals, units, found = node.sums, node.units, room.found
    prefix, width = found.prefix, len(units) // 2
    parent, best, coming = _parent_gain(totals, units, regular), 0.0, features.first
    for f in range(features.first, features.last):
        if f < coming:
            continue
        entry = (offsets[f] - first_slot) * width
        if is_zero(own, entry):
            coming = next_with_rows(own, slots, f, features.last, width)
        if f < coming or features.usable[f] == 0:
            continue
        histogram = own[entry:]
        if is_code(regular.sets, f):
            best = best_set(histogram, n_bins[f], node, parent, regular, found, out, (row, f))
            continue
        some_missing = scan_vectors(histogram, n_bins[f], totals, units, regular, found, room.heaviest)
        for side in range(2 if some_missing else 1):
            place = take_better(found.gains[side], n_bins[f], parent, best, out, row, f, side)
            if place < 0:
                continue
            best, last = out.gain[row], n_bins[f] - 1
            for i in range(2 * width):
                missing = totals[i] - prefix[i, last] if side == 1 else 0.0
                out.left[row, i] = np.int64(prefix[i, place] + missing)


@njit(cache=True, nogil=True)
def best_per_node(
    stack: Stack, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], members: tuple[int, int],
    units: Float64, regular: Regular, out: SplitTable,
) -> None:  # fmt: skip
    """`best_per_node` of `split.py` for vectors: the same nodes, histograms and ties."""
    offsets, n_bins, first_slot = slots.offsets, slots.n_bins, slots.first_slot
    allowed, parents, siblings = nodes.allowed, stack.parents, stack.siblings
    width, most = len(units) // 2, widest(n_bins, features)
    room = VectorGains(empty_gains(width, most), np.empty((2, most)))
    low, high = (offsets[features[0]] - first_slot) * width, (offsets[features[1]] - first_slot) * width
    for n in range(members[0], members[1]):
        row = stack.rows[n]
        own, usable = stack.histograms[stack.places[n]], allowed[row if len(allowed) > 1 else 0]
        if len(parents) > 0:
            subtract(
                parents[stack.parent_places[n], low:high], siblings[stack.sibling_places[n], low:high], own[low:high]
            )
        searched = FeatureRange(usable, features[0], features[1])
        best_of_vectors(own, slots, searched, totals_of(nodes, units, row), regular, room, out, row)


@njit(cache=True, nogil=True)
def best_of_level(
    histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], units: Float64,
    regular: Regular, out: SplitTable,
) -> None:  # fmt: skip
    """`best_of_level` of `split_level.py` for vectors."""
    n_outputs, most = len(units) // 2, widest(slots.n_bins, features)
    parents = np.array([_parent_gain(nodes.sums[n], units, regular) for n in range(len(nodes.sums))])
    room, of_codes = VectorGains(empty_gains(n_outputs, most), np.empty((2, most))), np.empty((2 * n_outputs, most))
    memory = LevelMemory(room, parents, np.empty((2, most)), of_codes)
    _search_level(histograms, nodes, slots, features, units, regular, memory, out)


@uncounted()
def _search_level(
    histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int], units: Float64,
    regular: Regular, memory: LevelMemory, out: SplitTable,
) -> None:  # fmt: skip
    """Do `best_of_level` in memory that is given."""
    found, best, n_outputs = memory.room.found, 0.0, len(units) // 2
    for f in range(features[0], features[1]):
        if not may_split(nodes, f):
            continue
        n_bins, begin, any_missing = slots.n_bins[f], (slots.offsets[f] - slots.first_slot) * n_outputs, False
        sums, order = memory.summed[:, :n_bins], CodeOrder(found.order, 0, 0)
        if is_code(regular.sets, f):
            order = order_level(histograms[:, begin:], n_bins, nodes, units, regular, found, memory.of_codes)
        sums[:] = 0.0
        for n in range(len(nodes.sums)):
            own, parent, totals = histograms[n, begin:], memory.parents[n], totals_of(nodes, units, n)
            if is_code(regular.sets, f):
                add_sets(own, n_bins, totals, parent, regular, order, found, sums)
            else:
                some_missing = _add_to_level(own, n_bins, totals, parent, regular, memory.room, sums)
                any_missing = any_missing or some_missing
        best = best_in_level(sums, any_missing, regular, order, f, best, out, 0)


@uncounted()
def _add_to_level(
    own: Int64, n_bins: int, node: VectorTotals, parent: float, regular: Regular, room: VectorGains, sums: Float64
) -> bool:
    """Do `add_to_level` of `split_level.py` for thresholds; `parent` is the node's gain."""
    some_missing = scan_vectors(own, n_bins, node.sums, node.units, regular, room.found, room.heaviest)
    for side in range(2):
        gains = room.found.gains[side if some_missing else 0]
        for b in range(n_bins):
            if gains[b] > -np.inf:
                sums[side, b] += gains[b] - parent
    return bool(some_missing)
