"""Which worker of a cluster takes which partition: as many rows on each as can be, and few partitions moved.

Engines wait for each other several times a tree, so a fit is as slow as the worker that has the most rows. Dask hands
partitions to whoever is free: of 64 equal ones 16 workers had 3 to 5 each, and the fit took as long as with 80.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

from daskboost.data.chunks.build import most_rows

LEAST_GAIN = 1.05
"""By which factor the most rows of a worker must fall before partitions move: each is read by another worker then."""


def balanced_owners(sizes: Sequence[int], readers: Sequence[str]) -> list[str]:
    """Return a worker for each partition: its reader, except where that would have more rows than need be.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each partition.
    readers : sequence of str
        The worker that has each at hand. Partitions move among these workers only: others may be unfit for the fit, or
        about to leave.
    """
    workers = sorted(set(readers))
    largest_first = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    dealt = _deal(largest_first, sizes, dict.fromkeys(workers, 0))
    bound = most_rows(sizes, [dealt[index] for index in range(len(sizes))])
    rows, moved = dict.fromkeys(workers, 0), []
    for index in largest_first:
        if rows[readers[index]] + sizes[index] > bound:
            moved.append(index)
        else:
            rows[readers[index]] += sizes[index]
    found = _deal(moved, sizes, rows)
    owners = [found.get(index, reader) for index, reader in enumerate(readers)]
    return owners if most_rows(sizes, readers) > LEAST_GAIN * most_rows(sizes, owners) else list(readers)


def chosen_workers(most: int, readers: Sequence[str], beside: Sequence[str] = ()) -> list[str]:
    """Return at most so many workers that share a data set: neighbours on one host first, then those that have most
    partitions at hand.

    Parameters
    ----------
    most : int
    readers : sequence of str
        The worker that has each partition at hand.
    beside : sequence of str
        Workers that have what the rows are needed beside, if these are to lie there where not all workers share them.
    """
    workers = set(readers)
    if most >= len(workers):
        return sorted(workers)
    if beside and len(set(beside)) <= most:
        return sorted(set(beside))
    of_worker, of_host = Counter(readers), Counter(map(host_of, readers))
    order = sorted(workers, key=lambda worker: (-of_host[host_of(worker)], host_of(worker), -of_worker[worker], worker))
    return order[:most]


def host_of(address: str) -> str:
    """Return the host of a worker's address."""
    return address.rpartition(":")[0]


def readers_among(workers: Sequence[str], readers: Sequence[str]) -> list[str]:
    """Return a worker of these for each partition: its reader, or the next in turn where that is none of them."""
    others = cycle(workers)
    return [reader if reader in workers else next(others) for reader in readers]


def _deal(partitions: Sequence[int], sizes: Sequence[int], rows: Mapping[str, int]) -> dict[int, str]:
    """Give each partition, in this order, to the worker that has the fewest rows by then; `rows` is what they have."""
    heap = [(n_rows, worker) for worker, n_rows in rows.items()]
    heapq.heapify(heap)
    found = {}
    for index in partitions:
        n_rows, found[index] = heap[0]
        heapq.heapreplace(heap, (n_rows + sizes[index], found[index]))
    return found
