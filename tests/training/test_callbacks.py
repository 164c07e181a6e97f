"""Callbacks: schedules, logs, bars, checkpoints, and a user's own."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies.rows import regression

from daskboost import (
    Booster,
    Callback,
    Checkpoint,
    EvaluationLog,
    LearningRateSchedule,
    ProgressBar,
    QuantizedDataset,
    train,
)
from daskboost.errors import ParameterError
from daskboost.training.callbacks import RoundInfo

PARAMS: dict[str, Any] = {"max_depth": 3, "n_jobs": 1}


@pytest.fixture(scope="module")
def data() -> QuantizedDataset:
    return QuantizedDataset.from_dask(*regression(300))


class StopAfter(Callback):
    """Stops the fit, and notes what it was told."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.calls: list[str] = []

    def before_training(self, n_rounds: int) -> None:
        self.calls.append(f"before {n_rounds}")

    def after_round(self, info: RoundInfo) -> bool:
        self.calls.append(f"{info.iteration} of {info.n_rounds}: {info.snapshot().n_iterations} iterations")
        return info.iteration == self.iteration

    def after_training(self, booster: Booster) -> None:
        self.calls.append(f"after {booster.n_iterations}")


def test_a_callback_stops_training(data: QuantizedDataset) -> None:
    stop, other = StopAfter(2), StopAfter(99)
    model = train(PARAMS, data, 10, callbacks=[stop, other])
    assert model.n_iterations == 3
    rounds = [f"{i} of 10: {i + 1} iterations" for i in range(3)]
    assert stop.calls == other.calls == ["before 10", *rounds, "after 3"]
    assert model == train(PARAMS, data, 3)


def test_an_exception_in_a_callback_ends_the_fit(data: QuantizedDataset) -> None:
    """And what it was told is still good."""
    told: list[RoundInfo] = []

    class Broken(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            told.append(info)
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(PARAMS, data, 10, callbacks=[Broken()])
    assert told[0].snapshot() == train(PARAMS, data, 1)


@pytest.mark.parametrize("rates", [[0.5, 0.25, 0.125], lambda i: 0.5 / 2**i])
def test_a_schedule_sets_the_rate_of_every_round(data: QuantizedDataset, rates: Any) -> None:
    scheduled = train(PARAMS, data, 3, callbacks=[LearningRateSchedule(rates)])
    by_hand: Booster | None = None
    for i in range(3):
        by_hand = train({**PARAMS, "learning_rate": 0.5 / 2**i}, data, 1, init_model=by_hand)
    assert by_hand is not None
    assert [np.array_equal(a.value, b.value) for a, b in zip(scheduled.trees, by_hand.trees, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("rates", "message"),
    [([0.1, 0.1], "has 2 rates for 3 rounds"), (lambda i: 1.0 - i, r"gives 0.0 in round 1; every rate .* \(0, 1\]")],
)
def test_a_bad_schedule_is_refused(data: QuantizedDataset, rates: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        train(PARAMS, data, 3, callbacks=[LearningRateSchedule(rates)])


@pytest.mark.parametrize("kind", [EvaluationLog, lambda period: Checkpoint("model.ubj", period)])
@pytest.mark.parametrize("period", [0, -1, 1.5, True, np.int64(0)])
def test_a_bad_period_is_refused(kind: Any, period: Any) -> None:
    with pytest.raises(ParameterError, match=r"\(period=.*\) must be an integer of at least 1"):
        kind(period)
    kind(np.int64(2))


def test_what_is_no_callback_is_refused(data: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match=r"callbacks contains <built-in function print>, which is not a Callback"):
        train(PARAMS, data, 3, callbacks=[print])  # type: ignore[list-item]


def test_the_log_prints_every_so_many_rounds_and_the_last(data: QuantizedDataset) -> None:
    stream = io.StringIO()
    result: dict[str, dict[str, list[float]]] = {}
    params = {**PARAMS, "eval_metric": ["mae", "rmse"]}
    train(params, data, 6, evals=[(data, "fit")], evals_result=result, callbacks=[EvaluationLog(2, stream)])
    lines = stream.getvalue().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["[0]", "[2]", "[4]", "[5]"]
    values = [f"fit-{name}:{result['fit'][name][5]:.5f}" for name in ("mae", "rmse")]
    assert lines[-1] == "\t".join(["[5]", *values])


def test_a_line_is_written_at_once(data: QuantizedDataset) -> None:
    """With its end, so that lines of fits in several threads do not mix."""

    class Written(io.StringIO):
        def write(self, text: str) -> int:
            assert not text or text.endswith("\n")
            return super().write(text)

    stream = Written()
    train(PARAMS, data, 2, evals=[(data, "fit")], callbacks=[EvaluationLog(1, stream)])
    assert len(stream.getvalue().splitlines()) == 2


def test_the_log_of_nothing_is_empty(data: QuantizedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    train(PARAMS, data, 3, callbacks=[EvaluationLog()])
    assert capsys.readouterr().out == ""


def test_a_checkpoint_is_written_every_so_many_rounds_and_at_the_end(data: QuantizedDataset, tmp_path: Path) -> None:
    sizes = []

    class Watch(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            sizes.append(Booster.load_model(tmp_path / "m.json").n_iterations if any(tmp_path.iterdir()) else 0)
            return False

    model = train(PARAMS, data, 5, callbacks=[Checkpoint(tmp_path / "m.json", period=2), Watch()])
    assert sizes == [0, 2, 2, 4, 4]
    assert Booster.load_model(tmp_path / "m.json") == model


def test_a_checkpoint_in_an_unknown_format_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"the name of a model file ends in \.json or \.ubj"):
        Checkpoint(tmp_path / "model.pkl")


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(data: QuantizedDataset, tmp_path: Path) -> None:
    (tmp_path / "taken.ubj").mkdir()
    with pytest.raises(OSError, match="taken"):
        train(PARAMS, data, 2, callbacks=[Checkpoint(tmp_path / "taken.ubj", period=1)])
    assert [path.name for path in tmp_path.iterdir()] == ["taken.ubj"]


def test_the_bar_of_a_terminal_redraws_one_line(data: QuantizedDataset) -> None:
    stream = io.StringIO()
    train(PARAMS, data, 4, evals=[(data, "fit")], callbacks=[ProgressBar(stream, interval_s=0)])
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    drawn = text.split("\r")[1:]
    assert [re.search(r"(\d/4)", line)[1] for line in drawn] == ["0/4", "1/4", "2/4", "3/4", "4/4", "4/4"]  # type: ignore[index]
    assert drawn[0].startswith("·" * 24) and drawn[-1].startswith("█" * 24)
    assert re.search(r"4/4 \d+\.\d rounds/s fit-rmse:\d\.\d{5}", drawn[-1])


def test_the_bar_says_where_early_stopping_ended(data: QuantizedDataset) -> None:
    stream = io.StringIO()
    train(PARAMS, data, 50, callbacks=[ProgressBar(stream, interval_s=1000), StopAfter(4)])
    assert "5/50" in stream.getvalue().split("\r")[-1]


NOTEBOOK = """
from strategies.rows import regression
from daskboost import ProgressBar, QuantizedDataset, train
data = QuantizedDataset.from_dask(*regression(100))
model = train({"max_depth": 2, "n_jobs": 1}, data, 3, callbacks=[ProgressBar(interval_s=0)])
"""


@pytest.mark.slow
def test_the_bar_of_a_notebook_updates_one_output() -> None:
    import nbformat
    from nbclient import NotebookClient

    root = Path(__file__).resolve().parents[2]
    paths = f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'tests')!r}]"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (paths, NOTEBOOK)])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    outputs = notebook.cells[1].outputs
    assert [output.output_type for output in outputs] == ["display_data"]
    assert '<progress value="3" max="3">' in outputs[0].data["text/html"]
    assert outputs[0].data["text/plain"].startswith("3/3 ")
