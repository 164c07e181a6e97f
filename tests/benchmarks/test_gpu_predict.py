"""The pure parts of the GPU's prediction benchmark."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import gpu_cases, ours, peers
from benchmarks.gpu_predict import CASES, floor_ms, given_rows


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


def test_rows_of_the_host_come_over_the_bus() -> None:
    float32, float64 = CASES["host_float32"], CASES["host_float64"]
    assert floor_ms(float32) == pytest.approx(1e3 * 4 * 4e6 * 50 / 55.5e9)
    assert floor_ms(float64) == 2 * floor_ms(float32)
    x = SimpleNamespace(get=lambda: np.arange(12, dtype=np.float32).reshape(4, 3))
    for name in ("host_float32", "host_float64", "host_columns", "host_pandas"):
        made = given_rows(CASES[name], x)
        np.testing.assert_array_equal(np.asarray(made), x.get())
    assert given_rows(CASES["random"], x) is x
    assert given_rows(CASES["host_columns"], x).flags.f_contiguous and given_rows(float64, x).dtype == np.float64


def test_random_models_are_complete_and_load_in_xgboost() -> None:
    model = ours.random_model(5, 20, 4)
    assert all(tree.n_leaves == 16 and tree.depth.max() == 4 for tree in model.trees)
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    peer = peers.xgboost_predictor(ours.as_bytes(model), "cpu", "margin")
    np.testing.assert_allclose(peer(x), ours.margins(model, x), atol=1e-6)
