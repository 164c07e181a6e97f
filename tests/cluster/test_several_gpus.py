"""Several GPUs of one process: rows are shared out to them, and the model is that of one CPU, byte for byte."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.test_same_bytes import outcome
from hypothesis import given
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime, JoinedByHost
from strategies.device_arrays import Place, place
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu
from strategies.trees import make_data, quantized

from daskboost import DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, cv, plan, train, train_many
from daskboost.data.chunks.chunk import CUT_ROWS
from daskboost.data.input import uploaded_rows
from daskboost.devices import choose
from daskboost.devices.budget import partition
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.collective import Members
from daskboost.errors import DeviceError, ParameterError
from daskboost.local import several_gpus
from daskboost.local.several_gpus import SLACK, borders, gpus_that_pay

__all__ = ["place"]  # a fixture
GROWTH: dict[str, dict[str, Any]] = {
    "levels": {"max_depth": 4}, "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
    "best first": {"grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0},
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "logistic": {"objective": "binary:logistic"}, "five classes": {"objective": "multi:softprob", "num_class": 5},
    "absolute error": {"objective": "reg:absoluteerror"},
}  # fmt: skip
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "large": (4_500, {}), "drawn": (4_500, {"subsample": 0.6, "colsample_bylevel": 0.9}), "small": (900, {}),
}  # fmt: skip
"""Their number, and what is drawn of them."""


def emulated(monkeypatch: pytest.MonkeyPatch, n: int, **more: Any) -> list[EmulatedRuntime]:
    """Have the process see so many emulated GPUs."""
    made = [EmulatedRuntime(seed=3, **more) for _ in range(n)]
    for number, each in enumerate(made):
        each.device, each.name = number, f"GPU {number}"
    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: made[number or 0])
    monkeypatch.setattr(cuda, "n_visible", lambda: n)
    return made


def share_any_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several GPUs share data of any size."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    monkeypatch.setitem(partition.SHARE_BYTES, "cuda", 1)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the GPUs that were joined with others, as they were."""
    found: list[int] = []
    kind: Any
    for kind in (EmulatedRuntime, cuda.CudaRuntime):
        def noted(self: Any, members: Members, gpus: tuple[str, ...], join: Any = kind.joined) -> Any:
            assert len(set(gpus)) == members.n_peers
            found.append(self.device)
            return join(self, members, gpus)

        monkeypatch.setattr(kind, "joined", noted)
    return found


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many the process sees; data of any size are shared out."""
    share_any_data(monkeypatch)
    if request.param == "emulated":
        return len(emulated(monkeypatch, 3))
    found = cuda.n_visible()
    if found < 2:
        pytest.skip("one GPU shares rows with no other")
    return found


def two_or_three(wanted: int, there: int) -> int:
    if wanted > there:
        pytest.skip(f"{wanted} GPUs are needed, there are {there}")
    return wanted


@every_pair({
    "growth": GROWTH, "loss": LOSSES, "rows": ROWS, "encoding": ["dense", "csr"], "n_gpus": [2, 3],
    "chunk_rows": [65_536, 1_000], "packing": ["aligned", "tight"], "evaluated": [False, True],
})  # fmt: skip
def test_models_and_metrics_are_those_of_one_cpu(
    growth: str, loss: str, rows: str, encoding: str, n_gpus: int, chunk_rows: int, packing: str, evaluated: bool,
    gpus: int, joins: list[int],
) -> None:  # fmt: skip
    n_rows, drawn = ROWS[rows]
    data = make_data(
        np.random.default_rng(8), LOSSES[loss]["objective"], n_rows, 5, n_values=60, missing=0.3
    )
    params = {**LOSSES[loss], **GROWTH[growth], **drawn, "n_jobs": 1}
    how: dict[str, Any] = {"encoding": encoding, "chunk_rows": chunk_rows, "packing": packing}
    with quantized(data, **how) as dataset:
        expected = outcome({**params, "device": "cpu"}, dataset, data, evaluated)
        more = {"device": "cuda", "n_gpus": two_or_three(n_gpus, gpus)}
        assert outcome({**params, **more}, dataset, data, evaluated) == expected
    assert sorted(joins) == sorted([*range(n_gpus)] * (1 + evaluated))


@pytest.mark.emulated
@pytest.mark.parametrize("n_gpus", [2, 3])
@pytest.mark.parametrize("growth", ["levels", "symmetric"])
def test_trees_of_a_round_are_searched_by_one_gpu_each(
    growth: str, n_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU adds up the histograms of its share of the trees; those of trees that are left over, all GPUs do."""
    share_any_data(monkeypatch)
    emulated(monkeypatch, n_gpus)
    added: dict[str, set[int]] = {"add_up": set(), "add_up_shares": set()}

    def note(name: str) -> None:
        add = getattr(JoinedByHost, name)

        def noted(self: JoinedByHost, values: Any) -> None:
            added[name].add(values.shape[values.ndim - 3] if values.ndim > 2 else 0)  # nodes, if they are histograms
            add(self, values)

        monkeypatch.setattr(JoinedByHost, name, noted)

    for name in added:
        note(name)
    data = make_data(np.random.default_rng(8), "multi:softprob", 4_500, 5, n_values=60)
    params = {**LOSSES["five classes"], **GROWTH[growth], "n_jobs": 1}
    with quantized(data) as dataset:
        expected = train({**params, "device": "cpu"}, dataset, 2)
        assert train({**params, "device": "cuda", "n_gpus": n_gpus}, dataset, 2).to_bytes() == expected.to_bytes()
    shared = 5 - 5 % n_gpus
    halves = [max(1, 2**depth // 2) for depth in range(GROWTH[growth]["max_depth"])]  # nodes that are built of a tree
    assert added["add_up_shares"] == {shared * half for half in halves}
    assert added["add_up"] - {0} == {(5 - shared) * half for half in halves}


HOW: dict[str, dict[str, Any]] = {
    "certified": {"out_of_core": "certified", "certify_tolerance": 0.03, "max_depth": 3},
    "drawn by gradients": {"out_of_core": "sampled", "subsample": 0.3, "max_depth": 3},
    "streamed": {"max_depth": 3},
    "by columns": {"max_depth": 3, "partition_by": "columns"},
    "at the coordinator": {"max_depth": 3, "reduction": "coordinator"},
}  # fmt: skip


@pytest.mark.parametrize("n_gpus", [2, 3])
@pytest.mark.parametrize("how", HOW)
def test_every_way_that_workers_of_a_cluster_know(
    how: str, n_gpus: int, gpus: int, joins: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(np.random.default_rng(8), "binary:logistic", 6_000, 5, n_values=60, missing=0.3)
    params = {"objective": "binary:logistic", **HOW[how], "n_jobs": 1}
    on_cpu = {**params, "partition_by": "auto", "device": "cpu"}
    with quantized(data, chunk_rows=600 if how == "streamed" else 65_536, packing="tight") as dataset:
        expected = outcome(on_cpu, dataset, data, True)
        if how == "streamed":
            keep_on_gpu(monkeypatch, 1)
        more = {"device": "cuda", "n_gpus": two_or_three(n_gpus, gpus)}
        assert outcome({**params, **more}, dataset, data, True) == expected
    assert bool(joins) == (how != "at the coordinator")


@pytest.mark.parametrize("packing", ["aligned", "tight"])
def test_chunks_on_disk_are_cut_there(packing: str, gpus: int, tmp_path: Path) -> None:
    data = make_data(np.random.default_rng(8), n_rows=4_500, n_values=60)
    params = {"max_depth": 3, "n_jobs": 1}
    with quantized(data, limit=9_000, directory=tmp_path, chunk_rows=1_000, packing=packing) as dataset:
        expected = train({**params, "device": "cpu"}, dataset, 2)
        files = sorted(tmp_path.rglob("*.chunk"))
        (shard,) = dataset.shards.shards
        before = shard.store.counters()
        assert train({**params, "device": "cuda", "n_gpus": 2}, dataset, 2).to_bytes() == expected.to_bytes()
        assert sorted(tmp_path.rglob("*.chunk")) == files
        after = shard.store.counters()
        assert (after.ram_bytes, after.disk_bytes) == (before.ram_bytes, before.disk_bytes)


@pytest.mark.parametrize("has_room", [True, False], ids=["copied", "packed on the host"])
@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize("n_gpus", [2, 3])
def test_bins_that_lie_on_one_gpu(
    encoding: str, has_room: bool, n_gpus: int, place: Place, gpus: int, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Their rows are shared out all the same; those of a set that is evaluated too are copied once."""
    if request.node.callspec.params["place"] != request.node.callspec.params["gpus"]:
        pytest.skip("rows on a GPU need GPUs, and emulated ones emulated ones")
    data = make_data(np.random.default_rng(8), n_rows=4_500, n_values=60, missing=0.3)
    params = {"max_depth": 3, "n_jobs": 1}
    if not has_room:
        monkeypatch.setattr(several_gpus, "KEPT_SHARE", 0.0)
    with quantized(data, chunk_rows=700, encoding=encoding) as dataset:
        expected = outcome({**params, "device": "cpu"}, dataset, data, True)
    rows = replace(data, X=place.array(data.X))
    with quantized(rows, chunk_rows=700, encoding=encoding) as dataset:
        (shard,) = dataset.shards.shards
        assert {shard.store.residency(entry.handle) for entry in shard.entries} == {"device"}
        more = {"device": "cuda", "n_gpus": two_or_three(n_gpus, gpus)}
        with caplog.at_level(logging.DEBUG, "daskboost.local.several_gpus"):
            assert outcome({**params, **more}, dataset, data, True) == expected
    looked = [record.getMessage() for record in caplog.records if "bins of GPU" in record.getMessage()]
    assert len(looked) == 2 * n_gpus  # once for each of the two fits


def test_subsets_have_the_chunks_of_their_data_set(gpus: int) -> None:
    data = make_data(np.random.default_rng(8), n_rows=3_000, n_values=60, missing=0.3)
    params = {"max_depth": 3, "n_jobs": 1}
    found: list[tuple[bytes, Any]] = []
    with quantized(data) as dataset:
        even = dataset.subset(np.arange(0, 3_000, 2))
        odd = dataset.subset(np.arange(1, 3_000, 2))
        for more in ({"device": "cpu"}, {"device": "cuda", "n_gpus": 2}):
            results: Any = {}
            model = train({**params, **more}, even, 2, evals=[(odd, "odd"), (even, "even")], evals_result=results)
            found.append((model.to_bytes(), results))
    assert found[0] == found[1]


@pytest.mark.parametrize("estimator", [DaskBoostClassifier, DaskBoostRegressor])
def test_estimators(estimator: Any, gpus: int, joins: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the host are quantized on a GPU, and lie there before they are shared out."""
    monkeypatch.setattr(uploaded_rows, "TINY_VALUES", 0)
    data = make_data(np.random.default_rng(8), "binary:logistic", 3_000, 5, n_values=60)
    models = [
        estimator(n_estimators=3, max_depth=3, n_jobs=1, **more).fit(data.X, data.y, eval_set=[(data.X, data.y)])
        for more in ({"device": "cpu"}, {"device": "cuda", "n_gpus": 2}, {"device": "gpu", "n_gpus": "all"})
    ]
    assert len({model.booster_.to_bytes() for model in models}) == 1
    assert models[0].evals_result_ == models[1].evals_result_ == models[2].evals_result_
    assert sorted(joins) == sorted([*range(2), *range(gpus)])


@pytest.mark.emulated
def test_small_data_stay_on_one_gpu(
    joins: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emulated(monkeypatch, 2)
    data = make_data(np.random.default_rng(8), n_rows=300)
    params = {"max_depth": 2, "n_jobs": 1, "device": "cuda", "n_gpus": 2}
    said = "1 of 2 GPUs have the rows: with more, the fit would be slower"
    with quantized(data) as dataset:
        with caplog.at_level(logging.INFO, "daskboost"):
            train(params, dataset, 1)
        assert said in caplog.text and not joins
        assert said in str(plan(params, dataset)) and said in str(plan(params, data.X))
        share_any_data(monkeypatch)
        with caplog.at_level(logging.INFO, "daskboost"):
            train(params, dataset, 1)
        assert "2 GPUs have a share of the rows each: 0, 1" in caplog.text and joins
        halves = [plan(params, dataset), plan(params, data.X), plan(params, n_rows=300, n_features=5)]
        wholes = [plan({**params, "n_gpus": 1}, given) for given in (dataset, data.X)]
    assert all("2 GPUs have a share of the rows each" in str(each) for each in halves)
    assert all(each.margins_bytes < 0.6 * wholes[0].margins_bytes for each in halves)
    assert not any("GPUs" in str(each) for each in wholes)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "none": ({"n_gpus": 0}, ParameterError, "n_gpus=0 must be an integer of at least 1, or 'all'"),
    "some": ({"n_gpus": "some"}, ParameterError, "n_gpus='some' must be an integer"),
    "a half": ({"n_gpus": 1.5}, ParameterError, "n_gpus=1.5 must be an integer"),
    "true": ({"n_gpus": True}, ParameterError, "n_gpus=True must be an integer"),
    "too many": ({"n_gpus": 4}, DeviceError, "n_gpus=4 was asked for, and CUDA sees 3: check CUDA_VISIBLE_DEVICES"),
    "on the CPU": ({"device": "cpu", "n_gpus": 2}, ParameterError, "n_gpus=2 contradicts device='cpu', which is one"),
    "perhaps the CPU": ({"device": "auto", "n_gpus": "all"}, ParameterError, "'auto', which may be one device: use"),
    "one by number": ({"device": "cuda:1", "n_gpus": 2}, ParameterError, "n_gpus=2 contradicts device='cuda:1'"),
}  # fmt: skip


@pytest.mark.emulated
@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_any_work(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated(monkeypatch, 3)
    given, kind, message = REFUSED[what]
    params = {"device": "cuda", **given}
    data = make_data(np.random.default_rng(8), n_rows=300)
    with quantized(data) as dataset:
        monkeypatch.setattr("daskboost.training.train.shared_out", None)
        with pytest.raises(kind, match=re.escape(message)):
            train(params, dataset, 1)
    monkeypatch.setattr(QuantizedDataset, "from_source", None)
    with pytest.raises(kind, match=re.escape(message)):
        DaskBoostRegressor(**params).fit(data.X, data.y)


@pytest.mark.emulated
def test_refused_where_models_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated(monkeypatch, 2)
    params = {"device": "cuda", "n_gpus": 2}
    with quantized(make_data(np.random.default_rng(8), n_rows=300)) as dataset:
        for together in (train_many, cv):
            with pytest.raises(ParameterError, match="n_gpus=2 is of one model at a time"):
                together(params, dataset, 1, folds=2)


@pytest.mark.emulated
def test_an_engine_that_cannot_be_made_ends_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU has no room: the error is its own, threads end, and the next fit has all of them."""
    share_any_data(monkeypatch)
    made = emulated(monkeypatch, 2)
    data = make_data(np.random.default_rng(8), n_rows=3_000, n_values=60)
    params = {"max_depth": 3, "n_jobs": 1, "device": "cuda", "n_gpus": 2}
    with quantized(data) as dataset:
        made[1].free_bytes = 1_000
        with pytest.raises(DeviceError, match=r"the fit needs .* of the GPU's memory"):
            train(params, dataset, 2)
        assert not [each for each in threading.enumerate() if each.name.startswith("daskboost-engine")]
        made[1].free_bytes = made[0].free_bytes
        expected = train({**params, "device": "cpu", "n_gpus": 1}, dataset, 2)
        assert train(params, dataset, 2).to_bytes() == expected.to_bytes()


@pytest.mark.parametrize(("sizes", "n", "expected"), [
    ([1_000], 2, [0, 512, 1_000]), ([600, 400], 2, [0, 512, 1_000]), ([505, 495], 2, [0, 505, 1_000]),
    ([100, 1_000], 2, [0, 548, 1_100]), ([10] * 100, 3, [0, 330, 670, 1_000]), ([64, 64], 3, [0, 64, 64, 128]),
    ([], 2, [0, 0, 0]), ([5], 2, [0, 0, 5]),
])  # fmt: skip
def test_where_rows_are_parted(sizes: list[int], n: int, expected: list[int]) -> None:
    assert borders(sizes, n) == expected


@given(st.lists(st.integers(1, 5_000), max_size=20), st.integers(1, 8))
def test_parts_are_about_equal_and_cut_where_chunks_may_be(sizes: list[int], n: int) -> None:
    found, begins = borders(sizes, n), np.cumsum([0, *sizes])
    assert len(found) == n + 1 and found == sorted(found) and (found[0], found[-1]) == (0, sum(sizes))
    for number, border in enumerate(found):
        assert abs(border - sum(sizes) * number / n) <= max(CUT_ROWS, SLACK * sum(sizes) / n)
        assert border in begins or (border - begins[begins <= border].max()) % CUT_ROWS == 0


@pytest.mark.parametrize(("n_gpus", "n_bytes", "n_rows", "expected"), [
    (2, 2**30, 10**6, 2), (8, 2**30, 10**7, 8), (8, 2**27, 10**6, 4), (2, 2**22, 10**6, 1), (2, 2**25, 10**6, 1),
    (4, 2**30, 130, 2), (2, 2**30, 10, 1),
])  # fmt: skip
def test_how_many_gpus_pay(n_gpus: int, n_bytes: int, n_rows: int, expected: int) -> None:
    assert gpus_that_pay(n_gpus, n_bytes, n_rows) == expected


@pytest.mark.parametrize(("n", "lies_on", "current", "expected"), [
    (2, {3}, 0, [0, 3]), (2, set(), 2, [0, 2]), (1, {1}, 0, [1]), (4, {1}, 0, [0, 1, 2, 3]),
])  # fmt: skip
def test_which_gpus_are_taken(
    n: int, lies_on: set[int], current: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = emulated(monkeypatch, 4)
    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: made[current if number is None else number])
    assert choose.several_gpus(n, frozenset(lies_on)) == expected
