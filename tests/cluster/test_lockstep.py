"""Fits that meet over a stream: few passes, nobody waits for ever, a failure ends all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskboost.errors import FitCancelledError
from daskboost.local.lockstep import Lockstep

Fit = Callable[[Lockstep[int]], None]


class Source:
    """Counts passes and items, and notes what is read while somebody still has an earlier item."""

    def __init__(self, n_items: int) -> None:
        self.n_items, self.passes, self.open, self.readers = n_items, 0, 0, 0

    def __call__(self) -> Generator[int, None, None]:
        self.passes += 1
        self.open += 1
        try:
            for item in range(self.n_items):
                self.readers += 1
                assert self.readers == 1
                self.readers -= 1
                yield item
        finally:
            self.open -= 1


def run(lockstep: Lockstep[int], fits: list[Fit]) -> list[BaseException | None]:
    """What each fit raised, in a thread of its own; a fit that hangs fails the test."""
    raised: list[BaseException | None] = [None] * len(fits)

    def one(place: int) -> None:
        try:
            with lockstep.fit():
                fits[place](lockstep)
        except BaseException as error:
            raised[place] = error

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(len(fits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a fit waits for ever"
    return raised


@given(
    plans=st.lists(st.lists(st.sampled_from("te"), max_size=6), min_size=1, max_size=5), n_items=st.integers(0, 3),
    at_once=st.integers(1, 3),
)  # fmt: skip
def test_passes_are_those_of_the_fit_that_needs_most(plans: list[list[str]], n_items: int, at_once: int) -> None:
    """Each fit sees all items of each of its passes, in order, whatever the others ask for."""
    train, evaluation = Source(n_items), Source(n_items + 1)
    seen: list[list[list[int]]] = [[] for _ in plans]

    def fit(place: int) -> Fit:
        def passes(lockstep: Lockstep[int]) -> None:
            for kind in plans[place]:
                items = lockstep.items(train, 1) if kind == "t" else lockstep.items(evaluation, 0)
                seen[place].append(list(items))

        return passes

    raised = run(Lockstep(len(plans), at_once), [fit(place) for place in range(len(plans))])
    assert raised == [None] * len(plans)
    for plan, found in zip(plans, seen, strict=True):
        assert found == [list(range(n_items + (kind == "e"))) for kind in plan]
    assert train.passes == max(plan.count("t") for plan in plans), "evaluation goes first, so these are shared"
    assert train.open == evaluation.open == 0


def test_an_item_is_everybodys_before_the_next_is_read() -> None:
    taken: list[tuple[int, int]] = []

    def fit(place: int) -> Fit:
        def passes(lockstep: Lockstep[int]) -> None:
            for item in lockstep.items(source):
                taken.append((item, place))

        return passes

    source = Source(5)
    assert run(Lockstep(4, 4), [fit(place) for place in range(4)]) == [None] * 4
    assert [item for item, _ in taken] == sorted(item for item, _ in taken)
    assert sorted(taken) == [(item, place) for item in range(5) for place in range(4)]


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("where", ["before", "within", "reading"])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_failure_ends_all(error: BaseException, where: str, at_once: int) -> None:
    source = Source(3)

    def broken() -> Generator[int, None, None]:
        yield 0
        if where == "reading":
            raise error
        yield 1

    def good(lockstep: Lockstep[int]) -> None:
        for _ in range(1000):
            list(lockstep.items(broken if where == "reading" else source))

    def bad(lockstep: Lockstep[int]) -> None:
        list(lockstep.items(broken if where == "reading" else source))
        if where == "before":
            raise error
        for _ in lockstep.items(broken if where == "reading" else source):
            raise error

    lockstep = Lockstep[int](3, at_once)
    raised = run(lockstep, [good, bad, good])
    assert lockstep.failure is error
    assert sum(each is error for each in raised) == 1
    assert sum(isinstance(each, FitCancelledError) for each in raised) == 2
    assert source.open == 0


def test_a_fit_may_leave_a_pass() -> None:
    source = Source(4)
    seen: list[int] = []

    def short(lockstep: Lockstep[int]) -> None:
        items: Iterator[int] = lockstep.items(source)
        next(items)
        items.close()  # type: ignore[attr-defined]

    def whole(lockstep: Lockstep[int]) -> None:
        seen.extend(lockstep.items(source))

    assert run(Lockstep(2, 2), [short, whole]) == [None, None]
    assert (seen, source.passes, source.open) == ([0, 1, 2, 3], 1, 0)


def test_so_many_compute_at_once() -> None:
    running, most, lock = [0], [0], threading.Lock()
    source = Source(3)

    def fit(lockstep: Lockstep[int]) -> None:
        for _ in range(4):
            for _item in lockstep.items(source):
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                with lock:
                    running[0] -= 1

    assert run(Lockstep(5, 1), [fit] * 5) == [None] * 5
    assert most == [1]
    assert source.passes == 4


def test_the_caller_ends_all() -> None:
    """As on Ctrl-C in the thread that waits for the fits."""
    lockstep, started = Lockstep[int](2, 2), threading.Event()

    def waits(own: Lockstep[int]) -> None:
        started.set()
        list(own.items(Source(1)))  # the other fit never asks

    def computes(own: Lockstep[int]) -> None:
        started.wait()
        own.fail(KeyboardInterrupt())
        own.check()

    raised = run(lockstep, [waits, computes])
    assert [type(each) for each in raised] == [FitCancelledError, FitCancelledError]
