// What metrics see of margins of one output: `Objective.evaluation`, operation by operation (elementary.cuh). `softmax.cu`
// has those of several outputs.
//
// variants: LINK=1,2
// usual: LINK=1
// budget: predict_margins registers=32 shared=0
#include "elementary.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef LINK
#define LINK 1
#endif
#define SIGMOID 1
#define EXP 2

// `margin`, `out` : shape (n,).
extern "C" __global__ void __launch_bounds__(THREADS) predict_margins(const float* __restrict__ margin, i64 n,
                                                                      float* __restrict__ out) {
    const i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= n) return;
#if LINK == SIGMOID
    out[row] = sigmoid(margin[row]);
#else
    out[row] = exp_of(margin[row]);
#endif
}
