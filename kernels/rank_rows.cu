// Rows become ranks among the thresholds of a forest (rank_tile.cuh), before `predict.cu` walks them.
//
// A block stages 128 rows of 32 features in shared memory, so that device memory is read along whichever axis is
// contiguous, and the thresholds of those features, so that the search costs a few cycles a step. A warp then takes one
// feature of all rows: its lanes probe the same thresholds first, which shared memory answers at once. Searching takes
// eight probes per value, against hundreds of node visits that it makes cheaper.
//
// variants: RANK_BYTES=1 STAGED=1
// variants: RANK_BYTES=2 STAGED=0,1
// budget: rank_rows registers=64 shared=0
// budget: find_infinite registers=40 shared=0
#include "ordered.cuh"
#include "rank_tile.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef STAGED
#define STAGED 1
#endif

constexpr i32 GROUP = 32;          // features of a block
constexpr i32 PITCH = GROUP + 1;  // between staged rows: lanes of a column then lie in different banks

// How many of `n` increasing thresholds each of four keys reaches; all probe at the same distances.
static __device__ __forceinline__ void find_ranks(
    const u32 (&keys)[LANE_ROWS], const u32* thresholds, i32 n, u32 (&ranks)[LANE_ROWS]) {
#pragma unroll
    for (i32 slot = 0; slot < LANE_ROWS; ++slot) ranks[slot] = 0;
    while (n > 0) {
        const i32 half = (n + 1) / 2;
#pragma unroll
        for (i32 slot = 0; slot < LANE_ROWS; ++slot)
            ranks[slot] += keys[slot] >= thresholds[ranks[slot] + half - 1] ? half : 0;
        n -= half;
    }
}

// The ranks of a lane's four rows in one word, or in two.
static __device__ __forceinline__ void write_ranks(const u32 (&ranks)[LANE_ROWS], u8* column, i32 lane) {
#pragma unroll
    for (i32 slot = 0; slot < LANE_ROWS; slot += 4 / RANK_BYTES) {
        u32 word = 0;
#pragma unroll
        for (i32 k = 0; k < 4 / RANK_BYTES; ++k) word |= ranks[slot + k] << 8 * RANK_BYTES * k;
        *reinterpret_cast<u32*>(column + rank_offset(lane, slot)) = word;
    }
}

// `values` : (row, feature) at row * row_stride + feature * feature_stride; `missing` counts as NaN too.
// `thresholds` : keys of `ordered.cuh`, increasing, those of feature f from threshold_ends[f - 1], or 0, up to
// threshold_ends[f]. `feature_columns` : shape (used features, 2), the columns where missing goes right and left, or -1;
// features beyond are in no split. `ranks` : shape (tiles, columns, 128). `infinite` : zeros, one per feature.
// Blocks: a multiple of the groups of features. Dynamic shared memory: the staged rows, and the thresholds of the
// largest group if STAGED.
extern "C" __global__ void __launch_bounds__(THREADS, 4) rank_rows(
    const float* __restrict__ values, i64 row_stride, i64 feature_stride, i64 n_rows, i32 n_features, float missing,
    const u32* __restrict__ thresholds, const i32* __restrict__ threshold_ends, const i32* __restrict__ feature_columns,
    i32 n_used, i32 n_columns, u8* __restrict__ ranks, u8* __restrict__ infinite) {
    DYNAMIC_SHARED(float, staged);
    const i32 n_groups = (n_features + GROUP - 1) / GROUP, n_blocks = gridDim.x / n_groups;
    const i32 first = blockIdx.x % n_groups * GROUP, n_own = min(GROUP, n_features - first);
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 before = first == 0 || n_used == 0 ? 0 : threshold_ends[min(first, n_used) - 1];
#if STAGED
    u32* const own_thresholds = reinterpret_cast<u32*>(staged + TILE_ROWS * PITCH);
    const i32 n_own_thresholds = n_used == 0 ? 0 : threshold_ends[min(first + n_own, n_used) - 1] - before;
    for (i32 i = threadIdx.x; i < n_own_thresholds; i += THREADS) own_thresholds[i] = thresholds[before + i];
#else
    const u32* const own_thresholds = thresholds + before;
#endif
    for (i64 tile = blockIdx.x / n_groups; tile * TILE_ROWS < n_rows; tile += n_blocks) {
        const i64 first_row = tile * TILE_ROWS;
        for (i32 i = threadIdx.x; i < TILE_ROWS * GROUP; i += THREADS) {
            const bool along_rows = row_stride < feature_stride;
            const i32 row = along_rows ? i % TILE_ROWS : i / GROUP, f = along_rows ? i / TILE_ROWS : i % GROUP;
            float value = 0;
            if (f < n_own && first_row + row < n_rows) {
                value = values[(first_row + row) * row_stride + (first + f) * feature_stride];
                if (value == missing) value = __uint_as_float(0x7FC00000u);
                if (is_infinite(value)) infinite[first + f] = 1;
            }
            // The rows of a slot lie side by side, so that lanes, which take four rows each, meet no common bank.
            staged[(row % LANE_ROWS * 32 + row / LANE_ROWS) * PITCH + f] = value;
        }
        __syncthreads();
        for (i32 f = warp; f < n_own && first + f < n_used; f += THREADS / 32) {
            const i32 feature = first + f;
            const i32 right = feature_columns[2 * feature], left = feature_columns[2 * feature + 1];
            if (right < 0 && left < 0) continue;
            const i32 begin = feature == 0 ? 0 : threshold_ends[feature - 1], n = threshold_ends[feature] - begin;
            u32 keys[LANE_ROWS], found[LANE_ROWS];
#pragma unroll
            for (i32 slot = 0; slot < LANE_ROWS; ++slot)
                keys[slot] = ordered_key(staged[(slot * 32 + lane) * PITCH + f], 0);  // no value's key is 0
            find_ranks(keys, own_thresholds + (begin - before), n, found);
            u8* const own = ranks + tile * n_columns * COLUMN_BYTES;
            if (left >= 0) write_ranks(found, own + left * COLUMN_BYTES, lane);  // a missing value's rank is 0
#pragma unroll
            for (i32 slot = 0; slot < LANE_ROWS; ++slot) found[slot] = keys[slot] == 0 ? n : found[slot];
            if (right >= 0) write_ranks(found, own + right * COLUMN_BYTES, lane);
        }
        __syncthreads();
    }
}

// Which features have values that must be refused. Of a matrix: `n` values along the inner axis within the outer one, and
// features along the inner axis if `features_inside`. Of CSR: `n` entries, `indices` their features.
extern "C" __global__ void __launch_bounds__(THREADS) find_infinite(
    const float* __restrict__ values, const i32* __restrict__ indices, i64 n, i64 n_inner, i64 outer_stride,
    i64 inner_stride, i32 features_inside, float missing, u8* __restrict__ infinite) {
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS) {
        const i64 outer = i / n_inner, inner = i % n_inner;
        const float value = indices ? values[i] : values[outer * outer_stride + inner * inner_stride];
        if (value == missing || !is_infinite(value)) continue;
        infinite[indices ? indices[i] : features_inside ? inner : outer] = 1;
    }
}
