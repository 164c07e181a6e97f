"""The manifest of a saved data set: what its files hold, read with suspicion (see docs/dataset_format.md).

Pure: text in, checked values out, and back. Nothing here allocates more than a small multiple of the text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from daskboost.data.categories.encoder import Encoder
from daskboost.data.chunks.chunk import QuantizedChunk
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, Layout
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_batch import CATEGORY_CODE, FeatureSchema
from daskboost.data.input.row_columns import COLUMNS
from daskboost.dtypes import Array
from daskboost.errors import DataError, DatasetFormatError, ModelFormatError, shortened

FORMAT = "daskboost-dataset"
VERSION = 2  # 1 said of a data set only whether its rows start from a model's margins, not which model's
ENCODER_VERSION = 3
"""Version of data sets with categorical columns, which say how features are made of them."""
WIDER_VERSION = 4
"""Version of those some of whose features are codes of categories, or made of several columns."""
MANIFEST = "manifest.json"
DIGEST = "manifest.blake2b"
CUTS_FILE = "cuts.bin"
MAX_MANIFEST_BYTES = 1 << 28  # about 500,000 chunks

CUTS_ARRAYS = {"values": "<f4", "offsets": "<i4", "has_missing": "|u1", "bits": "|u1"}
CHUNK_ARRAYS = {"words": "<u4", "indptr": "<u4", **{name: rule.dtype for name, rule in COLUMNS.items()}}
BIN_ARRAYS = ("words", "indptr")
"""Arrays of a chunk's bins; the second only of CSR chunks."""
KINDS = ("float", "int", "i", CATEGORY_CODE)
LARGEST = 2**63 - 1

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True)
class ArrayRecord:
    """One array of a file: little-endian, C order, right behind the one before it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    crc32: int

    def to_json(self) -> Json:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "crc32": self.crc32}


@dataclass(frozen=True)
class ChunkRecord:
    """One chunk's file."""

    first_row: int
    n_rows: int
    arrays: tuple[ArrayRecord, ...]

    @property
    def file(self) -> str:
        """Follows from the first row, so that no file outside of the data set can be named."""
        return f"rows-{self.first_row:019d}.bin"

    def to_json(self) -> Json:
        arrays = [array.to_json() for array in self.arrays]
        return {"file": self.file, "first_row": self.first_row, "n_rows": self.n_rows, "arrays": arrays}

    @classmethod
    def from_json(cls, value: object, where: str) -> ChunkRecord:
        """Check and convert one element of `chunks`, which engines also send to whoever writes the manifest."""
        chunk = expect(value, dict, where)
        first_row = count(field(chunk, "first_row", int, where), f"{where}.first_row")
        n_rows = count(field(chunk, "n_rows", int, where), f"{where}.n_rows")
        if n_rows == 0:
            fail(f"{where}.n_rows", "must be positive", n_rows)
        count(first_row + n_rows, f"{where}.first_row + n_rows")
        record = cls(first_row, n_rows, _arrays(chunk, CHUNK_ARRAYS, where))
        if chunk.get("file") != record.file:
            fail(f"{where}.file", f"must be {record.file!r}", chunk.get("file"))
        for array in record.arrays:
            rows = n_rows + 1 if array.name == "indptr" else n_rows
            n_dimensions = 2 if array.name in COLUMNS and COLUMNS[array.name].several else 1
            if len(array.shape) != n_dimensions or (array.name != "words" and array.shape[0] != rows):
                fail(f"{where}.arrays.{array.name}.shape", f"does not fit {n_rows} rows", array.shape)
        return record


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says.

    Parameters
    ----------
    csr_bits : int, or None
        Symbol width of a CSR data set; None for a dense one, whose widths are an array of `cuts.bin`.
    cuts : tuple of ArrayRecord
        The arrays of `cuts.bin`.
    chunks : tuple of ChunkRecord
        In increasing order of rows, which never overlap.
    metadata : dict
        Any JSON object of the caller.
    """

    schema: FeatureSchema
    csr_bits: int | None
    cuts: tuple[ArrayRecord, ...]
    chunks: tuple[ChunkRecord, ...]
    metadata: Json

    @property
    def cuts_arrays(self) -> set[str]:
        """Names of the arrays that `cuts.bin` must have."""
        return {*CUTS_ARRAYS} - ({"bits"} if self.csr_bits is not None else set())

    def to_bytes(self) -> bytes:
        """The text of `manifest.json`; TypeError or ValueError where the metadata is not JSON."""
        csr = {"encoding": "csr", "bits": self.csr_bits}
        manifest = {
            "format": FORMAT,
            "version": _version_of(self.schema),
            "n_rows": sum(chunk.n_rows for chunk in self.chunks),
            "schema": _schema_json(self.schema),
            "layout": {"encoding": "dense"} if self.csr_bits is None else csr,
            "cuts": {"file": CUTS_FILE, "arrays": [array.to_json() for array in self.cuts]},
            "chunks": [chunk.to_json() for chunk in self.chunks],
            "metadata": self.metadata,
        }
        return json.dumps(manifest, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Check the text of `manifest.json`; DatasetFormatError with the field that is wrong."""
        root = _parse(text)
        _check_version(root)
        layout = field(root, "layout", dict, "")
        encoding = field(layout, "encoding", str, "layout")
        if encoding not in ("dense", "csr"):
            fail("layout.encoding", "must be 'dense' or 'csr'", encoding)
        csr_bits = field(layout, "bits", int, "layout") if encoding == "csr" else None
        if csr_bits is not None and not 1 <= csr_bits <= 32:
            fail("layout.bits", "must be from 1 to 32", csr_bits)
        cuts = field(root, "cuts", dict, "")
        if cuts.get("file") != CUTS_FILE:
            fail("cuts.file", f"must be {CUTS_FILE!r}", cuts.get("file"))
        return cls(
            _schema(field(root, "schema", dict, "")),
            csr_bits,
            _arrays(cuts, CUTS_ARRAYS, "cuts"),
            _chunks(root, csr_bits is not None),
            field(root, "metadata", dict, ""),
        )


def digest(text: bytes) -> bytes:
    """The content of `manifest.blake2b`: it vouches for every byte of the manifest, whatever its version."""
    return hashlib.blake2b(text, digest_size=32).hexdigest().encode() + b"\n"


def fail(where: str, must: str, value: object) -> NoReturn:
    raise DatasetFormatError(f"{MANIFEST}: {where} {must}, got {reprlib.repr(value)}")


def expect(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        fail(where, f"must be of type {kind.__name__}", value)
    return value


def field(parent: Json, name: str, kind: type[T], where: str) -> T:
    path = f"{where}.{name}" if where else name
    if name not in parent:
        raise DatasetFormatError(f"{MANIFEST}: {path} is missing")
    return expect(parent[name], kind, path)


def count(value: int, where: str) -> int:
    if not 0 <= value <= LARGEST:
        fail(where, "must be from 0 to 2**63 - 1", value)
    return value


def _parse(text: bytes) -> Json:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return expect(json.loads(text, parse_constant=refuse), dict, "the manifest")
    except (ValueError, RecursionError) as error:
        if isinstance(error, DatasetFormatError):
            raise
        raise DatasetFormatError(f"{MANIFEST} is not valid JSON: {error}") from error


def _check_version(root: Json) -> None:
    if root.get("format") != FORMAT:
        fail("format", f"must be {FORMAT!r}", root.get("format"))
    version = field(root, "version", int, "")
    if version > WIDER_VERSION:
        raise DatasetFormatError(
            f"{MANIFEST}: the data set has format version {version}, this daskboost reads up to {WIDER_VERSION}: "
            "upgrade daskboost, or save the data set again with this version"
        )
    if version < 1:
        fail("version", "must be positive", version)


def _version_of(schema: FeatureSchema) -> int:
    """Return the least version that reads data sets of a schema."""
    if schema.is_code.any() or schema.of_several:
        return WIDER_VERSION
    return VERSION if schema.encoder is None else ENCODER_VERSION


def _schema_json(schema: FeatureSchema) -> Json:
    found: Json = {"names": schema.names, "kinds": schema.kinds}
    if isinstance(schema.encoder, Encoder):
        found["encoder"] = schema.encoder.to_json()
    return found


def _schema(schema: Json) -> FeatureSchema:
    found = _features(schema)
    if "encoder" not in schema:
        return found
    try:
        return Encoder.from_json(field(schema, "encoder", dict, "schema")).schema_for(found)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, ModelFormatError) as error:
        raise DatasetFormatError(f"{MANIFEST}: schema.encoder is damaged: {shortened(repr(error))}") from error


def _features(schema: Json) -> FeatureSchema:
    kinds = field(schema, "kinds", list, "schema")
    for kind in kinds:
        if kind not in KINDS:
            fail("schema.kinds", f"must be of {KINDS}", kind)
    names = schema.get("names")
    if names is None:
        return FeatureSchema(None, tuple(kinds))
    names = expect(names, list, "schema.names")
    if len(names) != len(kinds) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        fail("schema.names", f"must be {len(kinds)} different strings", names)
    return FeatureSchema(tuple(names), tuple(kinds))


def _arrays(parent: Json, dtypes: dict[str, str], where: str) -> tuple[ArrayRecord, ...]:
    records: list[ArrayRecord] = []
    for value in field(parent, "arrays", list, where):
        array = expect(value, dict, f"{where}.arrays")
        name = field(array, "name", str, f"{where}.arrays")
        here = f"{where}.arrays.{reprlib.repr(name)[1:-1]}"
        if name not in dtypes or name in [record.name for record in records]:
            fail(here, f"must be one of {', '.join(dtypes)}, and once", name)
        if array.get("dtype") != dtypes[name]:
            fail(f"{here}.dtype", f"must be {dtypes[name]!r}", array.get("dtype"))
        lengths = field(array, "shape", list, here)
        shape = tuple(count(expect(length, int, f"{here}.shape"), f"{here}.shape") for length in lengths)
        records.append(ArrayRecord(name, dtypes[name], shape, field(array, "crc32", int, here)))
    return tuple(records)


def _chunks(root: Json, is_csr: bool) -> tuple[ChunkRecord, ...]:
    values = field(root, "chunks", list, "")
    chunks = tuple(ChunkRecord.from_json(value, f"chunks[{i}]") for i, value in enumerate(values))
    for i, (before, after) in enumerate(itertools.pairwise(chunks)):
        if before.first_row + before.n_rows > after.first_row:
            fail(f"chunks[{i + 1}].first_row", "must lie behind the rows of the chunk before", after.first_row)
    kinds = {tuple((array.name, array.shape[1:]) for array in chunk.arrays) for chunk in chunks}
    if len(kinds) > 1:
        raise DatasetFormatError(f"{MANIFEST}: chunks must all have the same arrays, got {reprlib.repr(sorted(kinds))}")
    for names in ([name for name, _ in kind] for kind in kinds):
        if "words" not in names or ("indptr" in names) != is_csr:
            fail("chunks", "must have words, and indptr exactly if the encoding is csr", names)
    n_rows = count(field(root, "n_rows", int, ""), "n_rows")
    if n_rows != sum(chunk.n_rows for chunk in chunks):
        fail("n_rows", "must be the sum of the chunks' n_rows", n_rows)
    return chunks


# Checks of arrays that were read from a saved data set.
#
# A checksum says that the bytes are those that were written, not that whoever wrote them meant well. Kernels index
# histograms by bins without looking, so a bin out of range must end here.

def check_cuts(arrays: Mapping[str, Array], manifest: Manifest) -> tuple[Cuts, Layout]:
    """The cuts and the layout that the arrays of `cuts.bin` hold; DatasetFormatError where they do not fit the schema,
    are out of order or out of range."""
    expected = manifest.cuts_arrays
    _require(set(arrays) == expected, f"{CUTS_FILE} must have the arrays {', '.join(sorted(expected))}")
    n_features = manifest.schema.n_features
    for name in expected & {"has_missing", "bits"}:
        _require(arrays[name].shape == (n_features,), f"{name} in {CUTS_FILE} does not fit {n_features} features")
    _require(bool(np.all(arrays["has_missing"] <= 1)), f"has_missing in {CUTS_FILE} must be 0 or 1")
    try:
        cuts = Cuts(arrays["values"], arrays["offsets"], arrays["has_missing"].astype(np.bool_)).validate()
        layout = DenseLayout(arrays["bits"]) if manifest.csr_bits is None else CsrLayout(manifest.csr_bits)
    except DataError as error:
        raise DatasetFormatError(f"{CUTS_FILE}: {error}") from error
    _require(layout.holds(cuts), "the layout's bits are too few for the cut points")
    return cuts, layout


def check_chunk(chunk: QuantizedChunk, rows: Mapping[str, Array], cuts: Cuts) -> None:
    """Refuse bins out of range, row pointers that do not increase, and values that are not finite, by
    DatasetFormatError."""
    fault = chunk.fault(cuts)
    _require(not fault, fault)
    for name, array in rows.items():
        _require(bool(np.all(np.isfinite(array))), f"its {name} has values that are not finite")
        least = COLUMNS[name].least
        _require(bool(np.all(array >= least)), f"its {name} has values below {least:g}")


def check_numbered(chunks: Sequence[ChunkRecord], n_rows: int, path: str) -> None:
    """Refuse chunks, in order and without overlap, that do not have all rows from 0 on, by DatasetFormatError."""
    found = sum(chunk.n_rows for chunk in chunks)
    _require(found == n_rows, f"{path}: the manifest has {n_rows} rows, its chunks have {found}")
    numbered = not chunks or chunks[-1].first_row + chunks[-1].n_rows == n_rows
    _require(numbered, f"{path}: the chunks' rows are not numbered from 0 to {n_rows - 1}")


def check_stats(found: LabelStats, said: LabelStats) -> None:
    """Refuse statistics that are not those of the rows, by DatasetFormatError: fits know labels and weights by these
    alone."""
    _require(found == said, f"{MANIFEST}: metadata.stats are {said}, but the rows have {found}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DatasetFormatError(otherwise)
