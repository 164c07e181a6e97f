"""The array types of the library, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

FEATURE = np.float32  # feature values and cut points: what a split compares, here and in XGBoost's model format
SYMBOL_WORD = np.uint32  # words of bit-packed chunks: a GPU's native load
BIN = np.uint16  # a bin's index within its feature, so max_bin <= 65,535 with one symbol left for missing
GLOBAL_BIN = np.int32  # a bin's index over all features: features x max_bin stays under 2**31
LOCAL_ROW = np.uint32  # a row's index within its chunk: chunks have fewer than 2**32 rows
GLOBAL_ROW = np.int64  # a row's index within the whole data set
MARGIN = np.float32  # raw scores: what models in XGBoost's format add up
GRADIENT = np.float32  # gradients before they become integers
QUANTIZED_GRADIENT = np.int16  # |g|, h <= 2**15 - 1: two fit in one int32, sums of 2**16 of them in an int32
SMALL_DATA_GRADIENT = np.int32  # g, h of small data, all of whose rows have sums within int32: two fit in one int64
HISTOGRAM = np.int64  # sums of quantized gradients: 2**48 rows of 15 bits cannot overflow
MAX_CATEGORIES = 2**24  # codes of categories are less: up to here float32 has every integer, and XGBoost's sets end
GAIN = np.float64  # gains and leaf values, computed from exact integers

T = TypeVar("T", bound=np.generic)
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int32 | np.int64]
"""Numbers for which 32 bits are enough but of the largest data."""
Pairs = Int32 | Int64
"""g above h: int16 each in an int32, or, of small data, int32 each in an int64."""
Symbols = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Array = npt.NDArray[Any]
"""An array of numbers, of NumPy or CuPy; typed as NumPy's, whose interface CuPy's arrays have."""
Shape = int | tuple[int, ...]


class ArrayModule(Protocol):
    """The functions that NumPy and CuPy share, as far as they are called; arrays go to and come from one of the two."""

    @property
    def lib(self) -> ModuleType: ...
    @property
    def ndarray(self) -> type[Any]: ...

    def empty(self, shape: Shape, dtype: npt.DTypeLike = ..., order: Literal["C", "F"] = "C") -> Array: ...
    def zeros(self, shape: Shape, dtype: npt.DTypeLike = ...) -> Array: ...
    def ones(self, shape: Shape, dtype: npt.DTypeLike) -> Array: ...
    def full(self, shape: Shape, fill_value: complex | np.generic, dtype: npt.DTypeLike) -> Array: ...
    def empty_like(self, prototype: Array, /) -> Array: ...
    def ones_like(self, a: Array) -> Array: ...
    def asarray(self, a: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array: ...
    def ascontiguousarray(self, a: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array: ...
    def array(self, a: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, order: Literal["K", "C", "F"] = "K"
              ) -> Array: ...  # fmt: skip
    def arange(self, stop: int, /, *, dtype: npt.DTypeLike | None = None) -> Array: ...
    def concatenate(self, arrays: Sequence[Array], /, axis: int = 0) -> Array: ...
    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array: ...
    def where(self, condition: Array, x: npt.ArrayLike, y: npt.ArrayLike, /) -> Array: ...
    def clip(self, a: Array, a_min: npt.ArrayLike, a_max: npt.ArrayLike) -> Array: ...
    def searchsorted(self, a: Array, v: Array, side: Literal["left", "right"] = "left") -> Array: ...
    def cumsum(self, a: Array, axis: int | None = None, dtype: npt.DTypeLike | None = None) -> Array: ...
    def bincount(self, x: Array, /, weights: Array | None = None, minlength: int = 0) -> Array: ...
    def argsort(self, a: Array) -> Array: ...
    def argmax(self, a: Array, axis: int) -> Array: ...
    def count_nonzero(self, a: Array, /) -> np.intp: ...
    def copyto(self, dst: Array, src: Array) -> None: ...
    def diff(self, a: Array, /) -> Array: ...
    def sort(self, a: Array) -> Array: ...
    def take(self, a: Array, indices: Array, axis: int, out: Array) -> Array: ...
    def unique(self, ar: Array) -> Array: ...
    def abs(self, x: Array, /) -> Array: ...
    def rint(self, x: Array, /) -> Array: ...
    def sign(self, x: Array, /) -> Array: ...
    def sqrt(self, x: Array, /) -> Array: ...
    def add(self, x1: Array, x2: Array, /) -> Array: ...
    def maximum(self, x1: Array, x2: npt.ArrayLike, /) -> Array: ...
    def minimum(self, x1: Array, x2: npt.ArrayLike, /) -> Array: ...
    def multiply(self, x1: Array, x2: npt.ArrayLike, /, out: Array) -> Array: ...


class Csr(NamedTuple):
    """A sparse matrix: row `i` has the entries `indptr[i]` to `indptr[i + 1]`."""

    indptr: Int64
    indices: Int32
    """Feature of each entry, increasing within a row."""
    values: Float32 | UInt32
    """Value of each entry: float32, or its bits."""


# Arrays of one value per row, which people give and get as vectors or as matrices of one column.

def flat(values: Array) -> Array:
    """Return a view of a matrix of one column as a vector, shape (rows,); any other array as it is."""
    return values[:, 0] if values.shape[1:] == (1,) else values


def read_only(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """Return a view that cannot be written to, as for memory that is a user's own or Arrow's.

    Numba compiles kernels once more for each mix of arrays that can be written to and arrays that cannot.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def for_kernels(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """Return an array that is aligned and not read-only, as received ones may not be: numba would compile every kernel
    once more."""
    return np.require(array, requirements=["C", "W", "A"])


def in_columns(values: Array) -> Array:
    """Return a view of a vector as a matrix of one column, shape (rows, 1); any other array in its own shape."""
    return values.reshape(len(values), *(values.shape[1:] or (1,)))

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""The largest finite float32."""
