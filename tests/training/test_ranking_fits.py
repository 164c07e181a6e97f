"""Ranking on a GPU: the models of the CPU, within the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import TrackedRuntime
from strategies.pairs import pairs_of
from training.plan_shapes import within

from daskboost import QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import passes

WHERE = [pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu)]
FITS = pairs_of({
    "objective": ("rank:ndcg", "rank:pairwise", "rank:map"), "lambdarank_pair_method": ("topk", "mean"),
    "n_rows": (600, 4_500), "chunk_rows": (0, 333), "weighted": (False, True), "large": (False, True),
    "params": (
        {}, {"grow_policy": "lossguide", "max_leaves": 9}, {"subsample": 0.6}, {"interaction_constraints": [[0, 1]]},
    ),
})  # fmt: skip
TREES = 3


def make_data(n_rows: int, *, weighted: bool, large: bool) -> dict[str, Any]:
    """Return rows of small queries and, if asked for, of one that no block has, in no order; labels are 0 and 1."""
    rng = np.random.default_rng(3)
    qid = rng.integers(0, n_rows // 20, n_rows)
    qid[: 2_300 if large else 0] = -1
    X = rng.integers(0, 30, (n_rows, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] + rng.normal(size=n_rows) * 9 > 30).astype(np.float32)
    weight = rng.uniform(0.5, 2, n_rows // 20 + 1).astype(np.float32)[qid] * (np.arange(n_rows) % 50 > 0)
    order = rng.permutation(n_rows)
    return {"X": X[order], "y": y[order], "qid": qid[order], "weight": weight[order] if weighted else None}


def emulate(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=2))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", FITS, ids=lambda case: "-".join(map(str, case.values())))
def test_models_have_the_cpus_bytes(case: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(where, monkeypatch)
    case = dict(case)
    data = make_data(case.pop("n_rows"), weighted=case.pop("weighted"), large=case.pop("large"))
    params = {**case.pop("params"), "max_depth": 4, "max_bin": 32, "n_jobs": 1, "min_child_weight": 0}
    with QuantizedDataset.from_dask(**data, max_bin=32, n_jobs=1, chunk_rows=case.pop("chunk_rows")) as dataset:
        models = [train({**case, **params, "device": device}, dataset, TREES) for device in ("cpu", "cuda")]
        assert models[0].to_bytes() == models[1].to_bytes()
        assert all(tree.n_nodes > 1 for tree in models[1].trees)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("method", ["topk", "mean"])
def test_a_fit_goes_on_with_the_draws_of_its_rounds(
    method: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics of an evaluation set too."""
    emulate(where, monkeypatch)
    params = {"objective": "rank:ndcg", "lambdarank_pair_method": method, "max_depth": 3, "max_bin": 32, "n_jobs": 1}
    results: list[Any] = []
    with QuantizedDataset.from_dask(**make_data(600, weighted=True, large=False), max_bin=32, n_jobs=1) as dataset:
        models = []
        for device in ("cpu", "cuda"):
            found: dict[str, Any] = {}
            own = {**params, "device": device, "eval_metric": ["ndcg@5", "map"]}
            first = train(own, dataset, 2, evals=[(dataset, "train")], evals_result=found)
            models.append(train(own, dataset, 2, init_model=first))
            models.append(train(own, dataset, 4))
            results.append(found)
    assert len({model.to_bytes() for model in models[::2]}) == len({model.to_bytes() for model in models[1::2]}) == 1
    assert [tree.values.tolist() for tree in models[0].trees] == [tree.values.tolist() for tree in models[1].trees]
    assert results[0] == results[1]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_are_the_cpus_though_the_host_does_not_wait(
    weighted: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rows that are trained on, and of others with a query that no block has."""
    emulate(where, monkeypatch)
    params = {"objective": "rank:ndcg", "max_depth": 3, "max_bin": 32, "n_jobs": 1}
    params["eval_metric"] = ["ndcg@5", "ndcg", "map@10-", "pre@3", "mrr", "rmse"]
    evaluate, results = passes.RowSets.evaluate, []

    def on_host(self: passes.RowSets, message: Any) -> Any:
        assert self._device.name == "cpu"
        return evaluate(self, message)

    monkeypatch.setattr(passes.RowSets, "evaluate", on_host)
    data, other = make_data(600, weighted=weighted, large=False), make_data(2_700, weighted=weighted, large=True)
    with QuantizedDataset.from_dask(**data, max_bin=32, n_jobs=1) as dataset, (
        QuantizedDataset.from_dask(**other, reference=dataset, n_jobs=1)
    ) as unseen:
        for device in ("cpu", "cuda"):
            found: dict[str, Any] = {}
            evals = [(dataset, "train"), (unseen, "unseen")]
            train({**params, "device": device}, dataset, 4, evals=evals, evals_result=found)
            results.append(found)
    assert results[0] == results[1]


@pytest.mark.parametrize("where", WHERE)
def test_rows_that_stream(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that lie across chunks, whose bins have no room on the GPU together."""
    emulate(where, monkeypatch)
    params = {"objective": "rank:ndcg", "max_depth": 4, "max_bin": 32, "n_jobs": 1}
    data = make_data(4_500, weighted=False, large=True)
    data["X"] = np.tile(data["X"], 30)
    with QuantizedDataset.from_dask(**data, max_bin=32, n_jobs=1, chunk_rows=500) as dataset:
        limit = plan({**params, "device": "cuda", "device_memory_limit": 1}, dataset, num_boost_round=2).total_bytes
        streamed = {**params, "device": "cuda", "device_memory_limit": limit}
        assert plan(streamed, dataset, num_boost_round=2).reads is not None
        expected = train({**params, "device": "cpu"}, dataset, 2)
        assert train(streamed, dataset, 2).to_bytes() == expected.to_bytes()


@pytest.mark.emulated
@pytest.mark.parametrize("objective", ["rank:ndcg", "rank:map"])
@pytest.mark.parametrize("method", ["topk", "mean"])
@pytest.mark.parametrize("large", [False, True])
def test_a_fit_stays_within_its_plan(
    objective: str, method: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {"objective": objective, "lambdarank_pair_method": method, "max_depth": 4, "device": "cuda", "n_jobs": 1}
    data = make_data(8_000, weighted=False, large=large)
    params |= {"max_bin": 64, "eval_metric": ["ndcg@10", "map"]}
    with QuantizedDataset.from_dask(**data, max_bin=64, n_jobs=1) as dataset:
        evals = [(dataset, "train")] if method == "topk" else []
        planned = plan(params, dataset, num_boost_round=3, evals=evals)
        assert planned.without_host and planned.watched == bool(evals)
        train(params, dataset, 3, evals=evals)
    within(runtime.meter.pool.total_bytes, planned)
    runtime.recorded.clear()
    assert runtime.meter.bytes == 0, "nothing is left to the garbage collector"
