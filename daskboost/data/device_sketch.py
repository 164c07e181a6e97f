"""Key counts of rows in a GPU's memory, which give the bytes that `KeyTable` gives of the same rows on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.data.cell_counts import Refinement
from daskboost.data.key_counts import KeyTable
from daskboost.data.rows import DeviceRows
from daskboost.devices.gpu.features import Matrix
from daskboost.devices.gpu.runtime import Runtime, to_device
from daskboost.devices.gpu.sketch import BATCH_ENTRY_SERIES, Entries, Intervals, count_keys, joined
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
    own, present = capacities[columns], features.n_rows - missing[columns]
    thin = present <= own
    rest = (on_device, intervals, scratch_bytes, threads)
    sort_bytes = 0 if intervals is not None else _room_to_sort(runtime, source, present[thin], scratch_bytes)
    if sort_bytes and isinstance(source, Entries):
        found = count_thin(runtime, source, columns[thin], present[thin], sort_bytes, on_device, threads)
        if not thin.all():
            found = joined(found, count_keys(runtime, source, columns[~thin], own[~thin], *rest), thin)
    else:
        found = count_keys(runtime, source, columns, own, *rest)
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    counts = found.counts.reshape(-1, 1)
    return KeyTable(own, found.bits, offsets, found.lower, found.upper, counts), missing[columns]


def _room_to_sort(runtime: Runtime, source: Matrix | Entries, present: Int64, scratch_bytes: int | None) -> int:
    """Return the bytes that a sort of thin columns may take; 0 where these are too few to pay, or have no room.

    `present` : entries of each, no more than its cells.
    """
    if not isinstance(source, Entries) or len(present) < MANY_THIN:
        return 0
    room_bytes = runtime.free_bytes // FREE_SHARE
    if scratch_bytes is not None:
        room_bytes = min(room_bytes, scratch_bytes)
    return room_bytes if room_bytes >= least_bytes(len(source.values), present) else 0
