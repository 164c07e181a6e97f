"""Parquet files, one row group a partition, read where the partition is needed and no sooner."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daskboost.data.input.schema import unique_names
from daskboost.errors import DataError

_BATCH_ROWS = 65_536  # rows decoded at a time
_STREAM_BYTES = 65_536  # compressed bytes held per column while decoding


@dataclass(frozen=True)
class RowGroup:
    """A row group that has not been read: small, and valid on any machine that sees the file."""

    path: str
    """File on a local or shared file system."""
    index: int
    """Number of the row group within the file."""
    n_rows: int
    columns: tuple[str, ...]
    """The columns that will be read."""

    def batches(self, columns: Sequence[Hashable] | None = None) -> Iterator[Any]:
        """Its rows as pyarrow RecordBatches of bounded size."""
        names = list(self.columns if columns is None else columns)
        with _open(self.path) as file:
            yield from file.iter_batches(_BATCH_ROWS, row_groups=[self.index], columns=names, use_threads=False)

    def column(self, name: Hashable) -> Any:
        """One column as a pyarrow ChunkedArray; the others are not read."""
        with _open(self.path) as file:
            return file.read_row_group(self.index, columns=[name], use_threads=False).column(0)

    def select(self, columns: Sequence[Hashable]) -> RowGroup:
        """The same rows with other columns."""
        return replace(self, columns=tuple(str(name) for name in columns))

    def __str__(self) -> str:
        return f"row group {self.index} of {self.path}"


@dataclass(frozen=True)
class ParquetTable:
    """Row groups of one or more files with the same columns."""

    names: tuple[str, ...]
    types: tuple[tuple[Any, ...], ...]
    """Arrow types per column: all those that occur in a file."""
    groups: tuple[RowGroup, ...]


def open_parquet(path: str | os.PathLike[str]) -> ParquetTable:
    """Read the footers of a Parquet file, or of all Parquet files of a directory in the order of their names, whose
    numbers count as numbers: ``part.2.parquet`` comes before ``part.10.parquet``, as for Dask, which names files so.

    DataError where there is no Parquet file, one is damaged, or their columns differ.
    """
    groups: list[RowGroup] = []
    names: tuple[str, ...] | None = None
    types: list[dict[Any, None]] = []
    for file in _files(Path(path)):
        with _open(str(file)) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
            present = unique_names(_columns(schema), str(file))
            if names is None:
                names, types = present, [{} for _ in present]
            if set(present) != set(names) or len(present) != len(names):
                different = sorted(set(present) ^ set(names))
                raise DataError(f"{file} has other columns than the files before it: {different}. Make them equal.")
            for column, seen in zip(names, types, strict=True):
                seen[schema.field(column).type] = None
            for i in range(metadata.num_row_groups):
                groups.append(RowGroup(str(file.absolute()), i, metadata.row_group(i).num_rows, names))
    assert names is not None
    return ParquetTable(names, tuple(tuple(seen) for seen in types), tuple(groups))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"X is the path {str(path)!r}, where there is no file or directory. Pass a Parquet path.")
    files = [
        file
        for file in sorted(path.rglob("*"), key=_by_numbers)
        if file.is_file()
        and file.suffix in (".parquet", ".parq", ".pq")
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    ]
    if not files:
        raise DataError(f"The directory {str(path)!r} has no files named *.parquet.")
    hive = next((file for file in files if any("=" in part for part in file.relative_to(path).parts[:-1])), None)
    if hive is not None:
        raise DataError(
            f"{str(path)!r} holds columns in directory names ({hive.relative_to(path)}). "
            "Pass dask.dataframe.read_parquet(path) with the columns to use instead of the path."
        )
    return files


def _by_numbers(path: Path) -> list[tuple[list[str | int], str]]:
    """What a path is sorted by: of every name on it the texts and numbers in turn, then the name itself."""
    return [
        ([int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", name)], name)
        for name in path.parts
    ]


def _columns(schema: Any) -> tuple[str, ...]:
    """Names of the columns, without those in which pandas stored its index."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if name not in index)


def _open(path: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Streams in place of whole column chunks: 82 MB of Arrow memory for 107 MB of float32 features, not 200 MB
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=_STREAM_BYTES)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}. Write the file again or exclude it.") from error
