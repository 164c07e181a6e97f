"""Rows that kernels choose out of chunks, and what goes with them, in memory that is used again from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.gradients import BLOCKS_PER_MULTIPROCESSOR
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_host
from daskboost.devices.gpu.taken_rows import RoomSize, RowRoom, grown
from daskboost.devices.gpu.views import DeviceLayout

ColumnTypes = Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]
"""Type of each array, and the shape of what a row has of it."""


class RowColumns:
    """Bins of rows and arrays beside them.

    Parameters
    ----------
    layout : DeviceLayout
    size : RoomSize
    columns : ColumnTypes
    """

    def __init__(self, layout: DeviceLayout, size: RoomSize, columns: ColumnTypes) -> None:
        self.rows, self._runtime, self._expected = RowRoom(layout, size), layout.runtime, size.n_rows
        self._columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            name: (np.dtype(dtype), shape) for name, (dtype, shape) in columns.items()
        }
        self._arrays: dict[str, DeviceArray] = {}
        """Arrays of the columns that memory was taken for."""

    @property
    def room_rows(self) -> int:
        """Rows that there is memory for."""
        return len(self._arrays["ids"]) if "ids" in self._arrays else 0

    def behind(self, n_rows: int) -> dict[str, DeviceArray]:
        """Arrays of so many rows behind those that are there."""
        begin = self.rows.n_rows
        end = begin + n_rows
        for name, (dtype, shape) in self._columns.items():
            self._arrays[name] = grown(self._runtime, self._arrays.get(name), begin, end, self._expected, shape, dtype)
        return {name: array[begin:end] for name, array in self._arrays.items()}

    def there(self) -> dict[str, DeviceArray]:
        """Arrays of the rows that are there."""
        return {name: array[: self.rows.n_rows] for name, array in self._arrays.items()}


class Choice:
    """Numbers of rows that a kernel's blocks choose, each behind those of the blocks before.

    Parameters
    ----------
    runtime : Runtime
    expected : int
        Rows that are chosen at a time; memory grows where that is not enough.
    """

    def __init__(self, runtime: Runtime, expected: int) -> None:
        self._runtime, self._expected = runtime, expected
        self.counts = runtime.xp.empty(BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors, np.uint32)
        """Rows that each block chooses."""
        self._numbers: DeviceArray | None = None

    def counted(self, blocks: int) -> int:
        """The sum of the blocks' counts; waits."""
        return int(to_host(self.counts[:blocks]).sum(dtype=np.int64))

    def room(self, n_rows: int) -> DeviceArray:
        """For numbers of so many rows; uint32, until the next time."""
        self._numbers = grown(self._runtime, self._numbers, 0, n_rows, self._expected, (), np.dtype(np.uint32))
        return self._numbers[:n_rows]
