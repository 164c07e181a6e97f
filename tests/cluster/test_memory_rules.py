"""What engines and stores may spend memory on, and that it never shows in the model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from strategies.saved_dataset import build_shard

from daskboost import QuantizedDataset, train
from daskboost.cluster.dask_data import LIVING_BYTES, chunk_budget
from daskboost.data.chunks.packing import DenseLayout
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.devices.cpu.device import CpuDevice
from daskboost.engine import setup
from daskboost.engine.chunk_views import places_on_disk
from daskboost.engine.row_groups import row_groups
from daskboost.engine.setup import EngineSetup

GROUP_ROWS = CpuDevice.group_rows


def test_chunks_take_what_living_leaves_of_half_the_limit() -> None:
    assert chunk_budget(16 * 2**30) == 8 * 2**30 - LIVING_BYTES
    assert chunk_budget(10**9) == 10**9 // 20  # where half is not enough to live


@pytest.mark.parametrize("objective, outputs", [("binary:logistic", 1), ("multi:softprob", 3)])
@pytest.mark.parametrize("column_bytes", [0, 2**31])
def test_gradients_computed_twice_chunks_apart_and_no_columns_give_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, objective: str, outputs: int, column_bytes: int
) -> None:
    rng = np.random.default_rng(5)
    features = rng.standard_normal((3_000, 5)).astype(np.float32)
    label = np.minimum((np.abs(features[:, 0]) * 1.5).astype(int), max(outputs, 2) - 1)
    params = {"objective": objective, "subsample": 0.8, **({"num_class": outputs} if outputs > 1 else {})}
    with QuantizedDataset.from_dask(features, label, weight=rng.uniform(1, 2, 3_000), chunk_rows=700) as data:
        expected = train(params, data, 4).to_bytes()
        frugal = partial(EngineSetup, keep_gradients=False, column_bytes=column_bytes)
        monkeypatch.setattr(setup, "EngineSetup", frugal)
        assert train(params, data, 4).to_bytes() == expected


def test_small_neighbours_in_memory_are_joined_and_no_others(tmp_path: Path) -> None:
    cuts = Cuts(np.zeros(1, np.float32), np.array([0, 1], np.int32), np.zeros(1, np.bool_))
    sizes = [10, 20, GROUP_ROWS, 5, 6, 7]
    with ChunkStore(tmp_path, 2 * sum(sizes)) as store:
        batches, first_row = [], 0
        for number, size in enumerate(sizes):
            label = np.full(size, number, np.float32)
            batches.append((first_row, RowBatch(DenseRows(np.ones((size, 1), np.float32)), RowColumns(label))))
            first_row += size + 3  # rows of other shards lie between
        shard = build_shard(batches, cuts, DenseLayout.aligned(cuts.n_bins), GROUP_ROWS, store)
        groups = row_groups(shard, GROUP_ROWS, 2**20, frozenset())
        assert [list(group.entries) for group in groups] == [[0, 1], [2], [3, 4, 5]]
        assert groups[0].label.tolist() == [0.0] * 10 + [1.0] * 20
        assert [(rows.start, rows.stop, first) for rows, first in groups[0].parts()] == [(0, 10, 0), (10, 30, 13)]
        assert all(len(group.entries) == 1 for group in row_groups(shard, GROUP_ROWS, 0, frozenset()))
    with ChunkStore(tmp_path, 0) as disk:
        shard = build_shard(batches, cuts, DenseLayout.aligned(cuts.n_bins), GROUP_ROWS, disk)
        assert all(len(group.entries) == 1 for group in row_groups(shard, GROUP_ROWS, 2**20, places_on_disk(shard)))
