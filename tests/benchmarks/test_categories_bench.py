"""A tiny run of the table of sets with categorical columns, and what its rows say."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import categories
from benchmarks.real_sets import SETS, Part


def test_contenders_are_trained_and_published_scores_taken(
    tmp_path: Path, bundled_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    monkeypatch.setenv("BENCH_THREADS", "2")
    arguments = ["--sets", "adult", "--contenders", "ours,xgboost", "--results", str(tmp_path)]
    monkeypatch.setitem(categories.CONTENDERS, "xgboost", lambda *_: pytest.fail("its score is published"))
    monkeypatch.setitem(categories.CONTENDERS, "ours", lambda data, config, rounds: data.test.y * 0.5 + 0.25)
    categories.main(arguments)
    rows = [json.loads(line) for line in (tmp_path / "categories.jsonl").read_text().splitlines()]
    found = {(row["contender"], row["measure"]): row for row in rows}
    assert found["ours", "auc"]["score"] == 1 and not found["ours", "auc"]["published"]
    assert found["xgboost", "auc"]["score"] == SETS["adult"].xgboost["auc"] and found["xgboost", "auc"]["published"]
    assert all({"date", "commit", "versions", "device", "config"} <= set(row) for row in rows)
    assert "0.9278" in capsys.readouterr().out


@pytest.mark.parametrize("contender", ["ours", "xgboost", "lightgbm", "catboost"])
def test_all_contenders_learn(
    contender: str, tmp_path: Path, bundled_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"ours": "daskboost"}.get(contender, contender))
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    monkeypatch.setenv("BENCH_THREADS", "2")
    categories.main(
        ["--sets", "adult", "--contenders", contender, "--train-all", "--rounds", "3", "--results", str(tmp_path)]
    )
    rows = [json.loads(line) for line in (tmp_path / "categories.jsonl").read_text().splitlines()]
    assert {row["measure"] for row in rows} == {"auc", "logloss"} and all(row["seconds"] > 0 for row in rows)
    assert next(row["score"] for row in rows if row["measure"] == "auc") > 0.85


def test_missing_categories_are_texts_of_their_own() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["x", None]), "b": [1.0, 2.0]})
    part = Part(frame, frame["b"].to_numpy("float32"))
    assert categories.categories_of(frame) == ["a"]
    assert categories._texts(part, ["a"]).x["a"].tolist() == ["x", "missing"]
