"""Shards: batches become chunks of bounded size, in the order of their rows, and nothing is left after a failure."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import quantize as naive
from strategies.saved_dataset import build_shard

from daskboost.data.chunks.packing import DenseLayout
from daskboost.data.chunks.shard import ShardBuilder
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.errors import DataError, ParameterError

CUTS = Cuts(np.array([0.25, 0.5, 0.5], np.float32), np.array([0, 2, 3], np.int32), np.ones(2, bool))
LAYOUT = DenseLayout.tight(CUTS.n_bins + 1)


def rows(n_rows: int, seed: int = 0) -> RowBatch:
    rng = np.random.default_rng(seed)
    values = rng.random((n_rows, 2)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = np.nan
    label, weight = rng.random(n_rows).astype(np.float32), rng.random(n_rows).astype(np.float32)
    return RowBatch(DenseRows(values), RowColumns(label, weight, rng.random((n_rows, 3)).astype(np.float32)))


def part(batch: RowBatch, start: int, stop: int) -> RowBatch:
    assert isinstance(batch.features, DenseRows)
    return RowBatch(DenseRows(batch.features.values[start:stop]), batch.columns.taken(slice(start, stop)))


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 50), st.integers(0, 2**32))
@settings(deadline=None)
def test_no_row_is_lost_however_rows_are_divided(sizes: list[int], chunk_rows: int, seed: int) -> None:
    whole = rows(sum(sizes))
    ends = np.cumsum([0, *sizes]).tolist()
    batches = [(start, part(whole, start, stop)) for start, stop in itertools.pairwise(ends)]
    random.Random(seed).shuffle(batches)
    with ChunkStore() as store:
        shard = build_shard(batches, CUTS, LAYOUT, chunk_rows, store)
        assert shard.n_rows == sum(sizes)
        chunks = [chunk for _, chunk in shard.chunks()]
        assert all(0 < entry.n_rows <= chunk_rows for entry in shard.entries)
        for entry, chunk in zip(shard.entries, chunks, strict=True):
            assert (entry.first_row, entry.n_rows) == (chunk.first_row, chunk.n_rows)
        symbols = np.concatenate([chunk.on_host().symbols() for chunk in chunks] or [np.empty((0, 2), np.uint8)])
        np.testing.assert_array_equal(symbols, naive.symbols(whole.features.on_host(), CUTS))
        for name in ("label", "weight", "base_margin"):
            parts = [getattr(entry.rows, name) for entry in shard.entries]
            expected = getattr(whole.columns, name)
            np.testing.assert_array_equal(np.concatenate(parts or [expected[:0]]), expected)


def test_closing_a_shard_frees_its_chunks_only(tmp_path: Path) -> None:
    with ChunkStore(tmp_path, ram_budget_bytes=50) as store:
        train = build_shard([(0, rows(100))], CUTS, LAYOUT, 10, store)
        valid = build_shard([(0, rows(20, 1))], CUTS, LAYOUT, 10, store)
        train.close()
        assert len(list(valid.chunks())) == 2
        valid.close()
        assert store.counters().ram_bytes == store.counters().disk_bytes == 0
        assert list(tmp_path.rglob("*.chunk")) == []


def test_a_failed_build_deletes_what_it_made(tmp_path: Path) -> None:
    def batches() -> Iterator[tuple[int, RowBatch]]:
        yield 0, rows(10)
        raise RuntimeError("the source broke")

    with ChunkStore(tmp_path, ram_budget_bytes=0) as store:
        with pytest.raises(RuntimeError, match="the source broke"):
            build_shard(batches(), CUTS, LAYOUT, 3, store)
        assert store.counters().disk_bytes == 0 and list(tmp_path.rglob("*.chunk")) == []


def test_a_batch_is_freed_before_the_next_is_made() -> None:
    def batches() -> Iterator[tuple[int, RowBatch]]:
        references: list[weakref.ref[object]] = []
        for first_row in range(0, 30, 10):
            assert all(reference() is None for reference in references)
            yield first_row, watched(references)

    def watched(references: list[weakref.ref[object]]) -> RowBatch:
        batch = rows(10)
        assert isinstance(batch.features, DenseRows) and isinstance(batch.columns.label, np.ndarray)
        references += [weakref.ref(batch.features.values), weakref.ref(batch.columns.label)]
        return batch

    with ChunkStore() as store:
        assert build_shard(batches(), CUTS, LAYOUT, 10, store).n_rows == 30


def test_an_engine_without_rows_has_an_empty_shard() -> None:
    with ChunkStore() as store:
        shard = build_shard([(5, rows(0))], CUTS, LAYOUT, 10, store)
        assert shard.entries == () and shard.n_rows == 0 and list(shard.chunks()) == []


def test_rows_added_twice_are_refused() -> None:
    with ChunkStore() as store, pytest.raises(DataError, match="row 9 was added twice"):
        build_shard([(9, rows(5)), (0, rows(10))], CUTS, LAYOUT, 100, store)


@pytest.mark.parametrize("name", ["label", "weight", "base_margin"])
def test_partitions_must_agree_on_what_they_have(name: str) -> None:
    without = rows(5)
    without = replace(without, columns=replace(without.columns, **{name: None}))
    with ChunkStore() as store, pytest.raises(DataError, match=f"some partitions have a {name} and others have none"):
        build_shard([(0, rows(5)), (5, without)], CUTS, LAYOUT, 100, store)


def test_chunks_have_rows() -> None:
    with ChunkStore() as store, pytest.raises(ParameterError, match="chunk_rows must be at least 1, got 0"):
        ShardBuilder(CUTS, LAYOUT, 0, store)
