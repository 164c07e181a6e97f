"""Split search: the gain of every (feature, bin, default direction), from integer histograms.

Sums stay integers up to the last step; gains are float64 functions of single pairs of integers, so they do not
depend on who computes them. Formulae: Chen and Guestrin, "XGBoost: a scalable tree boosting system" (2016), eq. 6
and 7, without the factor 1/2, as XGBoost reports gains.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from daskboost.dtypes import Float64, Int32, Int64, UInt8

LEAST_GAIN = 1e-6
"""Gains at or below this are noise (XGBoost's kRtEps)."""


@njit(inline="always")
def leaf_weight(g: float, h: float, reg_lambda: float, alpha: float, step: float, low: float, high: float) -> float:
    """The leaf value before the learning rate: -soft(g, alpha) / (h + lambda), limited by `step` and bounds."""
    if h <= 0.0:
        return min(max(0.0, low), high)
    soft = max(abs(g) - alpha, 0.0)
    weight = -(soft if g > 0.0 else -soft) / (h + reg_lambda)
    if step > 0.0:
        weight = min(max(weight, -step), step)
    return min(max(weight, low), high)


@njit(inline="always")
def gain_of_weight(g: float, h: float, weight: float, reg_lambda: float, alpha: float) -> float:
    """Loss reduction of a leaf of any weight."""
    return -(2.0 * g * weight + (h + reg_lambda) * weight * weight + 2.0 * alpha * abs(weight))


@njit(cache=True, nogil=True)
def leaf_weights(
    sums: Int64, unit_g: float, unit_h: float, reg_lambda: float, alpha: float, step: float, bounds: Float64
) -> Float64:
    """Leaf values of nodes: `sums` int64, shape (nodes, 2); `bounds` float64, shape (nodes, 2)."""
    out = np.empty(len(sums))
    for n in range(len(sums)):
        g, h = sums[n, 0] * unit_g, sums[n, 1] * unit_h
        out[n] = leaf_weight(g, h, reg_lambda, alpha, step, bounds[n, 0], bounds[n, 1])
    return out


@njit(inline="always")
def _gain(g: float, h: float, reg_lambda: float, alpha: float, step: float, low: float, high: float) -> float:
    return gain_of_weight(g, h, leaf_weight(g, h, reg_lambda, alpha, step, low, high), reg_lambda, alpha)


@njit(cache=True, nogil=True)
def node_gains(
    sums: Int64, left: Int64, unit_g: float, unit_h: float, reg_lambda: float, alpha: float, step: float,
    bounds: Float64,
) -> Float64:  # fmt: skip
    """Gain of each node's own split, given the sums of its left child; int64 arrays of shape (nodes, 2)."""
    out = np.empty(len(sums))
    for n in range(len(sums)):
        low, high = bounds[n, 0], bounds[n, 1]
        lg, lh = left[n, 0] * unit_g, left[n, 1] * unit_h
        rg, rh = (sums[n, 0] - left[n, 0]) * unit_g, (sums[n, 1] - left[n, 1]) * unit_h
        out[n] = (
            _gain(lg, lh, reg_lambda, alpha, step, low, high)
            + _gain(rg, rh, reg_lambda, alpha, step, low, high)
            - _gain(sums[n, 0] * unit_g, sums[n, 1] * unit_h, reg_lambda, alpha, step, low, high)
        )
    return out


@njit(inline="always")
def _soft_square(g: float, alpha: float) -> float:
    soft = max(abs(g) - alpha, 0.0)
    return soft * soft


@njit(inline="always")
def _limited_gain(
    lg: float, lh: float, rg: float, rh: float, reg_lambda: float, alpha: float, step: float, least_h: float,
    low: float, high: float, monotone: int,
) -> float:  # fmt: skip
    """Gain of two children (the parent's not yet subtracted); -inf where the split is not allowed."""
    if lh < least_h or rh < least_h or lh <= 0.0 or rh <= 0.0:
        return -np.inf
    left = leaf_weight(lg, lh, reg_lambda, alpha, step, low, high)
    right = leaf_weight(rg, rh, reg_lambda, alpha, step, low, high)
    if (monotone > 0 and left > right) or (monotone < 0 and left < right):
        return -np.inf
    return gain_of_weight(lg, lh, left, reg_lambda, alpha) + gain_of_weight(rg, rh, right, reg_lambda, alpha)


@njit(cache=True, nogil=True, error_model="numpy")
def _plain_gains(
    prefix: Float64, n_bins: int, from_g: float, from_h: float, total_g: float, total_h: float, unit_g: float,
    unit_h: float, reg_lambda: float, alpha: float, least_h: float, out: Float64,
) -> None:  # fmt: skip
    """Closed-form gains of all bins of a feature: straight-line arithmetic that compilers turn into vectors.

    `prefix` : float64, shape (2, bins), sums of g and of h up to each bin; integers below 2**53, so exact.
    """
    prefix_g, prefix_h = prefix[0], prefix[1]
    least = max(least_h, np.nextafter(0.0, 1.0))  # children without weight are never allowed
    if alpha == 0.0:
        for b in range(n_bins):
            g, h = prefix_g[b] + from_g, prefix_h[b] + from_h
            lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
            gain = lg * lg / (lh + reg_lambda) + rg * rg / (rh + reg_lambda)
            out[b] = gain if min(lh, rh) >= least else -np.inf
        return
    for b in range(n_bins):
        g, h = prefix_g[b] + from_g, prefix_h[b] + from_h
        lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
        gain = _soft_square(lg, alpha) / (lh + reg_lambda) + _soft_square(rg, alpha) / (rh + reg_lambda)
        out[b] = gain if min(lh, rh) >= least else -np.inf


@njit(cache=True, nogil=True)
def _limited_gains(
    prefix: Float64, n_bins: int, from_g: float, from_h: float, total_g: float, total_h: float, unit_g: float,
    unit_h: float, reg_lambda: float, alpha: float, step: float, least_h: float, low: float, high: float,
    monotone: int, out: Float64,
) -> None:  # fmt: skip
    """Gains of all bins of a feature where leaf values have limits. The last bin is never held to `monotone`."""
    for b in range(n_bins):
        g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
        out[b] = _limited_gain(
            g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h, reg_lambda, alpha, step, least_h,
            low, high, monotone if b < n_bins - 1 else 0,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def scan_feature(
    histogram: Int64, n_bins: int, total_g: int, total_h: int, unit_g: float, unit_h: float, reg_lambda: float,
    alpha: float, step: float, least_h: float, low: float, high: float, monotone: int, plain: bool, prefix: Float64,
    missing_right: Float64, missing_left: Float64,
) -> bool:  # fmt: skip
    """Gains of all bins of one feature in one node, for missing values going right and going left.

    `histogram` : int64, shape (slots, 2), the feature's first bin first. Writes `missing_right[:n_bins]` and, if any
    row lacks the feature, `missing_left[:n_bins]`; returns whether any does. The last bin divides present from missing
    values, which breaks no monotone constraint. `prefix` : float64, shape (2, at least n_bins), scratch.
    """
    sum_g, sum_h = np.int64(0), np.int64(0)
    for b in range(n_bins):
        sum_g += histogram[b, 0]
        sum_h += histogram[b, 1]
        prefix[0, b], prefix[1, b] = sum_g, sum_h
    miss_g, miss_h = total_g - sum_g, total_h - sum_h
    some_missing = bool(miss_g != 0 or miss_h != 0)
    for side in range(2 if some_missing else 1):
        from_g = 0.0 if side == 0 else np.float64(miss_g)
        from_h = 0.0 if side == 0 else np.float64(miss_h)
        out = missing_right if side == 0 else missing_left
        if plain:
            _plain_gains(
                prefix, n_bins, from_g, from_h, np.float64(total_g), np.float64(total_h), unit_g, unit_h, reg_lambda,
                alpha, least_h, out,
            )  # fmt: skip
        else:
            _limited_gains(
                prefix, n_bins, from_g, from_h, np.float64(total_g), np.float64(total_h), unit_g, unit_h, reg_lambda,
                alpha, step, least_h, low, high, monotone, out,
            )  # fmt: skip
    return some_missing


@njit(cache=True, nogil=True)
def best_per_node(
    histograms: Int64, places: Int64, first_slot: int, sums: Int64, bounds: Float64, allowed: UInt8,
    slot_offsets: Int64, n_bins: Int32, monotone: Int32, features: tuple[int, int], nodes: tuple[int, int],
    units: tuple[float, float], regular: tuple[float, float, float, float], plain: bool, gain: Float64,
    feature: Int32, split_bin: Int32, default_left: UInt8,
) -> None:  # fmt: skip
    """The best split of each node in `[nodes)` among the features in `[features)`.

    `histograms` : int64, shape (any, slots, 2), slot `first_slot` first; node n's is at `places[n]`. Ties go to the
    lowest feature, then to missing right, then to the lowest bin. `gain` stays -inf where no split is allowed.
    """
    reg_lambda, alpha, step, least_h = regular
    unit_g, unit_h = units
    widest = 0
    for f in range(features[0], features[1]):
        widest = max(widest, n_bins[f])
    right, left, prefix = np.empty(widest), np.empty(widest), np.empty((2, widest))
    for n in range(nodes[0], nodes[1]):
        total_g, total_h = sums[n, 0], sums[n, 1]
        low, high = bounds[n, 0], bounds[n, 1]
        g, h = total_g * unit_g, total_h * unit_h
        parent = _soft_square(g, alpha) / (h + reg_lambda) if plain and h > 0.0 else _gain(
            g, h, reg_lambda, alpha, step, low, high)  # fmt: skip
        best = gain[n]
        for f in range(features[0], features[1]):
            if allowed[n, f] == 0:
                continue
            begin = slot_offsets[f] - first_slot
            some_missing = scan_feature(
                histograms[places[n], begin:], n_bins[f], total_g, total_h, unit_g, unit_h, reg_lambda, alpha, step,
                least_h, low, high, monotone[f], plain, prefix, right, left,
            )  # fmt: skip
            for side in range(2 if some_missing else 1):
                gains = right if side == 0 else left
                place = -1
                for b in range(n_bins[f]):
                    if gains[b] - parent > best:
                        best, place = gains[b] - parent, b
                if place >= 0:
                    gain[n], feature[n], split_bin[n], default_left[n] = best, f, place, side


@njit(cache=True, nogil=True)
def best_of_level(
    histograms: Int64, first_slot: int, sums: Int64, bounds: Float64, allowed: UInt8, slot_offsets: Int64,
    n_bins: Int32, monotone: Int32, features: tuple[int, int], units: tuple[float, float],
    regular: tuple[float, float, float, float], plain: bool,
) -> tuple[float, int, int, int]:  # fmt: skip
    """The one split whose gain, summed over all nodes, is largest: symmetric trees.

    A node in which the split is not allowed for lack of weight adds nothing; one in which it breaks a monotone
    constraint rules it out. Sums run in node order, so they do not depend on threads. Returns (gain, feature, bin,
    default left), gain -inf if there is none.
    """
    reg_lambda, alpha, step, least_h = regular
    unit_g, unit_h = units
    best_gain, best_feature, best_bin, best_default = -np.inf, -1, -1, 0
    for f in range(features[0], features[1]):
        right, left, prefix = np.empty(n_bins[f]), np.empty(n_bins[f]), np.empty((2, n_bins[f]))
        sum_right, sum_left = np.zeros(n_bins[f]), np.zeros(n_bins[f])
        any_missing = False
        usable = True
        for n in range(len(sums)):
            usable = usable and allowed[n, f] != 0
        if not usable:
            continue
        begin = slot_offsets[f] - first_slot
        for n in range(len(sums)):
            low, high = bounds[n, 0], bounds[n, 1]
            g, h = sums[n, 0] * unit_g, sums[n, 1] * unit_h
            parent = _gain(g, h, reg_lambda, alpha, step, low, high)
            some_missing = scan_feature(
                histograms[n, begin:], n_bins[f], sums[n, 0], sums[n, 1], unit_g, unit_h, reg_lambda, alpha, step,
                least_h, low, high, 0, plain, prefix, right, left,
            )  # fmt: skip
            any_missing = any_missing or some_missing
            for b in range(n_bins[f]):
                if right[b] > -np.inf:
                    sum_right[b] += right[b] - parent
                other = left[b] if some_missing else right[b]
                if other > -np.inf:
                    sum_left[b] += other - parent
            if monotone[f] != 0:
                _rule_out(
                    histograms[n, begin:], n_bins[f], sums[n, 0], sums[n, 1], unit_g, unit_h, reg_lambda, alpha, step,
                    low, high, monotone[f], sum_right, sum_left,
                )  # fmt: skip
        for b in range(n_bins[f]):
            if sum_right[b] > best_gain:
                best_gain, best_feature, best_bin, best_default = sum_right[b], f, b, 0
        if any_missing:
            for b in range(n_bins[f]):
                if sum_left[b] > best_gain:
                    best_gain, best_feature, best_bin, best_default = sum_left[b], f, b, 1
    return best_gain, best_feature, best_bin, best_default


@njit(cache=True, nogil=True)
def _rule_out(
    histogram: Int64, n_bins: int, total_g: int, total_h: int, unit_g: float, unit_h: float, reg_lambda: float,
    alpha: float, step: float, low: float, high: float, monotone: int, sum_right: Float64, sum_left: Float64,
) -> None:  # fmt: skip
    """Set the sums of splits that break a monotone constraint in this node to -inf."""
    sum_g, sum_h = np.int64(0), np.int64(0)
    for b in range(n_bins):
        sum_g += histogram[b, 0]
        sum_h += histogram[b, 1]
    for side in range(2):
        pg = np.int64(0) if side == 0 else total_g - sum_g
        ph = np.int64(0) if side == 0 else total_h - sum_h
        for b in range(n_bins - 1):
            pg += histogram[b, 0]
            ph += histogram[b, 1]
            left = leaf_weight(pg * unit_g, ph * unit_h, reg_lambda, alpha, step, low, high)
            right = leaf_weight((total_g - pg) * unit_g, (total_h - ph) * unit_h, reg_lambda, alpha, step, low, high)
            if (monotone > 0 and left > right) or (monotone < 0 and left < right):
                if side == 0:
                    sum_right[b] = -np.inf
                else:
                    sum_left[b] = -np.inf


@njit(cache=True, nogil=True)
def left_sums(
    histograms: Int64, places: Int64, first_slot: int, sums: Int64, slot_offsets: Int64, n_bins: Int32, feature: Int32,
    split_bin: Int32, default_left: UInt8, out: Int64,
) -> None:  # fmt: skip
    """Sums of the rows that go left under each node's split, missing ones included; `out` int64, shape (nodes, 2)."""
    for n in range(len(sums)):
        if feature[n] < 0:
            continue
        begin = slot_offsets[feature[n]] - first_slot
        for s in range(2):
            present, left = np.int64(0), np.int64(0)
            for b in range(n_bins[feature[n]]):
                present += histograms[places[n], begin + b, s]
                if b <= split_bin[n]:
                    left += histograms[places[n], begin + b, s]
            out[n, s] = left + (sums[n, s] - present if default_left[n] else np.int64(0))
