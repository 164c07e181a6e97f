"""Models made of random trees, so that tests of models need no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daskboost.data.input.row_batch import CATEGORY_CODE, FeatureSchema
from daskboost.dtypes import Float32
from daskboost.model.booster import Booster
from daskboost.objectives.classification import Logistic, SoftMax, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import (
    AbsoluteError,
    Gamma,
    Poisson,
    PseudoHuberError,
    QuantileError,
    SquaredError,
    Tweedie,
)
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.table import TreeTable

OBJECTIVES: tuple[Objective, ...] = (
    SquaredError(),
    AbsoluteError(),
    PseudoHuberError(1.5),
    QuantileError((0.1, 0.5, 0.9)),
    Poisson(),
    Gamma(),
    Tweedie(1.3),
    Logistic(),
    SoftProb(4),
    SoftMax(3),
)
"""One of every kind that XGBoost knows too."""


def random_tree(
    rng: np.random.Generator, n_features: int, n_splits: int, chain: bool = False, width: int = 1,
    codes: Sequence[int] = (),
) -> TreeTable:  # fmt: skip
    """A tree grown by splitting random leaves, or always the newest one (`chain`), on random values.

    Leaves of `width` above 1 are vectors. Splits on a third of the features, the first ones, are by sets of `codes`
    where there are any.
    """
    children: dict[int, tuple[int, int]] = {}
    leaves = [0]
    for split in range(n_splits):
        node = leaves.pop(-1 if chain else int(rng.integers(len(leaves))))
        children[node] = (2 * split + 1, 2 * split + 2)
        leaves += children[node]
    n = 2 * n_splits + 1
    inner = np.isin(np.arange(n), list(children))
    values = rng.normal(size=n if width == 1 else (n, width)).astype(np.float32)
    # Thresholds from a small grid, both zeros among them, so that rows often hit them exactly.
    grid = np.array([-1.5, -0.5, -0.0, 0.0, 0.25, 1.0], np.float32)
    table = TreeTable(
        left_child=np.array([children.get(i, (-1, -1))[0] for i in range(n)], np.int32),
        right_child=np.array([children.get(i, (-1, -1))[1] for i in range(n)], np.int32),
        feature=np.where(inner, rng.integers(0, n_features, n), 0).astype(np.int32),
        split_bin=np.full(n, -1, np.int32),
        threshold=np.where(inner, rng.choice(grid, n), 0).astype(np.float32),
        default_left=inner & (rng.random(n) < 0.5),
        gain=np.where(inner, rng.random(n), 0).astype(np.float32),
        cover=_covers(rng, children, n),
        value=(0.3 * values).astype(np.float32),
    )
    return with_sets(rng, table, n_features, codes) if codes else table


def with_sets(rng: np.random.Generator, tree: TreeTable, n_features: int, codes: Sequence[int]) -> TreeTable:
    """The same tree, whose splits on the first third of the features are by sets, of up to all codes but one."""
    has_set = ~tree.is_leaf & (tree.feature < code_features(n_features))
    sizes = np.where(has_set, rng.integers(1, len(codes), tree.n_nodes), 0)
    return replace(
        tree,
        threshold=np.where(has_set, np.float32(0), tree.threshold),
        sets=CategorySets.of_nodes([rng.choice(codes, size, replace=False) for size in sizes]),
    )


def code_features(n_features: int) -> int:
    """How many features of models with codes hold these: the first ones."""
    return -(-n_features // 3)


def _covers(rng: np.random.Generator, children: dict[int, tuple[int, int]], n: int) -> Float32:
    """Whole numbers whose children add up to their parent, as in a trained tree."""
    cover = rng.integers(1, 50, n).astype(np.float32)
    for node in sorted(children, reverse=True):
        cover[node] = cover[children[node][0]] + cover[children[node][1]]
    return cover


def random_booster(
    rng: np.random.Generator,
    objective: Objective,
    *,
    n_features: int = 5,
    n_iterations: int = 6,
    n_splits: int = 12,
    chain: bool = False,
    base_score: float | Sequence[float] = 0.4,
    names: bool = False,
    vectors: bool = False,
    codes: Sequence[int] = (),
) -> Booster:
    """A model of random trees, as many per iteration as the objective has outputs, or one of `vectors`.

    `codes` : see `random_tree`.
    """
    n_outputs, width = (1, objective.n_outputs) if vectors else (objective.n_outputs, 1)
    trees = [random_tree(rng, n_features, n_splits, chain, width, codes) for _ in range(n_iterations * n_outputs)]
    labels = tuple(f"feature {i}" for i in range(n_features)) if names else None
    n_codes = code_features(n_features) if codes else 0
    return Booster(
        trees=tuple(trees),
        tree_outputs=tuple(range(n_outputs)) * n_iterations,
        iteration_indptr=tuple(range(0, len(trees) + 1, n_outputs)),
        objective=objective,
        base_score=tuple(np.atleast_1d(base_score).tolist()),
        schema=FeatureSchema(labels, (CATEGORY_CODE,) * n_codes + ("float",) * (n_features - n_codes)),
    )


def random_rows(rng: np.random.Generator, n_rows: int, n_features: int = 5) -> Float32:
    """Rows with missing values, and with values that equal thresholds of `random_tree`."""
    rows = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    exact = rng.choice(np.array([-1.5, -0.5, -0.0, 0.0, 0.25, 1.0], np.float32), rows.shape)
    rows = np.where(rng.random(rows.shape) < 0.3, exact, rows)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows


def random_codes(rng: np.random.Generator, n_rows: int, codes: Sequence[int], n_features: int = 5) -> Float32:
    """Rows for models with `codes`: those, their neighbours, numbers that are no codes, and missing values."""
    rows = random_rows(rng, n_rows, n_features)
    n_codes = code_features(n_features)
    odd = np.array([-1, -0.5, -0.0, 0.25, 2**24 - 1, 2**24, 3e9, -1e30, np.inf, -np.inf], np.float32)
    values = rng.choice(np.asarray(codes, np.float32), (n_rows, n_codes)) + rng.integers(0, 2, (n_rows, n_codes))
    values = np.where(rng.random(values.shape) < 0.2, rng.choice(odd, values.shape), values)
    rows[:, :n_codes] = np.where(rng.random(values.shape) < 0.1, np.nan, values)
    return rows
