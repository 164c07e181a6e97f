// Counts of (negatives, positives) per score, for the areas under curves: what `daskboost/data/cuts/key_counts.py` counts.
//
// Scores become words, key above place, which a sort puts in order; cells of a resolution, keys that share so many leading
// bits, are runs then. How many cells there are at each resolution follows from one pass over neighbours.
//
//   pack_scores     score, label -> word       (sort)       count_cells   neighbours -> how many differ first at bit b
//   sort_counts     word -> whether a cell begins here, and the units of the row as a negative and as a positive
//
// variants: THREADS=256
// usual: THREADS=256
// budget: pack_scores registers=40 shared=0
// budget: count_cells registers=40 shared=132
// budget: sort_counts registers=40 shared=0
#include "ordered.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr u64 DROPPED = ~0ull;  // the word of a row without weight: behind all others

// What a row counts for; `scale` is a power of two.
static __device__ __forceinline__ i64 units_of(const float* weight, i64 row, double scale) {
    return weight ? static_cast<i64>(rint(static_cast<double>(weight[row]) * scale)) : 1;
}

// `score` : `stride` between rows, of fewer than 2**32. `found` : zeros; how many rows were dropped, and 1 if a score is NaN
// or a label neither 0 nor 1.
extern "C" __global__ void __launch_bounds__(THREADS) pack_scores(
    const float* __restrict__ score, i64 stride, const float* __restrict__ label, const float* __restrict__ weight,
    double scale, i64 n, u64* __restrict__ words, u32* __restrict__ found) {
    const i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    bool is_dropped = false;
    if (row < n) {
        const float value = score[row * stride];
        is_dropped = units_of(weight, row, scale) == 0;
        words[row] = is_dropped ? DROPPED : static_cast<u64>(ordered_key(value, 0)) << 32 | static_cast<u64>(row);
        if (value != value || (label[row] != 0 && label[row] != 1)) found[1] = 1;
    }
    const i32 n_dropped = __syncthreads_count(is_dropped);
    if (threadIdx.x == 0 && n_dropped) atomicAdd(found, static_cast<u32>(n_dropped));
}

// counts[b] : neighbours whose keys share b leading bits and no more.
extern "C" __global__ void __launch_bounds__(THREADS) count_cells(
    const u64* __restrict__ words, i64 n, u32* __restrict__ counts) {
    __shared__ u32 own[33];
    if (threadIdx.x < 33) own[threadIdx.x] = 0;
    __syncthreads();
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x + 1; i < n;
         i += static_cast<i64>(gridDim.x) * THREADS)
        atomicAdd(&own[__clz(static_cast<i32>((words[i] ^ words[i - 1]) >> 32))], 1u);
    __syncthreads();
    if (threadIdx.x < 33 && own[threadIdx.x]) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

// `begins` : per word, 1 if its key's leading bits, all but the last `shift`, are not those of the word before. `units` :
// shape (2, n), of negatives and of positives.
extern "C" __global__ void __launch_bounds__(THREADS) sort_counts(
    const u64* __restrict__ words, i64 n, i32 shift, const float* __restrict__ label, const float* __restrict__ weight,
    double scale, u8* __restrict__ begins, i64* __restrict__ units) {
    const i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const u64 word = words[i];
    begins[i] = i == 0 || word >> 32 >> shift != words[i - 1] >> 32 >> shift;
    const i64 row = static_cast<i64>(word & 0xFFFFFFFFull), own = units_of(weight, row, scale);
    const bool is_positive = label[row] == 1;
    units[i] = is_positive ? 0 : own;
    units[n + i] = is_positive ? own : 0;
}
