"""Key counts of rows in a GPU's memory, which give the bytes that `KeyTable` gives of the same rows on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.data.cell_counts import Refinement
from daskboost.data.key_counts import KeyTable
from daskboost.data.rows import DeviceRows
from daskboost.devices.gpu.features import Matrix
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device
from daskboost.devices.gpu.sketch import BATCH_ENTRY_SERIES, Counted, Entries, Intervals, count_keys, joined
from daskboost.devices.gpu.thin_keys import count_thin, least_bytes
from daskboost.dtypes import Int64

MANY_THIN = BATCH_ENTRY_SERIES
"""Columns of few entries that are worth a sort."""
FREE_SHARE = 2
"""A sort takes at most one part in so many of free memory."""


def count_on_device(features: DeviceRows, weights: Any, columns: Int64, capacities: Int64,
                    refinement: Refinement | None, scratch_bytes: int | None = None, threads: int = 1
                    ) -> tuple[KeyTable, Int64]:  # fmt: skip
    """Count the keys of some columns, only those in the heavy cells of a refinement if there is one.

    Parameters
    ----------
    features : DeviceDenseRows or DeviceSparseRows
    weights : int64 array, shape (rows,) or (0,)
        On the host or on the device of the features.
    columns : int64 array, shape (columns,)
    capacities : int64 array, shape (features,)
    refinement : Refinement or None
    scratch_bytes : int, optional
        Of device memory, what counting may use.
    threads : int, default 1
        That may copy cells to the host.

    Returns
    -------
    tuple of (KeyTable, int64 array)
        A series per column, and rows without a value.
    """
    runtime = features.runtime
    on_device = weights if len(weights) else None
    if isinstance(on_device, np.ndarray):
        on_device = to_device(runtime, on_device)
    source, on_device = features.series(on_device)
    missing = features.missing_values()
    intervals = None
    if refinement is not None:
        intervals = Intervals(refinement.offsets, refinement.lower, refinement.upper).of(columns)
    rest = (on_device, intervals, scratch_bytes, threads)
    found = _counted(runtime, source, columns, capacities[columns], features.n_rows - missing[columns], *rest)
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    counts = found.counts.reshape(-1, 1)
    return KeyTable(capacities[columns], found.bits, offsets, found.lower, found.upper, counts), missing[columns]


def _counted(runtime: Runtime, source: Matrix | Entries, columns: Int64, capacities: Int64, present: Int64,
             weights: DeviceArray | None, intervals: Intervals | None, scratch_bytes: int | None, threads: int
             ) -> Counted:  # fmt: skip
    """By `count_keys`, but thin columns together, where they are so many that it would need more batches for them."""
    rest = (weights, intervals, scratch_bytes, threads)
    thin = present <= capacities
    if not isinstance(source, Entries) or intervals is not None or thin.sum() < MANY_THIN:
        return count_keys(runtime, source, columns, capacities, *rest)
    room_bytes = runtime.free_bytes // FREE_SHARE
    if scratch_bytes is not None:
        room_bytes = min(room_bytes, scratch_bytes)
    if room_bytes < least_bytes(len(source.values), present[thin]):
        return count_keys(runtime, source, columns, capacities, *rest)
    found = count_thin(runtime, source, columns[thin], present[thin], room_bytes, weights, threads)
    if thin.all():
        return found
    others = count_keys(runtime, source, columns[~thin], capacities[~thin], *rest)
    return joined(found, others, thin)
