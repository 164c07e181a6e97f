"""What the one scale of all gradients costs: the noise that docs/design.md and `train` promise not to exceed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference import gradients as reference

from daskboost.cluster import messages as m
from daskboost.cluster.rounding import PACKED_LIMIT, make_rounding, scale_rule
from daskboost.dtypes import Float32
from daskboost.objectives.base import Objective
from daskboost.objectives.regression import AbsoluteError, PseudoHuberError, SquaredError
from daskboost.params import TrainParams

N_ROWS = 6_000


def noise_of(g: Float32) -> float:
    """Mean square of what rounding adds to the gradients of large data."""
    h = np.ones_like(g)
    top = m.GradientRange(np.array([np.abs(g).max()]), np.array([1.0]))
    rounding = make_rounding(TrainParams(), "reg:squarederror", 0, 0, [top], None)
    quantized = np.array([row[1] for row in reference.quantize(g, h, rounding)])
    return float(np.mean((quantized / rounding.scale_g - g.astype(np.float64)) ** 2))


def with_largest(g: Float32, largest: float) -> Float32:
    """The gradients, the first of them an outlier."""
    return np.concatenate([np.array([largest], np.float32), g[1:]])


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "outlier"])
def test_noise_is_within_its_bound(kind: str, rng: np.random.Generator) -> None:
    g = (rng.standard_t(1.5, N_ROWS) if kind == "heavy tails" else rng.normal(size=N_ROWS)).astype(np.float32)
    g = with_largest(g, 2e6) if kind == "outlier" else g
    g[np.abs(g).argmax()] = 2.0 ** math.ceil(math.log2(np.abs(g).max()))  # where a quantum is largest against it
    square, largest = float(np.mean(g.astype(np.float64) ** 2)), float(np.abs(g).max())
    bound = largest**2 / 2**30
    assert bound <= N_ROWS / 2**30 * square
    assert bound / 100 < noise_of(g) <= bound


def test_packed_gradients_are_few_levels_without_bias(rng: np.random.Generator) -> None:
    """Sums over rows that a split would tell apart keep their expectation, also of gradients far below one quantum."""
    g = np.concatenate([rng.normal(size=N_ROWS), np.full(N_ROWS, 0.02), [8.0]]).astype(np.float32)
    h = np.concatenate([rng.random(2 * N_ROWS) * 1e-2, [1.0]]).astype(np.float32)
    top = m.GradientRange(np.array([8.0]), np.array([1.0]))
    rounding = make_rounding(TrainParams(), "reg:squarederror", 0, 0, [top], None, packed=True)
    assert (rounding.scale_g, rounding.scale_h) == (PACKED_LIMIT / 8, PACKED_LIMIT)
    rows = np.array(reference.quantize(g, h, rounding))
    assert (np.abs(rows[:, 1]) <= PACKED_LIMIT).all() and ((rows[:, 2] >= 0) & (rows[:, 2] <= PACKED_LIMIT)).all()
    for part in (slice(0, N_ROWS), slice(N_ROWS, 2 * N_ROWS)):
        for values, column, unit in ((g, 1, rounding.units[0]), (h, 2, rounding.units[1])):
            error = rows[part, column].sum() * unit - values[part].sum(dtype=np.float64)
            assert abs(error) < 4 * math.sqrt(N_ROWS) * unit / 2  # a rounding's variance is at most 1/4 quantum


def test_small_data_are_never_packed() -> None:
    with pytest.raises(ValueError, match="gradients of small data are never packed"):
        scale_rule(10.0, packed=True)


@pytest.mark.parametrize("ratio", [2**10, 2**15])
def test_noise_beside_an_outlier_by_the_variance_of_the_others(ratio: int, rng: np.random.Generator) -> None:
    g = rng.normal(size=N_ROWS).astype(np.float32)
    share = ratio**2 / 2**30
    assert share / 2 < noise_of(with_largest(g, ratio)) / g.var() <= share


@pytest.mark.parametrize("objective", [PseudoHuberError(huber_slope=1.0), AbsoluteError()])
def test_bounded_gradients_are_a_remedy(objective: Objective, rng: np.random.Generator) -> None:
    label = with_largest(rng.normal(size=N_ROWS).astype(np.float32), 1e6)
    margin = np.zeros((N_ROWS, 1), np.float32)

    def relative_noise(chosen: Objective) -> float:
        g = chosen.gradients(label, margin)[0][:, 0]
        return noise_of(g) / float(g[1:].var())

    assert relative_noise(SquaredError()) > 0.5
    assert relative_noise(objective) < 1e-7
