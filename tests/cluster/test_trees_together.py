"""Trees of a round that grow together on a GPU are those that grow one after the other, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.trees import Data, make_data, quantized

from daskboost import Booster, train
from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.budget.gpu_plans import HISTOGRAM_BYTES, ROWS_TOGETHER, tree_groups, trees_together
from daskboost.devices.budget.plan import FitSize
from daskboost.devices.budget.set_size import DenseSet
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import growth, sparse_columns

N_ROUNDS = 2
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 4, "learning_rate": 0.7},
    "few leaves": {"max_depth": 5, "max_leaves": 7, "min_child_weight": 20.0, "gamma": 0.5},
    "symmetric": {"max_depth": 3, "grow_policy": "symmetric", "min_child_weight": 0},
}
SAMPLES: dict[str, dict[str, Any]] = {
    "all": {}, "samples": {"subsample": 0.6, "colsample_bytree": 0.7, "colsample_bylevel": 0.6},
    "samples of nodes": {"colsample_bynode": 0.5, "interaction_constraints": [[0, 1, 2], [2, 3]]},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {"plain": {}, "by weight": {"score_function": "l2"}}
ALONE: dict[str, tuple[dict[str, Any], int]] = {
    "three stumps": ({"num_class": 3, "max_depth": 1}, 40),
    "three of a leaf": ({"num_class": 3, "max_depth": 3, "max_leaves": 1}, 40),
    "six symmetric": ({"num_class": 6, "max_depth": 3, "grow_policy": "symmetric", "colsample_bynode": 0.6}, 4_200),
    "four best first": ({"num_class": 4, "max_depth": 0, "max_leaves": 6, "grow_policy": "lossguide"}, 4_200),
    "four of their features": (
        {"num_class": 4, "max_depth": 0, "max_leaves": 6, "grow_policy": "lossguide", "colsample_bytree": 0.5}, 4_200,
    ),
}
"""And rows."""


def make_classes(n_classes: int, n_rows: int = 5_000, weighted: bool = False, missing: float = 0.2, n_values: int = 60,
                 n_features: int = 5) -> Data:  # fmt: skip
    data = make_data(np.random.default_rng(17), "reg:squarederror", n_rows, n_features, n_values=n_values,
                     missing=missing, weighted=weighted)  # fmt: skip
    limits = np.quantile(data.y, np.arange(1, n_classes) / n_classes)
    return replace(data, y=np.searchsorted(limits, data.y).astype(np.float32))


def trained(data: Data, params: dict[str, Any], device: str, **how: Any) -> Booster:
    with quantized(data, **how) as dataset:
        return train({"objective": "multi:softprob", **params, "n_jobs": 1, "device": device}, dataset, N_ROUNDS)


class Groups:
    """How many trees grew together, and a bound on it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.most = 1000

    def take(self, n_outputs: int, n_rows: int, tree_bytes: int) -> int:
        return min(self.most, trees_together(n_outputs, n_rows, tree_bytes))


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Groups:
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=7))
    found, grow = Groups(), growth.TreeGrower.grow

    def noted(self: growth.TreeGrower, *arguments: Any) -> None:
        found.sizes.append(len(self.tables.sizes))
        grow(self, *arguments)

    monkeypatch.setattr(growth.TreeGrower, "grow", noted)
    monkeypatch.setattr(plans, "trees_together", found.take)
    return found


def sizes_of(n_classes: int, n_trees: int) -> list[int]:
    """Of a round's groups."""
    return [n_trees] * (n_classes // n_trees) + [n_classes % n_trees] * (n_classes % n_trees > 0)


@every_pair({
    "n_classes": [4, 7], "n_trees": [pytest.param(None, id="all"), 1, 2], "growth": GROWTH, "samples": SAMPLES,
    "rules": RULES, "n_rows": [5_000, 400], "weighted": [False, True], "missing": [0.3, 0.0], "partitions": [1, 3],
})  # fmt: skip
def test_any_number_grow_alike(n_classes: int, n_trees: int | None, growth: str, samples: str, rules: str,
                               n_rows: int, weighted: bool, missing: float, partitions: int, groups: Groups
                               ) -> None:  # fmt: skip
    params = {"num_class": n_classes, **GROWTH[growth], **SAMPLES[samples], **RULES[rules]}
    data = make_classes(n_classes, n_rows, weighted, missing)
    groups.most = n_trees or n_classes
    found = trained(data, params, "cuda", partitions=partitions)
    assert found.to_bytes() == trained(data, params, "cpu").to_bytes()
    assert groups.sizes == N_ROUNDS * sizes_of(n_classes, groups.most)


@pytest.mark.parametrize("name", ALONE)
def test_all_of_a_round_grow_alike(name: str, groups: Groups) -> None:
    params, n_rows = ALONE[name]
    data = make_classes(params["num_class"], n_rows)
    assert trained(data, params, "cuda", partitions=3).to_bytes() == trained(data, params, "cpu").to_bytes()
    best_first = params.get("grow_policy") == "lossguide"
    assert groups.sizes == ([] if best_first else N_ROUNDS * [params["num_class"]])


@pytest.mark.parametrize("way", ["in shared memory", "by feature", "by row"])
def test_sparse_rows(way: str, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where entries lie by feature, which know one node of a row, histograms are built for a tree at a time."""
    groups.most = 3
    if way != "in shared memory":
        monkeypatch.setattr("daskboost.devices.gpu.rows.feature_groups.MOST_GROUP_BYTES", 256)
        monkeypatch.setattr(sparse_columns, "ENTRIES_PER_CELL", 0 if way == "by feature" else 10**6)
        monkeypatch.setattr(sparse_columns, "MOST_NODES", 4)
    params = {"num_class": 4, "max_depth": 4, "subsample": 0.8 if way == "by row" else 1.0}
    data = make_classes(4)
    seen, add = [], sparse_columns.SparseColumns.add_rows

    def noted(self: Any, tiles: Any, *others: Any) -> int:
        seen.append(len(tiles.nodes))
        return add(self, tiles, *others)

    monkeypatch.setattr(sparse_columns.SparseColumns, "add_rows", noted)
    found = trained(data, params, "cuda", encoding="csr")
    assert found.to_bytes() == trained(data, params, "cpu").to_bytes()
    assert groups.sizes == N_ROUNDS * [3, 1]
    assert set(seen) == ({1, 2, 4} if way == "by feature" else set()), "nodes of one tree"


@pytest.mark.parametrize("n_features", [4, 40])
def test_wide_symbols(n_features: int, groups: Groups) -> None:
    """Of two bytes, and more features than a group has columns."""
    groups.most = 2
    params, data = {"num_class": 3, "max_depth": 3}, make_classes(3, n_values=500, n_features=n_features, n_rows=4_200)
    max_bin = 400 if n_features == 4 else 16
    models = [trained(data, params, device, max_bin=max_bin).to_bytes() for device in ("cpu", "cuda")]
    assert models[0] == models[1]
    assert groups.sizes == N_ROUNDS * [2, 1]


@pytest.mark.parametrize("place", ["RAM", "disk"])
def test_evaluation_sets_and_early_stopping(place: str, groups: Groups, tmp_path: Path) -> None:
    groups.most = 2
    data, other = make_classes(5), make_classes(5, n_rows=1_500, missing=0.5)
    other = replace(other, y=np.roll(other.y, 1))  # what is learned does not hold there
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 3, "learning_rate": 1.0, "n_jobs": 1}
    found: list[Any] = []
    for device in ("cpu", "cuda"):
        results: dict[str, Any] = {}
        with quantized(data) as dataset, quantized(
            other, reference=dataset, limit=None if place == "RAM" else 0, partitions=2, directory=tmp_path
        ) as unseen:
            model = train(
                {**params, "device": device}, dataset, 6, evals=[(dataset, "train"), (unseen, "other")],
                evals_result=results, early_stopping_rounds=2,
            )  # fmt: skip
        found.append((model.to_bytes(), results))
    assert found[1] == found[0]
    assert len(found[0][1]["other"]["mlogloss"]) < 6
    assert groups.sizes[:3] == [2, 2, 1]


def test_a_loss_of_several_outputs_without_a_kernel(groups: Groups) -> None:
    def distances(label: Any, margin: Any) -> tuple[Any, Any]:
        return margin - label[:, None] * (1 + margin * 0).cumsum(axis=1), margin * 0 + np.float32(1)

    groups.most = 2
    data = make_classes(9)
    models = []
    for device in ("cpu", "cuda"):
        with quantized(data) as dataset:
            params = {"num_class": 3, "max_depth": 3, "n_jobs": 1, "device": device}
            models.append(train(params, dataset, N_ROUNDS, objective=distances).to_bytes())
    assert models[0] == models[1]
    assert groups.sizes == N_ROUNDS * [2, 1]


def test_the_rule() -> None:
    assert trees_together(10, 100_000, 1 << 20) == 10
    assert trees_together(1, 100, 1) == 1
    assert trees_together(80, 4_660_000, 1 << 20) == 4
    assert trees_together(80, 10**8, 1 << 20) == 1
    assert trees_together(80, 0, HISTOGRAM_BYTES + 1) == 1
    assert trees_together(80, 1000, HISTOGRAM_BYTES // 7) == 7
    assert trees_together(7, ROWS_TOGETHER // 5, 1) == 4, "and three, not five and two"
    for n_outputs in range(1, 30):
        for most in range(1, 30):
            n_trees = trees_together(n_outputs, ROWS_TOGETHER // most, 1)
            assert 1 <= n_trees <= min(n_outputs, most + 1)
            last = n_outputs - (tree_groups(n_outputs, n_trees) - 1) * n_trees
            assert 0 < last <= n_trees


SIZE = FitSize(
    train=DenseSet(100_000, 20, chunk_rows=100_000), evals=(), n_slots=20 * 65, most_slots=65, n_outputs=12,
    grow_policy="depthwise", depth=6, max_leaves=0, n_rounds=10, small_data=False, has_weight=False,
    keep_gradients=True, gpu_gradients="stored", growth="levels",
)  # fmt: skip


def test_plans_count_what_grows_together() -> None:
    whole = plans.gpu_plan(SIZE, None)
    alone = plans.gpu_plan(replace(SIZE, grow_policy="lossguide", growth="best first", max_leaves=64), None)
    assert (whole.trees_together, alone.trees_together) == (12, 1)
    assert whole.order_bytes == 12 * 16 * 100_000 == 12 * alone.order_bytes
    assert whole.histograms_bytes == 12 * 48 * 16 * SIZE.n_slots
    assert plans.gpu_plan(SIZE.with_host(), None).trees_together == 1


def test_fewer_grow_together_where_there_is_little_room() -> None:
    """Before anything else is left out."""
    found, free = [], plans.gpu_plan(SIZE, None).total_bytes
    while (planned := plans.gpu_plan(SIZE, free)).columns_bytes:
        assert planned.fits
        found.append(planned.trees_together)
        free = planned.total_bytes - 1
    assert found == [12, 6, 3, 2, 1]
    assert planned.trees_together == 1
