"""Trees grown on rows that are drawn by their gradients: those of the definition, and the same bytes everywhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cluster.test_same_bytes import PLACES, WHOLE, gpu, model_bytes
from kernels.emulation import EmulatedRuntime
from reference.sampling import drawn, norm_of, threshold_of
from strategies.pairs import pairs_of
from strategies.streams import keep_on_gpu, noted_groups, stream_by_twos
from strategies.trees import Data, fit, make_data, quantized

from daskboost import Booster, DaskBoostRegressor, QuantizedDataset, plan, train
from daskboost.devices.budget.set_size import READS_AT_ONCE
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.ring import N_BUFFERS
from daskboost.errors import DataError, ParameterError
from daskboost.fit import samplers
from daskboost.hashing import Purpose, key
from daskboost.local.in_process import LocalShards

__all__ = ["gpu"]
SAMPLED = {"out_of_core": "sampled", "subsample": 0.2, "device": "cpu"}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.emulated)]
FITS: dict[str, dict[str, Any]] = {
    "logistic, monotone": {
        "objective": "binary:logistic", "max_depth": 4, "monotone_constraints": (1, 0, 0, 0, 0, -1), "gamma": 0.1,
        "interaction_constraints": [[0, 1, 2], [3, 4, 5]], "colsample_bynode": 0.7,
    },
    "five classes, lossguide": {
        "objective": "multi:softprob", "num_class": 5, "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0,
    },
    "absolute error, symmetric": {"objective": "reg:absoluteerror", "grow_policy": "symmetric", "max_depth": 3},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.9), "max_depth": 3},
    "sketched vectors": {
        "objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree", "sketch_outputs": 2,
        "max_depth": 3,
    },
    "scored by weights": {
        "objective": "multi:softprob", "num_class": 5, "grow_policy": "symmetric", "score_function": "l2",
        "max_depth": 3,
    },
    "few rows": {"objective": "binary:logistic", "max_depth": 4},
}  # fmt: skip


def data_of(name: str) -> Data:
    n_rows = 1_001 if "few" in name else 9_003
    return make_data(np.random.default_rng(8), FITS[name].get("objective", "reg:squarederror"), n_rows, 6,
                     n_values=500, missing=0.3)  # fmt: skip


def report_of(params: dict[str, Any], dataset: QuantizedDataset, n_rounds: int = 3) -> tuple[Booster, dict[str, Any]]:
    found: dict[str, dict[str, list[float]]] = {}
    booster = train({**SAMPLED, "n_jobs": 2, **params}, dataset, n_rounds, evals_result=found)
    return booster, found["out_of_core"]


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic"])
def test_a_round_is_an_exact_one_of_rows_weighted_by_what_they_stand_for(objective: str) -> None:
    """Which rows, and how much each stands for, come from the naive twin; roundings of the two fits differ."""
    data, rate = make_data(np.random.default_rng(2), objective, 6_000, weighted=False), 0.3
    params = {"objective": objective, "max_depth": 3, "base_score": 0.5, "n_jobs": 1, "device": "cpu"}
    margin = np.zeros((len(data.y), 1)) if objective == "binary:logistic" else np.full((len(data.y), 1), 0.5)
    with quantized(data) as dataset:
        booster = train({**params, "out_of_core": "sampled", "subsample": rate, "random_state": 3}, dataset, 3)
    for iteration in range(3):
        p = 1 / (1 + np.exp(-margin)) if objective == "binary:logistic" else margin
        g, h = p - data.y[:, None], p * (1 - p) if objective == "binary:logistic" else np.ones_like(p)
        norms = np.array([norm_of(*pair) for pair in zip(g, h, strict=True)])
        threshold = threshold_of(norms, rate)
        draw_key = int(key(3, Purpose.GRADIENT_SAMPLE, iteration))
        rows, kept, _, _ = drawn(g, h, np.arange(len(norms)), draw_key, threshold)
        assert len(rows) == pytest.approx(rate * len(norms), rel=0.1)
        weight = np.zeros(len(norms), np.float32)
        weight[rows] = 1 / np.minimum(1, np.array(kept) / threshold)
        with QuantizedDataset.from_dask(
            data.X, data.y, weight=weight, base_margin=margin.astype(np.float32), max_bin=16, n_jobs=1
        ) as dataset:
            expected = train(params, dataset, 1)
        grown = booster.predict(data.X, output="margin", iteration_range=(iteration, iteration + 1)) - (
            0.0 if objective == "binary:logistic" else 0.5
        )
        wanted = expected.predict(data.X, output="margin", base_margin=margin.astype(np.float32)) - margin[:, 0]
        assert np.mean(np.abs(grown - wanted) < 0.01) > 0.97
        margin += grown[:, None]


PLACED = ("logistic, monotone", "sketched vectors")
"""Fits of which all pairs of places are compared."""


def expected_bytes(name: str) -> tuple[Data, dict[str, Any], bytes]:
    params = {**FITS[name], **SAMPLED}
    data = data_of(name)
    expected = model_bytes(data, params, {"n_jobs": 1}, 3)
    assert expected != model_bytes(data, {**FITS[name], "subsample": 0.2}, {"n_jobs": 1}, 3)
    return data, params, expected


@pytest.fixture(scope="module", params=PLACED)
def case(request: pytest.FixtureRequest) -> tuple[Data, dict[str, Any], bytes]:
    return expected_bytes(request.param)


@pytest.mark.parametrize("place", [*pairs_of(PLACES), *WHOLE], ids=lambda place: "-".join(map(str, place.values())))
def test_any_pair_of_places(case: tuple[Data, dict[str, Any], bytes], place: dict[str, Any]) -> None:
    data, params, expected = case
    assert model_bytes(data, params, place, 3) == expected


@pytest.mark.parametrize("name", [name for name in FITS if name not in PLACED])
def test_two_places_more(name: str) -> None:
    data, params, expected = expected_bytes(name)
    places: list[dict[str, Any]] = [
        {"engines": 3, "partitions": 7, "encoding": "csr", "reduction": "peers", "n_jobs": 2},
        {"engines": 2, "partitions": 50, "chunk_rows": 1_000, "packing": "tight", "reduction": "coordinator"},
    ]
    for place in places:
        assert model_bytes(data, params, place, 3) == expected


GPU_PLACES: list[dict[str, Any]] = pairs_of({
    "name": FITS, "encoding": ["dense", "csr"], "engines": [1, 2],
    "on_disk": ["no", "stays on the GPU", "streams"],
})  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", FITS)
def test_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes and the report of the CPU; metrics of training rows, whose margins wait for the next pass."""
    data = data_of(name)

    def outcome(device: str, **place: Any) -> tuple[bytes, dict[str, Any]]:
        with quantized(data, directory=tmp_path, **place) as dataset:
            found: dict[str, Any] = {}
            given = {**SAMPLED, **FITS[name], "n_jobs": 1, "device": device}
            booster = train(given, dataset, 3, evals=[(dataset, "train")], evals_result=found)
        return booster.to_bytes(), found

    expected = outcome("cpu")
    for choice in GPU_PLACES:
        if choice["name"] == name:
            place = {"encoding": choice["encoding"], "engines": choice["engines"], "partitions": 4}
            if choice["on_disk"] != "no":
                place |= {"limit": 1}
            with monkeypatch.context() as patch:
                if choice["on_disk"] == "streams":
                    keep_on_gpu(patch, 0)
                assert outcome("cuda", **place) == expected, choice


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_streamed_chunks_are_read_once_per_round(device: str, engines: int, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The model is that of chunks in RAM."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    data, params = data_of("five classes, lossguide"), FITS["five classes, lossguide"]
    with quantized(data, partitions=7, engines=engines, chunk_rows=1_000) as dataset:
        expected, _ = report_of(params, dataset, 6)
    with quantized(data, partitions=7, engines=engines, chunk_rows=1_000, limit=1, directory=tmp_path) as dataset:
        assert isinstance(dataset.shards, LocalShards)
        stream_by_twos(monkeypatch, dataset)
        keep_on_gpu(monkeypatch, 0)
        noted = noted_groups(monkeypatch)
        booster, report = report_of({**params, "device": device}, dataset, 6)
        assert booster.to_bytes() == expected.to_bytes()
        assert report["passes"] == [1] * 6
        assert np.abs(np.array(report["rows"]) / (0.2 * len(data.y)) - 1).max() < 0.1
        for shard in dataset.shards.shards:
            ahead = shard.store.counters().disk_reads - len(shard.entries) * 6
            most = 0 if device == "cpu" else (N_BUFFERS + READS_AT_ONCE) * max(map(max, noted))
            assert 0 <= ahead <= most  # of a pass that never came
        assert device == "cpu" or (len(noted) == engines and max(map(max, noted)) == 2)


@pytest.mark.parametrize("mode", [{"out_of_core": "certified"}, SAMPLED], ids=["certified", "sampled"])
def test_evaluation_sets_are_read_once_per_round(mode: dict[str, Any], tmp_path: Path) -> None:
    """For the trees of all classes together."""
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 2, "n_jobs": 1, "device": "cpu", **mode}
    data, found = data_of("five classes, lossguide"), []
    for limit in (None, 1):
        with quantized(data, partitions=3, chunk_rows=1_000, limit=limit, directory=tmp_path) as dataset:
            assert isinstance(dataset.shards, LocalShards)
            results: dict[str, Any] = {}
            booster = train(params, dataset, 3, evals=[(dataset, "train")], evals_result=results)
            found.append((booster.to_bytes(), results))
            shard = dataset.shards.shards[0]
            n_passes = sum(results["out_of_core"]["passes"]) + 3
            assert shard.store.counters().disk_reads == (0 if limit is None else n_passes * len(shard.entries))
    assert found[0] == found[1]


@pytest.mark.parametrize("guess", [3.0, 1e-9], ids=["too high", "too many candidates"])
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_a_wrong_guess_costs_a_pass_and_changes_nothing(
    device: str, guess: float, engines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    with quantized(data_of("logistic, monotone"), partitions=5, engines=engines) as dataset:
        expected, report = report_of(FITS["logistic, monotone"], dataset, 4)
        monkeypatch.setattr(samplers, "GUESS", guess)
        monkeypatch.setattr(samplers, "FIRST_GUESS", guess)
        with caplog.at_level(logging.INFO, "daskboost"):
            booster, again = report_of({**FITS["logistic, monotone"], "device": device}, dataset, 4)
    assert booster.to_bytes() == expected.to_bytes()
    assert (report["passes"], again["passes"]) == ([1] * 4, [1, 2, 2, 2])
    assert again["rows"] == report["rows"]
    assert "draws again" in caplog.text


def exploding(label: Any, margin: Any) -> tuple[Any, Any]:
    """Gradients a thousand times those of the round before."""
    return (margin * np.float32(1_000) + label).astype(np.float32), np.ones_like(margin)


def constant(label: Any, margin: Any) -> tuple[Any, Any]:
    return np.ones_like(margin), np.ones_like(margin)


@pytest.mark.parametrize(("loss", "share", "passes", "rows"), [
    (exploding, 0.2, [1, 2, 2], 200), (constant, 0.2, [1, 1, 1], 200), (constant, 1e-9, [1, 1, 1], 0),
    (constant, 1 - 2**-53, [1, 1, 1], 1_001),
])  # fmt: skip
@pytest.mark.parametrize("device", DEVICES)
def test_a_round_takes_two_passes_at_most(device: str, loss: Any, share: float, passes: list[int], rows: int,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Whatever gradients do; engines without rows take part, and a sample may have none."""
    monkeypatch.setattr(samplers, "SLACK_ROWS", 10)
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    models = set()
    for engines in (1, 5):
        with quantized(data_of("few rows"), partitions=3 if engines > 1 else 1, engines=engines) as dataset:
            found: dict[str, Any] = {}
            params = {**SAMPLED, "subsample": share, "max_depth": 3, "learning_rate": 1.0, "n_jobs": 1,
                      "device": device}  # fmt: skip
            booster = train(params, dataset, 3, objective=loss, evals_result=found)
        models.add(booster.to_bytes())
        assert found["out_of_core"]["passes"] == passes
        assert found["out_of_core"]["rows"] == pytest.approx([rows] * 3, rel=0.3)
        assert rows or [tree.n_nodes for tree in booster.trees] == [1, 1, 1]
    assert len(models) == 1


def test_a_fit_that_goes_on_is_one_that_was_never_interrupted() -> None:
    params = {**SAMPLED, **FITS["logistic, monotone"], "n_jobs": 1}
    with quantized(data_of("logistic, monotone")) as dataset:
        half = train(params, dataset, 2)
        assert train(params, dataset, 2, init_model=half).to_bytes() == train(params, dataset, 4).to_bytes()


def test_metrics_early_stopping_and_base_margins() -> None:
    """Metrics see every tree of their round, those of the training rows too, whose margins wait for the next pass."""
    data, rng = data_of("logistic, monotone"), np.random.default_rng(3)
    margin = rng.normal(size=(len(data.y), 1)).astype(np.float32)
    with (
        QuantizedDataset.from_dask(data.X, data.y, base_margin=margin, max_bin=16, n_jobs=1) as dataset,
        QuantizedDataset.from_dask(data.X, rng.permutation(data.y), reference=dataset) as noise,
    ):
        found: dict[str, dict[str, list[float]]] = {}
        params = {**SAMPLED, "objective": "binary:logistic", "max_depth": 3, "learning_rate": 1.0, "n_jobs": 1}
        booster = train(params, dataset, 60, evals=[(dataset, "all"), (noise, "noise")], early_stopping_rounds=2,
                        evals_result=found)  # fmt: skip
    assert booster.n_iterations < 60
    p = booster.predict(data.X, base_margin=margin, iteration_range=(0, booster.n_iterations)).clip(1e-15, 1 - 1e-15)
    logloss = -np.mean(data.y * np.log(p) + (1 - data.y) * np.log(1 - p))
    assert found["all"]["logloss"][-1] == pytest.approx(logloss, rel=1e-4)


def test_rows_that_do_not_count_are_never_drawn() -> None:
    """A fold's held-out rows have weight 0; a fifth of the others is drawn."""
    data = data_of("logistic, monotone")
    chosen = np.arange(0, len(data.y), 3)
    with quantized(data) as dataset:
        _, report = report_of({"objective": "binary:logistic"}, dataset.subset(chosen))
    assert np.abs(np.array(report["rows"]) / (0.2 * len(chosen)) - 1).max() < 0.15


def test_sparse_rows_and_rows_without_gradients() -> None:
    rng = np.random.default_rng(2)
    dense = np.where(rng.random((5_000, 30)) < 0.2, rng.normal(size=(5_000, 30)), 0).astype(np.float32)
    y = (dense[:, 0] + dense[:, 1] * dense[:, 2]).astype(np.float32)

    def above(label: Any, margin: Any) -> tuple[Any, Any]:
        g = np.where(label > 0.5, margin - label, 0)
        return g, (g != 0).astype(np.float32)

    with QuantizedDataset.from_dask(scipy.sparse.csr_matrix(dense), y, max_bin=32, n_jobs=1) as dataset:
        booster = train({**SAMPLED, "max_depth": 4, "n_jobs": 1}, dataset, 30)
        assert np.mean((booster.predict(dense) - y) ** 2) < 0.5 * np.var(y)
        found: dict[str, Any] = {}
        train({**SAMPLED, "n_jobs": 1, "base_score": 0.0}, dataset, 2, objective=above, evals_result=found)
        assert found["out_of_core"]["rows"][0] == pytest.approx(0.2 * (y > 0.5).sum(), rel=0.2)
        nothing = train({**SAMPLED, "n_jobs": 1, "base_score": 0.0}, dataset, 2,
                        objective=lambda label, margin: (0 * margin, 0 * margin))  # fmt: skip
    assert [tree.n_nodes for tree in nothing.trees] == [1, 1] and not nothing.predict(dense).any()


def test_a_sample_of_a_tenth_learns_about_what_all_rows_teach() -> None:
    data, fresh = (make_data(np.random.default_rng(seed), "binary:logistic", 20_000, 6, 500) for seed in (1, 2))
    params = {"objective": "binary:logistic", "max_depth": 4, "learning_rate": 0.2, "device": "cpu"}
    losses = []
    for more in ({}, {"out_of_core": "sampled", "subsample": 0.1}, {"subsample": 0.01}):
        p = fit(data, {**params, **more}, 30).predict(fresh.X).clip(1e-6, 1 - 1e-6)
        losses.append(-np.mean(fresh.y * np.log(p) + (1 - fresh.y) * np.log(1 - p)))
    assert losses[1] < losses[0] + 0.02 < losses[2]


REFUSED: dict[str, dict[str, Any]] = {
    "subsample=0.1": {"subsample": 1.0},
    "resident_share=0.5 is only read": {"resident_share": 0.5},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_together_is_refused(message: str) -> None:
    params = {**SAMPLED, **REFUSED[message]}
    with quantized(data_of("few rows")) as dataset, pytest.raises(ParameterError, match="sampled") as caught:
        train(params, dataset, 1)
    assert message in str(caught.value)
    with pytest.raises(ParameterError, match="sampled"):
        plan(params, n_rows=10_000, n_features=6)


def test_other_refusals() -> None:
    with quantized(data_of("few rows")) as dataset:
        with pytest.raises(ParameterError, match="an evaluation set is named 'out_of_core'"):
            train(SAMPLED, dataset, 1, evals=[(dataset, "out_of_core")])
        with pytest.raises(ParameterError, match="out_of_core='sampled' draws rows by their gradients"):
            train({"sampling_method": "gradient_based"}, dataset, 1)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_that_are_not_finite_are_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such rows are always drawn."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    data = data_of("few rows")
    assert data.weight is not None
    data.weight[7], data.y[7] = 1e38, 1e6
    with pytest.raises(DataError, match=r"gave a gradient of inf in iteration 0; check labels and weights"):
        fit(data, {**SAMPLED, "base_score": 0.0, "device": device})


def test_estimators_take_the_same_parameters_and_models_keep_them() -> None:
    data = data_of("few rows")
    model = DaskBoostRegressor(out_of_core="sampled", subsample=0.3, n_estimators=3, max_bin=16, n_jobs=1)
    model.fit(data.X, data.y)
    assert len(model.evals_result_["out_of_core"]["rows"]) == 3
    params = model.booster_.params
    assert params["out_of_core"] == "sampled" and params["subsample"] == "0.3" and "resident_share" not in params
