"""Messages as bytes: frozen dataclasses to frames and back, without pickle.

A message becomes frame 0, a msgpack header that describes its structure, and one further frame per NumPy array: the
array's own memory, not copied. Anything that msgpack does not say by itself is a msgpack array that opens with a tag:

    [LIST, item...]  [TUPLE, item...]  [DICT, key, value, ...]  [MESSAGE, name, fingerprint, field...]
    [ARRAY, frame, dtype, shape]

The fingerprint covers the names of a message's fields, so two versions of the library that disagree say so instead of
mixing up fields. Decoding allocates in proportion to the bytes it was given, never to a number it read in them, and
refuses everything that `encode` would not have written.

The annotations of a message's fields say what may stand in them, and decoding holds every message to them: a handler
never meets a text where a number belongs, nor an array of another dtype. No message needs checks of its own.

Decoded arrays are C-contiguous, aligned and writable, so that compiled kernels meet one array type whatever carried
it; the frame's memory is shared where it allows that and copied where it does not.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np

from daskboost.dtypes import Array
from daskboost.errors import DaskBoostError

T = TypeVar("T", bound=type)
V = TypeVar("V")
Check = Callable[[Any], bool]
Frame = bytes | bytearray | memoryview

LIST, TUPLE, DICT, MESSAGE, ARRAY = range(5)
MAX_DEPTH: Final = 32  # messages are shallow; a hostile header must not exhaust the stack
MAX_HEADER_BYTES: Final = 1 << 30  # model bytes and error texts travel in the header, bulk data in frames of its own
MAX_FRAMES: Final = 1 << 16
MAX_DTYPE_LENGTH: Final = 64

_registry: dict[str, tuple[type, int, tuple[str, ...]]] = {}
_names: dict[type, str] = {}


class WireError(DaskBoostError, ValueError):
    """Bytes that are no message of ours, or a value that a message cannot carry."""


def register(cls: T) -> T:
    """Make a frozen dataclass a message. Use as a decorator, outside of `dataclass(frozen=True)`.

    Its name must be unique among messages. Fields may hold None, bool, int (64 bits), float, str, bytes, NumPy arrays
    of fixed-size dtypes, lists, tuples and dicts of those, and other registered dataclasses. Their annotations are made
    of these types, classes that messages derive from, unions and `Any`; a field of float takes an int as well, as
    everywhere in Python.

    Raises
    ------
    TypeError
        The class is no frozen dataclass, or has fields that its constructor does not take.
    ValueError
        Another class of that name is registered.
    """
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise TypeError(f"{cls.__qualname__} must be a dataclass(frozen=True) to become a message")
    fields = dataclasses.fields(cls)
    if not all(field.init for field in fields) or any(field.kw_only for field in fields):
        raise TypeError(f"{cls.__qualname__} has fields that cannot be passed to its constructor in order")
    name = cls.__name__
    known = _registry.get(name)
    if known is not None and (known[0].__module__, known[0].__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"a message named {name!r} exists already: {known[0].__module__}.{known[0].__qualname__}")
    names = tuple(field.name for field in fields)
    _registry[name] = (cls, zlib.crc32(",".join((name, *names)).encode()), names)
    _names[cls] = name
    return cls


def encode(value: object) -> list[Frame]:
    """Frames of a message (or of any value a message may hold): the header, then one per array.

    Frames share the arrays' memory: send them before the arrays change.

    Raises
    ------
    WireError
        A value of a type that messages do not carry.
    """
    arrays: list[Frame] = [b""]
    plain = _flatten(value, arrays, 0)
    try:
        arrays[0] = msgpack.packb(plain, use_bin_type=True)
    except (OverflowError, ValueError, UnicodeError) as error:
        raise WireError(f"{type(value).__name__} cannot be sent: {error}") from error
    return arrays


def decode(frames: Sequence[Frame]) -> Any:
    """The message that `encode` turned into these frames.

    Raises
    ------
    WireError
        Frames that are truncated, corrupt, hostile, of another version of the library, or a message with a value that
        is not of its field's type.
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise WireError(f"a message has 1 to {MAX_FRAMES} frames, got {len(frames)}")
    header = frames[0]
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"a header of {len(header)} bytes is larger than {MAX_HEADER_BYTES}")
    try:
        plain = msgpack.unpackb(header, raw=False, use_list=True, max_ext_len=0)
    except Exception as error:  # msgpack raises a dozen types for malformed input, RecursionError-like ones included
        raise WireError(f"corrupt message header: {type(error).__name__}: {error}") from error
    unused = set(range(1, len(frames)))
    value = _restore(plain, frames, unused, 0)
    if unused:
        raise WireError(f"corrupt message: {len(unused)} frames belong to no array")
    return value


def decode_as(kind: type[V], frames: Sequence[Any]) -> V:
    """Decode a message of one kind, from frames that nobody has looked at yet.

    Raises
    ------
    WireError
        As `decode`; also something else than bytes among the frames, and another message.
    """
    if type(frames) not in (list, tuple) or not all(isinstance(frame, Frame) for frame in frames):
        raise WireError(f"a message is a list of bytes, got {type(frames).__name__}")
    value = decode([bytearray(frame) for frame in frames])  # writable, so that arrays need not be copied
    if type(value) is not kind:
        raise WireError(f"the message is {type(value).__name__}, where {kind.__name__} belongs")
    return value


def with_arrays(value: object, arrays: Iterator[Array]) -> object:
    """Return a message that differs from this one in its arrays only: they are taken in the order of their frames."""
    name = _names.get(type(value))
    if name is not None:
        cls, _, fields = _registry[name]
        return cls(*[with_arrays(getattr(value, field), arrays) for field in fields])
    if isinstance(value, np.ndarray):
        return next(arrays)
    if isinstance(value, tuple | list):
        return type(value)([with_arrays(item, arrays) for item in value])
    if isinstance(value, dict):
        return {key: with_arrays(item, arrays) for key, item in value.items()}
    return value


def arrays_in(value: object) -> Iterator[Array]:
    """Yield the arrays of a message, in the order of their frames."""
    name = _names.get(type(value))
    if name is not None:
        for field in _registry[name][2]:
            yield from arrays_in(getattr(value, field))
    elif isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


def _flatten(value: Any, arrays: list[Frame], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (int, float, str, bool, bytes):
        return value
    if depth >= MAX_DEPTH:
        raise WireError(f"messages nest at most {MAX_DEPTH} levels deep")
    depth += 1
    name = _names.get(kind)
    if name is not None:
        _, fingerprint, fields = _registry[name]
        return [MESSAGE, name, fingerprint, *(_flatten(getattr(value, field), arrays, depth) for field in fields)]
    if kind is tuple or kind is list:
        return [TUPLE if kind is tuple else LIST, *(_flatten(item, arrays, depth) for item in value)]
    if kind is dict:
        return [DICT, *(_flatten(part, arrays, depth) for pair in value.items() for part in pair)]
    if kind is np.ndarray:
        return _flatten_array(value, arrays)
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise WireError(f"messages cannot carry {kind.__module__}.{kind.__qualname__}; register it, or send plain values")


def _flatten_array(array: np.ndarray[Any, Any], arrays: list[Frame]) -> list[Any]:
    if array.dtype.hasobject:
        raise WireError(f"messages cannot carry arrays of dtype {array.dtype}: it holds Python objects")
    if array.dtype.names is None:
        dtype: Any = array.dtype.str
    else:
        dtype = _flatten(np.lib.format.dtype_to_descr(array.dtype), arrays, 0)
    # A view as bytes works for every dtype, structured and datetime ones included, where memoryview() refuses some.
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    arrays.append(contiguous.reshape(-1).view(np.uint8).data if contiguous.nbytes else b"")
    return [ARRAY, len(arrays) - 1, dtype, *array.shape]


def _restore(plain: Any, frames: Sequence[Frame], unused: set[int], depth: int) -> Any:
    kind = type(plain)
    if plain is None or kind in (int, float, str, bool, bytes):
        return plain
    if kind is not list or not plain or type(plain[0]) is not int:
        raise WireError(f"corrupt message: {kind.__name__} without a tag")
    if depth >= MAX_DEPTH:
        raise WireError(f"corrupt message: nested deeper than {MAX_DEPTH} levels")
    depth += 1
    tag = plain[0]
    if tag == MESSAGE:
        return _restore_message(plain, frames, unused, depth)
    if tag == ARRAY:
        return _restore_array(plain, frames, unused)
    items = [_restore(item, frames, unused, depth) for item in plain[1:]]
    if tag == LIST:
        return items
    if tag == TUPLE:
        return tuple(items)
    if tag == DICT and len(items) % 2 == 0:
        try:
            return dict(zip(items[::2], items[1::2], strict=True))
        except TypeError as error:
            raise WireError(f"corrupt message: {error}") from error
    raise WireError(f"corrupt message: unknown tag {tag}")


def _restore_message(plain: list[Any], frames: Sequence[Frame], unused: set[int], depth: int) -> Any:
    name, fingerprint = plain[1:3] if len(plain) >= 3 else (None, None)
    known = _registry.get(name) if type(name) is str else None
    if known is None:
        raise WireError(
            f"unknown message {reprlib.repr(name)}: client, scheduler and workers need the same version of daskboost"
        )
    cls, expected, fields = known
    if fingerprint != expected or len(plain) != 3 + len(fields):
        raise WireError(
            f"message {name!r} has other fields here than where it was written: "
            "client, scheduler and workers need the same version of daskboost"
        )
    values = [_restore(item, frames, unused, depth) for item in plain[3:]]
    for field, (annotation, holds), value in zip(fields, _field_checks(cls), values, strict=True):
        if not holds(value):
            found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise WireError(f"message {name!r} has {found} as its {field!r}, where {annotation} belongs")
    try:
        return cls(*values)
    except Exception as error:  # whatever a message's own validation raises
        raise WireError(f"message {name!r} refused its values: {type(error).__name__}: {error}") from error


@functools.cache
def _field_checks(cls: type) -> tuple[tuple[str, Check], ...]:
    """The text and the check of each field's annotation; made on first use, when all that it names is defined."""
    hints = get_type_hints(cls)
    return tuple((str(field.type), _check_of(hints[field.name])) for field in dataclasses.fields(cls))


def _check_of(annotation: Any) -> Check:
    """Whether a value is of an annotated type, as a function.

    Raises
    ------
    TypeError
        An annotation that messages cannot have.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(origin, "__value__"):  # an alias by Python 3.12's `type`, such as NumPy's NDArray from 2.5 on
        return _check_of(origin.__value__[arguments])
    if annotation is Any:
        return lambda value: True
    if annotation is float:
        return lambda value: type(value) in (float, int)
    if annotation in (None, NoneType, bool, int, str, bytes):
        kind = NoneType if annotation is None else annotation
        return lambda value: type(value) is kind
    if _is_of_messages(message := origin or annotation):
        return lambda value: type(value) in _names and isinstance(value, message)
    if origin in (Union, UnionType):
        parts = [_check_of(argument) for argument in arguments]
        return lambda value: any(holds(value) for holds in parts)
    if origin is np.ndarray:
        return _check_of_array(get_args(arguments[1])[0])
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        of_item = _check_of(arguments[0])
        return lambda value: type(value) is origin and all(map(of_item, value))
    if origin is tuple:
        of_places = [_check_of(argument) for argument in arguments]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(of_places)
            and all(holds(item) for holds, item in zip(of_places, value, strict=True))
        )
    if origin is dict:
        of_key, of_value = map(_check_of, arguments)
        return lambda value: type(value) is dict and all(map(of_key, value)) and all(map(of_value, value.values()))
    raise TypeError(f"fields of messages cannot be annotated with {annotation}; see daskboost.wire.register")


def _is_of_messages(kind: Any) -> bool:
    """Whether a class is a message, or one that messages derive from."""
    return isinstance(kind, type) and kind is not object and any(issubclass(message, kind) for message in _names)


def _check_of_array(scalar: Any) -> Check:
    if scalar is Any:
        return lambda value: type(value) is np.ndarray
    dtype = np.dtype(scalar)
    return lambda value: type(value) is np.ndarray and value.dtype == dtype


def _restore_array(plain: list[Any], frames: Sequence[Frame], unused: set[int]) -> np.ndarray[Any, Any]:
    if len(plain) < 3 or not all(type(number) is int and number >= 0 for number in (plain[1], *plain[3:])):
        raise WireError("corrupt message: malformed array")
    index, shape = plain[1], tuple(plain[3:])
    if index not in unused:
        raise WireError(f"corrupt message: array frame {index} is missing or used twice")
    unused.remove(index)
    dtype = _restore_dtype(plain[2])
    frame = memoryview(frames[index])
    n_items = 1
    for length in shape:  # Python integers: a product of hostile lengths cannot overflow
        n_items *= length
    if len(shape) > 32 or n_items * dtype.itemsize != frame.nbytes or (n_items and not dtype.itemsize):
        raise WireError(
            f"corrupt message: {frame.nbytes} bytes for an array of {dtype} with shape {reprlib.repr(shape)}"
        )
    if frame.nbytes == 0:
        try:
            return np.empty(shape, dtype)
        except (ValueError, OverflowError) as error:
            raise WireError(f"corrupt message: an array of shape {reprlib.repr(shape)}: {error}") from error
    flat = np.frombuffer(frame, dtype)
    if not flat.flags.writeable or not flat.flags.aligned:
        flat = flat.copy()
    return flat.reshape(shape)


def _restore_dtype(plain: Any) -> np.dtype[Any]:
    try:
        descr: Any = _restore(plain, [], set(), 0) if type(plain) is list else plain
        if not isinstance(descr, list | str):
            raise WireError(f"{reprlib.repr(descr)} is no dtype")
        if isinstance(descr, str) and len(descr) > MAX_DTYPE_LENGTH:
            raise WireError(f"{reprlib.repr(descr)} is too long for a dtype")
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)  # type: ignore[arg-type]
    except Exception as error:  # NumPy raises several types for nonsense
        raise WireError(f"corrupt message: a malformed dtype: {error}") from error
    if dtype.hasobject:
        raise WireError(f"corrupt message: arrays of dtype {dtype} hold Python objects")
    if dtype.subdtype is not None:
        raise WireError(f"corrupt message: {dtype} is no dtype of an array's items")
    return dtype
