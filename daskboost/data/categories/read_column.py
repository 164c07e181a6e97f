"""A column of any library as codes of its distinct values: what counting levels and looking them up begin with.

Columns that have a dictionary (pandas' categories, Arrow's dictionaries) are read by it; all others are given one by a
hash table of pandas or Arrow. What no row has is no value. The same values come out of every container, so a kind is
judged by the values and not by the container's type: whole floats are integers, as pandas makes floats of integers
where some are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.data.categories.refusals import mixed_objects, no_level, no_unicode, require_int64, whole_numbers
from daskboost.data.categories.values import BOOLEAN, INTEGER, NOTHING, TEXT, LevelValues
from daskboost.data.input.device_read import host_block
from daskboost.data.input.kinds import kind_of, readable
from daskboost.dtypes import Array, Int64, flat, read_only
from daskboost.errors import DataTypeError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MISSING = -1
"""Code of a row without a value."""


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """The distinct values of a column, and which of them each row has.

    Parameters
    ----------
    values : LevelValues
        Distinct, in no particular order.
    codes : int64 or int32 array, shape (rows,)
        The place of each row's value, `MISSING` where it has none.
    """

    values: LevelValues
    codes: Array

    @classmethod
    def empty(cls, n_rows: int) -> CodedColumn:
        """Return a column without values."""
        return cls(LevelValues.of_integers(np.empty(0, np.int64), NOTHING), np.full(n_rows, MISSING, np.int32))

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes, with hashes and the order of its values, by which these are looked up."""
        return self.codes.nbytes + len(self.values.data) + 24 * len(self.values)

    @property
    def small(self) -> CodedColumn:
        """Return the same column with codes of 32 bits."""
        return CodedColumn(self.values, self.codes.astype(np.int32, copy=False))

    @property
    def counts(self) -> Int64:
        """Return the rows of each value, behind them those without one; shape (values + 1,)."""
        found = np.bincount(self.codes + 1, minlength=len(self.values) + 1)
        return np.roll(found, -1)

    def lacking(self, missing: float) -> CodedColumn:
        """Return the same column where rows of this value, if it is a number, have none."""
        if math.isnan(missing) or self.values.kind != INTEGER:
            return self
        integers = self.values.data.view("<i8")
        is_value = integers != missing
        if is_value.all():
            return self
        places = np.append(np.where(is_value, np.cumsum(is_value) - 1, MISSING), MISSING)
        return CodedColumn(LevelValues.of_integers(integers[is_value], INTEGER), self.mapped(places))

    def mapped(self, codes: Array) -> Array:
        """Return for each row what stands for its value in `codes`, of which the last is for rows without one."""
        return codes[self.codes]


def read_column(column: object, name: Hashable) -> CodedColumn:
    """Read a categorical column.

    Parameters
    ----------
    column : Series, Array or ChunkedArray, array or list
        A column of pandas, Arrow, NumPy, cuDF, CuPy, or of a library whose columns can be read as Arrow's.
    name : hashable
        What messages call the column.

    Raises
    ------
    DataTypeError
        For values that are neither texts, integers nor booleans, or a mix of these, and for several columns.
    DataError
        For infinite values, integers beyond 64 bits, floats too large to tell whole numbers apart, and texts that are
        no Unicode.
    """
    block = host_block(readable(column, f"column {name!r}"))
    kind = kind_of(block, f"column {name!r}")
    if kind == "numpy":
        if isinstance(block, list | tuple):  # of which NumPy would make values of one type
            return _of_objects(np.fromiter(block, object, len(block)), name)
        block = flat(block if isinstance(block, np.ndarray) else np.asarray(block))
    shape = getattr(block, "shape", (len(block),))  # which Arrow's columns lack
    if len(shape) != 1:
        raise DataTypeError(f"column {name!r} is of shape {shape}, which is no column. Pass a single one, as X[name].")
    if kind == "pandas":
        return _of_pandas(block, name)
    return _of_arrow(block, name) if kind == "pyarrow" else _of_numpy(block, name)


def _of_pandas(series: pd.Series, name: Hashable) -> CodedColumn:
    import pandas as pd
    import pyarrow as pa

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _of_dictionary(series.cat.codes.to_numpy(), lambda used: pd.Series(dtype.categories[used]), name)
    if getattr(dtype, "storage", "") == "python":  # strings that are Python's objects, which Arrow would have to encode
        return _of_objects(np.asarray(series, dtype=object), name)
    if not hasattr(series.array, "__arrow_array__") or isinstance(dtype, np.dtype):
        return _of_numpy(np.asarray(series), name)
    try:
        array = pa.array(series)
    except (pa.ArrowException, UnicodeError):  # a type that Arrow lacks, or no Unicode: both have messages of their own
        array = None
    if array is None or isinstance(array.type, pa.BaseExtensionType):
        return _of_objects(np.asarray(series, dtype=object), name)
    return _of_arrow(array, name)


def _of_arrow(column: pa.Array | pa.ChunkedArray, name: Hashable) -> CodedColumn:
    import pyarrow as pa
    from pyarrow import types

    dtype = column.type
    if column.null_count == len(column):
        return CodedColumn.empty(len(column))
    if types.is_dictionary(dtype):
        return _of_dictionary(*_joined_dictionaries(column), name)
    if types.is_floating(dtype):
        return _of_floats(column.to_numpy(zero_copy_only=False), name)
    kind = BOOLEAN if types.is_boolean(dtype) else INTEGER
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        column, kind = column.cast(pa.large_string()), TEXT
    elif not (types.is_integer(dtype) or types.is_boolean(dtype)):
        raise no_level(next(value for value in column if value.is_valid).as_py(), dtype, name)
    return _of_plain(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, kind, name)


def _of_plain(array: pa.Array, kind: str, name: Hashable) -> CodedColumn:
    """Read texts (of type large_string), integers or booleans of Arrow."""
    dictionary, codes = _encoded(array)
    if kind == TEXT:
        return CodedColumn(LevelValues.of_texts(dictionary), codes)
    integers = dictionary.to_numpy(zero_copy_only=False)
    if integers.dtype == np.uint64:
        require_int64(integers, name)
    return CodedColumn(LevelValues.of_integers(integers.astype(np.int64), kind), codes)


def _of_numpy(values: Array, name: Hashable) -> CodedColumn:
    import pyarrow as pa

    kind = values.dtype.kind
    missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    values = np.asarray(values) if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if kind == "U" and missing is None:
        texts = _fixed_texts(values)
        if texts is not None:
            return _of_plain(texts, TEXT, name)
    if kind in "OTU":
        objects = values.astype(object)  # a copy
        if missing is not None:
            objects[missing] = None
        return _of_objects(objects, name)
    if kind == "f":
        return _of_floats(values if missing is None else np.where(missing, np.nan, values), name)
    if kind in "Mm":
        missing = np.isnat(values) if missing is None else missing | np.isnat(values)
    if missing is not None and missing.all():
        return CodedColumn.empty(len(values))
    if kind not in "biu":
        raise no_level((values if missing is None else values[~missing])[0], values.dtype, name)
    return _of_plain(pa.array(values, mask=missing), BOOLEAN if kind == "b" else INTEGER, name)


def _fixed_texts(values: Array) -> pa.LargeStringArray | None:
    """Return NumPy's texts of fixed length as Arrow's, in a fifth of the time that Arrow takes; None where some are no
    Unicode."""
    import pyarrow as pa

    from daskboost.devices.cpu.byte_strings import measure_utf8, write_utf8

    n_letters = max(values.dtype.itemsize // 4, 1)
    points = np.ascontiguousarray(values, f"U{n_letters}").view(np.uint32).reshape(len(values), n_letters)
    points, ends = read_only(points), np.empty(len(values) + 1, np.int64)
    if measure_utf8(points, ends) >= 0:
        return None
    data = np.empty(ends[-1], np.uint8)
    write_utf8(points, ends, data)
    return pa.LargeStringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(data))


def _of_floats(values: Array, name: Hashable) -> CodedColumn:
    """Read floats that are whole numbers as integers, NaN as missing."""
    import pyarrow as pa

    numbers = values.astype(np.float64) + 0.0  # so that zeros are the same
    dictionary, codes = _encoded(pa.array(numbers, from_pandas=True))
    integers = whole_numbers(dictionary.to_numpy(), values.dtype, name)
    return CodedColumn(LevelValues.of_integers(integers, INTEGER), codes)


def _of_objects(values: Array, name: Hashable) -> CodedColumn:
    """Read Python's objects; None, NaN, NaT and pandas' NA are missing."""
    import pandas as pd
    import pyarrow as pa

    try:
        codes, distinct = pd.factorize(values)
    except TypeError as error:
        strange = next(value for value in values if not isinstance(value, Hashable))
        raise no_level(strange, type(strange).__name__, name) from error
    if pd.api.types.infer_dtype(distinct) == "string":
        try:
            return CodedColumn(LevelValues.of_texts(pa.array(distinct, pa.large_string())), codes)
        except UnicodeEncodeError as error:
            raise no_unicode(error, name) from error
    kind = pd.api.types.infer_dtype(values[codes != MISSING])  # of all rows, as 1 and True are the same to a hash table
    if kind == "empty":
        return CodedColumn.empty(len(values))
    if kind == "boolean":
        return CodedColumn(LevelValues.of_integers(distinct.astype(np.int64), BOOLEAN), codes)
    if kind == "integer":
        try:
            return CodedColumn(LevelValues.of_integers(np.array(distinct.tolist(), np.int64), INTEGER), codes)
        except OverflowError:
            require_int64(distinct, name)
    if kind in ("floating", "mixed-integer-float"):
        floats = distinct.astype(np.float64)
        return CodedColumn(LevelValues.of_integers(whole_numbers(floats, floats.dtype, name), INTEGER), codes)
    raise mixed_objects(values[codes != MISSING], name)


def _of_dictionary(codes: Array, taken: Callable[[Int64], object], name: Hashable) -> CodedColumn:
    """Read rows that are places in a dictionary, negative where missing.

    `taken` returns the dictionary's values at some places; only those that rows have are read.
    """
    counts = np.bincount(codes.astype(np.intp) + 1, minlength=1)
    used = np.flatnonzero(counts[1:])
    found = read_column(taken(used), name)
    by_place = np.full(len(counts), MISSING, np.int32)  # the last one is for what is missing
    by_place[used] = found.codes
    return CodedColumn(found.values, by_place[codes])


def _joined_dictionaries(column: pa.Array | pa.ChunkedArray) -> tuple[Array, Callable[[Int64], object]]:
    """Return the chunks' dictionaries as one, in which a value may occur twice, and the rows' places in it."""
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dictionaries: list[pa.Array] = []
    codes, start = [], 0
    for chunk in chunks:
        if dictionaries and chunk.dictionary.equals(dictionaries[-1]):
            start -= len(dictionaries[-1])
        else:
            dictionaries.append(chunk.dictionary)
        places = chunk.indices.cast(pa.int64()).fill_null(MISSING).to_numpy(zero_copy_only=False)
        codes.append(np.where(places == MISSING, MISSING, places + start))
        start += len(chunk.dictionary)
    joined = pa.chunked_array(dictionaries)
    return np.concatenate(codes), lambda used: joined.take(pa.array(used))


def _encoded(array: pa.Array) -> tuple[pa.Array, Array]:
    """Return an array's distinct values, and the place of each row's among them."""
    found = array.dictionary_encode()
    return found.dictionary, found.indices.fill_null(MISSING).to_numpy(zero_copy_only=False)
