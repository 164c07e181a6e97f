// Gradients of softmax cross-entropy: all classes of a row at a time, with their range; and probabilities alone, which
// metrics see. `SoftProb` of `daskboost/objectives/classification.py`, operation by operation.
//
// A group of lanes takes a row, so that loads and stores run along it: 4 bytes read and 8 written per class are the floor.
// The sum over classes folds by halves, as `elementary.fold` does, in shared memory. A lane keeps the range of the first
// class that it takes of each row; more than one needs more classes than lanes, and then no two lanes of a warp meet in
// the atomics of the others.
//
// variants: THREADS=256
// budget: softmax_gradients registers=48 shared=0
// budget: softmax_probabilities registers=48 shared=0
#include "objectives.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// The larger one; NaN if either is.
static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

static __device__ __forceinline__ u32 magnitude(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

// The sum of `values` by all lanes of a group; `folded` has room for half as many.
static __device__ __forceinline__ float sum_by_halves(const float* values, float* folded, i32 n, i32 lane, i32 group) {
    for (; n > 1; n /= 2) {
        const i32 half = n / 2;
        for (i32 i = lane; i < half; i += group) {
            float sum = values[i] + values[half + i];
            if (i == 0 && n % 2 == 1) sum += values[n - 1];
            folded[i] = sum;  // others still read from `half` on
        }
        __syncwarp();
        values = folded;
    }
    return values[0];
}

// `e`, with room for half as many behind them, become the exponentials of a row's margins less the largest; their sum.
// Lanes of rows that are not there take zeros.
static __device__ __forceinline__ float exponentials(const float* margins, bool is_in, i32 n_classes, i32 lane, i32 group,
                                                     float* e) {
    float most = -__uint_as_float(0x7F800000u);
    for (i32 i = lane; i < n_classes; i += group) most = larger(most, is_in ? margins[i] : 0.0f);
    for (i32 step = group / 2; step > 0; step /= 2) most = larger(most, __shfl_xor_sync(ALL_LANES, most, step));
    for (i32 i = lane; i < n_classes; i += group) e[i] = exp_of((is_in ? margins[i] : 0.0f) - most);
    __syncwarp();
    return sum_by_halves(e, e + n_classes, n_classes, lane, group);
}

// `label` : shape (rows,). `margin`, `g`, `h` : shape (rows, classes). `weight` : or null for ones. `group` : lanes of a
// row, a power of two. `tops` : shape (2, classes), bits of the largest |g| and h, which grow.
// Dynamic shared memory: 2 words per class, and 3 per class and two groups, rounded down.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_gradients(
    const float* __restrict__ label, const float* __restrict__ margin, const float* __restrict__ weight, i32 is_small,
    i32 n_classes, i32 group, i64 n_rows, float* __restrict__ g, float* __restrict__ h, u32* __restrict__ tops) {
    DYNAMIC_SHARED(u32, own_tops);
    const i32 lane = static_cast<i32>(threadIdx.x) % group, own = static_cast<i32>(threadIdx.x) / group;
    const i64 groups_of_block = blockDim.x / group, groups_of_warp = WARP / group;
    float* const e = reinterpret_cast<float*>(own_tops + 2 * n_classes) + own * (n_classes + n_classes / 2);
    for (i32 i = threadIdx.x; i < 2 * n_classes; i += blockDim.x) own_tops[i] = 0;
    __syncthreads();
    u32 most_g = 0, most_h = 0;
    // All lanes of a warp go round as often as its first group does.
    for (i64 first = blockIdx.x * groups_of_block + own / groups_of_warp * groups_of_warp; first < n_rows;
         first += gridDim.x * groups_of_block) {
        const i64 row = first + own % groups_of_warp;
        const bool is_in = row < n_rows;
        const float* const margins = margin + row * n_classes;
        const float total = exponentials(margins, is_in, n_classes, lane, group, e);
        for (i32 i = lane; is_in && i < n_classes; i += group) {
            const float p = e[i] / total;
            Gradient gradient = {p - (label[row] == static_cast<float>(i) ? 1.0f : 0.0f),
                                 at_least(2.0f * p * (1.0f - p), 1e-16f)};
            if (weight != nullptr) gradient = weighted(gradient, weight[row], is_small);
            g[row * n_classes + i] = gradient.g;
            h[row * n_classes + i] = gradient.h;
            if (i == lane) {
                most_g = max(most_g, magnitude(gradient.g));
                most_h = max(most_h, magnitude(gradient.h));
            } else {
                atomicMax(&own_tops[i], magnitude(gradient.g));
                atomicMax(&own_tops[n_classes + i], magnitude(gradient.h));
            }
        }
        __syncwarp();  // the next row may take the place
    }
    if (lane < n_classes) {
        atomicMax(&own_tops[lane], most_g);
        atomicMax(&own_tops[n_classes + lane], most_h);
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < 2 * n_classes; i += blockDim.x) atomicMax(&tops[i], own_tops[i]);
}

// `margin`, `out` : shape (rows, classes). `group`, dynamic shared memory : as above.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_probabilities(
    const float* __restrict__ margin, i32 n_classes, i32 group, i64 n_rows, float* __restrict__ out) {
    DYNAMIC_SHARED(float, room);
    const i32 lane = static_cast<i32>(threadIdx.x) % group, own = static_cast<i32>(threadIdx.x) / group;
    const i64 groups_of_block = blockDim.x / group, groups_of_warp = WARP / group;
    float* const e = room + own * (n_classes + n_classes / 2);
    for (i64 first = blockIdx.x * groups_of_block + own / groups_of_warp * groups_of_warp; first < n_rows;
         first += gridDim.x * groups_of_block) {
        const i64 row = first + own % groups_of_warp;
        const bool is_in = row < n_rows;
        const float total = exponentials(margin + row * n_classes, is_in, n_classes, lane, group, e);
        for (i32 i = lane; is_in && i < n_classes; i += group) out[row * n_classes + i] = e[i] / total;
        __syncwarp();  // the next row may take the place
    }
}
