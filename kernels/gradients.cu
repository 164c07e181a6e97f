// Gradients become pairs of integers, in increasing order of the sampled rows, with their sums.
//
// A row's pair is one int32 (large data) or int64 (SMALL); `rounding.cuh` has the arithmetic. Gradients of a loss are
// computed again from label and margin: as many bytes as reading both back, and storing neither saves 8 bytes a row.
// A block takes a stretch of whole tiles, a batch of loads ahead of the arithmetic; fewer, longer stretches mean fewer
// atomics on the two sums, and few enough counts that each block adds up those before its own. Where rows are sampled,
// `count_sampled` says how many of each stretch are kept, and `quantize_gradients` hashes again, which costs less than
// writing the answers down. Scales, keys and results stay in device memory: no launch waits for the host.
//
// variants: OBJECTIVE=0,1,2,3,4,5,6,7,8 SMALL=0,1 SAMPLED=0,1
// usual: OBJECTIVE=1,5 SMALL=0 SAMPLED=0
// budget: count_sampled registers=40 shared=4*THREADS/32
// budget: quantize_gradients registers=64+16*SAMPLED shared=8*THREADS/32+8*THREADS/32
#include "block.cuh"
#include "global_ids.cuh"
#include "objectives.cuh"
#include "pair.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SAMPLED
#define SAMPLED 0
#endif

// A block works for one tree of several; those of neighbouring outputs, whose gradients often share sectors, run together.
struct Part {
    u32 tree, block, blocks;
};

__device__ __forceinline__ Part part_of_block(i32 n_trees) {
    const u32 n = static_cast<u32>(n_trees);
    return {blockIdx.x % n, blockIdx.x / n, gridDim.x / n};
}

constexpr u32 BATCH = SAMPLED ? 2 : 4;  // as many rows at once as 64 registers hold
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 TILE = BATCH * THREADS;

// Turns votes on a tile's rows, thread t having those of rows t, t + THREADS and so on, into how many kept rows of the
// tile come before each; returns how many there are.
__device__ __forceinline__ u32 rank_in_tile(const bool (&is_kept)[BATCH], u32 (&rank)[BATCH], u32* storage) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (u32 i = 0; i < BATCH; ++i) {
        const u32 votes = __ballot_sync(ALL_LANES, is_kept[i]);
        rank[i] = static_cast<u32>(__popc(votes & ((1u << lane) - 1)));
        if (lane == 0) storage[i * WARPS + warp] = static_cast<u32>(__popc(votes));
    }
    __syncthreads();
    u32 total = 0;
#pragma unroll
    for (u32 i = 0; i < BATCH; ++i) {
        rank[i] += total;
        for (u32 w = 0; w < WARPS; ++w) {
            rank[i] += w < warp ? storage[i * WARPS + w] : 0;
            total += storage[i * WARPS + w];
        }
    }
    __syncthreads();  // `storage` may be used again
    return total;
}

// counts[tree, block]: rows of the stretch that are sampled. `keys` : shape (trees, 2), of rounding and of sampling.
// `codes` : what each row is sampled by, the code of its query, shape (rows,); null for its global id.
extern "C" __global__ void __launch_bounds__(THREADS) count_sampled(
    const u64* __restrict__ keys, u64 sample_below, const u64* __restrict__ codes, const i64* __restrict__ pieces,
    i32 n_pieces, i64 n_rows, u32 block_rows, u32* __restrict__ counts, i32 n_trees) {
    __shared__ u32 storage[WARPS];
    const Part part = part_of_block(n_trees);
    const u64 key = keys[2 * part.tree + 1];
    const Stretch own = stretch_of(part.block, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    u32 count = 0;
    for (u32 place = threadIdx.x; place < own.n; place += THREADS) {
        const u32 row = own.begin + place;
        count += is_sampled(key, codes == nullptr ? ids.of(row) : codes[row], sample_below);
    }
    count = sum_of_block<THREADS>(count, storage);
    if (threadIdx.x == 0) counts[part.tree * part.blocks + part.block] = count;
}

// Pairs of the sampled rows into the first places of each tree's `n_rows` of `pairs`, and their rows into `order` (or null).
//
// `first`, `second` : label and margin of a loss, or g and h, of the first of `n_trees` outputs; `next_first`, `next_second` :
// from one output's to the next one's. `weight` : multiplies the gradients of a loss (or null); of small data, which must
// have it, their integers. `by_weight` : h of a loss is only what multiplies its gradients. `codes` : as `count_sampled`
// takes them. `counts` : what that found; without SAMPLED, all are kept. `bounds` : the first tree's root's segment, the
// next tree's `nodes_per_tree` further; they become (0, kept rows) and so on, `n_rows` apart. sums[0] and sums[1] of each
// tree grow by the integers of g and h.
extern "C" __global__ void __launch_bounds__(THREADS, 4 - SAMPLED) quantize_gradients(
    const float* __restrict__ first, const float* __restrict__ second, const float* __restrict__ weight,
    i64 stride_first, i64 stride_second, i64 next_first, i64 next_second, const float* __restrict__ parameters,
    i32 by_weight, const double* __restrict__ scales, const u64* __restrict__ keys, u64 sample_below,
    const u64* __restrict__ codes, const i64* __restrict__ pieces, i32 n_pieces, i64 n_rows, u32 block_rows,
    const u32* __restrict__ counts, i32 n_trees, i32 nodes_per_tree, u32* __restrict__ order, Pair* __restrict__ pairs,
    i64* __restrict__ bounds, u64* __restrict__ sums) {
    __shared__ u32 votes[BATCH * WARPS];
    __shared__ i64 partial[WARPS];
    const Part part = part_of_block(n_trees);
    first += part.tree * next_first;
    second += part.tree * next_second;  // other arrays are indexed by tree: a pointer of a block's own takes two registers
    const u32 start = part.tree * static_cast<u32>(n_rows);  // position; there are fewer than 2**32
    const LossParameters loss = load_parameters(parameters + (OBJECTIVE == GIVEN ? 0 : part.tree * 2));
    const double scale_g = scales[part.tree * SCALES + SCALE_G], scale_h = scales[part.tree * SCALES + SCALE_H];
    const bool is_finite = scale_g != 0 && scale_h != 0;
    const Stretch own = stretch_of(part.block, block_rows, n_rows);
    GlobalIds ids = ids_from(pieces, n_pieces, own.begin + threadIdx.x);
    u32 place = start + own.begin;
    if (SAMPLED) {
        const u32* const own_counts = counts + part.tree * part.blocks;
        place = start + static_cast<u32>(sum_before<THREADS>(own_counts, part.block, partial));
    }
    i64 sum_g = 0, sum_h = 0;
    for (u32 tile = 0; tile < own.n; tile += TILE) {
        float firsts[BATCH], seconds[BATCH], weights[BATCH];
        bool is_kept[BATCH];
        u64 id[BATCH];
        u32 rank[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            rank[i] = i * THREADS + threadIdx.x;
            is_kept[i] = tile + rank[i] < own.n;
            const i64 row = own.begin + tile + rank[i];
            firsts[i] = is_kept[i] ? first[row * stride_first] : 0.0f;
            seconds[i] = is_kept[i] ? second[row * stride_second] : 0.0f;
            weights[i] = is_kept[i] && weight != nullptr ? weight[row] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 row = own.begin + tile + rank[i];
            if (is_kept[i]) id[i] = ids.of(row);
            if (!SAMPLED || !is_kept[i]) continue;
            is_kept[i] = is_sampled(keys[2 * part.tree + 1], codes == nullptr ? id[i] : codes[row], sample_below);
        }
        const u32 n_kept = SAMPLED ? rank_in_tile(is_kept, rank, votes) : TILE;
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            if (!is_kept[i]) continue;
            const u32 at = place + rank[i];
            Gradient gradient = gradient_of(firsts[i], seconds[i], loss, by_weight);
            if (OBJECTIVE != GIVEN && weight != nullptr) gradient = weighted(gradient, weights[i], SMALL);
            if (!is_finite) gradient = {0.0f, 0.0f};
#if SMALL
            const double times = static_cast<double>(weights[i]) * scales[part.tree * SCALES + SCALE_W];
            const QuantizedPair pair = quantize_small(gradient.g, gradient.h, scale_g, scale_h, times);
            pairs[at] = pack_small(pair);
#else
            const u64 bits = draw(keys[2 * part.tree], id[i]);
            const QuantizedPair pair = quantize_large(gradient.g, gradient.h, scale_g, scale_h, bits);
            pairs[at] = pack_large(pair);
#endif
            if (order != nullptr) order[at] = own.begin + tile + i * THREADS + threadIdx.x;
            sum_g += pair.g;
            sum_h += pair.h;
        }
        place += n_kept;
    }
    if (part.block == part.blocks - 1 && threadIdx.x == 0) {
        i64* const root = bounds + 2 * static_cast<i64>(part.tree) * nodes_per_tree;
        root[0] = start;
        root[1] = SAMPLED ? static_cast<i64>(place) : start + n_rows;
    }
    sum_g = sum_of_block<THREADS>(sum_g, partial);
    sum_h = sum_of_block<THREADS>(sum_h, partial);
    if (threadIdx.x == 0) {
        atomicAdd(&sums[2 * part.tree], static_cast<u64>(sum_g));
        atomicAdd(&sums[2 * part.tree + 1], static_cast<u64>(sum_h));
    }
}
