// Costs of pairs by the positions of their rows, which tell how likely rows are to be clicked there:
// `daskboost/devices/cpu/positions.py`, operation by operation.
#pragma once

#include "logarithm.cuh"
#include "pulls.cuh"

#define RELEVANT 0  // the row of a pair that has the larger label
#define IRRELEVANT 1
#define COST_WORD 0x1p8    // 1 in the first word of a sum of costs
#define COST_PARTS 0x1p32  // 1 of that in the second one

// Positions of rows in the order of their ids, and what is known of their chances.
struct Positions {
    const float* ratios;   // reciprocals of both chances of each, 0 where these are not known; shape (2, n)
    const double* shrink;  // by the positions that a query has, shape (n + 1,)
    i32 n;
    u64* costs;  // shape (2, n, 2)

    __device__ __forceinline__ float ratio(i32 side, u32 position) const {
        return position < static_cast<u32>(n) ? ratios[side * n + position] : 0.0f;
    }

    __device__ __forceinline__ void add(i32 side, u32 position, double cost) const {
        if (!(cost > 0)) return;
        const double scaled = cost * COST_WORD, whole = floor(scaled);
        u64* const own = costs + 2 * (static_cast<i64>(side) * n + position);
        add_to<false>(own, static_cast<i64>(whole));
        add_to<false>(own + 1, static_cast<i64>(rint((scaled - whole) * COST_PARTS)));
    }
};

// log(1 + exp(s - t)) of the scores s and t of the row with more gain and of the other.
static __device__ __forceinline__ double cost_of(float s, float t, bool is_ahead, bool by_score) {
    float difference = fabsf(s - t);
    const float most = by_score ? 1e30f : 64.0f;
    if (difference > most) difference = most;
    double cost = logarithm_of_one_plus(static_cast<double>(exp_of(-difference)));
    if (is_ahead) cost += static_cast<double>(difference);
    return by_score ? cost / static_cast<double>(difference + 0.01f) : cost;
}
