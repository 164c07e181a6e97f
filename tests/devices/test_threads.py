"""Threads for row loops: even ranges, results in order, and every error raised."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from daskboost.devices.cpu.threads import Threads


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 6, 7, 100])
def test_ranges_cover_everything_once(count: int, total: int) -> None:
    threads = Threads(count)
    ranges = threads.ranges(total, least=1)
    assert [i for a, b in ranges for i in range(a, b)] == list(range(total))
    assert 1 <= len(ranges) <= count
    assert max(b - a for a, b in ranges) - min(b - a for a, b in ranges) <= 1
    threads.close()


def test_small_work_stays_in_one_range() -> None:
    threads = Threads(4)
    assert threads.ranges(8191) == [(0, 8191)]
    assert len(threads.ranges(8192)) == 2
    threads.close()


def test_results_keep_the_order_of_tasks() -> None:
    threads = Threads(3)
    assert threads.run([partial(int, i) for i in range(20)]) == list(range(20))
    assert threads.run([]) == []
    threads.close()


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_an_error_is_raised_after_all_tasks_have_ended(bad: int) -> None:
    ended: list[int] = []
    lock = threading.Lock()

    def task(i: int) -> None:
        if i == bad:
            raise ValueError(f"task {i}")
        with lock:
            ended.append(i)

    threads = Threads(3)
    with pytest.raises(ValueError, match=f"task {bad}"):
        threads.run([partial(task, i) for i in range(5)])
    assert sorted(ended) == [i for i in range(5) if i != bad]
    threads.close()
