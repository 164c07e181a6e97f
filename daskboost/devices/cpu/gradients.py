"""Gradients become integers: global scale, rounding, row sampling.

Large data: a row's pair travels as one int32: g (signed, 16 bits) above h (15 bits, never negative). Rounding is
stochastic, so that sums stay unbiased where single gradients are far below one quantum (nearest rounding would wipe
out the many tiny gradients of an imbalanced data set); the random bits are a hash of the global row id.

Small data (`SMALL_ROWS` in `devices/budget/plan.py`): one int64, int32 each, of which the scale uses as many bits as
keep the sums of all rows within int32. So fine a quantum needs no chance to be unbiased: rounding is to nearest, and
comes before the weight multiplies. A row of weight 3 so gives exactly the sums of three equal rows of weight 1, hence
the same trees: weights count rows, to the last bit, as scikit-learn's checks ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit
from daskboost.devices.row_order import RowOrder
from daskboost.dtypes import Float32, Float64, Int32, Int64, Pairs, UInt32, UInt64

# Counting residuals by the bits of their sortable keys: one round of a distributed radix selection.

DIGITS = (11, 11, 10)
"""Bits of each round, which find a float32 exactly."""


@dataclass(frozen=True)
class ResidualQuery:
    """What is asked of the residuals `label - margin` of leaves: how many, by weight, share a prefix of their keys and
    have each next digit."""

    leaves: Int32
    """Nodes of the current tree, or (-1,) for all rows."""
    prefixes: UInt32
    """The leading bits found so far, one row per quantile; uint32, shape (leaves,)."""
    known_bits: int
    next_bits: int
    weight_scale: float
    """Power of two that makes weights integers."""


class Residuals(NamedTuple):
    """What a chunk's residuals are computed from."""

    label: Float32
    margin: Float32
    """Shape (rows,), any stride."""
    weight: Float32
    """Shape (rows,), or (0,) for ones."""
    weight_scale: float
    """Power of two that makes weights integers."""


@njit(inline="always")
def sortable_key(bits: np.uint32) -> np.uint32:
    """Order-preserving key of a float32's bits."""
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


@njit(inline="always")
def value_of_key(key: np.uint32) -> np.float32:
    """Return the float32 whose bits have this `sortable_key`."""
    bits = key & np.uint32(0x7FFFFFFF) if key >> np.uint32(31) else ~key
    return np.uint32(bits).view(np.float32)


@njit(inline="always")
def next_digit(counts: Int64, below: np.int64, target: np.int64) -> tuple[np.int64, np.int64]:
    """Return the digit at which so much weight is reached, and the weight below it; `below` is that below all."""
    last = len(counts) - 1
    for digit in range(last):
        if below + counts[digit] >= target:
            return np.int64(digit), below
        below += counts[digit]
    return np.int64(last), below


@njit(cache=True, nogil=True)
def count_residuals(
    residuals: Residuals, rows: UInt32, prefix: np.uint32, known_bits: int, next_bits: int, counts: Int64
) -> None:
    """Add the integer weights of `rows` whose residual's key starts with `prefix` to `counts`, by the next digit.

    `counts` : int64, shape (2**next_bits,).
    """
    label, margin, weight, weight_scale = residuals.label, residuals.margin, residuals.weight, residuals.weight_scale
    weighted = len(weight) > 0
    shift = np.uint32(32 - known_bits - next_bits)
    mask = np.uint32((1 << next_bits) - 1)
    for i in range(len(rows)):
        row = rows[i]
        residual = np.float32((label[row] - margin[row]) + np.float32(0))  # -0 becomes 0
        key = sortable_key(residual.view(np.uint32))
        if known_bits > 0 and (key >> np.uint32(32 - known_bits)) != prefix:
            continue
        amount = np.int64(np.rint(np.float64(weight[row]) * weight_scale)) if weighted else np.int64(1)
        counts[np.int64((key >> shift) & mask)] += amount


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def _mix(z: np.uint64) -> np.uint64:
    """`hashing.mix` of one integer."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def row_bits(key: np.uint64, row: np.uint64) -> np.uint64:
    """64 random bits of a row: `hashing.draws` for one id."""
    bits: np.uint64 = _mix(np.uint64(key + row * _GOLDEN))
    return bits


@njit(inline="always")
def tree_key(state: np.uint64, iteration: int, output: int) -> np.uint64:
    """Return the `hashing.key` of what has this `key_state`, of one tree."""
    state = _mix(state + _GOLDEN + np.uint64(iteration))
    key: np.uint64 = _mix(_mix(state + _GOLDEN + np.uint64(output)))
    return key


def global_id(first_row: int | np.int64 | UInt64, row: int) -> np.uint64:
    """The global id of a row: `first_row + row`, or `first_row[row]` where ids are not consecutive."""
    raise NotImplementedError("for compiled code only")


@overload(global_id, inline="always", strict=False)  # strict also compares type hints
def _typed_global_id(first_row: types.Type, row: types.Type) -> Callable[[Any, int], np.uint64]:
    if isinstance(first_row, types.Array):
        return lambda first_row, row: np.uint64(first_row[row])
    return lambda first_row, row: np.uint64(first_row + row)


class Gradients(NamedTuple):
    """Gradients of a chunk's rows: of one output, shape (rows,), any stride, or of several, shape (rows, outputs)."""

    g: Float32
    h: Float32
    weight: Float32 | None
    """Shape (rows,), for small data; None for large, whose `g` and `h` contain it."""


class Quanta(NamedTuple):
    """How gradients of one output become integers."""

    scale_g: float
    """Power of two that gradients are multiplied by."""
    scale_h: float
    """Power of two that hessians are multiplied by."""
    scale_w: float
    """Power of two that weights of small data are multiplied by."""
    round_key: np.uint64
    """Hash key of the stochastic rounding."""


class OutputQuanta(NamedTuple):
    """The `Quanta` of several outputs; arrays of shape (outputs,)."""

    scale_g: Float64
    scale_h: Float64
    scale_w: float
    round_key: UInt64


EACH_ROW: UInt64 = np.empty(0, np.uint64)
"""`RowDraw.codes` where each row is drawn by itself."""


class RowDraw(NamedTuple):
    """Rows, or queries, that are drawn with the same probability: those whose 32 random bits are less than `below`."""

    key: np.uint64
    below: np.uint64
    """2**32 keeps all."""
    codes: UInt64 = EACH_ROW
    """Codes of the queries of the chunk's rows, shape (rows,), by which bits are hashed, so that rows of a query are
    drawn together; `EACH_ROW` hashes global ids."""


class RowRange(NamedTuple):
    """Rows `[begin, end)` of a chunk: what one thread works on."""

    begin: int
    end: int
    first_row: int | UInt64
    """The global id that row 0 of the chunk would have, or the ids of all of its rows."""


def _weight_of(weight: Float32 | None, row: int) -> float | None:
    """Return a row's weight, or None where there are none."""
    raise NotImplementedError("for compiled code only")


@overload(_weight_of, inline="always", strict=False)
def _typed_weight_of(weight: types.Type, row: types.Type) -> Callable[[Float32, int], float | None]:
    if isinstance(weight, types.Array):
        return lambda weight, row: weight[row]
    return lambda weight, row: None


@njit(nogil=True)
def _quantized(g: float, h: float, weight: float | None, row: np.uint64, quanta: Quanta) -> tuple[np.int64, np.int64]:
    """The integers of one gradient and hessian; `row` is the global id."""
    if weight is None:
        unit = 1.0 / 4294967296.0
        bits = row_bits(quanta.round_key, row)
        high = np.float64(bits >> np.uint64(32)) * unit
        low = np.float64(bits & np.uint64(0xFFFFFFFF)) * unit
        return (
            np.int64(np.floor(np.float64(g) * quanta.scale_g + high)),
            np.int64(np.floor(np.float64(h) * quanta.scale_h + low)),
        )
    times = np.float64(weight) * quanta.scale_w
    return (
        np.int64(np.rint(np.rint(np.float64(g) * quanta.scale_g) * times)),
        np.int64(np.rint(np.rint(np.float64(h) * quanta.scale_h) * times)),
    )


@njit(inline="always")
def _quanta_of(quanta: OutputQuanta, k: int) -> Quanta:
    """Return those of one of several outputs."""
    return Quanta(quanta.scale_g[k], quanta.scale_h[k], quanta.scale_w, quanta.round_key[k])


@njit(inline="always")
def _is_drawn(draw: RowDraw, row: int, global_row: np.uint64) -> bool:
    """Whether a row of a chunk, which has this global id, is."""
    if draw.below >= np.uint64(4294967296):
        return True
    unit = draw.codes[row] if len(draw.codes) > 0 else global_row
    return bool((row_bits(draw.key, unit) >> np.uint64(32)) < draw.below)


@njit(inline="always")
def _half_bits(pairs: Pairs) -> np.int64:
    """Return the bits below g in a pair."""
    return np.int64(4 * pairs.itemsize)


@njit(cache=True, nogil=True)
def quantize_gradients(
    gradients: Gradients, quanta: Quanta, draw: RowDraw, rows: RowRange, into: RowOrder
) -> tuple[int, int, int]:
    """Quantize the drawn rows of a range, of one output, into the range's place in `into`, side by side.

    Returns the number of drawn rows and their integer sums of g and h.
    """
    g, h, weight, order, pairs = gradients.g, gradients.h, gradients.weight, into.order, into.pairs
    first_row, kept, half = rows.first_row, rows.begin, _half_bits(pairs)
    sum_g = np.int64(0)
    sum_h = np.int64(0)
    for row in range(rows.begin, rows.end):
        global_row = global_id(first_row, row)
        if not _is_drawn(draw, row, global_row):
            continue
        qg, qh = _quantized(g[row], h[row], _weight_of(weight, row), global_row, quanta)
        pairs[kept] = (qg << half) | qh
        order[kept] = row
        sum_g += qg
        sum_h += qh
        kept += 1
    return kept - rows.begin, int(sum_g), int(sum_h)


@njit(nogil=True)
def count_drawn(draw: RowDraw, rows: RowRange) -> int:
    """Return how many rows of a range are drawn."""
    count = 0
    for row in range(rows.begin, rows.end):
        count += _is_drawn(draw, row, global_id(rows.first_row, row))
    return count


@njit(nogil=True)
def take_rows(
    gradients: Gradients, quanta: Quanta, draw: RowDraw, rows: RowRange, into: RowOrder, kept: int, absent: int
) -> tuple[np.int64, np.int64]:
    """Quantize the drawn rows of a range, of one output, to the places from `kept` on; the others go to those from
    `absent` on. Returns the integer sums of g and h."""
    g, h, weight, order, pairs = gradients.g, gradients.h, gradients.weight, into.order, into.pairs
    first_row, half = rows.first_row, _half_bits(pairs)
    sum_g = np.int64(0)
    sum_h = np.int64(0)
    for row in range(rows.begin, rows.end):
        global_row = global_id(first_row, row)
        if not _is_drawn(draw, row, global_row):
            order[absent] = row
            absent += 1
            continue
        qg, qh = _quantized(g[row], h[row], _weight_of(weight, row), global_row, quanta)
        pairs[kept] = (qg << half) | qh
        order[kept] = row
        sum_g += qg
        sum_h += qh
        kept += 1
    return sum_g, sum_h


@njit(nogil=True)
def _quantize_row(
    gradients: Gradients, quanta: OutputQuanta, row: int, global_row: np.uint64, pairs: Pairs, sums: Int64
) -> None:  # fmt: skip
    """Write a row's pairs of all outputs to its place in `pairs`, and add them to `sums`."""
    g, h, weight, half = gradients.g, gradients.h, gradients.weight, _half_bits(pairs)
    for k in range(g.shape[1]):
        qg, qh = _quantized(g[row, k], h[row, k], _weight_of(weight, row), global_row, _quanta_of(quanta, k))
        pairs[row, k] = (qg << half) | qh
        sums[2 * k] += qg
        sums[2 * k + 1] += qh


@njit(nogil=True)
def take_vectors(
    gradients: Gradients, quanta: OutputQuanta, draw: RowDraw, rows: RowRange, into: RowOrder, kept: int, absent: int,
    sums: Int64,
) -> None:  # fmt: skip
    """Do what `take_rows` does, of several outputs, whose pairs stay in the order of rows; `sums`, int64 of g and h of
    each output, become those of the range."""
    order, pairs = into.order, into.pairs
    sums[:] = 0
    for row in range(rows.begin, rows.end):
        global_row = global_id(rows.first_row, row)
        if not _is_drawn(draw, row, global_row):
            order[absent] = row
            absent += 1
            continue
        _quantize_row(gradients, quanta, row, global_row, pairs, sums)
        order[kept] = row
        kept += 1


@njit(cache=True, nogil=True)
def quantize_vectors(
    gradients: Gradients, quanta: OutputQuanta, draw: RowDraw, rows: RowRange, into: RowOrder, sums: Int64
) -> int:
    """Do what `quantize_gradients` does, of several outputs.

    Pairs stay in the order of rows: a row's are read together, so that moving them with `order` would cost more than
    looking them up. Returns the number of drawn rows; adds their sums to `sums`, int64 of g and h of each output.
    """
    order, pairs, kept = into.order, into.pairs, rows.begin
    for row in range(rows.begin, rows.end):
        global_row = global_id(rows.first_row, row)
        if not _is_drawn(draw, row, global_row):
            continue
        _quantize_row(gradients, quanta, row, global_row, pairs, sums)
        order[kept] = row
        kept += 1
    return kept - rows.begin


@njit(cache=True, nogil=True)
def add_to_leaves(gradients: Gradients, quanta: OutputQuanta, rows: RowRange, leaf: Int32, sums: Int64) -> None:
    """Add the integers that `quantize_vectors` would make of a range of rows to `sums[leaf[row]]`.

    `leaf` : int32, shape (rows,), -1 for rows that did not grow the tree. `sums` : int64, shape (leaves, 2 * outputs).
    """
    g, h, weight, first_row = gradients.g, gradients.h, gradients.weight, rows.first_row
    for row in range(rows.begin, rows.end):
        if leaf[row] < 0:
            continue
        into = sums[leaf[row]]
        global_row = global_id(first_row, row)
        for k in range(g.shape[1]):
            qg, qh = _quantized(g[row, k], h[row, k], _weight_of(weight, row), global_row, _quanta_of(quanta, k))
            into[2 * k] += qg
            into[2 * k + 1] += qh


@njit(cache=True, nogil=True)
def largest(values: Float32, begin: int, end: int) -> float:
    """Largest absolute value of `values[begin:end]`; NaN if any value is NaN."""
    top = np.float32(0)
    for i in range(begin, end):
        value = abs(values[i])
        if not value <= top:  # also catches NaN
            if np.isnan(value):
                return np.nan
            top = value
    return float(top)
