"""Target statistics: tables against the naive twin, and the levels of targets."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import statistics as reference

from daskboost.data.categories.statistics import StatisticTable, Target, count_labels
from daskboost.devices.cpu.statistics import NOT_COUNTED, count_folds
from daskboost.dtypes import Int32, UInt8
from daskboost.errors import DataError

unhurried = settings(deadline=None, max_examples=80)
N_CODES = 4


def table_of(codes: Int32, levels: UInt8, n_codes: int, target: Target) -> StatisticTable:
    counts = np.zeros((n_codes + 1, 1, 1 + target.n_statistics), np.int64)
    count_folds(codes, np.zeros(len(codes), np.uint8), levels, target.steps, counts)
    return StatisticTable(counts[:, 0])


@unhurried
@given(st.lists(st.integers(-2, N_CODES - 1), max_size=60), st.integers(0, 60), st.data())
def test_tables_equal_the_naive_twin_in_any_partitioning(codes: list[int], at: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    target = data.draw(st.sampled_from([
        Target(np.arange(n, dtype=np.float32), tuple(data.draw(st.sets(st.integers(0, n), min_size=1)))),
        Target(np.arange(n, dtype=np.float32), is_mean=True),
    ]))  # fmt: skip
    share = data.draw(st.sampled_from([1.0, 0.9]))
    known = st.sampled_from([*range(target.n_levels), NOT_COUNTED])
    levels = data.draw(st.lists(known, min_size=len(codes), max_size=len(codes)))
    statistics = target.statistics([0.25 * (1 + j) for j in range(target.n_statistics)], share)
    own, own_levels = np.array(codes, np.int32), np.array(levels, np.uint8)
    parts = [table_of(own[part], own_levels[part], N_CODES, target) for part in (slice(at), slice(at, None))]
    table = parts[0] + parts[1]
    asked = np.arange(-2, N_CODES, dtype=np.int32)
    rows = [[row for row, code in enumerate(codes) if code == each >= -1] for each in asked.tolist()]
    sums = [reference.sums_of(each, levels, statistics.steps.tolist()) for each in rows]
    assert table.counts.tolist() == [*sums[2:], sums[1]]
    assert table.values(asked, statistics).tolist() == [reference.values_of(each, statistics, share) for each in sums]
    stored = StatisticTable.from_json(json.loads(json.dumps(table.to_json())))
    assert stored.counts.tobytes() == table.counts.tobytes()


# Levels of the target.

@unhurried
@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=16), st.integers(0, 16), st.booleans())
def test_few_labels_are_levels_in_any_partitioning(labels: list[float], at: int, are_classes: bool) -> None:
    values = np.array(labels, np.float32) + np.float32(0)
    target = Target.of(count_labels(values[:at]) + count_labels(values[at:]), are_classes)
    assert target.levels(values).tolist() == np.unique(values, return_inverse=True)[1].tolist()
    n_labels = len(np.unique(values))
    assert target.shares == ((), (1,))[n_labels - 1] if n_labels <= 2 else target.shares == tuple(range(n_labels))
    stored = Target.from_json(json.loads(json.dumps(target.to_json())))
    assert stored.thresholds.tobytes() == target.thresholds.tobytes() and stored.shares == target.shares


def test_a_threshold_lies_halfway_between_its_neighbours() -> None:
    assert Target.of(count_labels(np.array([0, 1, 1, 4], np.float32))).thresholds.tolist() == [0.5, 2.5]


def test_many_labels_become_ranks(rng: np.random.Generator) -> None:
    """Levels of as many rows each, whose mean is the statistic; labels that are far away count no more than others."""
    labels = rng.standard_cauchy(size=3200).astype(np.float32)
    weight = np.ones(4200, np.float32)
    weight[3200:] = 0
    everything = np.concatenate([labels, np.full(1000, 99, np.float32)])
    target = Target.of(count_labels(everything, weight))
    assert np.bincount(target.levels(labels)).tolist() == [200] * 16
    assert target.is_mean and target.n_statistics == 1 and target.labels == ["target"]
    assert (target.levels(everything, weight)[3200:] == NOT_COUNTED).all()
    codes, levels = np.zeros(3200, np.int32), target.levels(labels)
    table, statistics = table_of(codes, levels, 1, target), target.statistics([7.5])
    assert table.values(codes[:1], statistics).item() == 0.5 and statistics.priors.item() == 0.5
    stored = Target.from_json(json.loads(json.dumps(target.to_json())))
    assert stored.is_mean and stored.thresholds.tobytes() == target.thresholds.tobytes()


def test_of_many_classes_the_most_frequent_have_statistics(rng: np.random.Generator) -> None:
    counts = rng.permutation(np.arange(1, 41))
    codes = np.repeat(np.arange(40, dtype=np.float32), counts)
    target = Target.of(count_labels(codes), are_classes=True)
    assert target.shares == tuple(np.flatnonzero(counts > 24).tolist()) and len(target.shares) == 16
    assert target.levels(np.arange(40, dtype=np.float32)).tolist() == list(range(40))
    many = Target.of(count_labels(np.arange(1000, dtype=np.float32)), are_classes=True)
    assert many.n_levels == 255 and len(many.shares) == 16


def test_priors_of_another_number_are_refused() -> None:
    with pytest.raises(DataError, match="priors: 2 were given for 1 statistics"):
        Target(np.array([0.5], np.float32)).statistics([0.5, 0.5])


DAMAGES: dict[str, dict[str, Any]] = {
    "not increasing": {"thresholds": [1, 1], "shares": [1]}, "no such level": {"thresholds": [1], "shares": [2]},
    "twice": {"thresholds": [1], "shares": [1, 1]},
    "shares of a mean": {"thresholds": [1], "shares": [0], "is_mean": True},
    "nested": {"thresholds": [[1]], "shares": [1]},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_targets_that_cannot_be_are_refused(damage: str) -> None:
    with pytest.raises(ValueError, match="target"):
        Target.from_json(DAMAGES[damage])


@pytest.mark.parametrize("counts", [[1, 2], [[-1, 0]], [], [[]]])
def test_tables_that_cannot_be_are_refused(counts: list[object]) -> None:
    with pytest.raises(ValueError, match="no table"):
        StatisticTable.from_json({"counts": counts})
