"""The benchmark of categories over Dask, on few rows."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from benchmarks import category_cluster, category_rows
from benchmarks.category_cluster import LABEL, Config, main, make_block, persisted


def test_blocks_are_parts_of_the_same_rows() -> None:
    (whole, y), names = category_rows.rows(90), list(category_rows.CATEGORIES)
    block = make_block(30, 60)
    np.testing.assert_array_equal(block[names], whole.iloc[30:][names])
    np.testing.assert_array_equal(block[LABEL], y[30:])


def test_workers_have_as_many_blocks() -> None:
    whole, y = category_rows.rows(90)
    for workers, n_workers, n_blocks in (((1,), 1, 3), ((1, 2), 1, 4), ((1, 2), 2, 4)):
        config = Config(n_rows=90, block_rows=40, workers=workers)
        with ExitStack() as stack:
            client = workers_of_this_process(config, n_workers, stack)
            rows = persisted(config, client)
            assert rows.npartitions == n_blocks and rows.columns.tolist() == [*category_rows.CATEGORIES, LABEL]
            assert [len(own) for own in client.has_what().values()] == [n_blocks // n_workers] * n_workers
            found = client.compute(rows).result()
            np.testing.assert_array_equal(found[LABEL], y)
            np.testing.assert_array_equal(found["category_7"], whole["category_7"])


def workers_of_this_process(config: Config, n_workers: int, stack: ExitStack) -> Any:
    """A cluster that begins at once, in place of processes."""
    cluster = LocalCluster(
        n_workers=n_workers, threads_per_worker=config.threads, processes=False, dashboard_address=":0"
    )  # fmt: skip
    return stack.enter_context(Client(stack.enter_context(cluster), set_as_default=False))


def test_workers_are_timed_and_make_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(category_cluster, "open_cluster", workers_of_this_process)
    main([
        "--device", "cpu", "--rows", "4000", "--block-rows", "1000", "--combined", "1", "--repeats", "1",
        "--threads", "1", "--results", str(tmp_path),
    ])  # fmt: skip
    one, two, beside = map(json.loads, (tmp_path / "category_cluster.jsonl").read_text().splitlines())
    assert (one["contender"], two["contender"]) == ("daskboost on 1", "daskboost on 2")
    assert one["answer"] == two["answer"] and one["answer"]["n_features"] == 16
    assert beside["contender"] == "daskboost on 2 beside daskboost on 1"
    assert beside["ratio"] > 0 and beside["config"]["workers"] == [1, 2]
