"""Plans of wide sparse rows, whose splits are found in sorted entries, without histograms."""

from __future__ import annotations

from typing import Any

import pytest
from kernels.tracked import TrackedRuntime
from training.plan_shapes import LOGISTIC, data_of, make_data

from daskboost import QuantizedDataset, plan, train, train_many
from daskboost.devices.gpu import cuda, sorted_entries
from daskboost.errors import DeviceError

pytestmark = pytest.mark.emulated
PARAMS: dict[str, Any] = {**LOGISTIC, "max_depth": 6, "max_bin": 64, "n_jobs": 1, "device": "cuda"}


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> TrackedRuntime:
    found = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: found)
    return found


@pytest.mark.parametrize("more", [
    {}, {"reg_alpha": 0.1}, {"max_delta_step": 0.7}, {"objective": "count:poisson"}, {"grow_policy": "symmetric"},
    {"grow_policy": "lossguide", "max_leaves": 40, "max_depth": 0},
    {"monotone_constraints": [0, 1]}, {"monotone_constraints": "(0, -1)"}, {"monotone_constraints": {"f7": 1}},
    {"monotone_constraints": [0, 0]},
], ids=str)  # fmt: skip
def test_penalties_and_limits_are_planned_of_shapes_too(more: dict[str, Any], runtime: TrackedRuntime) -> None:
    data = data_of("wide sparse")
    n_rows, n_features = data["X"].shape
    params = {**PARAMS, **more}
    of_shape = plan(params, n_rows=n_rows, n_features=n_features, nonzeros_per_row=data["X"].nnz / n_rows)
    plain = not more or more == {"monotone_constraints": [0, 0]} or more.get("grow_policy") == "lossguide"
    assert of_shape.by_entries == plain
    if isinstance(more.get("monotone_constraints"), dict):
        return  # the data's features have no names
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1) as dataset:
        of_data = plan(params, dataset)
    assert of_data.by_entries == of_shape.by_entries
    assert of_data.total_bytes == pytest.approx(of_shape.total_bytes, rel=0.05)


def test_best_first_trees_that_end_at_a_depth_have_few_nodes(runtime: TrackedRuntime) -> None:
    """However many leaves they might have: of few histograms, searching all entries would be the slower way."""
    data = data_of("wide sparse")
    n_rows, n_features = data["X"].shape

    def by_entries(**more: Any) -> bool:
        params = {**PARAMS, **more}
        return plan(params, n_rows=n_rows, n_features=n_features, nonzeros_per_row=data["X"].nnz / n_rows).by_entries

    best_first = {"grow_policy": "lossguide", "max_leaves": 256}
    assert by_entries(**best_first, max_depth=0)
    assert by_entries(**best_first, max_depth=8)
    assert not by_entries(**best_first, max_depth=3)
    assert not by_entries(grow_policy="lossguide", max_depth=3)
    assert not by_entries(max_depth=3)


def test_models_that_train_together_have_histograms_as_planned(
    runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their views are shared, also with models that need histograms."""
    monkeypatch.setattr(sorted_entries, "LEAST_CELLS", 0)
    data = make_data(n_rows=2_000, n_features=900, density=0.01)
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1) as dataset:
        alone = plan(PARAMS, dataset, num_boost_round=1)
        assert alone.by_entries
        expected = train(PARAMS, dataset, 1)
        assert runtime.meter.pool.total_bytes <= alone.total_bytes
        limited = {**PARAMS, "device_memory_limit": alone.total_bytes}
        train(limited, dataset, 1)
        with pytest.raises(DeviceError, match=r"of which histograms take .* allowed by device_memory_limit"):
            train_many(limited, dataset, 1, folds=2)
        rules = [PARAMS, {**PARAMS, "reg_alpha": 0.1}]
        together = train_many(rules, dataset, 1)
        assert together[0].booster.to_bytes() == expected.to_bytes()
        apart = train(rules[1], dataset, 1)
        assert together[1].booster.to_bytes() == apart.to_bytes() != expected.to_bytes()


@pytest.mark.parametrize("n_features", [30_000, 90_000])
def test_what_takes_memory_by_feature_is_planned(n_features: int, runtime: TrackedRuntime) -> None:
    data = make_data(n_rows=600, n_features=n_features, density=1e-3)
    assert data["X"].nnz < n_features
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1) as dataset:
        params = {**PARAMS, "max_depth": 8}
        planned = plan(params, dataset, num_boost_round=1)
        assert planned.by_entries
        runtime.meter.restart()
        train(params, dataset, 1)
    assert 0.4 * planned.total_bytes <= runtime.meter.pool.total_bytes <= planned.total_bytes
    assert planned.total_bytes > 24 * n_features, "what is missed otherwise would not show"
