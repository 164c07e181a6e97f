"""Messages survive the wire, and nothing else gets through it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daskboost.wire import ARRAY, DICT, MAX_DEPTH, MESSAGE, WireError, decode, encode, register


@register
@dataclass(frozen=True)
class WirePoint:
    x: int
    label: str | None = None


@register
@dataclass(frozen=True, eq=False)
class WireBundle:
    arrays: dict[str, Any]
    points: tuple[WirePoint, ...]
    blob: bytes
    scale: float = 1.0
    flags: list[bool] = field(default_factory=list)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, WireBundle):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__dataclass_fields__)
    return bool(left == right or (left != left and right != right))


def test_a_message_comes_back_equal() -> None:
    structured = np.array([(1, 2.5, b"ab")], dtype=[("a", "<i4"), ("b", "<f8"), ("c", "S4")])
    bundle = WireBundle(
        arrays={
            "histogram": np.arange(24, dtype=np.int64).reshape(2, 3, 4),
            "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "strided": np.arange(10)[::3],
            "scalar": np.array(7.0),
            "empty": np.empty((0, 3), np.uint16),
            "text": np.array(["a", "bcd"]),
            "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
            "structured": structured,
            "big_endian": np.array([1, 2], dtype=">i4"),
        },
        points=(WirePoint(1, "one"), WirePoint(-(2**63))),
        blob=b"\x00\xff" * 10,
        scale=float("inf"),
        flags=[True, False],
    )
    assert same(decode(encode(bundle)), bundle)


atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
arrays = hnp.arrays(hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes(), hnp.array_shapes(max_side=4))
values = st.recursive(
    atoms | arrays | st.builds(WirePoint, st.integers(0, 9), st.text()),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=20,
)


@given(values)
@settings(deadline=None)
def test_any_value_comes_back_equal(value: Any) -> None:
    assert same(decode([bytes(frame) for frame in encode(value)]), value)


@given(value=values, data=st.data())
@settings(deadline=None)
def test_damaged_frames_raise_or_decode_but_never_crash(value: Any, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in encode(value)]
    place = data.draw(st.integers(0, len(frames) - 1))
    frame = frames[place]
    damage = data.draw(st.sampled_from(["flip", "cut", "drop", "repeat"]))
    if damage == "drop":
        del frames[place]
    elif damage == "repeat":
        frames.append(frame)
    elif frame:
        at = data.draw(st.integers(0, len(frame) - 1))
        if damage == "flip":
            frame[at] ^= data.draw(st.integers(1, 255))
        else:
            del frame[at:]
    try:
        decode(frames)
    except WireError:
        return
    # A flipped byte may give another valid message, and so may an array's bytes that stand where the header was lost.
    # An array's frame that is lost, and any frame that is added, never do.
    assert damage in ("flip", "cut") or (damage == "drop" and place == 0)


def test_an_array_may_spell_a_message_where_the_header_is_lost() -> None:
    """A single zero byte is how msgpack says 0, so that the array [False] reads as the number where it stands first."""
    assert decode(encode([np.array([False])])[1:]) == 0


@given(st.lists(st.binary(max_size=200), max_size=3))
@settings(deadline=None)
def test_noise_is_refused_or_plain(frames: list[bytes]) -> None:
    try:
        decode(frames)
    except WireError as error:
        assert str(error)


def test_arrays_share_memory_where_they_can_and_are_writable_always() -> None:
    array = np.arange(1000)
    header, frame = encode((array,))
    assert np.shares_memory(np.frombuffer(frame, np.uint8), array)
    own = bytearray(frame)
    (shared,) = decode([header, own])
    assert np.shares_memory(shared, np.frombuffer(own, np.uint8))
    misaligned = memoryview(bytearray(b"x" + bytes(frame)))[1:]
    for readonly in (bytes(frame), misaligned):
        (copied,) = decode([header, readonly])
        assert copied.flags.writeable and copied.flags.aligned and np.array_equal(copied, array)


def test_numpy_scalars_become_python_numbers() -> None:
    values = decode(encode((np.float32(1.5), np.int64(3), np.True_)))
    assert values == (1.5, 3, True) and [type(value) for value in values] == [float, int, bool]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"messages cannot carry builtins\.object"),
        ({1, 2}, r"messages cannot carry builtins\.set"),
        (np.array([object()]), "holds Python objects"),
        (2**70, "int cannot be sent"),
        (lambda: None, r"cannot carry builtins\.function"),
    ],
)
def test_what_messages_cannot_carry(value: Any, message: str) -> None:
    with pytest.raises(WireError, match=message):
        encode(value)


def test_deep_nesting_is_refused_both_ways() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(WireError, match="at most 32 levels"):
        encode(deep)
    plain: list[Any] = [0]
    for _ in range(400):
        plain = [0, plain]
    with pytest.raises(WireError, match="nested deeper than 32"):
        decode([msgpack.packb(plain)])
    with pytest.raises(WireError, match="corrupt message header"):
        decode([b"\x91" * 100_000])


@pytest.mark.parametrize(
    ("plain", "frames", "message"),
    [
        ([ARRAY, 1, "<f8", 2**62], [b"12345678"], "8 bytes for an array of float64"),
        ([ARRAY, 1, "<f8", 2**62, 4], [b""], "0 bytes for an array of float64"),
        ([ARRAY, 1, "<f8", 0, 2**63], [b""], "an array of shape"),
        ([ARRAY, 1, "|O", 1], [b"12345678"], "hold Python objects"),
        ([ARRAY, 1, "nonsense", 1], [b"12345678"], "malformed dtype"),
        ([ARRAY, 2, "<f8", 1], [b"12345678"], "frame 2 is missing"),
        ([ARRAY, 1, "<f8", -1], [b"12345678"], "malformed array"),
        ([0], [b"12345678"], "frames belong to no array"),
        ([MESSAGE, "NoSuchMessage", 0], [], "unknown message 'NoSuchMessage'.*same version"),
        ([MESSAGE, "WirePoint", 0, 1, "x"], [], "other fields.*same version of daskboost"),
        ([DICT, [0], 1], [], "unhashable"),
        ([DICT, 1], [], "unknown tag"),
        ([99], [], "unknown tag 99"),
        ({"a": 1}, [], "dict without a tag"),
        ([], [], "list without a tag"),
    ],
)
def test_hostile_headers(plain: Any, frames: list[bytes], message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode([msgpack.packb(plain), *frames])


def test_a_huge_length_in_a_header_allocates_nothing() -> None:
    with pytest.raises(WireError, match="corrupt message header"):
        decode([b"\xc6" + struct.pack(">I", 2**32 - 1) + b"short"])
    with pytest.raises(WireError, match="corrupt message header"):
        decode([b"\xdd" + struct.pack(">I", 2**32 - 1)])


def test_only_frozen_dataclasses_register_and_only_once_by_name() -> None:
    @dataclass
    class Thawed:
        x: int

    with pytest.raises(TypeError, match="must be a dataclass"):
        register(Thawed)

    def make() -> type:
        @dataclass(frozen=True)
        class WirePoint:
            x: int

        return WirePoint

    with pytest.raises(ValueError, match="a message named 'WirePoint' exists already"):
        register(make())


def test_a_messages_own_validation_counts() -> None:
    @register
    @dataclass(frozen=True)
    class Positive:
        x: int

        def __post_init__(self) -> None:
            if self.x <= 0:
                raise ValueError("x must be positive")

    frames = encode(Positive(3))
    plain = msgpack.unpackb(frames[0])
    plain[-1] = -3
    with pytest.raises(WireError, match="'Positive' refused its values: ValueError: x must be positive"):
        decode([msgpack.packb(plain)])
