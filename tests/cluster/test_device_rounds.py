"""Trees that grow on the device without the host are those of the coordinator's loop, node by node."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu
from strategies.trees import Data, make_data, quantized

from daskboost import Booster, train
from daskboost.devices.budget import gpu_memory as memory
from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import growth
from daskboost.engine import device_grower
from daskboost.engine.device_grower import DeviceGrower
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import DataError, DeviceError
from daskboost.fit import coordinator
from daskboost.training.callbacks import Callback, LearningRateSchedule, RoundInfo
from daskboost.tree.table import TreeTable

GROWTH: dict[str, dict[str, Any]] = {
    "deep": {"max_depth": 9, "min_child_weight": 0},
    "few leaves": {"max_depth": 6, "max_leaves": 11},
    "symmetric": {"max_depth": 5, "grow_policy": "symmetric"},
    "best of few": {"max_depth": 4, "grow_policy": "lossguide", "max_leaves": 9},
    "best until the end": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 200, "min_child_weight": 100.0},
}
LOSSES: dict[str, dict[str, Any]] = {
    "regression": {}, "logistic": {"objective": "binary:logistic"}, "poisson": {"objective": "count:poisson"},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"gamma": 2.0, "reg_alpha": 3.0, "reg_lambda": 0.0, "max_delta_step": 0.2},
    "monotone": {"monotone_constraints": (1, -1, 0, 1, 0, -1)},
}
SAMPLES: dict[str, dict[str, Any]] = {
    "all": {}, "rows": {"subsample": 0.4}, "columns": {"colsample_bytree": 0.7, "ignored_features": (0, 5)},
}  # fmt: skip
SCORES: dict[str, dict[str, Any]] = {"newton": {"score_function": "newton"}, "weights": {"score_function": "l2"}}
ALONE: dict[str, dict[str, Any]] = {
    "costly splits": {"max_depth": 6, "gamma": 30.0},
    "heavy children": {"max_depth": 6, "min_child_weight": 400.0},
    "levels": {"max_depth": 5, "subsample": 0.4, "colsample_bytree": 0.7, "colsample_bylevel": 0.6},
    "best of a depth": {"max_depth": 5, "grow_policy": "lossguide", "gamma": 1.0},
    "best of few levels": {"max_depth": 3, "grow_policy": "lossguide", "max_leaves": 5_000},
    "medians": {"max_depth": 6, "objective": "reg:absoluteerror", "min_child_weight": 30.0},
    "quantiles of samples": {"max_depth": 5, "objective": "reg:quantileerror", "quantile_alpha": (0.1, 0.5, 0.95),
                             "subsample": 0.4, "max_leaves": 11},
    "symmetric quantiles": {"max_depth": 4, "objective": "reg:quantileerror", "quantile_alpha": (0.3, 0.8),
                            "grow_policy": "symmetric", "learning_rate": 0.3},
    "columns of nodes": {"max_depth": 6, "colsample_bynode": 0.5, "colsample_bytree": 0.9, "ignored_features": (1,)},
    "columns of nodes of levels": {"max_depth": 4, "colsample_bynode": 0.7, "colsample_bylevel": 0.6, "max_leaves": 9},
    "interactions": {"max_depth": 6, "interaction_constraints": [[0, 1], [1, 2, 3], [4]], "min_child_weight": 0},
    "interactions of few": {"max_depth": 5, "interaction_constraints": [[f % 6, f % 5] for f in range(40)],
                            "colsample_bynode": 0.6, "monotone_constraints": (1, -1, 0, 1, 0, -1)},
    "symmetric interactions": {"max_depth": 5, "grow_policy": "symmetric", "interaction_constraints": [[0, 1], [1, 2]],
                               "colsample_bynode": 0.8},
    "best interactions": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 30, "min_child_weight": 0,
                          "interaction_constraints": [[0, 1], [1, 2, 3], [4]], "colsample_bytree": 0.9},
    "best of levels": {"max_depth": 7, "grow_policy": "lossguide", "max_leaves": 30, "colsample_bylevel": 0.6,
                       "interaction_constraints": [[0, 1], [1, 2, 3], [4, 5]]},
    "no interactions": {"max_depth": 3, "interaction_constraints": []},
    "deep of few leaves": {"max_depth": 24, "max_leaves": 43, "min_child_weight": 0, "gamma": 0.01},
    "symmetric samples": {"max_depth": 4, "grow_policy": "symmetric", "subsample": 0.5, "colsample_bynode": 0.6},
}
SMALLEST: dict[str, dict[str, Any]] = {
    "stumps": {"max_depth": 1},
    "one leaf": {"max_depth": 3, "max_leaves": 1},
    "two leaves": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 2},
    "a leaf": {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 1},
    "a median": {"max_depth": 3, "max_leaves": 1, "objective": "reg:absoluteerror"},
    "medians of halves": {"max_depth": 1, "objective": "reg:absoluteerror"},
    "a leaf by weight": {
        "max_depth": 3, "max_leaves": 1, "objective": "binary:logistic", "score_function": "l2",
    },
}
N_ROUNDS = 3


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A GPU, and how many rounds its engine was asked to grow at a time without the host."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    asked: list[int] = []
    take = WholeRounds._take

    def noted(self: WholeRounds, n: int) -> Any:
        asked.extend([n] * self.grows_alone)
        return take(self, n)

    monkeypatch.setattr(WholeRounds, "_take", noted)
    return asked


def trained(data: Data, params: dict[str, Any], device: str, n_rounds: int = N_ROUNDS, **how: Any) -> Booster:
    with quantized(data, **how) as dataset:
        return train({**params, "n_jobs": 1, "device": device}, dataset, n_rounds)


def assert_same_trees(found: Booster, expected: Booster) -> None:
    """What a difference is, before the bytes that say only that there is one."""
    for mine, other in zip(found.trees, expected.trees, strict=True):
        for name in ("left_child", "right_child", "feature", "split_bin", "default_left", "gain", "cover", "value"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)
    assert found.to_bytes() == expected.to_bytes()


def grows(choice: dict[str, Any]) -> bool:
    """Limits of a monotone constraint are of Newton's leaf values."""
    return not (choice["rules"] == "monotone" and choice["score"] == "weights")


@every_pair(
    {"growth": GROWTH, "loss": LOSSES, "rules": RULES, "samples": SAMPLES, "score": SCORES, "weighted": [False, True],
     "encoding": ["dense", "csr"]},
    possible=grows,
)  # fmt: skip
def test_equals_the_definition(growth: str, loss: str, rules: str, samples: str, score: str, weighted: bool,
                               encoding: str, taken: list[int]) -> None:  # fmt: skip
    params = {**GROWTH[growth], **LOSSES[loss], **RULES[rules], **SAMPLES[samples], **SCORES[score]}
    if weighted and loss == "logistic":
        params["scale_pos_weight"] = 1.7
    check_definition(params, weighted, encoding, taken)


@pytest.mark.parametrize(("name", "encoding"), list(zip(ALONE, cycle(["dense", "csr"]), strict=False)))
def test_rules_of_their_own_equal_the_definition(name: str, encoding: str, taken: list[int]) -> None:
    """Rules know histograms and tables, whatever the encoding of rows."""
    check_definition(ALONE[name], False, encoding, taken)


QUANTILES: dict[str, dict[str, Any]] = {
    "median": {"objective": "reg:absoluteerror"},
    "four": {"objective": "reg:quantileerror", "quantile_alpha": (0.5, 0.01, 0.9, 0.999)},
}
LABELS = ["many", "few", "wide"]


@every_pair({
    "quantiles": QUANTILES, "growth": ["deep", "few leaves", "symmetric"], "samples": SAMPLES, "labels": LABELS,
    "weighted": [False, True], "encoding": ["dense", "csr"], "together": [4, 3, 1], "n_rows": [6_000, 300],
})  # fmt: skip
def test_quantile_leaves_equal_the_definition(
    quantiles: str, growth: str, samples: str, labels: str, weighted: bool, encoding: str, together: int, n_rows: int,
    taken: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Labels may be equal in whole leaves, or of any exponent; some rows of a leaf, or all, may weigh nothing."""
    monkeypatch.setattr(plans, "trees_together", lambda n_outputs, *_: min(together, n_outputs))
    params = {**QUANTILES[quantiles], **GROWTH[growth], **SAMPLES[samples], "learning_rate": 0.7}
    rng = np.random.default_rng(8)
    data = make_data(rng, "reg:squarederror", n_rows, 6, n_values=90, missing=0.2, weighted=weighted)
    y = {"many": data.y, "few": np.round(data.y), "wide": data.y * np.float32(10) ** rng.integers(-30, 12, n_rows)}
    weight = None if data.weight is None else np.where(data.X[:, 0] > 0.5, 0, data.weight).astype(np.float32)
    data = Data(data.X, y[labels].astype(np.float32), weight)
    expected = trained(data, params, "cpu")
    assert not taken
    assert_same_trees(trained(data, params, "cuda", encoding=encoding, partitions=3), expected)
    assert sum(taken) >= N_ROUNDS


@pytest.mark.parametrize("max_leaves", [700, 1_200])
def test_many_leaves_equal_the_definition(max_leaves: int, taken: list[int]) -> None:
    """One tree, for the emulation takes seconds."""
    params = {
        "max_depth": 0, "grow_policy": "lossguide", "max_leaves": max_leaves, "min_child_weight": 0,
        "reg_lambda": 0,
    }  # fmt: skip
    found = check_definition(params, False, "dense", taken, n_rounds=1)
    assert found.trees[0].n_leaves == max_leaves


@pytest.mark.parametrize("more", [
    {}, {"colsample_bynode": 0.7, "interaction_constraints": [[0, 1, 2, 3], [3, 4, 5]]}, {"max_leaves": 299},
], ids=["plain", "features of nodes", "leaves"])  # fmt: skip
def test_levels_of_more_nodes_than_rows_equal_the_definition(more: dict[str, Any], taken: list[int]) -> None:
    """Nodes fill the first slots of levels that have room for one per row."""
    data = make_data(np.random.default_rng(9), "reg:squarederror", 700, 6, n_values=90, missing=0.1)
    params = {"max_depth": 17, "min_child_weight": 0, "reg_lambda": 0.0, **more}
    expected = trained(data, params, "cpu", 1)
    assert_same_trees(trained(data, params, "cuda", 1), expected)
    assert taken
    assert 2 ** max(depths_of(expected.trees[0])) > more.get("max_leaves", 700)


def depths_of(tree: TreeTable) -> list[int]:
    """Return the depth of each node, which come behind their parents."""
    depths = [0] * tree.n_nodes
    for node in range(tree.n_nodes):
        for child in (tree.left_child[node], tree.right_child[node]):
            if child >= 0:
                depths[child] = depths[node] + 1
    return depths


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_the_smallest_trees_equal_the_definition(encoding: str, taken: list[int]) -> None:
    for params in SMALLEST.values():
        taken.clear()
        check_definition(params, False, encoding, taken)


def test_infinite_margins_are_refused_in_the_same_round_on_both_devices(
    taken: list[int], rng: np.random.Generator
) -> None:
    def steep(label: Any, margin: Any) -> tuple[Any, Any]:
        return np.where(label > 0, np.float32(1e38), np.float32(-1e38)), np.ones_like(margin)

    data = make_data(rng, "binary:logistic", 300, 4, n_values=20)
    messages = []
    for device in ("cpu", "cuda"):
        with pytest.raises(DataError, match=r"in iteration 3, with which margins exceed float32") as caught:
            trained(data, {"objective": steep, "learning_rate": 1, "max_depth": 2}, device, 6)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert taken


def check_definition(
    params: dict[str, Any], weighted: bool, encoding: str, taken: list[int], n_rounds: int = N_ROUNDS
) -> Booster:
    """Return the model that was grown both ways."""
    rng, objective = np.random.default_rng(3), params.get("objective", "reg:squarederror")
    data = make_data(rng, objective, 6_000, 6, n_values=90, missing=0.2, weighted=weighted)
    expected = trained(data, params, "cpu", n_rounds)
    assert not taken
    assert_same_trees(trained(data, params, "cuda", n_rounds, encoding=encoding, partitions=3), expected)
    assert sum(taken) >= n_rounds
    return expected


@pytest.mark.parametrize("n_rows", [2, 37, SMALL_ROWS])
def test_small_data(n_rows: int, taken: list[int]) -> None:
    data = make_data(np.random.default_rng(4), "binary:logistic", n_rows, 5, n_values=40, missing=0.1, weighted=True)
    for score in ("newton", "l2"):
        params = {"max_depth": 6, "objective": "binary:logistic", "min_child_weight": 0, "score_function": score}
        assert_same_trees(trained(data, params, "cuda"), trained(data, params, "cpu"))
    assert sum(taken) >= 2 * N_ROUNDS


@pytest.mark.parametrize("params", [
    {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 5, "colsample_bynode": 0.5},
    {"max_depth": 14, "grow_policy": "lossguide", "gamma": 30.0},
    {"max_depth": 0, "max_leaves": 7, "objective": "reg:absoluteerror", "grow_policy": "lossguide"},
    {"max_depth": 6, "objective": "reg:pseudohubererror", "score_function": "l2", "subsample": 0.6,
     "grow_policy": "lossguide", "colsample_bynode": 0.5},
    {"max_depth": 3, "objective": "count:poisson", "score_function": "l2", "colsample_bynode": 0.5,
     "grow_policy": "lossguide"},
])  # fmt: skip
def test_what_needs_the_host_grows_by_the_definition(params: dict[str, Any], taken: list[int]) -> None:
    data = make_data(np.random.default_rng(5), params.get("objective", "reg:squarederror"), 5_000, 6, n_values=50,
                     missing=0.1)  # fmt: skip
    assert_same_trees(trained(data, params, "cuda"), trained(data, params, "cpu"))
    assert not taken


def test_histograms_without_room_grow_by_the_definition(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan says so, for estimates and for fits."""
    monkeypatch.setattr(growth.LevelSizes, "histograms", (10**9,))
    data = make_data(np.random.default_rng(6), "reg:squarederror", 5_000, 6, n_values=50, missing=0.1)
    assert_same_trees(trained(data, {"max_depth": 4}, "cuda"), trained(data, {"max_depth": 4}, "cpu"))
    assert not taken


@pytest.mark.parametrize("score", ["newton", "l2"])
def test_a_loss_without_a_kernel_goes_by_its_expressions(score: str, taken: list[int]) -> None:
    def halves(label: Any, margin: Any) -> tuple[Any, Any]:
        return (margin - label) / 2, label * 0 + np.float32(0.5)

    rng, weighted = np.random.default_rng(7), score == "l2"
    data = make_data(rng, "reg:squarederror", 5_000, 6, n_values=50, missing=0.1, weighted=weighted)
    models = []
    for device in ("cpu", "cuda"):
        with quantized(data) as dataset:
            params = {"max_depth": 4, "n_jobs": 1, "device": device, "score_function": score}
            models.append(train(params, dataset, N_ROUNDS, objective=halves))
    assert_same_trees(models[1], models[0])
    assert sum(taken) >= N_ROUNDS


@pytest.mark.parametrize("params", [{}, {"objective": "count:poisson", "score_function": "l2"}])
def test_gradients_that_are_not_finite_end_the_fit(params: dict[str, Any], taken: list[int]) -> None:
    data = make_data(np.random.default_rng(8), "reg:squarederror", 5_000, 4, n_values=30, weighted=False)
    data = replace(data, y=np.where(np.arange(5_000) == 77, 2.0**59, np.abs(data.y)).astype(np.float32))
    weight = np.full(5_000, 1e35, np.float32)
    with quantized(replace(data, weight=weight)) as dataset:
        with pytest.raises(DataError, match=r"gave a gradient of inf in iteration 0; check labels and weights"):
            train({"max_depth": 3, "device": "cuda", **params}, dataset, N_ROUNDS)
    assert taken


@pytest.mark.parametrize("growth", [{"max_depth": 3}, {"grow_policy": "lossguide", "max_leaves": 6}])
@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob"])
def test_continued_fits_have_rates_and_draws_of_their_own_rounds(
    objective: str, growth: dict[str, Any], taken: list[int]
) -> None:
    """The GPU counts rounds from the first one of the fit, which is not the first of the model."""
    data = make_data(np.random.default_rng(21), objective, 5_000, 5, n_values=50)
    classes = {"num_class": int(data.y.max()) + 1} if objective.startswith("multi") else {}
    params = {"objective": objective, "subsample": 0.5, "n_jobs": 1, **growth, **classes}

    def fit(device: str, rates: list[float], init_model: Booster | None = None) -> Booster:
        schedule = LearningRateSchedule(rates)
        given = {**params, "device": device}
        return train(given, dataset, len(rates), init_model=init_model, callbacks=[schedule])

    with quantized(data) as dataset:
        found, expected = (fit(device, [0.5, 0.25, 0.05], fit(device, [0.3, 0.1])) for device in ("cuda", "cpu"))
    assert_same_trees(found, expected)
    assert sum(taken) >= 5


def test_rounds_grow_while_the_host_finishes_others(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "first_rounds", lambda *_: 1)
    monkeypatch.setattr(coordinator, "MORE_ROUNDS", 2)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)
    told: list[tuple[str, int]] = []
    grow, trees_of = DeviceGrower._grow_round, DeviceGrower._trees_of

    def noted_grow(self: DeviceGrower, iteration: int, *rest: Any) -> None:
        told.append(("grow", iteration))
        grow(self, iteration, *rest)

    def noted_trees(self: DeviceGrower, iteration: int, *rest: Any) -> Any:
        told.append(("finish", iteration))
        return trees_of(self, iteration, *rest)

    monkeypatch.setattr(DeviceGrower, "_grow_round", noted_grow)
    monkeypatch.setattr(DeviceGrower, "_trees_of", noted_trees)
    data = make_data(np.random.default_rng(3), "reg:squarederror", 300, 3, n_values=20, weighted=False)
    trained(data, {"max_depth": 2}, "cuda", 4)
    assert taken == [1, 2, 1]
    assert told == [
        ("grow", 0), ("grow", 1), ("finish", 0), ("grow", 2), ("grow", 3), ("finish", 1), ("finish", 2), ("finish", 3)
    ]  # fmt: skip


class Ends(Callback):
    """Ends a fit after some round."""

    def __init__(self, last: int) -> None:
        self.last = last

    def after_round(self, info: RoundInfo) -> bool:
        return info.iteration == self.last


@pytest.mark.parametrize(("fails", "with_host"), [("gradient", False), ("gradient", True), ("objective", False)])
def test_what_fails_after_the_end_of_a_fit_does_not_matter(
    fails: str, with_host: bool, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    growth = {"grow_policy": "lossguide", "colsample_bynode": 0.99} if with_host else {}
    monkeypatch.setattr(coordinator, "MORE_ROUNDS", 2)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)  # rounds 1 and 2 are asked for together
    calls: list[int] = []

    def halves(label: Any, margin: Any) -> tuple[Any, Any]:
        calls.append(0)
        if fails == "objective" and len(calls) == 3:
            raise ValueError("no third time")
        g = np.full(len(label), 3e38) if len(calls) == 3 else (margin - label) / 2  # weights make it infinite
        return g, label * 0 + np.float32(0.5)

    data = make_data(np.random.default_rng(11), "reg:squarederror", 5_000, 5, n_values=50, weighted=False)
    with quantized(replace(data, weight=np.full(5_000, 100, np.float32))) as dataset:
        def fit(last: int) -> Booster:
            calls.clear()
            params = {"max_depth": 3, "min_child_weight": 2e4, "n_jobs": 1, "device": "cuda", **growth}
            return train(params, dataset, 4, objective=halves, callbacks=[Ends(last)])

        assert len(fit(1).trees) == 2
        assert taken == ([] if with_host else [1, 2])  # trees that need the host are not grown ahead
        with pytest.raises((DataError, ValueError), match=r"gradient of inf in iteration 2|no third time"):
            fit(3)


def test_a_plan_without_room_for_growing_without_the_host_is_kept(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_levels = memory.GROWTHS["levels"]
    none_fit = {**memory.GROWTHS, "levels": lambda size: by_levels(size)._replace(step_bytes=2**60)}
    monkeypatch.setattr(memory, "GROWTHS", none_fit)
    data = make_data(np.random.default_rng(12), "reg:squarederror", 5_000, 6, n_values=50, missing=0.1)
    assert_same_trees(trained(data, {"max_depth": 4}, "cuda"), trained(data, {"max_depth": 4}, "cpu"))
    assert not taken


def test_growers_without_memory_say_so(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(device_grower, "TreeGrower", full)
    data = make_data(np.random.default_rng(13), "reg:squarederror", 5_000, 6, n_values=50, missing=0.1)
    with pytest.raises(DeviceError, match="the GPU's memory does not hold the fit"):
        trained(data, {"max_depth": 4}, "cuda")


@pytest.mark.parametrize("place", ["RAM", "disk", "disk, streamed"])
def test_evaluation_sets_follow_from_memory_and_from_files(
    place: str, taken: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "streamed" in place:
        keep_on_gpu(monkeypatch, 1)
    data, other = (make_data(np.random.default_rng(seed), "binary:logistic", 3_000, 5, n_values=60) for seed in (9, 10))
    params = {"max_depth": 4, "objective": "binary:logistic", "n_jobs": 1}
    found: list[Any] = []
    for device in ("cpu", "cuda"):
        results: dict[str, Any] = {}
        with quantized(data) as dataset, quantized(
            other, reference=dataset, limit=None if place == "RAM" else 0, partitions=3, directory=tmp_path
        ) as unseen:
            evals = [(dataset, "train"), (unseen, "other")]
            model = train({**params, "device": device}, dataset, N_ROUNDS, evals=evals, evals_result=results)
        found.append((model.to_bytes(), results))
    assert found[1] == found[0]
    assert sum(taken) >= N_ROUNDS


def test_stored_gradients_have_one_range_a_round(monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> None:
    """That of the recorded round: the host asks for none."""
    from daskboost.devices.gpu.device import GpuDevice

    def refuse(self: GpuDevice, values: Any) -> Any:
        raise AssertionError("the host waits for a range")

    monkeypatch.setattr(GpuDevice, "largest", refuse)
    data = make_data(np.random.default_rng(7), "reg:squarederror", 5_000, 6, n_values=50, missing=0.1, weighted=False)
    with quantized(data) as dataset:
        train({"max_depth": 3, "n_jobs": 1, "device": "cuda"}, dataset, 2, objective=lambda y, m: (m - y, m * 0 + 1))
    assert taken
