"""Key counts of sparse features of few entries on a GPU: those of many of them are sorted together.

A feature of no more entries than its capacity has a cell for each of its values, whatever they are. So there is no
resolution to be found, for which `sketch.py` takes some hundred features at a time and reads all entries each time.
Groups of features have up to `MOST_ENTRIES`, and no more than there is room for. Where the largest feature has no room
alone, none is counted so: `data/device_sketch.py` leaves all to `sketch.py`, and says what room is where nobody does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daskboost.devices.gpu.download import Download
from daskboost.devices.gpu.places import true_places
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.sketch import KEY_BITS, Counted, Entries
from daskboost.dtypes import ArrayModule, Int64

ENTRY_BYTES = 80
"""Bytes of an entry while it is sorted: its place, word and weight, copies that sorting makes, and what becomes of
it."""
MOST_ENTRIES = 1 << 24
"""Entries sorted in one batch: larger ones are no faster per entry, and these take 1.3 GB."""
LOOKED_UP_BYTES = 6
"""Bytes of any entry: its series, and whether it is sorted."""


def count_thin(runtime: Runtime, source: Entries, columns: Int64, present: Int64, room_bytes: int,
               weights: DeviceArray | None = None, threads: int = 1) -> Counted:  # fmt: skip
    """Count the keys of columns that have at most as many entries as cells; a series each.

    Parameters
    ----------
    columns, present : int64 arrays, shape (series,)
        Columns and their entries, those of weight 0 among them.
    room_bytes : int
        Of device memory, what counting may use: `least_bytes` or more.
    weights, threads
        See `sketch.count_keys`.
    """
    total = int(present.sum())
    lower, counts = np.empty(total, np.uint32), np.empty(total, np.int64)
    lengths, end = np.zeros(len(columns), np.int64), 0
    series_of = np.full(source.n_features, -1, np.int32)
    series_of[columns] = np.arange(len(columns))
    series = to_device(runtime, series_of)[source.indices]
    most = min(MOST_ENTRIES, (room_bytes - LOOKED_UP_BYTES * len(source.values)) // ENTRY_BYTES)
    for own in _groups(present, most):
        words, sums = _cells(runtime, source, series, own, weights)
        edges = runtime.xp.arange(own.start, own.stop + 1, dtype=np.int64) << KEY_BITS
        lengths[own] = np.diff(to_host(runtime.xp.searchsorted(words, edges)))
        begin, end = end, end + len(words)
        keys = (words & 0xFFFFFFFF).astype(np.uint32)
        Download(runtime, [(keys, lower[begin:end]), (sums, counts[begin:end])], threads).wait()
        del words, keys, sums
    bits = np.full(len(columns), KEY_BITS, np.uint8)
    return Counted(bits, lengths, lower[:end], lower[:end].copy(), counts[:end])


def least_bytes(n_entries: int, present: Int64) -> int:
    """Return the bytes of device memory that counting takes with the largest series alone."""
    return LOOKED_UP_BYTES * n_entries + ENTRY_BYTES * int(present.max(initial=0))


def _groups(present: Int64, most: int) -> Iterator[slice]:
    """Series of up to so many entries, which are sorted together; at least one."""
    ends, begin = np.cumsum(present), 0
    while begin < len(present):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(begin, end)
        begin = end


def _cells(
    runtime: Runtime, source: Entries, series: DeviceArray, own: slice, weights: DeviceArray | None
) -> tuple[DeviceArray, DeviceArray]:
    """Series and key of each cell of a group, as one word, in order, and what is counted in it; int64."""
    xp = runtime.xp
    wanted = series >= own.start
    wanted &= series < own.stop
    if weights is not None:
        wanted &= weights > 0
    places = true_places(runtime, wanted)
    del wanted
    words = series[places].astype(np.int64) << KEY_BITS
    words |= _keys(xp, source.values[places])
    if weights is None:
        words.sort()
    else:
        order = xp.argsort(words)
        words, up_to = words[order], xp.cumsum(weights[places[order]])
    del places
    is_last = xp.concatenate([words[1:] != words[:-1], xp.ones(min(len(words), 1), np.bool_)])
    ends = true_places(runtime, is_last)
    last = ends + 1 if weights is None else up_to[ends]
    sums = last.copy()
    sums[1:] -= last[:-1]
    return words[ends], sums


def _keys(xp: ArrayModule, values: DeviceArray) -> DeviceArray:
    """Return keys as `kernels/keys.cuh` makes them; by bits alone, since expressions of CuPy take values below 2**-126
    for 0."""
    bits = values.view(np.uint32).astype(np.int64)
    bits = xp.where(bits == 0x80000000, 0, bits)  # -0
    return xp.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
