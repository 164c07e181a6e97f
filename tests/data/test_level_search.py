"""The most frequent levels of columns that have more than there is room for: the same as with room for all."""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import levels as naive

from daskboost.data.categories import encode, level_rooms
from daskboost.data.categories.column_encoders import NATIVE, TARGET
from daskboost.data.categories.encode import CategoryOptions, encoded
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.level_rooms import LEAST_BYTES, LEVEL_BYTES, MOST_BYTES, bytes_within
from daskboost.data.categories.level_search import BoundedLevels, CellChoice, ColumnSearch, LevelCells
from daskboost.data.categories.levels import LevelCounts, LevelRoom, Levels
from daskboost.data.input.source import make_source
from daskboost.errors import DataError, DataTypeError
from daskboost.local.in_process import LocalRunner

LEVEL = 24 + 8
"""Bytes of a level of a column of integers."""


class Columns:
    """Partitions of some columns, and how often these have been read."""

    def __init__(self, parts: Sequence[Any], added: Any = operator.iadd) -> None:
        self.parts, self.n_reads, self._added = parts, 0, added

    def total(self, room: int, choice: CellChoice | None = None) -> BoundedLevels:
        counted = (BoundedLevels.of(LevelCounts.of(part, "x", choice), room) for part in self.parts)
        total: BoundedLevels = functools.reduce(self._added, (pickle.loads(pickle.dumps(part)) for part in counted))
        return total

    def kept(self, first_room: int, room: LevelRoom, later_room: int) -> Levels:
        search = ColumnSearch([self.total(first_room)], [room], later_room)
        while search.n_open:
            self.n_reads += 1
            search.take([self.total(search.room, choice) for choice in search.next()])
        (levels,) = search.levels
        return levels


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 60)), max_size=80), min_size=1, max_size=4),
    st.booleans(), st.sampled_from([operator.add, operator.iadd]), st.integers(1, 20), st.integers(1, 70),
    st.integers(4, 12),
)  # fmt: skip
def test_the_kept_levels_are_the_naive_ones(
    parts: list[list[Any]], as_texts: bool, added: Any, n_first: int, most: int, n_later: int
) -> None:
    if as_texts:
        parts = [[None if value is None else f"level {value}" for value in part] for part in parts]
    values = [value for part in parts for value in part]
    found = Columns(parts, added).kept(n_first * LEVEL, LevelRoom(most), n_later * LEVEL)
    assert found.values.plain == naive.kept(values, most)
    counts = naive.level_counts(values)
    assert found.counts.tolist() == [counts[value] for value in found.values.plain]
    assert found.n_missing == values.count(None)
    assert found.n_pooled_rows == sum(counts.values()) - int(found.counts.sum())
    again = Columns(parts[::-1], added).kept(n_first * LEVEL, LevelRoom(most), n_later * LEVEL)
    assert again.to_json() == found.to_json()


@pytest.mark.parametrize("most", [100, 3000])
def test_few_reads_find_the_levels_of_many(most: int, rng: np.random.Generator) -> None:
    parts = np.array_split((20_000 * rng.random(40_000) ** 3).astype(np.int64), 5)
    counts = functools.reduce(operator.add, (LevelCounts.of(part, "x") for part in parts))
    columns = Columns(parts)
    first = columns.total(4000 * LEVEL)
    assert isinstance(first.found, LevelCells) and counts.n_levels > 10_000
    assert first.found.counts.nbytes <= 1000 * LEVEL
    found = columns.kept(4000 * LEVEL, LevelRoom(most), 4000 * LEVEL)
    assert columns.n_reads <= 6
    wanted = Levels.kept(counts, LevelRoom(most))
    assert found.values.plain == wanted.values.plain and found.n_pooled_rows == wanted.n_pooled_rows
    assert abs(found.n_pooled_levels / wanted.n_pooled_levels - 1) < 0.2, "an estimate"


def test_any_of_the_columns_is_read_again(rng: np.random.Generator) -> None:
    many = [(3000 * rng.random(2000) ** 2).astype(np.int64) for _ in range(2)]
    columns = [Columns([[1, 2, 2]]), Columns([many[0]]), Columns([["a", "b"]]), Columns([many[1]])]
    rooms = [LevelRoom(9), LevelRoom(100), LevelRoom(9), LevelRoom(50)]
    search = ColumnSearch([own.total(600 * LEVEL) for own in columns], rooms, 2000 * LEVEL)
    assert search.n_open == 2
    while search.n_open:
        each = zip(columns, search.next(), strict=True)
        search.take([own.total(search.room, choice) for own, choice in each if choice is not None])
    for own, room, found in zip(columns, rooms, search.levels, strict=True):
        wanted = Levels.kept(LevelCounts.of(own.parts[0], "x"), room)
        assert found.values.plain == wanted.values.plain and found.counts.tolist() == wanted.counts.tolist()


def test_room_ends_by_bytes_too(rng: np.random.Generator) -> None:
    values = [f"{'long ' * (number % 7)}{number}" for number in (300 * rng.random(3000) ** 2).astype(int)]
    counts = LevelCounts.of(values, "x")
    for n_bytes in (0, 100, 5000, 10**6):
        room = LevelRoom(1000, n_bytes, 50)
        wanted = Levels.kept(counts, room)
        size = sum(50 + len(value) for value in wanted.values.plain if isinstance(value, str))
        assert size <= n_bytes and wanted.values.plain == naive.kept(values, wanted.n_levels)
        found = Columns([values[:1000], values[1000:]]).kept(3000, room, 3000)
        assert found.values.plain == wanted.values.plain
    assert wanted.n_levels == counts.n_levels


def test_a_level_without_room_is_refused() -> None:
    values = ["x" * 5000, "y"]
    with pytest.raises(DataError, match="column 'x' has too many or too long values for host_memory_limit"):
        Columns([values]).kept(40, LevelRoom(9), 40)


def test_cells_mix_no_kinds() -> None:
    first, second = (BoundedLevels.of(LevelCounts.of(part, "x"), 1) for part in ([1, 2], ["1", "2"]))
    assert isinstance(first.found, LevelCells)
    with pytest.raises(DataTypeError, match="column 'x' mixes numbers"):
        first + second
    with pytest.raises(DataTypeError, match="column 'x' mixes numbers"):
        BoundedLevels.of(LevelCounts.of(["a"], "x"), 10**6) + first


def test_the_bound_follows_the_limit() -> None:
    assert bytes_within(None) == bytes_within(4 << 30) == bytes_within(1 << 40) == MOST_BYTES
    assert bytes_within(2 << 30) == 1 << 29
    assert bytes_within(1) == LEAST_BYTES


def test_columns_share_what_others_leave() -> None:
    columns = [BoundedLevels.of(LevelCounts.of(list(range(n)), "x"), 10**6) for n in (3, 1000, 2000)]
    words, most = [TARGET, TARGET, NATIVE], [1000, 1000, 1500]
    target = LEVEL_BYTES + 2 * (10 * 4 + 8)
    rooms = level_rooms.level_rooms(columns, words, most, 10**6, 1)
    assert [room.level_bytes for room in rooms] == [target, target, LEVEL_BYTES]
    kept = ColumnSearch(columns.copy(), rooms, 1)
    assert kept.n_open == 0 and [own.n_levels for own in kept.levels] == [3, 1000, 1500]
    scarce = level_rooms.level_rooms(columns, words, most, 100_000, 1)
    assert scarce[0].n_bytes == 3 * (target + 8)
    assert scarce[1].n_bytes == scarce[2].n_bytes == (100_000 - scarce[0].n_bytes) // 2
    cells = BoundedLevels.of(LevelCounts.of(list(range(9)), "x"), 1)
    assert [room.n_bytes for room in level_rooms.level_rooms([columns[0], cells], words[:2], most[:2], 10**4, 1)] == [
        3 * (target + 8), 10**4 - 3 * (target + 8),
    ]  # fmt: skip


def test_features_within_a_bound(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "daskboost")
    n = 4000
    frame = pd.DataFrame({
        "id": [f"id-{number}" for number in (3000 * rng.random(n) ** 2).astype(int)],
        "zone": rng.integers(0, 900, n), "y": rng.integers(0, 2, n) * 1.0,
    })  # fmt: skip

    def features(**options: Any) -> tuple[Any, Encoder]:
        source = make_source(frame, "y", categorical=["zone"])
        made = encoded(source, CategoryOptions(**options), LocalRunner(1))
        assert isinstance(made.schema.encoder, Encoder)
        return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), made.schema.encoder

    monkeypatch.setattr(level_rooms, "LEAST_BYTES", 50_000)
    found, encoder = features(memory_limit=200_000)
    n_levels = [own.levels.n_levels for own in encoder.encoders if own is not None]
    assert "1 columns have more levels than there is room for: they are read again" in caplog.text
    assert "column 'id' has" in caplog.text and n_levels[1] < frame["zone"].nunique()
    sizes = [len(each) for each in (encoder.encoders[0].names, encoder.encoders[1].names)]  # type: ignore[union-attr]
    assert sum(sizes) * 150 < 50_000 and sizes == n_levels
    assert encode.MOST_LEVELS > frame["id"].nunique() > n_levels[0]
    assert found.shape == (n, 4) and np.isfinite(found).all()
