"""The base score of a fit, in the label's space: given, or from the labels of all engines."""

from __future__ import annotations

import numpy as np

from daskboost.data.cuts.key_counts import values_of
from daskboost.devices.cpu.gradients import DIGITS, ResidualQuery
from daskboost.dtypes import Float32, Float64, Int32, Int64, UInt32
from daskboost.exact_sum import ExactSum
from daskboost.fit import messages as m
from daskboost.fit.messages import AsksEngines, ResidualCounts
from daskboost.fit.spec import FitSpec

# Exact weighted quantiles of residuals over all engines, by radix selection on integer counts.
#
# Three rounds of 11, 11 and 10 bits find the quantile's float32 exactly, whatever the number of rows and engines.

WEIGHT_BITS = 20
"""The largest weight becomes at most 2**20, so that 2**43 rows can be counted."""


def weight_scale(largest_weight: float) -> float:
    """The power of two that weights are multiplied by before they are rounded to integers."""
    return float(2.0 ** (WEIGHT_BITS - np.frexp(largest_weight)[1]))


def residual_quantiles(engines: AsksEngines, output: int, leaves: Int32, alpha: float, largest_weight: float
                       ) -> Float32:  # fmt: skip
    """The smallest residual of each leaf at which `alpha` of the leaf's weight is reached; NaN for empty leaves.

    float32, shape (leaves,). This is the lower weighted quantile, as scikit-learn's boosting uses for its leaves.
    """
    prefixes: UInt32 = np.zeros(len(leaves), np.uint32)
    below: Int64 = np.zeros(len(leaves), np.int64)
    target: Int64 | None = None
    known = 0
    for bits in DIGITS:
        query = ResidualQuery(leaves, prefixes, known, bits, weight_scale(largest_weight))
        request = ResidualCounts(output, query)
        counts: Int64 = np.sum([reply.counts for reply in engines.ask(request)], axis=0)
        running = below[:, None] + np.cumsum(counts, axis=1)
        if target is None:
            total = running[:, -1]
            target = np.maximum(np.ceil(alpha * total).astype(np.int64), 1)
        digit = np.minimum((running < target[:, None]).sum(axis=1), (1 << bits) - 1)
        rows = np.arange(len(leaves))
        below = running[rows, digit] - counts[rows, digit]
        prefixes = (prefixes << np.uint32(bits)) | digit.astype(np.uint32)
        known += bits
    result = values_of(prefixes)
    result[total == 0] = np.nan
    return result


def base_score_of(engines: AsksEngines, spec: FitSpec) -> tuple[float, ...]:
    """The base score in the label's space: given, or from the labels of all engines."""
    objective = spec.objective
    if spec.base_score is not None:
        return spec.base_score
    if spec.params.base_score is not None:
        return (spec.params.base_score,)
    if objective.base_score_rule == "constant":
        return (objective.base_score_constant,)
    if objective.base_score_rule == "quantile":
        quantiles = objective.adaptive_quantiles
        assert quantiles is not None
        engines.ask(m.SetBaseMargin(np.zeros(objective.n_outputs)))
        everyone = np.array([-1], np.int32)
        return tuple(
            float(residual_quantiles(engines, output, everyone, alpha, spec.largest_weight)[0])
            for output, alpha in enumerate(quantiles)
        )
    if objective.base_score_rule == "shares":
        return tuple(objective.base_scores_of(_class_shares(engines, objective.n_outputs)).astype(np.float32).tolist())
    labels, weights = _label_sums(engines)
    return (float(np.float32(objective.base_score_of(labels.ratio(weights)))),)  # files hold float32


def _class_shares(engines: AsksEngines, n_classes: int) -> Float64:
    """Return each class's share of the weight of all rows; float64, shape (classes,)."""
    replies = engines.ask(m.ClassWeights(n_classes))
    sums = [
        sum((ExactSum.from_array(reply.weights[own]) for reply in replies), ExactSum()) for own in range(n_classes)
    ]
    total = sum(sums, ExactSum())
    return np.array([each.ratio(total) for each in sums])


def weight_of_small_data(engines: AsksEngines, spec: FitSpec) -> float | None:
    """Return the total weight of all rows where data are small, and None where it makes no difference."""
    if not spec.recipe.small_data:
        return None
    return sum((ExactSum.from_array(part.weights[0]) for part in engines.ask(m.TotalWeight())), ExactSum()).value()


def _label_sums(engines: AsksEngines) -> tuple[ExactSum, ExactSum]:
    """Exact sums of the weighted labels and of the weights of all rows."""
    parts = engines.ask(m.LabelSums())
    labels = sum((ExactSum.from_array(part.labels) for part in parts), ExactSum())
    weights = sum((ExactSum.from_array(part.weights) for part in parts), ExactSum())
    return labels, weights


def base_margins(spec: FitSpec, base_score: tuple[float, ...]) -> Float64:
    """Margin before the first tree, per output, as `Booster.base_margin` has it."""
    margin = spec.objective.to_margin(np.asarray(base_score, np.float32))
    return np.full(spec.objective.n_outputs, margin, np.float64)
