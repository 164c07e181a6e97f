"""The sketch: per feature the key counts of its values, merged over partitions, refined until cut points are sure.

    batch -> sketch_batch -> + over all batches -> cells() -> heavy(max_bin)? -> make_cuts
                                                     ^             | refine_batch -> + over all batches
                                                     +-- refined --+

A cell that holds several values and more than 0.2 / max_bin of its feature's weight could hide a cut point. Bounded
memory makes that possible (a narrow band beside far outliers), so such cells are counted again, finer, in one more
pass over the data; at default capacities three such passes reach single values. Data without such bands needs none.

Memory per feature and sketch is at most 16 bytes x capacity (256 KB at the default for 256 bins), and less for
features of fewer distinct values; a refinement takes 2 KB per heavy cell, of which a feature has under 5 x max_bin.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daskboost.data.cuts.cell_counts import CellCounts, Refinement
from daskboost.data.cuts.feature_keys import Extract
from daskboost.data.cuts.key_counts import CELL_BYTES, KEY_BITS, KeyTable
from daskboost.data.input.device_read import by_parts, exact_doubles, on_device
from daskboost.data.input.row_batch import AnyFeatures, DeviceColumn, DeviceRows, host_column
from daskboost.data.input.uploaded_rows import UploadedRows
from daskboost.devices.gpu.quantize.bins import Matrix
from daskboost.devices.gpu.quantize.sketch import (
    BATCH_ENTRY_SERIES,
    Block,
    Entries,
    Intervals,
    count_keys,
    count_thin,
    joined,
    least_bytes,
)
from daskboost.devices.gpu.runtime.launches import Runtime, to_device
from daskboost.dtypes import ArrayModule, Float32, Int64
from daskboost.errors import DataError

# Key counts of rows in a GPU's memory, which give the bytes that `KeyTable` gives of the same rows on the host.

MANY_THIN = BATCH_ENTRY_SERIES
"""Columns of few entries that are worth a sort."""
FREE_SHARE = 2
"""A sort takes at most one part in so many of free memory."""


@dataclass(frozen=True)
class Counting:
    """Which keys of rows are counted, and by what means."""

    columns: Int64
    """The features; int64, shape (columns,), increasing."""
    capacities: Int64
    """Most cells of each feature; int64, shape (features,)."""
    refinement: Refinement | None = None
    """Cells outside of which no keys are counted; None for all keys."""
    threads: int = 1
    scratch_bytes: int = sys.maxsize
    """Bytes of a GPU's memory that counting may use, of what is free."""


def count_on_device(rows: Sequence[tuple[DeviceRows, Any]], wanted: Counting) -> tuple[KeyTable, Int64]:
    """Count the keys of some columns: a series per column, and rows without a value.

    `rows` : features and int64 weights of blocks on one GPU, these of shape (rows,) or (0,), on the host or there; of
    several blocks all are dense.
    """
    runtime = rows[0][0].runtime
    columns, refinement, threads = wanted.columns, wanted.refinement, wanted.threads
    blocks, missing, n_rows = [], np.zeros(len(columns), np.int64), 0
    for features, weights in rows:
        weights = weights if len(weights) else None
        if isinstance(weights, np.ndarray):
            weights = to_device(runtime, weights)
        blocks.append(Block(*features.series(weights)))
        missing += features.missing_values()[columns]
        n_rows += features.n_rows
    intervals = None
    if refinement is not None:
        intervals = Intervals(refinement.offsets, refinement.lower, refinement.upper).of(columns)
    own, present = wanted.capacities[columns], n_rows - missing
    thin = present <= own
    rest = (intervals, wanted.scratch_bytes, threads)
    source = blocks[0].values
    sort_bytes = 0 if intervals is not None else _room_to_sort(runtime, source, present[thin], wanted.scratch_bytes)
    if sort_bytes and isinstance(source, Entries):
        weights = blocks[0].weights
        found = count_thin(runtime, source, columns[thin], present[thin], sort_bytes, weights, threads)
        if not thin.all():
            found = joined(found, count_keys(runtime, blocks, columns[~thin], own[~thin], *rest), thin)
    else:
        found = count_keys(runtime, blocks, columns, own, *rest)
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    counts = found.counts.reshape(-1, 1)
    return KeyTable(own, found.bits, offsets, found.lower, found.upper, counts), missing


def _room_to_sort(runtime: Runtime, source: Matrix | Entries, present: Int64, scratch_bytes: int) -> int:
    """Return the bytes that a sort of thin columns may take; 0 where these are too few to pay, or have no room.

    `present` : entries of each, no more than its cells.
    """
    if not isinstance(source, Entries) or len(present) < MANY_THIN:
        return 0
    room_bytes = min(runtime.free_bytes // FREE_SHARE, scratch_bytes)
    return room_bytes if room_bytes >= least_bytes(len(source.values), present) else 0


_WEIGHT_BITS = 61  # the integer weights sum to about 2**61: the finest scale that leaves room for rounding
_LEAST_CAPACITY, _MOST_CAPACITY = 1 << 14, 1 << 18
_FEWEST_CELLS = 1 << 11  # eleven bits at least, so that three refinements of seven reach all 32
_SKETCH_BYTES = 1 << 28  # wide data takes coarser cells, and perhaps a refinement, rather than more memory


def default_capacity(max_bin: int, n_features: int) -> int:
    """Cells per feature: at least 64 for each bin up to 2**18, fewer (never under 8 a bin) beyond 256 MB in all.

    Normal data at 256 bins needs 2**14 cells, since cells are as wide as float32's steps and so denser near zero.
    """
    capacity = max(_LEAST_CAPACITY, min(_power_of_two(64 * max_bin), _MOST_CAPACITY))
    least = max(_FEWEST_CELLS, _power_of_two(8 * max_bin))
    while capacity > least and capacity * CELL_BYTES * n_features > _SKETCH_BYTES:
        capacity //= 2
    return max(capacity, least)


def weight_exponent(total_weight: float) -> int:
    """The power of two by which weights are scaled before they are rounded to integers.

    Parameters
    ----------
    total_weight : float
        Sum of the weights of all rows of all partitions; from an :class:`~daskboost.exact_sum.ExactSum`, so that
        it does not depend on the partitioning.

    Returns
    -------
    int
        The exponent at which the weights sum to about 2**61. Rounding a weight to an integer then loses at most
        2**-62 of the total, so even rows far lighter than the heaviest count.
    """
    if not 0 <= total_weight < math.inf:
        raise DataError(f"total_weight: {total_weight} is not a finite sum of weights; weights must be >= 0")
    return _WEIGHT_BITS - math.frexp(total_weight)[1]


def integer_weights(weight: Float32, exponent: int, xp: ArrayModule = np) -> Int64:
    """Weights times 2**exponent, rounded to the nearest integer, halves to even; int64, shape (n,).

    `weight` : float32 array of `xp`, as the result is.
    """
    # Products are exact: float32 times a power of two that float64 has. Larger powers are of sums below any float32,
    # as the weights of classes can make them: all weights are 0.
    scale = math.ldexp(1.0, min(exponent, sys.float_info.max_exp - 1))

    def units(rows: slice) -> Int64:
        return xp.rint(exact_doubles(weight[rows], xp) * scale).astype(np.int64)

    return by_parts(xp, len(weight), np.int64, units)


@dataclass(frozen=True, eq=False)
class DataSketch:
    """Key counts of all features; `+` merges, in any order to the same bytes.

    Parameters
    ----------
    table : KeyTable
        A series per feature; counts of shape (cells, 1): rows, or weights as :func:`integer_weights` makes them.
    missing : int64 array, shape (features,)
        Rows without a value, those of weight zero included.
    weight_exponent : int or None
        The scale of the weights; None for counts of rows.
    """

    table: KeyTable
    missing: Int64
    weight_exponent: int | None = None

    def __add__(self, other: DataSketch) -> DataSketch:
        return self.merged(other)

    def merged(self, other: DataSketch, threads: int = 1) -> DataSketch:
        """The sum of both: the same bytes for any number of threads."""
        if self.weight_exponent != other.weight_exponent:
            raise DataError(
                f"weight_exponent: {self.weight_exponent} and {other.weight_exponent} differ; sketch all batches "
                "with the exponent of the whole data's weights, or all without weights"
            )
        table = self.table.merged(other.table, threads)
        return DataSketch(table, self.missing + other.missing, self.weight_exponent)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells."""
        return CELL_BYTES * len(self.table.lower)

    def part(self, first: int, last: int) -> DataSketch:
        """The features from `first` to `last`, as views."""
        return DataSketch(self.table.part(first, last), self.missing[first:last], self.weight_exponent)

    def received(self) -> DataSketch:
        """The same, in arrays as kernels take them."""
        return replace(self, table=self.table.for_kernels())

    def cells(self) -> CellCounts:
        """The counted cells, once all batches are merged."""
        table = self.table
        return CellCounts(table.offsets, table.lower, table.upper, table.counts[:, 0], self.missing > 0)


Weighted = tuple[AnyFeatures, Float32 | DeviceColumn | None]
"""Features of rows, and their weights."""


def sketch_batch(
    features: AnyFeatures,
    weight: Float32 | DeviceColumn | None = None,
    *,
    capacity: int,
    weight_exponent: int | None = None,
    max_workers: int = 1,
    device_bytes: int = sys.maxsize,
    beside: Sequence[Weighted] = (),
) -> DataSketch:
    """Sketch one batch of rows.

    Parameters
    ----------
    features : DenseRows or SparseRows, either in a GPU's memory, or on its way there
        Absent entries of sparse rows are missing, as NaNs of dense ones are.
    weight : float32 array, shape (rows,), DeviceColumn, or None for ones
        Not negative. Rows of weight zero leave no trace but in the count of missing values.
    capacity : int
        Cells per feature; :func:`default_capacity`. The same for all batches.
    weight_exponent : int or None
        :func:`weight_exponent` of the whole data, given exactly where `weight` is.
    max_workers : int, default 1
        Threads; the result does not depend on them.
    device_bytes : int, optional
        Of a GPU's memory, what may be taken beside features that lie there; with less, fewer features are counted at a
        time, one at least.
    beside : sequence of (features, weight), optional
        Batches that are counted together with this one: all of them dense rows in the memory of one GPU.

    Raises
    ------
    DataError
        If only one of `weight` and `weight_exponent` is given.
    """
    columns, capacities = np.arange(features.n_features), np.full(features.n_features, capacity, np.int64)
    wanted = Counting(columns, capacities, None, max_workers, _scratch_bytes(device_bytes))
    return _sketch([(features, weight), *beside], wanted, weight_exponent)


def refine_batch(
    features: AnyFeatures,
    weight: Float32 | DeviceColumn | None,
    refinement: Refinement,
    *,
    weight_exponent: int | None = None,
    max_workers: int = 1,
    device_bytes: int = sys.maxsize,
    beside: Sequence[Weighted] = (),
) -> DataSketch:
    """Sketch, of one batch of rows, only the values inside the heavy cells; other arguments as :func:`sketch_batch`.

    The capacity of each feature follows from the number of its heavy cells. Nothing is counted as missing.
    """
    columns = np.flatnonzero(np.diff(refinement.offsets))
    wanted = Counting(columns, refinement.capacities, refinement, max_workers, _scratch_bytes(device_bytes))
    found = _sketch([(features, weight), *beside], wanted, weight_exponent)
    return replace(found, missing=np.zeros_like(found.missing))


def _sketch(batches: Sequence[Weighted], wanted: Counting, exponent: int | None) -> DataSketch:
    rows = [(features, _checked_weights(features, weight, exponent)) for features, weight in batches]
    return DataSketch(*_count(rows, wanted), exponent)


def _scratch_bytes(device_bytes: int) -> int:
    """What is not lost to CuPy's pool, which rounds up."""
    return max(0, device_bytes) * 15 // 16


def _checked_weights(features: AnyFeatures, weight: Float32 | DeviceColumn | None, exponent: int | None) -> Int64:
    """Integer weights, on the GPU where features and weights lie there; of length 0 for ones, as kernels take them."""
    if (weight is None) != (exponent is None):
        raise DataError("weight_exponent: it and weight must be given together; see daskboost.data.cuts.sketch")
    if weight is None or exponent is None:
        return np.empty(0, np.int64)
    if isinstance(weight, DeviceColumn) and isinstance(features, DeviceRows):
        runtime = weight.runtime
        if runtime.device == features.runtime.device:
            with on_device(runtime):
                return integer_weights(weight.values, exponent, runtime.xp)
    return integer_weights(host_column(weight), exponent)


def _count(rows: Sequence[tuple[AnyFeatures, Int64]], wanted: Counting) -> tuple[KeyTable, Int64]:
    """Key counts of all features, empty but for the columns, and the missing values of these columns."""
    features, weights = rows[0]
    if isinstance(features, UploadedRows):
        return _count_blocks(features, weights, wanted)
    missing, columns = np.zeros(features.n_features, np.int64), wanted.columns
    on_gpu = [(each, own) for each, own in rows if isinstance(each, DeviceRows)]
    if isinstance(features, DeviceRows):
        with on_device(features.runtime):
            table, missing[columns] = count_on_device(on_gpu, wanted)
        return _spread(table, wanted), missing
    from daskboost.devices.cpu.sketch import select_keys

    total, finer = KeyTable.empty(wanted.capacities), wanted.refinement
    with ThreadPoolExecutor(wanted.threads) as pool:
        for groups, extract in features.key_blocks(weights, columns, wanted.threads):

            def job(group: Int64, extract: Extract = extract) -> tuple[KeyTable, Int64]:
                runs, lacking = extract(group)
                if finer is not None:
                    select_keys(runs, group, finer.offsets, finer.lower, finer.upper)
                counts = runs.weights.reshape(-1, 1) if len(runs.weights) else None
                return KeyTable.count(runs.keys, counts, runs.starts, runs.ends, wanted.capacities[group]), lacking

            parts = list(pool.map(job, groups))
            if parts:
                missing[columns] += np.concatenate([part[1] for part in parts])
                total += _spread(KeyTable.concatenate([part[0] for part in parts]), wanted)
    return total, missing


def _count_blocks(features: UploadedRows, weights: Int64, wanted: Counting) -> tuple[KeyTable, Int64]:
    """The sums of what `_count` gives of the blocks that a GPU takes."""
    total, missing = KeyTable.empty(wanted.capacities), np.zeros(features.n_features, np.int64)
    for start, block in features.blocks(threads=wanted.threads):
        own = weights[start : start + block.n_rows]
        part, absent = _count([(block, own)], replace(wanted, scratch_bytes=features.scratch_bytes))
        del block  # before the next one comes
        total, missing = total.merged(part, wanted.threads), missing + absent
    return total, missing


def _spread(table: KeyTable, wanted: Counting) -> KeyTable:
    """A table of the columns as one of all features, the others empty."""
    columns, capacities = wanted.columns, wanted.capacities
    lengths = np.zeros(len(capacities), np.int64)
    lengths[columns] = np.diff(table.offsets)
    bits = np.full(len(capacities), KEY_BITS, np.uint8)
    bits[columns] = table.bits
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return KeyTable(capacities, bits, offsets, table.lower, table.upper, table.counts)


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
