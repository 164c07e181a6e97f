"""Symbols of dense rows in a GPU's memory, laid out as training views read them: quantizing writes that at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.feature_groups import padded_row_bytes
from daskboost.devices.gpu.runtime import DeviceArray, Runtime
from daskboost.dtypes import Int64


@dataclass(frozen=True)
class SymbolPlaces:
    """Where symbols lie in a flat array, for any number of rows: rows of features, padded to whole sectors."""

    n_features: int
    dtype: np.dtype[Any]
    """uint8 or uint16."""

    @property
    def columns(self) -> int:
        """Symbols from row to row."""
        return padded_row_bytes(self.n_features, self.dtype.itemsize) // self.dtype.itemsize

    def of(self, n_rows: int) -> Int64:
        """Place of each feature's first symbol, and the step from row to row; int64, shape (features, 2)."""
        return np.stack([np.arange(self.n_features), np.full(self.n_features, self.columns)], axis=1).astype(np.int64)

    def size(self, n_rows: int) -> int:
        """Symbols of so many rows, padding included."""
        return n_rows * self.columns


@dataclass(frozen=True, eq=False)
class DeviceSymbols:
    """Symbols of some rows; zeros in between."""

    places: SymbolPlaces
    n_rows: int
    flat: DeviceArray

    @classmethod
    def empty(cls, runtime: Runtime, places: SymbolPlaces, n_rows: int) -> DeviceSymbols:
        """Room for so many rows."""
        return cls(places, n_rows, runtime.xp.zeros(places.size(n_rows), places.dtype))

    def rows(self, begin: int, end: int) -> DeviceArray:
        """The symbols of some rows as a matrix, shape (rows, features)."""
        return self.flat.reshape(self.n_rows, self.places.columns)[begin:end, : self.places.n_features]
