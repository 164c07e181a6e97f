"""Rows of this process shared out to several GPUs for one fit: an engine for each, with about as many rows as others.

Nothing of a chunk in RAM or on disk moves: each engine reads its own, and those that lie across the border of two are
cut. Bins that lie on a GPU are copied to that of their engine, a chunk at a time; where it has no room for them they
are packed on the host, from where they stream.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from daskboost.data.chunks.chunk import CUT_ROWS
from daskboost.data.chunks.device_chunk import Chunk, DeviceChunk
from daskboost.data.chunks.quantizer import KEPT_SHARE, ROW_BYTES
from daskboost.data.chunks.shard import Shard, ShardChunk
from daskboost.data.chunks.store import ChunkHandle, ChunkStore
from daskboost.data.input.device_read import device_memory
from daskboost.devices.budget.partition import engines_that_pay
from daskboost.devices.choose import several_gpus, told_of_gpus
from daskboost.devices.cpu.threads import usable_cores
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.fit.spec import FitSpec
from daskboost.local.in_process import LocalShards

logger = logging.getLogger(__name__)

SLACK = 1 / 64
"""Part of an engine's rows that it may have more or fewer of, before a chunk is cut."""


def gpus_that_pay(n_gpus: int, n_bytes: int, n_rows: int) -> int:
    """Return how many of so many GPUs a fit takes, on bins of `n_bytes` of `n_rows` rows."""
    return max(1, min(engines_that_pay(n_gpus, n_bytes, "cuda"), n_rows // CUT_ROWS))


def borders(sizes: Sequence[int], n: int) -> list[int]:
    """Return the rows at which the ranges of `n` engines begin, and the end of the last; about equal ones.

    `sizes` : rows of the chunks, which are cut at multiples of `CUT_ROWS` where none ends near enough.
    """
    begins = list(accumulate(sizes, initial=0))
    share, found = begins[-1] / n, [0]
    for number in range(1, n):
        goal = share * number
        nearest = min(begins, key=lambda begin: abs(begin - goal))
        if abs(nearest - goal) > SLACK * share:
            place = bisect_right(begins, goal)
            begin = begins[place - 1]
            nearest = min(begin + round((goal - begin) / CUT_ROWS) * CUT_ROWS, begins[min(place, len(sizes))])
        found.append(max(found[-1], min(nearest, begins[-1])))
    return [*found, begins[-1]]


def largest_part(whole: LocalShards, n: int) -> int:
    """Return the most rows of a data set that one of `n` engines has, where these are shared out to them."""
    sizes = [entry.n_rows for shard in whole.shards for entry in shard.entries]
    return max(end - begin for begin, end in pairwise(borders(sizes, n)))


@contextmanager
def shared_out(spec: FitSpec, sets: Sequence[LocalShards]) -> Iterator[Sequence[LocalShards]]:
    """Within it, the rows of a fit's training set and of its evaluation sets lie with as many engines as it is to have;
    they are as they were where they do already."""
    n_engines, told = spec.recipe.n_engines, told_of_gpus(spec.params.n_gpus, spec.recipe.n_engines)
    if n_engines == len(sets[0].shards):
        if told:
            logger.info("%s", told)
        yield sets
        return
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    shards = [shard for each in sets for shard in each.shards]
    lies_on = frozenset(chunk.gpu for shard in shards for chunk in shard.store.of_gpus(shard.handles))
    gpus = several_gpus(n_engines, lies_on)
    logger.info("%s: %s", told, ", ".join(map(str, gpus)))
    with closing(_Sharing(spec, [get_runtime(gpu) for gpu in gpus])) as sharing:
        yield [LocalShards(sharing.shards_of(*each.shards), [], gpus=gpus) for each in sets]


@dataclass(eq=False)
class _Sharing:
    """What a fit has of chunks that were cut or copied: rows of several data sets that are the same have the same."""

    spec: FitSpec
    runtimes: Sequence[Runtime]
    """GPUs of the engines."""
    _cut: dict[tuple[ChunkStore, int, int, int], ChunkHandle] = field(default_factory=dict)
    """Parts of chunks, by store and key of the chunk, and their rows."""
    _copies: dict[tuple[ChunkStore, int, tuple[int, ...]], tuple[ChunkStore, list[ChunkHandle]]] = field(
        default_factory=dict
    )
    """Copies of bins that lie on a GPU, by store, engine, and keys of the chunks."""

    def shards_of(self, whole: Shard) -> list[Shard]:
        """Return each engine's part of a data set."""
        edges = borders([entry.n_rows for entry in whole.entries], len(self.runtimes))
        return [
            self._at_home(replace(whole, entries=tuple(self._between(whole, begin, end))), rank)
            for rank, (begin, end) in enumerate(pairwise(edges))
        ]

    def _between(self, whole: Shard, begin: int, end: int) -> Iterator[ShardChunk]:
        """Give the chunks of some rows."""
        first = 0
        for entry in whole.entries:
            own = max(begin - first, 0), min(end - first, entry.n_rows)
            first += entry.n_rows
            if own == (0, entry.n_rows):
                yield entry
            elif own[0] < own[1]:
                yield self._part(whole.store, entry, *own)

    def _part(self, store: ChunkStore, entry: ShardChunk, begin: int, end: int) -> ShardChunk:
        key = store, entry.handle.key, begin, end
        if key not in self._cut:
            self._cut[key] = store.part(entry.handle, begin, end)
        rows = slice(begin, end)
        return ShardChunk(
            self._cut[key], entry.rows.taken(rows), entry.first_row + begin, end - begin,
            None if entry.selected is None else entry.selected[rows],
        )  # fmt: skip

    def _at_home(self, shard: Shard, rank: int) -> Shard:
        """Return the shard with bins that lie on a GPU copied to its engine's."""
        there = shard.store.of_gpus(shard.handles)
        if not there:
            return shard
        key = shard.store, rank, tuple(handle.key for handle in shard.handles)
        if key not in self._copies:
            store = ChunkStore()
            chunks = self._copied([shard.store.get(handle) for handle in shard.handles], there, self.runtimes[rank])
            self._copies[key] = store, [store.put(chunk) for chunk in chunks]
        store, handles = self._copies[key]
        return replace(shard, store=store, entries=tuple(
            replace(entry, handle=handle) for entry, handle in zip(shard.entries, handles, strict=True)
        ))  # fmt: skip

    def _copied(self, chunks: Sequence[Chunk], there: Sequence[DeviceChunk], runtime: Runtime) -> list[Chunk]:
        """Return copies of chunks on a GPU where it has room for them and a fit on them, else on the host.

        `there` : those that lie on any GPU.
        """
        limit, free = self.spec.params.device_memory_limit, runtime.free_bytes
        needed = sum(chunk.device_bytes + ROW_BYTES * chunk.n_rows for chunk in there)
        room = KEPT_SHARE * (free if limit is None else min(free, int(limit)))
        logger.debug("bins of GPU %d need %d of %d bytes there", runtime.device, needed, room)
        if len(there) < len(chunks) or needed > room:
            return [chunk.on_host(self.spec.params.n_jobs or usable_cores()) for chunk in chunks]
        with device_memory():
            return list(there[0].with_others_on(runtime, there[1:], self.spec.cuts.n_slots))

    def close(self) -> None:
        """Forget what was cut and copied; chunks of a data set that was closed are gone already."""
        for (store, *_), handle in self._cut.items():
            store.delete(handle)
        for store, _ in self._copies.values():
            store.close()
