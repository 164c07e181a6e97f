"""CuPy's memory pool without a GPU: what it takes for arrays that come and go, by the same rules.

As `cupy/cuda/memory.pyx`: sizes are multiples of 512 bytes, the smallest free piece that is large enough is cut, a free
piece joins free neighbours of the same allocation, and nothing is given back.
"""

from __future__ import annotations

import bisect

UNIT_BYTES = 512


class Piece:
    """A part of an allocation."""

    def __init__(self, n_bytes: int, before: Piece | None = None, after: Piece | None = None) -> None:
        self.n_bytes, self.before, self.after = n_bytes, before, after
        self.is_free = False

    def cut(self, n_bytes: int) -> Piece:
        """Keep so many bytes; the rest."""
        rest = Piece(self.n_bytes - n_bytes, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.n_bytes, self.after = n_bytes, rest
        return rest

    def absorb_next(self) -> None:
        assert self.after is not None
        self.n_bytes, self.after = self.n_bytes + self.after.n_bytes, self.after.after
        if self.after is not None:
            self.after.before = self


class Pool:
    """Pieces in use and free ones."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """What it has asked the driver for."""
        self._free: list[Piece] = []

    def take(self, n_bytes: int) -> Piece:
        """A piece of at least so many bytes."""
        n_bytes = -(-n_bytes // UNIT_BYTES) * UNIT_BYTES
        place = bisect.bisect_left(self._free, n_bytes, key=lambda piece: piece.n_bytes)
        if place == len(self._free):
            self.total_bytes += n_bytes
            return Piece(n_bytes)
        piece = self._free.pop(place)
        piece.is_free = False
        if piece.n_bytes > n_bytes:
            self._keep(piece.cut(n_bytes))
        return piece

    def give(self, piece: Piece) -> None:
        """It is free again."""
        if piece.after is not None and piece.after.is_free:
            self._free.remove(piece.after)
            piece.absorb_next()
        if piece.before is not None and piece.before.is_free:
            piece = piece.before
            self._free.remove(piece)
            piece.absorb_next()
        self._keep(piece)

    def _keep(self, piece: Piece) -> None:
        piece.is_free = True
        bisect.insort(self._free, piece, key=lambda each: each.n_bytes)
