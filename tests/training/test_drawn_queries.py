"""Trees that draw whole queries (`sampling_unit="group"`): the same ones under any loss, wherever their rows lie."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import TrackedRuntime
from reference import gradients as reference
from strategies.pairs import every_pair
from training.plan_shapes import within

from daskboost import (
    Booster,
    Checkpoint,
    DaskBoostRanker,
    DaskBoostRegressor,
    QuantizedDataset,
    cv,
    plan,
    train,
    train_many,
)
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import whole_rounds
from daskboost.errors import DataError, ParameterError
from daskboost.hashing import Purpose

SMALL, LARGE, QUERIES, SHARE, SEED = 900, 6_000, 90, 0.8, 3
DRAWN: dict[str, Any] = {"subsample": SHARE, "sampling_unit": "group", "random_state": SEED}
BASE: dict[str, Any] = {"max_depth": 4, "max_bin": 32, "n_jobs": 1, "min_child_weight": 0, **DRAWN}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"objective": name} for name in ("rank:ndcg", "rank:pairwise", "rank:map")},
    **{name: {"objective": name} for name in ("pairlogit", "querysoftmax", "queryrmse", "yetirank")},
    "drawn pairs": {"objective": "rank:ndcg", "lambdarank_pair_method": "mean"},
    "squares": {"objective": "reg:squarederror", "base_score": 0.5},
    "logistic": {"objective": "binary:logistic", "base_score": 0.5},
}
WHERE = [pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu)]


def make_rows(n: int, n_queries: int = QUERIES) -> dict[str, Any]:
    """Return rows in no order, of queries of many sizes, with labels 0 and 1."""
    rng = np.random.default_rng(5)
    X = rng.integers(0, 25, (n, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] + rng.normal(size=n) * 6 > 28).astype(np.float32)
    return {"X": X, "y": y, "qid": (n_queries * rng.random(n) ** 1.3).astype(np.int64) * 7 - 11}


def dataset(rows: dict[str, Any], chunk_rows: int = 65_536) -> QuantizedDataset:
    return QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=chunk_rows)


def is_drawn(qid: Any, share: float = SHARE, iteration: int = 0, output: int = 0) -> Any:
    """Return which rows a tree grows on, as the naive twin draws them."""
    key = reference.key(SEED, Purpose.ROW_SAMPLE, iteration, output)
    queries, place = np.unique(qid, return_inverse=True)
    drawn = [reference.bits(key, int(code) % 2**64) >> 32 < share * 2**32 for code in queries]
    return np.array(drawn)[place]


def values(model: Booster) -> list[bytes]:
    """Return the values of a model's trees, which are in its file beside parameters."""
    return [tree.value.tobytes() for tree in model.trees]


def emulate(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=2))


@every_pair({
    "loss": LOSSES, "n": [SMALL, LARGE],
    "growth": [{}, {"grow_policy": "lossguide", "max_leaves": 9}, {"grow_policy": "symmetric"}],
})  # fmt: skip
def test_a_tree_is_one_of_the_queries_that_it_draws(loss: str, n: int, growth: dict[str, Any]) -> None:
    """A first tree is that of a fit on their rows alone, but for how fine a quantum is."""
    rows, params = make_rows(n), {**BASE, **LOSSES[loss], **growth}
    own = np.flatnonzero(is_drawn(rows["qid"]))
    assert 0.6 * n < len(own) < 0.95 * n and (len(own) > SMALL_ROWS) == (n > SMALL_ROWS)
    data = dataset(rows)
    found = train(params, data, 1).trees[0]
    alone = train({**params, "subsample": 1}, data.subset(own), 1).trees[0]
    assert found.n_nodes > 5
    for name in ("feature", "left_child", "threshold"):
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
    np.testing.assert_allclose(found.value, alone.value, rtol=1e-3, atol=1e-4)
    if loss == "squares":
        assert found.cover[0] == len(own)


@every_pair({
    "loss": LOSSES, "n": [SMALL, LARGE], "how": [{"chunk_rows": 211}, {"n_jobs": 3}, {"by_host": True}],
    "growth": [{}, {"grow_policy": "lossguide", "max_leaves": 9}],
})  # fmt: skip
def test_chunks_threads_and_loops_do_not_show(
    loss: str, n: int, how: dict[str, Any], growth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, params = make_rows(n), {**BASE, **LOSSES[loss], **growth}
    expected = train(params, dataset(rows), 3)
    if "by_host" in how:
        monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    data = dataset(rows, how.get("chunk_rows", 65_536))
    assert train({**params, "n_jobs": how.get("n_jobs", 1)}, data, 3).to_bytes() == expected.to_bytes()
    assert values(train({**params, "sampling_unit": "object"}, data, 3)) != values(expected)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_about_the_share_is_drawn_of_any_order_of_rows(share: float) -> None:
    """Each tree draws other queries of equal sizes, and where their rows lie does not decide."""
    n_queries, size = 900, 3
    rows = make_rows(n_queries * size)
    rows["qid"] = np.arange(n_queries * size) % n_queries
    params = {**BASE, **LOSSES["squares"], "subsample": share}
    order = np.random.default_rng(0).permutation(n_queries * size)
    covers = [
        np.array([tree.cover[0] for tree in train(params, dataset(own), 6).trees])
        for own in (rows, {name: each[order] for name, each in rows.items()})
    ]
    assert covers[0].tolist() == covers[1].tolist()
    expected = [is_drawn(rows["qid"], share, iteration).sum() for iteration in range(6)]
    np.testing.assert_array_equal(covers[0], expected)
    chance = 5 * np.sqrt(share * (1 - share) * n_queries)
    assert (np.abs(covers[0] / size - share * n_queries) < chance).all()
    assert len(set(expected)) > 3


CLASSES = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}
FITS: dict[str, dict[str, Any]] = {
    "squares": LOSSES["squares"],
    "yetirank": LOSSES["yetirank"],
    "softmax of queries": LOSSES["querysoftmax"],
    "exact sums of leaves": {"objective": "binary:logistic", "score_function": "l2", "grow_policy": "symmetric"},
    "quantiles": {"objective": "reg:absoluteerror"},
    "trees together": CLASSES,
    "vectors": {**CLASSES, "multi_strategy": "multi_output_tree"},
    "sketch": {**CLASSES, "multi_strategy": "multi_output_tree", "sketch_outputs": 2},
    "best first": {**LOSSES["logistic"], "grow_policy": "lossguide", "max_leaves": 7},
    "expressions": {"objective": lambda label, margin: (margin - label, margin * 0 + 1)},
    "the host chooses": {**LOSSES["logistic"], "reduction": "coordinator"},
}


@every_pair({"name": FITS, "n": [SMALL, LARGE], "chunk_rows": [65_536, 700], "where": WHERE})
def test_a_gpu_draws_those_of_the_cpu(
    name: str, n: int, chunk_rows: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(where, monkeypatch)
    rows, params = make_rows(n), {**BASE, "subsample": 0.5, **FITS[name]}
    if "num_class" in params:
        rows["y"] = rows["y"] + (rows["X"][:, 2] > 20)
    with dataset(rows, chunk_rows) as data:
        cpu, gpu = (train({**params, "device": device}, data, 2) for device in ("cpu", "cuda"))
    assert cpu.to_bytes() == gpu.to_bytes()
    assert all(tree.n_nodes > 1 for tree in gpu.trees)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("loss", ["squares", "queryrmse"])
def test_rows_that_stream(loss: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(where, monkeypatch)
    rows, params = make_rows(LARGE), {**BASE, **LOSSES[loss]}
    rows["X"] = np.tile(rows["X"], 30)
    with dataset(rows, 500) as data:
        limit = plan({**params, "device": "cuda", "device_memory_limit": 1}, data, num_boost_round=2).total_bytes
        streamed = {**params, "device": "cuda", "device_memory_limit": limit}
        assert plan(streamed, data, num_boost_round=2).reads is not None
        assert train(streamed, data, 2).to_bytes() == train({**params, "device": "cpu"}, data, 2).to_bytes()


def test_rows_on_disk(tmp_path: Path) -> None:
    """Codes of queries that come from files, as those of a data set that was saved."""
    rows, params = make_rows(LARGE), {**BASE, **LOSSES["rank:ndcg"]}
    with dataset(rows, 500) as data:
        expected = train(params, data, 2)
        data.save(tmp_path / "saved")
    with QuantizedDataset.open(tmp_path / "saved") as opened:
        assert train(params, opened, 2).to_bytes() == expected.to_bytes()
    limits: dict[str, Any] = {"host_memory_limit": 5_000, "spill_directory": tmp_path}
    with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=500, **limits) as spilled:
        assert train(params, spilled, 2).to_bytes() == expected.to_bytes()


@pytest.mark.emulated
@pytest.mark.parametrize("objective", ["reg:squarederror", "rank:ndcg"])
def test_a_fit_stays_within_its_plan(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes take 8 bytes a row."""
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {**BASE, "objective": objective, "device": "cuda"}
    with dataset(make_rows(20_000, 700)) as data:
        planned = plan(params, data, num_boost_round=3)
        plain = plan({**params, "sampling_unit": "object"}, data, num_boost_round=3)
        assert planned.without_host and planned.labels_bytes - plain.labels_bytes == 8 * 20_000
        train(params, data, 3)
    within(runtime.meter.pool.total_bytes, planned)
    runtime.recorded.clear()
    assert runtime.meter.bytes == 0, "nothing is left to the garbage collector"


def test_fits_go_on_and_side_by_side(tmp_path: Path) -> None:
    """Rounds draw by their numbers, whoever grew those before."""
    data, params = dataset(make_rows(SMALL)), {**BASE, **LOSSES["yetirank"]}
    whole = train(params, data, 4, callbacks=[Checkpoint(tmp_path / "model.ubj", period=2)])
    assert train(params, data, 2, init_model=train(params, data, 2)).to_bytes() == whole.to_bytes()
    kept = Checkpoint(tmp_path / "first.ubj", period=2)
    train(params, data, 2, callbacks=[kept])
    assert train(params, data, 2, init_model=tmp_path / "first.ubj").to_bytes() == whole.to_bytes()
    candidates = [params, {**params, **LOSSES["squares"]}, {**params, "sampling_unit": "object"}]
    made = [each.booster for each in train_many(candidates, data, 4)]
    for own, each in zip(made, candidates, strict=True):
        assert own.to_bytes() == train(each, data, 4).to_bytes()
    assert values(made[0]) != values(made[2])
    found = [cv({**params, "sampling_unit": unit}, data, 3, folds=3) for unit in ("group", "object")]
    assert not found[0].equals(found[1])


def test_estimators_pass_it_on() -> None:
    rows, options = make_rows(SMALL), {**DRAWN, "n_estimators": 2, "max_depth": 3, "max_bin": 32}
    for kind, objective in ((DaskBoostRanker, "rank:ndcg"), (DaskBoostRegressor, "reg:squarederror")):
        found = kind(**options, objective=objective).fit(rows["X"], rows["y"], qid=rows["qid"]).booster_
        params = {**DRAWN, "max_depth": 3, "max_bin": 32, "objective": objective}
        with dataset(rows) as data:
            expected = train(params, data, 2)
        assert values(found) == values(expected)


def test_all_queries_are_drawn_of_a_share_of_1() -> None:
    data, params = dataset(make_rows(SMALL)), {**BASE, **LOSSES["squares"], "subsample": 1}
    models = [train({**params, "sampling_unit": unit}, data, 2) for unit in ("group", "object")]
    assert values(models[0]) == values(models[1])
    drawn, every = (plan({**params, "subsample": share}, data).recipe for share in (0.8, 1))
    assert "of whose queries each tree draws 0.8" in drawn and "queries" not in every


BAD: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({"sampling_unit": "query"}, {}, ParameterError, "sampling_unit='query' must be one of 'object', 'group'"),
    ({}, {"qid": None}, DataError, "sampling_unit='group' draws whole queries, and the training rows have none"),
    ({"out_of_core": "certified"}, {}, ParameterError, "'group' does not go with out_of_core='certified'"),
    ({"out_of_core": "sampled"}, {}, ParameterError, "'group' does not go with out_of_core='sampled'"),
]


@pytest.mark.parametrize(("params", "rows", "error", "message"), BAD)
def test_bad_input_is_refused(
    params: dict[str, Any], rows: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {**make_rows(60), **rows}
    with dataset(given) as data, pytest.raises(error, match=re.escape(message)):
        train({**BASE, **params}, data, 2)
    own = {**DRAWN, "n_estimators": 2, **params}
    with pytest.raises(error, match=re.escape(message)):  # before any row is read
        DaskBoostRegressor(**own).fit(given["X"], given["y"], qid=given["qid"])


def test_lightgbms_word_is_known() -> None:
    with pytest.raises(ParameterError, match=r"'bagging_by_query'.*use sampling_unit='group', with subsample"):
        train({"bagging_by_query": True}, dataset(make_rows(60)), 1)
