// Gradient and hessian of one row: the `gradients` of `daskboost/objectives/`, operation by operation, with NumPy's bits.
//
// OBJECTIVE chooses the loss by its number in `daskboost/devices/losses.py`. GIVEN takes a row's g and h as they are, so
// that gradients which were computed elsewhere go through the same kernels.
#pragma once

#include "elementary.cuh"

#ifndef OBJECTIVE
#define OBJECTIVE 0
#endif

constexpr i32 GIVEN = 0, SQUARED_ERROR = 1, ABSOLUTE_ERROR = 2, QUANTILE = 3, PSEUDO_HUBER = 4, LOGISTIC = 5,
              POISSON = 6, GAMMA = 7, TWEEDIE = 8;
static_assert(GIVEN <= OBJECTIVE && OBJECTIVE <= TWEEDIE, "a number of daskboost/devices/losses.py");

constexpr bool HAS_HESSIANS = OBJECTIVE > QUANTILE;  // a loss's own, that are not all 1

struct Gradient {
    float g, h;
};

// What a loss is made with; losses say in `device_loss` what the two stand for.
struct LossParameters {
    float a, b;
};

SHARED_BY_HOST LossParameters load_parameters(const float* parameters) {
    if (OBJECTIVE == GIVEN) return {0.0f, 0.0f};
    return {parameters[0], parameters[1]};
}

// What a loss multiplies a row's weight by: `positive_weight` where the label is 1.
SHARED_BY_HOST float factor_of(float label, LossParameters loss) {
    return OBJECTIVE == LOGISTIC && label == 1.0f ? loss.a : 1.0f;
}

// Not weighted. `first` and `second` are the label and the margin, or g and h of GIVEN.
SHARED_BY_HOST Gradient gradient_of(float first, float second, LossParameters loss) {
    const float label = first, margin = second;
    if constexpr (OBJECTIVE == GIVEN) {
        return {first, second};
    } else if constexpr (OBJECTIVE == SQUARED_ERROR) {
        return {margin - label, 1.0f};
    } else if constexpr (OBJECTIVE == ABSOLUTE_ERROR) {
        const float residual = margin - label;
        return {residual > 0 ? 1.0f : residual < 0 ? -1.0f : residual == 0 ? 0.0f : residual, 1.0f};
    } else if constexpr (OBJECTIVE == QUANTILE) {
        return {margin >= label ? loss.a : loss.b, 1.0f};
    } else if constexpr (OBJECTIVE == PSEUDO_HUBER) {
        const float slope = loss.a, ratio = clip((margin - label) / slope, -1e12f, 1e12f);
        const float inverse = 1.0f / sqrtf(1.0f + ratio * ratio);
        return {slope * (ratio * inverse), inverse * inverse * inverse};
    } else if constexpr (OBJECTIVE == LOGISTIC) {
        const float p = sigmoid(margin), factor = factor_of(label, loss);
        return {(p - label) * factor, at_least(p * (1.0f - p), 1e-16f) * factor};
    } else if constexpr (OBJECTIVE == POISSON) {
        return {exp_of(margin) - label, exp_of(margin + loss.a)};
    } else if constexpr (OBJECTIVE == GAMMA) {
        const float ratio = label * exp_of(-margin);
        return {1.0f - ratio, ratio};
    } else {  // TWEEDIE
        const float a = label * exp_of(loss.a * margin), b = exp_of(loss.b * margin);
        return {b - a, loss.b * b - loss.a * a};
    }
}

// The same; `by_weight` has what the loss multiplies weights by in the place of its hessian. Poisson's branches, since
// choosing between two exponentials takes more registers than there are.
SHARED_BY_HOST Gradient gradient_of(float first, float second, LossParameters loss, bool by_weight) {
    if (OBJECTIVE == POISSON && by_weight) return {gradient_of(first, second, loss).g, factor_of(first, loss)};
    Gradient gradient = gradient_of(first, second, loss);
    if (HAS_HESSIANS && by_weight) gradient.h = factor_of(first, loss);
    return gradient;
}

// The weight multiplies, or, where data are small and it multiplies integers later, takes out rows that have none.
SHARED_BY_HOST Gradient weighted(Gradient gradient, float weight, bool is_small) {
    const float factor = !is_small ? weight : weight > 0 ? 1.0f : 0.0f;
    return {gradient.g * factor, gradient.h * factor};
}
