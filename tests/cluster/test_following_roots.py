"""The root of the tree that follows comes out of the pass in which a streamed fit finishes a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskboost import QuantizedDataset, train
from daskboost.devices.cpu.rows import CpuRows
from daskboost.local.in_process import LocalShards

N_ROUNDS, DEPTH, CHUNK_ROWS = 4, 3, 500


def fitted(
    params: dict[str, Any], directory: Path | None, offset: float = 0.0, chunk_rows: int = CHUNK_ROWS
) -> tuple[bytes, float]:
    """Model bytes, and passes over the chunks if they lie in files."""
    rng = np.random.default_rng(7)
    features = rng.standard_normal((6_000, 5)).astype(np.float32)
    signal = features[:, 0] + features[:, 1] * features[:, 2] + 0.3 * rng.standard_normal(6_000)
    label = {
        "multi:softprob": np.digitize(signal, [-0.5, 0.5]).astype(np.float32), "binary:logistic": signal > 0,
    }.get(params["objective"], signal + offset)  # fmt: skip
    weight = rng.uniform(0.5, 2, 6_000).astype(np.float32)
    with QuantizedDataset.from_dask(
        features, label.astype(np.float32), weight=weight, chunk_rows=chunk_rows, spill_directory=directory,
        host_memory_limit=None if directory is None else 1,
    ) as data:
        assert isinstance(data.shards, LocalShards)
        shard = data.shards.shards[0]
        before = shard.store.counters().disk_reads
        model = train({"max_depth": DEPTH, **params}, data, N_ROUNDS).to_bytes()
        return model, (shard.store.counters().disk_reads - before) / len(shard.entries)


@pytest.mark.parametrize("more", [
    {"objective": "binary:logistic"}, {"objective": "reg:squarederror", "grow_policy": "symmetric"},
    {"objective": "binary:logistic", "subsample": 0.5},
], ids=str)  # fmt: skip
def test_a_streamed_tree_takes_a_pass_per_level(more: dict[str, Any], tmp_path: Path) -> None:
    params = {"learning_rate": 0.01, **more}  # so small that scales stay
    expected, _ = fitted(params, None)
    found, passes = fitted(params, tmp_path)
    assert found == expected
    assert passes == N_ROUNDS * DEPTH  # nobody asks for the margins of the last tree


@pytest.mark.parametrize("more", [
    {"objective": "binary:logistic", "grow_policy": "symmetric"}, {"objective": "reg:absoluteerror"}
], ids=str)  # fmt: skip
def test_leaves_that_are_valued_from_their_rows_take_a_pass_of_their_own(more: dict[str, Any], tmp_path: Path) -> None:
    params = {"learning_rate": 0.01, **more}
    expected, _ = fitted(params, None)
    found, passes = fitted(params, tmp_path)
    assert found == expected
    assert passes == N_ROUNDS * (DEPTH + 1)


def test_a_round_of_classes_saves_one_pass(tmp_path: Path) -> None:
    params = {"objective": "multi:softprob", "num_class": 3, "learning_rate": 0.01}
    expected, _ = fitted(params, None)
    found, passes = fitted(params, tmp_path)
    assert found == expected
    assert passes == N_ROUNDS * 3 * (DEPTH + 1) - N_ROUNDS


@pytest.mark.parametrize("chunk_rows", [500, 6_000])
def test_roots_of_another_scale_are_built_again(
    chunk_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"objective": "reg:squarederror", "learning_rate": 1.0, "base_score": 0.0}
    expected, _ = fitted(params, None, offset=1e3)
    start_tree, started = CpuRows.start_tree, []

    def counted(*given: Any) -> tuple[int, int]:
        started.append(given)
        return start_tree(*given)

    monkeypatch.setattr(CpuRows, "start_tree", counted)
    found, _ = fitted(params, tmp_path, offset=1e3, chunk_rows=chunk_rows)
    assert found == expected
    assert 2 <= len(started) < N_ROUNDS  # residuals of the second tree are a hundredth of the first one's
