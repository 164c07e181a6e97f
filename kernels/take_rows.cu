// Chosen rows of a view become rows of another one, whose symbols have the same places.
//
//   take_rows      of dense rows, each plane's, by words (WORD_BYTES)
//   take_entries   of CSR rows, a warp per row
//
// Neighbouring threads have neighbouring words of a row: what is read are whole sectors, what is written is contiguous.
//
// variants: WORD_BYTES=2,4,16
// budget: take_rows registers=64 shared=0
// budget: take_entries registers=56 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef WORD_BYTES
#define WORD_BYTES 16
#endif

#if WORD_BYTES == 2
using Word = unsigned short;
#elif WORD_BYTES == 4
using Word = u32;
#else
using Word = uint4;
#endif

// Row `first` + i of each plane of `to` becomes row rows[i] of that of `from`. A row has 1 << row_shift words, a plane
// `from_rows` or `to_rows` rows.
extern "C" __global__ void __launch_bounds__(THREADS) take_rows(
    const u8* __restrict__ from, i64 from_rows, const u32* __restrict__ rows, i64 n, i32 n_planes, i32 row_shift,
    u8* __restrict__ to, i64 to_rows, i64 first) {
    const i64 step = static_cast<i64>(gridDim.x) * THREADS, n_words = n << row_shift;
    const i64 mask = (1ll << row_shift) - 1;
    for (i32 plane = 0; plane < n_planes; ++plane) {
        const Word* const own = reinterpret_cast<const Word*>(from) + ((plane * from_rows) << row_shift);
        Word* const out = reinterpret_cast<Word*>(to) + ((plane * to_rows + first) << row_shift);
#pragma unroll 4
        for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n_words; i += step)
            out[i] = own[(static_cast<i64>(rows[i >> row_shift]) << row_shift) + (i & mask)];
    }
}

// The entries of rows[i] go to to_slots[to_indptr[i]] and on.
extern "C" __global__ void __launch_bounds__(THREADS) take_entries(
    const i64* __restrict__ indptr, const i32* __restrict__ slots, const u32* __restrict__ rows, i64 n,
    const i64* __restrict__ to_indptr, i32* __restrict__ to_slots) {
    const i64 step = static_cast<i64>(gridDim.x) * (THREADS / WARP);
    for (i64 i = static_cast<i64>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP; i < n; i += step) {
        const i64 begin = indptr[rows[i]], size = indptr[rows[i] + 1ll] - begin, out = to_indptr[i];
        for (i64 k = threadIdx.x % WARP; k < size; k += WARP) to_slots[out + k] = slots[begin + k];
    }
}
