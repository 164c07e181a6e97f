"""Several fits over the same rows of this process: in a thread each, with one stream of chunks between them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from daskboost.devices.budget.gpu_plans import POOL_SHARE, gpu_plan, pool_bytes
from daskboost.devices.budget.plan import FitSize, Plan
from daskboost.devices.choose import finds_gpu
from daskboost.devices.cpu.threads import Threads
from daskboost.engine.chunk_views import places_on_disk
from daskboost.engine.fit_size import EnginePlace, engine_size, shard_size
from daskboost.fit.spec import FitSpec, Progress, Report
from daskboost.local.in_process import LocalShards, SharedViews, fit_here
from daskboost.local.lockstep import Lockstep
from daskboost.params import split_device

T = TypeVar("T")
RunFit = Callable[[Report], Progress]
"""Runs a fit that is prepared; may be called once."""


@dataclass(frozen=True)
class Member:
    """One of the fits."""

    spec: FitSpec
    train: LocalShards
    evals: Sequence[LocalShards]

    @cached_property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU, if there is room."""
        return finds_gpu(self.spec.params.device)

    @property
    def reads_files(self) -> bool:
        """Whether it reads chunks on disk for every pass, as a CPU does; what a GPU does its plan says."""
        if self.on_gpu:
            return False
        shards = [shard for each in (self.train, *self.evals) for shard in each.shards]
        return any(map(places_on_disk, shards))


def fit_together(
    members: Sequence[Member], work: Sequence[Callable[[RunFit], T]], n_threads: int, most: int | None = None
) -> list[T]:
    """Call `work[i]` with what runs the fit of `members[i]`; the results, in order.

    Where chunks are streamed, all fits run at once, a pass over the chunks serving all of them (`Lockstep`), unless
    `most` or a GPU's memory allows fewer. Fits over resident chunks need not wait for each other: as many run as there
    are threads. A GPU works on one fit at a time, for as long as it has what that fit needs; and on those of one layout
    of histograms after the other, since they share no views, for which there may not be room side by side.

    Raises
    ------
    Exception
        The first of any fit, which ends all of them.
    """
    members = [_on_callers_gpu(member) for member in members]
    on_gpu = any(member.on_gpu for member in members)
    alike: dict[int | None, list[int]] = {}  # fits that can share views: on a GPU those of one layout, else all
    for number, member in enumerate(members):
        alike.setdefault(member.spec.layout.width if on_gpu else None, []).append(number)
    results: dict[int, T] = {}
    for numbers in alike.values():
        own = [members[i] for i in numbers], [work[i] for i in numbers]
        results |= zip(numbers, _fit_sharing(numbers, *own, n_threads, most), strict=True)
    return [results[i] for i in range(len(members))]


def _fit_sharing(numbers: Sequence[int], members: Sequence[Member], work: Sequence[Callable[[RunFit], T]],
                 n_threads: int, most: int | None) -> list[T]:  # fmt: skip
    """`fit_together` of those of these numbers, with views between them."""
    gpus = [member for member in members if member.on_gpu]
    cores = Threads(n_threads)
    cores.close()
    turns = at_once = min(len(members), most or len(members))
    turns = 1 if gpus else min(turns, cores.count)
    shared, fitting = SharedViews(cores.count), at_once
    if gpus:
        room = _room_on_gpu(gpus, cores.count, at_once)
        fitting, shared.n_resident, shared.stream_bytes, shared.copies_columns = room
    if shared.n_resident is None and not any(member.reads_files for member in members):
        at_once = len(members)  # they wait for their turns, and take memory only then
    else:
        at_once = fitting
    shares = shares_of(cores.count, len(members), turns)
    results: list[T] = []
    try:
        for begin in range(0, len(members), at_once):
            batch = range(begin, min(begin + at_once, len(members)))
            shared.lockstep = Lockstep(len(batch), turns)
            calls = [
                partial(work[i], partial(_fit, members[i], shares[i], shared)) for i in batch
            ]
            results += _in_threads(shared.lockstep, calls, [numbers[i] for i in batch])
    finally:
        shared.close()
    return results


def shares_of(n_threads: int, n_fits: int, turns: int) -> list[int]:
    """Return the threads of each fit, where so many at a time have their turn: all threads together, of those that come
    last too, which may be fewer."""
    shares: list[int] = []
    for begin in range(0, n_fits, turns):
        n = min(turns, n_fits - begin)
        shares += [max(1, n_threads // n + (k < n_threads % n)) for k in range(n)]
    return shares


def _fit(member: Member, threads: int, shared: SharedViews, report: Report) -> Progress:
    lockstep = shared.lockstep

    def after_round(iteration: int, progress: Progress) -> bool:
        lockstep.check()
        return report(iteration, progress)

    return fit_here(member.spec, member.train, member.evals, threads, after_round, shared)


def _in_threads(lockstep: Lockstep[Any], calls: Sequence[Callable[[], T]], numbers: Sequence[int]) -> list[T]:
    """The results of calls that run in lock-step; messages have their numbers."""
    results: dict[int, T] = {}

    def run(index: int) -> None:
        try:
            with lockstep.fit():
                results[index] = calls[index]()
        except BaseException as error:  # `lockstep` has the first for the caller; the others follow from it
            if error is lockstep.failure:
                error.add_note(f"while training model {numbers[index]} of those that are trained together")

    threads = [
        threading.Thread(target=run, args=(index,), name=f"daskboost-model-{numbers[index]}", daemon=True)
        for index in range(len(calls))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C comes to the caller's thread
        lockstep.fail(error)
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if lockstep.failure is not None:
        raise lockstep.failure
    return [results[index] for index in range(len(calls))]


def _on_callers_gpu(member: Member) -> Member:
    """The same, on what is CuPy's current GPU here, which it would not be in another thread."""
    kind, number = split_device(member.spec.params.device)
    sizes = [shard_size(shard, 1) for each in (member.train, *member.evals) for shard in each.shards]
    if number is not None or any(size.gpus for size in sizes) or not member.on_gpu:
        return member
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    current = get_runtime().device
    if kind == "auto" and current == 0:  # where threads begin; a number would not allow the CPU
        return member
    return replace(member, spec=replace(
        member.spec, params=replace(member.spec.params, device=f"cuda:{current}")
    ))  # fmt: skip


class Room(NamedTuple):
    """What a GPU has room for."""

    at_once: int
    """Fits, at least one: which is refused where it has not."""
    n_resident: int | None
    """Chunks of the training rows that it keeps for them, None for all: more fits at once are worth more than chunks
    that stay, since a pass serves all fits."""
    stream_bytes: int
    """Bytes of groups of streamed chunks, worth less than fits as well."""
    copies_columns: bool
    """Whether each fit has room beside column-major copies that another one may have asked for."""


def _room_on_gpu(members: Sequence[Member], n_threads: int, most: int) -> Room:
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    runtime = get_runtime(split_device(members[0].spec.params.device)[1])
    sizes = [
        engine_size(
            member.spec, member.train.shards[0], [each.shards[0] for each in member.evals],
            EnginePlace(n_threads=n_threads, shares_views=True),
        )
        for member in members
    ]
    return room_of([size.on_gpu(runtime) for size in sizes], runtime.free_bytes, most)


def room_of(sizes: Sequence[FitSize], free: int, most: int) -> Room:
    """What a GPU with so many free bytes has room for, of `most` fits at a time."""
    plans = [gpu_plan(size, free) for size in sizes]
    if all(plan.resident is None for plan in plans):
        at_once, _, stream_bytes = _in_groups(sizes, free, most)
        return Room(at_once, None, stream_bytes, _room_beside_columns(plans))
    at_once, own_bytes, stream_bytes = _in_groups([size.keeping(0) for size in sizes], free, most)
    sizes = [size.streaming(stream_bytes) for size in sizes]
    room = max(1, free - (at_once - 1) * own_bytes)
    plans = [gpu_plan(size, room) for size in sizes]
    n_resident = min(
        len(size.train.chunks) if plan.resident is None else plan.resident[0]
        for size, plan in zip(sizes, plans, strict=True)
    )

    def has_no_room(n_kept: int) -> bool:
        """Return whether fewer fits have room beside so many kept chunks, all of whose rows have their turn at once."""
        return _fitting([gpu_plan(size.keeping(n_kept), free) for size in sizes], free, most)[0] < at_once

    n_resident = bisect_right(range(1, n_resident + 1), False, key=has_no_room)
    return Room(at_once, n_resident, stream_bytes, True)


def _room_beside_columns(plans: Sequence[Plan]) -> bool:
    """Whether fits that plan no column-major copies, such as those on samples, have room beside those of others."""
    columns = max(plan.columns_bytes for plan in plans)
    more = columns + columns // POOL_SHARE
    others = [plan for plan in plans if plan.columns_bytes < columns]
    return all(plan.free_bytes is None or plan.total_bytes + more <= plan.free_bytes for plan in others)


def _in_groups(sizes: Sequence[FitSize], free: int, most: int) -> tuple[int, int, int]:
    """How many of the fits fit, bytes of each, and of groups of streamed chunks: the largest that each fit would have
    in what the others leave, unless fewer fits fit so."""
    alone = [gpu_plan(size.streaming(0), free) for size in sizes]
    at_once, own_bytes = _fitting(alone, free, most)
    room = max(1, free - (at_once - 1) * own_bytes)
    stream_bytes = min(gpu_plan(size, room).stream_bytes for size in sizes)
    while stream_bytes:
        plans = [gpu_plan(size.streaming(stream_bytes), free) for size in sizes]
        fitting, own_bytes = _fitting(plans, free, most)
        if fitting >= at_once:
            return fitting, own_bytes, stream_bytes
        stream_bytes //= 2
    return at_once, _fitting(alone, free, most)[1], 0


def _fitting(plans: Sequence[Plan], free: int, most: int) -> tuple[int, int]:
    """How many of the fits fit beside what they share, at least one, and bytes of each, at most. Of what is shared the
    pool loses its part once."""
    shared = [plan.chunks_bytes + plan.columns_bytes + plan.ring_bytes + plan.planes_bytes for plan in plans]
    shared = [
        part + pool_bytes(part, takes_anew=not plan.without_host) for plan, part in zip(plans, shared, strict=True)
    ]
    own = max(plan.total_bytes - plan.turned_bytes - part for plan, part in zip(plans, shared, strict=True))
    return max(1, min(most, (free - max(shared)) // own)), own
