"""Symbols of dense rows in a GPU's memory, laid out as training views read them: quantizing writes that at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.feature_groups import FeatureGroups, feature_groups
from daskboost.devices.gpu.runtime import DeviceArray, Runtime
from daskboost.dtypes import Int64


@dataclass(frozen=True, eq=False)
class SymbolPlaces:
    """Where symbols lie in a flat array, for any number of rows: planes of the widest feature groups first, so that all
    are aligned to their own rows."""

    groups: Sequence[FeatureGroups]
    n_features: int
    dtype: np.dtype[Any]
    """uint8 or uint16."""

    @classmethod
    def of_slots(cls, slots: Int64, dtype: np.dtype[Any], shared_bytes: int) -> SymbolPlaces:
        """For features with so many histogram slots each, on a device whose blocks have so much shared memory."""
        return cls(feature_groups(slots, dtype.itemsize, shared_bytes), len(slots), dtype)

    def agrees(self, other: SymbolPlaces) -> bool:
        """Whether symbols lie at the same places."""
        mine, others = ([(each.columns, each.groups.tolist()) for each in places.groups] for places in (self, other))
        return self.dtype == other.dtype and mine == others

    @property
    def columns(self) -> int:
        """Symbols per row, padding included."""
        return sum(each.n_planes * each.columns for each in self.groups)

    def of(self, n_rows: int) -> Int64:
        """Place of each feature's first symbol, and the step from row to row; int64, shape (features, 2)."""
        places, start = np.empty((self.n_features, 2), np.int64), 0
        for each in self.groups:
            for plane, first, n, _, _ in each.groups.tolist():
                places[first : first + n, 0] = start + plane * n_rows * each.columns + np.arange(n)
                places[first : first + n, 1] = each.columns
            start += each.n_planes * n_rows * each.columns
        return places

    def size(self, n_rows: int) -> int:
        """Symbols of so many rows, padding included."""
        return n_rows * self.columns


@dataclass(frozen=True, eq=False)
class DeviceSymbols:
    """Symbols of some rows; zeros in between."""

    runtime: Runtime
    places: SymbolPlaces
    n_rows: int
    flat: DeviceArray

    @classmethod
    def empty(cls, runtime: Runtime, places: SymbolPlaces, n_rows: int) -> DeviceSymbols:
        """Room for so many rows."""
        return cls(runtime, places, n_rows, runtime.xp.zeros(places.size(n_rows), places.dtype))

    @property
    def planes(self) -> list[DeviceArray]:
        """Return the planes of each kind of groups; shape (planes, rows, columns)."""
        found, start = [], 0
        for each in self.places.groups:
            end = start + each.n_planes * self.n_rows * each.columns
            found.append(self.flat[start:end].reshape(each.n_planes, self.n_rows, each.columns))
            start = end
        return found

    def blocks(self) -> Iterator[tuple[slice, DeviceArray]]:
        """Neighbouring features, and their symbols; shape (rows, features)."""
        for each, planes in zip(self.places.groups, self.planes, strict=True):
            for plane, first, n, low, _ in each.groups.tolist():
                if low == 0:  # further groups of the same features have other bins
                    yield slice(first, first + n), planes[plane, :, :n]

    def put(self, begin: int, symbols: DeviceArray) -> None:
        """Take a matrix of rows, shape (rows, features), from row `begin` on."""
        for features, block in self.blocks():
            block[begin : begin + len(symbols)] = symbols[:, features]

    def rows(self, begin: int, end: int) -> DeviceArray:
        """A copy of some rows, as a matrix of shape (rows, features)."""
        found = self.runtime.xp.empty((end - begin, self.places.n_features), self.places.dtype)
        for features, block in self.blocks():
            found[:, features] = block[begin:end]
        result: DeviceArray = found
        return result

    def by_feature(self) -> DeviceArray:
        """A copy of all rows, shape (features, rows)."""
        found = self.runtime.xp.empty((self.places.n_features, self.n_rows), self.places.dtype)
        for features, block in self.blocks():
            found[features] = block.T
        result: DeviceArray = found
        return result
