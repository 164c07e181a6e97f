"""GPUs that share the features of a fit grow the trees of one engine on the CPU, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster.test_device_rounds import assert_same_trees
from cluster.test_trees_together import SIZE
from kernels.emulation import EmulatedRuntime, JoinedByHost
from strategies.pairs import every_pair
from strategies.trees import make_data, quantized

from daskboost import QuantizedDataset, train
from daskboost.devices.budget import leaf_order
from daskboost.devices.budget.partition import columns_pay
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.rows.everywhere import Everywhere
from daskboost.devices.gpu.rows.leaf_order import put_in_leaf_order
from daskboost.devices.gpu.rows.row_state import ChunkRows
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import by_columns, device_grower
from daskboost.errors import DeviceError

N_FEATURES = 7
GROWTH: dict[str, dict[str, Any]] = {
    "levels": {"max_depth": 5}, "few leaves": {"max_depth": 6, "max_leaves": 11},
    "symmetric": {"max_depth": 4, "grow_policy": "symmetric", "score_function": "newton"},
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "regression": {}, "logistic": {"objective": "binary:logistic"},
    "classes": {"objective": "multi:softprob", "num_class": 5},
    "vectors": {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.7)},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {}, "monotone": {"monotone_constraints": (1, -1, 0, 1, 0, -1, 0)},
    "interactions": {"interaction_constraints": [[0, 1], [1, 2, 3], [5, 6]]},
    "drawn": {"colsample_bytree": 0.8, "colsample_bynode": 0.7, "ignored_features": (6,)},
    "penalties": {"gamma": 2.0, "reg_alpha": 3.0, "max_delta_step": 0.2},
}  # fmt: skip


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Emulated GPUs, and to which of them all rows were brought."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    found: list[int] = []
    bring = Everywhere.spread

    def noted(self: Everywhere, own: Any, axis: int = 0) -> Any:
        assert isinstance(self.joined, JoinedByHost)
        found.append(self.joined.rank)
        return bring(self, own, axis)

    monkeypatch.setattr(Everywhere, "spread", noted)
    return found


def trains(choice: dict[str, Any]) -> bool:
    """Vectors and quantiles have no monotone constraints."""
    return not (choice["rules"] == "monotone" and choice["loss"] in ("vectors", "quantiles"))


@pytest.mark.emulated
@every_pair(
    {"growth": GROWTH, "loss": LOSSES, "rules": RULES, "engines": [2, 3], "weighted": [False, True],
     "evaluated": [False, True], "max_bin": [64, 400], "encoding": ["dense", "csr"], "has_all": [False, True]},
    possible=trains,
)  # fmt: skip
def test_the_bytes_of_one_engine(growth: str, loss: str, rules: str, engines: int, weighted: bool, evaluated: bool,
                                 max_bin: int, encoding: str, has_all: bool, brought: list[int],
                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    have_room(monkeypatch, has_all=has_all and encoding == "dense")
    params = {**GROWTH[growth], **LOSSES[loss], **RULES[rules], "n_jobs": 1}
    data = make_data(
        np.random.default_rng(5), params.get("objective", "reg:squarederror"), 6_000, N_FEATURES, n_values=500,
        missing=0.2,
    )  # fmt: skip
    data = data if weighted else replace(data, weight=None)
    how: dict[str, Any] = {"max_bin": max_bin, "encoding": encoding}
    with quantized(data, **how) as plain, quantized(data, **how, engines=engines, partitions=5) as shared:
        expected = fitted({**params, "device": "cpu"}, plain, evaluated)
        found = fitted(
            {**params, "device": "cuda", "reduction": "nccl", "partition_by": "columns"}, shared, evaluated
        )
    assert_same_trees(found[0], expected[0])
    assert found[1] == expected[1]
    assert len(set(brought)) == engines


def have_room(monkeypatch: pytest.MonkeyPatch, *, has_all: bool) -> None:
    """Have GPUs look up all features, each by itself, or only those that it searches."""
    monkeypatch.setattr(by_columns, "has_room_for_all", lambda *_: has_all)


def fitted(params: dict[str, Any], dataset: QuantizedDataset, evaluated: bool) -> tuple[Any, Any]:
    """Return a model, and its metrics of the rows that it grows on."""
    results: Any = {}
    evals = [(dataset, "train")] if evaluated else []
    return train(params, dataset, 3, evals=evals, evals_result=results), results


@pytest.mark.emulated
@pytest.mark.parametrize(("partition_by", "has_all"), [("rows", False), ("columns", False), ("columns", True)])
def test_rows_that_would_be_put_in_order(
    partition_by: str, has_all: bool, brought: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows take the order of a first tree's leaves on every GPU that has them all."""
    have_room(monkeypatch, has_all=has_all)
    monkeypatch.setattr(leaf_order, "LEAST_BYTES", 1)
    put, ordered = put_in_leaf_order, []

    def noted(rows: ChunkRows, *rest: Any) -> None:
        ordered.append(rows.chunk.n_rows)
        put(rows, *rest)

    monkeypatch.setattr(device_grower, "put_in_leaf_order", noted)
    params = {"max_depth": 4, "n_jobs": 1, "objective": "binary:logistic"}
    data = make_data(np.random.default_rng(5), "binary:logistic", 6_000, N_FEATURES, n_values=500, missing=0.2)
    rounds = leaf_order.LEAST_ROUNDS
    with quantized(data) as plain, quantized(data, engines=2, partitions=5) as shared:
        expected = train({**params, "device": "cpu"}, plain, rounds)
        found = train({**params, "device": "cuda", "reduction": "nccl", "partition_by": partition_by}, shared, rounds)
    assert_same_trees(found, expected)
    assert (len(set(brought)) == 2) == (partition_by == "columns")
    assert ordered == [6_000, 6_000] if partition_by == "columns" else sum(ordered) == 6_000


@pytest.mark.emulated
@pytest.mark.parametrize(("params", "how", "reason"), [
    ({"subsample": 0.5}, {}, "trees leave rows out"),
    ({"grow_policy": "lossguide", "max_leaves": 5, "max_depth": 0}, {}, "trees grow best first"),
    ({"objective": "binary:logistic", "score_function": "l2"}, {}, "leaves take exact sums beside"),
])  # fmt: skip
def test_what_cannot_be_shared_is_refused(
    params: dict[str, Any], how: dict[str, Any], reason: str, brought: list[int]
) -> None:
    data = make_data(
        np.random.default_rng(5), params.get("objective", "reg:squarederror"), 5_000, 4, n_values=50, missing=0.1
    )
    given = {"max_depth": 3, **params, "device": "cuda", "n_jobs": 1}
    with quantized(data, engines=2, partitions=3, **how) as shared:
        with pytest.raises(DeviceError, match=f"partition_by='columns' was asked for, and {reason}: use"):
            train({**given, "partition_by": "columns"}, shared, 1)
        train({**given, "partition_by": "auto"}, shared, 1)
    assert brought == []


@pytest.mark.emulated
def test_no_room_for_all_rows(brought: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedRuntime, "free_bytes", 400 << 20)
    data = make_data(np.random.default_rng(5), "reg:squarederror", 5_000, 4, n_values=50, missing=0.1)
    given = {"max_depth": 3, "device": "cuda", "n_jobs": 1, "partition_by": "columns"}
    with quantized(data, engines=2, partitions=2) as shared, pytest.raises(
        DeviceError, match="a GPU has no room for a share"
    ):
        train(given, shared, 1)


@pytest.mark.emulated
def test_gpus_that_are_not_joined(brought: list[int]) -> None:
    """One of two engines has no rows, so that the host takes part."""
    data = make_data(np.random.default_rng(5), "reg:squarederror", 5_000, 4, n_values=50, missing=0.1)
    given = {"max_depth": 3, "device": "cuda", "n_jobs": 1, "partition_by": "columns"}
    with quantized(data, engines=2) as shared, pytest.raises(DeviceError, match="partition_by='columns' joins"):
        train(given, shared, 1)


@pytest.mark.parametrize(("n_rows", "n_features", "depth", "n_engines", "pays"), [
    (400_000, 2_000, 8, 2, True), (44_000_000, 28, 8, 2, False), (30_000_000, 100, 8, 2, False),
    (400_000, 2_000, 8, 1, False), (400_000, 2_000, 8, 8, True), (20_000, 5_000, 6, 2, True),
    (4_660_000, 200, 6, 2, False), (2_000_000, 5_000, 8, 2, True),
])  # fmt: skip
def test_wide_data_are_shared_by_columns(n_rows: int, n_features: int, depth: int, n_engines: int, pays: bool) -> None:
    size = replace(
        SIZE, n_slots=256 * n_features, depth=depth, n_engines=n_engines, all_rows=n_rows, max_leaves=0,
        grow_policy="depthwise",
    )  # fmt: skip
    assert columns_pay(size) == pays


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_columns_of_symbols(dtype: type) -> None:
    rng, n_rows = np.random.default_rng(1), 9
    slots = np.array([300 if dtype == np.uint16 else 100] * 70, np.int64)
    runtime = EmulatedRuntime()
    symbols = DeviceSymbols.empty(runtime, SymbolPlaces.of_slots(slots, np.dtype(dtype), 100_000), n_rows)
    values: Any = rng.integers(0, 99, (n_rows, 70)).astype(dtype)
    symbols.put(0, values)
    np.testing.assert_array_equal(symbols.columns(13, 66), values[:, 13:66])
    other: Any = rng.integers(0, 99, (n_rows, 40)).astype(dtype)
    symbols.put_columns(29, other)
    values[:, 29:69] = other
    np.testing.assert_array_equal(symbols.rows(0, n_rows), values)
