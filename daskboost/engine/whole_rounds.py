"""Whole rounds grow beside the rows, without a round trip to the coordinator per level or tree.

The round loop is the coordinator's own (`fit/rounds.py`). It runs in the process of a fit's only engine; or in those of
all engines in step, each of which is told by the others what a coordinator would be.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NoReturn, TypeVar

from daskboost.devices.budget.gpu_memory import ROUNDS_AT_ONCE
from daskboost.devices.budget.partition import columns_pay
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.runtime.collective import ALONE, Collective, Turn
from daskboost.engine.by_columns import divide_features, rows_by_columns, share_plan, why_not_by_columns
from daskboost.engine.compiled_grower import CompiledGrower, why_not_compiled
from daskboost.engine.device_grower import DeviceGrower, GrownOver, RowsOnDevice, WatchedMetrics, own_rows
from daskboost.engine.engine import Engine
from daskboost.engine.fit_size import engine_size
from daskboost.engine.setup import Answers
from daskboost.engine.watching import Watch
from daskboost.errors import DeviceError
from daskboost.fit import messages as m
from daskboost.fit.base_score import weight_of_small_data
from daskboost.fit.messages import Outbox
from daskboost.fit.peers import Peers
from daskboost.fit.recipe import BY_MESSAGES
from daskboost.fit.rounds import AsGrown, GrownRound, Parts, evaluation_of, grow_rounds, rounds_of
from daskboost.fit.spec import FitSpec
from daskboost.metrics.own_metric import CustomMetric

logger = logging.getLogger(__name__)

R = TypeVar("R")
Told = m.Rounds | m.SentRounds


class Called:
    """One engine, asked by a call."""

    n_engines = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ask(self, message: m.Request[R], /) -> list[R]:
        """Return the engine's reply."""
        return [self._engine.handle(message)]


class InStep:
    """All engines of a fit, each of which asks the same in its own process: its own is called, and the others share
    their replies."""

    def __init__(self, engine: Engine, peers: Peers) -> None:
        self._engine, self._peers, self.n_engines = engine, peers, peers.n_peers

    def ask(self, message: m.Request[R], /) -> list[R]:
        """Return the replies of all engines, in their order; no other engine is waited for where all reply the same."""
        reply = self._engine.handle(message)
        return [reply] * self.n_engines if _has_one_reply(message) else self._peers.share(reply)


def _has_one_reply(message: m.Request[R]) -> bool:
    """Whether engines in step all reply the same: with splits, which GPUs find in the histograms of all rows."""
    return isinstance(message.request if isinstance(message, m.OnSample) else message, m.Search)


class WholeRounds:
    """What an engine answers that grows whole rounds, on its own threads, since searching and building take turns: the
    only engine of a fit, or several in step, whose trees grow in compiled calls or whose GPUs are joined."""

    def __init__(self, engine: Engine, spec: FitSpec, threads: Threads, peers: Peers,
                 tell: Callable[[tuple[m.Round, ...]], Told] = m.Rounds) -> None:  # fmt: skip
        self._tell = tell
        """Makes a reply of rounds."""
        self._failure: Exception | None = None
        self._ahead: list[GrownRound] = []
        """Rounds that have been grown before they were asked for."""
        self._n_wanted = 0
        """Rounds that are to grow now."""
        self._is_asked = False
        self._peers = peers
        self.grows_alone = engine.device.without_host
        """Whether trees grow on a device, or on several that are joined, without the host."""
        reason = "" if self.grows_alone else why_not_compiled(engine, spec)
        self._others: Collective = ALONE
        self._has_own_metrics = any(isinstance(metric, CustomMetric) for metrics in spec.metrics for metric in metrics)
        outbox = Outbox(InStep(engine, peers))
        self._close_batch: Callable[[], None] | None = None
        """What is called before rounds grow ahead; None where none do."""
        self._by_host: Callable[[], Iterator[GrownRound]] = partial(_rounds_by_host, spec, outbox, threads)
        """Gives rounds whose trees grow with the host."""
        self._join: Callable[[], m.Reason] = partial(self._meet, engine, spec, reason, outbox)
        """Decides with the other engines, and returns, why the coordinator is to grow the rounds."""
        self._turn: Turn | None = None
        """The GPU's, while it is this fit's."""
        if self.grows_alone:
            self._rounds: Iterator[GrownRound] = iter(())
            if peers.n_peers == 1:
                self._start_on_device(engine, spec, outbox, own_rows(engine, ALONE))
        elif reason:
            self._rounds = rounds_of(spec, outbox, threads)
        else:
            self._rounds = _compiled_rounds(engine, spec, outbox, peers, lambda: self._n_wanted)
        if not self.grows_alone and peers.n_peers == 1:  # of several, the coordinator says it
            logger.info("trees grow %s", f"with the host: {reason}" if reason else "in compiled calls")

    def _start_on_device(self, engine: Engine, spec: FitSpec, outbox: Outbox, over: GrownOver) -> None:
        """Have memory for trees that grow without the host, the first of which grows when it is asked for.

        Engines in step do the same in the same order, whatever each one's plan has room for.
        """
        total_weight, device = weight_of_small_data(outbox, spec), engine.device
        watches, n_trees = all(self._peers.share(device.watches)), min(self._peers.share(over.n_trees))
        n_trees = n_trees // self._peers.n_peers * self._peers.n_peers or n_trees  # to be shared equally, if enough
        with device.errors():
            watch = Watch(device, engine.sets.evaluators if watches else (), self._others)
            grower = DeviceGrower(engine, spec, total_weight, watch, replace(over, n_trees=n_trees))
        evaluation = WatchedMetrics(grower) if watches else evaluation_of(spec, Outbox(Called(engine)))
        parts = Parts(RowsOnDevice(), grower, AsGrown(), evaluation, grower.estimated)
        self._rounds = grow_rounds(spec, parts)
        if watches or not spec.eval_names:  # else the host waits for each round's metrics
            self._close_batch = grower.close_batch

    def _meet(self, engine: Engine, spec: FitSpec, reason: str, outbox: Outbox) -> m.Reason:
        """Agree with all other engines on who grows the rounds, and join their GPUs if these do."""
        kernels = engine.device.split_kernels
        runtime = None if kernels is None else kernels.runtime
        if runtime is not None:
            has_rows = engine.sets.train.shard.n_rows > 0
            reason = runtime.why_apart() or _why_apart(spec, has_rows=has_rows, needs_host=not self.grows_alone)
        elif spec.params.reduction == "nccl" or spec.params.partition_by == "columns":
            reason = "engines are on CPUs"
        name, reason = "" if runtime is None else runtime.name, _why_not_in_step(spec, reason)
        told = self._peers.share(m.InStepWith(name, platform.node(), reason, self.grows_alone))
        names = tuple(each.gpu for each in told)
        found = next((each.reason for each in told if each.reason), "") or why_not_joined(told)
        self.grows_alone = not found and all(each.without_host for each in told)
        if runtime is None or found:
            return m.Reason(found)
        if not runtime.turn.is_taken(runtime.name, names, self._peers):
            return m.Reason("another fit has joined these GPUs", is_for_now=True)
        self._turn = runtime.turn
        self._others = runtime.joined(self._peers, names)
        if self.grows_alone:
            self._start_on_device(engine, spec, outbox, self._shared(engine, spec))
        else:
            engine.device.joined, self._rounds = self._others, self._by_host()
        return m.Reason("")

    def _shared(self, engine: Engine, spec: FitSpec) -> GrownOver:
        """Return what trees grow over on GPUs that are joined, as all engines decide alike."""
        n_engines, wanted = self._peers.n_peers, spec.params.partition_by
        reason = why_not_by_columns(engine, spec, n_engines) if wanted != "rows" else "partition_by='rows' asks for it"
        if not reason and wanted == "auto" and not columns_pay(engine_size(spec, engine.sets.train.shard, ())):
            reason = "histograms travel in less time than rows take to move"
        reason = self._first(reason)
        if not reason:
            division = divide_features(engine, spec, self._others)
            plan = share_plan(engine, spec, division, self._peers.rank)
            has_room = plan.fits is not False
            reason = self._first("" if has_room else "a GPU has no room for a share of the features of all rows")
        if reason and wanted == "columns":
            raise DeviceError(f"partition_by='columns' was asked for, and {reason}: use partition_by='auto'")
        logger.info("GPUs share the %s", f"rows: {reason}" if reason else "features")
        if reason:
            return own_rows(engine, self._others)
        return rows_by_columns(engine, division, plan, self._peers, self._others)

    def _first(self, reason: str) -> str:
        """Return the first reason that an engine has, as all do; collective."""
        return next((each for each in self._peers.share(reason) if each), "")

    @property
    def _most(self) -> int:
        """Rounds in a reply: what users' own metrics are told is as large as their evaluation sets."""
        return 1 if self._has_own_metrics and not self.grows_alone else ROUNDS_AT_ONCE

    @property
    def answers(self) -> Answers:
        """What answers requests for rounds."""
        return {m.WhyNotWhole: self._why_not_whole, m.GrowRounds: self._grow}

    def _why_not_whole(self, message: m.WhyNotWhole) -> m.Reason:
        if self._peers.n_peers == 1:
            return m.Reason("")
        try:
            return self._join()
        except Exception as error:
            self._fail(error)
            raise

    def _grow(self, message: m.GrowRounds) -> Told:
        self._is_asked = True
        return self._tell(self._take(min(message.n, self._most)))

    def _take(self, n: int) -> tuple[m.Round, ...]:
        """Return at most `n` rounds. One that fails does so when it is the next: the fit may end before it. Where GPUs
        are joined it fails at once, since the others wait for this one.

        A device grows half as many rounds more while the host finishes these, or it would have nothing to do.
        """
        grown = [*self._ahead, *self._grown(n - len(self._ahead))]
        grown, self._ahead = grown[:n], grown[n:]
        if self._close_batch is not None:
            self._close_batch()
            self._ahead += self._grown((len(grown) + 1) // 2 - len(self._ahead))
        taken: list[m.Round] = []
        try:
            taken.extend(self._told(each.finished()) for each in grown)
        except Exception as error:
            self._fail(error)
            self._ahead = []
        if self._failure is not None and (not taken or self._others is not ALONE):
            raise self._failure
        return tuple(taken)

    def grow_next(self) -> None:
        """Grow the next round, once the first have been asked for, while the replies to these are on their way: else
        all engines would rest until the coordinator has read them and asked for more."""
        if self._is_asked and self._peers.n_peers > 1 and self._most > 1:
            self._ahead += self._grown(1)

    def _grown(self, n: int) -> list[GrownRound]:
        """Grow at most `n` more rounds, none after one that has failed."""
        grown: list[GrownRound] = []
        if self._failure is None:
            try:
                for self._n_wanted in range(n, 0, -1):
                    grown.extend(islice(self._rounds, 1))
            except Exception as error:
                self._fail(error)
        return grown

    def _fail(self, error: Exception) -> None:
        """Grow no more rounds; nobody may wait for those that do not come."""
        self._failure = error
        self._peers.close()

    def _told(self, grown: m.Round) -> m.Round:
        """Return what the coordinator is told of a round: its trees by one engine only, metrics of an engine's own
        rows."""
        rank, metrics = self._peers.rank, grown.metrics
        own = metrics if len(metrics) < 2 else metrics[rank : rank + 1]
        return grown if rank == 0 and own is metrics else replace(grown, trees=() if rank else grown.trees, metrics=own)

    def stop(self) -> None:
        """Wait for no other engine's GPU any more; from any thread."""
        self._others.abort()

    def close(self) -> None:
        """Forget the rounds, which hold the engine."""
        has_failed, self._failure = self._failure is not None, None
        # What is kept here refers to the engine, whose arrays would wait for the garbage collector.
        self._rounds, self._ahead, self._close_batch, self._join, self._by_host = iter(()), [], None, _closed, _closed
        turn, self._turn = self._turn, None
        try:
            if has_failed:
                self._others.abort()
            self._others.close()
        finally:  # a GPU that failed may not let go, and other fits wait
            if turn is not None:
                turn.end()


def _closed() -> NoReturn:
    raise RuntimeError("the engine is closed")


def _rounds_by_host(spec: FitSpec, outbox: Outbox, threads: Threads) -> Iterator[GrownRound]:
    """Give rounds whose trees grow with the host, on GPUs that are joined: each finds all splits where it has the
    histograms of all rows."""
    return rounds_of(replace(spec, params=replace(spec.params, reduction="nccl")), outbox, threads)


def _why_apart(spec: FitSpec, *, has_rows: bool, needs_host: bool) -> str:
    """Return why an engine's GPU is not joined with others: it has no rows, or parameters ask for something else."""
    if not has_rows:
        return "an engine has no rows"
    if spec.params.reduction in BY_MESSAGES:
        return f"reduction={spec.params.reduction!r} asks for it"
    by_columns = spec.params.partition_by == "columns" and needs_host
    return (spec.recipe.host_reason or "a GPU has no room to grow trees without the host") if by_columns else ""


def _why_not_in_step(spec: FitSpec, reason: str) -> str:
    """Return why engines do not grow whole rounds in step, given why one of them does not grow trees by itself."""
    return reason or ("reduction='coordinator' asks for it" if spec.params.reduction == "coordinator" else "")


def why_not_joined(told: Sequence[m.InStepWith]) -> str:
    """Return why engines that could grow rounds in step do not, for where they are; empty where they do.

    What joined GPUs tell each other is not encrypted, and does not leave their host.
    """
    names, hosts = [each.gpu for each in told], {each.host for each in told}
    if not all(names):
        return "some engines are on a GPU, others are not" if any(names) else ""
    if len(hosts) > 1:
        return "engines are on several hosts"
    return "several engines are on one GPU" if len(set(names)) < len(names) else ""


def _compiled_rounds(engine: Engine, spec: FitSpec, outbox: Outbox, peers: Peers, n_wanted: Callable[[], int]
                     ) -> Iterator[GrownRound]:  # fmt: skip
    """Give the rounds of a fit whose trees grow on a CPU, in compiled calls, from the first that is asked for on."""
    total_weight, evaluation = weight_of_small_data(outbox, spec), evaluation_of(spec, Outbox(Called(engine)))
    with closing(CompiledGrower(engine, spec, peers, total_weight, n_wanted)) as grower:
        yield from grow_rounds(spec, Parts(RowsOnDevice(), grower, AsGrown(), evaluation, grower.estimated))
