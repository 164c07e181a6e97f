"""Checks of arrays that were read from a saved data set.

A checksum says that the bytes are those that were written, not that whoever wrote them meant well. Kernels index
histograms by bins without looking, so a bin out of range must end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from daskboost.data.chunk import QuantizedChunk
from daskboost.data.cuts import Cuts
from daskboost.data.labels import LabelStats
from daskboost.data.manifest import CUTS_FILE, MANIFEST, ChunkRecord, Manifest, layout_of
from daskboost.data.pack import Layout
from daskboost.dtypes import Array
from daskboost.errors import DataError, DatasetFormatError


def check_cuts(arrays: Mapping[str, Array], manifest: Manifest) -> tuple[Cuts, Layout]:
    """The cuts and the layout that the arrays of `cuts.bin` hold.

    Raises
    ------
    DatasetFormatError
        They do not fit the schema, are out of order or out of range.
    """
    expected = manifest.cuts_arrays
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
    _require(layout.holds(cuts), "the layout's bits are too few for the cut points")
    return cuts, layout


def check_chunk(chunk: QuantizedChunk, rows: Mapping[str, Array], cuts: Cuts) -> None:
    """Refuse bins out of range, row pointers that do not increase, and values that are not finite.

    Raises
    ------
    DatasetFormatError
    """
    fault = chunk.fault(cuts)
    _require(not fault, fault)
    for name, array in rows.items():
        _require(bool(np.all(np.isfinite(array))), f"its {name} has values that are not finite")
    _require(bool(np.all(rows.get("weight", np.zeros(1)) >= 0)), "its weight has negative values")


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
