// Models of the leaves of trees that grow without the host: their features, and slopes from normal equations, in the order
// of operations of `daskboost/devices/cpu/leaf_models.py`, which has the formulae.
//
//   find_terms   features of each leaf's model: the last distinct ones on its path
//   fit_leaves   slopes, and values of position 0
//
// A thread has a leaf. Numbers of leaves count over all trees of `capacity` nodes each; -1 stands for none.
//
// variants: THREADS=64
// budget: find_terms registers=40 shared=0
// budget: fit_leaves registers=128 shared=0
#include "leaf_models.cuh"
#include "rounding.cuh"

#ifndef THREADS
#define THREADS 64
#endif

constexpr i32 PARENT = 0, SPLIT_FEATURE = 4;  // columns of `links`, shape (trees, 6, capacity)
constexpr double LEAST_VARIANCE = 1e-9;
constexpr double LARGEST = 0x1.fffffep+127;

// `usable` : whether each feature may be a term; null where all may. `terms` : by node, TERMS of each.
extern "C" __global__ void __launch_bounds__(THREADS) find_terms(
    const i32* leaves, i32 n, i32 capacity, const i32* links, const u8* usable, i32* terms) {
    const i32 place = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (place >= n || leaves[place] < 0) return;
    const i32 tree = leaves[place] / capacity;
    const i32* const own_links = links + static_cast<i64>(tree) * 6 * capacity;
    const i32* const parents = own_links + PARENT * capacity;
    i32* const own = terms + static_cast<i64>(leaves[place]) * TERMS;
    for (i32 k = 0; k < TERMS; ++k) own[k] = -1;
    i32 n_found = 0;
    for (i32 node = parents[leaves[place] - tree * capacity]; node >= 0 && n_found < TERMS; node = parents[node]) {
        const i32 feature = own_links[SPLIT_FEATURE * capacity + node];
        bool is_new = usable == nullptr || usable[feature] != 0;
        for (i32 k = 0; k < n_found; ++k) is_new = is_new && own[k] != feature;
        if (is_new) own[n_found++] = feature;
    }
}

struct Equations {
    double a[TERMS][TERMS];  // symmetric, its lower triangle
    double b[TERMS];
    double means[TERMS];
    bool is_used[TERMS];
};

// Solve `a x = b` for the rows and columns that are used, by factors L D L' without pivots. Whether it is positive definite
// and any row is used.
static __device__ bool solve(Equations* own, double* x) {
    bool any_used = false;
    for (i32 j = 0; j < TERMS; ++j) {
        if (!own->is_used[j]) continue;
        any_used = true;
        const double least = LEAST_VARIANCE * own->a[j][j];
        for (i32 k = 0; k < j; ++k) {  // a[j][k] becomes L D, then L
            if (!own->is_used[k]) continue;
            for (i32 i = 0; i < k; ++i)
                if (own->is_used[i]) own->a[j][k] = own->a[j][k] - own->a[j][i] * own->a[k][i];
        }
        double pivot = own->a[j][j], right = own->b[j];
        for (i32 k = 0; k < j; ++k) {
            if (!own->is_used[k]) continue;
            const double factor = own->a[j][k] / own->a[k][k];
            pivot = pivot - own->a[j][k] * factor;
            right = right - factor * x[k];
            own->a[j][k] = factor;
        }
        if (!(pivot > least)) return false;
        own->a[j][j] = pivot;
        x[j] = right;
    }
    for (i32 j = 0; j < TERMS; ++j)
        if (own->is_used[j]) x[j] = x[j] / own->a[j][j];
    for (i32 j = TERMS - 1; j >= 0; --j) {
        if (!own->is_used[j]) continue;
        for (i32 k = j + 1; k < TERMS; ++k)
            if (own->is_used[k]) x[j] = x[j] - own->a[k][j] * x[k];
    }
    return any_used;
}

// Fit one leaf; whether it has a model. `sums` : EQUATIONS numbers.
static __device__ bool fit_leaf(const i64* sums, const i32* terms, const double* units, double ridge, double least_h,
                                double learning_rate, float* value, float* slopes) {
    const double weight = static_cast<double>(sums[TERMS + 1]);
    if (terms[0] < 0 || !(weight > 0.0 && weight * units[1] >= least_h)) return false;
    Equations own;
    double x[TERMS];
    const double unit = units[0] / units[1];
    for (i32 j = 0; j < TERMS; ++j) {
        own.b[j] = own.means[j] = x[j] = 0.0;
        own.is_used[j] = false;
        for (i32 k = 0; k < TERMS; ++k) own.a[j][k] = 0.0;
    }
    for (i32 j = 0; j < TERMS; ++j) {
        const i64* const row = sums + row_of_sums(j + 1);
        const double of_x = static_cast<double>(row[0]);
        own.means[j] = of_x / weight;
        if (terms[j] < 0) break;
        own.b[j] = (static_cast<double>(sums[j + 1]) - static_cast<double>(sums[0]) * own.means[j]) * unit;
        for (i32 k = 0; k <= j; ++k) own.a[j][k] = static_cast<double>(row[k + 1]) - of_x * own.means[k];
        own.is_used[j] = own.a[j][j] > LEAST_VARIANCE * static_cast<double>(row[j + 1]);
    }
    for (i32 j = 0; j < TERMS; ++j) own.a[j][j] = own.a[j][j] + ridge / units[1] * (own.a[j][j] / weight);
    if (!solve(&own, x)) return false;
    double middle = static_cast<double>(*value), most = fabs(middle);
    for (i32 j = 0; j < TERMS; ++j) {
        const double found = -x[j] * learning_rate;
        if (!(fabs(found) < LARGEST)) return false;
        slopes[j] = static_cast<float>(found);
        const double step = static_cast<double>(slopes[j]);
        middle = middle - step * own.means[j];
        most += fabs(step) * 256.0;
    }
    if (!(most < LARGEST)) return false;
    *value = static_cast<float>(middle);
    return true;
}

// `sums` : of each of `leaves`, rounded by `scales`, SCALES of each tree. `values`, `terms`, `slopes` : by node; changed.
extern "C" __global__ void __launch_bounds__(THREADS) fit_leaves(
    const i32* leaves, i32 n, i32 capacity, const i64* sums, const double* scales, double ridge, double least_h,
    const double* learning_rate, float* values, i32* terms, float* slopes) {
    const i32 place = static_cast<i32>(blockIdx.x * THREADS + threadIdx.x);
    if (place >= n || leaves[place] < 0) return;
    const i64 node = leaves[place];
    i32* const own_terms = terms + node * TERMS;
    float* const own_slopes = slopes + node * TERMS;
    const double* const own_units = scales + node / capacity * SCALES + UNIT_G;
    for (i32 k = 0; k < TERMS; ++k) own_slopes[k] = 0.0f;
    if (fit_leaf(sums + static_cast<i64>(place) * EQUATIONS, own_terms, own_units, ridge, least_h, *learning_rate,
                 values + node, own_slopes))
        return;
    for (i32 k = 0; k < TERMS; ++k) {
        own_terms[k] = -1;
        own_slopes[k] = 0.0f;
    }
}
