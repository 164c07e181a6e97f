"""Threads that compiled code shares work with: a region of a compiled function runs on all of them, as with OpenMP.

A hand-out to a Python thread pool costs 60 to 225 microseconds, and a level of a tree takes several. Here the threads of a
fit wait inside compiled code, so that a region costs one or two. They belong to their `Threads`: any number of fits run
side by side, and a forked child, where threads are gone, starts its own (OpenMP's would hang or end the process).

    serve(words, number)                    a thread's loop, from its start to the end of the fit
    @region                                 in compiled code, `function(words, n, state)` then calls the function of that
    def function(state, k)                  name for k in 0 to n, on n - 1 threads that serve and on the caller's, and
                                            returns when all have ended

The words of a team lie on cache lines of their own:

    JOB       number of the job, and below it how many threads take part: a thread that does not reads nothing else
    DONE      threads that have ended their part
    FUNCTION  address of what they call, of type void(void *state, int64 k)
    STATE     address of its argument, on the stack of the thread that waits
    NEXT      counter from which tasks are taken (`next_task`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from daskboost.devices.cpu import njit
from daskboost.dtypes import Int64

LINE = 16
"""int64 words from one of the team's words to the next: two cache lines, as processors fetch them in pairs."""
JOB, DONE, FUNCTION, STATE, NEXT = (LINE * k for k in range(5))
TEAM_WORDS = LINE * 5
MOST_THREADS = 1024
"""Most threads of a team, and so the factor between numbers of jobs."""
STOP = -1
"""Number of the job that ends all threads."""
SPINS = 4_000
"""How often a thread looks before it offers its core to others: some tens of microseconds."""
YIELDS = 2_000
"""How often it does so before it sleeps: a millisecond or two, longer than the coordinator takes between two trees."""
LEAST_SLEEP, MOST_SLEEP = 50, 1_000
"""Microseconds that it sleeps between two looks, twice as long each time."""


def _address(context: Any, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, index: ir.Value) -> ir.Value:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def _load(typing_context: Any, words: types.Array, index: types.Integer) -> Any:
    """Read a word; what other threads wrote before they stored it is there."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load_atomic(_address(context, builder, signature.args[0], *args), "acquire", 8)

    return types.int64(words, types.intp), generate


@intrinsic
def _store(typing_context: Any, words: types.Array, index: types.Integer, value: types.Integer) -> Any:
    """Write a word, after all that this thread has written."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array, at, value = args
        builder.store_atomic(value, _address(context, builder, signature.args[0], array, at), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), generate


@intrinsic
def _add(typing_context: Any, words: types.Array, index: types.Integer, value: types.Integer) -> Any:
    """Add to a word, at once for all threads; return what it was."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array, at, value = args
        return builder.atomic_rmw("add", _address(context, builder, signature.args[0], array, at), value, "acq_rel")

    return types.int64(words, types.intp, types.int64), generate


def _libc(name: str, result: ir.Type, *arguments: ir.Type) -> Callable[[ir.IRBuilder], ir.Function]:
    insert: Any = cgutils.get_or_insert_function
    return lambda builder: insert(builder.module, ir.FunctionType(result, arguments), name)


@intrinsic
def _yield(typing_context: Any) -> Any:
    """Offer the core to other threads."""
    function = _libc("sched_yield", ir.IntType(32))

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.call(function(builder), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sleep(typing_context: Any, microseconds: types.Integer) -> Any:
    """Sleep."""
    function = _libc("usleep", ir.IntType(32), ir.IntType(32))

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.call(function(builder), [builder.trunc(args[0], ir.IntType(32))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _call(typing_context: Any, function: types.Integer, state: types.Integer, number: types.Integer) -> Any:
    """Call the job's function."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, ir.IntType(64)])
        builder.call(
            builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], pointer), args[2]]
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _job_of(function: Any) -> Any:
    """Return an intrinsic that takes a state and gives the address of what calls `function(state, k)`, and of the state,
    which lies on the stack of the caller; a caller has to be there until all threads have ended."""
    @intrinsic
    def job(typing_context: Any, state: types.Type) -> Any:
        function.get_call_template((state, types.int64), {})  # compiles it
        compiled = function.overloads[state, types.int64]

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            context.active_code_library.add_linking_library(compiled.library)
            descriptor, word, byte = compiled.fndesc, ir.IntType(64), ir.IntType(8).as_pointer()
            state_type = context.get_value_type(state)
            part = ir.Function(
                builder.module, ir.FunctionType(ir.VoidType(), [byte, word]),
                builder.module.get_unique_name(f"part_of_{descriptor.mangled_name}"),
            )  # fmt: skip
            part.linkage = "internal"
            inner = ir.IRBuilder(part.append_basic_block())
            given = inner.load(inner.bitcast(part.args[0], state_type.as_pointer()))
            callee = context.declare_function(builder.module, descriptor)
            context.call_conv.call_function(
                inner, callee, descriptor.restype, descriptor.argtypes, [given, part.args[1]]
            )
            inner.ret_void()
            place = cgutils.alloca_once(builder, state_type)
            builder.store(args[0], place)
            found = [builder.ptrtoint(part, word), builder.ptrtoint(place, word)]
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(types.int64, 2)(state), generate

    return job


@njit(cache=True, nogil=True)
def serve(words: Int64, number: int) -> None:
    """Do a thread's parts of all jobs until the team stops; threads are numbered from 1 on."""
    seen = np.int64(0)
    while True:
        looks, sleep = 0, LEAST_SLEEP
        job = _load(words, JOB)
        while job == seen:
            looks += 1
            if looks > SPINS + YIELDS:
                _sleep(sleep)
                sleep = min(2 * sleep, MOST_SLEEP)
            elif looks > SPINS:
                _yield()
            job = _load(words, JOB)
        if job == STOP:
            return
        seen = job
        if number < job % MOST_THREADS:
            _call(words[FUNCTION], words[STATE], number)
            _add(words, DONE, 1)


@njit(nogil=True)
def _begin(words: Int64, n_threads: int, function: int, state: int) -> None:
    """Hand a job out."""
    words[FUNCTION], words[STATE], words[DONE], words[NEXT] = function, state, 0, 0
    _store(words, JOB, (words[JOB] // MOST_THREADS + 1) * MOST_THREADS + n_threads)


@njit(nogil=True)
def _wait(words: Int64, n_threads: int) -> None:
    """Wait until the other threads have ended their parts of the job."""
    looks = 0
    while _load(words, DONE) < n_threads - 1:
        looks += 1
        if looks > SPINS:
            _yield()


def region(part: Callable[[Any, int], None]) -> Callable[[Int64, int, Any], None]:
    """Make a function of a thread's part, `part(state, k)`, a region for compiled code: `run(words, n_threads, state)`.

    It calls the part for k in 0 to `n_threads`, each on a thread of its own, k = 0 on the caller's; `state` is a tuple,
    of arrays and numbers.
    """
    function = njit(nogil=True)(part)
    job = _job_of(function)

    @njit(nogil=True)
    def run(words: Int64, n_threads: int, state: Any) -> None:
        if n_threads <= 1:
            words[NEXT] = 0
            function(state, np.int64(0))
            return
        address, argument = job(state)
        _begin(words, n_threads, address, argument)
        function(state, np.int64(0))
        _wait(words, n_threads)

    return run


@njit(nogil=True)
def next_task(words: Int64) -> int:
    """Return the number of a task that no thread of this job has taken yet; they count from 0 on."""
    return _add(words, NEXT, 1)
