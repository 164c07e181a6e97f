"""What an exception's traceback keeps: the local variables of every function that it came through."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_tb
from types import CellType, FrameType, FunctionType

PACKAGES = {__name__.partition(".")[0], "cupy", "cupyx", "rmm"}
"""Packages whose functions' variables are forgotten: ours, and those that ours give a GPU's memory to."""
GOES_ON = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""Kinds of functions that may have stopped without having ended."""


@contextmanager
def without_locals() -> Iterator[None]:
    """Where an exception leaves, forget the local variables of functions that it came through (`PACKAGES`).

    A notebook, a debugger and whoever else keeps an exception keep them too (`sys.last_exc`): of a fit these are all
    rows and the memory of a GPU, for which the next fit would then have no room. Lines and messages stay, and so do the
    variables of functions of others, such as users' callbacks. As a decorator it counts the function itself too. What
    runs within must not leave functions behind that still read its variables.
    """
    try:
        yield
    except BaseException as error:
        forget_locals(error)
        raise


def forget_locals(error: BaseException) -> None:
    """Forget the variables of functions that have ended, in the tracebacks of an exception and of what led to it."""
    known_callers = set[FrameType]()
    for each in _all_of(error):
        for frame, _ in walk_tb(each.__traceback__):
            if _is_ours(frame):
                _forget(frame)
            _forget_callers(frame, known_callers)


def _all_of(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes, and those of a group."""
    left, known = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in known:
            known.add(id(each))
            left += [other for other in (each.__cause__, each.__context__) if other is not None]
            left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            yield each


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in PACKAGES


def _forget(frame: FrameType) -> None:
    """The frame's variables, those too that functions and comprehensions within have read: a frame of theirs refers to
    them by its function's closure, which cannot be cleared."""
    referents = gc.get_referents(frame)
    functions = [each for each in referents if isinstance(each, FunctionType) and each.__code__ is frame.f_code]
    closure = {id(cell) for function in functions for cell in function.__closure__ or ()}
    with suppress(RuntimeError):  # it is still running, here or in another thread
        frame.clear()
        for cell in referents if functions else ():
            if isinstance(cell, CellType) and id(cell) not in closure:
                with suppress(ValueError):  # it is empty
                    del cell.cell_contents


def _forget_callers(frame: FrameType, known: set[FrameType]) -> None:
    """Variables of what called it, if that has ended since: an exception may be kept, and raised by the next call."""
    caller = frame.f_back
    while caller is not None and caller not in known:
        known.add(caller)
        if _is_ours(caller) and not caller.f_code.co_flags & GOES_ON:
            with suppress(RuntimeError):
                caller.clear()
        caller = caller.f_back
