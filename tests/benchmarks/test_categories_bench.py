"""A tiny run of the table of sets with categorical columns, and what its rows say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import categories, category_folds, ours
from benchmarks.real_sets import SETS, Loaded, Part, categories_of, load, with_texts


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


def test_held_out_parts_are_of_training_rows(bundled_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    whole = load("adult")
    parts = list(categories.parts_of("adult", categories.PARTS))
    assert sum(len(part.test.y) for part in parts) == len(whole.train.y) == len(parts[0].train.y) + len(parts[0].test.y)
    seen: list[tuple[int, int]] = []

    def constant(data: Loaded, config: categories.Config, rounds: int) -> Any:
        seen.append((len(data.train.y), len(data.test.y)))
        return data.test.y * 0.5 + 0.25

    monkeypatch.setitem(categories.VARIANTS, "singles", constant)
    rows = categories.run_set("adult", ["singles"], categories.Config(), train_all=True, n_parts=2)
    assert seen == [(len(part.train.y), len(part.test.y)) for part in parts[:2]]
    assert {row["measure"]: row["score"] for row in rows}["auc"] == 1 and rows[0]["held_out_parts"] == 2


def test_pairs_of_columns_with_fewer_levels_are_made(bundled_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    train = load("adult").train
    with ours.least_levels_of_pairs(7):
        pairs = ours.quantize(train.x.iloc[:2000], train.y[:2000]).schema.of_several
    assert len(pairs) > 3 and not ours.quantize(train.x.iloc[:2000], train.y[:2000]).schema.of_several


def test_missing_categories_are_texts_of_their_own() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["x", None]), "b": [1.0, 2.0]})
    part = Part(frame, frame["b"].to_numpy("float32"))
    assert categories_of(frame) == ["a"]
    assert with_texts(part, ["a"]).x["a"].tolist() == ["x", "missing"]


def test_folds_beside_new_rows(bundled_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    monkeypatch.setenv("BENCH_THREADS", "2")
    category_folds.main(["--sets", "adult", "--rounds", "3", "--results", str(tmp_path)])
    (row,) = (json.loads(line) for line in (tmp_path / "category_folds.jsonl").read_text().splitlines())
    assert row["cv_round"] == row["new_round"] == row["knowing_round"] == 3
    assert row["cv_loss"] == pytest.approx(row["new_loss"], rel=0.005)
    assert row["new_loss_at_cv_round"] == row["new_loss"] < 0.5
