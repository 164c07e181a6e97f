"""The prediction kernels against the plain walk of tests/reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from model.random_models import OBJECTIVES, random_booster, random_rows
from reference.predict import leaves, margins

from daskboost.data.input.row_batch import DenseRows, Features, SparseRows
from daskboost.dtypes import Float32
from daskboost.model import predict_rows as predict
from daskboost.model.booster import Booster
from daskboost.objectives.classification import SoftProb
from daskboost.objectives.regression import SquaredError


def as_sparse(values: Float32) -> SparseRows:
    present = ~np.isnan(values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), values[present], values.shape[1])


def kernel_margins(booster: Booster, rows: Features, start: Float32, n_threads: int = 1) -> Float32:
    result = start.copy()
    predict.add_margins(booster.forest, rows, (0, len(booster.trees)), result, n_threads)
    return result


@pytest.mark.parametrize("n_splits", [0, 1, 12, 200])
@pytest.mark.parametrize("chain", [False, True], ids=["bushy", "chain"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("vectors", [False, True], ids=["scalars", "vectors"])
def test_equals_the_plain_walk(
    rng: np.random.Generator, n_splits: int, chain: bool, sparse: bool, vectors: bool
) -> None:
    shape = {"n_splits": n_splits, "chain": chain, "n_iterations": 9 if vectors else 3}
    booster = random_booster(rng, SoftProb(3), **shape, vectors=vectors)  # type: ignore[arg-type]
    values = random_rows(rng, 301)  # no multiple of a block
    rows: Features = as_sparse(values) if sparse else DenseRows(values)
    start = rng.normal(size=(301, 3)).astype(np.float32)
    assert booster.forest.is_deep.any() == (n_splits == 200 or (chain and n_splits > predict.HEAP_DEPTH))
    expected = margins(booster.trees, booster.tree_outputs, values, start)
    assert kernel_margins(booster, rows, start).tobytes() == expected.tobytes()
    found = predict.find_leaves(booster.forest, rows, (2, 7), 1)
    np.testing.assert_array_equal(found, leaves(booster.trees[2:7], values))


def test_extreme_values_and_thresholds(rng: np.random.Generator) -> None:
    limit, tiny = np.finfo(np.float32).max, np.float32(1e-45)
    extremes = np.array([-limit, -1, -tiny, -0.0, 0.0, tiny, 1, limit, np.nan, np.inf, -np.inf], np.float32)
    values = np.stack(np.meshgrid(extremes, extremes), -1).reshape(-1, 2)
    booster = random_booster(rng, SquaredError(), n_features=2, n_iterations=30)
    trees = tuple(
        replace(tree, threshold=np.where(tree.is_leaf, 0, rng.choice(extremes[:8], tree.n_nodes)).astype(np.float32))
        for tree in booster.trees
    )
    booster = replace(booster, trees=trees)
    np.testing.assert_array_equal(
        predict.find_leaves(booster.forest, DenseRows(values), (0, 30), 1), leaves(trees, values)
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_bytes_do_not_depend_on_threads_tasks_or_blocks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    booster = random_booster(rng, SquaredError(), n_iterations=40)
    values = random_rows(rng, 2_000)
    rows: Features = as_sparse(values) if sparse else DenseRows(values)
    start = np.full((2_000, 1), 0.1, np.float32)
    expected = kernel_margins(booster, rows, start)
    for task_rows, block_bytes, n_threads in ((100, 1, 3), (1_999, 1 << 20, 2), (7, 4_096, 4)):
        monkeypatch.setattr(predict, "TASK_ROWS", task_rows)
        monkeypatch.setattr(predict, "BLOCK_BYTES", block_bytes)
        assert kernel_margins(booster, rows, start, n_threads).tobytes() == expected.tobytes()


def test_features_beyond_those_in_splits_are_skipped(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SquaredError(), n_features=3)
    values = random_rows(rng, 50, 40)
    start = np.zeros((50, 1), np.float32)
    expected = margins(booster.trees, booster.tree_outputs, values, start)
    assert kernel_margins(booster, as_sparse(values), start).tobytes() == expected.tobytes()
    assert kernel_margins(booster, DenseRows(values), start).tobytes() == expected.tobytes()


def test_no_trees_and_no_rows(rng: np.random.Generator) -> None:
    empty = random_booster(rng, SquaredError(), n_iterations=0)
    start = np.ones((4, 1), np.float32)
    np.testing.assert_array_equal(kernel_margins(empty, DenseRows(random_rows(rng, 4)), start), start)
    booster = random_booster(rng, SquaredError())
    assert predict.find_leaves(booster.forest, as_sparse(random_rows(rng, 0)), (0, 6)).shape == (0, 6)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_local_inputs_agree(rng: np.random.Generator, objective: object) -> None:
    """Every container of the same numbers predicts the same bytes."""
    import pandas as pd
    import pyarrow as pa

    booster = random_booster(rng, objective)  # type: ignore[arg-type]
    values = random_rows(rng, 200)
    expected = booster.predict(values)
    present = ~np.isnan(values)
    absent_is_missing = sp.csr_matrix((values[present], np.nonzero(present)), values.shape)
    frame = pd.DataFrame(values, columns=list("abcde"))
    inputs = (values.astype(np.float64), np.asfortranarray(values), absent_is_missing, absent_is_missing.tocsc(), frame,
              pa.Table.from_pandas(frame), values.tolist())  # fmt: skip
    for given in inputs:
        assert booster.predict(given).tobytes() == expected.tobytes()
