"""Large arrays used again: the memory of a level's histograms would otherwise be fetched from the operating system,
page by page, at every level of every tree (a quarter of the time of small fits).
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

KEPT = 8
"""Buffers kept for reuse; a level needs two or three, and the level above as many until it is split."""
SMALL_BYTES = 2**16
"""Below this the allocator reuses memory by itself."""
ALIGNMENT = 64
"""A cache line."""
_ONLY_KEPT = 2  # references to a buffer that nobody uses: the list's and the argument of getrefcount


class Buffers:
    """Hands out arrays, from memory whose earlier users are gone.

    A buffer is free when no array refers to it any more; nobody gives anything back by hand. Thread safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: list[npt.NDArray[np.uint8]] = []
        self._starts: list[int] = []
        """First aligned byte of each; asking an array for its address takes longer than all the rest here."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """An array with any content, C-contiguous and aligned to cache lines."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if n_bytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            place = self._smallest_free(n_bytes + ALIGNMENT)
            if place is None:
                self._keep(np.empty(n_bytes + ALIGNMENT, np.uint8))
                place = len(self._owners) - 1
            start = self._starts[place]
            return self._owners[place][start : start + n_bytes].view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """An array of zeros."""
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def clear(self) -> None:
        """Forget all buffers; arrays in use keep theirs."""
        with self._lock:
            self._owners.clear()
            self._starts.clear()

    def _smallest_free(self, n_bytes: int) -> int | None:
        found, least = None, sys.maxsize
        for i in range(len(self._owners)):  # a loop over the owners would hold a reference to each
            size = len(self._owners[i])
            if n_bytes <= size < least and self._is_free(i):
                found, least = i, size
        return found

    def _keep(self, owner: npt.NDArray[np.uint8]) -> None:
        free = [i for i in range(len(self._owners)) if self._is_free(i)]
        if len(self._owners) >= KEPT and free:
            smallest = min(free, key=lambda i: len(self._owners[i]))
            del self._owners[smallest], self._starts[smallest]
        self._owners.append(owner)
        self._starts.append(-owner.ctypes.data % ALIGNMENT)

    def _is_free(self, place: int) -> bool:
        return sys.getrefcount(self._owners[place]) <= _ONLY_KEPT
