"""Checks of arrays that were read from a saved data set.

A checksum says that the bytes are those that were written, not that whoever wrote them meant well. Kernels index
histograms by bins without looking, so a bin out of range must end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from daskboost.data.array_file import Array
from daskboost.data.chunk import QuantizedChunk
from daskboost.data.cuts import Cuts, rises_within
from daskboost.data.labels import LabelStats
from daskboost.data.manifest import CUTS_FILE, MANIFEST, ChunkRecord, Manifest, layout_of
from daskboost.data.pack import CsrLayout, DenseLayout, Layout, n_words
from daskboost.errors import DataError, DatasetFormatError


def check_cuts(arrays: Mapping[str, Array], manifest: Manifest) -> tuple[Cuts, Layout]:
    """The cuts and the layout that the arrays of `cuts.bin` hold.

    Raises
    ------
    DatasetFormatError
        They do not fit the schema, are out of order or out of range.
    """
    expected = {"values", "offsets", "has_missing"} | ({"bits"} if manifest.csr_bits is None else set())
    _require(set(arrays) == expected, f"{CUTS_FILE} must have the arrays {', '.join(sorted(expected))}")
    n_features = manifest.schema.n_features
    for name in expected & {"has_missing", "bits"}:
        _require(arrays[name].shape == (n_features,), f"{name} in {CUTS_FILE} does not fit {n_features} features")
    _require(bool(np.all(arrays["has_missing"] <= 1)), f"has_missing in {CUTS_FILE} must be 0 or 1")
    try:
        cuts = Cuts(arrays["values"], arrays["offsets"], arrays["has_missing"].astype(np.bool_)).validate()
        layout = layout_of(manifest.csr_bits, arrays.get("bits"))
    except DataError as error:
        raise DatasetFormatError(f"{CUTS_FILE}: {error}") from error
    if isinstance(layout, DenseLayout):
        _require(not np.any((cuts.n_bins - 1) >> layout.bits), f"bits in {CUTS_FILE} are too few for the cut points")
    else:
        _require((cuts.total_bins - 1) >> layout.bits == 0, "layout.bits are too few for the cut points")
    return cuts, layout


def check_chunk(chunk: QuantizedChunk, rows: Mapping[str, Array], cuts: Cuts) -> None:
    """Refuse bins out of range, row pointers that do not increase, and values that are not finite.

    Raises
    ------
    DatasetFormatError
    """
    if isinstance(chunk.layout, DenseLayout):
        _check_dense(chunk, chunk.layout, cuts)
    else:
        _check_csr(chunk, chunk.layout, cuts)
    for name, array in rows.items():
        _require(bool(np.all(np.isfinite(array))), f"its {name} has values that are not finite")
    _require(bool(np.all(rows.get("weight", np.zeros(1)) >= 0)), "its weight has negative values")


def _check_dense(chunk: QuantizedChunk, layout: DenseLayout, cuts: Cuts) -> None:
    length = n_words(8 * chunk.n_rows * layout.row_stride_bytes)
    _require(len(chunk.words) == length, f"its words are not those of {chunk.n_rows} rows")
    most = cuts.n_bins - 1 + cuts.has_missing  # a symbol for missing values only where some row lacks the feature
    _require(bool(np.all(chunk.symbols().max(axis=0, initial=0) <= most)), "a bin is out of range")


def _check_csr(chunk: QuantizedChunk, layout: CsrLayout, cuts: Cuts) -> None:
    assert chunk.indptr is not None, "the manifest was checked for it"
    starts = chunk.indptr.astype(np.int64)
    _require(bool(starts[0] == 0 and np.all(np.diff(starts) >= 0)), "its row pointers do not increase from 0")
    n_entries = int(starts[-1])
    length = n_words(n_entries * layout.bits)
    _require(len(chunk.words) == length, f"its words are not those of {n_entries} entries")
    _, bins = chunk.global_bins()
    in_range = bool(np.all((bins >= 0) & (bins < cuts.total_bins)))
    _require(in_range, "a bin is out of range")
    features = np.repeat(np.arange(cuts.n_features, dtype=np.int32), cuts.n_bins)[bins]
    _require(rises_within(features, starts), "the features of a row are not in order")
    lacking = np.bincount(features, minlength=cuts.n_features) < chunk.n_rows
    _require(not np.any(lacking & ~cuts.has_missing), "a row lacks a feature that has_missing says all rows have")


def check_numbered(chunks: Sequence[ChunkRecord], n_rows: int, path: str) -> None:
    """Refuse chunks, in order and without overlap, that do not have all rows from 0 on.

    Raises
    ------
    DatasetFormatError
    """
    found = sum(chunk.n_rows for chunk in chunks)
    _require(found == n_rows, f"{path}: the manifest has {n_rows} rows, its chunks have {found}")
    numbered = not chunks or chunks[-1].first_row + chunks[-1].n_rows == n_rows
    _require(numbered, f"{path}: the chunks' rows are not numbered from 0 to {n_rows - 1}")


def check_stats(found: LabelStats, said: LabelStats) -> None:
    """Refuse statistics that are not those of the rows: fits know labels and weights by these alone.

    Raises
    ------
    DatasetFormatError
    """
    _require(found == said, f"{MANIFEST}: metadata.stats are {said}, but the rows have {found}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DatasetFormatError(otherwise)
