"""Gradients of whole queries by a user's function, on the host, whatever the device."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu.queries import Queries
from daskboost.devices.losses import OwnLoss
from daskboost.devices.protocols import Device
from daskboost.dtypes import Array, Float64, Int64


class OwnLossFilling:
    """Fills the gradients of queries that a function gives: the `QueryFilling` of an `OwnLoss`.

    Parameters
    ----------
    loss : OwnLoss
    queries : Queries
        On the host.
    device : Device
        Has margins and gradients.
    """

    def __init__(self, loss: OwnLoss, queries: Queries, device: Device) -> None:
        self._loss, self._queries, self._device = loss, queries, device
        self._sizes: Int64 = np.diff(queries.begins)
        self._factors: Float64 = np.repeat(queries.factor, self._sizes)
        self._places: Array = device.xp.asarray(queries.order)
        for given in (queries.label, self._sizes):  # a function that changes them would change later rounds
            given.flags.writeable = False

    def fill(self, key: np.uint64, margin: Array, g: Array, h: Array) -> None:
        """Fill `g` and `h` of all rows of queries, float32 of shape (rows,); `key` is not read."""
        if not len(self._sizes):
            return
        scores = self._device.fetch(margin)[self._queries.order]
        found = self._loss.function(self._queries.label, scores, self._sizes)
        for values, out in zip(found, (g, h), strict=True):
            with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
                weighted = (values * self._factors).astype(np.float32)
            out[self._places] = self._device.put(weighted)
