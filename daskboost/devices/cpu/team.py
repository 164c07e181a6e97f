"""Threads that compiled code shares work with: a region of a compiled function runs on all of them, as with OpenMP.

A hand-out to a Python thread pool costs 60 to 225 microseconds, and a level of a tree takes several. Here the threads
of a fit wait inside compiled code, so that a region costs one or two. They belong to their `Threads`: any number of
fits run side by side, and a forked child, where threads are gone, starts its own (OpenMP's would end the process).

    serve(words)                            a thread's loop, from its start to the end of the fit
    run(words, n, part, state)              calls the part, `function(state, k)`, on up to n threads, the caller's among
                                            them, and returns when all have ended; from Python, `start` does

Threads join a job when they come to it: where other processes have the cores, the caller does all tasks alone and waits
for nobody who has not begun. The words of a team lie on cache lines of their own:

    JOIN      number of the job, how many threads may join it, and how many have; CLOSED between jobs
    DONE      threads that have ended their part
    FUNCTION  address of the part that they call
    STATE     address of its argument
    NEXT      counter from which tasks are taken (`next_task`)
    JOBS      how many jobs there have been
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature

from daskboost.devices.cpu import Emitted, intrinsic, njit, uncounted
from daskboost.devices.cpu.addressed import array_at
from daskboost.devices.cpu.by_reference import address_of
from daskboost.dtypes import Int64

_cgutils: Any = cgutils  # these have no types
LINE = 16
"""int64 words from one of the team's words to the next: two cache lines, as processors fetch them in pairs."""
JOIN, DONE, FUNCTION, STATE, NEXT, JOBS = (LINE * k for k in range(6))
TEAM_WORDS = LINE * 6
MOST_THREADS = 2048
"""More than there are threads in any team."""
CLOSED, STOP = 0, -1
"""What `JOIN` holds where there is no job, and where all threads are to end."""
SPINS = 4_000
"""How often a thread looks before it offers its core to others: 50 to 200 microseconds."""
YIELDS = 2_000
"""How often it does so before it sleeps: a millisecond or two, longer than the coordinator takes between two trees."""
PATIENCE = 100_000
"""Looks at another engine before a thread sleeps: 2 to 40 milliseconds. One that sleeps comes late to the next meeting,
where others then wait so long that they sleep as well: at each of 14 meetings of a tree, one of 16 engines was .3 ms
later than the last one to come."""
PAUSES_EACH = 8
"""Pauses between two looks at another engine, so that the thread on the same core, which may be an engine at work, has
more of it: rounds of 16 engines took 10.8 ms, with one pause 12.0."""
OFFERS = 64
"""Looks at another engine between two offers of the core: that engine may wait for this very core, and an offer that
nobody takes costs as much as ten looks."""
LEAST_SLEEP, MOST_SLEEP = 50, 1_000
"""Microseconds that it sleeps between two looks, twice as long each time."""
JOIN_NS = 500
"""Nanoseconds by which a region takes longer for each thread that joins it: the words of a team go from core to core,
hundreds of nanoseconds each time where these are many or shared by two threads."""
LEAST_ROWS, MOST_ROWS = 1_024, 8_192
"""Rows of a task."""
MOST_LOOKS = 50
"""Looks at other engines, once a thread sleeps, until their lives are asked for."""


def _word(context: Any, builder: ir.IRBuilder, kind: types.Array, array: ir.Value, index: ir.Value) -> ir.Value:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def _load(typing_context: Context, words: types.Array, index: types.Integer) -> Emitted:
    """Read a word; what other threads wrote before they stored it is there."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.load_atomic(_word(context, builder, signature.args[0], *args), "acquire", 8)

    return types.int64(words, types.intp), generate


@intrinsic
def _store(typing_context: Context, words: types.Array, index: types.Integer, value: types.Integer) -> Emitted:
    """Write a word, after all that this thread has written."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array, at, value = args
        builder.store_atomic(value, _word(context, builder, signature.args[0], array, at), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), generate


@intrinsic
def _add(typing_context: Context, words: types.Array, index: types.Integer, value: types.Integer) -> Emitted:
    """Add to a word, at once for all threads; return what it was."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array, at, value = args
        return builder.atomic_rmw("add", _word(context, builder, signature.args[0], array, at), value, "acq_rel")

    return types.int64(words, types.intp, types.int64), generate


def _libc(name: str, result: ir.Type, *arguments: ir.Type) -> Callable[[ir.IRBuilder], ir.Function]:
    return lambda builder: _cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


@intrinsic
def _exchange(typing_context: Context, words: types.Array, index: types.Integer, value: types.Integer) -> Emitted:
    """Write a word, at once for all threads; return what it was."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array, at, value = args
        return builder.atomic_rmw("xchg", _word(context, builder, signature.args[0], array, at), value, "acq_rel")

    return types.int64(words, types.intp, types.int64), generate


@intrinsic
def _replace(typing_context: Context, words: types.Array, index: types.Integer, old: types.Integer, new: types.Integer
             ) -> Emitted:  # fmt: skip
    """Write a word if it is `old`, at once for all threads; return whether it was."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array, at, old, new = args
        found = builder.cmpxchg(
            _word(context, builder, signature.args[0], array, at), old, new, "acq_rel", "acquire"
        )
        return builder.extract_value(found, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), generate


PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}
"""The instruction by which a core that waits leaves more to the other thread on it, with its arguments."""


@intrinsic
def _pause(typing_context: Context) -> Emitted:
    """Wait for some tens of cycles."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        if platform.machine() in PAUSES:
            name, numbers = PAUSES[platform.machine()]
            word, insert = ir.IntType(32), _cgutils.get_or_insert_function
            kind = ir.FunctionType(ir.VoidType(), [word] * len(numbers))
            builder.call(insert(builder.module, kind, name), [ir.Constant(word, number) for number in numbers])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield(typing_context: Context) -> Emitted:
    """Offer the core to other threads."""
    function = _libc("sched_yield", ir.IntType(32))

    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        builder.call(function(builder), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sleep(typing_context: Context, microseconds: types.Integer) -> Emitted:
    """Sleep."""
    function = _libc("usleep", ir.IntType(32), ir.IntType(32))

    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        builder.call(function(builder), [builder.trunc(args[0], ir.IntType(32))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _call(typing_context: Context, part: types.Integer, state: types.Integer, number: types.Integer) -> Emitted:
    """Call the part at an address."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        taken = (types.voidptr, types.int64)
        kind = context.call_conv.get_function_type(types.none, taken)
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        values = [builder.inttoptr(args[1], ir.IntType(8).as_pointer()), args[2]]
        context.call_conv.call_function(builder, pointer, types.none, taken, values)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _address(typing_context: Context, state: types.Type) -> Emitted:
    """Return the address that a reference is."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(state), generate


@njit(nogil=True)
def _rest(looks: int) -> None:
    """Wait between two looks, longer after many: at first as a core does, then for others, at last asleep."""
    if looks > SPINS + YIELDS:
        _sleep(min(LEAST_SLEEP << min(looks - SPINS - YIELDS - 1, 8), MOST_SLEEP))
    elif looks > SPINS:
        _yield()
    else:
        _pause()


@njit(cache=True, nogil=True)
def serve(words: Int64) -> None:
    """Do a thread's parts of jobs until the team stops."""
    seen = np.int64(0)
    while True:
        looks = 0
        while True:
            job = _load(words, JOIN)
            number, joined = job // (MOST_THREADS * MOST_THREADS), job % MOST_THREADS
            if job == STOP:
                return
            if number > seen and joined < job // MOST_THREADS % MOST_THREADS:
                if _replace(words, JOIN, job, job + 1):
                    break
                continue
            looks += 1
            _rest(looks)
        seen = number
        _call(words[FUNCTION], words[STATE], joined + 1)
        _add(words, DONE, 1)


@njit(nogil=True)
def _begin(words: Int64, n_threads: int, function: int, state: int) -> None:
    """Hand a job out to at most `n_threads` - 1 others."""
    words[JOBS] += 1
    words[FUNCTION], words[STATE], words[DONE], words[NEXT] = function, state, 0, 0
    _store(words, JOIN, (words[JOBS] * MOST_THREADS + n_threads - 1) * MOST_THREADS)


@njit(nogil=True)
def _wait(words: Int64) -> None:
    """Close the job, whose tasks are all taken, and wait for the threads that have joined it."""
    joined = _exchange(words, JOIN, CLOSED) % MOST_THREADS
    looks = 0
    while _load(words, DONE) < joined:
        looks += 1
        if looks > SPINS:
            _yield()
        else:
            _pause()


@njit(nogil=True)
def arrive(room: Int64) -> None:
    """Count a meeting of engines in the first word of one's room, after all that is told there."""
    _store(room, 0, room[0] + 1)


@njit(nogil=True)
def come_together(room: Int64, rooms: Int64) -> bool:
    """Wait until the rooms at these addresses count as many meetings as one's own; False after some tens of
    milliseconds, as one of them may be gone."""
    looks = 0
    for k in range(len(rooms)):
        other = array_at(rooms[k], room, 1)
        while _load(other, 0) < room[0]:
            looks += 1
            if looks > PATIENCE + MOST_LOOKS:
                return False
            if looks > PATIENCE:
                _rest(looks - PATIENCE + SPINS + YIELDS)
            elif looks % OFFERS == 0:
                _yield()
            else:
                for _ in range(PAUSES_EACH):
                    _pause()
    return True


@njit(cache=True, nogil=True)
def meet(room: Int64, rooms: Int64, arrives: bool) -> bool:
    """Count a meeting, if one has not been counted yet, and wait for the others as `come_together` does; from Python,
    what was told before is there for those who have come."""
    if arrives:
        arrive(room)
    return come_together(room, rooms)


def threads_worth(n_threads: int, nanoseconds: int) -> int:
    """Return how many of `n_threads` threads a region of so much work is worth.

    On n threads it takes nanoseconds / n, and JOIN_NS * n for them to join and to take tasks, one after the other from
    the same word: least where n is the root of their quotient.
    """
    return int(max(1, min(n_threads, (nanoseconds / JOIN_NS) ** 0.5)))


def rows_of_task(n_rows: int, n_threads: int) -> int:
    """Return the rows of a task where each row takes some nanoseconds: some tasks for each thread, large enough that to
    take them costs little."""
    return int(max(LEAST_ROWS, min(MOST_ROWS, n_rows // (4 * n_threads))))


def part_without(*unread: str) -> Callable[[Callable[[Any, int], None]], Any]:
    """Compile a part, see `part`, that reads none of some attributes of its state, see `kind_of`: once for all states
    that differ in nothing else."""
    def compiled(function: Callable[[Any, int], None]) -> Any:
        dispatcher = uncounted(cache=True)(function)
        dispatcher.unread = unread
        return dispatcher

    return compiled


part = part_without()
"""Compile a thread's part of a region, `function(state, k)`, when its address is asked for.

A part does tasks that it takes by `next_task` until there are none.
"""


@njit(nogil=True)
def run_at(words: Int64, n_threads: int, part: int, state: int) -> None:
    """Do what `run` does; `state` is the address of a record."""
    if n_threads <= 1:
        words[NEXT] = 0
        _call(part, state, 0)
        return
    _begin(words, n_threads, part, state)
    _call(part, state, 0)
    _wait(words)


@uncounted()
def run(words: Int64, n_threads: int, part: int, state: Any) -> None:
    """Run a region: call the part at an address with k = 0, and on up to `n_threads` - 1 other threads with k = 1 and
    so on, as they come. `state` is a reference."""
    run_at(words, n_threads, part, _address(state))


@njit(cache=True, nogil=True)
def _start(words: Int64, n_threads: int, part: int, state: int) -> None:
    run_at(words, n_threads, part, state)


def start(words: Int64, n_threads: int, part: int, state: Any) -> None:
    """Do what `run` does, from Python; `state` is `by_reference`."""
    _start(words, n_threads, part, address_of(state))


@njit(nogil=True)
def next_task(words: Int64) -> int:
    """Return the number of a task that no thread of this job has taken yet; they count from 0 on."""
    found: int = _add(words, NEXT, 1)
    return found
