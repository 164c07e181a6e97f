"""Naive twin of the order in which lanes add columns of rows in sequence, and of the copy that has it."""

from __future__ import annotations

from typing import Any

import numpy as np

LANES = 32


def cell(lane: int, step: int) -> int:
    """Of 64 cells of a bin, the one that a lane adds to at a step; the banks of 32 follow one another twice."""
    word, byte = lane // 4 + step // 4, (lane + step) % 4
    return 4 * word + byte


def column(lane: int, step: int, columns: int) -> int:
    """Whose sum the cell has."""
    return cell(lane, step) % columns


def turned(rows: Any, columns: int) -> Any:
    """The copy of rows of 32 symbols; uint8, shape (tiles, columns / 4, 32 lanes, 4)."""
    tiles = -(-len(rows) // LANES)
    out = np.zeros((tiles, columns // 4, LANES, 4), np.uint8)
    for row, symbols in enumerate(rows):
        tile, lane = divmod(row, LANES)
        for step in range(columns):
            out[tile, step // 4, lane, step % 4] = symbols[column(lane, step, columns)]
    return out
