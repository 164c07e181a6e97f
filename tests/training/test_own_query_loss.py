"""Losses of whole queries that users write as functions: what they see, and models that depend on rows alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from cluster.test_several_gpus import emulated, share_any_data
from cluster.test_shared_queries import client as client
from cluster.test_shared_queries import dataset, make_rows, outcome, spread
from kernels.tracked import TrackedRuntime
from training.plan_shapes import within
from training.test_ranking_fits import WHERE, emulate, make_data

from daskboost import Booster, DaskBoostRanker, DaskBoostRegressor, QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import whole_rounds
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.objective_names import make_objective
from daskboost.objectives.own_objective import CustomObjective, CustomQueryObjective, OwnQueryObjective

PARAMS: dict[str, Any] = {"max_depth": 4, "max_bin": 32, "n_jobs": 1, "min_child_weight": 0}
Arrays = tuple[np.ndarray, np.ndarray]


def softmax(label: np.ndarray, margin: np.ndarray, group: np.ndarray) -> Arrays:
    """Return the derivatives of `querysoftmax`."""
    begins, s = np.cumsum(group) - group, margin.astype(np.float64)
    odds = np.exp(s - np.repeat(np.maximum.reduceat(s, begins), group))
    p = odds / np.repeat(np.add.reduceat(odds, begins), group)
    labels = np.repeat(np.add.reduceat(label.astype(np.float64), begins), group)
    return labels * p - label, labels * (p * (1 - p) + 0.01)


@dataclass(frozen=True)
class ListNet(OwnQueryObjective):
    name: ClassVar[str] = "test:listnet"

    def query_gradients(self, label: Any, margin: Any, group: Any) -> Any:
        return softmax(label, margin, group)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("n_rows", [600, 4_500])
def test_models_depend_on_rows_alone(n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever chunks, threads and device; and the loss that is built in agrees up to its rounding."""
    emulate(where, monkeypatch)
    rows, found = make_data(n_rows, weighted=True, large=False), []
    for device, chunk_rows, jobs in (("cpu", 0, 1), ("cpu", 333, 3), ("cuda", 0, 1), ("cuda", 333, 1)):
        with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=chunk_rows) as data:
            params = {**PARAMS, "device": device, "n_jobs": jobs}
            begun = train(params, data, 2, objective=softmax)
            found += [train(params, data, 4, objective=softmax), train({**params, "objective": ListNet()}, data, 4),
                      train(params, data, 2, objective=softmax, init_model=begun)]  # fmt: skip
    models = {tuple(tree.value.tobytes() for tree in each.trees) for each in found}
    assert len(models) == 1 and all(tree.n_nodes > 1 for tree in found[0].trees)
    with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1) as data:
        built_in = train({**PARAMS, "objective": "querysoftmax", "device": "cpu"}, data, 4)
    np.testing.assert_allclose(found[0].predict(rows["X"]), built_in.predict(rows["X"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_engines", [1, 3])
def test_a_function_sees_whole_queries_in_order(n_engines: int, weighted: bool) -> None:
    """Rows of a query by their places in the data, those of weight 0 not at all, each once a round."""
    frame = make_rows(600)
    frame["y"] = np.arange(600)  # a label says which row it is
    seen: list[Arrays] = []

    def note(label: np.ndarray, margin: np.ndarray, group: np.ndarray) -> Arrays:
        assert label.dtype == margin.dtype == np.float32 and group.dtype == np.int64 and group.sum() == len(label)
        seen.append((label.astype(int), group))
        with pytest.raises(ValueError, match="read-only"):
            label[0] = 1
        return margin - 1, np.ones(len(label))

    train({"max_depth": 2, "n_jobs": 1}, dataset(frame, n_engines, weighted=weighted), 1, objective=note)
    queries = [own for label, group in seen for own in np.split(label, np.cumsum(group)[:-1])]
    counted = frame[frame.w > 0] if weighted else frame
    expected = [own.to_numpy() for _, own in counted.groupby("q").y]
    assert sorted(map(tuple, queries)) == sorted(map(tuple, expected))
    if n_engines == 1:
        assert len(seen) == 1


@pytest.mark.parametrize(("n", "n_engines", "reduction", "by_host"), [
    (600, 2, "auto", False), (4_500, 3, "auto", True), (4_500, 3, "coordinator", False),
])  # fmt: skip
def test_engines_give_the_model_of_one(
    n: int, n_engines: int, reduction: str, by_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, params = make_rows(n), {"objective": softmax, "reduction": reduction}
    expected = outcome(params, dataset(frame, 1, chunk_rows=65_536))
    if by_host:
        monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    assert outcome(params, dataset(frame, n_engines)) == expected


@pytest.mark.emulated
@pytest.mark.parametrize(("n", "joined"), [(4_500, True), (600, False)])
def test_gpus_give_the_model_of_one_cpu(n: int, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    share_any_data(monkeypatch)
    emulated(monkeypatch, 2)
    with dataset(make_rows(n), 1, chunk_rows=65_536) as data:
        expected = outcome({"objective": softmax, "device": "cpu"}, data)
        params = {"device": "cuda", "n_gpus": 2, "reduction": "auto" if joined else "peers"}
        assert outcome({**params, "objective": softmax}, data) == expected


def test_a_ranker_on_a_cluster_is_that_of_this_process(client: Any) -> None:
    frame = make_rows(900)
    model = DaskBoostRanker(objective=softmax, n_estimators=3, max_depth=3, max_bin=32, eval_metric=["ndcg@5"])
    found = []
    for rows in (frame, spread(client, frame, 3, [0, 300, 301, 800, 900])):
        x = rows[list("abcd")]
        model.fit(x, rows["y"], qid=rows["q"], sample_weight=rows["w"], eval_set=[(x, rows["y"])], eval_qid=[rows["q"]])
        found.append((model.booster_.to_bytes(), model.evals_result_))
    assert found[0] == found[1]


def test_a_model_of_a_function_ranks_and_is_read_again() -> None:
    rows = make_data(2_000, weighted=False, large=False)
    ranker = DaskBoostRanker(objective=softmax, n_estimators=10, max_depth=3, n_jobs=1)
    ranker.fit(rows["X"], rows["y"], qid=rows["qid"])
    assert ranker.score(rows["X"], rows["y"], qid=rows["qid"]) > 0.8
    assert ranker.booster_.objective == CustomQueryObjective(softmax)
    for form in ("json", "ubj"):
        again = Booster.from_bytes(ranker.booster_.to_bytes(form))
        assert again.objective.name == "rank:pairwise"
        np.testing.assert_array_equal(again.predict(rows["X"]), ranker.predict(rows["X"]))


@pytest.mark.emulated
def test_a_fit_stays_within_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {"objective": softmax, "max_depth": 4, "device": "cuda", "n_jobs": 1, "max_bin": 64}
    with QuantizedDataset.from_dask(**make_data(8_000, weighted=False, large=True), max_bin=64, n_jobs=1) as data:
        planned = plan(params, data, num_boost_round=3)
        assert planned.without_host
        train(params, data, 3)
    within(runtime.meter.pool.total_bytes, planned)


def test_the_parameter_group_asks_for_queries() -> None:
    def by_row(label: Any, margin: Any, power: float = 2) -> Any:
        return margin, margin

    class Called:
        def __call__(self, label: Any, margin: Any, *, group: Any) -> Any:
            return margin, margin

    assert isinstance(make_objective(by_row), CustomObjective)
    assert isinstance(make_objective(partial(by_row, power=3)), CustomObjective)
    assert isinstance(make_objective(np.add), CustomObjective)  # nothing is known of its parameters
    for given in (softmax, partial(softmax), Called()):
        assert isinstance(make_objective(given), CustomQueryObjective)


def returning(g: Any, h: Any) -> Any:
    def loss(label: Any, margin: Any, group: Any) -> Any:
        return g(margin), h(margin)

    return loss


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (returning(lambda s: s[1:], np.ones_like), {}, ParameterError, "returned a gradient of shape (199,); it must have"),
    (returning(np.ones_like, lambda s: -1 - s), {}, ParameterError, "returned a negative hessian"),
    (returning(lambda s: s * np.nan, np.ones_like), {}, ParameterError, "returned NaN, infinity or values beyond"),
    (lambda label, margin, group: margin, {}, ParameterError, "returned ndarray; it must return (gradient, hessian)"),
    (lambda label, margin, weight, group: (margin, margin), {}, ParameterError, "missing a required argument"),
    (lambda label, group: (label, label), {}, ParameterError, "cannot be called as f(label, margin, group=group)"),
    (softmax, {"num_class": 3}, ParameterError, "num_class=3 does not go with a function f(label, margin, group)"),
    (softmax, {"out_of_core": "certified"}, ParameterError, "'certified' does not go with objective='custom:query'"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "params", "error", "message"), BAD)
def test_bad_functions_are_refused(
    function: Any, params: dict[str, Any], error: type[Exception], message: str
) -> None:
    rows = make_data(200, weighted=False, large=False)
    with pytest.raises(error, match=re.escape(message)):
        train(params, QuantizedDataset(rows["X"], rows["y"], qid=rows["qid"]), 1, objective=function)


def test_what_lacks_queries_is_refused() -> None:
    rows = make_data(200, weighted=False, large=False)
    with pytest.raises(DataError, match="make it with qid"):
        train({}, QuantizedDataset(rows["X"], rows["y"]), 1, objective=softmax)
    with pytest.raises(ParameterError, match=r"ranks nothing; .* a function f\(label, margin, group\)"):
        DaskBoostRanker(objective=lambda label, margin: (margin, margin)).fit(rows["X"], rows["y"], qid=rows["qid"])
    with pytest.raises(ParameterError, match="is for rankings; use DaskBoostRanker"):
        DaskBoostRegressor(objective=softmax).fit(rows["X"], rows["y"])
