"""Plans of wide sparse rows, whose splits are found in sorted entries, without histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cluster.takes_of_rounds import search_entries
from kernels.tracked import TrackedRuntime
from strategies.saved_dataset import edit
from training.plan_shapes import LOGISTIC, data_of, make_data, within

from daskboost import Plan, QuantizedDataset, plan, train, train_many
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import sorted_entries
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
def test_of_all_gains_they_are_planned_of_shapes_too(more: dict[str, Any], runtime: TrackedRuntime) -> None:
    data = data_of("wide sparse")
    n_rows, n_features = data["X"].shape
    params = {**PARAMS, **more}
    of_shape = plan(params, n_rows=n_rows, n_features=n_features, nonzeros_per_row=data["X"].nnz / n_rows)
    assert of_shape.by_entries == (more.get("grow_policy") != "symmetric")
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


@pytest.mark.parametrize(
    "more", [
        {"max_depth": 3}, {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 6},
        {"max_depth": 4, "colsample_bynode": 0.5, "interaction_constraints": [[*range(900)], [*range(700, 1_500)]]},
        {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 6, "interaction_constraints": [[*range(900)]]},
    ], ids=["levels", "best first", "features of nodes", "features of best-first nodes"],
)  # fmt: skip
def test_they_are_searched_where_histograms_have_no_room(more: dict[str, Any], runtime: TrackedRuntime) -> None:
    """Though histograms are faster where there is room: a fit that has none would wait for the host, or be refused."""
    params = {**PARAMS, **more}
    with QuantizedDataset.from_dask(**data_of("wide sparse"), max_bin=64, n_jobs=1) as dataset:
        roomy = plan(params, dataset)
        assert not roomy.by_entries
        expected = train(params, dataset, 2).to_bytes()
        limited = {**params, "device_memory_limit": roomy.total_bytes * 2 // 3}
        planned = plan(limited, dataset)
        assert planned.by_entries
        assert planned.without_host
        runtime.meter.restart()
        assert train(limited, dataset, 2).to_bytes() == expected
    within(runtime.meter.pool.total_bytes, planned)


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


def fit(data: dict[str, Any], params: dict[str, Any], runtime: TrackedRuntime) -> Plan:
    """Train a round by entries, within the plan, which is returned."""
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1, encoding="csr") as dataset:
        planned = plan(params, dataset, num_boost_round=1)
        assert planned.by_entries
        runtime.meter.restart()
        train(params, dataset, 1)
    within(runtime.meter.pool.total_bytes, planned)
    return planned


@pytest.mark.parametrize("n_features, more", [
    (30_000, {}), (90_000, {}), (30_000, {"reg_alpha": 0.01}), (30_000, {"monotone_constraints": [0, 1, -1] * 10_000}),
], ids=["30,000", "90,000", "L1", "monotone"])  # fmt: skip
def test_what_takes_memory_by_feature_is_planned(
    n_features: int, more: dict[str, Any], runtime: TrackedRuntime
) -> None:
    data = make_data(n_rows=600, n_features=n_features, density=1e-3)
    assert data["X"].nnz < n_features
    planned = fit(data, {**PARAMS, "max_depth": 8, **more}, runtime)
    assert planned.total_bytes > 24 * n_features, "what is missed otherwise would not show"


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("depth", [5, 11])
def test_sums_of_long_features_are_planned(depth: int, exponent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are spread over features evenly, or as words are; in deep trees the sums of nodes take most."""
    runtime = TrackedRuntime(sm=90)  # with room for the nodes of deep levels
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    search_entries(monkeypatch)
    rng = np.random.default_rng(11)
    n_rows, n_features = 5_000, 1_000
    share = np.arange(1, n_features + 1) ** -exponent
    density = np.minimum(1, share * 10 / share.sum())
    X = scipy.sparse.csr_matrix((rng.random((n_rows, n_features)) < density) * rng.normal(size=(n_rows, n_features)))
    fit({"X": X, "y": make_data(n_rows)["y"]}, {**PARAMS, "max_depth": depth}, runtime)


def test_where_nobody_counted_all_entries_may_be_of_long_features(runtime: TrackedRuntime, tmp_path: Path) -> None:
    """As in data sets that were saved before they were counted."""
    data = data_of("wide sparse")
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1) as dataset:
        counted = plan(PARAMS, dataset)
        expected = train(PARAMS, dataset, 1).to_bytes()
        dataset.save(tmp_path / "rows")
    with QuantizedDataset.open(tmp_path / "rows") as saved:
        assert plan(PARAMS, saved) == counted
    counts: list[dict[str, Any]] = []
    edit(tmp_path / "rows", lambda manifest: counts.append(manifest["metadata"].pop("feature_sizes")))
    assert sum(counts[0]["n_entries"]) == data["X"].nnz
    with QuantizedDataset.open(tmp_path / "rows") as saved:
        most = plan(PARAMS, saved)
        assert most.by_entries
        assert most.histograms_bytes > counted.histograms_bytes
        assert train(PARAMS, saved, 1).to_bytes() == expected
