"""What partitions report, added up in one process as they are read.

Blocks that lie on a GPU as they were given take no memory while they wait: they are counted together, once all have
come, which takes hardly longer than one alone and leaves no tables to be added.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from daskboost.data.cuts.sketch import DataSketch
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_batch import DeviceRows
from daskboost.data.input.row_columns import ColumnSummary, RowBatch
from daskboost.dtypes import Int64

WAITING_SHARE = 0.75
"""Share of a GPU's free memory that must be left for blocks to go on waiting: those that were given take none of it."""


@dataclass(frozen=True)
class PartitionSummary:
    """What the first read of partitions tells of them; `a + b` is that of both, in any order."""

    stats: LabelStats
    missing: Int64
    """Rows that lack each feature; shape (features,)."""
    columns: ColumnSummary

    def __add__(self, other: PartitionSummary) -> PartitionSummary:
        return PartitionSummary(
            self.stats + other.stats, self.missing + other.missing, self.columns + other.columns
        )  # fmt: skip


@dataclass(frozen=True)
class PartitionReport:
    """What a read of partitions tells of them; merges in any order."""

    summary: PartitionSummary | None
    """None of all reads but the first."""
    sketch: DataSketch | None
    """None where no cut points are sought."""

    def summarized(self) -> PartitionSummary:
        """Return the summary of a first read."""
        assert self.summary is not None
        return self.summary

    def sketched(self) -> DataSketch:
        """Return the sketch of a read for cut points."""
        assert self.sketch is not None
        return self.sketch

    @property
    def cell_bytes(self) -> int:
        """Bytes of what the sketch counted."""
        counted = self.sketch
        return 0 if counted is None else counted.nbytes

    def merged(self, other: PartitionReport, threads: int = 1) -> PartitionReport:
        """The sum of both: the same for any number of threads."""
        summary = None if self.summary is None or other.summary is None else self.summary + other.summary
        ours, theirs = self.sketch, other.sketch
        return PartitionReport(summary, None if ours is None or theirs is None else ours.merged(theirs, threads))


Reading = Callable[..., PartitionReport]
"""`read(batches, threads=...)` of one batch, or of several whose features are dense and lie on one GPU."""


class Fold:
    """The sum of what partitions report that this process reads; a partition that comes again counts once.

    Safe from any thread. A report is added in a thread of its own while the next one is made.
    """

    def __init__(self, read: Reading, threads: int) -> None:
        self._read, self._threads = read, threads
        self._lock = threading.Lock()
        self._adding = ThreadPoolExecutor(1)
        self._total: Future[PartitionReport] | None = None
        self._waiting: list[RowBatch] = []
        self._free_bytes = 0
        """The GPU's memory when the first of those that wait came."""
        self.partitions: set[int] = set()

    def add(self, index: int, batch: RowBatch) -> None:
        """Take a partition."""
        if batch.features.is_lent and isinstance(batch.features, DeviceRows):
            with self._lock:
                if index not in self.partitions:
                    self.partitions.add(index)
                    self._wait(batch, batch.features)
            return
        part = self._read([batch], threads=self._threads)
        with self._lock:
            if index not in self.partitions:
                self.partitions.add(index)
                self._add(part)

    def total(self) -> PartitionReport | None:
        """The sum so far; None if no partition came."""
        with self._lock:
            self._count_waiting()
            return None if self._total is None else self._total.result()

    def close(self) -> None:
        """End the thread."""
        self._adding.shutdown()

    def _wait(self, batch: RowBatch, rows: DeviceRows) -> None:
        """Let a partition wait, unless that takes the GPU's memory."""
        waiting = next((each.features for each in self._waiting), rows)
        if isinstance(waiting, DeviceRows) and waiting.runtime.device != rows.runtime.device:
            self._count_waiting()
        if not self._waiting:
            self._free_bytes = rows.runtime.free_bytes
        self._waiting.append(batch)
        if rows.runtime.free_bytes < WAITING_SHARE * self._free_bytes:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if self._waiting:
            self._add(self._read(self._waiting, threads=self._threads))
            self._waiting = []

    def _add(self, part: PartitionReport) -> None:
        before = None if self._total is None else self._total.result()
        self._total = self._adding.submit(_added, before, part, self._threads)


def _added(total: PartitionReport | None, part: PartitionReport, threads: int) -> PartitionReport:
    return part if total is None else total.merged(part, threads)
