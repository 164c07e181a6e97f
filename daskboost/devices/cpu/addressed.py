"""Arrays that lie at addresses, which compiled code takes where tuples of arrays would be too many."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_size_t
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature
from numba.np.arrayobj import populate_array

from daskboost.devices.cpu import Emitted, intrinsic
from daskboost.dtypes import Array

_cgutils: Any = cgutils  # these have no types
_populate: Any = populate_array
_HEAD = object.__basicsize__
"""Bytes that any object of Python begins with. NumPy's arrays have the address of their memory behind them, and what
else tells it, `__array_interface__`, describes the type of the array first, which takes ten times as long."""


def host_address(array: Array) -> int:
    """Return where the memory of an array of this process begins."""
    return c_size_t.from_address(id(array) + _HEAD).value


def _at(context: Any, builder: ir.IRBuilder, kind: types.Array, address: ir.Value, size: ir.Value) -> ir.Value:
    """Return the array of `size` numbers at an address; somebody else keeps it there."""
    array = context.make_array(kind)(context, builder)
    stride = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    _populate(
        array, data=data, shape=_cgutils.pack_array(builder, [size]), strides=_cgutils.pack_array(builder, [stride]),
        itemsize=stride, meminfo=None,
    )  # fmt: skip
    found: ir.Value = array._getvalue()
    return found


@intrinsic
def array_at(typing_context: Context, address: types.Integer, like: types.Array, size: types.Integer) -> Emitted:
    """Return the array of `size` numbers at an address, of the type of `like`."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return _at(context, builder, signature.return_type, args[0], args[2])

    return types.Array(like.dtype, 1, "C")(types.int64, like, types.int64), generate


@intrinsic
def weight_at(typing_context: Context, address: types.Integer, size: types.Integer, pairs: types.Array) -> Emitted:
    """Return the weights of rows where data are small, as their pairs tell; or else None."""
    kind: Any = types.Array(types.float32, 1, "C") if pairs.dtype == types.int64 else types.none

    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        if kind is types.none:
            return context.get_dummy_value()
        return _at(context, builder, kind, args[0], args[1])

    return kind(types.int64, types.int64, pairs), generate
