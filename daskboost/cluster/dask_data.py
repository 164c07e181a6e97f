"""A data set on a cluster: the steps of `data/chunks/build.py` as Dask tasks, and the chunks they leave on the workers.

fold      tasks add what partitions report up on their worker, and workers share out the sums (`dask_sums.py`)
quantize  tasks leave each partition's chunks on the worker that read it, or on one that has fewer rows

Workers that have partitions in their memory are called without tasks (`dask_calls.py`).
"""

from __future__ import annotations

import itertools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from daskboost.cluster.balance import balanced_owners, chosen_workers, host_of, readers_among
from daskboost.cluster.context import WorkerPlace, name_of
from daskboost.cluster.dask_exchange import Given, exchange
from daskboost.cluster.dask_kept import fetched, keep, kept, made, new_name, sent, told
from daskboost.cluster.dask_plugins import ensure_worker_plugin
from daskboost.cluster.dask_sums import (
    LOST,
    Shares,
    Told,
    fold_partition,
    part_of_sketch,
    search_on,
    tell,
    told_threads,
)
from daskboost.cluster.dask_tasks import (
    call_on_workers,
    compute,
    drop,
    drop_later,
    submit,
    submit_and_end,
    workers_of,
)
from daskboost.cluster.dask_totals import summed
from daskboost.cluster.dask_watch import WorkerSilentError, is_on_loop, on_loop
from daskboost.data.categories.category_counts import CategoryCounts
from daskboost.data.categories.orders import EarlierCounts
from daskboost.data.chunks.build import A, DatasetInfo, MarginOf, P, most_rows, with_margin
from daskboost.data.chunks.fold import PartitionReport, PartitionSummary, Reading
from daskboost.data.chunks.quantizer import DeviceHome
from daskboost.data.chunks.row_folds import Dealing, FoldRule, Hashes, divided, known_hashes
from daskboost.data.chunks.shard import Shard, ShardBuilder
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.chunks.tiers import check_spill_directory
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.cuts.cut_search import answer_of_all
from daskboost.data.input.held import Held
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_columns import RowBatch
from daskboost.data.input.source import AnyReader, Source
from daskboost.data.saved.manifest import ChunkRecord, check_stats
from daskboost.data.saved.shard_files import (
    DatasetWriter,
    SavedDataset,
    open_shard,
    read_dataset,
    write_chunk_files,
)
from daskboost.data.saved.subset import selected_stats
from daskboost.devices.budget.partition import engines_that_pay
from daskboost.errors import WorkerLostError

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")
LIVING_BYTES = 450 * 2**20
"""What a worker needs beside chunks: Python, Dask and the libraries, and one partition at a time while it is read."""
ADDED_AT_ONCE = 8
"""Sums of partitions that one task adds up, where what came before each is wanted."""
LEAST_SHARE = 0.05
"""Share of a worker's memory limit that chunks may take in RAM however small the limit."""


class ClusterRunner:
    """Runs the steps of a data set as tasks where the partitions lie."""

    is_here = False

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sizes: list[int] = []
        """Rows of each partition."""
        self._readers: list[str] = []
        """The worker that read each partition last."""

    @property
    def threads(self) -> int:
        """See `Runner.threads`: Dask has a worker read as many partitions at a time as it has threads."""
        return min(own // n_tasks for own, n_tasks in self._threads)

    @property
    def threads_alone(self) -> int:
        """See `Runner.threads_alone`."""
        return min(own for own, _ in self._threads)

    @cached_property
    def _threads(self) -> list[tuple[int, int]]:
        """Threads of each worker, idle cores among them, and how many of these are Dask's."""
        workers = on_loop(self.client, workers_of(self.client))
        neighbours = Counter(map(host_of, workers))
        told = call_on_workers(self.client, told_threads, (neighbours,), workers, "looking for idle cores")
        return list(on_loop(self.client, told).values()) or [(1, 1)]

    def check_spill_directory(self, path: Path | None) -> None:
        """Refuse a directory that a worker cannot write to, before anything is read."""
        if path is not None:
            workers = on_loop(self.client, workers_of(self.client))
            on_loop(self.client, call_on_workers(
                self.client, _check_directory, (path,), workers, "checking the spill directory"
            ))  # fmt: skip

    def fold(self, source: Source, read: Reading) -> tuple[list[int], PartitionReport]:
        """See `Runner.fold`; without the sketch, which stays on the workers."""
        name = name_of("fold", self.client.id)
        try:
            _, told = self._read(source, read, name)
            return self._sizes, PartitionReport(told.summary, None)
        finally:
            on_loop(self.client, drop(self.client, name))

    def find_cuts(self, source: Source, read: Reading, again: Callable[..., PartitionReport], max_bin: int
                  ) -> tuple[list[int], PartitionSummary, Cuts]:  # fmt: skip
        """See `Runner.find_cuts`; workers share out the features."""
        name, number, shares, summary = name_of("cuts", self.client.id), 0, None, None
        kept = [name]
        """Under which workers keep something."""
        try:
            while True:
                read_name = f"{name}-{number}"
                kept.append(read_name)
                workers, told = self._read(source, read, read_name)
                if shares is None:
                    shares = Shares.of(workers, source.schema.n_features, told.sketch_bytes)
                    summary = told.summary
                part = partial(part_of_sketch, name=read_name, shares=shares)
                whole = partial(search_on, name=name, number=number, max_bin=max_bin, shares=shares)
                given = Given(part, whole, shares.owners, tuple(workers), read_name)
                answer = answer_of_all(on_loop(self.client, exchange(self.client, given, "finding cut points")))
                if isinstance(answer, Cuts):
                    assert summary is not None
                    return self._sizes, summary, answer
                on_loop(self.client, drop(self.client, kept.pop()))
                read, number = partial(again, refinement=answer), number + 1
        finally:
            on_loop(self.client, drop(self.client, *kept))

    def _read(self, source: Source, read: Reading, name: str) -> tuple[list[str], Told]:
        """Have all partitions read and added up; workers keep the sums under a name. Return the workers, and what they
        tell."""
        done, found = on_loop(self.client, submit_and_end(
            self.client, source.delayed(), _fold_partition, (name,), read, step="reading the partitions",
            end=partial(tell, name=name),
        ))  # fmt: skip
        self._sizes, self._readers = [n_rows for n_rows, _ in done], [worker for _, worker in done]
        if sorted(index for told in found.values() for index in told.partitions) != list(range(len(done))):
            raise WorkerLostError(LOST)
        return sorted(set(self._readers)), reduce(add, found.values())

    def apply(self, blocks: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
        """See `Runner.apply`."""
        from dask import delayed

        return compute(self.client, [delayed(function)(block) for block in blocks])

    def total(self, source: Source, reader: AnyReader[A]) -> tuple[list[int], Held[A]]:
        """See `Runner.total`."""
        return summed(self.client, source, reader)

    def earlier(self, source: Source, reader: AnyReader[CategoryCounts], summary: Callable[[CategoryCounts], R]
                ) -> tuple[Sequence[object], Held[R]]:  # fmt: skip
        """See `Runner.earlier`; workers keep them until nobody refers to what stands for them.

        Some partitions are added up in each task, then some of these sums, and so on up to the sum of all: then what
        came before each sum tells what came before each that it is made of, down to the partitions.
        """
        from dask import delayed

        on_loop(self.client, ensure_worker_plugin(self.client))
        sums = _sums_of(source.delayed(reader))
        total = sums[-1][0]
        before = [delayed(EarlierCounts.of_first)(total)]
        for parts in reversed(sums[:-1]):
            groups = [parts[first : first + ADDED_AT_ONCE] for first in range(0, len(parts), ADDED_AT_ONCE)]
            before = [
                each for own, group in zip(before, groups, strict=True)
                for each in delayed(EarlierCounts.before_each, nout=len(group))(own, group)
            ]  # fmt: skip
        name = new_name(self.client)
        *earlier, ended = self.client.persist([*before, delayed(keep, pure=False)(name, delayed(summary)(total))])
        return earlier, kept(self.client, name, compute(self.client, [ended])[0])

    def made(self, function: Callable[..., R], *held: Held[object]) -> Held[R]:
        """See `Runner.made`."""
        return made(self.client, function, *held)

    def told(self, held: Held[T], function: Callable[[T], R]) -> R:
        """See `Runner.told`."""
        return told(self.client, held, function)

    def fetched(self, held: Held[P]) -> P:
        """See `Runner.fetched`."""
        return fetched(self.client, held)

    def sent(self, value: P) -> Held[P]:
        """See `Runner.sent`."""
        return sent(self.client, value)

    def quantize(
        self,
        source: Source,
        info: DatasetInfo,
        *,
        margin_of: MarginOf | None = None,
        spill_directory: Path | None = None,
        host_memory_limit: int | None = None,
        beside: ClusterShards | None = None,
    ) -> ClusterShards:
        """Quantize a source; every partition's chunks stay with the worker that quantizes it.

        That is the one that read it, unless others have fewer rows (`balanced_owners`). Small data goes to fewer
        workers (`chosen_workers`).
        """

        def quantized(owners: list[str] | None) -> ClusterShards:
            name = name_of("data", self.client.id)
            own = replace(info, schema=replace(info.schema, encoder=None))
            plan = QuantizePlan(
                name, own, margin_of, spill_directory, host_memory_limit, source.spec.device_memory_limit,
                largest_part(self._sizes, owners or self._readers),
            )  # fmt: skip
            try:
                done = on_loop(self.client, submit(
                    self.client, source.delayed(), _quantize_partition, (), plan, owners=owners, step="quantizing"
                ))  # fmt: skip
            except BaseException:
                on_loop(self.client, drop(self.client, name))
                raise
            return ClusterShards(self.client, name, tuple(worker for _, worker in done))

        try:
            return quantized(self._owners(info, beside, source.home))
        except WorkerSilentError:
            raise  # Dask believes it to be there: the others would wait for it, too
        except WorkerLostError:
            return quantized(None)  # whoever is left takes over

    def _owners(self, info: DatasetInfo, beside: ClusterShards | None, home: str) -> list[str]:
        """Return the worker that each partition's chunks are to lie on."""
        n_workers = len(set(self._readers))
        most = engines_that_pay(n_workers, info.nbytes, home)
        if most < n_workers:
            logger.info("%d of %d workers have the rows: with more, fits would be slower", most, n_workers)
        chosen = chosen_workers(most, self._readers, () if beside is None else beside.owners)
        return balanced_owners(self._sizes, readers_among(chosen, self._readers))

    def open(
        self, saved: SavedDataset, stats: LabelStats, *, spill_directory: Path | None = None,
        host_memory_limit: int | None = None,
    ) -> ClusterShards:  # fmt: skip
        """Read the chunks of a saved data set, dealt out in ranges to all workers; `stats` is what its manifest says of
        the rows."""
        from dask import delayed

        name = name_of("data", self.client.id)
        n_workers = max(len(on_loop(self.client, workers_of(self.client))), 1)
        n_chunks = len(saved.chunks)
        n_parts = min(n_chunks, n_workers)
        edges = [n_chunks * part // n_parts for part in range(n_parts + 1)]
        ranges = [delayed(range, pure=False)(a, b) for a, b in itertools.pairwise(edges)]
        plan = (name, str(saved.path.resolve()), saved.digest, spill_directory, host_memory_limit)
        try:
            done = on_loop(self.client, submit(
                self.client, ranges, _open_range, plan, step="opening the data set"
            ))  # fmt: skip
            check_stats(reduce(add, [part for part, _ in done]), stats)
        except BaseException:
            on_loop(self.client, drop(self.client, name))
            raise
        return ClusterShards(self.client, name, tuple(worker for _, worker in done))


def _sums_of(parts: Sequence[Delayed]) -> list[Sequence[Delayed]]:
    """Return parts, the sums of some at a time in their order, the sums of these, and so on up to that of all."""
    from dask import delayed

    levels, added = [parts], delayed(partial(reduce, add), pure=False)
    while len(levels[-1]) > 1:
        below = levels[-1]
        firsts = range(0, len(below), ADDED_AT_ONCE)
        levels.append([added(list(below[first : first + ADDED_AT_ONCE])) for first in firsts])
    return levels


def _check_directory(place: WorkerPlace, path: Path) -> None:
    check_spill_directory(path)


def _fold_partition(batch: RowBatch, place: WorkerPlace, index: int, read: Reading, name: str) -> int:
    n_rows = fold_partition(batch, place, index, read, name)
    del batch
    release_memory()
    return n_rows


def largest_part(sizes: Sequence[int], owners: Sequence[str]) -> float:
    """Return the largest share of the rows that one worker has, of partitions of so many rows each."""
    return most_rows(sizes, owners) / max(sum(sizes), 1)


@dataclass(frozen=True)
class QuantizePlan:
    """What a quantizing task must know."""

    name: str
    info: DatasetInfo
    """Without what makes features, which may be large."""
    margin_of: MarginOf | None
    spill_directory: Path | None
    host_memory_limit: int | None
    device_memory_limit: int | None
    largest_part: float
    """Share of the rows that may come to one worker."""


def _quantize_partition(batch: RowBatch, place: WorkerPlace, index: int, plan: QuantizePlan) -> int:
    info = plan.info
    store = _store(place, plan.name, plan.spill_directory, plan.host_memory_limit)
    home = _home(place, plan)
    with ShardBuilder(info.cuts, info.layout, info.chunk_rows, store, place.n_threads, home) as builder:
        builder.add(info.first_rows[index], with_margin(batch, plan.margin_of))
        place.shards.put(plan.name, index, builder.finish())
    n_rows = batch.n_rows
    del batch
    release_memory()
    return n_rows


def release_memory() -> None:
    """Give what Arrow's pool holds of a partition back to the system: it counts against the worker's limit."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.default_memory_pool().release_unused()


def _open_range(chunks: range, place: WorkerPlace, index: int, name: str, path: str, digest: bytes,
                spill_directory: Path | None, host_memory_limit: int | None) -> LabelStats:  # fmt: skip
    shard = open_shard(read_dataset(path, digest), chunks, _store(place, name, spill_directory, host_memory_limit))
    place.shards.put(name, index, shard)
    return selected_stats([shard])


def _write_chunks(place: WorkerPlace, name: str, directory: str) -> list[Any]:
    shards = [part for part in place.shards.parts(name).values() if isinstance(part, Shard)]
    return [record.to_json() for shard in shards for record in write_chunk_files(directory, shard)]


def shards_here(place: WorkerPlace, name: str, expected: int) -> dict[Any, Shard]:
    """Return a data set's shards on this worker by partition; WorkerLostError where there are not so many."""
    shards = {key: part for key, part in place.shards.parts(name).items() if isinstance(part, Shard)}
    if len(shards) != expected:  # training on what is left would silently give another model
        raise WorkerLostError(
            f"worker {place.address} holds {len(shards)} of its {expected} partitions: it was restarted since the data "
            "set was made, or the data set was closed; make the data set again"
        )
    return shards


def _known_hashes(place: WorkerPlace, name: str, counts: Mapping[str, int], dealing: Dealing) -> Hashes:
    return known_hashes(shards_here(place, name, counts[place.address]).values(), dealing)


def _divide(place: WorkerPlace, name: str, counts: Mapping[str, int], rule: FoldRule, folds: Sequence[int],
            names: Sequence[tuple[str, str]]) -> list[tuple[LabelStats, ...]]:  # fmt: skip
    """Keep both halves of each fold under two names, for as long as these are not dropped; return their summaries."""
    stats = [[LabelStats(), LabelStats()] for _ in folds]
    for key, shard in shards_here(place, name, counts[place.address]).items():
        for at, halves in enumerate(divided(shard, rule, folds)):
            for half, own in enumerate(halves):
                place.shards.put(names[at][half], key, own)
                stats[at][half] += selected_stats([own])
    return [tuple(pair) for pair in stats]


def _store(place: WorkerPlace, name: str, spill_directory: Path | None, host_memory_limit: int | None) -> ChunkStore:
    """The worker's store of the data set, made by the first of its tasks."""

    def make() -> ChunkStore:
        budget = host_memory_limit
        if budget is None and place.memory_limit_bytes is not None:
            budget = chunk_budget(place.memory_limit_bytes)
        return ChunkStore(spill_directory or place.local_directory, budget, place.shards.ram_use)

    return place.shards.made(name, "store", make)


def _home(place: WorkerPlace, plan: QuantizePlan) -> DeviceHome:
    """Where bins stay that the worker's GPU makes: one answer for all its partitions."""
    return place.shards.made(plan.name, "home", lambda: DeviceHome(
        plan.info, lends=False, limit_bytes=plan.device_memory_limit, share=plan.largest_part
    ))  # fmt: skip


@dataclass(eq=False)
class ClusterShards:
    """A data set's rows on the workers of a cluster."""

    client: Client
    name: str
    """Under which workers keep the chunks."""
    owners: tuple[str, ...]
    """Worker of each partition."""
    whole: ClusterShards | None = None
    """The data set that owns the chunks, of whose rows only some count here; None where these are its own."""

    def __post_init__(self) -> None:
        self._finalize = weakref.finalize(self, drop_later, weakref.ref(self.client), self.name)

    def write(self, writer: DatasetWriter) -> list[ChunkRecord]:
        """Write all chunks' files, each worker its own; the directory must be on a file system that they share."""
        found = on_loop(self.client, call_on_workers(
            self.client, _write_chunks, (self.name, str(writer.directory)), sorted(set(self.owners)),
            "writing the data set",
        ))  # fmt: skip
        return [ChunkRecord.from_json(record, worker) for worker, part in found.items() for record in part]

    def known_hashes(self, dealing: Dealing) -> Hashes:
        """Return the hashes that rows of small groups are dealt out by, see `row_folds.known_hashes`."""
        return reduce(add, self._asked(_known_hashes, (dealing,)))

    def divided(self, rule: FoldRule, folds: Sequence[int]) -> list[tuple[tuple[ClusterShards, LabelStats], ...]]:
        """For each of some folds all other rows and its own, on the workers that have them, each with its summary."""
        names = [tuple(name_of("data", self.client.id) for _ in range(2)) for _ in folds]
        halves = [
            tuple(ClusterShards(self.client, name, self.owners, self) for name in pair) for pair in names
        ]
        found = self._asked(_divide, (rule, tuple(folds), names))
        stats = [tuple(reduce(add, parts) for parts in zip(*pairs, strict=True)) for pairs in zip(*found, strict=True)]
        return [tuple(zip(*pair, strict=True)) for pair in zip(halves, stats, strict=True)]

    def _asked(self, function: Callable[..., T], arguments: tuple[object, ...]) -> list[T]:
        """Call `function(place, name, partitions, ...)` on each worker that holds partitions, with their number."""
        counts = Counter(self.owners)
        found = on_loop(self.client, call_on_workers(
            self.client, function, (self.name, counts, *arguments), sorted(counts), "dividing the rows"
        ))  # fmt: skip
        return list(found.values())

    @property
    def closed(self) -> bool:
        return not self._finalize.alive or (self.whole is not None and self.whole.closed)

    def close(self) -> None:
        """Free the chunks on all workers; the data set cannot be used afterwards.

        It waits for the workers, though for `CLEAN_UP_S` at most; on the client's event loop it does not wait.
        """
        if self._finalize.detach() is None or self.client.status != "running":
            return
        if is_on_loop(self.client):
            drop_later(weakref.ref(self.client), self.name)
        else:
            on_loop(self.client, drop(self.client, self.name))


def chunk_budget(limit: int) -> int:
    """RAM for all data sets' chunks on a worker of that memory limit: half of it less what living takes."""
    return max(int(limit * LEAST_SHARE), limit // 2 - LIVING_BYTES)
