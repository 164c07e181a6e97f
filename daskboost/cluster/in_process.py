"""The embedded default: coordinator and engine in this process, no cluster and no sockets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from daskboost.cluster.links import LocalEngines, local_peers
from daskboost.cluster.shared_views import SharedViews
from daskboost.data.build import DatasetInfo, MarginOf, check_room, no_room, with_margin
from daskboost.data.gpu_chunks import DeviceHome
from daskboost.data.labels import LabelStats, computed
from daskboost.data.rows import Features, RowBatch
from daskboost.data.shard import Shard, ShardBuilder
from daskboost.data.source import Source
from daskboost.data.spill import check_spill_directory, spill_path
from daskboost.data.store import ChunkStore
from daskboost.data.subset import selected_stats
from daskboost.data.tiers import RamUse
from daskboost.devices.choose import make_device
from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Bool
from daskboost.engine.engine import Engine, engine_on
from daskboost.engine.fit_size import EnginePlace, engine_size
from daskboost.engine.setup import engine_setup
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.errors import EngineError
from daskboost.fit.coordinator import fit
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.tracebacks import without_locals

if TYPE_CHECKING:
    from daskboost.data.manifest import ChunkRecord
    from daskboost.data.shard_files import DatasetWriter, SavedDataset

T = TypeVar("T")


class LocalRunner:
    """Reads partitions of one source one after the other in this process."""

    def __init__(self, threads: int = 0) -> None:
        self.threads = Threads(threads).count if threads <= 0 else threads
        self._lent: RowBatch | None = None
        """Rows that lie on a GPU as they are: looked at once, since reads take labels and weights at most."""

    def batches(self, source: Source) -> Iterator[RowBatch]:
        """Partitions one after the other; one is in memory at a time."""
        if self._lent is not None:
            yield self._lent
            return
        for batch in source.batches():
            if source.lends(batch):
                self._lent = batch
                batch.fetch(self.threads)
            yield batch
            del batch

    def fold(self, source: Source, function: Callable[..., T]) -> tuple[list[int], T]:
        sizes: list[int] = []
        total: Future[T] | None = None
        with ThreadPoolExecutor(1) as adding:  # sketches take one core to add, while the next partition comes
            for batch in self.batches(source):
                sizes.append(batch.n_rows)
                part = function(batch, threads=self.threads)
                del batch  # one partition in memory at a time
                total = adding.submit(_added, None if total is None else total.result(), part)
            assert total is not None
            return sizes, total.result()

    def apply(self, blocks: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
        return [function(computed(block)) for block in blocks]


def _added(total: T | None, part: T) -> T:
    return part if total is None else total + part  # type: ignore[operator]


class LocalShards:
    """A data set's rows in this process, as one shard or several (several imitate a cluster)."""

    def __init__(self, shards: Sequence[Shard], stores: Sequence[ChunkStore], whole: LocalShards | None = None) -> None:
        self.shards = list(shards)
        self._whole = whole
        self._close = weakref.finalize(self, _close_all, list(stores))

    def select(self, rows: Bool) -> LocalShards:
        """Only the rows whose global ids are marked; bins stay those of this data set, which closing it frees."""
        return LocalShards([shard.select(rows) for shard in self.shards], [], self)

    def write(self, writer: DatasetWriter) -> list[ChunkRecord]:
        """Write all chunks' files."""
        from daskboost.data.shard_files import write_chunk_files

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
    home = DeviceHome(info, lends=n_engines == 1, limit_bytes=source.spec.device_memory_limit)
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
    from daskboost.data.saved_checks import check_stats
    from daskboost.data.shard_files import open_shard

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
    own = Threads(threads)
    sets = [(shard.weighted(), [each.shards[rank] for each in evals]) for rank, shard in enumerate(train.shards)]
    shared = shared if n_engines == 1 else None
    held_bytes = 0 if shared is None else shared.gpu_bytes
    with ExitStack() as opened:
        opened.callback(own.close)
        made: list[Engine] = []
        for each, peer in zip(sets, peers, strict=True):
            place = EnginePlace() if shared is None else EnginePlace(
                n_resident=shared.n_resident, stream_bytes=shared.stream_bytes, shares_views=True
            )
            size = engine_size(spec, *each, place)
            make = partial(make_device, spec.params.device, spec.layout, size=size, shared_bytes=held_bytes)
            made.append(engine_on(make, Threads(threads), partial(Engine, setup, *each, peers=peer, shared=shared)))
            opened.callback(made[-1].close)
        alone = n_engines == 1 and made[0].device.without_host
        if alone:
            made[0].add(WholeRounds(made[0], spec, own))
        engines = LocalEngines(made, peers)
        opened.callback(engines.close)
        try:
            return fit(engines, spec, own, report, whole_rounds=alone)
        except EngineError as error:
            if error.__cause__ is None:
                raise
            cause = error.__cause__  # within one process the engine's own exception says it better
            raise cause from cause.__cause__
