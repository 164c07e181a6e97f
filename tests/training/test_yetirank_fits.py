"""Whole fits of YetiRank: bytes that depend on rows alone, files, quality, and plans that are kept."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xgboost
from kernels.tracked import TrackedRuntime
from training.plan_shapes import within
from training.test_ranking_fits import WHERE, emulate, make_data

from daskboost import Booster, DaskBoostRanker, QuantizedDataset, plan, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import ParameterError
from daskboost.params import TrainParams
from daskboost.training.checks import check_loss_parameters
from daskboost.training.train import objective_of

PARAMS: dict[str, Any] = {
    "objective": "yetirank", "yetirank_permutations": 3, "max_depth": 4, "max_bin": 32, "n_jobs": 1,
    "min_child_weight": 0,
}  # fmt: skip


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("mode", "n_rows"), [("classic", 600), ("ndcg", 4_500), ("map", 4_500), ("err", 600)])
def test_models_depend_on_rows_alone(mode: str, n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(where, monkeypatch)
    rows, found = make_data(n_rows, weighted=True, large=n_rows > 600), []
    for device, chunk_rows, jobs in (("cpu", 0, 1), ("cpu", 333, 3), ("cuda", 0, 1)):
        with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=chunk_rows) as data:
            params = {**PARAMS, "yetirank_mode": mode, "device": device, "n_jobs": jobs}
            begun = train(params, data, 2)
            found += [train(params, data, 4), train(params, data, 2, init_model=begun)]
    models = {tuple(tree.value.tobytes() for tree in each.trees) for each in found}
    assert len(models) == 1 and all(tree.n_nodes > 1 for tree in found[0].trees)


def test_partitions_and_names_of_queries_do_not_show() -> None:
    rows, history = make_data(2_000, weighted=False, large=False), []
    frame = pd.DataFrame(rows["X"], columns=list("abcd")).assign(y=rows["y"], q=[f"q{own}" for own in rows["qid"]])
    models = []
    for data in (
        QuantizedDataset(rows["X"], rows["y"], qid=rows["qid"], feature_names=list("abcd"), max_bin=32),
        QuantizedDataset(dd.from_pandas(frame, npartitions=5), "y", qid="q", feature_names=list("abcd"), max_bin=32),
    ):
        found: dict[str, Any] = {}
        own = {**PARAMS, "yetirank_mode": "mrr"}
        models.append(train(own, data, 3, evals=[(data, "train")], evals_result=found).to_bytes("json"))
        history.append(found)
    assert models[0] == models[1] and history[0] == history[1] and list(history[0]["train"]) == ["mrr"]


def test_scores_rank_and_files_keep_the_loss() -> None:
    rows = make_data(4_500, weighted=False, large=False)
    ranker, plain = (
        DaskBoostRanker(objective=name, n_estimators=30, max_depth=4, n_jobs=1)
        .fit(rows["X"], rows["y"], qid=rows["qid"]) for name in ("yetirank", "rank:ndcg")
    )
    scores = [each.score(rows["X"], rows["y"], qid=rows["qid"]) for each in (ranker, plain)]
    assert scores[0] > scores[1] - 0.02
    booster = ranker.booster_
    for form in ("json", "ubj"):
        again = Booster.from_bytes(booster.to_bytes(form))
        assert again.objective == booster.objective and again.objective.name == "yetirank"
        assert again.to_bytes("json") == booster.to_bytes("json")
    assert json.loads(booster.to_bytes("json"))["learner"]["objective"]["name"] == "rank:pairwise"
    theirs = xgboost.Booster(model_file=bytearray(booster.to_bytes("json"))).predict(xgboost.DMatrix(rows["X"]))
    np.testing.assert_array_equal(theirs, booster.predict(rows["X"]))


def test_gains_of_labels_go_with_other_objectives_of_queries() -> None:
    rows = make_data(600, weighted=False, large=False)
    data = QuantizedDataset(rows["X"], rows["y"] * 2, qid=rows["qid"], max_bin=32)
    trees = [
        train({"objective": "rank:ndcg", "max_depth": 3, "n_jobs": 1, "max_bin": 32, "label_gain": gains}, data, 2)
        .predict(rows["X"]) for gains in ((), (0, 1, 3), (0, 1, 9))
    ]  # fmt: skip
    assert np.array_equal(trees[0], trees[1]) and not np.array_equal(trees[0], trees[2])
    with pytest.raises(ParameterError, match=r"label_gain=.* has no effect with objective='rank:pairwise'"):
        train({"objective": "rank:pairwise", "label_gain": [0, 1, 3], "eval_metric": "map"}, data, 1)
    with pytest.raises(ParameterError, match=r"yetirank_decay=0\.5 has no effect with objective='rank:ndcg'"):
        train({"objective": "rank:ndcg", "yetirank_decay": 0.5}, data, 1)


@pytest.mark.parametrize(("params", "is_read"), [
    ({"objective": "rank:ndcg"}, True), ({"objective": "rank:ndcg", "eval_metric": "map"}, True),
    ({"objective": "rank:pairwise"}, True), ({"objective": "rank:pairwise", "eval_metric": "map"}, False),
    ({"objective": "rank:map"}, False), ({"objective": "rank:map", "eval_metric": ["map", "ndcg@3"]}, True),
    ({"objective": "yetirank"}, True), ({"objective": "yetirank", "eval_metric": "map"}, False),
    ({"objective": "yetirank", "yetirank_mode": "dcg", "eval_metric": "map"}, True),
    ({"objective": "yetirank", "yetirank_mode": "mrr"}, False),
    ({"objective": "yetirank", "yetirank_mode": "err"}, True),
    ({"objective": "pairlogit"}, True),
], ids=str)  # fmt: skip
def test_gains_that_neither_the_loss_nor_a_metric_reads_are_refused(params: dict[str, Any], is_read: bool) -> None:
    gains: list[dict[str, Any]] = [{"ndcg_exp_gain": False}]
    if params["objective"] in ("rank:ndcg", "yetirank"):
        gains.append({"label_gain": [0, 1, 5]})
    for own in gains:
        given = TrainParams.from_mapping({**params, **own})
        with nullcontext() if is_read else pytest.raises(ParameterError, match="has no effect with objective="):
            check_loss_parameters(given, objective_of(given))


@pytest.mark.emulated
@pytest.mark.parametrize("mode", ["classic", "mrr", "err"])
def test_a_fit_stays_within_its_plan(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {**PARAMS, "yetirank_mode": mode, "device": "cuda"}
    with QuantizedDataset.from_dask(**make_data(8_000, weighted=False, large=True), max_bin=32, n_jobs=1) as data:
        planned = plan(params, data, num_boost_round=3)
        assert planned.without_host
        train(params, data, 3)
    within(runtime.meter.pool.total_bytes, planned)
