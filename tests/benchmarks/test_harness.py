"""The benchmark harness: turns taken, answers checked first, medians of pairs, tidy rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Comparison, Run, beside_row, comparison_rows, interleave, scores_agree


def agreeing(_: object) -> None:
    """A check that nothing fails."""


def test_contenders_take_turns_after_a_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    def contender(name: str) -> Run:
        calls.append(name)
        return Run(float(len(calls)), {})

    result = interleave({"a": lambda: contender("a"), "b": lambda: contender("b")}, 3, agreeing)
    assert calls == ["a", "b"] * 4, "one warm-up each, then three rounds"
    assert [run.seconds for run in result.runs["a"]] == [3.0, 5.0, 7.0]
    assert "round 3/3" in capsys.readouterr().out


def test_wrong_answers_are_found_before_anything_is_timed() -> None:
    calls: list[float] = []

    def contender(auc: float) -> Run:
        calls.append(auc)
        return Run(0.0, {"auc": auc})

    with pytest.raises(AssertionError, match=r"disagree on auc by more than 0\.01"):
        interleave({"a": lambda: contender(0.8), "b": lambda: contender(0.9)}, 3, scores_agree("auc", 0.01))
    assert calls == [0.8, 0.9]


def test_ratio_is_the_median_of_neighbouring_pairs() -> None:
    runs = {
        "a": [Run(s, {}) for s in (1.0, 10.0, 3.0)],  # the machine was slow in the second round
        "b": [Run(s, {}) for s in (2.0, 20.0, 3.0)],
    }
    result = Comparison(runs)
    assert result.seconds("a") == 3.0
    assert result.ratio("b", "a") == 2.0
    assert beside_row("case", result, "a", "b", asked=1) == {
        "case": "case", "contender": "a beside b", "seconds": 3.0, "peer_seconds": 3.0, "ratio": 2.0, "asked": 1
    }
    short = Comparison({"a": [Run(-0.1, {})], "b": [Run(0.1, {})]})
    assert beside_row("case", short, "a", "b")["ratio"] is None, "differences of two fits that took about as long"


@dataclass(frozen=True)
class Config:
    n_rows: int = 7


def test_rows_are_tidy_and_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    result = Comparison({"a": [Run(1.0, {"auc": 0.5}), Run(2.0, {"auc": 0.5})]})
    path = harness.record("some", Config(), comparison_rows("case", result))
    path = harness.record("some", Config(), comparison_rows("case", result))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["seconds"] for row in rows] == [1.0, 2.0, 1.0, 2.0]
    for row in rows:
        assert row["config"] == {"n_rows": 7}
        assert row["device"]
        assert {"numpy", "dask"} <= set(row["versions"])
        assert {"date", "commit", "cores", "load_1min", "python"} <= set(row)
