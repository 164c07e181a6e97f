"""Samples that trees grow on: rows taken of chunks with what they have, all with one probability or by their gradients.

The latter is minimal-variance sampling; here is what is known of the norms of rows' gradients, on every device.

Ibragimov and Gusev, "Minimal Variance Sampling in Stochastic Gradient Boosting", NeurIPS 2019: a row is kept with
probability p = min(1, norm / threshold), norm = sqrt(sum over outputs of g**2 + lambda h**2), and its gradients are
multiplied by 1 / p, so that sums over rows keep their expectation. Of all samples of that size in expectation, theirs
vary least in the gains of splits. Where splits are scored by weights, these take the place of h.

Norms are float64, in which squares of float32 neither overflow nor underflow, and every step of p is one that IEEE 754
rounds alike everywhere. They are counted in cells, by exponent and leading bits: integers that no order, chunk or
worker changes, from which the threshold follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.dtypes import Array, Float32, Float64

if TYPE_CHECKING:
    from daskboost.devices.cpu.rows import Pieces

NORM_LAMBDA = 0.1
"""Lambda of the norm: what XGBoost has, and CatBoost's `mvs_reg`, for any objective."""
CELL_BITS = 6
"""Leading bits after the first by which norms are told apart: cells are at most 1.6 % wide."""
LEAST_EXPONENT = -128
"""Norms below 2**-128 count as that large, those from 2**128 on as the largest."""
N_CELLS = 256 << CELL_BITS
FIRST_CELL = (1023 + LEAST_EXPONENT) << CELL_BITS
"""Leading bits of a float64 that are those of the first cell."""
MOST_CANDIDATES = 2
"""So many times the rows of a sample may be candidates: memory is planned for it."""
SLACK_ROWS = 1_000
"""Candidates beyond the expected ones, so that chance may not bring small data another pass."""


def cell_norms() -> Float64:
    """The norm in the middle of each cell; float64, shape (N_CELLS,), increasing."""
    cells = np.arange(N_CELLS)
    exponent, leading = cells >> CELL_BITS, cells & ((1 << CELL_BITS) - 1)
    return np.asarray(np.ldexp(1 + (leading + 0.5) / (1 << CELL_BITS), exponent + LEAST_EXPONENT), np.float64)


def most_drawn(share: float, n_rows: int) -> int:
    """Most rows that a round draws of so many, on average the `share` of them: a norm is counted as the middle of its
    cell, which is off by 1/128 at most, and chance adds more only once in ten thousand rounds."""
    chance = 4 * math.sqrt(share * (1 - share) * n_rows)
    return min(n_rows, math.ceil(share * n_rows * (1 + 1 / (2 << CELL_BITS)) + chance))


def most_candidates(share: float, n_rows: int) -> int:
    """Most rows among which they are looked for (`fit/samplers.py`)."""
    return min(n_rows, MOST_CANDIDATES * most_drawn(share, n_rows) + SLACK_ROWS)


@dataclass(frozen=True)
class TurnRows:
    """What the rows of a chunk have at its turn in a pass; arrays of the device."""

    index: int
    """Place of the chunk."""
    margin: Float32
    """float32, shape (rows, outputs)."""
    label: Float32
    """float32, shape (rows,)."""
    weight: Float32 | None
    """float32, shape (rows,); None for ones."""
    pieces: Pieces
    """Global ids, `Pieces`."""


@dataclass(frozen=True)
class RowsToDraw(TurnRows):
    """Rows of a turn with what they are drawn by."""

    gradients: Any
    """g and h, weighted: float32, shape (rows, outputs); or what a kernel makes the first output's of."""
    searched: Float32 | None
    """What takes the place of h in norms: float32, shape (rows,); None for h."""


@dataclass(frozen=True)
class TakenSample:
    """Rows that trees grow on; arrays of the device, of shape (rows, ...)."""

    n_rows: int
    view: Any
    """View of the rows alone; it may have room for more."""
    ids: Array
    """Global ones: uint64, of a GPU int64."""
    margin: Float32
    label: Float32
    weight: Float32 | None
    """None for ones."""
    room_rows: int = 0
    """Rows that memory is taken for at once, so that samples of about as many take the same."""


@dataclass(frozen=True, kw_only=True)
class Sample(TakenSample):
    """Rows that were drawn by their gradients, with what stands for all rows: weights, of rows without them that of 1,
    are divided by the share of like rows that were drawn."""

    g: Float32
    h: Float32
    """float32, of all outputs, divided likewise."""


@dataclass(frozen=True)
class UniformSize:
    """What is known of a sample of which each row is with the same probability, before there are rows."""

    share: float
    """The probability."""
    n_outputs: int
    has_weight: bool
    n_rows: int
    """Expected of all chunks; memory grows where that is not enough."""
    turn_rows: int
    """Expected of the largest chunk, likewise."""


def draws_below(share: float) -> int:
    """A row is of such a sample if its draw, of 32 bits, is less; 2**32 keeps all."""
    return math.ceil(share * 2**32)
