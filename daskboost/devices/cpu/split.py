"""Split search: the gain of every (feature, bin, default direction), from integer histograms.

Sums stay integers up to the last step; gains are float64 functions of single pairs of integers, so they do not
depend on who computes them. A histogram is an int64 array of pairs, shape (slots, 2), or of words, shape (slots,): see
`histogram.py`. Formulae: Chen and Guestrin, "XGBoost: a scalable tree boosting system" (2016), eq. 6
and 7, without the factor 1/2, as XGBoost reports gains.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.histogram import LOW_HALF
from daskboost.dtypes import Float64, Int32, Int64, UInt8


@njit(inline="always")
def leaf_weight(
    g: float, h: float, reg_lambda: float, alpha: float, step: float, least_h: float, low: float, high: float
) -> float:
    """Return the leaf value before the learning rate: -soft(g, alpha) / (h + lambda), limited by `step` and bounds.

    A node of less than `least_h` is worth 0, as in XGBoost: its hessians are no ground to divide by. `least_h` is
    positive where lambda is 0 (`SplitRules.regular`).
    """
    if h < least_h:
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
    sums: Int64, unit_g: float, unit_h: float, regular: tuple[float, float, float, float], bounds: Float64
) -> Float64:
    """Leaf values of nodes: `sums` int64, shape (nodes, 2); `bounds` float64, shape (nodes, 2)."""
    reg_lambda, alpha, step, least_h = regular
    out = np.empty(len(sums))
    for n in range(len(sums)):
        g, h = sums[n, 0] * unit_g, sums[n, 1] * unit_h
        out[n] = leaf_weight(g, h, reg_lambda, alpha, step, least_h, bounds[n, 0], bounds[n, 1])
    return out


@njit(inline="always")
def leaf_gain(
    g: float, h: float, reg_lambda: float, alpha: float, step: float, least_h: float, low: float, high: float
) -> float:
    """Loss reduction of the leaf that a node would be."""
    return gain_of_weight(g, h, leaf_weight(g, h, reg_lambda, alpha, step, least_h, low, high), reg_lambda, alpha)


@njit(cache=True, nogil=True)
def split_values(
    sums: Int64, left: Int64, unit_g: float, unit_h: float, regular: tuple[float, float, float, float],
    bounds: Float64,
) -> tuple[Float64, Float64, Float64]:  # fmt: skip
    """Gains of nodes' own splits, and the leaf values of the left and of the right children.

    `left` : sums of the left children; it and `sums` int64, shape (nodes, 2).
    """
    reg_lambda, alpha, step, least_h = regular
    gain, left_weight, right_weight = np.empty(len(sums)), np.empty(len(sums)), np.empty(len(sums))
    for n in range(len(sums)):
        low, high = bounds[n, 0], bounds[n, 1]
        lg, lh = left[n, 0] * unit_g, left[n, 1] * unit_h
        rg, rh = (sums[n, 0] - left[n, 0]) * unit_g, (sums[n, 1] - left[n, 1]) * unit_h
        left_weight[n] = leaf_weight(lg, lh, reg_lambda, alpha, step, least_h, low, high)
        right_weight[n] = leaf_weight(rg, rh, reg_lambda, alpha, step, least_h, low, high)
        gain[n] = (
            gain_of_weight(lg, lh, left_weight[n], reg_lambda, alpha)
            + gain_of_weight(rg, rh, right_weight[n], reg_lambda, alpha)
            - leaf_gain(sums[n, 0] * unit_g, sums[n, 1] * unit_h, reg_lambda, alpha, step, least_h, low, high)
        )
    return gain, left_weight, right_weight


@njit(inline="always")
def soft_square(g: float, alpha: float) -> float:
    """The square of what the L1 penalty leaves of g."""
    soft = max(abs(g) - alpha, 0.0)
    return soft * soft


@njit(inline="always")
def _limited_gain(
    lg: float, lh: float, rg: float, rh: float, reg_lambda: float, alpha: float, step: float, least_h: float,
    low: float, high: float, monotone: int,
) -> float:  # fmt: skip
    """Gain of two children (the parent's not yet subtracted); -inf where the split is not allowed."""
    if lh < least_h or rh < least_h:
        return -np.inf
    left = leaf_weight(lg, lh, reg_lambda, alpha, step, least_h, low, high)
    right = leaf_weight(rg, rh, reg_lambda, alpha, step, least_h, low, high)
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


@njit(cache=True, nogil=True)
def scan_feature(
    histogram: Int64, n_bins: int, total_g: int, total_h: int, unit_g: float, unit_h: float, reg_lambda: float,
    alpha: float, step: float, least_h: float, low: float, high: float, monotone: int, plain: bool, prefix: Float64,
    missing_right: Float64, missing_left: Float64,
) -> bool:  # fmt: skip
    """Gains of all bins of one feature in one node, for missing values going right and going left.

    `histogram` starts with the feature's first bin. Writes `prefix` (see `running_sums`), `missing_right[:n_bins]`
    and, if any row lacks the feature, `missing_left[:n_bins]`; returns whether any does. The last bin divides present
    from missing values, which breaks no monotone constraint.
    """
    running_sums(histogram, n_bins, prefix)
    miss_g, miss_h = total_g - prefix[0, n_bins - 1], total_h - prefix[1, n_bins - 1]
    some_missing = bool(miss_g != 0 or miss_h != 0)
    for side in range(2 if some_missing else 1):
        from_g, from_h = (0.0, 0.0) if side == 0 else (miss_g, miss_h)
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
def top_of(values: Float64, n: int) -> float:
    """The largest of `values[:n]`; eight running maxima become vector instructions, a single one does not."""
    lanes = np.full(8, -np.inf)
    whole = n - n % 8
    for start in range(0, whole, 8):
        for k in range(8):
            value = values[start + k]
            lanes[k] = value if value > lanes[k] else lanes[k]
    top = -np.inf
    for k in range(8):
        top = max(top, lanes[k])
    for b in range(whole, n):
        top = max(top, values[b])
    return top


@njit(cache=True, nogil=True)
def subtract(parent: Int64, sibling: Int64, out: Int64) -> None:
    """`out` = `parent` - `sibling`, arrays of as many slots; `out` is of words or pairs as `parent` is."""
    if parent.ndim == 1:
        if sibling.ndim == 1:
            for s in range(len(out)):
                out[s] = parent[s] - sibling[s]
        else:
            for s in range(len(out)):
                out[s] = parent[s] - (sibling[s, 0] << np.int64(32)) - sibling[s, 1]
    else:
        if sibling.ndim == 1:
            for s in range(len(out)):
                out[s, 0] = parent[s, 0] - (sibling[s] >> np.int64(32))
                out[s, 1] = parent[s, 1] - (sibling[s] & LOW_HALF)
        else:
            for s in range(len(out)):
                out[s, 0] = parent[s, 0] - sibling[s, 0]
                out[s, 1] = parent[s, 1] - sibling[s, 1]


@njit(cache=True, nogil=True)
def best_per_node(
    histograms: Int64, places: Int64, parents: Int64, parent_places: Int64, siblings: Int64, sibling_places: Int64,
    rows: Int64, first_slot: int, sums: Int64, bounds: Float64, allowed: UInt8, slot_offsets: Int64, n_bins: Int32,
    monotone: Int32, features: tuple[int, int], nodes: tuple[int, int], units: tuple[float, float],
    regular: tuple[float, float, float, float], plain: bool, gain: Float64, feature: Int32, split_bin: Int32,
    default_left: UInt8, left_sums: Int64,
) -> None:  # fmt: skip
    """The best splits of the nodes `[nodes)` of a stack, among the features in `[features)`.

    Node n is open node `rows[n]`, by which everything from `sums` on is indexed; its histogram, slot `first_slot`
    first, is `histograms[places[n]]`. Unless `parents` is empty, it is computed here first: its parent's less its
    sibling's. `allowed` has one line for all nodes, or one each. Ties go to the lowest feature, then to missing right,
    then to the lowest bin. `gain` stays -inf where no split that is allowed gains anything.
    """
    reg_lambda, alpha, step, least_h = regular
    unit_g, unit_h = units
    widest = 0
    for f in range(features[0], features[1]):
        widest = max(widest, n_bins[f])
    right, left, prefix = np.empty(widest), np.empty(widest), np.empty((2, widest))
    low_slot, high_slot = slot_offsets[features[0]] - first_slot, slot_offsets[features[1]] - first_slot
    for n in range(nodes[0], nodes[1]):
        row = rows[n]
        own, usable = histograms[places[n]], allowed[row if len(allowed) > 1 else 0]
        if len(parents) > 0:
            subtract(
                parents[parent_places[n], low_slot:high_slot], siblings[sibling_places[n], low_slot:high_slot],
                own[low_slot:high_slot],
            )  # fmt: skip
        total_g, total_h = sums[row, 0], sums[row, 1]
        low, high = bounds[row, 0], bounds[row, 1]
        g, h = total_g * unit_g, total_h * unit_h
        parent = soft_square(g, alpha) / (h + reg_lambda) if plain and h >= least_h else leaf_gain(
            g, h, reg_lambda, alpha, step, least_h, low, high)  # fmt: skip
        best = 0.0
        for f in range(features[0], features[1]):
            if usable[f] == 0:
                continue
            some_missing = scan_feature(
                own[slot_offsets[f] - first_slot :], n_bins[f], total_g, total_h, unit_g, unit_h, reg_lambda, alpha,
                step, least_h, low, high, monotone[f], plain, prefix, right, left,
            )  # fmt: skip
            for side in range(2 if some_missing else 1):
                gains = right if side == 0 else left
                top = top_of(gains, n_bins[f]) - parent
                if not top > best:
                    continue
                place = 0
                while gains[place] - parent != top:
                    place += 1
                best = top
                gain[row], feature[row], split_bin[row], default_left[row] = top, f, place, side
                last = n_bins[f] - 1
                left_sums[row, 0] = np.int64(prefix[0, place] + (total_g - prefix[0, last] if side == 1 else 0.0))
                left_sums[row, 1] = np.int64(prefix[1, place] + (total_h - prefix[1, last] if side == 1 else 0.0))


# Split search for symmetric trees: one split for all nodes of a level.

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
