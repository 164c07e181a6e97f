"""Histograms in half the bytes, for the wire."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Int32, Int64


@njit(cache=True, nogil=True)
def narrow_into(sums: Int64, out: Int32) -> bool:
    """Copy flat int64 sums to int32; False, with `out` unfinished, at the first one that does not fit."""
    for i in range(len(sums)):
        value = sums[i]
        small = np.int32(value)
        if np.int64(small) != value:
            return False
        out[i] = small
    return True
