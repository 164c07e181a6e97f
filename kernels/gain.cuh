// Gains and leaf values: the arithmetic of `daskboost/devices/cpu/split.py`, to the last bit.
//
// Sums are integers up to here; `g` and `h` are such sums times their unit. float64 in the order of the CPU's
// operations, compiled without contraction into fused multiply-adds. Formulae: Chen and Guestrin, "XGBoost: a scalable
// tree boosting system" (2016), eq. 6 and 7, without the factor 1/2.
#pragma once

#include "types.cuh"

// What a fit regularizes with; `max_step` 0 means no limit. A node of less than `least_h` is worth 0 and never split off;
// that is positive where `lambda` is 0 (`SplitRules.least_h` of `daskboost/tree/split_search.py`).
struct Regular {
    double lambda;
    double alpha;
    double max_step;
    double least_h;
};

// Between what a leaf value must lie; from -infinity to infinity unless monotone constraints bind.
struct Bounds {
    double low;
    double high;
};

constexpr double NO_LIMIT = __builtin_bit_cast(double, 0x7FF0000000000000ull);  // NVRTC before 13.5 has no name for it
constexpr double NO_GAIN = -NO_LIMIT;

struct Sums {
    double g;
    double h;
};

// Integer sums as the objective's g and h. Below 2**53 the conversion is exact.
SHARED_BY_HOST Sums sums_of(i64 g, i64 h, double unit_g, double unit_h) {
    return {static_cast<double>(g) * unit_g, static_cast<double>(h) * unit_h};
}

// Python's `max` and `min`: the first of two equal values, which tells 0.0 from -0.0.
SHARED_BY_HOST double larger(double a, double b) { return b > a ? b : a; }
SHARED_BY_HOST double smaller(double a, double b) { return b < a ? b : a; }
SHARED_BY_HOST double clamp(double value, double low, double high) { return smaller(larger(value, low), high); }

SHARED_BY_HOST double soft_magnitude(double g, double alpha) { return larger(fabs(g) - alpha, 0.0); }

// The leaf value before the learning rate.
SHARED_BY_HOST double leaf_weight(Sums s, Regular r, Bounds b) {
    if (s.h < r.least_h) return clamp(0.0, b.low, b.high);
    const double soft = soft_magnitude(s.g, r.alpha);
    double weight = -(s.g > 0.0 ? soft : -soft) / (s.h + r.lambda);
    if (r.max_step > 0.0) weight = clamp(weight, -r.max_step, r.max_step);
    return clamp(weight, b.low, b.high);
}

// Loss reduction of a leaf of any weight.
SHARED_BY_HOST double gain_of_weight(Sums s, double weight, Regular r) {
    return -(2.0 * s.g * weight + (s.h + r.lambda) * weight * weight + 2.0 * r.alpha * fabs(weight));
}

// Loss reduction of the best leaf within the limits.
SHARED_BY_HOST double leaf_gain(Sums s, Regular r, Bounds b) { return gain_of_weight(s, leaf_weight(s, r, b), r); }

// The same in closed form, where leaf values have no limits and `h` is at least `least_h`.
SHARED_BY_HOST double plain_leaf_gain(Sums s, Regular r) {
    const double soft = soft_magnitude(s.g, r.alpha);
    return soft * soft / (s.h + r.lambda);
}

// What an output of several gains by having its own value, which it has where it weighs enough.
SHARED_BY_HOST double gain_of_output(Sums s, Regular r, bool is_plain) {
    if (s.h < r.least_h) return 0.0;
    return is_plain ? plain_leaf_gain(s, r) : leaf_gain(s, r, {NO_GAIN, NO_LIMIT});
}

// What the gain of a split is above: the gain of the node as a leaf.
SHARED_BY_HOST double parent_gain(Sums s, Regular r, Bounds b, bool is_plain) {
    return is_plain && s.h >= r.least_h ? plain_leaf_gain(s, r) : leaf_gain(s, r, b);
}

// Gain of two children without limits, the parent's not yet subtracted; NO_GAIN where the split is not allowed.
SHARED_BY_HOST double plain_split_gain(Sums left, Sums right, Regular r) {
    const double gain = plain_leaf_gain(left, r) + plain_leaf_gain(right, r);
    return smaller(left.h, right.h) >= r.least_h ? gain : NO_GAIN;
}

// Gain of two children with limits. `monotone` is 1 where the right child must not be lower, -1 where not higher.
SHARED_BY_HOST double limited_split_gain(Sums left, Sums right, Regular r, Bounds b, i32 monotone) {
    if (left.h < r.least_h || right.h < r.least_h) return NO_GAIN;
    const double left_weight = leaf_weight(left, r, b), right_weight = leaf_weight(right, r, b);
    if ((monotone > 0 && left_weight > right_weight) || (monotone < 0 && left_weight < right_weight)) return NO_GAIN;
    return gain_of_weight(left, left_weight, r) + gain_of_weight(right, right_weight, r);
}

// The best split of a node, as numbers of int64: gain (its bits), feature, bin, default left, sums of g and h on the left.
// One that gains nothing is none: gain NO_GAIN, feature -1. So nobody need look at splits with an empty child.
constexpr i32 RESULTS = 6;
// Those of a node of several outputs, whose sums come one after the other.
SHARED_BY_HOST i32 results_of(i32 n_outputs) { return RESULTS - 2 + 2 * n_outputs; }
