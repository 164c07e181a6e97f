// Gradients of losses of all rows of a query together: `daskboost/devices/cpu/query_lists.py`, operation by operation.
//
// A warp has a query of up to some hundred rows, and several are in a block. Of larger queries many blocks have the rows of
// one, a tile each. A row is read three times, for the largest value, for the sum, and for its gradients, mostly from
// caches: what counts are 8 bytes read a row and 8 written.
//
//   fill_lists    all of small queries
//   begin_lists   nothing found    find_tops   rows -> largest values    sum_lists   rows -> sums    write_lists   gradients
//
// variants: LOSS=0,1
// budget: fill_lists registers=64 shared=0
// budget: begin_lists registers=16 shared=0
// budget: find_tops registers=40 shared=0
// budget: sum_lists registers=48 shared=0
// budget: write_lists registers=48 shared=0
#include "block.cuh"
#include "elementary.cuh"
#include "keys.cuh"
#include "rounding.cuh"

#ifndef LOSS
#define LOSS 0  // 0 softmax cross-entropy, 1 squared error about the mean residual
#endif
#define SOFTMAX 0
#define THREADS 256
#define TILE_ROWS 2048  // rows of a block that has a part of a query

constexpr i32 TERM_BITS = 62;      // of a sum of as many terms as a query has rows
constexpr u32 NOT_FINITE = ~0u;    // above the keys of all finite scores
constexpr u32 INFINITE = 0x7F800000u;

// What is known of rows and queries. `order` : places of rows among all, by query. `labels` : in that order. `totals` :
// sums of the labels of queries, of SOFTMAX.
struct Known {
    const u32* order;
    const i64* begins;
    const float* labels;
    const double* totals;
    const double* factors;
};

// Rows of a query.
struct List {
    const u32* order;
    const float* labels;
    const float* margins;
    float beta;
    i32 n;

    __device__ __forceinline__ List(const Known& known, i64 query, const float* margins, float beta)
        : order(known.order + known.begins[query]), labels(known.labels + known.begins[query]), margins(margins),
          beta(beta), n(static_cast<i32>(known.begins[query + 1] - known.begins[query])) {}

    // Numbers of which that of the largest value is the largest: scores, or sizes of residuals.
    __device__ __forceinline__ u32 key(i32 i) const {
        const float margin = margins[order[i]];
        if (LOSS != SOFTMAX) return __float_as_uint(labels[i] - margin) & 0x7FFFFFFFu;
        return margin - margin == 0 ? key_of(margin) : NOT_FINITE;
    }

    __device__ __forceinline__ float odds(i32 i, float largest) const { return exp_of(beta * (margins[order[i]] - largest)); }

    __device__ __forceinline__ double residual(i32 i) const {
        return static_cast<double>(labels[i]) - static_cast<double>(margins[order[i]]);
    }
};

// What a query's largest key says.
struct Top {
    float largest;
    double scale;  // of terms of its sum

    __device__ __forceinline__ Top(u32 key, i32 n) {
        const i32 exponent = TERM_BITS - (32 - __clz(n));
        largest = LOSS == SOFTMAX ? value_of(key) : __uint_as_float(key);
        scale = power_of_two(exponent - (LOSS == SOFTMAX || key == 0 ? 0 : exponent_of(static_cast<double>(largest))));
    }

    __device__ __forceinline__ i64 term(const List& list, i32 i) const {
        const double value = LOSS == SOFTMAX ? static_cast<double>(list.odds(i, largest)) : list.residual(i);
        return static_cast<i64>(rint(value * scale));
    }
};

static __device__ __forceinline__ bool is_finite_key(u32 key) { return LOSS == SOFTMAX ? key != NOT_FINITE : key < INFINITE; }

// Writes the gradients of the rows of a query from `first` on, below `last`, every `stride`th.
static __device__ __forceinline__ void write_gradients(const Known& known, i64 query, const List& list, u32 key, i64 sum,
                                                       double penalty, i32 first, i32 last, i32 stride, float* g, float* h) {
    const float not_a_number = __uint_as_float(0x7FC00000u);
    if (!is_finite_key(key)) {
        for (i32 i = first; i < last; i += stride) g[list.order[i]] = h[list.order[i]] = not_a_number;
        return;
    }
    const Top top(key, list.n);
    const double total = static_cast<double>(sum), factor = known.factors[query];
    const double share = LOSS == SOFTMAX ? top.scale / total : 0, mean = LOSS == SOFTMAX ? 0 : total / top.scale / list.n;
    const double labels = LOSS == SOFTMAX ? known.totals[query] : 0, beta = list.beta;
    for (i32 i = first; i < last; i += stride) {
        const u32 row = list.order[i];
        if (LOSS == SOFTMAX) {
            const double p = static_cast<double>(list.odds(i, top.largest)) * share;
            g[row] = static_cast<float>((labels * p - static_cast<double>(list.labels[i])) * factor);
            h[row] = static_cast<float>(labels * (beta * (p * (1.0 - p)) + penalty) * factor);
        } else {
            g[row] = static_cast<float>((mean - list.residual(i)) * factor);
            h[row] = static_cast<float>(factor);
        }
    }
}

// `which` : queries that warps have, `n_queries` of them. `margins`, `g`, `h` : of all rows.
extern "C" __global__ void __launch_bounds__(THREADS) fill_lists(
    const u32* __restrict__ which, i32 n_queries, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ labels, const double* __restrict__ totals, const double* __restrict__ factors, float beta,
    double penalty, const float* __restrict__ margins, float* __restrict__ g, float* __restrict__ h) {
    const i32 own = static_cast<i32>(blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP), lane = threadIdx.x % WARP;
    if (own >= n_queries) return;
    const Known known = {order, begins, labels, totals, factors};
    const List list(known, which[own], margins, beta);
    u32 key = 0;
    for (i32 i = lane; i < list.n; i += WARP) key = max(key, list.key(i));
    key = max_of_warp(key);
    const Top top(key, list.n);
    i64 sum = 0;
    for (i32 i = lane; is_finite_key(key) && i < list.n; i += WARP) sum += top.term(list, i);
    sum = sum_of_warp(sum);
    write_gradients(known, which[own], list, key, sum, penalty, lane, list.n, WARP, g, h);
}

// A part of a large query.
struct Part {
    i64 query;
    i64 number;  // of the query among the large ones
    i64 first;   // its own first row within the query

    __device__ __forceinline__ i32 begin() const { return static_cast<i32>(first) + static_cast<i32>(threadIdx.x); }
    __device__ __forceinline__ i32 end(i32 n) const { return min(static_cast<i32>(first) + TILE_ROWS, n); }
};

// `keys` : the largest of each large query, `sums` : of its terms.
extern "C" __global__ void __launch_bounds__(THREADS) begin_lists(i32 n_queries, u32* __restrict__ keys,
                                                                  u64* __restrict__ sums) {
    const i32 query = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (query < n_queries) keys[query] = 0, sums[query] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) find_tops(
    const Part* __restrict__ parts, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ labels, const float* __restrict__ margins, u32* __restrict__ keys) {
    const Part part = parts[blockIdx.x];
    const List list({order, begins, labels, nullptr, nullptr}, part.query, margins, 0.0f);
    u32 key = 0;
    for (i32 i = part.begin(); i < part.end(list.n); i += THREADS) key = max(key, list.key(i));
    key = max_of_warp(key);
    if (threadIdx.x % WARP == 0) atomicMax(&keys[part.number], key);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_lists(
    const Part* __restrict__ parts, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ labels, float beta, const float* __restrict__ margins, const u32* __restrict__ keys,
    u64* __restrict__ sums) {
    const Part part = parts[blockIdx.x];
    const List list({order, begins, labels, nullptr, nullptr}, part.query, margins, beta);
    const u32 key = keys[part.number];
    if (!is_finite_key(key)) return;
    const Top top(key, list.n);
    i64 sum = 0;
    for (i32 i = part.begin(); i < part.end(list.n); i += THREADS) sum += top.term(list, i);
    sum = sum_of_warp(sum);
    if (threadIdx.x % WARP == 0) atomicAdd(&sums[part.number], static_cast<u64>(sum));
}

extern "C" __global__ void __launch_bounds__(THREADS) write_lists(
    const Part* __restrict__ parts, const u32* __restrict__ order, const i64* __restrict__ begins,
    const float* __restrict__ labels, const double* __restrict__ totals, const double* __restrict__ factors, float beta,
    double penalty, const float* __restrict__ margins, const u32* __restrict__ keys, const u64* __restrict__ sums,
    float* __restrict__ g, float* __restrict__ h) {
    const Part part = parts[blockIdx.x];
    const Known known = {order, begins, labels, totals, factors};
    const List list(known, part.query, margins, beta);
    write_gradients(known, part.query, list, keys[part.number], static_cast<i64>(sums[part.number]), penalty, part.begin(),
                    part.end(list.n), THREADS, g, h);
}
