"""Fits over a data set on a cluster: one engine per worker with chunks, the coordinator beside the scheduler, and the
client's copy of the progress, from which callbacks and the model are served.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from daskboost.cluster.context import CoordinatorContext, EngineContext, RemoteCall, WorkerPlace
from daskboost.cluster.dask_data import LIVING_BYTES, ClusterShards, shards_here
from daskboost.cluster.limits import REPORT_S
from daskboost.cluster.on_dask import run_fit
from daskboost.data.chunks.shard import Shard
from daskboost.data.chunks.store import ChunkStore
from daskboost.devices.choose import make_device
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.protocols import Device
from daskboost.dtypes import Float32
from daskboost.engine.engine import Engine, engine_on
from daskboost.engine.fit_size import EnginePlace, engine_size
from daskboost.engine.setup import EngineSetup, engine_setup
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.fit.coordinator import fit
from daskboost.fit.messages import WIRE_TYPES, SentRounds
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.tree.table import JoinedTrees, TreeTable
from daskboost.wire import register

# Engine threads tell the operating system that they compute in batches.
#
# On a host whose cores are all taken by workers, the coordinator's message to the first engine otherwise wakes that
# engine on the coordinator's own core, in its place: the second engine then waits for its message until the first one
# has computed. A batch thread does not push others aside when it wakes (sched(7)).

def compute_in_batches() -> None:
    """Make the calling thread, and those it starts from now on, batch threads; where the system has no such thing,
    nothing changes but speed."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


GRADIENT_SHARE = 0.05
"""Share of a worker's memory limit up to which gradients are kept rather than computed twice."""
COORDINATOR_THREADS = 4
"""Most threads of the split search beside the scheduler, which must stay responsive."""

for _message in WIRE_TYPES:
    register(_message)


@register
@dataclass(frozen=True)
class OpenFit:
    """Which data sets an engine works on: the training set, then the evaluation sets."""

    names: list[str]
    n_partitions: list[int]
    """How many partitions of each this worker must still hold."""


@register
@dataclass(frozen=True)
class RoundEvent:
    """What one round added beside its trees."""

    iteration: int
    base_score: tuple[float, ...]
    values: list[tuple[str, str, float]]
    """(data set, metric, value)."""
    best_iteration: int | None
    best_score: float | None
    chances: Float32 | None
    """See `Round.chances`."""


@register
@dataclass(frozen=True)
class RoundEvents:
    """Rounds, from which the client puts the model together."""

    rounds: list[RoundEvent]
    trees: JoinedTrees
    """The trees of all rounds."""


def fit_on_cluster(spec: FitSpec, train: ClusterShards, evals: Sequence[ClusterShards], report: Report) -> Progress:
    """Run a fit where the chunks are: one engine per worker that has any."""
    workers = sorted({owner for shards in (train, *evals) for owner in shards.owners})
    sets = [train, *evals]
    names = [shards.name for shards in sets]
    engines = [
        (worker, RemoteCall.of("open_engine", OpenFit(names, [s.owners.count(worker) for s in sets])))
        for worker in workers
    ]
    coordinator = RemoteCall.of("coordinate", None)
    mirror = Mirror(spec, report)
    try:
        base_score = run_fit(train.client, engines, coordinator, extras={"spec": spec}, on_progress=mirror.add)
    except _StoppedByCallbackError:
        return mirror.progress
    mirror.progress.base_score = base_score
    return mirror.progress


class _StoppedByCallbackError(Exception):
    """A callback asked to stop: the rounds reported so far are the model."""


class Mirror:
    """The client's copy of the coordinator's progress."""

    def __init__(self, spec: FitSpec, report: Report) -> None:
        self._spec, self._report = spec, report
        self.progress = Progress((), list(spec.earlier_trees), list(spec.earlier_outputs))

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in rounds and tell the callbacks of each."""
        told: RoundEvents = event["rounds"]
        trees = told.trees.trees
        n = len(trees) // len(told.rounds)
        for place, round_ in enumerate(told.rounds):
            self._add(round_, trees[place * n : (place + 1) * n])

    def _add(self, round_: RoundEvent, trees: Sequence[TreeTable]) -> None:
        progress = self.progress
        progress.base_score = round_.base_score
        progress.add_round(self._spec, trees, round_.chances)
        for data, metric, value in round_.values:
            progress.history.setdefault(data, {}).setdefault(metric, []).append(value)
        progress.best_iteration, progress.best_score = round_.best_iteration, round_.best_score
        if self._report(round_.iteration, progress):
            raise _StoppedByCallbackError


def open_engine(context: EngineContext, message: OpenFit) -> Engine:
    """An engine over the chunks that this worker holds."""
    compute_in_batches()
    spec: FitSpec = context.extras["spec"]
    place = context.place
    threads = Threads(place.n_threads)
    named = zip(message.names, message.n_partitions, strict=True)
    whole, *evals = [_shard_here(place, name, expected, spec) for name, expected in named]
    train = whole.weighted()
    setup = _setup(spec, place.memory_limit_bytes, train.n_rows)
    size_of = partial(engine_size, spec, train, evals, EnginePlace(keep_gradients=setup.keep_gradients))
    make = partial(make_device, spec.params.device, spec.layout, size_of=size_of)

    def make_engine(device: Device) -> Engine:
        engine = Engine(setup, train, evals, device, context.peers)
        whole = WholeRounds(engine, spec, threads, context.peers, SentRounds.of)
        engine.add(whole, whole.grow_next)
        return engine

    return engine_on(make, threads, make_engine)


def _setup(spec: FitSpec, limit: int | None, n_rows: int) -> EngineSetup:
    """What the engine may spend memory on, under the worker's limit."""
    setup = engine_setup(spec)
    if limit is None:
        return setup
    return replace(
        setup,
        column_bytes=min(setup.column_bytes, max(0, limit // 4 - LIVING_BYTES)),
        keep_gradients=8 * n_rows <= limit * GRADIENT_SHARE,
    )


def _shard_here(place: WorkerPlace, name: str, expected: int, spec: FitSpec) -> Shard:
    """All partitions of a data set that lie on this worker, as one shard."""
    shards = list(shards_here(place, name, expected).values())
    if not shards:
        return Shard(ChunkStore(place.local_directory, 0), (), spec.cuts, None)  # type: ignore[arg-type]
    entries = sorted((entry for shard in shards for entry in shard.entries), key=lambda entry: entry.first_row)
    return Shard(shards[0].store, tuple(entries), spec.cuts, shards[0].layout)


class RoundReports:
    """What goes to the client of rounds: those that end within `REPORT_S` together, since a message takes as long as a
    small tree."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._send = send
        self._rounds: list[RoundEvent] = []
        self._trees: list[TreeTable] = []
        self._sent_s = -math.inf

    def add(self, event: RoundEvent, trees: Sequence[TreeTable]) -> None:
        """Send a round, or keep it for the next message."""
        self._rounds.append(event)
        self._trees += trees
        if time.monotonic() - self._sent_s >= REPORT_S:
            self.flush()

    def flush(self) -> None:
        """Send what is kept."""
        rounds, trees, self._rounds, self._trees = self._rounds, self._trees, [], []
        if rounds:
            self._send({"rounds": RoundEvents(rounds, JoinedTrees.of(trees))})
            self._sent_s = time.monotonic()


def coordinate(context: CoordinatorContext, message: None) -> tuple[float, ...]:
    """The fit, in a thread beside the scheduler; reports every round to the client."""
    spec: FitSpec = context.extras["spec"]
    threads = Threads(min(COORDINATOR_THREADS, Threads().count))
    sent, reports = len(spec.earlier_trees), RoundReports(context.report)

    def report(iteration: int, progress: Progress) -> bool:
        nonlocal sent
        values = [
            (data, metric, found[-1]) for data, metrics in progress.history.items() for metric, found in metrics.items()
        ]
        event = RoundEvent(
            iteration, progress.base_score, values, progress.best_iteration, progress.best_score, progress.chances,
        )  # fmt: skip
        reports.add(event, progress.trees[sent:])
        sent = len(progress.trees)
        return False

    try:
        return fit(context.engines, spec, threads, report).base_score
    finally:
        reports.flush()
        threads.close()
