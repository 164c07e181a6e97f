"""The sample that certified trees grow on: a share of the rows, drawn anew for every round (`certified.py`).

A row is of it if its hash says so, of the round and its global id, so that samples are the same rows whatever chunks,
workers and tiers hold them. They are copied out of the chunks while these have their turn in a pass, with the margins
that they have then: no chunk has to come for the sample's sake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daskboost.cluster.engine import EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.shard_margins import ShardMargins, has_room
from daskboost.cluster.streamed_rows import HeldEngine, TakenRows
from daskboost.devices.cpu.memory import sample_rows
from daskboost.devices.device import Array, CertifyingDevice, Device, View
from daskboost.devices.sampling import TurnRows, UniformSize


class DrawnRows:
    """Rows of the sample to come, out of those of a shard.

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
        self._of, self._labels, self._weights = of, labels, weights
        n_rows = [len(margin) for margin in of.margins]
        expected, of_turn = (sample_rows(share, n) for n in (sum(n_rows), max(n_rows, default=0)))
        has_weight = bool(weights) and all(weight is not None for weight in weights)
        copies_columns = has_room(device.column_room(column_bytes), of.shard.layout, expected)
        size = UniformSize(share, of.n_outputs, has_weight, expected, of_turn)
        self._sample = device.uniform_sample(size, copies_columns=copies_columns)

    def start(self, key: int) -> None:
        """Begin the sample that has this key; that of the time before is gone."""
        self._sample.start(key)

    def add(self, index: int, view: View) -> None:
        """Take the sample's rows of a group, of which the view is not needed afterwards."""
        own = self._of.margins[index], self._labels[index], self._weights[index]
        self._sample.add(view, TurnRows(index, *own, self._of.groups[index].pieces))

    def taken(self) -> TakenRows:
        """The rows that are there, as a shard."""
        return TakenRows.of_sample(self._of, self._sample.taken())


class DrawnSample(HeldEngine):
    """The engine of the sample, which computes gradients as that of all rows does."""

    def __init__(self, setup: EngineSetup, of: ShardMargins, device: Device, peers: Peers | None) -> None:
        super().__init__(replace(setup, metrics=()), TakenRows(of), [], device, peers)

    def hold(self, rows: TakenRows) -> None:
        if self._gradients and len(self._gradients[0][0]) < rows.room_rows:  # which has grown
            self._gradients = []
        super().hold(rows)
        self.losses = self._make_losses()
