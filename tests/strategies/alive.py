"""Threads that are to end by themselves."""

from __future__ import annotations

import _thread
import time


def n_threads() -> int:
    """Python's threads, those of teams among them, which `threading` does not know."""
    return _thread._count()


def settled() -> int:
    """`n_threads` once those that are about to end have ended."""
    found = n_threads()
    time.sleep(0.1)
    return found if found == n_threads() else settled()


def come_to(n: int) -> bool:
    """Whether there are `n` threads within ten seconds."""
    end = time.monotonic() + 10
    while n_threads() != n and time.monotonic() < end:
        time.sleep(0.01)
    return n_threads() == n
