"""Changes to files: bytes, and values of what they hold. All draws come from one generator, so a case is its number."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from strategies.saved_dataset import edit

from daskboost.data.saved.array_file import crc32
from daskboost.data.saved.manifest import digest
from daskboost.model import ubjson

NUMBERS = (
    -(2**63), -(2**31) - 1, -(2**31), -129, -128, -2, -1, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 40, 127, 128, 255,
    256, 32767, 65535, 65536, 2**24 - 1, 2**24, 2**25, 2**25 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1,
    2**63 - 1,
)  # fmt: skip
FLOATS = (-1.0, -0.0, 0.5, 1.5, 1e-45, 1e-310, 3.4e38, 3.5e38, 1.7e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", "0", "1", "-1", "2", "3", "65536", "33554432", "1e9", "1e308", "1E-5", "nan", "inf", "[1,2]", "[nan]", "[]",
    "x", "float", "int", "i", "q", "c", "multi:softprob", "multi:softmax", "reg:squarederror", "binary:logistic",
    "reg:quantileerror", "count:poisson", "reg:tweedie", "dense", "csr", "words", "indptr", "label", "weight",
    "base_margin", "<f4", "\ud800", "\x00", "9" * 400, "x" * 5000, "best_iteration",
    "daskboost",
)  # fmt: skip


def junk(draw: Random) -> Any:
    """A value that may stand anywhere in JSON."""
    kind = draw.randrange(9)
    if kind < 2:
        return draw.choice(NUMBERS)
    if kind == 2:
        return draw.choice(FLOATS)
    if kind < 5:
        return draw.choice(TEXTS)
    if kind == 5:
        return draw.choice([None, True, False, [], {}])
    if kind == 6:
        return [draw.choice(NUMBERS) for _ in range(draw.randrange(1, 12))]
    if kind == 7:
        return [draw.choice(TEXTS) for _ in range(draw.randrange(1, 5))]
    return 10 ** draw.randrange(18, 400) if draw.random() < 0.2 else draw.uniform(-10, 10)


def change_bytes(draw: Random, data: bytes, other: bytes) -> bytes:
    """One to four changes of bytes; `other` is a file to take pieces of."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at = draw.randrange(len(changed) + 1)
        span = draw.choice([1, 1, 2, 4, 8, 64])
        match draw.randrange(8):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
            case 2:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 3:
                del changed[at : at + span]
            case 4:
                changed[at:at] = changed[at : at + span] * draw.choice([1, 2, 300])
            case 5:
                size = draw.choice([1, 2, 4, 8])
                number = draw.choice(NUMBERS) % 256**size
                changed[at : at + size] = number.to_bytes(size, draw.choice(["big", "little"]))
            case 6:
                begin = draw.randrange(len(other) + 1)
                changed[at : at + span] = other[begin : begin + span]
            case _:
                del changed[at + draw.randrange(len(changed) - at + 1) :]
    return bytes(changed)


def change_values(draw: Random, document: Any) -> Any:
    """One to three values of a document replaced, left out, repeated or exchanged."""
    root = {"document": copy.deepcopy(document)}
    for _ in range(draw.choice([1, 1, 2, 3])):
        place: Any = root
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = draw.choice(list(keys))
            inside = place[key]
            if isinstance(inside, np.ndarray) and len(inside) and draw.random() < 0.8:
                place[key] = change_array(draw, inside)
                break
            if not isinstance(inside, dict | list) or not inside or draw.random() < 0.1:
                _change_item(draw, place, key)
                break
            place = inside
        if not root:
            return junk(draw)
    return root["document"]


def _change_item(draw: Random, place: Any, key: Any) -> None:
    kind = draw.randrange(8)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, list):
        place.insert(key, copy.deepcopy(place[key]))
    elif kind == 2:
        other = draw.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        place[key], place[other] = place[other], place[key]
    else:
        place[key] = junk(draw)


def change_array(draw: Random, array: Any) -> Any:
    """An array of another length or type, or with another number in it."""
    kind = draw.randrange(8)
    if kind == 0:
        return array[: draw.randrange(len(array))]
    if kind == 1:
        return np.concatenate([array, array[:1]])
    if kind == 2:
        with np.errstate(all="ignore"):
            return array.astype(draw.choice(["i1", "u1", "i2", "i4", "i8", "f4", "f8"]))
    array = array.copy()
    at = draw.randrange(len(array))
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array[at] = np.float64(draw.choice(FLOATS))
    else:
        bits = 8 * array.itemsize
        number = draw.choice([*NUMBERS, draw.randrange(len(array) + 1)]) % 2**bits
        signed = array.dtype.kind == "i" and number >= 2 ** (bits - 1)
        array[at] = number - 2**bits if signed else number
    return array


def model_file(draw: Random, corpus: tuple[bytes, ...]) -> bytes:
    """A damaged model file."""
    data = draw.choice(corpus)
    if draw.random() < 0.05:  # noise behind the first letters of each format
        return draw.choice([b"", b"{", b'{"', b"{L\0\0\0\0\0\0\0\1a"]) + draw.randbytes(draw.randrange(60))
    if draw.random() < 0.4:
        return change_bytes(draw, data, draw.choice(corpus))
    if data[1:2] == b'"':
        return json.dumps(change_values(draw, json.loads(data))).encode("utf-8", "replace")
    try:
        return ubjson.encode(change_values(draw, ubjson.decode(data)))
    except (TypeError, KeyError, OverflowError, UnicodeError, AttributeError):  # what UBJSON has no words for
        return change_bytes(draw, data, data)


def damage_dataset(draw: Random, path: Path) -> None:
    """Damage a saved data set where it lies, in most cases as somebody would who mends checksums."""
    match draw.randrange(8):
        case 0 | 1 | 2:
            edit(path, lambda root: _change_root(draw, root))
        case 3 | 4 | 5:
            _forge(draw, path)
        case 6:
            text = change_bytes(draw, (path / "manifest.json").read_bytes(), b'{"[":1e999}')
            (path / "manifest.json").write_bytes(text)
            (path / "manifest.blake2b").write_bytes(digest(text))
        case _:
            file = draw.choice(sorted(path.iterdir()))
            match draw.randrange(5):
                case 0:
                    file.unlink()
                case 1:
                    file.unlink()
                    file.mkdir()
                case 2:
                    file.write_bytes(b"")
                case 3:
                    draw.choice(sorted(path.iterdir())).replace(file)
                case _:
                    file.write_bytes(change_bytes(draw, file.read_bytes(), b"\xff\x00" * 40))


def _change_root(draw: Random, root: dict[str, Any]) -> None:
    parts: list[Callable[[], Any]] = [lambda: root["metadata"], lambda: root["metadata"]["stats"], lambda: root]
    place = draw.choice(parts)()
    changed = change_values(draw, place)
    place.clear()
    place.update(changed if isinstance(changed, dict) else {"": changed})


def _forge(draw: Random, path: Path) -> None:
    """Change numbers of an array and mend its checksum."""

    def mend(root: dict[str, Any]) -> None:
        part = draw.choice([root["cuts"], *root["chunks"]])
        record = draw.choice(part["arrays"])
        offset, data = 0, bytearray((path / part["file"]).read_bytes())
        for each in part["arrays"]:
            size = int(np.prod(each["shape"])) * np.dtype(each["dtype"]).itemsize
            if each is record and size:
                _forge_array(draw, np.frombuffer(data, np.uint8, size, offset), np.dtype(each["dtype"]))
                each["crc32"] = crc32(np.frombuffer(data, np.uint8, size, offset))
            offset += size
        (path / part["file"]).write_bytes(data)

    edit(path, mend)


def _forge_array(draw: Random, data: Any, dtype: np.dtype[Any]) -> None:
    array = data.view(dtype)
    for _ in range(draw.choice([1, 1, 3])):
        at = draw.randrange(len(array))
        if dtype.kind == "f":
            array[at] = draw.choice([*FLOATS[:7], FLOATS[9], FLOATS[11], 2.0, 7.0, 1e6, 2.0**31, -5.0])
        elif draw.random() < 0.5:
            array[at] ^= dtype.type(1 << draw.randrange(8 * dtype.itemsize) if dtype.kind == "u" else 1)
        else:
            array[at] = np.array(draw.choice(NUMBERS) % 2 ** (8 * dtype.itemsize - (dtype.kind == "i"))).astype(dtype)
