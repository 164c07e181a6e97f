"""Partitions that one process reads are added up; those that a GPU has already are counted together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from strategies.device_rows import device_dense

from daskboost.data.chunks.build import refine, summarize
from daskboost.data.chunks.fold import Fold, PartitionReport
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.dtypes import Float32

SIZES = (70, 1, 200, 129)


def parts_of(values: Float32) -> list[Float32]:
    return np.split(values, np.cumsum(SIZES)[:-1])


def batches(runtime: Runtime | None, values: Float32) -> list[RowBatch]:
    """Partitions on the host, or on a GPU as they were given."""
    found = []
    for part in parts_of(values):
        features: Any = DenseRows(part) if runtime is None else replace(device_dense(runtime, part), is_lent=True)
        found.append(RowBatch(features, RowColumns(label=(part[:, 1] > 0).astype(np.float32))))
    return found


def told(report: PartitionReport | None) -> dict[str, object]:
    """Everything in a report."""
    assert report is not None
    summary, sketch = report.summary, report.sketch
    found: dict[str, object] = {} if sketch is None else {
        name: array.tobytes() for name, array in sketch.table.to_arrays().items()
    }  # fmt: skip
    if summary is not None:
        found |= {"stats": summary.stats, "missing": summary.missing.tolist(), "columns": summary.columns}
    return found


@pytest.fixture
def values(rng: np.random.Generator) -> Float32:
    found = rng.standard_normal((400, 3)).astype(np.float32)
    found[rng.random((400, 3)) < 0.1] = np.nan
    return found


class Reads:
    """A reading that notes how many batches it is given at a time."""

    def __init__(self, capacity: int | None) -> None:
        self.sizes: list[int] = []
        self._capacity = capacity

    def __call__(self, batches: Sequence[RowBatch], threads: int) -> PartitionReport:
        self.sizes.append(len(batches))
        return summarize(batches, capacity=self._capacity, exponent=None, device_bytes=sys.maxsize, threads=threads)


def total(fold: Fold, some: Sequence[RowBatch]) -> dict[str, object]:
    with closing(fold):
        for index in (2, 0, 3, 1, 0):  # one comes again
            fold.add(index, some[index])
        assert fold.partitions == {0, 1, 2, 3}
        return told(fold.total())


@pytest.mark.parametrize("capacity", [None, 50])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_on_a_gpu_wait_for_each_other(
    runtime: Runtime, values: Float32, capacity: int | None, threads: int
) -> None:
    whole = summarize(
        [RowBatch(DenseRows(values), RowColumns(label=(values[:, 1] > 0).astype(np.float32)))], capacity=capacity,
        exponent=None, device_bytes=sys.maxsize, threads=1,
    )  # fmt: skip
    here, there = Reads(capacity), Reads(capacity)
    assert total(Fold(here, threads), batches(None, values)) == told(whole)
    assert total(Fold(there, threads), batches(runtime, values)) == told(whole)
    assert here.sizes == [1] * 5 and there.sizes == [4]


def test_further_reads_wait_as_well(runtime: Runtime, values: Float32) -> None:
    first = Fold(Reads(50), 1)
    total(first, batches(None, values))
    report = first.total()
    assert report is not None
    refinement = report.sketched().cells().heavy(32)
    assert refinement is not None
    again = partial(refine, refinement=refinement, exponent=None, device_bytes=sys.maxsize)
    assert total(Fold(again, 1), batches(runtime, values)) == total(Fold(again, 1), batches(None, values))


def test_blocks_that_take_memory_do_not_wait(
    runtime: Runtime, values: Float32, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as are made when they are read: the third leaves less than three quarters."""
    read, left = Reads(50), iter([100, 100, 90, 70, 70, 60, 40])
    monkeypatch.setattr(type(runtime), "free_bytes", property(lambda self: next(left)))
    fold = Fold(read, 1)
    with closing(fold):
        for index, batch in enumerate(batches(runtime, values)):
            fold.add(index, batch)
        assert read.sizes == [3]
        monkeypatch.setattr(type(runtime), "free_bytes", 1 << 30)
        found = told(fold.total())
    assert read.sizes == [3, 1]
    assert found == total(Fold(Reads(50), 1), batches(None, values))


def test_nothing_comes_of_nothing() -> None:
    with closing(Fold(Reads(None), 1)) as fold:
        assert fold.total() is None
