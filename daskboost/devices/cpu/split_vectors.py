"""Split search for trees whose leaves are vectors: the gain of a split is the sum of its gains in all outputs.

Histograms hold the outputs of a slot side by side (see `histogram.py`), sums and units g and h of one output after the
other. As in XGBoost, an output whose hessians sum to less than `min_child_weight` in a node has the value 0 there and
gains nothing by it. A child in which that is true of all outputs is not worth having, so such a split is not allowed.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.split import (
    leaf_gain,
    leaf_weight,
    running_sums,
    soft_square,
    subtract,
    top_of,
)
from daskboost.dtypes import Float64, Int32, Int64, UInt8


@njit(inline="always")
def _gain(g: float, h: float, reg_lambda: float, alpha: float, step: float, least_h: float) -> float:
    """Loss reduction of one output's value, in the form that trees record."""
    if h < least_h:
        return 0.0
    return leaf_gain(g, h, reg_lambda, alpha, step, least_h, -np.inf, np.inf)


@njit(cache=True, nogil=True)
def vector_weights(sums: Int64, units: Float64, regular: tuple[float, float, float, float]) -> Float64:
    """Leaf values of nodes; `sums` int64, shape (nodes, 2 * outputs). Float64, shape (nodes, outputs)."""
    reg_lambda, alpha, step, least_h = regular
    out = np.zeros((len(sums), len(units) // 2))
    for n in range(len(sums)):
        for k in range(out.shape[1]):
            g, h = sums[n, 2 * k] * units[2 * k], sums[n, 2 * k + 1] * units[2 * k + 1]
            out[n, k] = leaf_weight(g, h, reg_lambda, alpha, step, least_h, -np.inf, np.inf)
    return out


@njit(cache=True, nogil=True)
def vector_gains(sums: Int64, left: Int64, units: Float64, regular: tuple[float, float, float, float]) -> Float64:
    """Gains of nodes' own splits; `sums` and those of the left children `left`, int64, shape (nodes, 2 * outputs)."""
    reg_lambda, alpha, step, least_h = regular
    out = np.zeros(len(sums))
    for n in range(len(sums)):
        children, parent = 0.0, 0.0
        for k in range(len(units) // 2):
            i, j = 2 * k, 2 * k + 1
            lg, lh = left[n, i] * units[i], left[n, j] * units[j]
            rg, rh = (sums[n, i] - left[n, i]) * units[i], (sums[n, j] - left[n, j]) * units[j]
            children += _gain(lg, lh, reg_lambda, alpha, step, least_h) + _gain(
                rg, rh, reg_lambda, alpha, step, least_h
            )
            parent += _gain(sums[n, i] * units[i], sums[n, j] * units[j], reg_lambda, alpha, step, least_h)
        out[n] = children - parent
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _parent_gain(
    sums: Int64, units: Float64, regular: tuple[float, float, float, float], plain: bool
) -> float:
    reg_lambda, alpha, step, least_h = regular
    total = 0.0
    for k in range(len(units) // 2):
        g, h = sums[2 * k] * units[2 * k], sums[2 * k + 1] * units[2 * k + 1]
        if plain:
            total += soft_square(g, alpha) / (h + reg_lambda) if h >= least_h else 0.0
        else:
            total += _gain(g, h, reg_lambda, alpha, step, least_h)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _add_gains(
    prefix: Float64, n_bins: int, from_g: float, from_h: float, total_g: float, total_h: float, unit_g: float,
    unit_h: float, regular: tuple[float, float, float, float], plain: bool, gains: Float64, left_h: Float64,
    right_h: Float64,
) -> None:  # fmt: skip
    """Add one output's gains of all bins of a feature; `left_h`, `right_h` become the largest sums of hessians."""
    reg_lambda, alpha, step, least_h = regular
    for b in range(n_bins):
        g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
        lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
        if plain:
            left = soft_square(lg, alpha) / (lh + reg_lambda)
            right = soft_square(rg, alpha) / (rh + reg_lambda)
            gains[b] += (left if lh >= least_h else 0.0) + (right if rh >= least_h else 0.0)
        else:
            gains[b] += _gain(lg, lh, reg_lambda, alpha, step, least_h) + _gain(
                rg, rh, reg_lambda, alpha, step, least_h
            )
        left_h[b], right_h[b] = max(left_h[b], lh), max(right_h[b], rh)


@njit(cache=True, nogil=True)
def scan_vectors(
    histogram: Int64, n_bins: int, totals: Int64, units: Float64, regular: tuple[float, float, float, float],
    plain: bool, prefix: Float64, gains: Float64, heaviest: Float64,
) -> bool:  # fmt: skip
    """`scan_feature` of `split.py`, summed over outputs; `histogram` starts with the feature's first entry.

    Writes `prefix[2 k : 2 k + 2]`, the running sums of output k, and `gains[0]`, `gains[1]` for missing values going
    right and left. `heaviest` is scratch. All float64, shapes (2 * outputs, bins), (2, bins), (2, bins).
    """
    width = len(units) // 2
    some_missing = False
    for k in range(width):
        running_sums(histogram[k::width], n_bins, prefix[2 * k : 2 * k + 2])
        some_missing = some_missing or totals[2 * k] != prefix[2 * k, n_bins - 1]
        some_missing = some_missing or totals[2 * k + 1] != prefix[2 * k + 1, n_bins - 1]
    least_h = regular[3]
    for side in range(2 if some_missing else 1):
        out = gains[side]
        out[:n_bins] = 0.0
        heaviest[:, :n_bins] = 0.0
        for k in range(width):
            i, j, last = 2 * k, 2 * k + 1, n_bins - 1
            from_g = totals[i] - prefix[i, last] if side == 1 else 0.0
            from_h = totals[j] - prefix[j, last] if side == 1 else 0.0
            _add_gains(
                prefix[i : j + 1], n_bins, from_g, from_h, np.float64(totals[i]), np.float64(totals[j]), units[i],
                units[j], regular, plain, out, heaviest[0], heaviest[1],
            )  # fmt: skip
        for b in range(n_bins):
            if min(heaviest[0, b], heaviest[1, b]) < least_h:
                out[b] = -np.inf
    return some_missing


@njit(inline="always")
def _widest(n_bins: Int32, features: tuple[int, int]) -> int:
    widest = 0
    for f in range(features[0], features[1]):
        widest = max(widest, n_bins[f])
    return widest


@njit(cache=True, nogil=True)
def best_per_node(
    histograms: Int64, places: Int64, parents: Int64, parent_places: Int64, siblings: Int64, sibling_places: Int64,
    rows: Int64, first_slot: int, sums: Int64, allowed: UInt8, slot_offsets: Int64, n_bins: Int32,
    features: tuple[int, int], nodes: tuple[int, int], units: Float64, regular: tuple[float, float, float, float],
    plain: bool, gain: Float64, feature: Int32, split_bin: Int32, default_left: UInt8, left_sums: Int64,
) -> None:  # fmt: skip
    """`best_per_node` of `split.py` for vectors: the same nodes, histograms and ties."""
    width, widest = len(units) // 2, _widest(n_bins, features)
    prefix, gains, heaviest = np.empty((2 * width, widest)), np.empty((2, widest)), np.empty((2, widest))
    low = (slot_offsets[features[0]] - first_slot) * width
    high = (slot_offsets[features[1]] - first_slot) * width
    for n in range(nodes[0], nodes[1]):
        row = rows[n]
        own, usable = histograms[places[n]], allowed[row if len(allowed) > 1 else 0]
        if len(parents) > 0:
            subtract(parents[parent_places[n], low:high], siblings[sibling_places[n], low:high], own[low:high])
        totals = sums[row]
        parent = _parent_gain(totals, units, regular, plain)
        best = 0.0
        for f in range(features[0], features[1]):
            if usable[f] == 0:
                continue
            some_missing = scan_vectors(
                own[(slot_offsets[f] - first_slot) * width :], n_bins[f], totals, units, regular, plain, prefix, gains,
                heaviest,
            )  # fmt: skip
            for side in range(2 if some_missing else 1):
                top = top_of(gains[side], n_bins[f]) - parent
                if not top > best:
                    continue
                place = 0
                while gains[side, place] - parent != top:
                    place += 1
                best = top
                gain[row], feature[row], split_bin[row], default_left[row] = top, f, place, side
                last = n_bins[f] - 1
                for i in range(2 * width):
                    missing = totals[i] - prefix[i, last] if side == 1 else 0.0
                    left_sums[row, i] = np.int64(prefix[i, place] + missing)


@njit(cache=True, nogil=True)
def best_of_level(
    histograms: Int64, first_slot: int, sums: Int64, allowed: UInt8, slot_offsets: Int64, n_bins: Int32,
    features: tuple[int, int], units: Float64, regular: tuple[float, float, float, float], plain: bool,
) -> tuple[float, int, int, int]:  # fmt: skip
    """`best_of_level` of `split.py` for vectors."""
    width, widest = len(units) // 2, _widest(n_bins, features)
    prefix, gains, heaviest = np.empty((2 * width, widest)), np.empty((2, widest)), np.empty((2, widest))
    summed = np.empty((2, widest))
    parents = np.array([_parent_gain(sums[n], units, regular, plain) for n in range(len(sums))])
    best_gain, best_feature, best_bin, best_default = 0.0, -1, -1, 0
    for f in range(features[0], features[1]):
        usable, any_missing = True, False
        for n in range(len(sums)):
            usable = usable and allowed[n, f] != 0
        if not usable:
            continue
        summed[:] = 0.0
        for n in range(len(sums)):
            some_missing = scan_vectors(
                histograms[n, (slot_offsets[f] - first_slot) * width :], n_bins[f], sums[n], units, regular, plain,
                prefix, gains, heaviest,
            )  # fmt: skip
            any_missing = any_missing or some_missing
            for side in range(2):
                found = gains[side if some_missing else 0]
                for b in range(n_bins[f]):
                    if found[b] > -np.inf:
                        summed[side, b] += found[b] - parents[n]
        for side in range(2 if any_missing else 1):
            for b in range(n_bins[f]):
                if summed[side, b] > best_gain:
                    best_gain, best_feature, best_bin, best_default = summed[side, b], f, b, side
    return best_gain, best_feature, best_bin, best_default
