"""Naive twin of putting rows in the order of leaves."""

from __future__ import annotations

from collections.abc import Sequence

from daskboost.devices.cpu.rows import Pieces


def leaf_order(segments: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """Return the rows of all leaves, by the places where their segments begin within their half."""
    return [row for _, rows in sorted(segments) for row in rows]


def global_id(pieces: Pieces, row: int) -> int:
    """Return the global id of a row; `pieces` : of (first row, its id), or all ids."""
    if not isinstance(pieces, Sequence):
        return int(pieces[row])
    begin, first = max(piece for piece in pieces if piece[0] <= row)
    return first + row - begin
