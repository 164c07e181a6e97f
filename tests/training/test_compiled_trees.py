"""Trees that grow in compiled calls are those of the coordinator's loop, for all they are made of."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from strategies.alive import come_to, settled
from strategies.trees import Data, quantized

from daskboost import QuantizedDataset, train
from daskboost.devices.budget.cpu_memory import trees_at_once
from daskboost.devices.cpu.by_reference import Record, Reference, kind_of
from daskboost.devices.cpu.grow import find_parts
from daskboost.devices.cpu.growing import BINS, ROUND
from daskboost.devices.cpu.growing import ROWS as ROWS_OF_STATE
from daskboost.engine import compiled_grower, tree_room, whole_rounds
from daskboost.engine.compiled_grower import CompiledGrower
from daskboost.engine.tree_room import TreeRoom
from daskboost.errors import DataError
from daskboost.fit import coordinator
from daskboost.local.links import LocalPeers
from daskboost.training.plan_fit import plan

Params = dict[str, Any]


def _rows(n: int, n_features: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_features)).astype(np.float32)
    x[:, 1] = np.round(x[:, 1])
    x[rng.random((n, n_features)) < 0.05] = np.nan
    y = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1]) * np.nan_to_num(x[:, 2]) + rng.normal(size=n)
    return x, y.astype(np.float32)


def _label(y: Any, params: Params) -> Any:
    """Return numbers, or as many classes of them as parameters say."""
    edges = np.linspace(-1, 1, params["num_class"] - 1) if "num_class" in params else None
    return y if edges is None else np.digitize(y, edges).astype(np.float32)


def noting(grown: list[Any]) -> Any:
    """Return what makes growers and notes them."""
    def make(*given: Any) -> CompiledGrower:
        grown.append(given)
        return CompiledGrower(*given)

    return make


def _both(data: QuantizedDataset, params: Params, monkeypatch: pytest.MonkeyPatch, n_rounds: int = 3, **more: Any
          ) -> tuple[Any, Any]:  # fmt: skip
    """Return the model of a fit whose trees grow in compiled calls, and of one whose trees grow with the host."""
    grown: list[Any] = []
    monkeypatch.setattr(whole_rounds, "CompiledGrower", noting(grown))
    ours = train({"device": "cpu", **params}, data, num_boost_round=n_rounds, **more)
    assert len(grown) == 1
    monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    theirs = train({"device": "cpu", **params}, data, num_boost_round=n_rounds, **more)
    assert len(grown) == 1
    monkeypatch.undo()
    return ours, theirs


CASES: dict[str, Params] = {
    "plain": {},
    "deep": {"max_depth": 14, "min_child_weight": 0},
    "stump": {"max_depth": 1},
    "few leaves": {"max_leaves": 11, "max_depth": 8},
    "one leaf": {"max_leaves": 1},
    "best first": {"grow_policy": "lossguide", "max_leaves": 40, "max_depth": 0},
    "best first, flat": {"grow_policy": "lossguide", "max_depth": 3},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 5},
    "samples": {"subsample": 0.6, "colsample_bytree": 0.7, "colsample_bylevel": 0.7},
    "symmetric, drawn features": {"grow_policy": "symmetric", "colsample_bynode": 0.6},
    "drawn by node": {"colsample_bynode": 0.5, "colsample_bylevel": 0.7},
    "drawn by node, best first": {
        "colsample_bynode": 0.5, "colsample_bylevel": 0.8, "grow_policy": "lossguide", "max_leaves": 20,
    },
    "interactions": {"interaction_constraints": [[0, 1], [1, 2, 3]], "max_depth": 8},
    "interactions, symmetric": {"interaction_constraints": [[0, 1], [1, 2, 3]], "grow_policy": "symmetric"},
    "interactions, best first": {
        "interaction_constraints": [[0, 1], [1, 2, 3]], "grow_policy": "lossguide", "colsample_bynode": 0.7,
    },
    "monotone": {"monotone_constraints": [1, -1, 0, 1]},
    "monotone, symmetric": {"monotone_constraints": [1, -1, 0, 1], "grow_policy": "symmetric"},
    "regular": {"reg_alpha": 1.0, "reg_lambda": 3.0, "gamma": 0.5, "max_delta_step": 0.3},
    "no feature": {"min_child_weight": 1e9},
    "by weights": {"score_function": "l2", "objective": "reg:pseudohubererror", "reg_lambda": 0, "min_child_weight": 5},
    "by weights, symmetric": {"grow_policy": "symmetric", "objective": "reg:pseudohubererror", "subsample": 0.6},
    "by weights, best first": {
        "grow_policy": "lossguide", "max_leaves": 20, "score_function": "l2", "objective": "reg:pseudohubererror",
        "max_delta_step": 0.3, "reg_alpha": 0.2,
    },
    "by weights, drawn by node": {
        "colsample_bynode": 0.5, "score_function": "l2", "objective": "reg:pseudohubererror", "max_depth": 3,
    },
    "by weights, one leaf": {"max_leaves": 1, "score_function": "l2", "objective": "reg:pseudohubererror"},
}  # fmt: skip
VECTORS: Params = {"objective": "multi:softprob", "num_class": 4, "multi_strategy": "multi_output_tree"}
OF_ONE_ENGINE: dict[str, Params] = {
    "vectors": VECTORS,
    "vectors, samples": {**VECTORS, "subsample": 0.6, "colsample_bytree": 0.7, "colsample_bylevel": 0.7},
    "vectors, best first": {**VECTORS, "grow_policy": "lossguide", "max_leaves": 20, "subsample": 0.8},
    "vectors, few leaves": {**VECTORS, "max_leaves": 11, "max_depth": 8, "reg_alpha": 1.0, "max_delta_step": 0.3},
    "vectors, interactions": {**VECTORS, "interaction_constraints": [[0, 1], [1, 2, 3]], "colsample_bynode": 0.7},
    "vectors, one leaf": {**VECTORS, "max_leaves": 1},
    "vectors, no feature": {**VECTORS, "min_child_weight": 1e9},
    "medians": {"objective": "reg:absoluteerror", "subsample": 0.6},
    "medians, symmetric": {"objective": "reg:absoluteerror", "grow_policy": "symmetric", "min_child_weight": 0},
    "medians, best first": {"objective": "reg:absoluteerror", "grow_policy": "lossguide", "max_leaves": 20},
    "medians, one leaf": {"objective": "reg:absoluteerror", "max_leaves": 1},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.05, 0.5, 0.9), "colsample_bynode": 0.6},
    "linear leaves": {"linear_leaves": True, "subsample": 0.7},
    "by weights, linear leaves": {
        "score_function": "l2", "objective": "reg:pseudohubererror", "linear_leaves": True, "subsample": 0.7,
    },
}  # fmt: skip


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
@pytest.mark.parametrize("case", [*CASES, *OF_ONE_ENGINE])
def test_trees_are_those_of_the_host(case: str, n_jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params: Params = {"n_jobs": n_jobs, **(CASES | OF_ONE_ENGINE)[case]}
    x, y = _rows(9_000, 6)
    with QuantizedDataset.from_dask(x, _label(y, params)) as data:
        ours, theirs = _both(data, params, monkeypatch)
    assert ours.to_bytes() == theirs.to_bytes()


@pytest.mark.parametrize("case", [
    "plain", "samples", "best first", "symmetric", "by weights, symmetric", "medians", "vectors, samples",
    "vectors, best first",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["small", "weighted", "sparse", "wide bins", "many rows", "many chunks", "classes"])
def test_trees_are_those_of_the_host_whatever_the_rows(
    kind: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = {"many rows": 150_000, "small": 700, "weighted": 900}.get(kind, 9_000)
    x, y = _rows(n, 4)
    params: Params = {"n_jobs": 3, **(CASES | OF_ONE_ENGINE)[case]}
    more: Params = {}
    if kind == "weighted":
        more["weight"] = np.random.default_rng(1).integers(0, 4, n).astype(np.float32)
    if kind == "wide bins":
        more["max_bin"] = 1000
    if kind == "many chunks":
        more["chunk_rows"] = 1_024
        params.setdefault("objective", "reg:pseudohubererror")
        monkeypatch.setattr("daskboost.devices.cpu.device.CpuDevice.group_rows", 2_000)
    if kind == "classes":
        params |= {"objective": "multi:softprob", "num_class": 3}
    y = _label(y, params)
    if kind == "sparse":
        x = scipy.sparse.csr_matrix(np.where(np.abs(np.nan_to_num(x)) < 1, 0, np.nan_to_num(x)))
    with QuantizedDataset.from_dask(x, y, **more) as data:
        ours, theirs = _both(data, params, monkeypatch, n_rounds=2)
    assert ours.to_bytes() == theirs.to_bytes()


@pytest.mark.parametrize(("case", "n_features"), [("plain", 4), ("vectors", 1)])
def test_trees_are_those_of_the_host_where_tasks_have_many_rows_for_many_bins(
    case: str, n_features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of fewer than 2**16 rows is not worth a histogram of so many bins, and its sums may outgrow words."""
    params: Params = {"n_jobs": 2, "max_depth": 3, **(CASES | OF_ONE_ENGINE)[case]}
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200_000, n_features)).astype(np.float32)
    y = (x[:, 0] + 3 * (x[:, -1] > 0) + rng.normal(size=len(x))).astype(np.float32)
    with QuantizedDataset.from_dask(x, _label(y, params), max_bin=65_535) as data:
        ours, theirs = _both(data, params, monkeypatch, n_rounds=2)
    assert ours.to_bytes() == theirs.to_bytes()


@pytest.mark.parametrize(("case", "n_jobs", "least_room"), [
    *(("plain", n_jobs, False) for n_jobs in (1, 2, 19)), *(("drawn by node", n_jobs, False) for n_jobs in (1, 5)),
    *((case, 2, True) for case in ("plain", "samples", "best first", "symmetric", "drawn by node", "interactions")),
])  # fmt: skip
def test_trees_side_by_side_are_those_of_the_host(
    case: str, n_jobs: int, least_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each is begun again for want of room, at another time than its neighbours."""
    x, y = _rows(5_000, 6)
    y = np.digitize(y, np.linspace(-2, 2, 8)).astype(np.float32)
    grown, processes, before = list[int](), list[int](), settled()

    def noted(*given: int) -> int:
        grown.append(trees_at_once(*given))
        return grown[-1]

    def noted_parts(state: Any, n_processes: int) -> None:
        processes.append(n_processes)
        find_parts(state, n_processes)

    with QuantizedDataset.from_dask(x, y) as data, monkeypatch.context() as patches:
        patches.setattr(compiled_grower, "trees_at_once", noted)
        patches.setattr(compiled_grower, "find_parts", noted_parts)
        if least_room:
            patches.setattr(tree_room, "FIRST_NODES", 3)
            patches.setattr(tree_room, "FIRST_PLACES", 1)
        params = {"objective": "multi:softprob", "num_class": 9, "n_jobs": n_jobs, **CASES[case]}
        ours, theirs = _both(data, params, patches, n_rounds=2)
    assert grown == [min(9, 4 * n_jobs)]
    assert processes == [n_jobs]  # which compile: all threads, and not those of one tree
    assert ours.to_bytes() == theirs.to_bytes()
    assert come_to(before)


ROWS: dict[str, Params] = {
    "plain": {}, "small": {"n": 700}, "many rows": {"n": 150_000}, "sparse": {"encoding": "csr"},
    "many chunks": {"chunk_rows": 1_000}, "wide bins": {"max_bin": 1000},
    "more engines than partitions": {"engines": 7}, "more engines than features": {"engines": 5, "n_features": 3},
}  # fmt: skip


BY_MESSAGES = [("plain", "best first"), ("plain", "symmetric"), ("many rows", "samples"), ("sparse", "best first"),
               ("more engines than partitions", "samples"), ("plain", "no feature"), ("plain", "by weights, one leaf"),
               ("many chunks", "by weights, symmetric"), ("small", "by weights, best first")]  # fmt: skip
"""Fits whose engines are also tried without memory in common."""


@pytest.mark.parametrize(("kind", "case", "sees"), [
    *(("plain", case, True) for case in CASES),
    *((kind, case, True) for kind in ROWS if kind != "plain" for case in ("samples", "best first")),
    ("many rows", "symmetric", True), ("more engines than partitions", "symmetric", True), ("small", "monotone", True),
    ("many rows", "by weights, symmetric", True), ("more engines than partitions", "by weights", True),
    *((kind, case, False) for kind, case in BY_MESSAGES),
])  # fmt: skip
def test_engines_in_step_grow_the_trees_of_one(
    kind: str, case: str, sees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sees:
        monkeypatch.setattr(LocalPeers, "common_memory", lambda self, n_bytes: None)
    how: Params = {"engines": 3, "partitions": 5, **ROWS[kind]}
    x, y = _rows(how.pop("n", 9_000), how.pop("n_features", 4))
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(np.float32)
    data, given = Data(x, y, weight), {"device": "cpu", "n_jobs": 2, **CASES[case]}
    monkeypatch.setattr("daskboost.devices.cpu.device.CpuDevice.group_rows", 2_000 if kind == "many chunks" else 2**18)
    grown: list[Any] = []
    with quantized(data, **how) as shared:
        theirs = train({**given, "reduction": "coordinator"}, shared, 3)
        monkeypatch.setattr(whole_rounds, "CompiledGrower", noting(grown))
        ours = train(given, shared, 3)
    assert len(grown) == how["engines"]
    assert ours.to_bytes() == theirs.to_bytes()


@pytest.mark.parametrize("score", ["newton", "l2"])
@pytest.mark.parametrize("sees", [True, False], ids=["common memory", "messages"])
def test_trees_in_step_that_stay_leaves_are_those_of_one(
    sees: bool, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines meet once for each, so that one may be a tree ahead of another."""
    if not sees:
        monkeypatch.setattr(LocalPeers, "common_memory", lambda self, n_bytes: None)
    x, _ = _rows(3_000, 4)
    y = np.random.default_rng(3).integers(0, 4, len(x)).astype(np.float32)
    params = {
        "device": "cpu", "objective": "multi:softprob", "num_class": 4, "min_child_weight": 1e9,
        "score_function": score,
    }  # fmt: skip
    with quantized(Data(x, y, None), engines=3, partitions=3) as data, quantized(Data(x, y, None), engines=1) as alone:
        found, wanted = (train(params, each, num_boost_round=20) for each in (data, alone))
    assert found.to_bytes() == wanted.to_bytes()
    assert len(found.trees) == 80 and all(len(tree.value) == 1 for tree in found.trees)


def test_engines_in_step_take_what_their_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are as many as all engines' rows make, each of which has few."""
    x, y = _rows(3_000, 6)
    y = np.random.default_rng(2).normal(size=len(y)).astype(np.float32)  # which no tree explains
    held: list[int] = []

    class Measured(TreeRoom):
        def _make_room(self, status: int) -> None:
            super()._make_room(status)
            arrays = (self._pool.words, self._pool.pairs, self._meeting.room, self._step.partials)
            held.append(sum(array.nbytes for array in arrays))

    monkeypatch.setattr(compiled_grower, "TreeRoom", Measured)
    params = {"device": "cpu", "max_depth": 14, "min_child_weight": 0, "n_jobs": 1}
    with quantized(Data(x, y, None), engines=30, partitions=30, max_bin=256) as data:
        planned = plan(params, data)
        train(params, data, num_boost_round=2)
    assert 0 < max(held) <= planned.histograms_bytes + planned.scratch_bytes


def test_trees_side_by_side_take_what_their_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(20_000, 6)
    y = np.random.default_rng(2).integers(0, 5, len(y)).astype(np.float32)
    made: list[TreeRoom] = []

    class Noted(TreeRoom):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(compiled_grower, "TreeRoom", Noted)
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 9, "min_child_weight": 0, "n_jobs": 2}
    with QuantizedDataset.from_dask(x, y) as data:
        planned = plan({**params, "device": "cpu"}, data)
        train({**params, "device": "cpu"}, data, num_boost_round=2)
    assert len(made) == 5
    ordered = [array for room in made for order in (room._chunks.rows, room._chunks.spare) for array in order]
    assert sum(array.nbytes for array in ordered) == planned.order_bytes
    histograms = [array for room in made for array in (room._pool.words, room._pool.pairs, room._step.partials)]
    assert sum(array.nbytes for array in histograms) <= planned.histograms_bytes + planned.scratch_bytes


@pytest.mark.parametrize(("wanted", "given"), [
    (1, (10, 16, 2, 1_000, 1_000)), (10, (10, 16, 1, 1_000, 1_000)), (8, (10, 2, 1, 1_000, 1_000)),
    (5, (10, 16, 1, 1_000_000, 20_000)), (1, (10, 16, 1, 6_000_000, 1_000)), (1, (10, 16, 1, 1_000, 2**23)),
    (2, (10, 16, 1, 0, 2**22 - 1)), (1, (1, 16, 1, 0, 0)),
])  # fmt: skip
def test_trees_are_as_many_as_threads_and_memory_allow(wanted: int, given: tuple[int, ...]) -> None:
    """Trees of a round, threads, engines, rows, slots of a tree's histograms."""
    assert trees_at_once(*given) == wanted


@pytest.mark.parametrize("sees", [True, False], ids=["common memory", "messages"])
def test_engines_in_step_begin_a_tree_again_together(sees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sees:
        monkeypatch.setattr(LocalPeers, "common_memory", lambda self, n_bytes: None)
    x, y = _rows(6_000, 5)
    with quantized(Data(x, y, None), engines=2, partitions=5) as data:
        wanted = train({"device": "cpu", "max_depth": 9}, data, num_boost_round=2)
        monkeypatch.setattr(tree_room, "FIRST_NODES", 3)
        monkeypatch.setattr(tree_room, "FIRST_PLACES", 1)
        monkeypatch.setattr(tree_room, "FIRST_TOLD", 1)
        found = train({"device": "cpu", "max_depth": 9}, data, num_boost_round=2)
    assert found.to_bytes() == wanted.to_bytes()


@pytest.mark.parametrize("sees", [True, False], ids=["common memory", "messages"])
@pytest.mark.parametrize("culprit", [0, 1])
def test_an_engine_in_step_that_fails_ends_the_fit_of_all(
    culprit: int, sees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sees:
        monkeypatch.setattr(LocalPeers, "common_memory", lambda self, n_bytes: None)

    class Failing(CompiledGrower):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._rank = given[2].rank

        def grow(self, rows: Any, learning_rate: float) -> Any:
            if rows.iteration == 9 and self._rank == culprit:
                raise MemoryError("the test says so")
            return super().grow(rows, learning_rate)

    monkeypatch.setattr(whole_rounds, "CompiledGrower", Failing)
    x, y = _rows(3_000, 5)
    seen: Params = {}
    with quantized(Data(x, y, None), engines=2, partitions=5) as data, pytest.raises(MemoryError, match="says so"):
        train({"device": "cpu"}, data, num_boost_round=40, evals=[(data, "own")], evals_result=seen)
    assert threading.active_count() < 20


def test_metrics_of_engines_in_step_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(4_000, 5)
    data = Data(x, (y > 0).astype(np.float32), None)
    params = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "device": "cpu", "learning_rate": 1.0}
    histories: list[Params] = [{}, {}]
    found = []
    for engines, history in zip((1, 3), histories, strict=True):
        with quantized(data, engines=engines, partitions=5) as train_set, quantized(
            data, engines=engines, partitions=7, reference=train_set
        ) as held:
            found.append(train(
                params, train_set, num_boost_round=30, evals=[(train_set, "train"), (held, "held")],
                early_stopping_rounds=3, evals_result=history,
            ))  # fmt: skip
    assert found[0].to_bytes() == found[1].to_bytes()
    assert histories[0] == histories[1]


def test_evaluation_sets_and_early_stopping_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(4_000, 5)
    label = (y > 0).astype(np.float32)
    params = {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "n_jobs": 2, "learning_rate": 1.0}
    histories: list[Params] = [{}, {}]
    with QuantizedDataset.from_dask(x[:3_000], label[:3_000]) as data, QuantizedDataset.from_dask(
        x[3_000:], label[3_000:], reference=data
    ) as held:
        found = []
        for history in histories:
            found.append(train(
                {"device": "cpu", **params}, data, num_boost_round=60, evals=[(data, "train"), (held, "held")],
                early_stopping_rounds=3, evals_result=history,
            ))  # fmt: skip
            monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    assert found[0].to_bytes() == found[1].to_bytes()
    assert histories[0] == histories[1]
    assert found[0].best_iteration == found[1].best_iteration
    assert len(histories[0]["held"]["auc"]) < 60


def test_trees_that_need_more_room_are_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _rows(6_000, 5)
    with QuantizedDataset.from_dask(x, y) as data:
        wanted = train({"device": "cpu", "max_depth": 9}, data, num_boost_round=2)
        monkeypatch.setattr(tree_room, "FIRST_NODES", 3)
        monkeypatch.setattr(tree_room, "FIRST_PLACES", 1)
        found = train({"device": "cpu", "max_depth": 9}, data, num_boost_round=2)
    assert found.to_bytes() == wanted.to_bytes()

class Calls:
    """Counts the compiled calls of fits, and the rounds that each has grown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rounds: list[int] = []
        noted = self._rounds

        class Counted(CompiledGrower):
            def _grow_rounds(self, iteration: int) -> None:
                super()._grow_rounds(iteration)
                noted.append(int(self._rounds.counts[ROUND]))

        monkeypatch.setattr(whole_rounds, "CompiledGrower", Counted)

    def take(self) -> list[int]:
        """Return the rounds of each call since the last time."""
        found, self._rounds[:] = self._rounds[:], []
        return found


LITTLE_ROOM = {"tree_log.LEAST_NODES": 150, "tree_room.FIRST_NODES": 3, "compiled_grower.ALLOWED_BYTES": 64}


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("room", ["much room", "little room"])
@pytest.mark.parametrize("case", [
    "plain", "samples", "best first", "interactions", "drawn by node", "classes", "evaluated", "vectors, samples",
])  # fmt: skip
def test_rounds_of_a_call_are_those_of_many_calls(
    case: str, room: str, engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little room, calls end early for want of a place for their trees, or of memory for drawn features."""
    if case in OF_ONE_ENGINE and engines > 1:
        pytest.skip("several engines grow them with the host")
    x, y = _rows(5_000, 4)
    params: Params = {"device": "cpu", "n_jobs": 2, "max_depth": 4, **(CASES | OF_ONE_ENGINE).get(case, {})}
    if case == "classes":
        params |= {"objective": "multi:softprob", "num_class": 3}
    y = _label(y, params)
    for name, size in LITTLE_ROOM.items() if room == "little room" else ():
        monkeypatch.setattr(f"daskboost.engine.{name}", size)
    calls, found, lengths = Calls(monkeypatch), [], []
    with quantized(Data(x, y, None), engines=engines, partitions=5) as data, quantized(
        Data(x[::2], y[::2], None), engines=engines, partitions=2, reference=data
    ) as held:
        for seconds in (1e9, 0.0):
            monkeypatch.setattr(coordinator, "ASK_SECONDS", seconds)
            seen: Params = {}
            evals = [(held, "held")] if case == "evaluated" else []
            model = train(params, data, 20, evals=evals, evals_result=seen)
            found.append((model.to_bytes(), seen))
            lengths.append(calls.take())
    assert found[0] == found[1]
    assert [sum(each) for each in lengths] == [20 * engines, 20 * engines]
    assert max(lengths[1]) == 1
    most = 20 if engines == 1 and case != "evaluated" else 11  # other fits ask for a round first, then for 8
    assert max(lengths[0]) == most if room == "much room" else 1 <= max(lengths[0]) < 8


@pytest.mark.parametrize("watched", [False, True])
def test_small_rounds_are_asked_for_together_from_the_first_on(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 rows, 60 rounds take no tenth of a second; what metrics take, nobody knows before the first round."""
    x, y = _rows(2_000, 4)
    calls = Calls(monkeypatch)
    with QuantizedDataset.from_dask(x, y) as data, QuantizedDataset.from_dask(x, y, reference=data) as held:
        train({"device": "cpu", "n_jobs": 2}, data, 60, evals=[(held, "held")] if watched else [])
    lengths = calls.take()
    assert sum(lengths) == 60
    assert lengths[0] == (1 if watched else 60)


@pytest.mark.parametrize("reason", ["metrics of training rows", "the objective's expressions"])
def test_a_call_grows_one_round_where_python_has_to_do_something_between(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _rows(5_000, 4)
    calls = Calls(monkeypatch)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e9)
    with QuantizedDataset.from_dask(x, y) as data:
        if reason == "metrics of training rows":
            train({"device": "cpu"}, data, 20, evals=[(data, "train")])
        else:
            train({"device": "cpu", "objective": lambda label, margin: (margin - label, 1 + 0 * margin)}, data, 20)
    assert calls.take() == [1] * 20


@pytest.mark.parametrize("engines", [1, 3])
def test_a_round_that_fails_tells_of_itself_whatever_the_call(engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Margins follow most labels, away from a few that no leaf can have to itself, until gradients are infinite."""
    x, y = _rows(5_000, 4)
    label, weight = np.where(np.arange(len(y)) % 500, 1e18, -1e18), np.full(len(y), 2e20)
    data = Data(x, label.astype(np.float32), weight.astype(np.float32))
    params = {"device": "cpu", "n_jobs": 2, "learning_rate": 0.1, "min_child_weight": 300 * 2e20, "base_score": 0.0}
    calls, messages, lengths = Calls(monkeypatch), [], []
    with quantized(data, engines=engines, partitions=5) as shared:
        for seconds in (1e9, 0.0):
            monkeypatch.setattr(coordinator, "ASK_SECONDS", seconds)
            with pytest.raises(DataError, match="gave a gradient of inf in iteration") as caught:
                train(params, shared, 40)
            messages.append(str(caught.value))
            lengths.append(calls.take())
    assert messages[0] == messages[1]
    assert len(lengths[0]) < len(lengths[1])


def test_fits_side_by_side_are_those_alone() -> None:
    x, y = _rows(5_000, 5)
    with QuantizedDataset.from_dask(x, y) as data:
        def fit(seed: int) -> bytes:
            given = {"device": "cpu", "n_jobs": 2, "random_state": seed, "subsample": 0.8}
            return bytes(train(given, data, num_boost_round=4).to_bytes())

        alone = [fit(seed) for seed in range(8)]
        with ThreadPoolExecutor(8) as at_once:
            assert list(at_once.map(fit, range(8))) == alone


def test_states_differ_by_their_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So parts that read none are compiled once, for dense and for CSR bins, and for small and for large pairs."""
    states: list[Any] = []

    def noted(state: Any, n_processes: int) -> None:
        states.append(state)
        raise InterruptedError

    monkeypatch.setattr(compiled_grower, "find_parts", noted)
    for n in (100, 5_000):
        for encoding in ("dense", "csr"):
            with QuantizedDataset.from_dask(*_rows(n, 3), encoding=encoding) as data:
                with pytest.raises(InterruptedError):
                    train({"device": "cpu"}, data, num_boost_round=1)

    def kinds(unread: tuple[str, ...]) -> set[Reference]:
        return {kind_of(state, unread) for state in states if isinstance(state, Record)}

    assert [len(kinds(unread)) for unread in ((), BINS, ROWS_OF_STATE)] == [4, 2, 1]
