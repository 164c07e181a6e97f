// Features as they come in: numbers of any type become float32, and a look at all values before any is used.
//
// CuPy's own conversions are compiled with flushing of the smallest float32 to zero, which would give other keys than the
// CPU's.
//
// variants: TYPE=0,1,2,3,4,5,6,7,8,9,10
// usual: TYPE=0
// budget: convert registers=40 shared=0
// budget: inspect registers=40 shared=0
// budget: find_present registers=40 shared=0
#include "matrix.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef TYPE
#define TYPE 0
#endif

// As `devices/gpu/quantize/bins.py` numbers them; float16 comes as its bits.
#if TYPE == 0
using Given = float;
#elif TYPE == 1
using Given = double;
#elif TYPE == 2
using Given = u16;
#elif TYPE == 3
using Given = i8;
#elif TYPE == 4
using Given = i16;
#elif TYPE == 5
using Given = i32;
#elif TYPE == 6
using Given = i64;
#elif TYPE == 7
using Given = u8;
#elif TYPE == 8
using Given = u16;
#elif TYPE == 9
using Given = u32;
#else
using Given = u64;
#endif

static __device__ __forceinline__ float to_float(Given x) {
#if TYPE == 2
    const u32 sign = (x & 0x8000u) << 16, exponent = x >> 10 & 31u, fraction = x & 1023u;
    if (exponent == 0) {
        const float tiny = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2**-24: exact
        return sign ? -tiny : tiny;
    }
    return __uint_as_float(sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | fraction << 13);
#else
    return static_cast<float>(x);
#endif
}

// out[i, j] = the number in[i, j], or NaN where a byte of `nulls`, one per i, is not 0 (null for none). The caller orders
// axes so that j has the smaller stride.
extern "C" __global__ void __launch_bounds__(THREADS) convert(
    const Given* __restrict__ in, i64 in_i, i64 in_j, const u8* __restrict__ nulls, i64 n_i, i64 n_j,
    float* __restrict__ out, i64 out_i, i64 out_j) {
    for (i64 at = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; at < n_i * n_j;
         at += static_cast<i64>(gridDim.x) * THREADS) {
        const i64 i = at / n_j, j = at % n_j;
        const bool is_null = nulls && nulls[i];
        out[i * out_i + j * out_j] = is_null ? __uint_as_float(0x7FC00000u) : to_float(in[i * in_i + j * in_j]);
    }
}

// Adds to `n_missing` the absent values of each series, and sets `beyond` to 1 where a present one is at or beyond
// float32's largest.
extern "C" __global__ void __launch_bounds__(THREADS) inspect(MATRIX_PARAMETERS, u64* n_missing, i32* beyond) {
    const Walk walk = walk_of<THREADS>(n_rows, n_series, columns, tile_rows);
    u32 absent = 0, large = 0;
    for_each_value<THREADS>(walk, MATRIX, [&](i64, float x, bool is_absent) {
        absent += is_absent;
        large |= !is_absent && (__float_as_uint(x) & 0x7FFFFFFFu) >= 0x7F7FFFFFu;
    });
    if (absent) atomicAdd(&n_missing[walk.series], static_cast<u64>(absent));
    if (large) atomicOr(&beyond[walk.series], 1);
}

// present[row, column], row after row: whether there is a value.
extern "C" __global__ void __launch_bounds__(THREADS) find_present(MATRIX_PARAMETERS, u8* __restrict__ present) {
    const Walk walk = walk_of<THREADS>(n_rows, n_series, columns, tile_rows);
    for_each_value<THREADS>(walk, MATRIX, [&](i64 row, float, bool is_absent) {
        present[row * n_series + walk.series] = !is_absent;
    });
}
