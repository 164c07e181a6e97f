"""GPUs of a fit that are joined grow its trees in step, and the model is that of one CPU, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster.test_same_bytes import outcome
from kernels.emulation import EmulatedRuntime, JoinedByHost
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu
from strategies.trees import make_data, quantized

from daskboost import train
from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.choose import make_device
from daskboost.devices.gpu.device import GpuDevice
from daskboost.devices.gpu.rows import row_state
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.collective import Members
from daskboost.devices.gpu.runtime.nccl import why_no_nccl
from daskboost.engine.whole_rounds import why_not_joined
from daskboost.errors import DeviceError
from daskboost.fit import messages as m
from daskboost.local import in_process

GROWTH: dict[str, dict[str, Any]] = {
    "levels": {"max_depth": 4}, "few leaves": {"max_depth": 5, "max_leaves": 7},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
    "best first": {"grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0},
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "regression": {}, "logistic": {"objective": "binary:logistic"}, "poisson": {"objective": "count:poisson"},
    "five classes": {"objective": "multi:softprob", "num_class": 5},
    "vectors": {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"},
    "absolute error": {"objective": "reg:absoluteerror"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.9)},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {}, "by weight": {"score_function": "l2"}, "monotone": {"monotone_constraints": (1, 0, 0, 0, -1)},
    "interactions": {"interaction_constraints": [[0, 1, 2], [2, 3, 4]]}, "columns of nodes": {"colsample_bynode": 0.7},
}  # fmt: skip
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "large": (4_500, {}), "sampled": (4_500, {"subsample": 0.6, "colsample_bylevel": 0.9}), "small": (900, {}),
}  # fmt: skip
"""Their number, and what is drawn of them. Small data keep more bits, all others none of their weights' sum."""
ENGINES: dict[str, list[float]] = {
    "two": [0.5, 0.5], "three": [0.2, 0.5, 0.3], "uneven": [0.99, 0.01],
}  # fmt: skip
"""Each engine's share of the rows."""

Joins = list[tuple[str, ...]]
"""Names of the GPUs that were joined, once by each of them."""


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def joins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Joins:
    """A GPU for each engine of this process, and what was joined."""
    found: Joins = []
    runtime_class: Any = EmulatedRuntime if request.param == "emulated" else cuda.CudaRuntime
    join = runtime_class.joined

    def noted(self: Any, members: Members, gpus: tuple[str, ...]) -> Any:
        found.append(gpus)
        return join(self, members, gpus)

    monkeypatch.setattr(runtime_class, "joined", noted)
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
        return found
    needed = len(ENGINES[request.node.callspec.params.get("engines", "two")])
    if (n_gpus := cuda.count_devices(cuda.cupy_module())) < needed:
        pytest.skip(f"each of {needed} engines needs a GPU of its own: there are {n_gpus}")
    if reason := why_no_nccl():
        pytest.skip(reason)
    return found


def grows_without_host(choice: dict[str, Any]) -> bool:
    """Leave out what is refused, and trees that need the host's decisions (`Recipe.host_reason`)."""
    vectors, quantiles = choice["loss"] == "vectors", choice["loss"] in ("quantiles", "absolute error")
    best_first, by_weight = choice["growth"] == "best first", choice["rules"] == "by weight"
    draws_by_node = choice["rules"] == "columns of nodes"
    return not (
        (by_weight and (vectors or quantiles)) or (choice["rules"] == "monotone" and (vectors or quantiles))
        or (best_first and (vectors or quantiles or draws_by_node))
    )  # fmt: skip


@every_pair(
    {"growth": GROWTH, "loss": LOSSES, "rules": RULES, "rows": ROWS, "encoding": ["dense", "csr"], "engines": ENGINES,
     "evaluated": [False, True], "divided": [False, True]},
    possible=grows_without_host,
)  # fmt: skip
def test_models_and_metrics_are_those_of_one_cpu(
    growth: str, loss: str, rules: str, rows: str, encoding: str, engines: str, evaluated: bool, divided: bool,
    joins: Joins, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Base scores, early stopping and continued training among them."""
    if divided:
        monkeypatch.setattr(row_state, "DIVIDED_BYTES", 0)
    n_rows, drawn = ROWS[rows]
    objective = LOSSES[loss].get("objective", "reg:squarederror")
    data = make_data(np.random.default_rng(8), objective, n_rows, 5, n_values=60, missing=0.3)
    params = {**LOSSES[loss], **GROWTH[growth], **RULES[rules], **drawn, "n_jobs": 1}
    shares = ENGINES[engines]
    place: dict[str, Any] = {"engines": len(shares), "partitions": sizes_of(shares, n_rows), "encoding": encoding}
    with quantized(data) as plain, quantized(data, **place) as dataset:
        expected = outcome({**params, "device": "cpu"}, plain, data, evaluated)
        assert not joins
        dataset.shards.gpus = range(len(shares))
        assert outcome({**params, "device": "cuda", "reduction": "nccl"}, dataset, data, evaluated) == expected
    n_fits = 1 + evaluated
    assert [len(gpus) for gpus in joins] == n_fits * len(shares) * [len(shares)]
    assert len(set(joins)) <= n_fits  # all engines of a fit mean the same GPUs


@pytest.mark.emulated
@pytest.mark.parametrize(("growth", "least_bytes", "shared"), [
    ({}, 0, True), ({}, 1 << 40, False), ({"grow_policy": "symmetric", "score_function": "newton"}, 0, False),
])  # fmt: skip
def test_each_gpu_searches_a_share_of_the_last_level(
    growth: dict[str, Any], least_bytes: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its histograms have many bytes, and gains are not summed over nodes."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    monkeypatch.setattr(row_state, "DIVIDED_BYTES", least_bytes)
    add_up, n_nodes = JoinedByHost.add_up_shares, []

    def noted(self: JoinedByHost, values: Any) -> None:
        n_nodes.append(len(values))
        add_up(self, values)

    monkeypatch.setattr(JoinedByHost, "add_up_shares", noted)
    data = make_data(np.random.default_rng(8), "reg:squarederror", 4_500, 5, n_values=60)
    with quantized(data, engines=2, partitions=2) as dataset:
        train({"max_depth": 4, "device": "cuda", "reduction": "nccl", "n_jobs": 1, **growth}, dataset, 1)
    assert n_nodes == 2 * shared * [4]


def sizes_of(shares: list[float], n_rows: int) -> list[int]:
    """Cut rows into an engine's share each."""
    return np.diff([0, *np.cumsum(np.multiply(shares[:-1], n_rows)).astype(int), n_rows]).tolist()  # type: ignore[no-any-return]


@pytest.mark.emulated
@pytest.mark.parametrize("differ", ["trees together", "metrics", "trees without the host"])
def test_engines_do_the_same_whatever_each_one_has_room_for(differ: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine's plan has fewer trees that grow together, metrics that the host waits for, or trees that need it."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    if differ == "trees together":
        monkeypatch.setattr(plans, "trees_together", lambda n_outputs, n_rows, *_: 2 if n_rows < 100 else n_outputs)
    made: list[GpuDevice] = []

    def of_little_room(name: str, *rest: Any, **named: Any) -> Any:
        device = make_device(name, *rest, **named)
        if isinstance(device, GpuDevice):
            made.append(device)
            device.watches &= differ != "metrics" or name == "cuda:1"
            device.without_host &= differ != "trees without the host" or name == "cuda:1"
        return device

    monkeypatch.setattr(in_process, "make_device", of_little_room)
    data = make_data(np.random.default_rng(8), "multi:softprob", 900, 5, n_values=60)
    params = {**LOSSES["five classes"], "max_depth": 3, "n_jobs": 1}
    place: dict[str, Any] = {"engines": 2, "partitions": sizes_of(ENGINES["uneven"], 900)}
    with quantized(data) as plain, quantized(data, **place) as dataset:
        expected = outcome({**params, "device": "cpu"}, plain, data, True)
        dataset.shards.gpus = range(2)
        assert outcome({**params, "device": "cuda", "reduction": "nccl"}, dataset, data, True) == expected
    assert len(made) == 4


def mean_error(labels: Any, predictions: Any) -> float:
    """A user's own metric, of all predictions."""
    return float(np.abs(predictions - labels).mean())


@pytest.mark.parametrize("mode", ["exact", "certified"])
def test_metrics_of_users_where_trees_need_the_host(mode: str, joins: Joins, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_on_gpu(monkeypatch, 0)
    data = make_data(np.random.default_rng(8), n_rows=4_500, n_features=5, n_values=60)
    params = {"max_depth": 3, "n_jobs": 1, "eval_metric": (mean_error, "rmse"), "out_of_core": mode}
    with quantized(data) as plain, quantized(data, engines=2, partitions=2) as dataset:
        expected = outcome({**params, "device": "cpu"}, plain, data, True)
        dataset.shards.gpus = range(2)
        assert outcome({**params, "device": "cuda", "reduction": "nccl"}, dataset, data, True) == expected
    assert joins


@pytest.mark.emulated
@pytest.mark.parametrize("partitions", [1, 2], ids=["one engine has no rows", "one has"])
def test_refused_where_gpus_cannot_be_joined(partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = EmulatedRuntime(seed=3)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    reason = {1: "an engine has no rows", 2: "several engines are on one GPU"}[partitions]
    data = make_data(np.random.default_rng(8), n_rows=300)
    params = {"max_depth": 2, "n_jobs": 1, "device": "cuda"}
    with quantized(data, engines=2, partitions=partitions) as dataset:
        with pytest.raises(DeviceError, match=f"^reduction='nccl' joins the GPUs of 2 engines, and {reason}: use "):
            train({**params, "reduction": "nccl"}, dataset, 1)
        train(params, dataset, 1)


def test_refused_on_cpus() -> None:
    with quantized(make_data(np.random.default_rng(8)), engines=2, partitions=2) as dataset:
        with pytest.raises(DeviceError, match="reduction='nccl' joins the GPUs of 2 engines, and engines are on CPUs"):
            train({"device": "cpu", "reduction": "nccl"}, dataset, 1)


@pytest.mark.emulated
def test_refused_where_trees_need_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    params = {"device": "cuda", "partition_by": "columns", "out_of_core": "certified", "max_depth": 3}
    with quantized(make_data(np.random.default_rng(8)), engines=2, partitions=2) as dataset:
        with pytest.raises(DeviceError, match="and trees grow on a sample of the rows: use partition_by='auto'"):
            train(params, dataset, 1)
    monkeypatch.setattr(EmulatedRuntime, "why_apart", lambda _: "NCCL cannot be loaded (no such file)")
    with quantized(make_data(np.random.default_rng(8)), engines=2, partitions=2) as dataset:
        for more in ({"reduction": "nccl"}, {"reduction": "nccl", "out_of_core": "auto"}):
            with pytest.raises(DeviceError, match=r"and NCCL cannot be loaded \(no such file\): use reduction='auto'"):
                train({**params, "partition_by": "rows", **more}, dataset, 1)


STREAMED: dict[str, dict[str, Any]] = {
    "exact": {"out_of_core": "exact"}, "certified": {"out_of_core": "certified", "certify_tolerance": 0.02},
    "sampled": {"out_of_core": "sampled", "subsample": 0.3},
}  # fmt: skip
OF_HOST: dict[str, dict[str, Any]] = {
    "logistic": {"objective": "binary:logistic"}, "five classes": {"objective": "multi:softprob", "num_class": 5},
    "vectors": LOSSES["vectors"], "absolute error": LOSSES["absolute error"], "by weight": {"score_function": "l2"},
    "sketched vectors": {**LOSSES["vectors"], "sketch_outputs": 2}, "columns of nodes": {"colsample_bynode": 0.7},
}  # fmt: skip


def can_be_certified(choice: dict[str, Any]) -> bool:
    """Leave out what certified trees refuse."""
    return choice["mode"] != "certified" or (
        choice["growth"] == "levels" and choice["loss"] in ("logistic", "five classes")
    )


@every_pair(
    {"mode": STREAMED, "loss": OF_HOST, "growth": GROWTH, "rows": ["large", "small"], "stays": [0, 1],
     "encoding": ["dense", "csr"], "engines": ENGINES, "evaluated": [False, True]},
    possible=can_be_certified,
)  # fmt: skip
def test_trees_that_need_the_host(
    mode: str, loss: str, growth: str, rows: str, stays: int, encoding: str, engines: str, evaluated: bool,
    joins: Joins, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rows stream to their GPUs, all chunks or all but one, or trees grow on a sample of them: the host chooses splits,
    in step on all engines, and histograms are added up where they lie."""
    keep_on_gpu(monkeypatch, stays)
    n_rows, _ = ROWS[rows]
    data = make_data(np.random.default_rng(8), OF_HOST[loss].get("objective", "reg:squarederror"), n_rows, 5,
                     n_values=60, missing=0.3)  # fmt: skip
    params = {**OF_HOST[loss], **GROWTH[growth], **STREAMED[mode], "n_jobs": 1}
    shares = ENGINES[engines]
    place: dict[str, Any] = {"engines": len(shares), "partitions": sizes_of(shares, n_rows), "encoding": encoding,
                             "chunk_rows": n_rows // 8}  # fmt: skip
    with quantized(data) as plain, quantized(data, **place) as dataset:
        expected = outcome({**params, "device": "cpu"}, plain, data, evaluated)
        dataset.shards.gpus = range(len(shares))
        assert outcome({**params, "device": "cuda", "reduction": "nccl"}, dataset, data, evaluated) == expected
    assert [len(gpus) for gpus in joins] == (1 + evaluated) * len(shares) * [len(shares)]


@pytest.mark.parametrize(("gpus", "hosts", "reason"), [
    ("ab", "hh", ""), ("  ", "hk", ""), ("a ", "hh", "some engines are on a GPU, others are not"),
    ("aba", "hhh", "several engines are on one GPU"), ("ab", "hk", "engines are on several hosts"),
])  # fmt: skip
def test_which_gpus_are_joined(gpus: str, hosts: str, reason: str) -> None:
    told = [m.InStepWith(gpu.strip(), host, "", True) for gpu, host in zip(gpus, hosts, strict=True)]
    assert why_not_joined(told) == reason
