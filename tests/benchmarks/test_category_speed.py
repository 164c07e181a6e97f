"""Rows with categories, and what categorical columns cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import category_rows, peers
from benchmarks.category_speed import main


def test_rows_do_not_depend_on_where_they_begin() -> None:
    x, y = category_rows.rows(300, seed=2)
    tail, tail_y = category_rows.rows(200, seed=2, first=100)
    np.testing.assert_array_equal(x.iloc[100:].to_numpy(), tail.to_numpy())
    np.testing.assert_array_equal(y[100:], tail_y)


def test_few_levels_have_most_rows() -> None:
    x, y = category_rows.rows(20_000)
    for name, n_levels in zip(category_rows.CATEGORIES, category_rows.LEVELS, strict=True):
        codes = x[name].to_numpy()
        assert 0 <= codes.min() and codes.max() < n_levels
        assert 0.48 < (codes < n_levels / 4).mean() < 0.52, "the square root of a uniform draw decides"
    assert 0.3 < y.mean() < 0.7
    texts = category_rows.as_texts(x)
    assert (texts["category_3"].str.removeprefix("level ").astype(int) == x["category_3"]).all()


def test_the_record_of_rounds_is_read(tmp_path: Path) -> None:
    (tmp_path / "time_left.tsv").write_text("iter\tPassed\tRemaining\n0\t167\t3190\n1\t266\t2396\n")
    np.testing.assert_allclose(peers.catboost_round_ends(tmp_path), [0.167, 0.266])


def test_a_start_and_a_tree_are_timed_and_scored(tmp_path: Path) -> None:
    main([
        "--device", "cpu", "--rows", "5000", "--trees", "5", "--repeats", "1", "--contenders", "daskboost 1",
        "--categories", "texts", "--results", str(tmp_path),
    ])  # fmt: skip
    (row,) = map(json.loads, (tmp_path / "category_speed.jsonl").read_text().splitlines())
    answer = row["answer"]
    assert answer["auc"] > 0.55 and answer["start_seconds"] > 0
    assert row["seconds"] < answer["start_seconds"]
