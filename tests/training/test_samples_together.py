"""Models whose trees grow on samples, several at once on a GPU: each that of its own fit, few passes, within memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.test_same_bytes import gpu
from kernels.tracked import TrackedRuntime
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu, noted_groups, stream_by_twos
from training.plan_shapes import CLASSES, LOGISTIC, make_data, squared
from training.test_device_memory_limit import runtime
from training.test_plan_held import LimitedPool
from training.test_train_many import Note, assert_same, disk_reads, made, pairs, rows, separate

from daskboost import Plan, QuantizedDataset, cv, plan, train, train_many
from daskboost.devices.budget.gpu_plans import gpu_plan, pool_bytes
from daskboost.devices.budget.plan import SMALL_ROWS, FitSize
from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.errors import DeviceError
from daskboost.local import together
from daskboost.local.together import Room, room_of
from daskboost.params import TrainParams
from daskboost.training.plan_fit import _size_of_shapes
from daskboost.training.train import objective_of

__all__ = ["gpu", "runtime"]
BINARY = {"objective": "binary:logistic", "max_depth": 3}
CERTIFIED = {"out_of_core": "certified", "certify_tolerance": 0.05}
SAMPLED = {"out_of_core": "sampled", "subsample": 0.4}
OF_CLASSES = {"objective": "multi:softprob", "num_class": 5, "max_depth": 2}
MODELS: dict[str, list[dict[str, Any]]] = {
    "certified": [
        {**BINARY, **CERTIFIED}, {**BINARY, **CERTIFIED, "random_state": 1, "max_depth": 2, "resident_share": 0.5}
    ],
    "sampled": [{**BINARY, **SAMPLED}, {**BINARY, **SAMPLED, "random_state": 1, "max_depth": 4, "subsample": 0.2}],
    "all ways": [{**BINARY, **SAMPLED}, BINARY, {**BINARY, **CERTIFIED}],
    "losses": [
        {**SAMPLED, "objective": "reg:absoluteerror", "max_depth": 2}, {**CERTIFIED, "max_depth": 2},
        {**CERTIFIED, "objective": "binary:logistic", "max_depth": 2},
    ],
    "classes": [{**OF_CLASSES, **CERTIFIED}, {**OF_CLASSES, **SAMPLED}],
}  # fmt: skip


DEVICE = {"device": "cuda", "n_jobs": 1}
HOST = {"device": "cpu", "n_jobs": 1}


@pytest.mark.usefixtures("gpu")
@every_pair({
    "name": MODELS, "encoding": ["dense", "csr"], "disk": [False, True], "n_resident": [0, 1, None],
    "many_rows": [False, True],
})  # fmt: skip
def test_models_are_those_of_separate_fits(
    name: str, encoding: str, disk: bool, n_resident: int | None, many_rows: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Chunks that stream come by twos; another set is evaluated."""
    objective = "multi:softprob" if name == "classes" else "binary:logistic"
    data = rows(objective, SMALL_ROWS + 9 if many_rows else 330)
    with made(data, tmp_path, encoding=encoding, disk=disk, chunk_rows=len(data.y) // 4 + 1) as dataset, made(
        rows(objective, 90, 6), tmp_path, chunk_rows=50, reference=dataset, disk=disk
    ) as other:
        stream_by_twos(monkeypatch, dataset)
        if n_resident is not None:
            keep_on_gpu(monkeypatch, n_resident)
        noted = noted_groups(monkeypatch)
        found = train_many([{**params, **DEVICE} for params in MODELS[name]], dataset, 2, evals=[(other, "other")])
        expected = separate([{**params, **HOST} for params in MODELS[name]], dataset, 2, None, [(other, "other")])
    assert_same(found, expected)
    assert len(noted) == (0 if n_resident is None else 2), "one stream of each set for all"
    assert len({model.booster.to_bytes() for model in found}) == len(found)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("mode", [CERTIFIED, SAMPLED], ids=["certified", "sampled"])
def test_models_read_the_disk_as_often_as_one(
    mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of them which makes most passes, if nothing stays. Else each chunk is read once for all models."""
    params = {**BINARY, **mode, **DEVICE}
    candidates = [params, {**params, "reg_lambda": 3.0}, {**params, "random_state": 1}]
    with made(rows("binary:logistic", 600), tmp_path, disk=True, chunk_rows=110) as dataset:
        (shard,) = dataset.shards.shards
        n_on_disk = [shard.store.residency(entry.handle) for entry in shard.entries].count("disk")
        before = disk_reads(dataset)
        train_many(candidates, dataset, 3)
        assert disk_reads(dataset) - before == n_on_disk > 0
        keep_on_gpu(monkeypatch, 0)
        stream_by_twos(monkeypatch, dataset)
        for some in (candidates[:1], candidates):
            before = disk_reads(dataset)
            found = train_many(some, dataset, 3)
            most = max(sum(model.evals_result["out_of_core"]["passes"]) for model in found)
            ahead = 2 * n_on_disk  # chunks that were read for passes that did not come, at most
            assert n_on_disk * most <= disk_reads(dataset) - before <= n_on_disk * (1 + most) + ahead


@pytest.mark.usefixtures("gpu")
def test_folds_of_cross_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out rows are rows of the chunks that stream."""
    keep_on_gpu(monkeypatch, 1)
    with made(rows("binary:logistic", 300), tmp_path, disk=True, chunk_rows=90) as dataset:
        for mode in (CERTIFIED, SAMPLED):
            params, folds = {**BINARY, **mode, "max_depth": 2}, pairs(300)
            found, expected = (cv({**params, **where}, dataset, 2, folds=folds) for where in (DEVICE, HOST))
            assert found.equals(expected)


WIDE = {"max_bin": 4, "max_depth": 2, "n_jobs": 1, "device": "cuda"}
FEW = (
    {"resident_share": 0.05, "out_of_core": "certified", "certify_tolerance": 1.0},
    {"subsample": 0.05, "out_of_core": "sampled"},
)
OWN, OF_THREE = {"objective": squared, "min_child_weight": 0}, {**CLASSES, "num_class": 3}
EXACT = {**LOGISTIC, "max_depth": 1}
TOGETHER: dict[str, list[dict[str, Any]]] = {
    "certified": [{**LOGISTIC, **FEW[0]}, {**LOGISTIC, **FEW[0], "random_state": 1, "max_depth": 1}],
    "sampled": [{**LOGISTIC, **FEW[1]}, {**LOGISTIC, **FEW[1], "random_state": 1, "learning_rate": 0.9}],
    "an exact one": [{**LOGISTIC, **FEW[0]}, {**LOGISTIC, **FEW[0], "random_state": 1}, EXACT],
    "classes": [{**OF_THREE, **FEW[0], "max_depth": 1}, {**OF_THREE, **FEW[1], "max_depth": 1}],
    "own loss": [{**OWN, **FEW[0], "max_depth": 1}, {**OWN, **FEW[0], "max_depth": 1, "random_state": 1}],
}
"""Bins of few rows: those of all take more memory than what each model has of its own."""


def wide(name: str, density: float = 0.0, **options: Any) -> QuantizedDataset:
    classes = 3 if name == "classes" else 2
    data = make_data(n_rows=SMALL_ROWS + 3_000, n_features=400, density=density, num_class=classes)
    return QuantizedDataset.from_dask(**data, max_bin=4, n_jobs=1, chunk_rows=300, packing="tight", **options)


def promised_bytes(sizes: Sequence[FitSize], room: Room, more_chunks: int = 0) -> int:
    """Of fits that grow together and of what they share, each as the one that takes most will plan for itself."""
    assert room.n_resident is not None
    n_resident = room.n_resident + more_chunks
    plans = [gpu_plan(size.streaming(room.stream_bytes).keeping(n_resident), None) for size in sizes]
    own = max(each.total_bytes - shared_bytes(each) for each in plans)
    return max(map(shared_bytes, plans)) + room.at_once * own


def shared_bytes(planned: Plan) -> int:
    """Chunks, and what they pass through, with the pool's part of it."""
    shared = planned.chunks_bytes + planned.ring_bytes + planned.planes_bytes
    return shared + pool_bytes(shared, takes_anew=not planned.without_host)


def test_exact_models_have_all_that_each_plans_beside_what_they_share() -> None:
    """The pool's part of the shared rows counts once, and is that of fits that grow without the host."""
    params = TrainParams.from_mapping({**EXACT, "max_bin": 250, "device": "cuda"})
    size = _size_of_shapes(params, objective_of(params), [(20_000_000, 400, None)], False, False, 1, 1)
    alone = gpu_plan(size, 10**12)
    assert alone.without_host and alone.turned_bytes == 0
    shared = shared_bytes(replace(alone, chunks_bytes=alone.chunks_bytes + alone.columns_bytes))
    own = alone.total_bytes - shared
    for n_models in (1, 2, 5):
        assert room_of([size] * 9, shared + n_models * own, 9).at_once == n_models


@pytest.mark.parametrize("name", ["certified", "own loss", "an exact one", "sampled"])
@pytest.mark.parametrize("n_models", [2, 5])
def test_a_gpu_has_room_for_what_it_is_given(name: str, n_models: int) -> None:
    """More models take fewer chunks with them, and chunks that stay a longer turn; what has room is used."""
    candidates = [{**params, "max_bin": 256, "max_depth": 8} for params in TOGETHER[name]]
    sizes = [
        _size_of_shapes(chosen, objective_of(chosen), [(80_000_000, 200, None)], False, False, 100, 1)
        for chosen in map(TrainParams.from_mapping, (candidates * n_models)[:n_models])
    ]
    found: list[Room] = []
    for free_bytes in (5 * 10**9, 11 * 10**9, 14 * 10**9, 20 * 10**9):
        room = room_of(sizes, free_bytes, n_models)
        alone = [gpu_plan(size, free_bytes) for size in sizes]
        if all(each.resident is None for each in alone):
            assert room.n_resident is None
            continue
        assert room.n_resident is not None
        if all(each.fits for each in alone):
            assert promised_bytes(sizes, room) <= free_bytes
            assert room.at_once == n_models or promised_bytes(sizes, room._replace(at_once=n_models)) > free_bytes
            assert room.n_resident == 0 or promised_bytes(sizes, room, len(sizes[0].train.chunks) // 50) > free_bytes
        found.append(room)
    assert len({room.n_resident for room in found}) > 2


class Rooms:
    """What `room_of` has found, the last time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: Room
        monkeypatch.setattr(together, "room_of", self._noted)

    def _noted(self, *given: Any) -> Room:
        self.last = room_of(*given)
        return self.last


@pytest.mark.emulated
@pytest.mark.parametrize(("name", "density", "disk"), [
    ("certified", 0, True), ("certified", 0.3, False), ("sampled", 0, False), ("sampled", 0.3, True),
    ("an exact one", 0, True), ("classes", 0, False), ("own loss", 0, False),
])  # fmt: skip
def test_models_stay_within_the_memory_together(
    name: str, density: float, disk: bool, runtime: TrackedRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is room for all of them and some chunks, and where there is not for one of them."""
    candidates, rooms = [{**WIDE, **params} for params in TOGETHER[name]], Rooms(monkeypatch)
    how: dict[str, Any] = {"host_memory_limit": 200_000, "spill_directory": tmp_path} if disk else {}
    with wide(name, density=density, **how) as dataset:
        expected = [train({**params, "device": "cpu"}, dataset, 2).to_bytes() for params in candidates]
        for n_at_once, free_bytes in budgets(candidates, dataset):
            runtime.free_bytes = free_bytes
            runtime.meter.restart()
            models = train_many(candidates, dataset, 2)
            assert [model.booster.to_bytes() for model in models] == expected
            assert rooms.last.at_once == n_at_once
            assert rooms.last.n_resident is not None and rooms.last.n_resident > 0
            assert runtime.meter.pool.total_bytes <= free_bytes
            runtime.recorded.clear()
        assert runtime.meter.bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["certified", "sampled"])
def test_models_stay_within_the_memory_of_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's pool gets no byte more than what is free."""
    candidates, rooms = [{**WIDE, **params} for params in TOGETHER[name]], Rooms(monkeypatch)
    with wide(name, host_memory_limit=700_000, spill_directory=tmp_path) as dataset:
        expected = [train({**params, "device": "cpu"}, dataset, 2).to_bytes() for params in candidates]
        train_many(candidates, dataset, 2)  # kernels are compiled
        for n_at_once, free_bytes in budgets(candidates, dataset):
            pool = LimitedPool()
            with monkeypatch.context() as patched, pool.limited():
                patched.setattr(CudaRuntime, "free_bytes", property(partial(free_of, pool, free_bytes)))
                pool.limit_bytes(free_bytes)
                models = train_many(candidates, dataset, 2)
            assert [model.booster.to_bytes() for model in models] == expected
            assert rooms.last.at_once == n_at_once
            assert pool.taken_bytes <= free_bytes


def free_of(pool: LimitedPool, limit: int, runtime: Any) -> int:
    return limit - pool.used_bytes


def budgets(candidates: Sequence[dict[str, Any]], dataset: QuantizedDataset) -> list[tuple[int, int]]:
    """How many models may grow at once where so many bytes are free."""
    leasts = [plan({**params, "device_memory_limit": 1}, dataset) for params in candidates]
    for each, params in zip(leasts, candidates, strict=True):
        assert (each.samples_bytes > 0) == ("out_of_core" in params)
    shared = max(map(shared_bytes, leasts))
    own, n = max(each.total_bytes - shared_bytes(each) for each in leasts), len(candidates)
    return [(n, shared + n * own + 2 * 300 * 400), (n - 1, shared + n * own - own // 3)]


@pytest.mark.emulated
def test_no_room_for_one_is_refused_and_room_for_one_is_enough(runtime: TrackedRuntime) -> None:
    candidates = [{**WIDE, **params} for params in TOGETHER["sampled"]]
    with wide("sampled") as dataset:
        runtime.free_bytes = plan({**candidates[0], "device_memory_limit": 1}, dataset).total_bytes - 1
        with pytest.raises(DeviceError, match=r"the fit needs .* even with all chunks streamed, .* are free") as raised:
            train_many(candidates, dataset, 1)
        assert raised.value.__notes__ == ["while training model 0 of those that are trained together"]
        assert runtime.meter.peak_bytes == 0
        runtime.free_bytes += 1
        found = [model.booster.to_bytes() for model in train_many(candidates, dataset, 1)]
        assert runtime.meter.pool.total_bytes <= runtime.free_bytes
        assert found == [train({**params, "device": "cpu"}, dataset, 1).to_bytes() for params in candidates]


@pytest.mark.emulated
def test_columns_of_an_exact_model_leave_room_for_another_ones_sample(
    runtime: TrackedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bins stay, and models have their turns; column-major copies stay too, if the others have room beside them."""
    rooms = Rooms(monkeypatch)
    candidates = [{**WIDE, **LOGISTIC, "max_depth": 1}, {**WIDE, **LOGISTIC, **FEW[0], "max_depth": 5}]
    with wide("an exact one") as dataset:
        expected = [train({**params, "device": "cpu"}, dataset, 1).to_bytes() for params in candidates]
        exact, certified = (plan(params, dataset, memory="1GB") for params in candidates)
        assert exact.columns_bytes > 0 == certified.columns_bytes
        for free_bytes, copies in ((max(exact.total_bytes, certified.total_bytes), False), (10**8, True)):
            runtime.free_bytes = free_bytes
            runtime.meter.restart()
            models = train_many(candidates, dataset, 1)
            assert [model.booster.to_bytes() for model in models] == expected
            assert (rooms.last.n_resident, rooms.last.copies_columns) == (None, copies)
            assert runtime.meter.peak_bytes <= free_bytes
            runtime.recorded.clear()


@pytest.mark.emulated
def test_models_that_share_no_views_do_not_grow_side_by_side(runtime: TrackedRuntime) -> None:
    """Trees with vectors have another layout of histograms: the bins of one kind are gone before those of the next."""
    one_by_one = {**WIDE, **OF_THREE, **FEW[1], "max_depth": 1}
    candidates = [one_by_one, {**one_by_one, "multi_strategy": "multi_output_tree"}, {**one_by_one, "random_state": 1}]
    with wide("classes") as dataset:
        runtime.free_bytes = max(plan(params, dataset, memory="1GB").total_bytes for params in candidates)
        found = [model.booster.to_bytes() for model in train_many(candidates, dataset, 1)]
        assert runtime.meter.peak_bytes <= runtime.free_bytes
        assert found == [train({**params, "device": "cpu"}, dataset, 1).to_bytes() for params in candidates]
        on_cpu = train_many([candidates[0], {**candidates[1], "device": "cpu"}], dataset, 1)
        assert [model.booster.to_bytes() for model in on_cpu] == found[:2]
        error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError) as raised:
            train_many(candidates, dataset, 1, callbacks=lambda i: [Note(i, error if i == 2 else None)])
        assert raised.value.__notes__ == ["while training model 2 of those that are trained together"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", [CERTIFIED, SAMPLED], ids=["certified", "sampled"])
def test_plans_tell_chunks_from_samples(mode: dict[str, Any], device: str) -> None:
    shape: dict[str, Any] = {"n_rows": 80_000_000, "n_features": 200, "memory": "10GB"}
    params = {"device": device, "host_memory_limit": "2GB"}
    found, exact = plan({**params, **mode}, **shape), plan(params, **shape)
    assert found.samples_bytes > exact.samples_bytes == 0
    assert found.parts["samples"] == found.samples_bytes
    if device == "cpu":
        assert found.chunks_bytes == exact.chunks_bytes
    else:
        assert "use a smaller resident_share (for sampled trees, subsample), fewer rows" in str(
            plan({**params, **mode, "device_memory_limit": 1}, **shape)
        )
