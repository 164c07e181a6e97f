"""Models whose splits are by sets of categories: prediction, files in XGBoost's form, explanations and pictures."""

from __future__ import annotations

import numpy as np
import pytest
from model.random_models import random_booster, random_codes
from model.test_predict_kernel import as_sparse, kernel_margins
from reference.predict import leaves, margins

from daskboost.data.input.row_batch import DenseRows, Features
from daskboost.model import predict_rows as predict
from daskboost.objectives.classification import SoftProb

CODES = {
    "few": range(3), "words": range(70), "gaps": (0, 7, 31, 32, 64, 1000, 2**24 - 2),
    "many": range(0, 9000, 3),
}  # fmt: skip


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("n_splits", "chain"), [(1, False), (40, False), (12, True)], ids=["stump", "bushy", "chain"])
@pytest.mark.parametrize("vectors", [False, True], ids=["scalars", "vectors"])
def test_equals_the_plain_walk(
    rng: np.random.Generator, codes: range, sparse: bool, n_splits: int, chain: bool, vectors: bool
) -> None:
    booster = random_booster(
        rng, SoftProb(3), n_splits=n_splits, chain=chain, n_iterations=4, vectors=vectors, codes=codes
    )
    values = random_codes(rng, 301, codes)
    rows: Features = as_sparse(values) if sparse else DenseRows(values)
    start = rng.normal(size=(301, 3)).astype(np.float32)
    expected = margins(booster.trees, booster.tree_outputs, values, start)
    assert kernel_margins(booster, rows, start).tobytes() == expected.tobytes()
    found = predict.find_leaves(booster.forest, rows, (1, 4), 1)
    np.testing.assert_array_equal(found, leaves(booster.trees[1:4], values))
