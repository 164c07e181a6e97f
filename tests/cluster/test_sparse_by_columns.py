"""GPUs that share the features of sparse rows grow the trees of one engine, however entries are spread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cluster.test_by_columns import fitted
from cluster.test_device_rounds import assert_same_trees
from cluster.test_trees_together import SIZE
from hypothesis import example, given
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime, JoinedByHost
from kernels.tracked import DeviceLike, Module, PoolMeter
from strategies.trees import Data, make_data, quantized

from daskboost import Plan, train
from daskboost.devices.budget import gpu_memory, partition
from daskboost.devices.budget.partition import balanced_shares
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows import everywhere, views
from daskboost.devices.gpu.rows.everywhere import Everywhere
from daskboost.devices.gpu.rows.views import DeviceLayout, SparseView
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import sparse_columns
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.dtypes import Float32
from daskboost.engine import by_columns, whole_rounds

N_ROWS = 5_400
KEPT: dict[str, Callable[[Float32], None]] = {
    "first rows have most": lambda X: _lose(X, slice(1_200, None), 0.97),
    "rows without any": lambda X: _lose(X, slice(100, 2_000), 1.0),
    "the last features have none": lambda X: _lose(X[:, 3:], slice(None), 1.0),
    "the first feature has nearly all": lambda X: _lose(X[:, 1:], slice(None), 0.99),
    "nearly none": lambda X: _lose(X, slice(None), 0.995),
}
"""What leaves values out of rows."""


def _lose(X: Float32, rows: slice, share: float) -> None:
    own = X[rows]
    own[np.random.default_rng(2).random(own.shape) < share] = np.nan


@pytest.fixture(autouse=True)
def joined_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each engine on an emulated GPU of its own."""
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))


def columns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the rows of all copies of entries by feature."""
    found: list[int] = []
    add_rows = sparse_columns.SparseColumns.add_rows

    def noted(self: sparse_columns.SparseColumns, *rest: Any) -> int:
        found.append(self._n_rows)
        return add_rows(self, *rest)

    monkeypatch.setattr(sparse_columns.SparseColumns, "add_rows", noted)
    return found


def rows_of(kept: str) -> Data:
    data = make_data(np.random.default_rng(5), "binary:logistic", N_ROWS, 6, n_values=200, missing=0.1)
    KEPT[kept](data.X)
    return data


@pytest.mark.emulated
@pytest.mark.parametrize(("kept", "engines", "sizes", "is_sorted"), [
    ("first rows have most", 2, (1_200, 4_200), True), ("first rows have most", 3, (100, 3_900, 1_300, 100), False),
    ("rows without any", 2, (100, 1_900, 3_400), False), ("the last features have none", 3, (1_800,) * 3, True),
    ("the first feature has nearly all", 3, (5_000, 300, 100), True), ("nearly none", 2, (3_000, 2_400), False),
])  # fmt: skip
def test_the_bytes_of_one_engine(
    kept: str, engines: int, sizes: tuple[int, ...], is_sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sorted:  # as where no block has room for a histogram
        for module in (sparse_columns, views):
            monkeypatch.setattr(module, "fits_block", lambda *_: False)
    added, params = columns(monkeypatch), {"objective": "binary:logistic", "max_depth": 4, "n_jobs": 1}
    how: dict[str, Any] = {"encoding": "csr", "max_bin": 256}
    data = rows_of(kept)
    with quantized(data, **how) as plain, quantized(data, **how, engines=engines, partitions=sizes) as shared:
        expected = fitted({**params, "device": "cpu"}, plain, True)
        found = fitted({**params, "device": "cuda", "reduction": "nccl", "partition_by": "columns"}, shared, True)
    assert_same_trees(found[0], expected[0])
    assert found[1] == expected[1]
    assert set(added) <= {N_ROWS}
    assert bool(added) == is_sorted


@pytest.mark.emulated
@pytest.mark.parametrize("rules", [
    {}, {"monotone_constraints": (1, -1, 0, 1, 0, -1)}, {"colsample_bynode": 0.6, "ignored_features": (4,)},
    {"reg_alpha": 2.0, "gamma": 1.0}, {"objective": "multi:softprob", "num_class": 5},
])  # fmt: skip
@pytest.mark.parametrize("kept", ["first rows have most", "the last features have none"])
def test_splits_that_gpus_find_in_sorted_entries(
    kept: str, rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU without an entry has histograms, beside others that have none."""
    searched: list[int] = []
    best = EntrySearch.best_per_node

    def noted(self: EntrySearch, *rest: Any, **more: Any) -> Any:
        searched.append(self._entries.n_rows)
        return best(self, *rest, **more)

    monkeypatch.setattr(EntrySearch, "best_per_node", noted)
    monkeypatch.setattr(gpu_memory, "pays", lambda *_: True)
    data = rows_of(kept)
    params = {"objective": "binary:logistic", "max_depth": 4, "n_jobs": 1, **rules}
    if "num_class" in rules:
        data = replace(data, y=np.floor(np.nan_to_num(data.X[:, 0]) / 10).clip(0, 4))
    how: dict[str, Any] = {"encoding": "csr", "max_bin": 256}
    with quantized(data, **how) as plain, quantized(data, **how, engines=3, partitions=(900, 3_300, 1_200)) as shared:
        expected = fitted({**params, "device": "cpu"}, plain, False)
        found = fitted({**params, "device": "cuda", "reduction": "nccl", "partition_by": "columns"}, shared, False)
    assert_same_trees(found[0], expected[0])
    assert set(searched) == {N_ROWS}


@pytest.mark.emulated
@pytest.mark.parametrize(("free_bytes", "told"), [
    (1 << 30, "GPUs share the features"),
    (400 << 20, "GPUs share the rows: a GPU has no room for a share of the features of all rows"),
])  # fmt: skip
def test_rows_are_shared_where_a_gpu_has_no_room(
    free_bytes: int, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(EmulatedRuntime, "free_bytes", free_bytes)
    monkeypatch.setattr(partition, "LINK_BYTES_S", 1.0)
    data, given = rows_of("first rows have most"), {"max_depth": 3, "n_jobs": 1}
    with quantized(data, encoding="csr") as plain, quantized(data, encoding="csr", engines=2, partitions=2) as shared:
        expected = fitted({**given, "device": "cpu"}, plain, False)
        with caplog.at_level(logging.INFO, "daskboost"):
            found = fitted({**given, "device": "cuda"}, shared, False)
    assert_same_trees(found[0], expected[0])
    assert told in [record.getMessage() for record in caplog.records]


class Thread:
    """One of several threads that tell each other what they know."""

    def __init__(self, rank: int, barrier: threading.Barrier, told: list[Any]) -> None:
        self.rank, self.n_peers, self._barrier, self._told = rank, barrier.parties, barrier, told

    def share(self, message: Any, /) -> list[Any]:
        self._told[self.rank] = message
        self._barrier.wait()
        found = list(self._told)
        self._barrier.wait()
        return found

    def check(self) -> None:
        """Know of no failure."""


def all_views(rows: Sequence[Sequence[Sequence[int]]], layout: SlotLayout, shares: Sequence[tuple[int, int]]
              ) -> list[SparseView]:  # fmt: skip
    """What each GPU has of all rows; `rows` : slots of each row of each GPU."""
    begins, n = np.cumsum([0, *map(len, rows)]).tolist(), len(rows)
    barrier, told, found = threading.Barrier(n), [None] * n, dict[int, SparseView]()

    def bring(rank: int) -> None:
        runtime = EmulatedRuntime()
        all_features = DeviceLayout(runtime, layout)
        indptr = np.cumsum([0, *map(len, rows[rank])])
        slots = np.array([slot for row in rows[rank] for slot in row], np.int32)
        view = SparseView(all_features, indptr, slots, copy_columns=False)
        place = Everywhere(runtime, JoinedByHost(Thread(rank, barrier, told)), begins[rank], begins[-1])
        layouts = [all_features.part(*share, place.n_rows) for share in shares]
        found[rank] = view.of_all_rows(place, layouts, sort_entries=False)

    threads = [threading.Thread(target=bring, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(n)]


@pytest.mark.parametrize("n_gpus", [1, 2, 3])
@pytest.mark.parametrize("block_bytes", [32, 100, 1 << 20])
def test_entries_that_gpus_bring_each_other(n_gpus: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A naive twin picks the entries of each GPU's features, row by row."""
    for module in (everywhere, views):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    rng, n_bins = np.random.default_rng(n_gpus), np.array([3, 1, 4, 2, 6], np.int32)
    offsets = np.array([0, 3, 5, 9, 12, 18], np.int64)  # the second and the fourth have a slot for missing values
    rows = [
        [sorted(rng.choice(18, rng.integers(0, most), replace=False).tolist()) for _ in range(n_rows)]
        for n_rows, most in ((7, 12), (1, 1), (20, 5))[:n_gpus]
    ]
    shares = [(0, 5)] if n_gpus == 1 else [(0, 1), (1, 5)] if n_gpus == 2 else [(0, 2), (2, 3), (3, 5)]
    every = [row for part in rows for row in part]
    for (first, last), view in zip(shares, all_views(rows, SlotLayout(offsets, n_bins), shares), strict=True):
        low, high = int(offsets[first]), int(offsets[last])
        slots, indptr = view.symbols[:2]
        expected = [[slot - low for slot in row if low <= slot < high] for row in every]
        assert [slots[a:b].tolist() for a, b in pairwise(indptr)] == expected
        assert view.features == (first, last - first)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=40), st.integers(1, 8))
@example([1_000, 1, 1], 3)
@example([0, 0, 0, 0], 2)
def test_costs_are_shared_out_evenly(costs: list[int], n: int) -> None:
    costs += [1] * (n - len(costs))
    shares = balanced_shares(np.array(costs, np.int64), n)
    assert [first for first, _ in shares] == [0, *(last for _, last in shares[:-1])]
    assert shares[-1][1] == len(costs)
    assert all(first < last for first, last in shares)
    assert max(sum(costs[first:last]) for first, last in shares) <= sum(costs) / n + max(costs)


def test_features_of_many_entries_count_more() -> None:
    entries = np.array([50_000, 10_000, 10_000, 10_000, 10_000, 10_000])
    costs = partition.feature_costs(SIZE, np.full(6, 9), entries)
    assert costs.tolist() == [SIZE.depth * n + SIZE.most_leaves * 9 for n in entries.tolist()]
    assert balanced_shares(costs, 2) == [(0, 1), (1, 6)]


@pytest.mark.emulated
@pytest.mark.parametrize("searches", [False, True], ids=["histograms", "sorted entries"])
def test_what_gpus_take_is_planned(searches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans leave out the GPUs' own rows, which are there before; both GPUs count together."""
    for module in (everywhere, views, by_columns):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 12)
    for module in (sparse_columns, views):
        monkeypatch.setattr(module, "fits_block", lambda *_: False)
    monkeypatch.setattr(gpu_memory, "pays", lambda *_: searches)
    monkeypatch.setattr(EmulatedRuntime, "xp", Module())
    monkeypatch.setattr(DeviceLike, "meter", PoolMeter())
    planned: list[tuple[Plan, int]] = []
    make = by_columns.share_plan

    def noted(*given: Any) -> Plan:
        assert DeviceLike.meter is not None
        planned.append((make(*given), DeviceLike.meter.bytes))
        return planned[-1][0]

    monkeypatch.setattr(whole_rounds, "share_plan", noted)
    data = make_data(np.random.default_rng(5), "binary:logistic", 9_000, 12, n_values=200, missing=1.2)
    params = {"objective": "binary:logistic", "max_depth": 4, "n_jobs": 1, "device": "cuda", "partition_by": "columns"}
    with quantized(data, encoding="csr", max_bin=64, engines=2, partitions=(3_000, 6_000)) as shared:
        train(params, shared, 3)
    (first, n_bytes), (second, others) = planned
    assert first.by_entries == second.by_entries == searches
    meter = DeviceLike.meter
    assert meter is not None
    taken, most = meter.peak_bytes - max(n_bytes, others), first.total_bytes + second.total_bytes
    assert 0.5 * most < taken <= most, f"took {taken:,} bytes of\n{first}\n{second}"
