// Ranges of gradients become scales, on the device: `Scales` of `daskboost/fit/scales.py`, to the last bit.
//
// One thread per output. Whatever a round adds up or takes a maximum of starts from zero here, since this is the one
// launch between the last row of the ranges and the first row that is quantized.
//
// variants: THREADS=128
// usual: THREADS=128
// budget: find_scales registers=40 shared=0
// budget: change_scales registers=40 shared=0
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 128
#endif

// `tops` : bits of the largest |g|, then h, of each output, (2, outputs); become 0. `scales` : (outputs, SCALES), see
// `Scales`. `sums` : (outputs, 2), become 0. `bound` : what a largest value is multiplied by before it must stay within
// `limit`. `lambda`, `step` : penalty and limit of leaf values. `largest_searched` : bound of what is quantized in
// place of h, 0 for h.
extern "C" __global__ void __launch_bounds__(THREADS) find_scales(
    u32* __restrict__ tops, i32 n_outputs, double bound, double limit, double scale_w, double lambda,
    double step, double largest_searched, double* __restrict__ scales, i64* __restrict__ sums) {
    const i32 output = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (output >= n_outputs) return;
    const double top_g = __uint_as_float(tops[output]), top_h = __uint_as_float(tops[n_outputs + output]);
    tops[output] = tops[n_outputs + output] = 0;
    sums[2 * output] = sums[2 * output + 1] = 0;
    store_scales(top_g, top_h, bound, limit, scale_w, lambda, step, largest_searched, scales + SCALES * output);
}

// `changed` : scales of the same largest values by another rule than `scales` had.
extern "C" __global__ void __launch_bounds__(THREADS) change_scales(
    const double* __restrict__ scales, i32 n_outputs, double bound, double limit, double scale_w, double lambda,
    double step, double largest_searched, double* __restrict__ changed) {
    const i32 output = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (output >= n_outputs) return;
    const double* own = scales + SCALES * output;
    store_scales(own[LARGEST_G], own[LARGEST_H], bound, limit, scale_w, lambda, step, largest_searched,
                 changed + SCALES * output);
}
