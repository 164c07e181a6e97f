"""Positions, terms and normal equations of leaves' models, against naive twins."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import leaf_models as reference
from strategies.trees import fit, make_data

from daskboost.devices.cpu.leaf_models import Ridge, find_terms, fit_leaves
from daskboost.devices.leaf_models import (
    LARGEST_SQUARE,
    MOST_ROWS,
    MOST_TERMS,
    NO_MODELS,
    NONE,
    REACH,
    LeafModels,
    PositionTable,
    n_sums,
    positions,
)
from daskboost.fit.scales import QUANTUM_LIMIT, SUM_LIMIT


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 127, 128, 255, 256, 257, 4_000, 65_535])
def test_positions_are_even_steps(n_bins: int) -> None:
    found = positions(n_bins)
    chosen = {0, 1, n_bins // 3, n_bins // 2, n_bins - 1, n_bins}
    assert {symbol: int(found[symbol]) for symbol in chosen} == {
        symbol: reference.position(n_bins, symbol) for symbol in chosen
    }
    assert found.dtype == np.int8 and (np.diff(found[:-1].astype(int)) >= 0).all()
    assert n_bins == 1 or (found[0], found[-2], found[-1]) == (-REACH, REACH, 0)


def test_tables_lie_one_feature_behind_the_other() -> None:
    table = PositionTable.of([3, 1, 4])
    for feature, n_bins in enumerate((3, 1, 4)):
        np.testing.assert_array_equal(
            table.position[table.begin[feature] : table.begin[feature + 1]], positions(n_bins)
        )


def test_sums_of_any_rows_fit_64_bits() -> None:
    """Large data's by the number of rows, small data's by the sum of their gradients."""
    assert LARGEST_SQUARE == QUANTUM_LIMIT * REACH * REACH
    assert MOST_ROWS * LARGEST_SQUARE < 2**63 <= (MOST_ROWS + 1) * LARGEST_SQUARE
    assert (SUM_LIMIT + 2**20) * REACH * REACH < 2**63
    assert MOST_ROWS > 2**34


def test_terms_are_the_last_of_the_path(rng: np.random.Generator) -> None:
    tree = fit(make_data(rng, n_features=8), {"max_depth": 7, "min_child_weight": 0}, 1).trees[0]
    usable = np.array([True, True, False, True, True, True, True, True])
    for n_terms in (1, 3, MOST_TERMS):
        terms = find_terms(tree.left_child, tree.right_child, tree.feature, usable, n_terms)
        for node in range(tree.n_nodes):
            expected = reference.terms_of(tree, node, usable.tolist())[:n_terms]
            assert terms[node].tolist() == expected + [NONE] * (n_terms - len(expected))
    assert max(len(reference.terms_of(tree, node, [True] * 8)) for node in range(tree.n_nodes)) == MOST_TERMS


def equations(x: Any, pairs: Any, n_terms: int) -> Any:
    """Sums of one leaf, in Python's integers."""
    sums = [0] * n_sums(n_terms)
    for row, (g, h) in zip(x, pairs, strict=True):
        one = [1, *row]
        for j, own in enumerate(one):
            sums[j] += g * own
            for k in range(j + 1):
                sums[n_terms + 1 + j * (j + 1) // 2 + k] += h * own * one[k]
    return np.array([sums], np.int64)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 5), st.sampled_from([0.0, 0.5, 20.0]))
@settings(deadline=None)
def test_slopes_are_a_ridge_regression(seed: int, n_rows: int, n_terms: int, penalty: float) -> None:
    """They are those of float64 to 1e-6 of the largest; some columns do not vary, or vary together."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-REACH, REACH + 1, (n_rows, n_terms))
    if n_terms > 1 and rng.random() < 0.3:
        x[:, 1] = x[:, 0] if rng.random() < 0.5 else 5
    pairs = np.stack([rng.integers(-30_000, 30_000, n_rows), rng.integers(0, 30_000, n_rows)], axis=1)
    units, rate, value = (2.0**-9, 2.0**-14), 0.3, np.array([0.7], np.float32)
    terms, slopes = np.arange(n_terms, dtype=np.int32)[None], np.zeros((1, n_terms), np.float32)
    expected = reference.fitted(x.tolist(), pairs.tolist(), units, (penalty, 0.01, rate), value[0])
    fit_leaves(equations(x.tolist(), pairs.tolist(), n_terms), terms, Ridge(*units, penalty, 0.01, rate), value, slopes)
    assert (terms[0] == NONE).all() == (not expected[1])
    if expected[1]:
        most = max(map(abs, expected[1]))
        tolerance = 1e-6 if penalty else 1e-4  # what is singular but for few rows loses digits
        np.testing.assert_allclose(slopes[0], np.array(expected[1]), rtol=tolerance, atol=tolerance * float(most))
        np.testing.assert_allclose(float(value[0]), float(expected[0]), tolerance, tolerance * float(most) * REACH)


def test_slopes_are_of_float64(rng: np.random.Generator) -> None:
    """The equations of gradients solved by NumPy."""
    x = rng.integers(-REACH, REACH + 1, (300, 5))
    g, h = rng.normal(size=300) + 0.01 * x[:, 0], rng.uniform(0.1, 1, 300)
    pairs = np.stack([np.rint(g * 2**12), np.rint(h * 2**14)], axis=1).astype(np.int64)
    terms, slopes, value = np.arange(5, dtype=np.int32)[None], np.zeros((1, 5), np.float32), np.zeros(1, np.float32)
    rule = Ridge(2.0**-12, 2.0**-14, 20.0, 1.0, 1.0)
    fit_leaves(equations(x.tolist(), pairs.tolist(), 5), terms, rule, value, slopes)
    g, h = pairs[:, 0] / 2**12, pairs[:, 1] / 2**14
    centred = x - (h @ x) / h.sum()
    matrix = (centred * h[:, None]).T @ centred
    matrix += np.diag(20.0 * np.diag(matrix) / h.sum())
    np.testing.assert_allclose(slopes[0], -np.linalg.solve(matrix, centred.T @ g), rtol=1e-6)
    np.testing.assert_allclose(value[0], -((h @ x) / h.sum()) @ slopes[0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["no rows", "little hessian", "one value", "no terms", "infinite"])
def test_leaves_that_stay_constant(kind: str) -> None:
    x, pairs = [[3], [4], [9]], [(100, 50), (-300, 70), (50, 10)]
    least, rate, terms = 1.0, 1.0, np.zeros((1, 1), np.int32)
    if kind == "no rows":
        x, pairs = [], []
    if kind == "little hessian":
        least = 131.0
    if kind == "one value":
        x = [[7]] * 3
    if kind == "no terms":
        terms[:] = NONE
    if kind == "infinite":
        rate = 1e39
    value, slopes = np.array([0.25], np.float32), np.ones((1, 1), np.float32)
    fit_leaves(equations(x, pairs, 1), terms, Ridge(1.0, 1.0, 0.0, least, rate), value, slopes)
    assert (terms[0, 0], value[0], slopes[0, 0]) == (NONE, 0.25, 0)


def test_models_of_trees_come_apart_again(rng: np.random.Generator) -> None:
    data = make_data(rng)
    params = {"linear_leaves": True, "device": "cpu"}
    trees = [fit(data, {**params, "max_depth": depth}, 1).trees[0].models for depth in (1, 4)]
    sizes = [len(own.feature) for own in trees]
    joined = LeafModels.joined([trees[0], NO_MODELS, trees[1]], [sizes[0], 3, sizes[1]])
    parts = [joined.part(0, sizes[0]), joined.part(sizes[0], sizes[0] + 3), joined.part(sizes[0] + 3, 10**6)]
    assert parts[1] is NO_MODELS
    for own, part in zip(trees, (parts[0], parts[2]), strict=True):
        np.testing.assert_array_equal(own.feature, part.feature)
        np.testing.assert_array_equal(own.slope, part.slope)
    assert LeafModels.joined([NO_MODELS, NO_MODELS], [2, 3]) is NO_MODELS
    reach = [Fraction(float(abs(own.slope[-1]).sum())) * REACH for own in trees]
    np.testing.assert_allclose([own.reach(n)[-1] for own, n in zip(trees, sizes, strict=True)], list(map(float, reach)))
