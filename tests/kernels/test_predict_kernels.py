"""Prediction on the GPU and its emulation against the plain walk of tests/reference, and against the CPU's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model.random_models import random_booster, random_rows
from reference import predict as reference

from daskboost.devices.gpu import forest as gpu_forest
from daskboost.devices.gpu.predict import DenseValues, DeviceForest, SparseValues
from daskboost.devices.gpu.quantize.bins import as_float32
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.dtypes import Float32
from daskboost.model.booster import Booster
from daskboost.model.predict_rows import GPU_HEAP_DEPTH, gpu_heap_depths, pack_forest
from daskboost.objectives.classification import SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import SquaredError
from daskboost.tree.table import TreeTable

NAN = float("nan")


def dense(runtime: Runtime, values: Any, missing: float = NAN) -> DenseValues:
    return DenseValues(runtime.xp.asarray(values), missing)


def sparse(runtime: Runtime, values: Float32, missing: float = NAN) -> SparseValues:
    present = ~np.isnan(values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    parts = (indptr, np.nonzero(present)[1].astype(np.int32), values[present])
    on_device = [runtime.xp.asarray(part) for part in parts]
    return SparseValues(on_device[0], on_device[1], on_device[2], values.shape[1], missing)


def device_forest(runtime: Runtime, trees: Sequence[TreeTable], places: Sequence[int], leaves: bool) -> DeviceForest:
    return DeviceForest(runtime, pack_forest(trees, places, gpu_heap_depths), places, leaves=leaves)


def infinite_features(forest: DeviceForest, rows: Any, out: Any) -> list[int]:
    """Run a forest; return the features that it says have infinite values."""
    marks = forest.runtime.xp.zeros(rows.n_features, np.uint8)
    forest.run(rows, out, marks)
    found: list[int] = np.flatnonzero(to_host(marks)).tolist()
    return found


def is_ranked(forest: DeviceForest) -> bool:
    """Return whether dense rows are walked by their ranks."""
    return forest._ranked is not None


def assert_predicts(
    runtime: Runtime, booster: Booster, values: Float32, rows: Any, ranked: bool, rng: np.random.Generator
) -> None:
    """Margins and leaves are the reference's, to the byte."""
    order = np.argsort(booster.tree_outputs, kind="stable").tolist()
    trees = [booster.trees[tree] for tree in order]
    outputs = [booster.tree_outputs[tree] for tree in order]
    start = rng.normal(size=(len(values), booster.n_outputs)).astype(np.float32)
    margins = runtime.xp.asarray(start.copy())
    forest = device_forest(runtime, trees, outputs, False)
    assert is_ranked(forest) == ranked
    assert infinite_features(forest, rows, margins) == []
    expected = reference.margins(booster.trees, booster.tree_outputs, values, start)
    assert to_host(margins).tobytes() == expected.tobytes()
    leaves = runtime.xp.full((len(values), len(trees)), -7, np.int32)
    assert infinite_features(device_forest(runtime, booster.trees, range(len(trees)), True), rows, leaves) == []
    np.testing.assert_array_equal(to_host(leaves), reference.leaves(booster.trees, values))


def with_thresholds(booster: Booster, draw: Any) -> Booster:
    """The model with other thresholds: `draw(n)` of them."""
    trees = tuple(
        replace(tree, threshold=np.where(tree.is_leaf, 0, draw(tree.n_nodes)).astype(np.float32))
        for tree in booster.trees
    )
    return replace(booster, trees=trees)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("chain", [False, True], ids=["bushy", "chain"])
@pytest.mark.parametrize("n_splits", [0, 1, 12, 300])
def test_equals_the_plain_walk(
    runtime: Runtime, n_splits: int, chain: bool, kind: str, rng: np.random.Generator
) -> None:
    """Trees deeper than any heap among them; rows that fill no tile, features that no split uses."""
    booster = random_booster(rng, SoftProb(3), n_splits=n_splits, chain=chain, n_iterations=2)
    assert n_splits < 300 or max(tree.depth.max() for tree in booster.trees) > GPU_HEAP_DEPTH
    values = random_rows(rng, 131, 37)
    rows = sparse(runtime, values) if kind == "sparse" else dense(runtime, values)
    assert_predicts(runtime, booster, values, rows, True, rng)


@pytest.mark.parametrize("n_features", [1, 5, 33, 48])
def test_groups_of_features_and_of_trees(runtime: Runtime, n_features: int, rng: np.random.Generator) -> None:
    """A block of the emulation takes 2,048 rows: two blocks."""
    booster = random_booster(rng, SquaredError(), n_features=n_features, n_splits=40, n_iterations=25)
    values = random_rows(rng, 2_100 if n_features == 5 else 130, n_features)
    assert_predicts(runtime, booster, values, dense(runtime, values), True, rng)


@pytest.mark.parametrize(("n_splits", "rank_bytes"), [(255, 1), (256, 2), (9_000, 2), (32_767, 2), (32_768, None)])
def test_thresholds_of_one_feature(
    runtime: Runtime, n_splits: int, rank_bytes: int | None, rng: np.random.Generator
) -> None:
    """As many as ranks of a byte and of two can tell apart, and more; more than are staged in shared memory."""
    booster = random_booster(rng, SquaredError(), n_features=1, n_splits=n_splits, n_iterations=1)
    booster = with_thresholds(booster, lambda n: rng.permutation(n) / 7 - n / 14)
    (tree,) = booster.trees
    values = np.concatenate([rng.choice(tree.threshold[~tree.is_leaf], 60), [NAN, -1e30, 1e30, 0, -0.0]])
    values = values.astype(np.float32)[:, None]
    packed = pack_forest(booster.trees, [0], gpu_heap_depths)
    thresholds = gpu_forest.Thresholds.of(packed)
    assert thresholds.most == n_splits
    assert gpu_forest.rank_bytes_of(packed, thresholds) == rank_bytes
    assert_predicts(runtime, booster, values, dense(runtime, values), rank_bytes is not None, rng)


@pytest.mark.parametrize("n_features", [60, 96, 97, 200, 700])
def test_wide_rows(runtime: Runtime, n_features: int, rng: np.random.Generator) -> None:
    """Blocks of fewer warps, and rows of which four warps' have no room in shared memory."""
    booster = random_booster(rng, SquaredError(), n_features=n_features, n_splits=2 * n_features, n_iterations=2)
    booster = with_thresholds(booster, rng.normal)
    trees = [replace(tree, feature=np.where(tree.is_leaf, 0, rng.permutation(tree.n_nodes) % n_features).astype("i4"),
                     default_left=np.zeros(tree.n_nodes, bool)) for tree in booster.trees]  # fmt: skip
    values = random_rows(rng, 20, n_features)
    ranked = (16 << 10) + 4 * 128 * n_features <= runtime.shared_bytes
    assert runtime.sm > 75 or ranked == (n_features <= 96)
    assert_predicts(runtime, replace(booster, trees=tuple(trees)), values, dense(runtime, values), ranked, rng)


LAYOUTS: dict[str, Any] = {
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "int8": lambda x: np.nan_to_num(x).astype(np.int8),
    "bool": lambda x: x > 0,
    "column-major": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[1::2, 2::3],
    "backwards": lambda x: x[::-1, ::-1],
    "one row": lambda x: x[:1],
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_features", [5, 400], ids=["ranks", "keys"])
def test_layouts_and_types(runtime: Runtime, n_features: int, layout: str, rng: np.random.Generator) -> None:
    booster = random_booster(rng, SquaredError(), n_features=n_features, n_splits=n_features)
    given = LAYOUTS[layout](random_rows(rng, 40, n_features))
    rows = DenseValues(runtime.xp.asarray(given), NAN)
    if layout in ("strided", "backwards"):  # a copy to the device is contiguous
        base = runtime.xp.asarray(np.repeat(np.repeat(given, 2, axis=0), 3, axis=1)[::-1, ::-1].copy())
        rows = DenseValues(base[::-2, ::-3], NAN)
        assert rows.values.strides[1] < 0
    ranked = is_ranked(DeviceForest(runtime, booster.forest, [0] * 6, leaves=False))
    assert_predicts(runtime, booster, given.astype(np.float32), rows, ranked, rng)


@pytest.mark.parametrize("n_features", [2, 400], ids=["ranks", "keys"])
@pytest.mark.parametrize("missing", [NAN, -0.0, 1e-45])
def test_extreme_values_and_thresholds(
    runtime: Runtime, missing: float, n_features: int, rng: np.random.Generator
) -> None:
    limit, tiny = np.nextafter(np.finfo(np.float32).max, np.float32(0)), np.float32(1e-45)
    extremes = np.array([-limit, -1, -tiny, -0.0, 0.0, tiny, 1, limit, np.nan], np.float32)
    values = np.stack(np.meshgrid(extremes, extremes), -1).reshape(-1, 2)
    values = np.tile(values, (1, n_features // 2))
    booster = random_booster(rng, SquaredError(), n_features=n_features, n_iterations=30, n_splits=8 * n_features)
    thresholds = np.append(extremes[:8], np.finfo(np.float32).max)  # the last tells missing from present
    booster = with_thresholds(booster, lambda n: rng.choice(thresholds, n))
    seen = np.where(values == np.float32(missing), np.float32(NAN), values)
    ranked = is_ranked(DeviceForest(runtime, booster.forest, [0] * 30, leaves=False))
    assert_predicts(runtime, booster, seen, dense(runtime, values, missing), ranked, rng)


@pytest.mark.parametrize("kind", ["ranks", "keys", "column-major keys", "sparse", "float64"])
def test_infinite_values_are_found(runtime: Runtime, kind: str, rng: np.random.Generator) -> None:
    """In features that no split uses, too; not where they mean missing."""
    n_features = 400 if "keys" in kind else 40
    booster = random_booster(rng, SquaredError(), n_features=n_features - 1, n_splits=n_features)
    values = random_rows(rng, 150, n_features)
    limit = np.finfo(np.float32).max
    values[3, 4], values[149, 2], values[7, n_features - 1] = np.inf, -np.inf, -limit
    values[8, 0] = 7e37
    given: Any = np.asfortranarray(values) if kind == "column-major keys" else values
    given = given.astype(np.float64) * (1 + 1e-9) if kind == "float64" else given
    forest = device_forest(runtime, booster.trees, [0] * 6, False)
    for missing, expected in ((NAN, [2, 4, n_features - 1]), (np.inf, [2, n_features - 1])):
        rows = sparse(runtime, given, missing) if kind == "sparse" else dense(runtime, given, missing)
        assert infinite_features(forest, rows, runtime.xp.zeros((150, 1), np.float32)) == expected


@pytest.mark.parametrize("layout", ["C", "F", "vector"])
def test_doubles_are_rounded_as_on_the_host(runtime: Runtime, layout: Any, rng: np.random.Generator) -> None:
    """Subnormal results and ties included; beyond float32 is infinite."""
    values = rng.normal(size=(70, 30)) * 10.0 ** rng.integers(-46, 40, (70, 30))
    values[:4, 0] = 1 + 2.0**-24, 1 + 3 * 2.0**-24, 1.5 * 2.0**-149, np.nan
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32)
    given = runtime.xp.asarray(values if layout != "F" else np.asfortranarray(values))
    if layout == "vector":
        given, expected = given[:, 0], expected[:, 0]
    assert to_host(as_float32(runtime, given)).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_leave_no_trace(
    runtime: Runtime, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskboost.devices.gpu.predict.RANK_BYTES", 10 * 300)
    monkeypatch.setattr("daskboost.devices.gpu.predict.CONVERTED_BYTES", 20 * 200)
    booster, values = random_booster(rng, SquaredError(), n_splits=30), random_rows(rng, 700)
    assert_predicts(runtime, booster, values, dense(runtime, values.astype(dtype)), True, rng)


@pytest.mark.parametrize("objective", [SquaredError(), SoftProb(40)], ids=["one output", "many outputs"])
def test_no_trees(runtime: Runtime, objective: Objective, rng: np.random.Generator) -> None:
    booster = random_booster(rng, objective, n_iterations=0)
    values = random_rows(rng, 10)
    for rows in (dense(runtime, values), sparse(runtime, values)):
        assert_predicts(runtime, booster, values, rows, True, rng)


def test_heaps_of_deep_trees_stay_small(rng: np.random.Generator) -> None:
    """Complete trees are heaps up to ten levels; a chain's is cut where most exits would be of the same leaves."""
    depths = np.array([3, 8, 9, 10, 11, 40, 40], np.int32)
    leaves = np.array([8, 256, 512, 1024, 2048, 41, 400], np.int32)
    assert gpu_heap_depths(depths, leaves).tolist() == [3, 8, 9, 10, 10, 8, 10]


def test_groups_have_room_for_the_largest_heap() -> None:
    assert 2 << GPU_HEAP_DEPTH <= gpu_forest.GROUP_WORDS
