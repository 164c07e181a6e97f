"""Fits on wide sparse data, whose splits a GPU, or one that is emulated, finds in sorted entries: models are those of
histograms and of CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from strategies.device_arrays import Place, place

from daskboost import QuantizedDataset, plan, train
from daskboost.devices.gpu.trees import sorted_entries
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.fit import scales as rounding

__all__ = ["place"]

N_ROWS, N_FEATURES = 3_000, 120
DIRECTIONS = [(1, -1, 0, -1, 1)[feature % 5] for feature in range(N_FEATURES)]


def make_rows(rng: np.random.Generator) -> tuple[Any, Any]:
    """A column that every row has, one of two values in most rows, and many thin ones."""
    density = np.concatenate([[1.0, 0.9], rng.uniform(0, 0.05, N_FEATURES - 2)])
    values = np.round(rng.normal(size=(N_ROWS, N_FEATURES)) + 2, 1)
    values[:, 1] = rng.integers(1, 3, N_ROWS)
    X = scipy.sparse.csr_matrix(np.where(rng.random(values.shape) < density, values, 0), dtype=np.float32)
    score = X @ rng.normal(size=N_FEATURES)
    return X, score + rng.normal(size=N_ROWS)


FITS: dict[str, dict[str, Any]] = {
    "logistic": {"objective": "binary:logistic", "max_depth": 6},
    "child weight and gamma": {"objective": "binary:logistic", "max_depth": 5, "min_child_weight": 9.5, "gamma": 0.7},
    "few leaves": {"objective": "reg:squarederror", "max_depth": 7, "max_leaves": 19, "reg_lambda": 0.0},
    "samples": {"objective": "reg:squarederror", "max_depth": 4, "subsample": 0.6, "colsample_bylevel": 0.5},
    "by weight": {"objective": "binary:logistic", "max_depth": 4, "score_function": "l2"},
    "linear leaves": {"objective": "binary:logistic", "max_depth": 5, "linear_leaves": True},
    "best first": {
        "objective": "binary:logistic", "grow_policy": "lossguide", "max_leaves": 40, "max_depth": 0, "gamma": 0.1,
        "min_child_weight": 0.5,
    },
    "best first, not deep": {
        "objective": "reg:squarederror", "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 4, "subsample": 0.6,
        "colsample_bytree": 0.6,
    },
    "best of classes": {
        "objective": "multi:softprob", "num_class": 3, "grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0,
        "score_function": "l2",
    },
    "classes": {"objective": "multi:softprob", "num_class": 3, "max_depth": 4, "colsample_bytree": 0.7},
    "L1": {"objective": "binary:logistic", "max_depth": 6, "reg_alpha": 0.8, "min_child_weight": 0},
    "L1, best first": {
        "objective": "reg:squarederror", "grow_policy": "lossguide", "max_leaves": 20, "max_depth": 0, "reg_alpha": 3,
    },
    "small steps": {"objective": "binary:logistic", "max_depth": 5, "max_delta_step": 0.2},
    "monotone": {"objective": "reg:squarederror", "max_depth": 6, "monotone_constraints": DIRECTIONS},
    "monotone, best first": {
        "objective": "binary:logistic", "grow_policy": "lossguide", "max_leaves": 30, "max_depth": 0, "gamma": 0.1,
        "monotone_constraints": DIRECTIONS, "min_child_weight": 0,
    },
    "all limits of classes": {
        "objective": "multi:softprob", "num_class": 3, "max_depth": 5, "monotone_constraints": DIRECTIONS,
        "reg_alpha": 0.1, "max_delta_step": 0.4, "reg_lambda": 0,
    },
}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_models_are_those_of_histograms(name: str, small: bool, place: Place, rng: np.random.Generator,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(sorted_entries, "LEAST_CELLS", 0)
    monkeypatch.setattr(rounding, "SMALL_ROWS", N_ROWS if small else 0)
    X, score = make_rows(rng)
    params = {**FITS[name], "max_bin": 64, "n_jobs": 1}
    y = np.digitize(score, np.quantile(score, [0.3, 0.7])) if "num_class" in params else (
        score if params["objective"].startswith("reg") else score > np.median(score)
    )  # fmt: skip
    weight = rng.uniform(0.5, 2, N_ROWS).astype(np.float32)
    models, searched, search = {}, [], EntrySearch.best_per_node

    def noted(*arguments: Any, **how: Any) -> Any:
        searched.append(0)
        return search(*arguments, **how)

    monkeypatch.setattr(EntrySearch, "best_per_node", noted)
    given = {"y": y.astype(np.float32), "weight": weight, "encoding": "csr", "max_bin": 64, "n_jobs": 1}
    with QuantizedDataset.from_dask(X, **given) as rows:
        for way, cells in (("entries", 0), ("histograms", 1 << 40), ("cpu", 0)):
            monkeypatch.setattr(sorted_entries, "CELLS_PER_ENTRY", cells)
            own = {**params, "device": "cpu" if way == "cpu" else "cuda"}
            planned = plan(own, rows, num_boost_round=2)
            assert planned.by_entries == (way == "entries")
            models[way] = train(own, rows, 2, evals=[(rows, "train")]).to_bytes()
            assert bool(searched) == (way == "entries")
            searched.clear()
    assert models["entries"] == models["histograms"] == models["cpu"]
