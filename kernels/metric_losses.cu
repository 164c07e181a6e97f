// Sums of losses over rows, for metrics that are means: the arithmetic of `daskboost/metrics`, to the last bit.
//
// Each row's loss is float64 in the order of the CPU's operations, logarithms included (logarithm.cuh), and the sums are
// exact (wide_sum.cuh): a metric is the same number on every device, and so is the round at which training stops.
//
// variants: LOSS=0,1,2,3,4,5,6,7,8,9,10
// usual: LOSS=0,5
// budget: sum_losses registers=80 shared=24*THREADS/32
#include "logarithm.cuh"
#include "wide_sum.cuh"

#ifndef THREADS
#define THREADS 256
#endif
#ifndef LOSS
#define LOSS 0
#endif
#define SQUARED 0
#define ABSOLUTE 1
#define RELATIVE 2
#define PSEUDO_HUBER 3
#define PINBALL 4
#define LOG 5
#define WRONG_SIDE 6
#define MULTICLASS_LOG 7
#define WRONG_CLASS 8
#define SQUARED_LOG 9
#define GAMMA 10

constexpr double TINY = 1e-16;  // where probabilities are clipped before a logarithm

// NumPy's maximum: NaN where either is.
static __device__ __forceinline__ double larger(double a, double b) { return a != a || a > b ? a : b; }

// Of a label and the predictions of its row; `parameters` as `daskboost/metrics` gives them.
static __device__ __forceinline__ double loss_of(float given, const float* predictions, i32 n, const double* parameters) {
    [[maybe_unused]] const double y = given, p = predictions[0];
#if LOSS == SQUARED
    return (p - y) * (p - y);
#elif LOSS == ABSOLUTE
    return fabs(p - y);
#elif LOSS == RELATIVE
    return fabs(p - y) / larger(fabs(y), 0x1p-52);
#elif LOSS == PSEUDO_HUBER
    const double ratio = (p - y) / parameters[0];
    return parameters[1] * (sqrt(1 + ratio * ratio) - 1);
#elif LOSS == PINBALL
    double total = 0;
    for (i32 k = 0; k < n; ++k) {
        const double above = y - static_cast<double>(predictions[k]);
        total += larger(parameters[k] * above, (parameters[k] - 1) * above);
    }
    return total / static_cast<double>(n);
#elif LOSS == LOG
    if (y == 1 || y == 0) return -logarithm(larger(y == 1 ? p : 1 - p, TINY));  // one path for both classes
    return -(y * logarithm(larger(p, TINY)) + (1 - y) * logarithm(larger(1 - p, TINY)));
#elif LOSS == WRONG_SIDE
    return p > parameters[0] ? 1 - y : y;
#elif LOSS == MULTICLASS_LOG
    return -logarithm(larger(static_cast<double>(predictions[static_cast<i32>(given)]), TINY));
#elif LOSS == WRONG_CLASS
    i32 best = 0;
    for (i32 k = 1; k < n; ++k) {  // the first among equals, and NaN above all, as NumPy has it
        const float top = predictions[best], other = predictions[k];
        if (top == top && (other > top || other != other)) best = k;
    }
    return static_cast<double>(best) != y ? 1.0 : 0.0;
#elif LOSS == SQUARED_LOG
    const double least = parameters[0];
    const double difference = logarithm_of_one_plus(larger(p, least)) - logarithm_of_one_plus(larger(y, least));
    return difference * difference;
#elif LOSS == GAMMA
    const double mean = larger(p, parameters[0]);
    return y / mean + logarithm(mean);
#endif
}

// `predictions` : shape (rows, n_outputs). `weight` : per row, or null. `sums` : per block, three words each of the losses
// times weights and of the weights. `limbs`, `specials` : see `Outside`, zeros, for both sums.
extern "C" __global__ void __launch_bounds__(THREADS) sum_losses(
    const float* __restrict__ label, const float* __restrict__ predictions, i32 n_outputs,
    const float* __restrict__ weight, const double* __restrict__ parameters, i64 n_rows, u64* __restrict__ sums,
    u64* __restrict__ limbs, u32* __restrict__ specials) {
    __shared__ WideSum storage[THREADS / 32];
    WideSum losses = {{0, 0, 0}}, weights = {{0, 0, 0}};
    const Outside of_losses = {limbs, specials}, of_weights = {limbs + 4096, specials + 1};
    for (i64 row = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; row < n_rows;
         row += static_cast<i64>(gridDim.x) * THREADS) {
        const double loss = loss_of(label[row], predictions + row * n_outputs, n_outputs, parameters);
        const double times = weight ? static_cast<double>(weight[row]) : 1.0;
        add_exactly<UNIT>(losses, weight ? loss * times : loss, of_losses);
        if (weight) add_exactly<UNIT>(weights, times, of_weights);
    }
    losses = wide_sum_of_block<THREADS>(losses, storage);
    if (weight) weights = wide_sum_of_block<THREADS>(weights, storage);
    if (threadIdx.x == 0) {
        for (i32 k = 0; k < 3; ++k) {
            sums[6 * blockIdx.x + k] = losses.words[k];
            sums[6 * blockIdx.x + 3 + k] = weights.words[k];
        }
    }
}
