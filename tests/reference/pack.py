"""Naive twin of unpacking: the words as one large integer."""

from __future__ import annotations

import numpy as np

from daskboost.data.chunks.packing import DenseLayout
from daskboost.dtypes import Int64, UInt32


def bit_offsets(layout: DenseLayout) -> Int64:
    """Return the first bit of each feature within its row, and the bits of a row; int64, shape (features + 1,)."""
    return np.concatenate([[0], np.cumsum(layout.bits, dtype=np.int64)]).astype(np.int64)


def symbol(words: UInt32, bit: int, width: int) -> int:
    """The `width` bits from `bit` on."""
    return int.from_bytes(words.astype("<u4").tobytes(), "little") >> bit & ((1 << width) - 1)
