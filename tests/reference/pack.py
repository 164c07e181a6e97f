"""Naive twin of unpacking: the words as one large integer."""

from __future__ import annotations

from daskboost.dtypes import UInt32


def symbol(words: UInt32, bit: int, width: int) -> int:
    """The `width` bits from `bit` on."""
    return int.from_bytes(words.astype("<u4").tobytes(), "little") >> bit & ((1 << width) - 1)
