// Metrics of rankings by query: `daskboost/devices/cpu/query_metrics.py`, operation by operation.
//
//   rank_labels   scores -> labels by place, a query a block      rank_tiles   the same of large queries, from sorted keys
//   sum_values    labels by place -> the exact sum of what queries are worth, times their weights
//
// A warp has a query's value: its lanes compute terms, which are added up from the first place on, as a CPU does. Labels of
// a query with a score that is NaN become NaN, as all sums do then.
//
// variants: THREADS=256
// budget: rank_labels registers=64 shared=0
// budget: rank_tiles registers=40 shared=0
// budget: sum_values registers=96 shared=24*THREADS/32
#include "ranking.cuh"
#include "wide_sum.cuh"

#ifndef THREADS
#define THREADS 256
#endif

// What is computed of a query, as `QueryValue` numbers it.
constexpr i32 NDCG = 0, AVERAGE_PRECISION = 1, PRECISION = 2;

static __device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7FC00000u); }

static __device__ __forceinline__ bool is_nan_key(u64 key) {
    const float score = value_of(~static_cast<u32>(key >> 32));
    return score != score;
}

// `which` : queries that blocks have, of as many threads as `fill_queries` of queries.cu has for them; `order` : places of
// rows among all, by query. `labels`, `ranked` : by query. Dynamic shared memory: 8 bytes for each of the least power of two
// from the number of rows on.
extern "C" __global__ void rank_labels(const u32* __restrict__ which, const u32* __restrict__ order,
                                       const i64* __restrict__ begins, const float* __restrict__ labels,
                                       const float* __restrict__ scores, i64 stride, float* __restrict__ ranked) {
    DYNAMIC_SHARED(u64, keys);
    const i64 query = which[blockIdx.x], begin = begins[query];
    const i32 n = static_cast<i32>(begins[query + 1] - begin), size = power_from(n);
    for (i32 i = threadIdx.x; i < size; i += blockDim.x)
        keys[i] = i < n ? key_of_row(scores[order[begin + i] * stride], i) : ~0ull;
    __syncthreads();
    sort_keys(keys, size);
    const bool is_nan = is_nan_key(keys[0]) || is_nan_key(keys[n - 1]);
    for (i32 i = threadIdx.x; i < n; i += blockDim.x)
        ranked[begin + i] = is_nan ? not_a_number() : labels[begin + static_cast<u32>(keys[i])];
}

// `tiles`, `keys` : see sort_queries.cu.
extern "C" __global__ void rank_tiles(const Tile* __restrict__ tiles, const i64* __restrict__ begins,
                                      const u64* __restrict__ keys, const float* __restrict__ labels,
                                      float* __restrict__ ranked) {
    const Tile tile = tiles[blockIdx.x];
    const i64 begin = begins[tile.query];
    const bool is_nan = is_nan_key(keys[tile.base]) || is_nan_key(keys[tile.base + tile.n - 1]);
    for (i32 i = threadIdx.x; i < tile.size(); i += blockDim.x) {
        const i64 place = tile.first + i;
        ranked[begin + place] = is_nan ? not_a_number() : labels[begin + static_cast<u32>(keys[tile.base + place])];
    }
}

// `gains` : of labels, `n_gains` of them; 0 where a label is its gain.
static __device__ __forceinline__ double gain_of(float label, const double* gains, i32 n_gains) {
    return n_gains > 0 ? gains[static_cast<i32>(label)] : static_cast<double>(label);
}

// What a query is worth, of `n` labels by place, of which the first `top` count; all lanes of a warp call it. `best` : what
// sums of terms are divided by, above 0.
static __device__ __forceinline__ double value_of_query(const float* labels, i64 n, i64 top, i32 kind, const double* gains,
                                                        i32 n_gains, const double* discounts, double best) {
    const u32 lane = threadIdx.x % WARP;
    i64 hits = 0;
    double sum = 0;
    for (i64 first = 0; first < min(top, n); first += WARP) {
        const i64 place = first + lane;
        const float label = place < min(top, n) ? labels[place] : 0.0f;
        const u32 relevant = __ballot_sync(ALL_LANES, label > 0);
        double term = 0;
        if (kind == NDCG && place < min(top, n)) term = discounts[place] * gain_of(label, gains, n_gains);
        if (kind == AVERAGE_PRECISION && label > 0)
            term = static_cast<double>(hits + __popc(relevant & ((2u << lane) - 1))) / (static_cast<double>(place) + 1.0);
        hits += __popc(relevant);
        if (kind == NDCG || kind == AVERAGE_PRECISION) {
            for (u32 i = 0; i < WARP; ++i) sum += __shfl_sync(ALL_LANES, term, i);
        } else if (kind != PRECISION && relevant != 0) {
            return 1.0 / static_cast<double>(first + __ffs(static_cast<i32>(relevant)));
        }
    }
    return (kind == PRECISION ? static_cast<double>(hits) : sum) / best;
}

// `bests` : of each query, 0 where none of its rows is relevant, which is worth `otherwise`. `sums` : per block, three words
// each of values times weights, and of weights; `limbs`, `specials` : see `Outside`, zeros, for both sums.
extern "C" __global__ void __launch_bounds__(THREADS, 2) sum_values(
    const i64* __restrict__ begins, i64 n_queries, const float* __restrict__ ranked, const double* __restrict__ weights,
    const double* __restrict__ discounts, const double* __restrict__ bests, i32 kind, i64 top,
    const double* __restrict__ gains, i32 n_gains, double otherwise, u64* __restrict__ sums, u64* __restrict__ limbs, u32* __restrict__ specials) {
    __shared__ WideSum storage[THREADS / WARP];
    WideSum values = {{0, 0, 0}}, totals = {{0, 0, 0}};
    const Outside of_values = {limbs, specials}, of_weights = {limbs + 4096, specials + 1};
    for (i64 query = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP; query < n_queries;
         query += static_cast<i64>(gridDim.x) * (THREADS / WARP)) {
        const float* const labels = ranked + begins[query];
        const double best = bests[query], weight = weights[query];
        double value = labels[0] == labels[0] ? otherwise : static_cast<double>(labels[0]);
        if (best > 0 && labels[0] == labels[0])
            value = value_of_query(labels, begins[query + 1] - begins[query], top, kind, gains, n_gains, discounts, best);
        if (threadIdx.x % WARP != 0) continue;
        add_exactly<UNIT>(values, value * weight, of_values);
        add_exactly<UNIT>(totals, weight, of_weights);
    }
    values = wide_sum_of_block<THREADS>(values, storage);
    totals = wide_sum_of_block<THREADS>(totals, storage);
    if (threadIdx.x == 0) {
        for (i32 k = 0; k < 3; ++k) {
            sums[6 * blockIdx.x + k] = values.words[k];
            sums[6 * blockIdx.x + 3 + k] = totals.words[k];
        }
    }
}
