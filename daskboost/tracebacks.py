"""What an exception's traceback keeps: the local variables of every function that it came through."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CellType, FrameType, FunctionType

PACKAGES = {__name__.partition(".")[0], "cupy", "cupyx", "rmm"}
"""Whose functions' variables are forgotten: ours, and those that ours give a GPU's memory to."""


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
    """Of functions that have ended, in the tracebacks of an exception and of what led to it."""
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        place = each.__traceback__
        while place is not None:
            if str(place.tb_frame.f_globals.get("__name__")).partition(".")[0] in PACKAGES:
                _forget(place.tb_frame)
            place = place.tb_next


def _forget(frame: FrameType) -> None:
    """The frame's variables, those too that functions and comprehensions within have seen: frames of theirs refer to
    them by the function, not by a variable that could be cleared."""
    held = gc.get_referents(frame)
    functions = [each for each in held if isinstance(each, FunctionType) and each.__code__ is frame.f_code]
    from_outside = {id(cell) for function in functions for cell in function.__closure__ or ()}
    own = [each for each in held if isinstance(each, CellType) and id(each) not in from_outside]
    with suppress(RuntimeError):  # it is still running, here or in another thread
        frame.clear()
        for cell in own if functions else ():
            with suppress(ValueError):  # it is empty
                del cell.cell_contents
