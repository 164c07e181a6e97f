"""A plugin of pytest for memcheck: every array is an allocation of its own.

A pool's blocks are pieces of few large allocations, and memcheck would not see what is read or written beyond one.
Tests that give a fit a pool of its own, to see how much it takes, keep it.
"""

from __future__ import annotations

import importlib.util


def pytest_configure() -> None:
    if importlib.util.find_spec("cupy") is not None:  # else no test of a GPU runs
        import cupy

        cupy.cuda.set_allocator(None)
