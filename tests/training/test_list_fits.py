"""Whole fits of losses of lists: bytes that depend on rows alone, files, quality, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import xgboost
from kernels.tracked import TrackedRuntime
from training.plan_shapes import within
from training.test_ranking_fits import WHERE, emulate, make_data

from daskboost import Booster, DaskBoostRanker, QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.objective_names import make_objective
from daskboost.objectives.pair_logit import PairLogit

NAMES = ("querysoftmax", "queryrmse", "pairlogit")
PARAMS: dict[str, Any] = {"max_depth": 4, "max_bin": 32, "n_jobs": 1, "min_child_weight": 0}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_rows", [600, 4_500])
def test_models_depend_on_rows_alone(
    name: str, n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(where, monkeypatch)
    rows, found = make_data(n_rows, weighted=True, large=True), []
    for device, chunk_rows, jobs in (("cpu", 0, 1), ("cpu", 333, 3), ("cuda", 0, 1)):
        with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=chunk_rows) as data:
            params = {**PARAMS, "objective": name, "device": device, "n_jobs": jobs}
            begun = train(params, data, 2)
            found += [train(params, data, 4), train(params, data, 2, init_model=begun)]
    models = {tuple(tree.value.tobytes() for tree in each.trees) for each in found}
    assert len(models) == 1 and all(tree.n_nodes > 1 for tree in found[0].trees)


@pytest.mark.parametrize("name", NAMES)
def test_scores_rank_and_files_keep_the_loss(name: str) -> None:
    rows = make_data(4_500, weighted=False, large=False)
    params: dict[str, Any] = {"querysoftmax_beta": 0.5, "querysoftmax_lambda": 0.1} if name == "querysoftmax" else {}
    ranker = DaskBoostRanker(objective=name, n_estimators=30, max_depth=4, n_jobs=1, **params)
    ranker.fit(rows["X"], rows["y"], qid=rows["qid"])
    plain = DaskBoostRanker(objective="rank:ndcg", n_estimators=30, max_depth=4, n_jobs=1)
    plain.fit(rows["X"], rows["y"], qid=rows["qid"])
    scores = [each.score(rows["X"], rows["y"], qid=rows["qid"]) for each in (ranker, plain)]
    assert scores[0] > scores[1] - 0.02
    booster = ranker.booster_
    for form in ("json", "ubj"):
        again = Booster.from_bytes(booster.to_bytes(form))
        assert again.objective == booster.objective == make_objective(name, params)
        assert again.to_bytes("json") == booster.to_bytes("json")
    assert json.loads(booster.to_bytes("json"))["learner"]["objective"]["name"] == "rank:pairwise"
    loaded = xgboost.Booster(model_file=bytearray(booster.to_bytes("json")))
    theirs = loaded.predict(xgboost.DMatrix(rows["X"]), output_margin=True)
    np.testing.assert_array_equal(theirs, booster.predict(rows["X"]))


def test_queries_whose_pairs_are_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairLogit, "most_query_rows", 9)
    rows = make_data(200, weighted=False, large=False)
    data = QuantizedDataset(rows["X"], rows["y"], qid=rows["qid"] % 4)
    with pytest.raises(DataError, match="takes all pairs of rows of a query, at most 9 rows"):
        train({"objective": "pairlogit"}, data, 1)


def test_softmax_learns_nothing_from_queries_without_labels() -> None:
    """Rows of queries of zeros have no gradients: a model of the others is the same."""
    rows = make_data(1200, weighted=False, large=False)
    with_label = np.isin(rows["qid"], rows["qid"][rows["y"] > 0])
    empty = ~with_label | (rows["qid"] % 3 == 0)
    label = np.where(empty, 0, rows["y"])
    data = QuantizedDataset(rows["X"], label, qid=rows["qid"])
    weight = np.where(empty, 0.0, 1.0)
    few = QuantizedDataset(rows["X"], label, qid=rows["qid"], weight=weight, reference=data)
    params = {"objective": "querysoftmax", "max_depth": 4, "n_jobs": 1, "min_child_weight": 0}
    models = [train(params, each, 2).predict(rows["X"]) for each in (data, few)]
    np.testing.assert_allclose(models[0], models[1], rtol=1e-4, atol=1e-5)
    assert np.ptp(models[0]) > 0.1


@pytest.mark.emulated
def test_a_fit_stays_within_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {"objective": "querysoftmax", "max_depth": 4, "device": "cuda", "n_jobs": 1, "max_bin": 64}
    with QuantizedDataset.from_dask(**make_data(8_000, weighted=False, large=True), max_bin=64, n_jobs=1) as data:
        planned = plan(params, data, num_boost_round=3)
        assert planned.without_host
        train(params, data, 3)
    within(runtime.meter.pool.total_bytes, planned)


BAD: list[tuple[dict[str, Any], float, type[Exception], str]] = [
    ({"objective": "querysoftmax"}, -1, DataError, "label -1 is out of range for objective 'querysoftmax'"),
    ({"objective": "querysoftmax", "querysoftmax_beta": 0}, 0, ParameterError, "querysoftmax_beta=0"),
    ({"objective": "querysoftmax", "querysoftmax_lambda": -1}, 0, ParameterError, "querysoftmax_lambda=-1"),
    ({"objective": "queryrmse", "querysoftmax_lambda": 1}, 0, ParameterError, "has no effect"),
    ({"objective": "queryrmse"}, 1e30, DataError, "too large for objective 'queryrmse'"),
    ({"objective": "queryrmse", "out_of_core": "certified"}, 0, ParameterError, "'certified' does not go with"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "added", "error", "message"), BAD)
def test_bad_input_is_refused(params: dict[str, Any], added: float, error: type[Exception], message: str) -> None:
    rows = make_data(200, weighted=False, large=False)
    with pytest.raises(error, match=re.escape(message)):
        train(params, QuantizedDataset(rows["X"], rows["y"] + added, qid=rows["qid"]), 1)
    with pytest.raises(DataError, match="make it with qid"):
        train({"objective": "queryrmse"}, QuantizedDataset(rows["X"], rows["y"]), 1)
