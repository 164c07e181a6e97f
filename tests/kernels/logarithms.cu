// Launches of `logarithm.cuh`, for `tests/metrics/test_logarithm.py`; one thread per case.
//
// variants: THREADS=64
// budget: logarithms registers=64 shared=0
#include "logarithm.cuh"

extern "C" __global__ void logarithms(const double* values, i32 n, double* logs, double* of_one_plus, float* in_short) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    if (values[i] >= 0 && values[i] <= 0x1p119) in_short[i] = short_logarithm_of_one_plus(static_cast<float>(values[i]));
    logs[i] = logarithm(values[i]);
    of_one_plus[i] = logarithm_of_one_plus(values[i]);
}
