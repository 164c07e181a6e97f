"""The embedded default: coordinator and engine in this process, no cluster and no sockets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial, reduce
from operator import add, iadd
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from daskboost.data.categories.category_counts import CategoryCounts
from daskboost.data.categories.orders import EarlierCounts
from daskboost.data.chunks.build import A, DatasetInfo, MarginOf, P, check_room, no_room, with_margin
from daskboost.data.chunks.fold import Fold, PartitionReport, PartitionSummary, Reading
from daskboost.data.chunks.quantizer import DeviceHome
from daskboost.data.chunks.row_folds import Dealing, FoldRule, Hashes, divided, known_hashes
from daskboost.data.chunks.shard import Shard, ShardBuilder
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.chunks.tiers import RamUse, check_spill_directory, spill_path
from daskboost.data.cuts.cell_counts import Refinement
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.cuts.cut_search import find_cuts
from daskboost.data.cuts.sketch import DataSketch
from daskboost.data.input.held import Held, Here
from daskboost.data.input.labels import LabelStats, computed
from daskboost.data.input.row_batch import Features
from daskboost.data.input.row_columns import RowBatch
from daskboost.data.input.source import AnyReader, Source
from daskboost.data.saved.subset import selected_stats
from daskboost.devices.choose import make_device
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.protocols import Device, View
from daskboost.dtypes import Bool
from daskboost.engine.chunk_views import ChunkViews, ViewRoom, Views, chunk_views
from daskboost.engine.engine import Engine, engine_on
from daskboost.engine.fit_size import EnginePlace, engine_size
from daskboost.engine.setup import engine_setup
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import EngineError
from daskboost.fit.coordinator import fit
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.local.links import LocalEngines, local_peers
from daskboost.local.lockstep import Lockstep
from daskboost.tracebacks import without_locals

if TYPE_CHECKING:
    from daskboost.data.saved.manifest import ChunkRecord
    from daskboost.data.saved.shard_files import DatasetWriter, SavedDataset

# Views of chunks that several fits of one process share: resident ones made once, streamed ones read once a pass.

class SharedViews:
    """What fits over the same cut points make of their chunks, on threads of their own."""

    def __init__(self, n_threads: int) -> None:
        self.lockstep: Lockstep[tuple[int, View]]
        """Where the fits that run now meet."""
        self.n_resident: int | None = None
        """Chunks of training sets that a GPU keeps, and of evaluation sets none; None where it keeps all."""
        self.stream_bytes: int | None = None
        """Bytes of the groups of chunks that stream to a GPU, see `Plan`; None where there is none."""
        self.copies_columns = True
        """Whether a GPU may have column-major copies: every fit has room beside them."""
        self.n_threads = n_threads
        self._sources: dict[Any, ChunkViews] = {}
        self._devices: dict[tuple[str, int], Device] = {}
        self._lock = threading.Lock()

    def of(self, shard: Shard, device: Device, layout: SlotLayout, room: ViewRoom, rank: int) -> Views:
        """Return the views of a shard on a fit's device, as `ShardMargins.views` gives them; the room for column-major
        copies that the first fit has decides."""
        chunks = tuple(entry.handle.key for entry in shard.entries)
        joins = device.join_room(room.column_bytes) > 0
        key = (id(shard.store), chunks, device.name, layout.width, joins, room.n_resident, room.stream_bytes)
        room = replace(room, copies_columns=self.copies_columns)
        with self._lock:
            if key not in self._sources:
                own = self._devices.get((device.name, layout.width))
                if own is None:
                    own = make_device(device.name, layout, Threads(self.n_threads))
                    self._devices[device.name, layout.width] = own
                self._sources[key] = chunk_views(shard, own, layout, room)
            source = self._sources[key]
        if not source.is_resident:
            return lambda: self.lockstep.items(source.views, rank)
        return partial(self._resident, source)

    def _resident(self, source: ChunkViews) -> Iterator[tuple[int, View]]:
        self.lockstep.check()
        with self._lock:  # the first fit that comes makes them
            return iter(list(source.views()))

    @property
    def gpu_bytes(self) -> int:
        """Memory of a GPU that shared views take already."""
        rings = sum(device.ring_bytes for device in self._devices.values())
        return rings + sum(source.gpu_bytes for source in self._sources.values())

    def close(self) -> None:
        """Free the views."""
        self._sources.clear()
        for device in self._devices.values():
            device.close()
        self._devices.clear()


R = TypeVar("R")
T = TypeVar("T")


class LocalRunner:
    """Reads partitions of one source one after the other in this process."""

    is_here = True

    def __init__(self, threads: int = 0) -> None:
        self.threads = self.threads_alone = Threads(threads).count if threads <= 0 else threads
        self._lent: RowBatch | None = None
        """Rows that lie on a GPU as they are, or were taken there whole: looked at once, and kept for the next read."""

    def batches(self, source: Source) -> Iterator[RowBatch]:
        """Partitions one after the other; one is in memory at a time."""
        if self._lent is not None:
            yield self._lent
            return
        for batch in map(partial(source.taken, threads=self.threads), source.batches(self.threads)):
            if source.lends(batch):
                self._lent = batch
                batch.fetch(self.threads)
            yield batch
            del batch

    def fold(self, source: Source, read: Reading) -> tuple[list[int], PartitionReport]:
        """See `Runner.fold`."""
        sizes: list[int] = []
        with closing(Fold(read, self.threads)) as fold:
            for index, batch in enumerate(self.batches(source)):
                sizes.append(batch.n_rows)
                fold.add(index, batch)
                del batch  # one partition in memory at a time
            total = fold.total()
            assert total is not None
            return sizes, total

    def find_cuts(self, source: Source, read: Reading, again: Callable[..., PartitionReport], max_bin: int
                  ) -> tuple[list[int], PartitionSummary, Cuts]:  # fmt: skip
        """See `Runner.find_cuts`."""
        sizes, total = self.fold(source, read)

        def refine(refinement: Refinement) -> DataSketch:
            return self.fold(source, partial(again, refinement=refinement))[1].sketched()

        return sizes, total.summarized(), find_cuts(total.sketched(), refine, max_bin, self.threads)

    def apply(self, blocks: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
        return [function(computed(block)) for block in blocks]

    def total(self, source: Source, reader: AnyReader[A]) -> tuple[list[int], Held[A]]:
        """See `Runner.total`."""
        sizes: list[int] = []

        def sized(part: A) -> A:
            sizes.append(part.n_rows)
            return part

        total: A = reduce(iadd, map(sized, source.read_by(reader)))
        return sizes, Here(total)

    def earlier(self, source: Source, reader: AnyReader[CategoryCounts], summary: Callable[[CategoryCounts], R]
                ) -> tuple[Sequence[EarlierCounts], Held[R]]:  # fmt: skip
        """See `Runner.earlier`."""
        parts = list(source.read_by(reader))
        total = reduce(add, parts)  # a new sum: the parts stay as they are
        return EarlierCounts.of_first(total).before_each(parts), Here(summary(total))

    def made(self, function: Callable[..., R], *held: Held[object]) -> Held[R]:
        """See `Runner.made`."""
        return Here(function(*(own.value() for own in held)))

    def told(self, held: Held[T], function: Callable[[T], R]) -> R:
        """See `Runner.told`."""
        return function(held.value())

    def fetched(self, held: Held[P]) -> P:
        """See `Runner.fetched`."""
        return held.value()

    def sent(self, value: P) -> Held[P]:
        """See `Runner.sent`."""
        return Here(value)


class LocalShards:
    """A data set's rows in this process, as one shard or several (several imitate a cluster)."""

    def __init__(self, shards: Sequence[Shard], stores: Sequence[ChunkStore], whole: LocalShards | None = None,
                 gpus: Sequence[int] = ()) -> None:  # fmt: skip
        self.shards = list(shards)
        self.gpus = tuple(gpus)
        """The GPU of each shard's engine; empty where all engines are on the device that their fit names."""
        self._whole = whole
        self._close = weakref.finalize(self, _close_all, list(stores))

    def select(self, rows: Bool) -> LocalShards:
        """Only the rows whose global ids are marked; bins stay those of this data set, which closing it frees."""
        return LocalShards([shard.select(rows) for shard in self.shards], [], self)

    def marks(self, n_rows: int) -> Bool:
        """Return which of so many rows count, of which all are here; bool, shape (rows,)."""
        marked: Bool = np.zeros(n_rows, np.bool_)
        for entry in (entry for shard in self.shards for entry in shard.entries):
            own = slice(entry.first_row, entry.first_row + entry.n_rows)
            marked[own] = True if entry.selected is None else entry.selected
        return marked

    def known_hashes(self, dealing: Dealing) -> Hashes:
        """Return the hashes that rows of small groups are dealt out by, see `row_folds.known_hashes`."""
        return known_hashes(self.shards, dealing)

    def divided(self, rule: FoldRule, folds: Sequence[int]) -> list[tuple[tuple[LocalShards, LabelStats], ...]]:
        """For each of some folds all other rows and its own, as `select`, each with its summary."""
        parts = [divided(shard, rule, folds) for shard in self.shards]
        return [
            tuple((LocalShards(half, [], self), selected_stats(half)) for half in zip(*pairs, strict=True))
            for pairs in zip(*parts, strict=True)
        ]

    def write(self, writer: DatasetWriter) -> list[ChunkRecord]:
        """Write all chunks' files."""
        from daskboost.data.saved.shard_files import write_chunk_files

        return [record for shard in self.shards for record in write_chunk_files(writer.directory, shard)]

    @property
    def owners(self) -> range:
        """The engine that holds each shard."""
        return range(len(self.shards))

    @property
    def device_bytes(self) -> int:
        """Return the bytes of bins that lie on a GPU."""
        return sum(store.counters().device_bytes for store in {shard.store for shard in self.shards})

    @property
    def closed(self) -> bool:
        return not self._close.alive or (self._whole is not None and self._whole.closed)

    def close(self) -> None:
        """Free memory and files; the data set cannot be used afterwards."""
        self._close()


def _close_all(stores: Sequence[ChunkStore]) -> None:
    for store in stores:
        store.close()


@without_locals()
def quantize_here(source: Source, info: DatasetInfo, runner: LocalRunner, *, margin_of: MarginOf | None = None,
                  n_engines: int = 1, spill_directory: str | Path | None = None,
                  host_memory_limit: int | None = None, beside: LocalShards | None = None
                  ) -> LocalShards:  # fmt: skip
    """Quantize a source into shards of this process; partitions go round the engines. What `beside` takes of the limit
    is not there for these."""
    lends = n_engines == 1 and source.spec.lends
    home = DeviceHome(info, lends=lends, limit_bytes=source.spec.device_memory_limit)
    uses = [RamUse() for _ in range(n_engines)]
    if beside is not None and len(beside.shards) == n_engines:
        uses = [shard.store.ram_use for shard in beside.shards]
    taken_bytes = sum(use.used_bytes for use in uses)
    stores = [ChunkStore(spill_directory, host_memory_limit, use) for use in uses]
    unchecked = host_memory_limit if spill_directory is None else None
    try:
        builders = [
            ShardBuilder(info.cuts, info.layout, info.chunk_rows, store, runner.threads, home) for store in stores
        ]
        for index, (first_row, batch) in enumerate(zip(info.first_rows, runner.batches(source), strict=True)):
            if unchecked is not None and isinstance(batch.features, Features):
                check_room(info, n_engines * unchecked, taken_bytes)
                unchecked = None  # that was for all partitions
            builders[index % n_engines].add(first_row, with_margin(batch, margin_of), source.pieces)
            del batch
        return LocalShards([builder.finish() for builder in builders], stores)
    except BaseException:
        _close_all(stores)
        raise


def open_here(saved: SavedDataset, stats: LabelStats, host_memory_limit: int | None, spill_directory: str | Path | None
              ) -> LocalShards:  # fmt: skip
    """Read the chunks of a saved data set into this process; `stats` is what its manifest says of the rows."""
    from daskboost.data.saved.manifest import check_stats
    from daskboost.data.saved.shard_files import open_shard

    directory = spill_path(spill_directory)
    if directory is not None:
        check_spill_directory(directory)
    elif host_memory_limit is not None and saved.chunk_bytes > host_memory_limit:
        raise no_room(host_memory_limit, saved.n_rows, saved.chunk_bytes)
    store = ChunkStore(directory, host_memory_limit)
    try:
        shard = open_shard(saved, None, store)
        check_stats(selected_stats([shard]), stats)
        return LocalShards([shard], [store])
    except BaseException:
        store.close()
        raise


@without_locals()
def fit_here(spec: FitSpec, train: LocalShards, evals: Sequence[LocalShards], threads: int, report: Report,
             shared: SharedViews | None = None) -> Progress:  # fmt: skip
    """Run a fit over shards of this process: one engine per shard; a single one may share its views with other fits."""
    setup = engine_setup(spec)
    n_engines = len(train.shards)
    peers = local_peers(n_engines)
    own = Threads(threads, shared.n_threads if shared else 0)
    shared = shared if n_engines == 1 else None
    held_bytes = 0 if shared is None else shared.gpu_bytes
    place = EnginePlace() if shared is None else EnginePlace(
        n_resident=shared.n_resident, stream_bytes=shared.stream_bytes, shares_views=True
    )
    devices = [f"cuda:{gpu}" for gpu in train.gpus] or [spec.params.device] * n_engines
    n_threads = max(1, own.count // n_engines) if train.gpus else threads

    def opened_engine(rank: int) -> Engine:
        """Make the engine of a shard, on its device."""
        sets = train.shards[rank].weighted(), [each.shards[rank] for each in evals]
        size_of = partial(engine_size, spec, *sets, place)
        make = partial(make_device, devices[rank], spec.layout, size_of=size_of, shared_bytes=held_bytes)
        open_engine = partial(Engine, setup, *sets, peers=peers[rank], shared=shared)
        made = engine_on(make, Threads(n_threads, own.of_all), open_engine)
        try:
            made.add(WholeRounds(made, spec, own, peers[rank]))
        except BaseException:
            made.close()
            raise
        return made

    with ExitStack() as opened:
        opened.callback(own.close)
        engines = LocalEngines([partial(opened_engine, rank) for rank in range(n_engines)], peers)
        opened.callback(engines.close)
        try:
            return fit(engines, spec, own, report)
        except EngineError as error:
            if error.__cause__ is None:
                raise
            cause = error.__cause__  # within one process the engine's own exception says it better
            raise cause from cause.__cause__
