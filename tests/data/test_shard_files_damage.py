"""Saved data sets that were damaged, or made up by someone who means harm: refused, naming the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies.saved_dataset import edit, read_all, save

from daskboost.data.chunks.packing import Encoding
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.saved.array_file import crc32
from daskboost.data.saved.manifest import digest
from daskboost.data.saved.shard_files import open_shard, read_dataset
from daskboost.errors import DatasetFormatError


@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_every_flipped_byte_is_found_and_its_file_named(tmp_path: Path, encoding: Encoding, mask: int) -> None:
    save(tmp_path / "d", encoding, chunk_rows=50)
    for file in (tmp_path / "d").iterdir():
        good = file.read_bytes()
        step = max(1, len(good) // 400)
        for position in range(mask % step, len(good), step):
            bad = bytearray(good)
            bad[position] ^= mask
            file.write_bytes(bad)
            name = "manifest.json" if file.name == "manifest.blake2b" else file.name
            with pytest.raises(DatasetFormatError, match=re.escape(f"{name} is damaged")):
                read_all(tmp_path / "d")
        file.write_bytes(good)
    assert len(read_all(tmp_path / "d")) == 1


def test_every_truncation_and_extension_is_found_and_its_file_named(tmp_path: Path) -> None:
    save(tmp_path / "d", chunk_rows=50)
    for file in (tmp_path / "d").iterdir():
        good = file.read_bytes()
        name = "manifest.json" if file.name == "manifest.blake2b" else file.name
        for bad in [good[:length] for length in range(0, len(good), max(1, len(good) // 100))] + [good + b"\0"]:
            file.write_bytes(bad)
            with pytest.raises(DatasetFormatError, match=re.escape(name)):
                read_all(tmp_path / "d")
        file.unlink()
        with pytest.raises(DatasetFormatError, match=re.escape(f"{file.name} is missing")):
            read_all(tmp_path / "d")
        file.write_bytes(good)


def test_a_path_without_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match="there is no such directory"):
        read_dataset(tmp_path / "nowhere")
    with pytest.raises(DatasetFormatError, match=r"manifest\.blake2b is missing"):
        read_dataset(tmp_path)


def test_a_newer_version_says_so(tmp_path: Path) -> None:
    save(tmp_path / "d")
    edit(tmp_path / "d", lambda root: root.update(version=5, chunks="of a kind yet to come"))
    with pytest.raises(DatasetFormatError, match=r"format version 5, this daskboost reads up to 4: upgrade daskboost"):
        read_dataset(tmp_path / "d")


def chunk0(root: dict[str, Any]) -> dict[str, Any]:
    return root["chunks"][0]  # type: ignore[no-any-return]


def array0(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the record of an array of the first chunk."""
    found: dict[str, Any] = next(array for array in chunk0(record)["arrays"] if array["name"] == name)
    return found


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda r: r.update(format="parquet"), "format must be 'daskboost-dataset'"),
    "version a string": (lambda r: r.update(version="1"), "version must be of type int"),
    "version 0": (lambda r: r.update(version=0), "version must be positive"),
    "version missing": (lambda r: r.pop("version"), "version is missing"),
    "path escape": (lambda r: chunk0(r).update(file="../../etc/passwd"), r"chunks\[0\].file must be 'rows-0+.bin'"),
    "absolute path": (lambda r: r["cuts"].update(file="/etc/passwd"), "cuts.file must be 'cuts.bin'"),
    "dtype object": (lambda r: chunk0(r)["arrays"][0].update(dtype="|O"), "words.dtype must be '<u4'"),
    "dtype float64": (lambda r: chunk0(r)["arrays"][1].update(dtype="<f8"), "label.dtype must be '<f4'"),
    "unknown array": (lambda r: chunk0(r)["arrays"][0].update(name="x" * 10**6), "must be one of words, indptr"),
    "array twice": (lambda r: chunk0(r)["arrays"].append(chunk0(r)["arrays"][0]), "and once"),
    "no words": (lambda r: [c["arrays"].pop(0) for c in r["chunks"]], "must have words"),
    "chunks that differ": (lambda r: chunk0(r)["arrays"].pop(), "chunks must all have the same arrays"),
    "huge words": (lambda r: chunk0(r)["arrays"][0].update(shape=[2**62]), "rows-0+.bin is truncated"),
    "beyond 64 bits": (lambda r: chunk0(r)["arrays"][0].update(shape=[10**30]), r"shape must be from 0 to 2\*\*63 - 1"),
    "negative shape": (lambda r: chunk0(r)["arrays"][0].update(shape=[-1]), "shape must be from 0"),
    "boolean shape": (lambda r: chunk0(r)["arrays"][0].update(shape=[True]), "shape must be of type int"),
    "scalar words": (lambda r: chunk0(r)["arrays"][0].update(shape=[]), "does not fit"),
    "short label": (lambda r: chunk0(r)["arrays"][1].update(shape=[3]), "does not fit 15 rows"),
    "huge rows": (lambda r: (chunk0(r).update(n_rows=2**62), chunk0(r)["arrays"].clear()), "must lie behind"),
    "no rows": (lambda r: chunk0(r).update(n_rows=0), r"chunks\[0\].n_rows must be positive"),
    "negative first row": (lambda r: chunk0(r).update(first_row=-5), "first_row must be from 0"),
    "rows beyond 64 bits": (
        lambda r: (r["chunks"][-1].update(first_row=2**63 - 2, file=f"rows-{2**63 - 2:019d}.bin")),
        "first_row [+] n_rows must be from 0",
    ),
    "margins that differ": (lambda r: array0(r, "base_margin").update(shape=[15, 1]), "must all have the same arrays"),
    "overlap": (lambda r: r["chunks"].append(r["chunks"][0]), "must lie behind the rows"),
    "sum of rows": (lambda r: r.update(n_rows=41), "n_rows must be the sum"),
    "encoding": (lambda r: r["layout"].update(encoding="zip"), "layout.encoding must be 'dense' or 'csr'"),
    "dense as csr": (lambda r: r.update(layout={"encoding": "csr", "bits": 4}), "indptr exactly if"),
    "csr bits": (lambda r: r.update(layout={"encoding": "csr", "bits": 10**9}), "layout.bits must be from 1 to 32"),
    "kinds": (lambda r: r["schema"].update(kinds=["float", "int", "object"]), "schema.kinds must be of"),
    "unhashable kinds": (lambda r: r["schema"].update(kinds=[["float"]] * 3), "schema.kinds must be of"),
    "fewer kinds": (lambda r: r["schema"].update(kinds=["float"], names=None), "does not fit 1 features"),
    "names twice": (lambda r: r["schema"].update(names=["a", "a", "b"]), "must be 3 different strings"),
    "names numbers": (lambda r: r["schema"].update(names=[1, 2, 3]), "must be 3 different strings"),
    "cuts without offsets": (lambda r: r["cuts"]["arrays"].pop(1), "cuts.bin is"),
    "no cuts": (lambda r: r["cuts"]["arrays"].clear(), "cuts.bin is longer"),
    "many dimensions": (lambda r: r["cuts"]["arrays"][0].update(shape=[0] * 99), "cuts.bin cannot be read"),
    "empty but wide": (lambda r: r["cuts"]["arrays"][0].update(shape=[0, 2**62]), "cuts.bin"),
    "chunks an object": (lambda r: r.update(chunks={}), "chunks must be of type list"),
    "chunk a number": (lambda r: r.update(chunks=[5]), r"chunks\[0\] must be of type dict"),
    "metadata a list": (lambda r: r.update(metadata=[]), "metadata must be of type dict"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(tmp_path: Path, name: str) -> None:
    change, message = HOSTILE[name]
    save(tmp_path / "d")
    edit(tmp_path / "d", change)
    with pytest.raises(DatasetFormatError, match=message) as caught:
        read_all(tmp_path / "d")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 200_000, b'{"version": NaN}', b'{"version": ' + b"9" * 5000 + b"}"],
)
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path: Path, text: bytes) -> None:
    save(tmp_path / "d")
    (tmp_path / "d" / "manifest.json").write_bytes(text)
    (tmp_path / "d" / "manifest.blake2b").write_bytes(digest(text))
    with pytest.raises(DatasetFormatError, match="manifest"):
        read_dataset(tmp_path / "d")


def test_a_manifest_of_any_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    save(tmp_path / "d")
    with open(tmp_path / "d" / "manifest.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DatasetFormatError, match=r"manifest.json is 1099511627776 bytes long, more than"):
        read_dataset(tmp_path / "d")


def test_links_out_of_the_data_set_are_not_followed(tmp_path: Path) -> None:
    save(tmp_path / "d")
    file = tmp_path / "d" / "cuts.bin"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetFormatError, match=r"cuts.bin cannot be read: .*symbolic links"):
        read_dataset(tmp_path / "d")


def forge(path: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change an array and mend every checksum."""

    def mend(root: dict[str, Any]) -> None:
        for part in (root["cuts"], root["chunks"][0]):
            offset, data = 0, bytearray((path / part["file"]).read_bytes())
            for record in part["arrays"]:
                size = int(np.prod(record["shape"])) * int(record["dtype"][-1])
                array = np.frombuffer(data, record["dtype"], int(np.prod(record["shape"])), offset)
                if record["name"] == name:
                    change(array)
                    record["crc32"] = crc32(array)
                offset += size
            (path / part["file"]).write_bytes(data)

    edit(path, mend)


def put(position: int | slice, value: float) -> Callable[[Any], object]:
    return lambda array: array.__setitem__(position, value)


FORGED: dict[str, tuple[Encoding, str, Callable[[Any], object], str]] = {
    "dense symbol": ("dense", "words", put(slice(None), 0xFFFFFFFF), "a bin is out of range"),
    "csr symbol": ("csr", "words", put(0, 0xFFFFFFFF), "a bin is out of range"),
    "csr order": ("csr", "words", put(0, 0), "the features of a row are not in order"),
    "indptr start": ("csr", "indptr", put(0, 1), "row pointers do not increase from 0"),
    "indptr order": ("csr", "indptr", put(3, 0), "row pointers do not increase from 0"),
    "indptr end": ("csr", "indptr", put(-1, 10**9), "words are not those of 1000000000 entries"),
    "label": ("dense", "label", put(0, np.nan), "label has values that are not finite"),
    "weight": ("dense", "weight", put(0, -1), "weight has values below 0"),
    "margin": ("dense", "base_margin", put(0, np.inf), "base_margin has values that are not finite"),
    "cut order": ("dense", "values", put(1, 5), "cuts.bin: .* not strictly increasing"),
    "cut nan": ("dense", "values", put(3, np.nan), "cuts.bin: .* contain NaN or infinity"),
    "offsets start": ("dense", "offsets", put(0, -1), "cuts.bin: .*offsets do not divide the 4 values"),
    "offsets order": ("dense", "offsets", put(1, 9), "cuts.bin: .*offsets do not divide the 4 values"),
    "offsets end": ("dense", "offsets", put(-1, 2), "cuts.bin: .*offsets do not divide the 4 values"),
    "flags": ("dense", "has_missing", put(0, 7), "has_missing in cuts.bin must be 0 or 1"),
    "no missing": ("dense", "has_missing", put(1, 0), "a bin is out of range"),
    "csr without missing": ("csr", "has_missing", put(0, 0), "a row lacks a feature that has_missing says all rows"),
    "no bits": ("dense", "bits", put(0, 0), "cuts.bin: .*from 1 to 16"),
    "few bits": ("dense", "bits", put(0, 1), "the layout's bits are too few"),
}


@pytest.mark.parametrize("name", FORGED)
def test_arrays_that_would_break_a_kernel_are_refused(tmp_path: Path, name: str) -> None:
    encoding, array, change, message = FORGED[name]
    save(tmp_path / "d", encoding)
    forge(tmp_path / "d", array, change)
    with pytest.raises(DatasetFormatError, match=message):
        read_all(tmp_path / "d")


def test_csr_bits_too_few_for_the_cuts_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "d", "csr")
    edit(tmp_path / "d", lambda root: root["layout"].update(bits=2))
    with pytest.raises(DatasetFormatError, match=r"the layout's bits are too few"):
        read_dataset(tmp_path / "d")


def test_an_opening_engine_that_fails_keeps_no_chunks(tmp_path: Path) -> None:
    save(tmp_path / "d", chunk_rows=5)
    sorted((tmp_path / "d").glob("rows-*"))[-1].unlink()
    with ChunkStore() as store:
        with pytest.raises(DatasetFormatError, match="is missing"):
            open_shard(read_dataset(tmp_path / "d"), None, store)
        assert store.counters().ram_bytes == 0
