// Launches of the arithmetic that kernels share with the CPU, for `test_arithmetic.py`; one thread per case.
//
// variants: THREADS=64
// budget: draws registers=64 shared=0
// budget: quantized registers=64 shared=0
// budget: weights_and_gains registers=128 shared=0
// budget: symbols registers=64 shared=0
// budget: reciprocals registers=64 shared=0
// budget: shifted_products registers=64 shared=0
#include "bits.cuh"
#include "elementary.cuh"
#include "gain.cuh"
#include "rounding.cuh"

extern "C" __global__ void draws(u64 key, const u64* ids, i32 n, u64 below, u64* out, u8* sampled) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    out[i] = draw(key, ids[i]);
    sampled[i] = is_sampled(key, ids[i], below);
}

// out: large pairs; small: small pairs; parts: g and h of both again.
extern "C" __global__ void quantized(
    const float* g, const float* h, const double* times, const u64* bits, i32 n, double scale_g, double scale_h,
    i32* large, i64* small, i32* parts) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    large[i] = pack_large(quantize_large(g[i], h[i], scale_g, scale_h, bits[i]));
    small[i] = pack_small(quantize_small(g[i], h[i], scale_g, scale_h, times[i]));
    parts[4 * i] = g_of(large[i]);
    parts[4 * i + 1] = h_of(large[i]);
    parts[4 * i + 2] = g_of(small[i]);
    parts[4 * i + 3] = h_of(small[i]);
}

// `sums`, `left` : integer sums of nodes and of their left children, (n, 2). out[i]: leaf value of the node, of the
// left and the right child; gain of the split with and without limits; gain of the node as a leaf, likewise.
extern "C" __global__ void weights_and_gains(
    const i64* sums, const i64* left, const double* bounds, i32 n, double unit_g, double unit_h, double lambda,
    double alpha, double max_step, double least_h, i32 monotone, double* out) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const Regular r = {lambda, alpha, max_step, least_h};
    const Bounds b = {bounds[2 * i], bounds[2 * i + 1]};
    const i64 g = sums[2 * i], h = sums[2 * i + 1], left_g = left[2 * i], left_h = left[2 * i + 1];
    const Sums node = sums_of(g, h, unit_g, unit_h), l = sums_of(left_g, left_h, unit_g, unit_h);
    const Sums right = sums_of(g - left_g, h - left_h, unit_g, unit_h);
    double* const row = out + 7 * i;
    row[0] = leaf_weight(node, r, b);
    row[1] = leaf_weight(l, r, b);
    row[2] = leaf_weight(right, r, b);
    row[3] = limited_split_gain(l, right, r, b, monotone);
    row[4] = plain_split_gain(l, right, r);
    row[5] = parent_gain(node, r, b, false);
    row[6] = parent_gain(node, r, b, true);
}

extern "C" __global__ void symbols(const u32* words, const u64* bits, const u32* widths, i32 n, u32* out) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) out[i] = read_symbol(words, bits[i], widths[i]);
}

extern "C" __global__ void shifted_products(const float* x, const float* y, float shift, i32 n, u32* out) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) out[i] = shifted_product(x[i], y[i], shift);
}

extern "C" __global__ void reciprocals(const float* x, i32 n, float* out) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) out[i] = reciprocal(x[i]);
}
