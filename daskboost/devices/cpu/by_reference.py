"""Named tuples that compiled functions take by reference.

Numba passes a tuple member by member, an array as seven numbers. A function of a tuple of eighty arrays takes half a
second to compile for its arguments alone, and each that it calls as long again. A `Reference` is one address: its
attributes are read where they are used, and one whose class says `by_reference = True` is a reference again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.context import Context
from numba.core.typing.templates import AttributeTemplate, Signature
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model

from daskboost.devices.cpu import Emitted, intrinsic

_cgutils: Any = cgutils  # it has no types


class Reference(types.Type):
    """The type of the address of a named tuple, which stays where it is while the reference is used."""

    def __init__(self, schema: types.NamedTuple) -> None:
        self.schema = schema
        members = hashlib.sha1(str(schema).encode()).hexdigest()[:16]
        super().__init__(name=f"Reference({schema.instance_class.__name__}, {members})")

    @property
    def key(self) -> Any:
        return self.schema

    def member(self, name: str) -> Any:
        """Return the type of an attribute."""
        if name not in self.schema.fields:
            return None
        found: Any = self.schema.types[self.schema.fields.index(name)]
        if getattr(getattr(found, "instance_class", None), "by_reference", False):
            return Reference(found)
        return found


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Reference) -> None:
        super().__init__(manager, of, ir.IntType(8).as_pointer())  # type: ignore[no-untyped-call]


@infer_getattr
class _ReferenceAttributes(AttributeTemplate):
    key = Reference

    def generic_resolve(self, of: Reference, name: str) -> Any:  # type: ignore[override]
        return of.member(name)


@lower_getattr_generic(Reference)  # type: ignore[no-untyped-call]
def _attribute(context: Any, builder: ir.IRBuilder, of: Reference, value: ir.Value, name: str) -> ir.Value:
    struct = context.get_value_type(of.schema)
    pointer = builder.bitcast(value, struct.as_pointer())
    member = _cgutils.gep_inbounds(builder, pointer, 0, of.schema.fields.index(name))
    if isinstance(of.member(name), Reference):
        return builder.bitcast(member, ir.IntType(8).as_pointer())
    return builder.load(member)


@intrinsic
def reference(typing_context: Context, value: types.NamedTuple) -> Emitted:
    """Return a reference to a copy of a tuple, which is there until the caller returns."""
    def generate(context: Any, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        place = _cgutils.alloca_once_value(builder, args[0])
        return builder.bitcast(place, ir.IntType(8).as_pointer())

    return Reference(value)(value), generate
