"""The benchmark of ranking on GPUs, rehearsed on few rows of a CPU."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import local_cluster
from sklearn.metrics import ndcg_score

from benchmarks import gpu_ranking, gpu_ranking_parts
from benchmarks.gpu_ranking import Config, main, ndcg, no_worse, rows, sizes
from benchmarks.harness import Run
from daskboost.devices.budget import partition


def test_queries_have_all_rows_and_differ() -> None:
    found = sizes(Config(n_rows=5000, n_queries=300))
    assert found.sum() == 5000 and found.min() >= 1 and found.max() > 2 * np.median(found)
    x, y, qid = rows(Config(n_rows=5000, n_queries=300, n_features=6, device="cpu"))
    np.testing.assert_array_equal(np.bincount(qid), found)
    assert x.shape == (5000, 6) and np.unique(y).tolist() == [0, 1, 2, 3, 4]
    assert np.unique(rows(Config("rank:map", 5000, 6, 300, device="cpu"))[1]).tolist() == [0, 1]


def test_ndcg_is_that_of_scikit_learn(rng: np.random.Generator) -> None:
    qid = np.repeat(np.arange(20), rng.integers(2, 40, 20)).astype(np.int32)
    grades = rng.integers(0, 4, len(qid)).astype(np.float32)
    margins = rng.normal(size=len(qid))
    expected = [
        ndcg_score([2.0 ** grades[qid == query] - 1], [margins[qid == query]], k=10)
        for query in range(20) if grades[qid == query].any()
    ]  # fmt: skip
    assert ndcg(grades, margins, qid) == pytest.approx(np.mean(expected))


def test_a_tree_is_timed_and_a_worse_ranking_is_told(tmp_path: Path) -> None:
    main(["--device", "cpu", "--rows", "3000", "--queries", "40", "--features", "6", "--trees", "5", "--repeats", "1",
          "--contenders", "daskboost", "--objectives", "rank:ndcg", "--results", str(tmp_path)])  # fmt: skip
    (row,) = map(json.loads, (tmp_path / "gpu_ranking.jsonl").read_text().splitlines())
    assert row["answer"]["ndcg"] > 0.4
    with pytest.raises(AssertionError, match="lower"):
        no_worse({"daskboost": Run(1.0, {"ndcg": 0.5}), "xgboost": Run(1.0, {"ndcg": 0.51})})


def test_queries_are_as_large_as_asked() -> None:
    found = sizes(Config(n_rows=5000, n_queries=300, largest=2000))
    assert len(found) == 300 and found[0] == 2000 and found.sum() == 5000 and found[1:].max() < 200
    bounded = sizes(Config(n_rows=5000, n_queries=300, most=20))
    assert len(bounded) == 300 and bounded.sum() == 5000 and bounded.max() == 20


def test_catboost_is_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("catboost")
    main(["--device", "cpu", "--rows", "3000", "--queries", "40", "--largest", "100", "--features", "6", "--trees", "5",
          "--repeats", "1", "--objectives", "querysoftmax", "--results", str(tmp_path)])  # fmt: skip
    found = [*map(json.loads, (tmp_path / "gpu_ranking.jsonl").read_text().splitlines())]
    assert [row["contender"] for row in found if "asked" in row] == [
        "daskboost beside catboost", "daskboost symmetric beside catboost"
    ]  # fmt: skip
    assert min(row["answer"]["ndcg"] for row in found if "answer" in row) > 0.4


def test_parts_are_measured(tmp_path: Path) -> None:
    gpu_ranking_parts.main([
        "--device", "cpu", "--rows", "3000", "--queries", "40", "--largest", "500", "--features", "6", "--trees", "5",
        "--repeats", "1", "--results", str(tmp_path),
    ])  # fmt: skip
    found = [*map(json.loads, (tmp_path / "gpu_ranking_parts.jsonl").read_text().splitlines())]
    shares = [row for row in found if "share" in row]
    assert len(shares) == 5 and all(row["ms"] > 0 and row["answer"]["ndcg"] > 0.4 for row in shares)
    assert [row["contender"] for row in found if "times" in row] == [
        "with metrics beside without metrics", "with it beside without it", "with it beside its rows in small queries"
    ]  # fmt: skip


def test_workers_are_measured_in_both_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_threads(n: int, device: str, stack: ExitStack) -> Any:
        return stack.enter_context(local_cluster(n, processes=False))

    monkeypatch.setattr(gpu_ranking, "open_cluster", of_threads)
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    main(["--device", "cpu", "--rows", "3000", "--queries", "40", "--features", "6", "--trees", "3", "--repeats", "1",
          "--gpus", "1,2", "--objectives", "rank:ndcg", "--results", str(tmp_path)])  # fmt: skip
    found = [*map(json.loads, (tmp_path / "gpu_ranking.jsonl").read_text().splitlines())]
    assert [row["case"] for row in found] == ["rank:ndcg sorted"] * 3 + ["rank:ndcg scattered"] * 3
    beside = [row for row in found if "asked" in row]
    assert [row["contender"] for row in beside] == ["daskboost on 2 beside daskboost on 1"] * 2
    assert {row["asked"] for row in beside} == {1.7}
