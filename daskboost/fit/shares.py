"""Who reduces what, and in how few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.narrow import narrow_into
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Int32, Int64


def feature_shares(layout: SlotLayout, n_peers: int) -> list[tuple[int, int]]:
    """One range of features per peer, with about equal numbers of slots; later ranges may be empty."""
    goals = layout.n_slots * np.arange(1, n_peers) / n_peers
    edges = [0, *np.searchsorted(layout.offsets, goals).tolist(), len(layout.n_bins)]
    return list(pairwise(edges))


def narrow(sums: Int64, buffers: Buffers) -> Int64 | Int32:
    """The same sums as int32 where they all fit: half the bytes to send. C-contiguous in and out."""
    small: Int32 = buffers.empty(sums.shape, np.int32)
    return small if narrow_into(sums.reshape(-1), small.reshape(-1)) else sums


def total(parts: Sequence[Int64 | Int32], buffers: Buffers) -> Int64:
    """Sum of narrowed histograms; one part alone is not copied if it is wide already."""
    if len(parts) == 1:
        return np.asarray(parts[0], np.int64)
    result: Int64 = np.add(parts[0], parts[1], out=buffers.empty(parts[0].shape))
    for part in parts[2:]:
        result += part
    return result
