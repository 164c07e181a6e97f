"""Saving and opening quantized data sets: a directory of plain array files and one manifest.

Every engine writes the files of its own chunks into a temporary directory; whoever collects their records writes the
manifest and renames the directory, so that a data set is there completely or not at all. Opening divides the chunks
among any number of engines. The format is described in docs/dataset_format.md.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.data.chunks.chunk import QuantizedChunk
from daskboost.data.chunks.packing import CsrLayout, Layout
from daskboost.data.chunks.shard import Shard, ShardBuilder
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.data.input.row_columns import COLUMNS, ChunkRows, ColumnSummary, RowColumns
from daskboost.data.saved import manifest as m
from daskboost.data.saved.array_file import ArrayFile, bytes_of, crc32, write_file
from daskboost.data.saved.manifest import ArrayRecord, ChunkRecord, Manifest, check_chunk, check_cuts
from daskboost.dtypes import Array
from daskboost.errors import DatasetFormatError, ParameterError, StorageError, shortened
from daskboost.params import as_path

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class SavedDataset:
    """An opened data set: everything but the rows.

    Parameters
    ----------
    chunks : tuple of ChunkRecord
        In order of rows; engines divide them by position.
    metadata : dict
        What was passed to `DatasetWriter.commit`.
    digest : bytes
        Of the manifest, which tells data sets that replace each other apart, on whatever machine.
    place : tuple of int, or None
        The directory as it was when this was read, see `_place_of`.
    """

    path: Path
    cuts: Cuts
    schema: FeatureSchema
    layout: Layout
    chunks: tuple[ChunkRecord, ...]
    metadata: dict[str, Any]
    digest: bytes
    place: tuple[int, ...] | None

    @property
    def n_rows(self) -> int:
        return sum(chunk.n_rows for chunk in self.chunks)

    @property
    def columns(self) -> ColumnSummary:
        """The columns that the rows of all chunks have beside features."""
        names = frozenset(array.name for chunk in self.chunks for array in chunk.arrays)
        return ColumnSummary(names.intersection(COLUMNS))

    @property
    def chunk_bytes(self) -> int:
        """Return the bytes of all chunks' bins, as a store counts them."""
        arrays = [array for chunk in self.chunks for array in chunk.arrays if array.name in m.BIN_ARRAYS]
        return sum(np.dtype(array.dtype).itemsize * array.shape[0] for array in arrays)


class DatasetWriter:
    """Writes a data set that becomes visible at once, by `commit`; left without it, nothing stays.

    Parameters
    ----------
    path : path
        The data set's directory.
    overwrite : bool
        Whether to replace a data set that is there; never replaces anything else.

    Raises
    ------
    ParameterError
        Something is at `path` already.
    StorageError
        The directory cannot be made, or the disk is full.
    """

    def __init__(self, path: PathLike, overwrite: bool = False) -> None:
        self._path = as_path("path", path, "a directory").resolve()
        self._overwrite = overwrite
        self._check_target()
        self._token = secrets.token_hex(8)
        self.directory = self._path.with_name(f".{self._path.name}.{self._token}.partial")
        """Where engines write their chunks' files: on a cluster it must be on a file system that all of them share."""
        with _storage_errors("could not make the directory", self.directory):
            self.directory.mkdir(parents=True)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def commit(
        self,
        cuts: Cuts,
        schema: FeatureSchema,
        layout: Layout,
        chunks: Iterable[ChunkRecord],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the cuts and the manifest, and move the directory to its place."""
        arrays: dict[str, Array] = {
            "values": cuts.values,
            "offsets": cuts.offsets,
            "has_missing": cuts.has_missing.view(np.uint8),
        }
        arrays.update(layout.saved_arrays)
        records = _write_arrays(self.directory / m.CUTS_FILE, arrays, m.CUTS_ARRAYS)
        in_order = tuple(sorted(chunks, key=lambda chunk: chunk.first_row))
        csr_bits = layout.bits if isinstance(layout, CsrLayout) else None
        manifest = Manifest(schema, csr_bits, records, in_order, dict(metadata or {}))
        try:
            text = manifest.to_bytes()
        except (TypeError, ValueError) as error:
            raise ParameterError(f"metadata must be a JSON object, got {metadata!r}: {error}") from error
        Manifest.from_bytes(text)  # engines that disagree, or rows written twice, end here and not at the reader
        with _storage_errors("could not write the manifest", self.directory):
            write_file(self.directory / m.MANIFEST, [text], sync=True)
            write_file(self.directory / m.DIGEST, [m.digest(text)], sync=True)
            _sync_directory(self.directory)
        self._move_into_place()

    def _check_target(self) -> None:
        if not os.path.lexists(self._path):
            return
        if not self._overwrite:
            raise ParameterError(f"path {str(self._path)!r} exists already: pass overwrite=True to replace it")
        if not (self._path / m.MANIFEST).is_file() or not (self._path / m.DIGEST).is_file():
            raise ParameterError(
                f"path {str(self._path)!r} exists and is not a saved data set, so overwrite=True does not replace it: "
                "remove it, or choose another path"
            )

    def _move_into_place(self) -> None:
        self._check_target()
        old = self._path.with_name(f".{self._path.name}.{self._token}.old")
        with _storage_errors("could not move the data set to", self._path):
            if self._path.exists():
                self._path.rename(old)
            try:
                self.directory.rename(self._path)
            except BaseException:
                if old.exists():
                    old.rename(self._path)
                raise
            _sync_directory(self._path.parent)
        shutil.rmtree(old, ignore_errors=True)


def write_chunk_files(directory: PathLike, shard: Shard) -> tuple[ChunkRecord, ...]:
    """Write one engine's chunks into `DatasetWriter.directory`; what `commit` needs to know of them. StorageError where
    a chunk could not be read or written."""
    records = []
    for index, kept in shard.chunks():
        chunk = kept.on_host()
        if chunk.n_rows == 0:
            continue
        arrays: dict[str, Array] = dict(zip(m.BIN_ARRAYS, chunk.arrays, strict=False))
        arrays.update(shard.entries[index].rows.present)
        path = Path(directory) / ChunkRecord(chunk.first_row, chunk.n_rows, ()).file
        written = _write_arrays(path, arrays, m.CHUNK_ARRAYS)
        records.append(ChunkRecord(chunk.first_row, chunk.n_rows, written))
    return tuple(records)


def read_dataset(path: PathLike, digest: bytes | None = None) -> SavedDataset:
    """Open a data set; the rows are read by `open_chunks`.

    DatasetFormatError, with the file, where one is missing, truncated, damaged, from a newer version or not to be
    trusted; and where the data set was replaced meanwhile.

    `digest` : of the manifest, where another process has read it already.
    """
    directory = as_path("path", path, "a directory")
    place = _place_of(directory)
    if not directory.is_dir():
        raise DatasetFormatError(f"data set {directory}: there is no such directory")
    with _noticing(directory, place):
        with _naming(directory / m.DIGEST):
            expected = _read_small(directory / m.DIGEST)
        with _naming(directory / m.MANIFEST):
            text = _read_small(directory / m.MANIFEST)
            if m.digest(text) != expected:
                raise DatasetFormatError(f"{m.MANIFEST} is damaged: it does not match {m.DIGEST}")
            manifest = Manifest.from_bytes(text)
        with _naming(directory / m.CUTS_FILE):
            arrays = _read_arrays(directory / m.CUTS_FILE, manifest.cuts)
            cuts, layout = check_cuts(arrays, manifest)
    if digest not in (None, expected):
        raise _replaced(directory)
    return SavedDataset(
        directory, cuts, manifest.schema, layout, manifest.chunks, manifest.metadata, expected, place
    )


def _place_of(directory: Path) -> tuple[int, ...] | None:
    """Return what tells a data set's directory from one that replaces it, which another process moves into its place;
    None where there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _replaced(directory: Path) -> DatasetFormatError:
    return DatasetFormatError(f"data set {directory} was replaced or removed while it was opened: open it again")


@contextlib.contextmanager
def _noticing(directory: Path, place: tuple[int, ...] | None) -> Iterator[None]:
    """Where a data set cannot be read, and is another one by now than it was at `place`, say so: it is not damaged."""
    try:
        yield
    except DatasetFormatError as error:
        if _place_of(directory) != place:
            raise _replaced(directory) from error
        raise


def open_chunks(
    dataset: SavedDataset, subset: Iterable[int] | None = None
) -> Iterator[tuple[QuantizedChunk, ChunkRows]]:
    """Read chunks, one in memory at a time; errors as of `read_dataset`.

    `subset` : positions in `dataset.chunks`, which is how engines divide them; None for all.
    """
    for index in range(len(dataset.chunks)) if subset is None else subset:
        record = dataset.chunks[index]
        path = dataset.path / record.file
        with _noticing(dataset.path, dataset.place), _naming(path):
            arrays = _read_arrays(path, record.arrays)
            bins = [arrays.pop(name) for name in m.BIN_ARRAYS if name in arrays]
            chunk = QuantizedChunk.of(dataset.layout, record.first_row, record.n_rows, *bins)
            check_chunk(chunk, arrays, dataset.cuts)
        del bins
        yield chunk, RowColumns(**arrays)
        del chunk, arrays


def open_shard(dataset: SavedDataset, subset: Iterable[int] | None, store: ChunkStore) -> Shard:
    """Read chunks into a store, as a shard; parameters and errors as in `open_chunks`."""
    with ShardBuilder(dataset.cuts, dataset.layout, 1, store) as builder:
        for chunk, rows in open_chunks(dataset, subset):
            builder.add_chunk(chunk, rows)
        return builder.finish()


def _write_arrays(path: Path, arrays: Mapping[str, Array], dtypes: Mapping[str, str]) -> tuple[ArrayRecord, ...]:
    parts = [bytes_of(array.astype(dtypes[name], copy=False)) for name, array in arrays.items()]
    with _storage_errors("could not write", path):
        write_file(path, parts, sync=True)
    return tuple(ArrayRecord(name, dtypes[name], array.shape, crc32(array)) for name, array in arrays.items())


def _read_arrays(path: Path, records: Iterable[ArrayRecord]) -> dict[str, Array]:
    arrays = {}
    with ArrayFile(path) as file:
        for record in records:
            array = file.read(record.dtype, record.shape)
            if crc32(array) != record.crc32:
                raise DatasetFormatError(f"{path.name} is damaged: its {record.name} does not match its checksum")
            arrays[record.name] = array
        if not file.at_end:
            raise DatasetFormatError(f"{path.name} is longer than {m.MANIFEST} says")
    return arrays


def _read_small(path: Path) -> bytes:
    with ArrayFile(path) as file:
        if file.size > m.MAX_MANIFEST_BYTES:
            raise DatasetFormatError(f"{path.name} is {file.size} bytes long, more than {m.MAX_MANIFEST_BYTES}")
        return file.read("u1", (file.size,)).tobytes()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with one file of a data set into an error that names the file."""
    try:
        yield
    except DatasetFormatError as error:
        raise DatasetFormatError(f"data set {path.parent}: {shortened(str(error))}") from error.__cause__
    except FileNotFoundError as error:
        raise DatasetFormatError(f"data set {path.parent}: {path.name} is missing") from error
    except EOFError as error:
        raise DatasetFormatError(f"data set {path.parent}: {path.name} is truncated: {error}") from error
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise DatasetFormatError(f"data set {path.parent}: {path.name} cannot be read: {error}") from error


@contextlib.contextmanager
def _storage_errors(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(error.errno, f"{what}: {error.strerror or error}", str(path)) from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
