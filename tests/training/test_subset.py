"""Fits on some rows of a data set: those of these rows alone, and evaluated on others at no pass of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.trees import PARAMS, Data, make_data, quantized

from daskboost import QuantizedDataset, plan, train
from daskboost.errors import DataError, ParameterError

LOGISTIC: dict[str, Any] = {"objective": "binary:logistic", "max_depth": 4, "n_jobs": 1, "device": "cpu"}


def part(data: Data, rows: Any) -> Data:
    return Data(data.X[rows], data.y[rows], None if data.weight is None else data.weight[rows])


def halves(n_rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Rows to train on and rows held out; some are in neither."""
    shuffled = np.random.default_rng(seed).permutation(n_rows)
    return np.sort(shuffled[: n_rows // 2]), np.sort(shuffled[n_rows // 2 : 3 * n_rows // 4])


def outcome(params: Any, dtrain: QuantizedDataset, valid: QuantizedDataset, **more: Any) -> tuple[bytes, Any]:
    history: dict[str, dict[str, list[float]]] = {}
    model = train(params, dtrain, 4, evals=[(valid, "valid")], evals_result=history, **more)
    return model.to_bytes(), history


@settings(max_examples=25)
@given(params=PARAMS, seed=st.integers(0, 99), weighted=st.booleans())
def test_small_data_is_as_if_quantized_alone(params: dict[str, Any], seed: int, weighted: bool) -> None:
    """Row numbers decide nothing there but samples."""
    data = make_data(np.random.default_rng(seed), "binary:logistic", 150, weighted=weighted)
    rows, held_out = halves(150, seed)
    params = {**params, "subsample": 1.0, "objective": "binary:logistic", "eval_metric": ["auc", "logloss"]}
    with (
        quantized(data, chunk_rows=40) as whole,
        quantized(part(data, rows), reference=whole) as alone,
        quantized(part(data, held_out), reference=whole) as other,
    ):
        assert outcome(params, whole.subset(rows), whole.subset(held_out)) == outcome(params, alone, other)


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:absoluteerror"])
def test_large_data_is_as_if_the_others_weighed_nothing(objective: str, tmp_path: Path) -> None:
    data = make_data(np.random.default_rng(1), objective, 9_000)
    rows, held_out = halves(len(data.y))
    assert data.weight is not None
    weight = np.zeros_like(data.weight)
    weight[rows] = data.weight[rows]
    params = {**LOGISTIC, "objective": objective, "subsample": 0.8, "num_class": 5 * (objective == "multi:softprob")}
    with (
        quantized(data, chunk_rows=2_000, limit=9_000, directory=tmp_path) as whole,
        quantized(Data(data.X, data.y, weight), reference=whole) as weighted,
        quantized(part(data, held_out), reference=whole) as other,
    ):
        expected = outcome(params, weighted, other)
        assert outcome(params, whole.subset(rows), whole.subset(held_out)) == expected
        assert outcome(params, whole.subset(rows), other) == expected, "evaluation sets of their own"
        assert outcome(params, weighted, whole.subset(held_out)) == expected, "some rows of another data set"


def test_functions_of_users_see_the_rows_that_count_in_order() -> None:
    data = make_data(np.random.default_rng(2), n_rows=300, weighted=False)
    rows, held_out = halves(300)
    seen: list[Any] = []

    def mean_error(y_true: Any, y_pred: Any, sample_weight: Any = None) -> float:
        assert sample_weight is None
        seen.append(y_true)
        return float(np.mean(np.abs(y_true - y_pred)))

    with quantized(data, chunk_rows=70) as whole:
        train({"n_jobs": 1}, whole.subset(rows), 1, evals=[(whole.subset(held_out), "v")], custom_metric=mean_error)
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], data.y[held_out])


def test_a_subset_of_a_subset_counts_its_rows() -> None:
    data = make_data(np.random.default_rng(3), n_rows=100)
    with quantized(data) as whole:
        evens = whole.subset(np.arange(0, 100, 2))
        some = evens.subset([3, 1, 48])
        assert (evens.n_rows, some.n_rows) == (50, 3)
        direct = whole.subset([2, 6, 96])
        assert train({}, some, 2).to_bytes() == train({}, direct, 2).to_bytes()
        marked = np.zeros(100, np.bool_)
        marked[[2, 6, 96]] = True
        assert train({}, whole.subset(marked), 2).to_bytes() == train({}, direct, 2).to_bytes()
        assert some.info.stats == direct.info.stats
        assert some.info.stats.maximum == data.y[[2, 6, 96]].max()


def test_evaluating_rows_trained_on_reads_nothing(tmp_path: Path) -> None:
    data = make_data(np.random.default_rng(4), "binary:logistic", 2_000)
    rows, held_out = halves(2_000)
    with quantized(data, chunk_rows=300, limit=2_000, directory=tmp_path) as whole:
        (shard,) = whole.shards.shards
        reads = [shard.store.counters().disk_reads]
        for evals in ([], [(whole, "all")], [(whole.subset(held_out), "out"), (whole.subset(rows), "in")]):
            train(LOGISTIC, whole.subset(rows), 3, evals=evals)
            reads.append(shard.store.counters().disk_reads)
        alone, *evaluated = np.diff(reads)
        assert len(set(evaluated)) == 1
        # One pass brings the last tree to margins, which nobody asks for without evaluation sets.
        on_disk = [entry for entry in shard.entries if shard.store.residency(entry.handle) == "disk"]
        assert evaluated[0] - alone == len(on_disk)
        planned = plan(LOGISTIC, whole.subset(rows), evals=[(whole.subset(held_out), "out")])
        assert planned.evaluation_bytes < 2_000 * 5


REFUSED: dict[str, tuple[Any, str]] = {
    "none": ([], "rows has no rows"),
    "no marks": (np.zeros(50, bool), "rows has no rows"),
    "negative": ([-1, 2], "rows has position -1; the 50 rows are numbered 0 to 49"),
    "beyond": ([50], "rows has position 50; the 50 rows are numbered 0 to 49"),
    "twice": ([4, 4], "rows has row 4 more than once"),
    "marks of others": (np.ones(49, bool), r"shape \(49,\), and there are 50 rows"),
    "a number": (7, r"give positions of rows as integers"),
    "numbers with fractions": ([0.5], "give positions of rows as integers"),
    "texts": (["a"], "give positions of rows as integers"),
    "a table": (np.zeros((2, 2), int), "give positions of rows as integers"),
    "ragged": ([[1], [2, 3]], "give positions of rows as integers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_rows(name: str) -> None:
    rows, message = REFUSED[name]
    with quantized(make_data(np.random.default_rng(5), n_rows=50)) as whole:
        with pytest.raises(ParameterError, match=message):
            whole.subset(rows)


def test_what_a_subset_cannot_be(tmp_path: Path) -> None:
    data = make_data(np.random.default_rng(6), "binary:logistic", n_rows=50)
    assert data.weight is not None
    data.weight[:5] = 0
    whole = quantized(data)
    with pytest.raises(DataError, match="weight is 0 in all 5 rows"):
        whole.subset(range(5))
    some = whole.subset(range(10))
    with pytest.raises(ParameterError, match="a subset cannot be saved"):
        some.save(tmp_path / "some")
    some.close()
    again = whole.subset(range(10))
    train(LOGISTIC, again, 1)
    whole.close()
    with pytest.raises(DataError, match="was closed"):
        train(LOGISTIC, again, 1)
    with pytest.raises(DataError, match="was closed"):
        whole.subset([1])
