"""Naive twin of histograms: one row and one feature at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Int64


def histogram(symbols: Any, rows: Sequence[int], g: Any, h: Any, layout: SlotLayout, missing: bool) -> Int64:
    """Sums of `g[i]` and `h[i]` over `rows[i]`; int64, shape (slots, 2).

    `symbols` : shape (rows, features), `n_bins[f]` where missing. `missing` : whether missing values are counted,
    in the slot behind the feature's bins (dense chunks do, CSR chunks do not).
    """
    out = np.zeros((layout.n_slots, 2), np.int64)
    for i, row in enumerate(rows):
        for feature, n_bins in enumerate(layout.n_bins):
            symbol = symbols[row, feature]
            if symbol < n_bins or missing:
                out[layout.offsets[feature] + symbol] += (g[i], h[i])
    return out
