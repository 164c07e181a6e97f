// Selections of the smallest keys, by groups of threads of a block; what tests/kernels/test_select.py launches.
//
// variants: THREADS=256 GROUP=128,256
// budget: select_keys registers=64 shared=2224
#include "select.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef GROUP
#define GROUP 256
#endif
constexpr i32 N_GROUPS = THREADS / GROUP;

struct KeysOfGroup {
    const u64* keys;
    i32 n;

    template <class See>
    __device__ __forceinline__ void each(See see) const {
        for (i32 i = threadIdx.x % GROUP; i < n; i += GROUP) see(keys[i]);
    }
};

// `keys` : shape (groups, n). `wanted` : how many each group selects. `last`, `n_equal` : shape (groups,).
extern "C" __global__ void __launch_bounds__(THREADS) select_keys(const u64* keys, i32 n, const i32* wanted, u64* last,
                                                                  i32* n_equal) {
    __shared__ SelectRoom rooms[N_GROUPS];
    const i32 own = static_cast<i32>(threadIdx.x) / GROUP, group = static_cast<i32>(blockIdx.x) * N_GROUPS + own;
    const Smallest found =
        select_smallest<GROUP>(KeysOfGroup{keys + static_cast<i64>(group) * n, n}, wanted[group], rooms[own]);
    if (threadIdx.x % GROUP > 0) return;
    last[group] = found.last;
    n_equal[group] = found.n_equal;
}
