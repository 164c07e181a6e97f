"""Target statistics by folds: against the naive twin, and the laws that make them safe to train on."""

from __future__ import annotations

import functools
import operator
import pickle
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import statistics as reference

from daskboost.data.categories.folds import N_FOLDS, Division, FoldCounts, FoldTable, folds_of
from daskboost.data.categories.statistics import Target
from daskboost.devices.cpu.statistics import NOT_COUNTED, Statistics
from daskboost.dtypes import Float32, Int32, UInt8

unhurried = settings(deadline=None, max_examples=80)
SEED = 3
STEPS = np.array([[0], [1]], np.uint8)


class Rows(NamedTuple):
    """Rows of one column and their targets."""

    codes: Int32
    n_codes: int
    first_row: int
    levels: UInt8
    target: Target

    @property
    def statistics(self) -> Statistics:
        return self.target.statistics([0.25 * (1 + j) for j in range(self.target.n_statistics)])

    @property
    def folds(self) -> UInt8:
        return folds_of(SEED, self.first_row, len(self.codes))

    def counts(self, start: int = 0, stop: int | None = None) -> FoldCounts:
        part = slice(start, stop)
        return FoldCounts.of(
            [self.codes[part]], [self.n_codes], Division(SEED), self.folds[part], self.levels[part], self.target
        )

    def values(self) -> Float32:
        return self.counts().values(0, self.codes, self.folds, self.statistics)


@st.composite
def rows(draw: st.DrawFn, least: int = 0) -> Rows:
    """Some rows that share few codes, of few or many; thresholds or the mean."""
    n, n_codes = draw(st.integers(least, 40)), draw(st.sampled_from([0, 1, 4, 9, 1000]))
    most = draw(st.integers(1, 3))
    target = draw(st.sampled_from([
        Target(np.arange(most, dtype=np.float32), tuple(draw(st.sets(st.integers(0, most), min_size=1)))),
        Target(np.arange(most, dtype=np.float32), is_mean=True),
    ]))  # fmt: skip
    known = st.sampled_from(sorted({-2, -1, *range(min(n_codes, 3)), n_codes - 1}))
    codes = draw(st.lists(known, min_size=n, max_size=n))
    levels = draw(st.lists(st.sampled_from([*range(target.n_levels), NOT_COUNTED]), min_size=n, max_size=n))
    return Rows(
        np.array(codes, np.int32), n_codes, draw(st.integers(0, 2**40)), np.array(levels, np.uint8), target
    )


@unhurried
@given(rows())
def test_values_equal_the_naive_twin(given_: Rows) -> None:
    wanted = reference.fold_values(
        given_.codes.tolist(), given_.folds.tolist(), given_.levels.tolist(), given_.statistics
    )
    found = given_.values()
    assert found.dtype == np.float32 and found.shape == (len(given_.codes), given_.target.n_statistics)
    assert found.tolist() == wanted


@unhurried
@given(rows(least=1), st.data())
def test_a_rows_own_label_never_changes_its_values(given_: Rows, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(given_.codes) - 1))
    other = given_.levels.copy()
    other[row] = data.draw(st.sampled_from([*range(given_.target.n_levels), NOT_COUNTED]))
    assert given_.values()[row].tolist() == given_._replace(levels=other).values()[row].tolist()


def whole(tables: FoldTable) -> list[list[int]]:
    """All counts of a table, zeros too."""
    counts: list[list[int]] = tables.by_fold.reshape(-1, tables.counts.shape[1]).tolist()
    return counts


@unhurried
@given(rows(), st.lists(st.integers(0, 40), max_size=3), st.sampled_from([operator.add, operator.iadd]))
def test_partitions_count_what_the_whole_does(given_: Rows, borders: list[int], added: Any) -> None:
    edges = [0, *sorted(min(border, len(given_.codes)) for border in borders), len(given_.codes)]
    parts = [given_.counts(*edges[at : at + 2]) for at in range(len(edges) - 1)]
    found = functools.reduce(added, (pickle.loads(pickle.dumps(part)) for part in reversed(parts)))
    wanted = given_.counts()
    assert whole(found.tables[0]) == whole(wanted.tables[0]) and found.rows.tolist() == wanted.rows.tolist()
    assert found.summary.priors == wanted.summary.priors
    assert found.values(0, given_.codes, given_.folds, given_.statistics).tobytes() == given_.values().tobytes()


@pytest.mark.parametrize(("n_first", "n_second", "full"), [(3, 3, False), (30, 3, True), (3, 30, True), (30, 30, True)])
def test_tables_of_few_rows_are_of_these_alone(n_first: int, n_second: int, full: bool) -> None:
    n_codes, steps = 9, np.array([[0], [1]], np.uint8)

    def table(n: int) -> FoldTable:
        codes = np.arange(n, dtype=np.int32) % n_codes
        return FoldTable.of(codes, n_codes, folds_of(SEED, 0, n), np.ones(n, np.uint8), steps)

    first, second = table(n_first), table(n_second)
    both = first + second
    assert (both.cells is None) == full
    assert both.by_fold.tolist() == (first.by_fold + second.by_fold).tolist()
    assert first.by_fold.sum() == 2 * n_first


@pytest.mark.parametrize("added", [operator.add, operator.iadd])
@pytest.mark.parametrize("n_codes", [9, 900])
def test_counts_of_billions_of_rows_do_not_overflow(n_codes: int, added: Any) -> None:
    table = FoldTable.of(np.zeros(40, np.int32), n_codes, folds_of(SEED, 0, 40), np.ones(40, np.uint8), STEPS)
    assert (table.cells is None) == (n_codes == 9)
    times = (2**31 - 1) // int(table.counts.max())
    large = replace(table, counts=table.counts * np.int32(times), n_rows=40 * times)
    found = functools.reduce(added, [table, large, large])
    assert (table.counts.itemsize, found.counts.itemsize) == (4, 8)
    assert found.by_fold.sum(axis=(0, 1)).tolist() == [40 * (2 * times + 1)] * 2


def test_a_sum_in_place_takes_no_memory() -> None:
    codes = np.arange(900, dtype=np.int32) % 90
    tables = [FoldTable.of(codes, 90, folds_of(SEED, at, 900), np.ones(900, np.uint8), STEPS) for at in (0, 900)]
    wanted, total = tables[0] + tables[1], tables[0]
    total += tables[1]
    assert total.counts is tables[0].counts and total.by_fold.tolist() == wanted.by_fold.tolist()


def test_a_table_of_a_small_partition_does_not_grow_with_levels() -> None:
    codes, levels = np.arange(100, dtype=np.int32), np.ones(100, np.uint8)
    table = FoldTable.of(codes, 2**20, folds_of(SEED, 0, 100), levels, np.array([[0], [1]], np.uint8))
    assert table.counts.nbytes <= 800 and len(pickle.dumps(table)) < 4000
    assert table.total.counts[:100].tolist() == [[1, 1]] * 100
    assert len(pickle.dumps(table)) < 4000


def test_received_tables_are_not_read_only() -> None:
    """Kernels would be compiled anew for arrays that are."""
    codes, levels, steps = np.zeros(9, np.int32), np.ones(9, np.uint8), np.ones((2, 1), np.uint8)
    table = FoldTable.of(codes, 1, folds_of(SEED, 0, 9), levels, steps)
    for sent in (table, table.total):
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
        found = pickle.loads(head, buffers=[bytes(buffer) for buffer in buffers])
        assert buffers and found.counts.flags.writeable and found.counts.tolist() == sent.counts.tolist()


@unhurried
@given(rows())
def test_the_total_is_of_all_folds(given_: Rows) -> None:
    counts, steps, levels = given_.counts(), given_.statistics.steps.tolist(), given_.levels.tolist()
    own = [np.flatnonzero(given_.codes == code).tolist() for code in (*range(given_.n_codes), -1)]
    assert counts.totals[0].counts.tolist() == [reference.sums_of(each, levels, steps) for each in own]
    everything = reference.sums_of(range(len(levels)), levels, steps)
    assert counts.rows.tolist() == everything
    unit = max(everything[0], 1)
    assert counts.summary.priors == tuple(each / unit for each in everything[1:])


@pytest.mark.parametrize("first_row", [0, 123_456_789_012])
def test_folds_are_of_row_ids_and_about_equal(first_row: int) -> None:
    n = 20_000
    folds = folds_of(3, first_row, n)
    parts = [folds_of(3, first_row + start, stop - start) for start, stop in ((0, 0), (0, 700), (700, n))]
    assert folds.tolist() == np.concatenate(parts).tolist()
    counts = np.bincount(folds, minlength=N_FOLDS)
    assert len(counts) == N_FOLDS and (abs(counts - n / N_FOLDS) < 5 * (n / N_FOLDS) ** 0.5).all()
    assert folds_of(4, first_row, n).tolist() != folds.tolist()
