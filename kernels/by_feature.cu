// Symbols of rows, feature by feature: a copy whose columns lie in one piece each.
//
// With WIDENS the copy has two bytes for each symbol of one, as other features of the same rows need them.
//
// variants: SYMBOL_BYTES=1,2 WIDENS=0
// variants: SYMBOL_BYTES=1 WIDENS=1
// usual: SYMBOL_BYTES=1 WIDENS=0
// budget: copy_columns registers=40 shared=0
#include "types.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SYMBOL_BYTES
#define SYMBOL_BYTES 1
#endif

#ifndef WIDENS
#define WIDENS 0
#endif

#if SYMBOL_BYTES == 1
using Symbol = u8;
#else
using Symbol = u16;
#endif
#if WIDENS
using Copied = u16;
#else
using Copied = Symbol;
#endif

// `rows` : `columns` symbols from one row to the next, of which the first `n_features` are copied. `features` : shape
// (n_features, n_rows). A thread takes a row at a time, so that a warp writes 32 symbols side by side; what it reads
// again for the next feature is in the first cache then.
extern "C" __global__ void __launch_bounds__(THREADS) copy_columns(
    const Symbol* __restrict__ rows, i64 n_rows, i32 columns, i32 n_features, Copied* __restrict__ features) {
    for (i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; row < n_rows;
         row += static_cast<i64>(gridDim.x) * THREADS) {
#pragma unroll 4
        for (i32 feature = 0; feature < n_features; ++feature)
            features[feature * n_rows + row] = rows[row * columns + feature];
    }
}
