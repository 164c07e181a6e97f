"""Kernels that nearly every fit on a CPU needs sooner or later, whatever its rows: what helpers begin with."""

from __future__ import annotations

from typing import cast

import numpy as np
from numba import typeof

from daskboost.devices.cpu.arithmetic import add_to_limbs
from daskboost.devices.cpu.compilers import Order, Part
from daskboost.devices.cpu.histogram import DenseBins
from daskboost.devices.cpu.partition import TreeArrays, walk_dense
from daskboost.devices.cpu.sketch import pack_places, unpack_places
from daskboost.devices.cpu.team import _start, serve
from daskboost.devices.row_order import no_sets


def _order(kernel: object, *arguments: object) -> Order:
    return Order(cast(Part, kernel), tuple(typeof(argument) for argument in arguments))  # type: ignore[no-untyped-call]


def foreseen() -> list[Order]:
    """Return kernels with their signatures, in the order in which fits come to them: those of teams, then those of
    metrics of evaluation sets with up to 255 bins."""
    i64, i32, u32 = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint32)
    f32 = np.empty(0, np.float32)
    pairs, words, symbols = np.empty((0, 2), np.int64), np.empty(0, np.uint64), np.empty(0, np.uint8)
    bins = DenseBins(symbols, 0, 0, i64, i32, i64, 0)
    tree = TreeArrays(i32, i32, i32, i32, np.empty(0, np.bool_), f32, no_sets())
    return [
        _order(serve, i64), _order(_start, i64, 0, 0, 0), _order(walk_dense, bins, tree, u32, 0, 0, f32),
        _order(add_to_limbs, np.empty(0), pairs), _order(unpack_places, words, pairs, u32, pairs),
        _order(pack_places, u32, words),
    ]  # fmt: skip
