"""Sums over the partitions of a cluster, and cut points from them, of which only small results travel to the client.

    worker A  reads its partitions, adds up -->  features 1 2 | 3 4        the part of each owner goes to it directly,
    worker B  reads its partitions, adds up -->  features 1 2 | 3 4        which adds up, and makes cut points of its
                                                          A   |  B         own features, or says where to look again

The tables of what was counted are the largest there is besides the rows: 570 MB on each worker for 2,000 features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import cycle, islice

from daskboost.cluster.balance import host_of
from daskboost.cluster.context import WorkerPlace
from daskboost.data.chunks.fold import Fold, PartitionSummary, Reading
from daskboost.data.cuts.cut_search import Answer, CutSearch
from daskboost.data.cuts.key_counts import KeyTable
from daskboost.data.cuts.sketch import DataSketch
from daskboost.data.input.row_columns import RowBatch
from daskboost.errors import WorkerLostError
from daskboost.wire import register

for _message in (KeyTable, DataSketch):  # which workers have for each other
    register(_message)

PART_BYTES = 1 << 24
"""Least bytes of tables that an owner of features is worth: it makes cut points of them in some milliseconds."""
MOST_OWNERS = 32
"""Every share of the features is a message between any two workers, of about a millisecond."""
MOST_SHARES = 4
"""Shares of a worker, exchanged at the same time: while it searches in one, parts of others are written and come."""
SEARCH_THREADS = 8
"""Most threads of a worker, whatever Dask gives its worker: workers with a GPU mostly have one thread, and beside them
lie idle cores, of which each worker of a host takes its share at most."""
LOST = "a worker was lost while partitions were summarized, and with it what it had counted; call again"


@dataclass(frozen=True)
class Told:
    """What workers tell of the partitions that they read; what else they counted stays with them."""

    partitions: frozenset[int]
    summary: PartitionSummary | None
    """None of all reads but the first."""
    sketch_bytes: int

    def __add__(self, other: Told) -> Told:
        summary = None if self.summary is None or other.summary is None else self.summary + other.summary
        return Told(self.partitions | other.partitions, summary, self.sketch_bytes + other.sketch_bytes)


@dataclass(frozen=True)
class Shares:
    """Which worker makes the cut points of which features, in several shares of neighbours."""

    owners: tuple[str, ...]
    """The worker of each share; one may have several."""
    edges: tuple[int, ...]
    """First feature of each share, and the end."""
    neighbours: tuple[int, ...]
    """Workers on the host of each owner, itself among them."""

    @classmethod
    def of(cls, workers: Sequence[str], n_features: int, sketch_bytes: int) -> Shares:
        """Share out features among as many of the workers as are worth it."""
        most = MOST_SHARES * len(workers) if len(workers) > 1 else 1
        n = max(1, min(most, n_features, MOST_OWNERS, sketch_bytes // PART_BYTES))
        hosts = Counter(map(host_of, workers))
        owners = tuple(islice(cycle(workers), n))
        return cls(owners, tuple(n_features * owner // n for owner in range(n + 1)),
                   tuple(hosts[host_of(owner)] for owner in owners))  # fmt: skip

    def threads(self, place: WorkerPlace, index: int) -> int:
        """Return the threads that make the cut points of a share, on its worker."""
        return max(1, threads_of(place, self.neighbours[index]) // self.owners.count(self.owners[index]))


def threads_of(place: WorkerPlace, neighbours: int) -> int:
    """Return the threads for a worker's work, one piece at a time, where so many workers share its host, itself among
    them."""
    from daskboost.devices.cpu.threads import usable_cores

    return max(place.n_threads, min(SEARCH_THREADS, usable_cores() // neighbours))


def told_threads(place: WorkerPlace, neighbours: Mapping[str, int]) -> tuple[int, int]:
    """Return what `threads_of` does, and Dask's threads."""
    return threads_of(place, neighbours[host_of(place.address)]), place.n_threads


# What tasks and calls run on workers.

def fold_partition(batch: RowBatch, place: WorkerPlace, index: int, read: Reading, name: str) -> int:
    """Add a partition to what this worker has read under a name; return its rows."""
    place.shards.made(name, "fold", lambda: Fold(read, place.n_threads)).add(index, batch)
    return batch.n_rows


def tell(place: WorkerPlace, name: str) -> Told:
    """Finish adding up, and say what came of it."""
    fold: Fold | None = place.shards.parts(name).get("fold")
    total = None if fold is None else fold.total()
    if fold is None or total is None:
        return Told(frozenset(), None, 0)
    return Told(frozenset(fold.partitions), total.summary, total.cell_bytes)


def part_of_sketch(place: WorkerPlace, index: int, name: str, shares: Shares) -> DataSketch:
    """What this worker counted of the features of a share."""
    fold: Fold | None = place.shards.parts(name).get("fold")
    total = None if fold is None else fold.total()
    if total is None:
        raise WorkerLostError(LOST)
    return total.sketched().part(*shares.edges[index : index + 2])


@dataclass(frozen=True)
class _Searched:
    """A search for cut points after some reads."""

    search: CutSearch
    number: int
    """The read that was added last."""
    answer: Answer


def search_on(place: WorkerPlace, index: int, parts: Sequence[DataSketch], name: str, number: int, max_bin: int,
              shares: Shares) -> Answer:  # fmt: skip
    """Add what all workers counted of a share's features in a read, from 0 on, to its search; return the answer."""
    before: _Searched | None = place.shards.parts(name).get(index)
    if before is not None and before.number == number:  # a task that runs again
        return before.answer
    if (before is None) != (number == 0) or (before is not None and before.number != number - 1):
        raise WorkerLostError(LOST)
    threads = shares.threads(place, index)
    search = CutSearch(max_bin, threads) if before is None else before.search
    received = (part.received() for part in parts)
    answer = search.add(reduce(lambda total, part: total.merged(part, threads), received))
    place.shards.put(name, index, _Searched(search, number, answer))
    return answer
