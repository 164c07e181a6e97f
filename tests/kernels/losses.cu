// A loss's gradients as they are, for `test_loss_kernels.py`; one thread per row.
//
// variants: OBJECTIVE=0,1,2,3,4,5,6,7,8
// budget: gradients_of_rows registers=64 shared=0
// budget: exps registers=64 shared=0
#include "objectives.cuh"

extern "C" __global__ void gradients_of_rows(
    const float* label, const float* margin, const float* parameters, i32 n, float* g, float* h) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Gradient gradient = gradient_of(label[i], margin[i], load_parameters(parameters));
    g[i] = gradient.g;
    h[i] = gradient.h;
}

extern "C" __global__ void exps(const float* x, i32 n, float* out) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = exp_of(x[i]);
}
