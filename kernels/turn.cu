// A copy of rows of at most 28 columns of one byte, in which each warp of a pass over all rows in order finds its lanes'
// symbols in the order in which they add them: see turned.cuh. Made once; a copy takes `words` of a row's eight words.
//
// variants: THREADS=256
// budget: turn_rows registers=32 shared=0
#include "bytes.cuh"

#ifndef THREADS
#define THREADS 256
#endif

constexpr i32 ROW_WORDS = 8;
constexpr i32 LANES = 32;
constexpr i32 WARPS = THREADS / LANES;

// `rows` : shape (rows, ROW_WORDS), columns without a feature zero. `turned` : shape (tiles of 32 rows, words, 32 lanes);
// beyond the last row zeros. Any grid; a warp takes a tile at a time.
extern "C" __global__ void __launch_bounds__(THREADS) turn_rows(const u32* rows, i64 n_rows, i32 words, u32* turned) {
    const i32 lane = threadIdx.x % LANES;
    const i64 n_tiles = (n_rows + LANES - 1) / LANES;
    u32 selector = 0;
    for (i32 i = 0; i < 4; ++i) selector |= static_cast<u32>((i + lane) % 4) << 4 * i;
    for (i64 tile = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / LANES; tile < n_tiles; tile += gridDim.x * WARPS) {
        const i64 row = tile * LANES + lane;
        for (i32 k = 0; k < words; ++k) {
            const u32 word = row < n_rows ? rows[row * ROW_WORDS + (lane / 4 + k) % words] : 0;
            turned[(tile * words + k) * LANES + lane] = pick_bytes(word, word, selector);
        }
    }
}
