"""Named tuples that compiled functions take by reference.

Numba passes a tuple member by member, an array as seven numbers. A function of a tuple of eighty arrays takes half a
second to compile for its arguments alone, and each that it calls as long again. A `Record` holds what a tuple has in
words of memory that Python fills; compiled code gets one address, and reads attributes where they are used:

    number         a word: the integer, or the bits of the float64 or float32
    array          words: the address of its memory, its shape, its strides
    other tuple    the words of its members
    Record         a word: its address
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import count
from struct import Struct
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model
from numba.np.arrayobj import populate_array

from daskboost.devices.cpu.addressed import host_address

_cgutils: Any = cgutils  # these have no types
_populate: Any = populate_array
_typeof: Any = typeof
_SIGN, _BEYOND = 1 << 63, 1 << 64
_INT64, _FLOAT64 = Struct("q"), Struct("d")

T = TypeVar("T")


class Reference(types.Type):
    """The type of the address of a record, which stays where it is while the reference is used."""

    def __init__(self, members: Mapping[str, tuple[types.Type, int]]) -> None:
        self.members = members
        """Type and first word of each attribute."""
        digest = hashlib.sha1(str(members).encode()).hexdigest()[:16]
        super().__init__(name=f"Reference({digest})")


class Record:
    """A named tuple in words of memory. Its attributes are the tuple's, which it keeps; its own begin with a line."""

    def __init__(self, of: tuple[object, ...]) -> None:
        self._of = of
        words: list[int] = []
        key = type(of), *[_put(each, words) for each in of]
        if key not in _KINDS:
            _KINDS[key] = _kind_of(of)
        self._kind: Reference = _KINDS[key]
        self._memory = array("q", words)
        self._address: int = self._memory.buffer_info()[0]

    def __getattr__(self, name: str) -> object:
        return getattr(self._of, name)


_KINDS: dict[object, Reference] = {}
"""Types of records by those of their members: numba takes a millisecond to find that of a tree's."""


def _kind_of(of: tuple[object, ...]) -> Reference:
    """Return the type of records of such a tuple."""
    names: tuple[str, ...] = type(of)._fields  # type: ignore[attr-defined]
    members, words = {}, list[int]()
    for name, each in zip(names, of, strict=True):
        members[name] = each._kind if isinstance(each, Record) else _typeof(each), len(words)
        _put(each, words)
    return Reference(members)


def _put(member: Any, words: list[int]) -> object:
    """Append the words of a tuple's member; return what tells its type."""
    if isinstance(member, np.ndarray):
        words.append(host_address(member))
        words += member.shape
        words += member.strides
        return member.dtype.num, member.ndim, member.flags.num
    if isinstance(member, Record):
        words.append(member._address)
        return member._kind
    if isinstance(member, tuple):
        return type(member), *[_put(each, words) for each in member]
    if isinstance(member, float):
        words += _INT64.unpack(_FLOAT64.pack(member))
    elif isinstance(member, np.float32):
        words.append(int(member.view(np.int32)))
    else:
        word = 0 if member is None else int(member)
        words.append(word if word < _SIGN else word - _BEYOND)  # the same bits as an int64
    return type(member)


def change(record: tuple[object, ...], **members: object) -> None:
    """Have some members of a record be others, of the same types."""
    assert isinstance(record, Record)
    for name, member in members.items():
        words: list[int] = []
        _put(member, words)
        place = record._kind.members[name][1]
        record._memory[place : place + len(words)] = array("q", words)  # as many, which therefore stay where they are
    record._of = record._of._replace(**members)  # type: ignore[attr-defined]


def by_reference(of: T) -> T:
    """Return a tuple as compiled code takes it by reference."""
    return cast(T, Record(cast(tuple[object, ...], of)))


def kind_of(record: Record, unread: tuple[str, ...] = ()) -> Reference:
    """Return the type of references to a record, as it is for code that reads none of some attributes.

    `unread` : these attributes, those of a record within it as "record.attribute". They should come last in their
    tuples: then what is read lies at the same place whatever they are, and the type is the same.

    Raises
    ------
    KeyError
        One of them names no attribute, or one within a member that is no record.
    """
    return _without(record._kind, unread) if unread else record._kind


@cache
def _without(kind: Reference, unread: tuple[str, ...], outer: str = "") -> Reference:
    """Return the type without some attributes; `outer` : the path of the record itself, for the error's message."""
    members = dict(kind.members)
    for path in unread:
        name, _, inner = path.partition(".")
        of, place = members.pop(name, (None, 0))
        if of is None or (inner and not isinstance(of, Reference)):
            raise KeyError(outer + path)
        if inner:
            members[name] = _without(of, (inner,), f"{outer}{name}."), place
    return Reference({name: members[name] for name in kind.members if name in members})


def address_of(record: object) -> int:
    """Return where a record lies, as long as it is kept."""
    assert isinstance(record, Record)
    return record._address


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Reference) -> None:
        super().__init__(manager, of, ir.IntType(8).as_pointer())  # type: ignore[no-untyped-call]


@infer_getattr
class _ReferenceAttributes(AttributeTemplate):
    key = Reference

    def generic_resolve(self, of: Reference, name: str) -> types.Type | None:  # type: ignore[override]
        return of.members[name][0] if name in of.members else None


@lower_getattr_generic(Reference)  # type: ignore[no-untyped-call]
def _attribute(context: Any, builder: ir.IRBuilder, of: Reference, value: ir.Value, name: str) -> ir.Value:
    words = builder.bitcast(value, ir.IntType(64).as_pointer())
    kind, place = of.members[name]
    return _read(context, builder, kind, words, count(place))


def _read(context: Any, builder: ir.IRBuilder, kind: Any, words: ir.Value, places: Iterator[int]) -> ir.Value:
    """Return the value of a type, whose words begin at the next place."""
    def word() -> ir.Value:
        place = ir.Constant(ir.IntType(32), next(places))
        return builder.load(builder.gep(words, [place], inbounds=True))

    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        members = [_read(context, builder, member, words, places) for member in kinds]
        found: ir.Value = context.make_tuple(builder, kind, members)
        return found
    as_value = context.get_value_type(kind)
    if isinstance(kind, types.Array):
        array, item = context.make_array(kind)(context, builder), context.get_data_type(kind.dtype)
        pointer = builder.inttoptr(word(), item.as_pointer())
        shape, strides = ([word() for _ in _cgutils.unpack_tuple(builder, array.shape)] for _ in range(2))
        _populate(
            array, data=pointer, shape=_cgutils.pack_array(builder, shape),
            strides=_cgutils.pack_array(builder, strides),
            itemsize=context.get_constant(types.intp, context.get_abi_sizeof(item)), meminfo=None,
        )  # fmt: skip
        value: ir.Value = array._getvalue()
        return value
    bits = word()
    if isinstance(kind, Reference):
        return builder.inttoptr(bits, as_value)
    if kind is types.none:
        nothing: ir.Value = context.get_dummy_value()
        return nothing
    n_bits = {types.float32: 32, types.boolean: 1}.get(kind, 64)
    bits = bits if n_bits == 64 else builder.trunc(bits, ir.IntType(n_bits))
    return builder.bitcast(bits, as_value) if isinstance(kind, types.Float) else bits
