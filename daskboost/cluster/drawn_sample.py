"""The sample that certified trees grow on: a share of the rows, drawn anew for every round (`certified.py`).

A row is of it if its hash says so, of the round and its global id, so that samples are the same rows whatever chunks,
workers and tiers hold them. They are copied out of the chunks while these have their turn in a pass, with the margins
that they have then: no chunk has to come for the sample's sake.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from daskboost.cluster.engine import EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.row_groups import RowGroup
from daskboost.cluster.shard_margins import ShardMargins, has_room
from daskboost.cluster.streamed_rows import HeldEngine, TakenRows
from daskboost.data.chunk import ChunkRows
from daskboost.devices.cpu.memory import sample_rows
from daskboost.devices.cpu.sampling import draw_share
from daskboost.devices.device import Array, CertifyingDevice, Device, View
from daskboost.dtypes import UInt32

DRAWN_ROWS = 2**18
"""Rows that one thread draws from at a time: a third of a millisecond."""


class DrawnRows:
    """Rows of the sample to come: bins, ids, margins, labels and weights, in memory that is used again.

    Parameters
    ----------
    of : ShardMargins
        All rows.
    labels, weights : sequence of arrays
        Of each group, on the device.
    device : CertifyingDevice
    share : float
        Of the rows, on average.
    column_bytes : int
        Room for column-major copies, see `Device.column_room`.
    """

    def __init__(self, of: ShardMargins, labels: Sequence[Array], weights: Sequence[Array | None],
                 device: CertifyingDevice, share: float, column_bytes: int) -> None:  # fmt: skip
        self._of, self._labels, self._weights, self._device = of, labels, weights, device
        self._below = np.uint64(math.ceil(share * 2**32))
        self._expected = sample_rows(share, sum(map(len, of.margins)))
        copies_columns = has_room(device.column_room(column_bytes), of.shard.layout, self._expected)
        self._room = device.row_room(self._expected, copies_columns=copies_columns)
        self._arrays: dict[str, Array] = {}
        self.start(0)

    def start(self, key: int) -> None:
        """Begin the sample that has this key; that of the time before is gone."""
        self._key, self.n_rows = np.uint64(key), 0
        self._room.clear()

    def add(self, index: int, view: View) -> None:
        """Take the sample's rows of a group, of which the view is not needed afterwards."""
        parts = self._draw(self._of.groups[index])
        rows = np.concatenate([np.empty(0, np.uint32), *(part for _, part in parts)])
        if not len(rows):
            return
        xp, begin, end = self._device.xp, self.n_rows, self.n_rows + len(rows)
        own = self._device.put(rows)
        self._room.add(view, own)
        arrays = {name: array[begin:end] for name, array in self._reserved(end).items()}
        at = 0
        for shift, stretches in itertools.groupby(parts, key=lambda part: part[0]):
            chunk = slice(at, at + sum(len(part) for _, part in stretches))
            xp.add(own[chunk], np.int64(shift), out=arrays["ids"][chunk], dtype=np.int64)
            at = chunk.stop
        for name, values in self._columns(index).items():
            arrays[name][:] = values[own]
        self.n_rows = end

    def _draw(self, group: RowGroup) -> list[tuple[int, UInt32]]:
        """Numbers of the sample's rows in a group, stretch by stretch, and what makes ids of them."""
        jobs = [
            (first_row - part.start, begin, min(begin + DRAWN_ROWS, part.stop))
            for part, first_row in group.parts() for begin in range(part.start, part.stop, DRAWN_ROWS)
        ]  # fmt: skip
        found = self._device.threads.run([partial(self._drawn, *job) for job in jobs])
        return [(shift, rows) for rows, (shift, _, _) in zip(found, jobs, strict=True)]

    def _drawn(self, shift: int, begin: int, end: int) -> UInt32:
        rows = np.empty(end - begin, np.uint32)
        return rows[: draw_share(self._key, self._below, np.int64(shift), begin, end, rows)].copy()

    def _columns(self, index: int) -> dict[str, Array]:
        """What goes with a group's rows, as it is at its turn."""
        found = {"margin": self._of.margins[index], "label": self._labels[index], "weight": self._weights[index]}
        return {name: values for name, values in found.items() if values is not None}

    def _reserved(self, n_rows: int) -> dict[str, Array]:
        """Arrays of so many rows at least, the first of which are those that are there."""
        if not self._arrays or len(self._arrays["ids"]) < n_rows:
            xp, old = self._device.xp, self._arrays
            most = max(n_rows, len(old["ids"]) * 9 // 8 if old else self._expected)
            made = {"ids": xp.empty(most, np.int64)}
            for name, values in self._columns(0).items():
                made[name] = xp.empty((most, *values.shape[1:]), np.float32)
            for name, array in old.items():
                made[name][: self.n_rows] = array[: self.n_rows]
            self._arrays = made
        return self._arrays

    def taken(self) -> TakenRows:
        """The rows that are there, as a shard."""
        if not self.n_rows:
            return TakenRows(self._of)
        arrays = {name: array[: self.n_rows] for name, array in self._arrays.items()}
        rows = ChunkRows(arrays["label"], arrays.get("weight"))
        group = RowGroup(range(0), self.n_rows, arrays["ids"].view(np.uint64), rows)
        room_rows = len(self._arrays["ids"])
        return TakenRows(self._of, group, self._room.view(), arrays["margin"], room_rows)


class DrawnSample(HeldEngine):
    """The engine of the sample, which computes gradients as that of all rows does."""

    def __init__(self, setup: EngineSetup, of: ShardMargins, device: Device, peers: Peers | None) -> None:
        super().__init__(replace(setup, metrics=()), TakenRows(of), [], device, peers)

    def hold(self, rows: TakenRows) -> None:
        if self._gradients and len(self._gradients[0][0]) < rows.room_rows:  # which has grown
            self._gradients = []
        super().hold(rows)
        self.losses = self._make_losses()
