"""Split search for symmetric trees: one split for all nodes of a level."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.split import leaf_gain, leaf_weight, running_sums, scan_feature
from daskboost.dtypes import Float64, Int32, Int64, UInt8


@njit(cache=True, nogil=True)
def best_of_level(
    histograms: Int64, first_slot: int, sums: Int64, bounds: Float64, allowed: UInt8, slot_offsets: Int64,
    n_bins: Int32, monotone: Int32, features: tuple[int, int], units: tuple[float, float],
    regular: tuple[float, float, float, float], plain: bool,
) -> tuple[float, int, int, int]:  # fmt: skip
    """The one split whose gain, summed over all nodes, is largest: symmetric trees.

    A node in which the split is not allowed for lack of weight adds nothing; one in which it breaks a monotone
    constraint rules it out. Sums run in node order, so they do not depend on threads. Returns (gain, feature, bin,
    default left), feature -1 if no split gains anything.
    """
    reg_lambda, alpha, step, least_h = regular
    unit_g, unit_h = units
    best_gain, best_feature, best_bin, best_default = 0.0, -1, -1, 0
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
            parent = leaf_gain(g, h, reg_lambda, alpha, step, least_h, low, high)
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
                    prefix, n_bins[f], sums[n, 0], sums[n, 1], unit_g, unit_h, regular, low, high, monotone[f],
                    sum_right, sum_left,
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
    prefix: Float64, n_bins: int, total_g: int, total_h: int, unit_g: float, unit_h: float,
    regular: tuple[float, float, float, float], low: float, high: float, monotone: int, sum_right: Float64,
    sum_left: Float64,
) -> None:  # fmt: skip
    """Set the sums of splits that break a monotone constraint in this node to -inf; `prefix` of `running_sums`."""
    reg_lambda, alpha, step, least_h = regular
    for side in range(2):
        from_g = 0.0 if side == 0 else total_g - prefix[0, n_bins - 1]
        from_h = 0.0 if side == 0 else total_h - prefix[1, n_bins - 1]
        for b in range(n_bins - 1):
            g, h = prefix[0, b] + from_g, prefix[1, b] + from_h
            lg, lh, rg, rh = g * unit_g, h * unit_h, (total_g - g) * unit_g, (total_h - h) * unit_h
            left = leaf_weight(lg, lh, reg_lambda, alpha, step, least_h, low, high)
            right = leaf_weight(rg, rh, reg_lambda, alpha, step, least_h, low, high)
            if (monotone > 0 and left > right) or (monotone < 0 and left < right):
                if side == 0:
                    sum_right[b] = -np.inf
                else:
                    sum_left[b] = -np.inf


@njit(cache=True, nogil=True)
def left_sums(
    histograms: Int64, first_slot: int, sums: Int64, slot_offsets: Int64, n_bins: Int32, feature: int, split_bin: int,
    default_left: bool, out: Int64,
) -> None:  # fmt: skip
    """Sums of the rows of each node that go left under one split, missing ones included; `out`, shape (nodes, 2)."""
    bins = n_bins[feature]
    prefix = np.empty((2, bins))
    for n in range(len(sums)):
        running_sums(histograms[n, slot_offsets[feature] - first_slot :], bins, prefix)
        for s in range(2):
            left = prefix[s, split_bin] + (sums[n, s] - prefix[s, bins - 1] if default_left else 0.0)
            out[n, s] = np.int64(left)
