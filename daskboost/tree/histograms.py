"""Histograms of the nodes that a tree's split search has open, and of their parents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu import split as kernels
from daskboost.devices.cpu.histogram import LOW_HALF
from daskboost.dtypes import Int32, Int64


@dataclass(frozen=True)
class Stack:
    """Histograms of some open nodes, all of words or all of pairs (see `devices/cpu/histogram.py`)."""

    rows: Int64
    """Places of the nodes among the open nodes."""
    histograms: Int64
    """int64, shape (at least nodes, slots) or (at least nodes, slots, 2)."""
    places: Int64
    """Each node's place in `histograms`."""
    parents: Int64
    """Where nodes are yet to be computed, their parents' histograms; otherwise empty."""
    parent_places: Int64
    siblings: Int64
    """Histograms of the nodes' siblings."""
    sibling_places: Int64

    @property
    def arrays(self) -> tuple[Int64, Int64, Int64, Int64, Int64, Int64, Int64]:
        """The fields, as the kernels of `devices/cpu/split.py` take them."""
        return (
            self.histograms, self.places, self.parents, self.parent_places, self.siblings, self.sibling_places,
            self.rows,
        )  # fmt: skip

    def compute(self) -> None:
        """Compute what is yet to be."""
        for n in range(len(self.rows) if len(self.parents) else 0):
            kernels.subtract(
                self.parents[self.parent_places[n]], self.siblings[self.sibling_places[n]],
                self.histograms[self.places[n]],
            )  # fmt: skip


def _pairs(histograms: Int64) -> Int64:
    """Histograms of words as pairs; those of pairs as they are."""
    if histograms.ndim == 3:
        return histograms
    return np.stack([histograms >> 32, histograms & LOW_HALF], axis=2)


def joined(stacks: Sequence[Stack]) -> Int64:
    """The histograms of all open nodes in their order, in one array."""
    for stack in stacks:
        stack.compute()
    parts = [stack.histograms[stack.places] for stack in stacks]
    if len({part.ndim for part in parts}) > 1:
        parts = [_pairs(part) for part in parts]
    order = np.argsort(np.concatenate([stack.rows for stack in stacks]))
    return np.concatenate(parts)[order]


class Searched:
    """Histograms of searched nodes, until their children's are known."""

    def __init__(self) -> None:
        self._arrays: dict[int, Int64] = {}
        self._live: dict[int, int] = {}
        """Nodes that still need each array."""
        self._made = 0
        self._array_of: Int64 = np.full(64, -1, np.int64)
        self._place_of: Int64 = np.zeros(64, np.int64)

    def clear(self) -> None:
        self._arrays.clear()
        self._live.clear()

    def put(self, ids: Int32, histograms: Int64, places: Int64) -> None:
        """Keep `histograms[places]` for the nodes `ids`."""
        needed = int(ids.max()) + 1
        if needed > len(self._array_of):
            extra = np.full(max(needed, 2 * len(self._array_of)) - len(self._array_of), -1, np.int64)
            self._array_of, self._place_of = (np.concatenate([own, extra]) for own in (self._array_of, self._place_of))
        if self._arrays.get(self._made) is not histograms:  # stacks that share an array come one after the other
            self._made += 1
            self._arrays[self._made], self._live[self._made] = histograms, 0
        self._live[self._made] += len(ids)
        self._array_of[ids], self._place_of[ids] = self._made, places

    def by_form(self, ids: Int32) -> list[list[tuple[Int64, Int64, Int64]]]:
        """For each array that has some of the nodes: it, which of `ids` they are, and their places in it; arrays of
        words together, and arrays of pairs."""
        arrays = self._array_of[ids]
        found: dict[tuple[int, ...], list[tuple[Int64, Int64, Int64]]] = {}
        for key in sorted(set(arrays.tolist())):
            which, array = np.flatnonzero(arrays == key), self._arrays[key]
            found.setdefault(array.shape[1:], []).append((array, which, self._place_of[ids[which]]))
        return list(found.values())

    def drop(self, ids: Int32) -> None:
        """Forget nodes; an array goes with the last of its nodes."""
        for key, n in Counter(self._array_of[ids].tolist()).items():
            if key >= 0:
                self._live[key] -= n
                if self._live[key] == 0:
                    del self._arrays[key], self._live[key]
        self._array_of[ids] = -1
