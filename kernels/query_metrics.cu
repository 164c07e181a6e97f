// Metrics of rankings by query: `daskboost/devices/cpu/query_metrics.py`, operation by operation.
//
//   rank_labels   scores -> labels by place, a query a block      rank_tiles   the same of large queries, from sorted keys
//   sum_values    labels by place -> the exact sum of what queries are worth, times their weights
//
// A warp has a query's value: its lanes compute terms, which are added up from the first place on, as a CPU does. Labels of
// a query with a score that is NaN become NaN, as all sums do then. The sign of a label by place says that its score is that
// of the place before, since labels have none.
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
constexpr i32 NDCG = 0, AVERAGE_PRECISION = 1, PRECISION = 2, RECALL = 4, EXPECTED_RECIPROCAL_RANK = 5, PFOUND = 6, AUC = 7;

static __device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7FC00000u); }

static __device__ __forceinline__ bool is_nan_key(u64 key) {
    const float score = value_of(~static_cast<u32>(key >> 32));
    return score != score;
}

// A row's label by the keys of its place and of the one before, of which the first place has none.
static __device__ __forceinline__ float label_of(float label, u64 key, u64 before) {
    const bool is_tied = value_of(static_cast<u32>(~key >> 32)) == value_of(static_cast<u32>(~before >> 32));
    return is_tied ? -label : label;
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
        ranked[begin + i] = is_nan   ? not_a_number()
                            : i == 0 ? labels[begin + static_cast<u32>(keys[0])]
                                     : label_of(labels[begin + static_cast<u32>(keys[i])], keys[i], keys[i - 1]);
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
        const u64* const key = keys + tile.base + place;
        ranked[begin + place] = is_nan       ? not_a_number()
                                : place == 0 ? labels[begin + static_cast<u32>(*key)]
                                             : label_of(labels[begin + static_cast<u32>(*key)], *key, key[-1]);
    }
}

// What is computed of each query; see `Measure`.
struct Value {
    i32 kind;
    i64 top;
    const double* gains;  // of labels, `n_gains` of them; 0 where a label is its gain
    i32 n_gains;
    double unit;
    double patience;

    __device__ __forceinline__ double gain_of(float label) const {
        return n_gains > 0 ? gains[static_cast<i32>(label)] : static_cast<double>(label);
    }
};

// What a query is worth, of `n` labels by place, of which the first ones count; all lanes of a warp call it. `best` : what
// sums of terms are divided by, above 0.
static __device__ __forceinline__ double value_of_query(const float* labels, i64 n, const Value& value,
                                                        const double* discounts, double best) {
    const u32 lane = threadIdx.x % WARP;
    const i32 kind = value.kind;
    const bool reads = kind == EXPECTED_RECIPROCAL_RANK || kind == PFOUND;
    const bool adds = kind == NDCG || kind == AVERAGE_PRECISION;
    const i64 end = min(value.top, n);
    i64 hits = 0;
    double sum = 0, looks = 1;
    for (i64 first = 0; first < end; first += WARP) {
        const i64 place = first + lane;
        const float label = place < end ? fabsf(labels[place]) : 0.0f;
        const u32 relevant = __ballot_sync(ALL_LANES, label > 0);
        double term = 0;
        if (kind == NDCG && place < end) term = discounts[place] * value.gain_of(label);
        if (kind == AVERAGE_PRECISION && label > 0)
            term = static_cast<double>(hits + __popc(relevant & ((2u << lane) - 1))) / (static_cast<double>(place) + 1.0);
        if (reads) term = value.gain_of(label) * value.unit;
        hits += __popc(relevant);
        if (adds) {
            for (u32 i = 0; i < WARP; ++i) sum += __shfl_sync(ALL_LANES, term, i);
        } else if (reads) {
            for (u32 i = 0; i < WARP; ++i) {
                const double satisfies = __shfl_sync(ALL_LANES, term, i), share = looks * satisfies;
                sum += kind == PFOUND ? share : share / (static_cast<double>(first + i) + 1.0);
                looks *= (1.0 - satisfies) * value.patience;
            }
        } else if (kind != PRECISION && kind != RECALL && relevant != 0) {
            return 1.0 / static_cast<double>(first + __ffs(static_cast<i32>(relevant)));
        }
    }
    return (adds || reads ? sum : static_cast<double>(hits)) / best;
}

// The area under a query's ROC curve, divided by `best`, twice the pairs of a relevant row and another. Of each row that is
// not relevant the relevant ones above its score are added up, of each relevant one the others are subtracted, which gives
// twice the area less these pairs; all lanes of a warp call it.
static __device__ __forceinline__ double area_of_query(const float* labels, i64 n, double best) {
    const u32 lane = threadIdx.x % WARP, below = (1u << lane) - 1;
    i64 hits = 0, sum = 0, start = 0, hits_at_start = 0;  // `start` : where rows of the last score begin
    for (i64 first = 0; first < n; first += WARP) {
        const i64 place = first + lane;
        const bool is_row = place < n;
        const float label = is_row ? labels[place] : 0.0f;
        const bool is_relevant = fabsf(label) > 0;
        const u32 relevant = __ballot_sync(ALL_LANES, is_relevant);
        const u32 starts = __ballot_sync(ALL_LANES, is_row && __float_as_uint(label) >> 31 == 0);
        const u32 own = starts & (below << 1 | 1);
        const i32 begun = own == 0 ? -1 : 31 - __clz(static_cast<i32>(own));
        const i64 begin = begun < 0 ? start : first + begun;
        const i64 above = begun < 0 ? hits_at_start : hits + __popc(relevant & ((1u << begun) - 1));
        if (is_row) sum += is_relevant ? above - begin : above;
        start = __shfl_sync(ALL_LANES, begin, WARP - 1);
        hits_at_start = __shfl_sync(ALL_LANES, above, WARP - 1);
        hits += __popc(relevant);
    }
    for (u32 step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return static_cast<double>(hits * (n - hits) + sum) / best;
}

// `bests` : of each query, 0 where it is worth `otherwise`, or does not count if that is NaN. `sums` : per block, three words
// each of values times weights, and of weights; `limbs`, `specials` : see `Outside`, zeros, for both sums.
extern "C" __global__ void __launch_bounds__(THREADS, 2) sum_values(
    const i64* __restrict__ begins, i64 n_queries, const float* __restrict__ ranked, const double* __restrict__ weights,
    const double* __restrict__ discounts, const double* __restrict__ bests, i32 kind, i64 top,
    const double* __restrict__ gains, i32 n_gains, double otherwise, double unit, double patience, u64* __restrict__ sums,
    u64* __restrict__ limbs, u32* __restrict__ specials) {
    __shared__ WideSum storage[THREADS / WARP];
    WideSum values = {{0, 0, 0}}, totals = {{0, 0, 0}};
    const Value measure = {kind, top, gains, n_gains, unit, patience};
    const Outside of_values = {limbs, specials}, of_weights = {limbs + 4096, specials + 1};
    for (i64 query = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP; query < n_queries;
         query += static_cast<i64>(gridDim.x) * (THREADS / WARP)) {
        const float* const labels = ranked + begins[query];
        const double best = bests[query], weight = weights[query];
        const i64 n = begins[query + 1] - begins[query];
        const bool is_nan = labels[0] != labels[0];
        double value = is_nan ? static_cast<double>(labels[0]) : otherwise;
        if (best > 0 && !is_nan)
            value = kind == AUC ? area_of_query(labels, n, best) : value_of_query(labels, n, measure, discounts, best);
        if (threadIdx.x % WARP != 0 || (value != value && !is_nan)) continue;
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
