"""The pure parts of the GPU's prediction benchmark."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gpu_cases, ours, peers
from benchmarks.gpu_predict import CASES, floor_ms


def test_floors_follow_the_count_of_cycles() -> None:
    """11M rows, 500 trees, 8 levels: 22 cycles for 256 visits."""
    assert floor_ms(CASES["random"]) == pytest.approx(11e6 / 32 * 500 * 22.1 / (132 * 1.75e9) * 1e3, rel=0.01)
    assert floor_ms(CASES["fitted_depth6"]) < 0.7 * floor_ms(CASES["fitted"])


def test_the_benchmark_of_speed_states_the_same_floor() -> None:
    assert gpu_cases.floor_of(gpu_cases.CASES["predict_11m"].config).ms == floor_ms(CASES["fitted"])
    wide = gpu_cases.Config("wide", "higgs", 1_000_000, 600, 8, kind="predict", trees=200)
    floor = gpu_cases.floor_of(wide)
    assert floor.ms == floor_ms(CASES["random_600_features"])
    assert floor.bytes_ms > floor.lookups_ms, "what bounds rows of many columns"


def test_random_models_are_complete_and_load_in_xgboost() -> None:
    model = ours.random_model(5, 20, 4)
    assert all(tree.n_leaves == 16 and tree.depth.max() == 4 for tree in model.trees)
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    peer = peers.xgboost_predictor(ours.as_bytes(model), "cpu", "margin")
    np.testing.assert_allclose(peer(x), ours.margins(model, x), atol=1e-6)
