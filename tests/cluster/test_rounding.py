"""What the one scale of all gradients costs: the noise that docs/design.md and `train` promise not to exceed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference import gradients as reference
from strategies.roundings import make_rounding

from daskboost.dtypes import Float32
from daskboost.fit import messages as m
from daskboost.objectives.objective import Objective
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
