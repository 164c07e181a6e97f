"""Whole fits whose trees split by sets of categories on a GPU: trees and metrics are the CPU's, to the byte."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from tree.test_category_splits import make_rows, native, trees_of

from daskboost import Booster, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees.split_sets import MOST_THRESHOLD
from daskboost.errors import ParameterError

FITS: dict[str, dict[str, Any]] = {
    "by levels": {"max_depth": 4},
    "few leaves": {"max_depth": 4, "max_leaves": 6, "max_cat_to_onehot": 100, "min_child_weight": 5.0},
    "best first": {"grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
    "several outputs": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.7), "max_depth": 3},
    "by weight": {"score_function": "l2", "objective": "reg:pseudohubererror", "max_depth": 3},
    "limits": {"monotone_constraints": {"number": 1}, "interaction_constraints": [["few", "number"], ["many"]],
               "reg_alpha": 0.3, "max_delta_step": 0.5, "max_cat_threshold": 5, "max_depth": 4},
    "draws": {"subsample": 0.7, "colsample_bynode": 0.6, "max_depth": 4},
    "with the host": {"grow_policy": "lossguide", "max_leaves": 12, "colsample_bynode": 0.6},
    "samples": {"out_of_core": "sampled", "subsample": 0.4, "max_depth": 3},
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {"dense": {"chunk_rows": 192}, "sparse": {"encoding": "csr"}}


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    return "cuda"


def outcome(device: str, params: dict[str, Any], place: dict[str, Any]) -> tuple[Booster, bytes, Any]:
    """What a fit gives, with metrics of rows that have levels that training did not see."""
    x, y = make_rows(7, 500)
    other, labels = make_rows(8, 100)
    other.iloc[:20, 2] = 1000 + np.arange(20)
    with native(x, y, **place) as data, native(other, labels, reference=data, **place) as valid:
        result: dict[str, Any] = {}
        booster = train({"n_jobs": 2, **params, "device": device}, data, 3, evals=[(valid, "valid")],
                        evals_result=result)  # fmt: skip
    return booster, trees_of(booster), result["valid"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fit", FITS)
def test_trees_are_those_of_a_cpu(fit: str, place: str, device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "daskboost")
    booster, trees, history = outcome(device, FITS[fit], PLACES[place])
    assert any("on GPU" in record.message for record in caplog.records)
    _, expected, expected_history = outcome("cpu", FITS[fit], {})
    assert any(tree.has_set.any() for tree in booster.trees)
    assert trees == expected
    assert history == expected_history


def test_a_fit_goes_on_with_the_sets_of_its_model(device: str) -> None:
    x, y = make_rows(11)
    with native(x, y) as data:
        whole, first = train({"device": "cpu"}, data, 4), train({"device": device}, data, 2)
        longer = train({"device": device}, data, 2, init_model=first)
    assert trees_of(longer) == trees_of(whole)


def test_gpus_refuse_longer_sets(device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "daskboost")
    x, y = make_rows(12, 60)
    with native(x, y) as data:
        params = {"max_cat_threshold": MOST_THRESHOLD + 1, "max_depth": 2}
        with pytest.raises(ParameterError, match=r"max_cat_threshold=514, of which a GPU takes 513 at most"):
            train({**params, "device": device}, data, 1)
        with pytest.raises(ParameterError, match="partition_by='columns', as GPUs that share features"):
            train({"partition_by": "columns", "device": device}, data, 1)
        train({**params, "device": "auto"}, data, 1)
    assert any("trains on the CPU: max_cat_threshold=514" in record.message for record in caplog.records)
