"""Rows go to the nodes of a tree that is known whole: one walk and one counting sort, where each level would take a
partition.

The sort is stable and each thread has a stretch of the rows, so reads of a chunk run forward within a node, as after
`partition.py`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.chunk_order import ChunkOrder
from daskboost.devices.cpu.histogram import LOW_HALF, _pair
from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Float32, Int64, Pairs, UInt32


@njit(cache=True, nogil=True)
def count_places(
    order: UInt32, pairs: Pairs, place: Float32, begin: int, end: int, counts: Int64, sums: Int64
) -> None:
    """Rows `order[begin:end]` of each place, and their sums of g and h; the last of `counts` is for negative places.

    `place` : float32, shape (rows,), of integers. `counts` : int64, shape (places + 1,). `sums` : (places, 2).
    """
    outside = len(counts) - 1
    for i in range(begin, end):
        at = np.int64(place[order[i]])
        if at < 0:
            counts[outside] += 1
            continue
        value = _pair(pairs[i])
        counts[at] += 1
        sums[at, 0] += value >> np.int64(32)
        sums[at, 1] += value & LOW_HALF


@njit(cache=True, nogil=True)
def sort_places(
    order: UInt32, pairs: Pairs, place: Float32, begin: int, end: int, starts: Int64, to_order: UInt32, to_pairs: Pairs
) -> None:
    """Copy rows `order[begin:end]` and their pairs to where their places go on; `starts` are moved along."""
    outside = len(starts) - 1
    for i in range(begin, end):
        at = np.int64(place[order[i]])
        if at < 0:
            at = np.int64(outside)
        to_order[starts[at]], to_pairs[starts[at]] = order[i], pairs[i]
        starts[at] += 1


def settle(chunk: ChunkOrder, place: Float32, n_places: int, threads: Threads) -> Int64:
    """Sort a chunk's rows by their places, which become its nodes 0 to `n_places`; sums of g and h of each.

    `place` : float32, shape (rows,), of integers below `n_places`; rows of negative ones leave the tree.
    """
    ranges = threads.ranges(chunk.kept)
    counts = np.zeros((len(ranges), n_places + 1), np.int64)
    sums = np.zeros((len(ranges), n_places, 2), np.int64)
    threads.run([
        partial(count_places, chunk.order, chunk.pairs, place, begin, end, counts[part], sums[part])
        for part, (begin, end) in enumerate(ranges)
    ])  # fmt: skip
    ends = np.cumsum(counts.T.ravel()).reshape(counts.T.shape).T  # places one after the other, in each the threads
    starts = np.ascontiguousarray(ends - counts)
    order, pairs = np.empty_like(chunk.order), np.empty_like(chunk.pairs)
    threads.run([
        partial(sort_places, chunk.order, chunk.pairs, place, begin, end, starts[part], order, pairs)
        for part, (begin, end) in enumerate(ranges)
    ])  # fmt: skip
    chunk.order, chunk.pairs = order, pairs
    sizes = counts.sum(axis=0)[:n_places]
    node_ends = np.cumsum(sizes)
    chunk.bounds = np.stack([node_ends - sizes, node_ends], axis=1)
    chunk.kept = int(sizes.sum())
    return np.asarray(sums.sum(axis=0))
