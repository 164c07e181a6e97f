// Gains of a candidate of `split_entries.cu`, from the sums of its segment.
//
// The top of a candidate, a float, tells whether it may be its node's best: its rough gain (rough.cuh), or, with EXACT, where
// penalties and limits leave no short formula, the exact gain, rounded, which keeps the order. Exact gains that are not positive
// have no top, as no split of theirs is ever made.
#pragma once

#include "rough.cuh"
#include "searched.cuh"

#ifndef EXACT
#define EXACT 0
#endif

constexpr double SMALLEST_TOP = 0x1p-126;  // of a positive gain, however small

// The sums of a candidate: of the segment up to its bin, and of the whole segment.
struct Candidate {
    i32 node;
    i32 feature;
    i32 bin;
    Pair64 left;
    Pair64 present;
};

// A node's best split so far. Ties go to the lowest feature, then to the lowest place, see searched.cuh.
struct Best {
    double gain;
    i64 g;  // on the left
    i64 h;
    i32 feature;
    i32 place;

    __device__ __forceinline__ bool is_better_than(const Best& other) const {
        if (gain != other.gain) return gain > other.gain;
        return feature < other.feature || (feature == other.feature && place < other.place);
    }
};

constexpr Best NOTHING = {NO_GAIN, 0, 0, -1, 0};

// How splits are weighed.
struct Gains {
    const i64* totals;
    double unit_g;
    double unit_h;
    Regular regular;
#if EXACT
    const double* bounds;
    const i32* monotone;
    const i32* n_bins;
    bool is_plain;
#else
    RoughTree tree;
    i64 least;
#endif

    __device__ __forceinline__ Pair64 total_of(i32 node) const { return {totals[2 * node], totals[2 * node + 1]}; }

    __device__ __forceinline__ float top(const Candidate& of) const {
#if EXACT
        const double gain = best(of).gain;
        return gain > 0.0 ? static_cast<float>(larger(gain, SMALLEST_TOP)) : NO_SPLIT;
#else
        return rough_top(of);
#endif
    }

    // Of missing values on either side, on the right if both are as good.
    __device__ __forceinline__ Best best(const Candidate& of) const {
        const Pair64 total = total_of(of.node), missing = {total.g - of.present.g, total.h - of.present.h};
        const double parent = gain_of_node(of, {total.g * unit_g, total.h * unit_h});
        Best found = NOTHING;
#pragma unroll 1
        for (i32 side = 0; side < (missing.g != 0 || missing.h != 0 ? 2 : 1); ++side) {
            const i64 g = of.left.g + (side ? missing.g : 0), h = of.left.h + (side ? missing.h : 0);
            const Sums left = {g * unit_g, h * unit_h}, right = {(total.g - g) * unit_g, (total.h - h) * unit_h};
            const double gain = gain_of_sides(of, left, right) - parent;
            if (gain > found.gain) found = {gain, g, h, of.feature, of.bin + side * SIDE};
        }
        return found;
    }

#if EXACT
    // Whether all present values are on the left: the split is the last bin's too then, which divides them from missing ones
    // and is held to no direction. With those on the left too nothing is on the right.
    static __device__ __forceinline__ bool takes_all(const Candidate& of) {
        return of.left.g == of.present.g && of.left.h == of.present.h;
    }

    // That split is the candidate's own bin's only where it keeps the feature's direction. Its mirror image in bins before the
    // first value, with missing ones on the left, is held to the direction too, but comes after the last bin's in any case.
    __device__ __forceinline__ void settle(const Candidate& of, Best& found) const {
        const i32 direction = is_plain ? 0 : monotone[of.feature];
        if (direction == 0 || found.feature < 0 || !takes_all(of)) return;
        const Pair64 total = total_of(of.node);
        const Sums left = {found.g * unit_g, found.h * unit_h};
        const Sums right = {(total.g - found.g) * unit_g, (total.h - found.h) * unit_h};
        if (limited_split_gain(left, right, regular, bounds_of(of), direction) == NO_GAIN)
            found.place = n_bins[of.feature] - 1;
    }

    __device__ __forceinline__ Bounds bounds_of(const Candidate& of) const {
        return {bounds[2 * of.node], bounds[2 * of.node + 1]};
    }

    __device__ __forceinline__ double gain_of_node(const Candidate& of, Sums sums) const {
        return parent_gain(sums, regular, bounds_of(of), is_plain);
    }

    __device__ __forceinline__ double gain_of_sides(const Candidate& of, Sums left, Sums right) const {
        if (is_plain) return plain_split_gain(left, right, regular);
        return limited_split_gain(left, right, regular, bounds_of(of), takes_all(of) ? 0 : monotone[of.feature]);
    }
#else
    __device__ __forceinline__ void settle(const Candidate&, Best&) const {}

    __device__ __forceinline__ double gain_of_node(const Candidate&, Sums sums) const {
        return plain_leaf_gain(sums, regular);
    }

    __device__ __forceinline__ double gain_of_sides(const Candidate&, Sums left, Sums right) const {
        return plain_split_gain(left, right, regular);
    }

    // The larger rough gain of missing values on either side; NO_SPLIT where neither is allowed.
    __device__ __forceinline__ float rough_top(const Candidate& of) const {
        const Pair64 total = total_of(of.node);
        const RoughNode rough(tree, total.h);
        if (!rough.is_safe) return __int_as_float(0x7F800000);
        const Pair64 left = of.left, missing = {total.g - of.present.g, total.h - of.present.h};
        const float top = rough.gain<i64>(left.g, left.h, total.g - left.g, total.h - left.h, least);
        if (missing.g == 0 && missing.h == 0) return top;
        const Pair64 more = {left.g + missing.g, left.h + missing.h};
        return max(top, rough.gain<i64>(more.g, more.h, total.g - more.g, total.h - more.h, least));
    }
#endif
};
