"""Exceptions that are kept keep no local variables of ours."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from daskboost.tracebacks import PACKAGES, forget_locals, without_locals


class Rows:
    """What is to be freed."""


def ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as one of the package's."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__, {**function.__globals__, "__name__": "daskboost.tree"}, function.__name__,
        function.__defaults__, function.__closure__,
    )  # fmt: skip


def fail() -> Any:
    raise LookupError("of a callback")


def kept(function: Callable[..., Any]) -> tuple[BaseException, bool]:
    """The exception of a call with rows, and whether these are alive while it is kept."""
    rows = Rows()
    alive = weakref.ref(rows)
    try:
        with without_locals():
            function(rows)
    except BaseException as error:
        caught = error
    del rows
    gc.collect()
    return caught, alive() is not None


def plain(rows: Rows) -> None:
    copy = rows
    assert copy
    fail()


def in_comprehension(rows: Rows) -> list[None]:
    return [fail() for _ in range(3) if rows]


def in_generator(rows: Rows) -> None:
    def each() -> Iterator[None]:
        assert rows
        yield fail()

    for _ in each():
        pass


def in_closure(rows: Rows) -> None:
    copy = [rows]

    def inner() -> None:
        assert copy and rows
        fail()

    inner()


def with_cause(rows: Rows) -> None:
    try:
        fail()
    except LookupError as error:
        raise ValueError("of the fit") from error


def in_context(rows: Rows) -> None:
    try:
        fail()
    except LookupError:
        raise ValueError("of the fit") from None


def in_group(rows: Rows) -> None:
    try:
        fail()
    except LookupError as error:
        raise ExceptionGroup("several", [error, ValueError()]) from None


def around(rows: Rows) -> None:
    """Causes that refer to each other."""
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__cause__ = second, first
    raise second


WAYS = [plain, in_comprehension, in_generator, in_closure, with_cause, in_context, in_group, around]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_variables_of_ours_are_forgotten(way: Callable[..., Any]) -> None:
    """Where a function ends, whatever in it has failed; those of others stay, as their debuggers expect."""
    assert kept(ours(way))[1] is False
    error, stayed = kept(way)
    assert stayed
    lines = "".join(traceback.format_exception(error))
    assert f"in {way.__name__}" in lines
    assert "".join(traceback.format_exception(kept(ours(way))[0])) == lines


def test_functions_that_run_keep_their_variables() -> None:
    def outer() -> int:
        value = 3
        try:
            fail()
        except LookupError as error:
            forget_locals(error)
        return value

    assert ours(outer)() == 3


def test_calls_that_ended_since_are_forgotten() -> None:
    """An exception that was kept came from a call of before, which its frames still name."""
    failures: list[Exception] = []

    def attempt(rows: Rows) -> None:
        copy = rows
        try:
            raise LookupError(f"kept beside {len([copy])}")
        except LookupError as error:
            failures.append(error)

    def first(rows: Rows) -> None:
        more = [rows]
        attempt(*more)

    def later(rows: Rows) -> None:
        raise failures.pop()

    attempt = ours(attempt)
    calls, rows = (ours(first), ours(later)), Rows()
    alive = weakref.ref(rows)
    calls[0](rows)
    del rows
    gc.collect()
    assert alive() is not None, "frames refer to what called them"
    error, stayed = kept(calls[1])
    assert not stayed and alive() is None
    assert str(error) == "kept beside 1"


def test_generators_that_may_go_on_are_left_alone() -> None:
    """They stopped in a call that the exception names, and have not ended."""

    def numbers() -> Iterator[int]:
        number = 0
        while True:
            try:
                fail()
            except LookupError as error:
                caught.append(error)
            yield number
            number += 1

    caught: list[Exception] = []
    each = ours(numbers)()
    assert next(each) == 0
    raised = caught.pop()
    raised.__traceback__ = raised.__traceback__ and raised.__traceback__.tb_next  # of `fail` alone
    forget_locals(raised)
    assert (next(each), next(each)) == (1, 2)


def test_what_others_share_with_ours_stays() -> None:
    """A function's variables from outside are not its own."""
    shared = Rows()

    def reader(rows: Rows) -> Rows:
        if rows is not shared:
            fail()
        return shared

    read = ours(reader)
    assert kept(read)[1] is False
    assert read(shared) is shared


def test_packages() -> None:
    """Users' modules are none of them."""
    assert PACKAGES == {"daskboost", "cupy", "cupyx", "rmm"}
