// Chances of clicks by position, as the costs of a round's pairs tell them: `daskboost/devices/cpu/positions.py`, operation
// by operation.
//
// They are few, so that one block has all of them, and its first thread what depends on those before.
//
// variants: THREADS=256
// budget: find_chances registers=48 shared=0
#include "elementary.cuh"
#include "positions.cuh"

constexpr float LEAST_CHANCE = 0x1p-13f;
constexpr float NO_CHANCE = 1e-16f;
constexpr double NO_COST = 1e-16;

static __device__ __forceinline__ double sum_of(const u64* costs, i64 at) {
    const double first = static_cast<double>(static_cast<i64>(costs[2 * at]));
    const double second = static_cast<double>(static_cast<i64>(costs[2 * at + 1]));
    return first * (1.0 / COST_WORD) + second * (1.0 / (COST_WORD * COST_PARTS));
}

static __device__ __forceinline__ float chance_of(double cost, double first, double power) {
    const double share = cost / first;
    if (!(share > 0)) return 0.0f;
    const double exponent = power * logarithm(share);
    const float rounded = static_cast<float>(exponent);
    return static_cast<float>(static_cast<double>(exp_of(rounded)) * (1.0 + (exponent - static_cast<double>(rounded))));
}

static __device__ __forceinline__ float ratio_of(float chance) {
    return chance < NO_CHANCE ? 0.0f : 1.0f / clip(chance, LEAST_CHANCE, 1.0f / LEAST_CHANCE);
}

// `costs` : of all pairs, shape (2, n, 2); 0 afterwards. `chances` and `ratios` : shape (2, n); `shrink` : shape (n + 1,).
// One block.
extern "C" __global__ void __launch_bounds__(THREADS) find_chances(
    u64* __restrict__ costs, double power, i32 n, float* __restrict__ chances, float* __restrict__ ratios,
    double* __restrict__ shrink) {
    for (i32 i = threadIdx.x; i < 2 * n; i += THREADS) {
        const double first = sum_of(costs, i < n ? 0 : n);
        if (first >= NO_COST) chances[i] = chance_of(sum_of(costs, i), first, power);
        ratios[i] = ratio_of(chances[i]);
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < 4 * n; i += THREADS) costs[i] = 0;
    if (threadIdx.x > 0) return;
    float most_relevant = 1.0f, most_irrelevant = 1.0f;
    double own = 1.0;
    shrink[0] = own;
    for (i32 position = 0; position < n; ++position) {
        most_relevant = at_least(ratios[position], most_relevant);
        most_irrelevant = at_least(ratios[n + position], most_irrelevant);
        while (static_cast<double>(most_relevant) * static_cast<double>(most_irrelevant) * own > 1.0) own *= 0.5;
        shrink[position + 1] = own;
    }
}
