"""Our float32 exp against the exact one, and row results that depend on the row alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskboost.objectives.objective import exp, fold, sigmoid, softmax


def ulps(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(actual.astype(np.float64) - exact) / np.spacing(exact.astype(np.float32)))


def test_exp_is_within_two_ulps_over_its_range() -> None:
    x = np.linspace(-80, 80, 1_000_003).astype(np.float32)
    assert ulps(exp(x), np.exp(x.astype(np.float64))).max() <= 2
    assert exp(np.array([0.0, -0.0], dtype=np.float32)).tolist() == [1.0, 1.0]


def test_exp_is_monotone_and_clipped() -> None:
    x = np.linspace(-100, 100, 400_001).astype(np.float32)
    y = exp(x)
    assert y.dtype == np.float32
    assert np.all(np.diff(y) >= 0)
    assert np.isfinite(y).all() and (y > 0).all()
    assert y[0] == exp(x[:1] + 20)[0] and y[-1] == exp(x[-1:] - 20)[0]


def test_exp_leaves_its_argument_alone() -> None:
    x = np.array([100.0, 1.0], dtype=np.float32)
    exp(x)
    assert x.tolist() == [100.0, 1.0]


def test_sigmoid_is_safe_and_symmetric() -> None:
    x = np.array([-3e38, -200, -1, 0, 1, 200, 3e38], dtype=np.float32)
    p = sigmoid(x)
    assert p.dtype == np.float32
    assert p[3] == 0.5 and p[-1] == 1.0 and 0 < p[0] < 1e-34
    np.testing.assert_allclose(p[2], 1 / (1 + np.exp(1.0)), rtol=3e-7)
    np.testing.assert_allclose(p + p[::-1], 1, atol=1e-7)


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 64, 129])
def test_softmax_sums_to_one_and_matches_float64(classes: int) -> None:
    x = np.random.default_rng(classes).normal(scale=20, size=(200, classes)).astype(np.float32)
    p = softmax(x.T.copy()).T
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(p, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-33)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_a_row_does_not_see_its_neighbours(rows: int, classes: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(scale=10, size=(rows, classes)).astype(np.float32)
    alone = np.concatenate([softmax(x[:, i : i + 1].copy()) for i in range(classes)], axis=1)
    assert softmax(x).tobytes() == alone.tobytes()
    alone = np.concatenate([exp(x[i : i + 1].copy()) for i in range(rows)])
    assert exp(x).tobytes() == alone.tobytes()


def test_fold_reduces_every_row_once() -> None:
    for count in range(1, 20):
        values = np.arange(2 * count, dtype=np.float64).reshape(count, 2)
        before = values.copy()
        np.testing.assert_array_equal(fold(values, np.add), before.sum(axis=0))
        np.testing.assert_array_equal(values, before)
