"""Loading the real sets: splits, targets and offsets as their README says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import BUNDLED, scores, within
from benchmarks.real_sets import NUMERIC, SETS, load


def test_catalogue_is_complete() -> None:
    assert len(SETS) == 32
    assert set(BUNDLED) <= set(NUMERIC) <= set(SETS)
    assert all(info.rounds > 0 and info.xgboost.keys() == info.lightgbm.keys() for info in SETS.values())


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_load_without_the_collection(
    name: str, bundled_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data / "nowhere"))
    data = load(name)
    assert data.train.x.dtype == np.float32
    assert data.train.x.shape[1] == data.test.x.shape[1] == len(data.feature_names or ())
    assert len(data.train.x) == len(data.train.y) > 3 * len(data.test.y) > 0
    if data.n_classes:
        assert set(np.unique(data.train.y)) == set(range(data.n_classes))


def test_a_missing_set_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"otto\.parquet is neither in .* set DASKBOOST_DATA"):
        load("otto")


@pytest.mark.usefixtures("data_dir")
def test_counts_have_the_log_exposure_as_offset() -> None:
    data = load("fremtpl2_freq", numeric_only=True)
    assert data.train.base_margin is not None
    assert data.train.x.shape[1] == 5
    expected_claims = np.exp(data.train.base_margin.astype(np.float64)).sum()
    assert expected_claims == pytest.approx(data.train.y.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.usefixtures("data_dir")
def test_sparse_sets_stay_sparse() -> None:
    data = load("agaricus")
    assert data.train.x.format == "csr"
    assert (data.train.x.shape[0], data.test.x.shape[0]) == (6513, 1611)


def test_allowance_is_absolute_for_shares_and_relative_for_errors() -> None:
    assert within("auc", 0.7971, 0.80)
    assert not within("auc", 0.7969, 0.80)
    assert within("rmse", 505.0, 500.0)
    assert not within("rmse", 505.1, 500.0)


def test_scores_of_a_perfect_prediction() -> None:
    y = np.array([0, 1, 2, 1], np.float32)
    result = scores("multiclass", y, np.eye(3)[[0, 1, 2, 1]])
    assert result["accuracy"] == 1
    assert result["mlogloss"] == pytest.approx(0, abs=1e-9)
    assert scores("regression", y, y.astype(np.float64)) == {"rmse": 0, "mae": 0}
