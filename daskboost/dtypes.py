"""The array types of the library, each with its reason."""

from __future__ import annotations

from typing import NamedTuple

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
GAIN = np.float64  # gains and leaf values, computed from exact integers

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
Pairs = Int32 | Int64
"""g above h: int16 each in an int32, or, of small data, int32 each in an int64."""
Symbols = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class Csr(NamedTuple):
    """A sparse matrix: row `i` has the entries `indptr[i]` to `indptr[i + 1]`."""

    indptr: Int64
    indices: Int32
    """Feature of each entry, increasing within a row."""
    values: Float32 | UInt32
    """Value of each entry: float32, or its bits."""
