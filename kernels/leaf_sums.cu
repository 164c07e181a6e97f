// Sums of g and h over the rows of leaves: of gradients as gradients.cu would quantize them, whatever the tree was searched
// on.
//
// A block takes a stretch of at most 65,536 rows, whose 15 bits fit 32 (as all rows of small data do), and keeps a sum per
// leaf in shared memory; trees with more nodes than have room there, MOST_LEAVES, add the others' rows to the global sums.
// Integers, so that no order shows. Gradients are computed again from label and margin, as gradients.cu does and for its
// reasons.
//
// variants: OBJECTIVE=0,1,2,3,4,5,6,7,8
// budget: add_to_leaves registers=64 shared=8*MOST_LEAVES
#include "global_ids.cuh"
#include "objectives.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef MOST_LEAVES
#define MOST_LEAVES 1024
#endif

constexpr u32 BATCH = 4;  // rows whose loads are under way together

// `sums` : shape (n_leaves, 2), grow by the integers of rows whose `leaf` is not negative and that are sampled. `first`,
// `second`, `weight` and all others as `quantize_gradients` takes them.
extern "C" __global__ void __launch_bounds__(THREADS, 4) add_to_leaves(
    const float* __restrict__ first, const float* __restrict__ second, const float* __restrict__ weight,
    i64 stride_first, i64 stride_second, const float* __restrict__ parameters, i32 is_small,
    const double* __restrict__ scales, const u64* __restrict__ keys, u64 sample_below, const u64* __restrict__ codes,
    const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows, u32 block_rows, const i32* __restrict__ leaf, i32 n_leaves,
    u64* __restrict__ sums) {
    __shared__ u32 own_sums[2 * MOST_LEAVES];
    const i32 n_shared = 2 * min(n_leaves, MOST_LEAVES);
    for (i32 i = threadIdx.x; i < n_shared; i += THREADS) own_sums[i] = 0;
    __syncthreads();

    const LossParameters loss = load_parameters(parameters);
    const double scale_g = scales[SCALE_G], scale_h = scales[SCALE_H];
    const bool is_finite = scale_g != 0 && scale_h != 0, is_sample = sample_below < 1ull << 32;
    const Stretch own = stretch_of(blockIdx.x, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    for (u32 tile = 0; tile < own.n; tile += BATCH * THREADS) {
        float firsts[BATCH], seconds[BATCH], weights[BATCH];
        i32 leaves[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 place = tile + i * THREADS + threadIdx.x;
            const bool is_row = place < own.n;
            const i64 row = own.begin + place;
            leaves[i] = is_row ? leaf[row] : -1;
            firsts[i] = is_row ? first[row * stride_first] : 0.0f;
            seconds[i] = is_row ? second[row * stride_second] : 0.0f;
            weights[i] = is_row && weight != nullptr ? weight[row] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            if (leaves[i] < 0) continue;
            const u32 row = own.begin + tile + i * THREADS + threadIdx.x;
            const u64 id = ids.of(row);
            if (is_sample && !is_sampled(keys[1], codes == nullptr ? id : codes[row], sample_below)) continue;
            Gradient gradient = gradient_of(firsts[i], seconds[i], loss);
            if (OBJECTIVE != GIVEN && weight != nullptr) gradient = weighted(gradient, weights[i], is_small);
            if (!is_finite) gradient = {0.0f, 0.0f};
            const QuantizedPair pair =
                is_small ? quantize_small(gradient.g, gradient.h, scale_g, scale_h, weights[i] * scales[SCALE_W])
                         : quantize_large(gradient.g, gradient.h, scale_g, scale_h, draw(keys[0], id));
            const i64 at = 2 * static_cast<i64>(leaves[i]);
            if (leaves[i] < MOST_LEAVES) {
                atomicAdd(own_sums + at, static_cast<u32>(pair.g));
                atomicAdd(own_sums + at + 1, static_cast<u32>(pair.h));
            } else {
                atomicAdd(sums + at, static_cast<u64>(pair.g));
                atomicAdd(sums + at + 1, static_cast<u64>(pair.h));
            }
        }
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < n_shared; i += THREADS) {
        const i32 sum = static_cast<i32>(own_sums[i]);
        if (sum != 0) atomicAdd(sums + i, static_cast<u64>(static_cast<i64>(sum)));
    }
}
