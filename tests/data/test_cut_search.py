"""Searches that share out the features find what one search of all finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from daskboost.data.cuts.cell_counts import Refinement
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.cuts.cut_search import CutSearch, answer_of_all, find_cuts
from daskboost.data.cuts.sketch import refine_batch, sketch_batch
from daskboost.data.input.row_batch import DenseRows

CAPACITY = 64


@pytest.fixture
def rows(rng: np.random.Generator) -> DenseRows:
    """Features that need no, one and two refinements, one without values and one of few."""
    n = 20_000
    nested = (1 + 2.0 ** -rng.integers(0, 24, n) * rng.random(n)) * np.exp2(
        rng.integers(-100, 100, n) * (rng.random(n) < 0.3)
    )
    columns = [
        rng.random(n), np.full(n, np.nan), np.where(rng.random(n) < 0.3, 1e30, rng.standard_normal(n)),
        rng.integers(0, 9, n), nested,
    ]  # fmt: skip
    return DenseRows(np.stack(columns, axis=1).astype(np.float32))


@pytest.mark.parametrize("edges", [(0, 5), (0, 2, 5), (0, 1, 1, 4, 5), (0, 1, 2, 3, 4, 5)])
def test_shared_out_features_get_the_same_cut_points(rows: DenseRows, edges: tuple[int, ...]) -> None:
    sketch, max_bin = sketch_batch(rows, capacity=CAPACITY), 32
    expected = find_cuts(sketch, lambda refinement: refine_batch(rows, None, refinement), max_bin)
    searches = [(CutSearch(max_bin), pair) for pair in itertools.pairwise(edges)]
    reads = 0
    while True:
        answer = answer_of_all([search.add(sketch.part(*pair)) for search, pair in searches])
        reads += 1
        if isinstance(answer, Cuts):
            break
        assert len(answer.offsets) == 6 and answer.offsets[-1] == len(answer.lower)
        sketch = refine_batch(rows, None, answer)
    assert reads > 2
    for name in ("values", "offsets", "has_missing"):
        assert getattr(answer, name).tobytes() == getattr(expected, name).tobytes()
        assert getattr(answer, name).dtype == getattr(expected, name).dtype


def test_an_answer_stays(rows: DenseRows) -> None:
    """Other features may need another read, of which these get nothing."""
    search, whole = CutSearch(16), sketch_batch(rows, capacity=CAPACITY)
    found = search.add(whole.part(3, 4))
    assert isinstance(found, Cuts)
    nothing = refine_batch(rows, None, Refinement.empty(5)).part(3, 4)
    assert search.add(nothing) is found
