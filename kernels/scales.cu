// Ranges of gradients become scales, on the device: `Scales` of `daskboost/fit/scales.py`, to the last bit.
//
// One thread per output. Whatever a round adds up or takes a maximum of starts from zero here, since this is the one
// launch between the last row of the ranges and the first row that is quantized. So a round without the host begins here
// too: it is the one after the last, and has a learning rate and keys of its own.
//
// variants: THREADS=128
// usual: THREADS=128
// budget: find_scales registers=40 shared=0
// budget: begin_round registers=40 shared=0
// budget: change_scales registers=40 shared=0
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// What makes scales of ranges, see `find_scales`.
#define RULE double bound, double limit, double scale_w, double lambda, double step, double largest_searched
#define RULE_ARGUMENTS bound, limit, scale_w, lambda, step, largest_searched

static __device__ __forceinline__ void take_range(u32* tops, i32 n_outputs, i32 output, RULE, double* scales, i64* sums) {
    const double top_g = __uint_as_float(tops[output]), top_h = __uint_as_float(tops[n_outputs + output]);
    tops[output] = tops[n_outputs + output] = 0;
    sums[2 * output] = sums[2 * output + 1] = 0;
    store_scales(top_g, top_h, RULE_ARGUMENTS, scales + SCALES * output);
}

// `tops` : bits of the largest |g|, then h, of each output, (2, outputs); become 0. `scales` : (outputs, SCALES), see
// `Scales`. `sums` : (outputs, 2), become 0. `bound` : what a largest value is multiplied by before it must stay within
// `limit`. `lambda`, `step` : penalty and limit of leaf values. `largest_searched` : bound of what is quantized in
// place of h, 0 for h.
extern "C" __global__ void __launch_bounds__(THREADS) find_scales(
    u32* __restrict__ tops, i32 n_outputs, RULE, double* __restrict__ scales, i64* __restrict__ sums) {
    const i32 output = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (output < n_outputs) take_range(tops, n_outputs, output, RULE_ARGUMENTS, scales, sums);
}

// The same at the beginning of round `last + 1`, which becomes `current`; rounds are numbered from 0. `key_states` : of
// keys of rounding and of sampling, which become `keys`, (outputs, 2): `tree_keys` of `daskboost/fit/scales.py`, of
// iteration `first_iteration` in round 0. `learning_rates` : of all rounds; `learning_rate` : of this one.
extern "C" __global__ void __launch_bounds__(THREADS) begin_round(
    u32* __restrict__ tops, i32 n_outputs, RULE, double* __restrict__ scales, i64* __restrict__ sums,
    const i32* __restrict__ last, i32* __restrict__ current, const u64* __restrict__ key_states, i64 first_iteration,
    const double* __restrict__ learning_rates, u64* __restrict__ keys, double* __restrict__ learning_rate) {
    const i32 output = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x), round = *last + 1;
    if (output >= n_outputs) return;
    take_range(tops, n_outputs, output, RULE_ARGUMENTS, scales, sums);
    for (i32 i = 0; i < 2; ++i) {
        const u64 of_round = with_part(key_states[i], static_cast<u64>(first_iteration + round));
        keys[2 * output + i] = key_of(with_part(of_round, static_cast<u64>(output)));
    }
    if (output > 0) return;
    *current = round;
    *learning_rate = learning_rates[round];
}

// `changed` : scales of the same largest values by another rule than `scales` had.
extern "C" __global__ void __launch_bounds__(THREADS) change_scales(
    const double* __restrict__ scales, i32 n_outputs, RULE, double* __restrict__ changed) {
    const i32 output = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (output >= n_outputs) return;
    const double* own = scales + SCALES * output;
    store_scales(own[LARGEST_G], own[LARGEST_H], RULE_ARGUMENTS, changed + SCALES * output);
}
