"""Fits whose metrics a GPU computes behind the trees: models, histories and best rounds are the CPU's, to the byte."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.streams import keep_on_gpu
from strategies.trees import Data, make_data

from daskboost import QuantizedDataset, cv, plan, train
from daskboost.devices.budget import gpu_memory as memory
from daskboost.devices.gpu.rows.metrics import STATE_WORDS
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import passes
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum
from daskboost.fit import coordinator
from daskboost.metrics.classification import AveragePrecision, CurveArea, RocAuc
from daskboost.metrics.metric import Metric
from daskboost.metrics.metric_names import make_metric
from daskboost.training.callbacks import Callback, RoundInfo

BINARY: dict[str, Any] = {"objective": "binary:logistic", "max_depth": 2}
ALL_BINARY = ["auc", "aucpr", "logloss", "error@0.4", "rmse"]


@dataclass
class Asked:
    """What engines were asked for."""

    evaluations: int = 0
    takes: list[int] = field(default_factory=list)


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A GPU, and what the host waits for there."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=5))
    found, evaluate, take = Asked(), passes.RowSets.evaluate, WholeRounds._take

    def noting(self: passes.RowSets, message: Any) -> Any:
        found.evaluations += self._device.name.startswith("cuda")
        return evaluate(self, message)

    def noting_take(self: WholeRounds, n: int) -> Any:
        found.takes.extend([n] * self.grows_alone)
        return take(self, n)

    monkeypatch.setattr(passes.RowSets, "evaluate", noting)
    monkeypatch.setattr(WholeRounds, "_take", noting_take)
    return found


@dataclass(frozen=True)
class Problem:
    """Rows to train on, and evaluation sets by name."""

    train: Data
    evals: dict[str, Data]


def problem(objective: str = "binary:logistic", *, n_rows: int = 1_200, weighted: bool = False) -> Problem:
    rows, other, third = (
        make_data(np.random.default_rng(seed), objective, n, n_values=9, weighted=weighted)
        for seed, n in ((1, n_rows), (2, 500), (3, 77))
    )
    return Problem(rows, {"train": rows, "other": other, "third": third})


def outcome(case: Problem, params: dict[str, Any], n_rounds: int = 4, **how: Any) -> tuple[bytes, Any, Any]:
    """The model, the history of metrics, and the best round."""
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        def dataset(data: Data, reference: QuantizedDataset | None) -> QuantizedDataset:
            made = QuantizedDataset.from_dask(data.X, data.y, weight=data.weight, reference=reference)
            return stack.enter_context(made)

        rows = dataset(case.train, None)
        evals = [
            (rows if data is case.train else dataset(data, rows), name) for name, data in case.evals.items()
        ]
        model = train({"n_jobs": 1, **params}, rows, n_rounds, evals=evals, evals_result=results, **how)
    return model.to_bytes(), results, (model.best_iteration, model.best_score)


def assert_same(case: Problem, params: dict[str, Any], asked: Asked, n_rounds: int = 4, **how: Any) -> Any:
    """On both devices; NaN equals NaN. The history is returned."""
    expected = outcome(case, {**params, "device": "cpu"}, n_rounds, **how)
    assert not asked.takes
    found = outcome(case, {**params, "device": "cuda"}, n_rounds, **how)
    assert found[0] == expected[0]
    assert repr(found[1:]) == repr(expected[1:])
    assert asked.takes
    return found[1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("objective", "metrics", "more"), [
    ("binary:logistic", ALL_BINARY, {}), ("binary:logitraw", ["auc", "logloss"], {}),
    ("multi:softprob", ["mlogloss", "merror"], {"num_class": 5}), ("multi:softmax", ["merror"], {"num_class": 5}),
    ("reg:squarederror", ["rmse", "mae", "mape", "mphe", "quantile@0.3"], {}), ("reg:tweedie", ["rmse", "rmsle"], {}),
    ("count:poisson", ["rmse", "gamma-nloglik"], {"grow_policy": "lossguide", "max_leaves": 5}),
])  # fmt: skip
def test_histories_are_the_cpus(
    objective: str, metrics: list[str], more: dict[str, Any], weighted: bool, asked: Asked
) -> None:
    """Of the rows that are trained on, and of two other sets; trees of few rounds tie many scores."""
    of_data = {"binary:logitraw": "binary:logistic", "multi:softmax": "multi:softprob", "reg:tweedie": "count:poisson"}
    case = problem(of_data.get(objective, objective), weighted=weighted)
    assert_same(case, {"objective": objective, "max_depth": 2, "eval_metric": metrics, **more}, asked)
    assert asked.evaluations == 0


def test_the_objectives_own_metric(asked: Asked) -> None:
    found = assert_same(problem(), BINARY, asked)
    assert list(found["other"]) == ["logloss"] and asked.evaluations == 0


def test_users_losses_have_margins_for_predictions(asked: Asked) -> None:
    def squares(label: Any, margin: Any) -> tuple[Any, Any]:
        return margin - label, margin * 0 + 1

    assert_same(problem("reg:squarederror"), {"objective": squares, "max_depth": 2, "eval_metric": ["mae"]}, asked)
    assert asked.evaluations == 0


@pytest.mark.parametrize("which", ["one class", "no weight", "one row", "all equal"])
def test_odd_evaluation_sets(which: str, asked: Asked) -> None:
    """NaN where a class is absent or weighs nothing."""
    case = problem(weighted=True)
    other = case.evals["other"]
    assert other.weight is not None
    odd = {
        "one class": replace(other, y=np.ones_like(other.y)),
        "no weight": replace(other, weight=np.where(np.arange(500) == 3, 1, 0).astype(np.float32)),
        "one row": Data(other.X[:1], other.y[:1], other.weight[:1]),
        "all equal": replace(other, X=np.zeros_like(other.X)),
    }[which]
    found = assert_same(Problem(case.train, {"odd": odd}), {**BINARY, "eval_metric": ALL_BINARY}, asked)
    assert math.isnan(found["odd"]["auc"][-1]) == (which != "all equal")
    assert which != "all equal" or found["odd"]["auc"][-1] == 0.5


class Ends(Callback):
    """Ends a fit after some round, and keeps what it has seen."""

    def __init__(self, last: int) -> None:
        self.last, self.seen = last, []  # type: ignore[var-annotated]

    def after_round(self, info: RoundInfo) -> bool:
        self.seen.append((info.iteration, repr(dict(info.evals_result)), len(info.snapshot().trees)))
        return info.iteration == self.last


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_inside_a_take_of_rounds(
    patience: int, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that were grown beyond it are dropped, with what their metrics would have said."""
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)
    monkeypatch.setattr(coordinator, "LEAST_PART", 1.0)
    params = {**BINARY, "learning_rate": 1.0, "max_depth": 4, "eval_metric": ["logloss", "auc"]}
    found = assert_same(problem(), params, asked, 31, early_stopping_rounds=patience)
    n_rounds = len(found["other"]["auc"])
    assert patience < n_rounds < 31
    assert sum(asked.takes) > n_rounds, "the take ends behind the stop"


def test_callbacks_see_rounds_in_order(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MORE_ROUNDS", 2)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)
    stories = []
    for device in ("cpu", "cuda"):
        ends = Ends(4)
        params = {**BINARY, "eval_metric": ["auc"], "device": device}
        model, history, _ = outcome(problem(), params, 20, callbacks=[ends])
        stories.append((ends.seen, model, history))
    assert stories[0] == stories[1]
    assert [iteration for iteration, _, _ in stories[1][0]] == [0, 1, 2, 3, 4]
    assert asked.takes == [1, 2, 4]


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
def test_more_rounds_than_are_kept_at_once(at_once: int, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from daskboost.engine import whole_rounds

    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)
    for module in (memory, whole_rounds):
        monkeypatch.setattr(module, "ROUNDS_AT_ONCE", at_once)
    assert_same(problem(n_rows=300), {**BINARY, "eval_metric": ["auc", "logloss"]}, asked, 11)


@pytest.mark.parametrize("together", [1, 2])
def test_groups_of_trees_come_before_metrics(together: int, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from daskboost.devices.budget import gpu_plans

    monkeypatch.setattr(gpu_plans, "trees_together", lambda *_: together)
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 2, "eval_metric": ["mlogloss"]}
    assert_same(problem("multi:softprob"), params, asked, 3)


def test_folds_are_watched_by_their_own_rows(asked: Asked) -> None:
    """Margins of held-out rows are those of all rows, of which some count."""
    case, histories = problem(weighted=True), []
    for device in ("cpu", "cuda"):
        with QuantizedDataset.from_dask(case.train.X, case.train.y, weight=case.train.weight) as dataset:
            params = {**BINARY, "eval_metric": ["auc", "logloss"], "n_jobs": 1, "device": device}
            histories.append(cv(params, dataset, 3, folds=3))
    assert repr(histories[0]) == repr(histories[1])
    assert asked.evaluations == 0 < len(asked.takes)


@pytest.mark.parametrize("tier", ["RAM", "disk", "disk, streamed"])
def test_chunks_of_evaluation_sets(
    tier: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them; the margins of those that stream are watched all the same."""
    if "streamed" in tier:
        keep_on_gpu(monkeypatch, 1)
    case, found = problem(), []
    for device in ("cpu", "cuda"):
        results: dict[str, Any] = {}
        where: Any = {} if tier == "RAM" else {"host_memory_limit": 1, "spill_directory": tmp_path}
        with QuantizedDataset.from_dask(case.train.X, case.train.y) as rows, QuantizedDataset.from_dask(
            case.evals["other"].X, case.evals["other"].y, reference=rows, chunk_rows=128, **where
        ) as other:
            params = {**BINARY, "eval_metric": ["auc", "logloss"], "n_jobs": 1, "device": device}
            model = train(params, rows, 3, evals=[(other, "other")], evals_result=results)
        found.append((model.to_bytes(), results))
    assert found[0] == found[1]
    assert asked.evaluations == 0 < len(asked.takes)


def test_what_a_metric_refuses(asked: Asked) -> None:
    """In the words of the CPU."""
    case, messages = problem(), []
    other = case.evals["other"]
    bad = replace(other, y=np.where(np.arange(500) == 7, 0.25, other.y).astype(np.float32))
    for device in ("cpu", "cuda"):
        with pytest.raises(DataError, match=r"label 0\.25 for metric 'auc'") as caught:
            outcome(Problem(case.train, {"other": bad}), {**BINARY, "eval_metric": ["auc"], "device": device}, 2)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert asked.takes == [1]
    words = np.zeros(STATE_WORDS, np.uint64)
    words[STATE_WORDS // 2 + 2] = 2
    with pytest.raises(DataError, match="prediction holds NaN, which metric 'auc' cannot rank"):
        make_metric("auc").measured(words, other.y, None)


def worst(label: Any, prediction: Any) -> float:
    return float(np.abs(label - prediction).max())


@pytest.mark.parametrize(("metrics", "reason"), [
    (["logloss", worst], "'worst' is computed on the host"),
    (["auc", "poisson-deviance"], "'poisson-deviance' is computed on the host"),
])  # fmt: skip
def test_metrics_of_the_host_are_waited_for(
    metrics: list[Any], reason: str, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan and the log say why."""
    case = problem()
    params = {**BINARY, "eval_metric": metrics}
    with caplog.at_level(logging.INFO, "daskboost"):
        assert_same(case, params, asked)
    said = f"the host waits for metrics in each round, which is slower: {reason}"
    assert said in caplog.text
    assert asked.evaluations == 4
    with QuantizedDataset.from_dask(case.train.X, case.train.y) as dataset:
        planned = plan({**params, "device": "cuda"}, dataset, evals=[(dataset, "train")])
        assert said in str(planned).splitlines() and not planned.watched
        watched = plan({**BINARY, "device": "cuda"}, dataset, evals=[(dataset, "train")])
        assert "metrics are computed behind the trees" in str(watched).splitlines() and watched.watched
        assert "metrics" not in str(plan({**BINARY, "device": "cuda"}, dataset))
        host = {"grow_policy": "lossguide", "max_leaves": 8, "colsample_bynode": 0.5}
        with_host = plan({**BINARY, "device": "cuda", **host}, dataset, evals=[(dataset, "train")])
        assert with_host.evaluation.endswith("trees grow with the host")


def test_without_room_metrics_are_waited_for(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees still grow without the host."""
    kept = memory.watched_bytes
    monkeypatch.setattr(memory, "watched_bytes", lambda size: kept(size) + 2**60 * size.watched)
    assert_same(problem(), {**BINARY, "eval_metric": ["auc"]}, asked)
    assert asked.evaluations == 4
    with QuantizedDataset.from_dask(problem().train.X, problem().train.y) as dataset:
        planned = plan({**BINARY, "device": "cuda"}, dataset, evals=[(dataset, "train")], memory="1GB")
    assert planned.without_host
    assert planned.evaluation.endswith("which is slower: there is no room to do without it")


def test_which_metrics_are_watched() -> None:
    """All that a device computes; a curve with terms of its own is not."""
    class Squared(RocAuc):
        def terms(self, negative: Any, positive: Any) -> Any:
            return super().terms(negative, positive) ** 2

    class Renamed(AveragePrecision):
        base_name = "renamed"

    class Told(Squared):
        device_curve = "roc"

    made: list[Metric[Any]] = [Squared(), Renamed(), Told(), make_metric("logloss"), make_metric("poisson-deviance")]
    assert [metric.is_watched for metric in made] == [False, True, True, True, False]


def test_areas_of_parts_do_not_add_up() -> None:
    area = CurveArea(ExactSum(), 1, 2)
    with pytest.raises(DataError, match="areas under curves of parts of the rows do not add up"):
        area + area
    metric = make_metric("auc")
    state = metric.state_from_arrays(area.to_arrays())
    assert state == area and metric.value(state) == 0.0
    for totals in (None, np.zeros(3, np.int64), np.zeros(2)):
        arrays: Any = {**area.to_arrays(), "totals": totals}
        with pytest.raises(DataError, match="are no sums of two classes"):
            metric.state_from_arrays(arrays)
