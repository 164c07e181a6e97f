// The gains of a feature's splits roughly, in float32: enough to tell which features need their exact gains.
//
// What orders a node's splits is f = gL^2 / (hL + l) + gR^2 / (hR + l) of integers g and h, with l = lambda / unit_h:
// the gain is f times a factor of the node's, less its parent's. Computed is (a^2 q + b^2 p) / (p q), where a and b are
// gL and gR times 2^-24, p and q hL + l and hR + l times a power of two that takes p + q to between 1 and 2.
//
// *The error.* One rounding is off by at most u = 2^-24 of its result, and all terms are positive. a and b: u each, of
// the conversion; p and q: 2 u, of h or l and of their sum; a^2 q: 2 + 1 + 2 + 1 = 6 u; the sum 7 u; p q: 5 u; the
// division, within 2 units of the last place, 4 u. Together 16 u = 2^-20, below 2^-19.9 with what is of second order.
// Let T be the largest rough gain of a node. The f of its split is at least T (1 - 2^-19.9), so no other is the node's
// best unless its own rough gain is at least T (1 - 2^-18.8).
// *The exact gains* are float64: f off by 2^-50 at most, and, as the parent's is at most twice f, so is the difference.
// All splits that tie for the best, by rounding or not, are thus of features within MARGIN of T.
// *The range.* |g| and h are below 2^53, where conversions to float64 are exact. A child's h is at least 1, or l is, which
// `is_safe` looks at where a child may have no h. So p and q are from 2^-54 to 2, a^2 from
// 2^-48 to 2^58, their terms from 2^-102 to 2^60 and the result below 2^115: nothing over- or underflows in float32. In
// float64 nothing does where `is_safe`, which looks at the units and lambda.
#pragma once

#include "gain.cuh"

constexpr double MARGIN = 0x1p-18;
constexpr float NO_SPLIT = -1.0f;
constexpr i64 TOO_HEAVY = 1ll << 60;

// The least integer h that may be a child's, as plain_split_gain decides: a product with `unit_h` grows with h.
static __device__ __forceinline__ i64 least_quanta(double least_h, double unit_h) {
    const double about = ceil(least_h / unit_h);
    if (!(about <= 0x1p53)) return TOO_HEAVY;
    i64 quanta = static_cast<i64>(about);
    while (quanta > 0 && static_cast<double>(quanta - 1) * unit_h >= least_h) --quanta;
    while (static_cast<double>(quanta) * unit_h < least_h) ++quanta;
    return quanta;
}

// What a tree's rough gains share.
struct RoughTree {
    double quanta;  // lambda, of `unit_h`
    bool are_units;

    __device__ __forceinline__ RoughTree(double lambda, double least_h, double unit_g, double unit_h) {
        quanta = lambda / unit_h;
        are_units = smaller(unit_g, unit_h) >= 0x1p-200 && larger(unit_g, unit_h) <= 0x1p200;
        are_units = are_units && (least_h > 0.0 || quanta >= 1.0);
    }
};

// What a node's rough gains share.
struct RoughNode {
    float scale;   // of h
    float lambda;  // times `scale`
    bool is_safe;  // whether the bounds above hold

    __device__ __forceinline__ RoughNode(const RoughTree& tree, i64 total_h) {
        const double both = static_cast<double>(total_h) + 2.0 * tree.quanta;
        is_safe = tree.are_units && both < 0x1p120;
        const i32 exponent = static_cast<i32>(__double_as_longlong(is_safe ? both : 1.0) >> 52) - 1023;
        scale = __int_as_float((127 - exponent) << 23);
        lambda = is_safe ? static_cast<float>(tree.quanta * static_cast<double>(scale)) : 0.0f;
    }

    // Of a split; NO_SPLIT where a child has less than `least`.
    template <class T>
    __device__ __forceinline__ float gain(T left_g, T left_h, T right_g, T right_h, T least) const {
        const float a = static_cast<float>(left_g) * 0x1p-24f, b = static_cast<float>(right_g) * 0x1p-24f;
        const float p = static_cast<float>(left_h) * scale + lambda, q = static_cast<float>(right_h) * scale + lambda;
        return min(left_h, right_h) >= least ? __fdividef(a * a * q + b * b * p, p * q) : NO_SPLIT;
    }
};
