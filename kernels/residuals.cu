// Quantiles of residuals by a radix selection, exact for any number of rows in three rounds.
//
//   count_residuals   rows of nodes by the next digit of the residual's sortable key, among those with the digits found so far
//   choose_digits     the next digit of each leaf's quantile; after the last one, the leaf's value
//
// A block counts the rows of one tile in shared memory, with native 32-bit atomics: a weight is at most 2**20, so the 2**11
// rows of a tile stay within an unsigned 32-bit sum. Where counts leave the device, the host chooses digits.
//
// variants: DIGITS=2048
// budget: count_residuals registers=64 shared=4*DIGITS
// budget: choose_digits registers=64 shared=8*THREADS/32
#include "block.cuh"
#include "keys.cuh"
#include "tiles.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 2048
#endif
#ifndef DIGITS
#define DIGITS 2048
#endif

// `order` : rows by position, or null where position and row are the same. `leaves` : of trees that grow together, `per_tree`
// of each; a tree's margins are `next_margin` numbers behind those of the one before. `weight` : float, or null for ones.
// `keys` : null, or by position what the first round stores and the others read. `counts` : shape (leaves, 2**next_bits).
extern "C" __global__ void __launch_bounds__(THREADS, 4) count_residuals(
    const i64* bounds, const i32* leaves, const i32* starts, i32 n, i32 per_tree, const u32* order, const float* label,
    const float* margin, i64 margin_stride, i64 next_margin, const float* weight, double weight_scale,
    const u32* prefixes, i32 known_bits, i32 next_bits, u32* keys, u64* counts) {
    __shared__ u32 own[DIGITS];
    const Tile tile = find_tile(blockIdx.x, bounds, leaves, starts, n, TILE_ROWS);
    if (tile.segment < 0) return;
    const i32 n_digits = 1 << next_bits;
    for (i32 digit = threadIdx.x; digit < n_digits; digit += THREADS) own[digit] = 0;
    __syncthreads();
    const u32 prefix = prefixes[tile.segment];
    const i32 shift = 32 - known_bits - next_bits;
    const float* const margins = margin + tile.segment / per_tree * next_margin;
    const bool is_stored = keys && known_bits > 0;
    for (i64 i = tile.begin + threadIdx.x; i < tile.end; i += THREADS) {
        const i64 row = order && (weight || !is_stored) ? order[i] : i;
        const u32 key = is_stored ? keys[i] : key_of(label[row] - margins[row * margin_stride]);
        if (keys && !is_stored) keys[i] = key;
        if (known_bits > 0 && key >> (32 - known_bits) != prefix) continue;
        const u32 amount = weight ? (u32)rint((double)weight[row] * weight_scale) : 1u;
        atomicAdd(&own[key >> shift & (n_digits - 1u)], amount);
    }
    __syncthreads();
    u64* into = counts + (i64)tile.segment * n_digits;
    for (i32 digit = threadIdx.x; digit < n_digits; digit += THREADS)
        if (own[digit]) atomicAdd(&into[digit], (u64)own[digit]);
}

// A block per leaf. `leaves` : nodes, -1 for none; those of a tree are `per_tree`, whose quantile is in `alphas`. `counts` : of
// this round; they become zeros. `prefixes`, `wanted` : of each leaf, the digits found so far, and the weight that rows with
// these digits are still to reach, which is 0 where the leaf has no weight. `values` : by node; those of leaves with a weight
// become their quantile times the learning rate when the last digit is found.
extern "C" __global__ void __launch_bounds__(THREADS) choose_digits(
    const i32* leaves, i32 per_tree, const double* alphas, i32 known_bits, i32 next_bits, u64* counts, u32* prefixes,
    u64* wanted, const double* learning_rate, float* values) {
    constexpr u32 N_WARPS = THREADS / WARP;
    __shared__ u64 of_warps[N_WARPS];
    const i32 leaf = leaves[blockIdx.x], n_digits = 1 << next_bits, each = (n_digits + THREADS - 1) / THREADS;
    if (leaf < 0) return;
    u64* const own = counts + static_cast<i64>(blockIdx.x) * n_digits;
    const i32 begin = min(n_digits, static_cast<i32>(threadIdx.x) * each), end = min(n_digits, begin + each);
    u64 sum = 0;
    for (i32 digit = begin; digit < end; ++digit) sum += own[digit];
    const u64 up_to = running_sum_of_warp(sum);
    if (threadIdx.x % WARP == WARP - 1) of_warps[threadIdx.x / WARP] = up_to;
    u64 target = wanted[blockIdx.x];
    u32 prefix = known_bits > 0 ? prefixes[blockIdx.x] : 0;
    __syncthreads();  // all have read them
    u64 before = up_to - sum, total = 0;
    for (u32 warp = 0; warp < N_WARPS; ++warp) {
        before += warp < threadIdx.x / WARP ? of_warps[warp] : 0;
        total += of_warps[warp];
    }
    if (known_bits == 0) {
        target = static_cast<u64>(ceil(alphas[blockIdx.x / per_tree] * static_cast<double>(total)));
        target = total == 0 ? 0 : max(target, static_cast<u64>(1));
        if (total == 0 && threadIdx.x == 0) wanted[blockIdx.x] = 0;
    }
    for (i32 digit = begin; digit < end; ++digit) {
        const u64 count = own[digit];
        own[digit] = 0;
        const bool is_it = before < target && target <= before + count;
        if (is_it) {
            prefix = prefix << next_bits | static_cast<u32>(digit);
            prefixes[blockIdx.x] = prefix;
            wanted[blockIdx.x] = target - before;
            if (known_bits + next_bits == 32) values[leaf] = value_of(prefix) * static_cast<float>(*learning_rate);
        }
        before += count;
    }
}
