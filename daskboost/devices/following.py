"""The root of the tree that follows, built in the pass over streamed chunks in which a tree is finished.

A tree's last pass takes rows to their leaves, and with that margins are final and gradients known: all that the next
root is made of, while the chunk is there. But for one thing: the scale that gradients are rounded by follows from the
range over all rows. It is a power of two, though, and nearly always the one of the tree before; where it is not, the
root is thrown away and built in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from daskboost.dtypes import Array

if TYPE_CHECKING:
    from daskboost.devices.cpu.rows import Rounding


@dataclass(frozen=True)
class Following:
    """The tree that is expected after the one that is finished."""

    gradient: Callable[[int], Any]
    """Gradients as `Rows.start_tree` takes them; asked for a chunk whose margins have the finished tree."""
    rounding: Rounding


@dataclass(frozen=True)
class Root:
    """The root of a tree that was started in another one's last pass; the rows are in it."""

    sums: tuple[int, int]
    histograms: Array
    """What `Rows.grow` would give."""
