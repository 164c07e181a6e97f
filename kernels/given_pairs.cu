// Gradients of pairs that users name: `daskboost/devices/cpu/given_pairs.py`, operation by operation.
//
// A warp has a row, and its lanes the row's pairs, each of which is computed for both of its rows: nothing is added to from
// two sides, so that there are no atomics. Memory is what counts: 8 bytes of a pair for each row, one after the other, and
// the score of the other row, which lies anywhere.
//
// variants: THREADS=256
// budget: fill_pairs registers=48 shared=0
#include "pulls.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// `rows` : places of rows that have pairs, `n_rows` of them; `begins` : where their pairs begin; `others` : places of the
// other rows; `worths` : what pairs count, negative where the row should come last; `factors` : of sums. `margins`, `g`,
// `h` : of all rows. Blocks: one for each THREADS / 32 rows.
extern "C" __global__ void __launch_bounds__(THREADS) fill_pairs(
    const u32* __restrict__ rows, i64 n_rows, const i64* __restrict__ begins, const u32* __restrict__ others,
    const float* __restrict__ worths, const double* __restrict__ factors, const float* __restrict__ margins,
    float* __restrict__ g, float* __restrict__ h) {
    const i64 own = static_cast<i64>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (own >= n_rows) return;
    const u32 row = rows[own];
    const Row a = {margins[row], 0.0f, 0.0, 0.0};
    Sums sums = {0, 0};
    i32 not_finite = a.score - a.score != 0;
    const i64 end = begins[own + 1];
    for (i64 k = begins[own] + threadIdx.x % LANES; k < end && !not_finite; k += LANES) {
        const float worth = worths[k];
        const Row b = {margins[others[k]], worth > 0 ? -1.0f : 1.0f, 0.0, 0.0};
        if (b.score - b.score != 0) {
            not_finite = 1;
        } else {
            const Pull pull = pull_of(a, b, fabsf(worth));
            sums.g -= pull.slope;
            sums.h += pull.curve;
        }
    }
    not_finite = sum_of_warp(not_finite);
    sums.g = sum_of_warp(sums.g);
    sums.h = sum_of_warp(sums.h);
    if (threadIdx.x % LANES != 0) return;
    g[row] = not_finite ? not_a_number() : static_cast<float>(static_cast<double>(sums.g) * factors[own]);
    h[row] = not_finite ? not_a_number() : static_cast<float>(static_cast<double>(sums.h) * factors[own]);
}
