"""Margins and leaves of rows on a GPU: launches of `kernels/rank_rows.cu`, `predict.cu` and `predict_wide.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from daskboost.devices.gpu.forest import (
    GROUP_WORDS,
    TILE_ROWS,
    KeyForest,
    RankForest,
    Thresholds,
    key_forest,
    n_code_columns,
    rank_bytes_of,
    rank_forest,
)
from daskboost.devices.gpu.quantize.bins import as_float32
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride
from daskboost.dtypes import Array

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict import PackedForest
    from daskboost.devices.cpu.predict_models import PackedModels

ForestT = TypeVar("ForestT", RankForest, KeyForest)

THREADS = 256
"""Threads of a block, as in `kernels/rank_rows.cu`, `predict_wide.cu` and `predict_vectors.cu`."""
WALK_THREADS = (512, 256, 128)
"""What `kernels/predict.cu` is compiled for. More threads share a copy of the trees; fewer leave room for wide rows."""
FEATURE_GROUP = 32
STAGED_BYTES = 4 * TILE_ROWS * (FEATURE_GROUP + 1)
"""Features of a block of `kernels/rank_rows.cu`, and its shared memory for their values."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Blocks of kernels that stride over the rows: enough to fill any device."""
RANK_BYTES = 2**29
"""Ranks of so many bytes at a time, or a quarter of the free memory if that is less: 19 million rows of 28 columns."""
FEW_RANK_BYTES = 2**26
"""Ranks of so many bytes are made at once, whatever is free."""
CONVERTED_BYTES = 2**28
"""Values of other types than float32 are converted so many bytes at a time."""


@dataclass(frozen=True)
class DenseValues:
    """A matrix on the device; NaN and `missing` are missing."""

    values: DeviceArray
    """Any numeric type and strides, shape (rows, features)."""
    missing: float

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])

    def part(self, begin: int, end: int) -> DenseValues:
        """Return some of the rows."""
        return DenseValues(self.values[begin:end], self.missing)

    def walk(self, forest: DeviceForest, out: DeviceArray, infinite: DeviceArray) -> None:
        """Have a forest add margins to `out`, or write leaves, and mark the features that have infinite values."""
        for part in forest.parts(self):
            forest.walk_dense(self.values[part], self.missing, out[part], infinite)

    def find_positions(self, forest: ModelForest, out: DeviceArray) -> None:
        """Have a forest write positions of models of leaves to `out`, int8 of shape (rows, columns)."""
        step = max(1, CONVERTED_BYTES // (4 * max(self.n_features, 1)))
        for begin in range(0, self.n_rows, step):
            values = as_float32(forest.runtime, self.values[begin : begin + step])
            forest.find_positions(values, _strides(values), (None, None), self.missing, out[begin : begin + step])


@dataclass(frozen=True)
class SparseValues:
    """A CSR matrix on the device; absent entries, NaN and `missing` are missing."""

    indptr: DeviceArray
    """int64, shape (rows + 1,)."""
    indices: DeviceArray
    """int32, increasing within a row."""
    values: DeviceArray
    """float32."""
    n_features: int
    missing: float

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    def part(self, begin: int, end: int) -> SparseValues:
        """Return some of the rows, whose entries are found among those of all."""
        return replace(self, indptr=self.indptr[begin : end + 1])

    def walk(self, forest: DeviceForest, out: DeviceArray, infinite: DeviceArray) -> None:
        """Have a forest do the same as for `DenseValues.walk`."""
        forest.walk_sparse(self, out, infinite)

    def find_positions(self, forest: ModelForest, out: DeviceArray) -> None:
        """Have a forest do the same as for `DenseValues.find_positions`."""
        forest.find_positions(self.values, None, (self.indptr, self.indices), self.missing, out)


Values = DenseValues | SparseValues


@dataclass(eq=False)
class DeviceForest:
    """A forest on a device."""

    runtime: Runtime
    packed: PackedForest
    places: Sequence[int]
    """Place of each tree's output in a row of margins, where trees of one output follow each other; or of its leaf."""
    leaves: bool
    """Whether leaves are wanted, not margins."""

    def __post_init__(self) -> None:
        self._ranked: tuple[RankForest, RankForest, int] | None = None  # in the host's memory and the device's; threads
        self._keyed: KeyForest | None = None
        thresholds = Thresholds.of(self.packed)
        rank_bytes = rank_bytes_of(self.packed, thresholds)
        threads = None if rank_bytes is None else self._walk_threads(rank_bytes)
        if rank_bytes is not None and threads is not None:
            host = rank_forest(self.packed, thresholds, rank_bytes, self.places, self.leaves)
            self._ranked = (host, _upload(self.runtime, host), threads)

    def _walk_threads(self, rank_bytes: int) -> int | None:
        """Threads of a block whose rows fit shared memory beside two groups of trees; None where a warp's do not."""
        tile = len(self.packed.missing) * TILE_ROWS * rank_bytes
        most = self.runtime.shared_bytes
        return next((n for n in WALK_THREADS if _walk_bytes(n, tile) <= most), None)

    def run(self, rows: Values, out: DeviceArray, infinite: DeviceArray) -> None:
        """Add the margins of rows to `out`, float32, or write their leaves to it, int32; shape (rows, places), C order.

        Parameters
        ----------
        infinite : uint8 array of the device, shape (features,)
            Becomes 1 for features with values that are infinite, for which there is no prediction. The host does not
            wait for it.
        """
        if rows.n_rows and rows.n_features:
            rows.walk(self, out, infinite)

    def walk_dense(self, given: DeviceArray, missing: float, out: DeviceArray, infinite: DeviceArray) -> None:
        """Walk a matrix of any type, one of `parts`; see `DenseValues.walk`."""
        values = as_float32(self.runtime, given)
        if self._ranked is None:
            self._find_infinite(values, None, (values.size, *_inner_axis(values)), missing, infinite)
            self._walk_keys(values, (0, *_strides(values)), (None, None), missing, out)
        else:
            self._walk_ranks(*self._ranked, values, missing, out, infinite)

    def walk_sparse(self, rows: SparseValues, out: DeviceArray, infinite: DeviceArray) -> None:
        """Walk a CSR matrix, see `DenseValues.walk`."""
        if n := len(rows.values):
            self._find_infinite(rows.values, rows.indices, (n, 1, 1, 1, 0), rows.missing, infinite)
        self._walk_keys(rows.values, (1, 0, 0), (rows.indptr, rows.indices), rows.missing, out)

    def parts(self, rows: DenseValues) -> list[slice]:
        """Rows whose ranks, or converted values, fit the memory set aside for them."""
        room = float("inf")
        if self._ranked is not None:
            row_bytes = max(self._ranked[0].n_columns * self._ranked[0].rank_bytes, 1)
            n_bytes = RANK_BYTES
            if rows.n_rows * row_bytes > FEW_RANK_BYTES:  # to ask takes the driver a while
                n_bytes = min(n_bytes, self.runtime.free_bytes // 4)
            room = n_bytes / row_bytes
        if rows.values.dtype != np.float32:
            room = min(room, CONVERTED_BYTES / (4 * rows.n_features))
        tiles = -(-rows.n_rows // TILE_ROWS)
        n_parts = max(1, -(-tiles // max(1, int(min(room / TILE_ROWS, tiles)))))
        step = -(-tiles // n_parts) * TILE_ROWS
        return [slice(start, min(start + step, rows.n_rows)) for start in range(0, rows.n_rows, step)]

    def _walk_ranks(self, host: RankForest, forest: RankForest, threads: int, values: DeviceArray, missing: float,
                    out: DeviceArray, infinite: DeviceArray) -> None:  # fmt: skip
        runtime, n_rows = self.runtime, len(values)
        n_tiles = -(-n_rows // TILE_ROWS)
        tile = host.n_columns * TILE_ROWS * host.rank_bytes
        ranks = runtime.xp.empty(max(n_tiles * tile, 16), np.uint8)
        self._rank(host, forest, values, missing, ranks, infinite)
        warps = threads // 32
        kernel = runtime.kernel("predict", "walk_ranks", RANK_BYTES=host.rank_bytes, LEAF=int(self.leaves),
                                THREADS=threads)  # fmt: skip
        kernel(
            -(-n_tiles // warps), threads, ranks, host.n_columns, n_rows, forest.groups, forest.group_trees,
            len(host.group_trees), forest.deep, _bits(out, self.leaves), out.shape[1],
            shared_bytes=_walk_bytes(threads, tile),
        )  # fmt: skip

    def _rank(self, host: RankForest, forest: RankForest, values: DeviceArray, missing: float, ranks: DeviceArray,
              infinite: DeviceArray) -> None:  # fmt: skip
        runtime, (n_rows, n_features) = self.runtime, values.shape
        n_groups = -(-n_features // FEATURE_GROUP)
        bounds = np.concatenate([[0], host.threshold_ends])
        starts = np.minimum(np.arange(n_groups + 1) * FEATURE_GROUP, len(host.threshold_ends))
        own_bytes = STAGED_BYTES + 4 * int(np.diff(bounds[starts]).max(initial=0))
        staged = host.rank_bytes == 1 or own_bytes <= runtime.shared_bytes
        most = BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors // n_groups + 1
        kernel = runtime.kernel("rank_rows", "rank_rows", RANK_BYTES=host.rank_bytes, STAGED=int(staged))
        kernel(
            n_groups * min(most, -(-n_rows // TILE_ROWS)), THREADS, values, *_strides(values), n_rows, n_features,
            missing, forest.thresholds, forest.threshold_ends, forest.feature_columns, len(host.threshold_ends),
            host.n_columns, ranks, infinite, shared_bytes=own_bytes if staged else STAGED_BYTES,
        )  # fmt: skip

    def _walk_keys(self, values: DeviceArray, how: tuple[int, int, int],
                   pointers: tuple[DeviceArray | None, DeviceArray | None], missing: float, out: DeviceArray
                   ) -> None:  # fmt: skip
        """`how` : whether values are entries, and strides of a matrix. `pointers` : row pointers and features."""
        if self._keyed is None:
            self._keyed = _upload(self.runtime, key_forest(self.packed, self.places, self.leaves))
        keyed, has_sets = self._keyed, n_code_columns(self.packed) > 0
        kernel = self.runtime.kernel(
            "predict_wide", "walk_keys", SPARSE=how[0], LEAF=int(self.leaves), HAS_SETS=int(has_sets)
        )
        kernel(
            -(-len(out) // THREADS), THREADS, values, *how[1:], *pointers, missing, len(out),
            keyed.column_feature, keyed.column_missing, keyed.nodes, keyed.roots, keyed.places, len(self.places),
            keyed.first_code_column, keyed.code_start, keyed.codes, keyed.words, _bits(out, self.leaves), out.shape[1],
        )  # fmt: skip

    def _find_infinite(self, values: DeviceArray, indices: DeviceArray | None, how: tuple[int, ...], missing: float,
                       infinite: DeviceArray) -> None:  # fmt: skip
        kernel = self.runtime.kernel("rank_rows", "find_infinite", RANK_BYTES=1)
        kernel(_blocks(self.runtime, how[0]), THREADS, values, indices, *how, missing, infinite)


def _blocks(runtime: Runtime, n: int) -> int:
    return min(-(-n // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)


def _inner_axis(matrix: DeviceArray) -> tuple[int, int, int, int]:
    """Elements along the axis whose neighbours lie closest; strides of the other axis and of this one; whether it is
    a row's."""
    rows, features = _strides(matrix)
    n_rows, n_features = matrix.shape
    return (n_rows, features, rows, 0) if rows < features else (n_features, rows, features, 1)


def _walk_bytes(threads: int, tile_bytes: int) -> int:
    return 2 * 4 * GROUP_WORDS + threads // 32 * tile_bytes


def _strides(matrix: DeviceArray) -> tuple[int, int]:
    """Elements from row to row and from feature to feature."""
    return element_stride(matrix), element_stride(matrix.T)


def _bits(out: DeviceArray, leaves: bool) -> DeviceArray:
    return out.view(np.uint32) if leaves else out


def _upload(runtime: Runtime, forest: ForestT) -> ForestT:
    """A forest whose arrays lie on the device; empty ones have an element, since kernels take an address.

    Waits until they lie there: from then on any stream may use them.
    """
    made = {}
    for field in fields(forest):
        value = getattr(forest, field.name)
        if isinstance(value, np.ndarray):
            value = runtime.xp.asarray(value if value.size else np.zeros(4, value.dtype))
        made[field.name] = value
    runtime.record_event().synchronize()
    return type(forest)(**made)


# Margins of rows on a GPU by trees whose leaves are vectors: launches of `kernels/predict_vectors.cu`.

LEAF_BYTES = 2**28
"""Leaves of so many bytes are found at a time."""


class VectorForest:
    """A forest of trees of all outputs on a device."""

    def __init__(self, runtime: Runtime, forest: PackedForest) -> None:
        self.runtime, self._n_trees = runtime, len(forest.node_start)
        self._leaves = DeviceForest(runtime, forest, range(self._n_trees), leaves=True)
        self._values, self._starts = runtime.xp.asarray(forest.values), runtime.xp.asarray(forest.node_start)
        runtime.record_event().synchronize()  # as for forests of one output

    def run(self, rows: Values, out: DeviceArray, infinite: DeviceArray) -> None:
        """Add margins as `DeviceForest.run` does."""
        runtime, n_outputs = self.runtime, out.shape[1]
        step = max(1, LEAF_BYTES // (4 * self._n_trees))
        for begin in range(0, rows.n_rows, step):
            part = rows.part(begin, min(begin + step, rows.n_rows))
            leaves = runtime.xp.zeros((part.n_rows, self._n_trees), np.int32)
            self._leaves.run(part, leaves, infinite)
            margin = out[begin : begin + part.n_rows]
            runtime.kernel("predict_vectors", "add_vectors")(
                _blocks(runtime, margin.size), THREADS, leaves, self._n_trees, self._values, self._starts,
                n_outputs, part.n_rows, margin,
            )  # fmt: skip


# Margins of rows on a GPU by trees whose leaves have models: launches of `kernels/predict_models.cu`.

class ModelForest:
    """A forest of trees whose leaves have models, on a device; `models` : of the same trees."""

    def __init__(self, runtime: Runtime, forest: PackedForest, models: PackedModels) -> None:
        self.runtime, self._n_trees = runtime, len(forest.node_start)
        self._leaves = DeviceForest(runtime, forest, range(self._n_trees), leaves=True)
        self._n_columns, self._n_terms = len(models.cut_begin) - 1, models.column.shape[1]
        features = np.flatnonzero(models.column_of >= 0).astype(np.int32)  # columns are in the order of features
        scale = features, models.column_of, models.cut_begin, models.cuts
        trees = models.node_start, models.output, models.value, models.column, models.slope
        self._scale, self._trees = ([_filled(runtime, each) for each in arrays] for arrays in (scale, trees))
        runtime.record_event().synchronize()  # as for forests of one output

    def find_positions(self, values: DeviceArray, strides: tuple[int, int] | None,
                       pointers: tuple[DeviceArray | None, DeviceArray | None], missing: float, out: DeviceArray
                       ) -> None:  # fmt: skip
        """Write the positions of rows to `out`, int8 of shape (rows, columns).

        `values` : float32, a matrix with these strides, or the entries of rows, whose pointers and features are given.
        """
        features, column_of, cut_begin, cuts = self._scale
        kernel = self.runtime.kernel("predict_models", "find_positions", SPARSE=int(strides is None))
        if values.size:
            kernel(
                _blocks(self.runtime, out.size), THREADS, values, *(strides or (0, 0)), *pointers, missing, len(out),
                self._n_columns, features, column_of, len(column_of), cut_begin, cuts, out,
            )  # fmt: skip

    def run(self, rows: Values, out: DeviceArray, infinite: DeviceArray) -> None:
        """Add margins as `DeviceForest.run` does."""
        runtime, (starts, outputs, values, columns, slopes) = self.runtime, self._trees
        step = max(1, LEAF_BYTES // (4 * self._n_trees + self._n_columns))
        for begin in range(0, rows.n_rows, step):
            part = rows.part(begin, min(begin + step, rows.n_rows))
            leaves = runtime.xp.zeros((part.n_rows, self._n_trees), np.int32)
            self._leaves.run(part, leaves, infinite)
            positions = runtime.xp.zeros((part.n_rows, self._n_columns), np.int8)
            part.find_positions(self, positions)
            margin = out[begin : begin + part.n_rows]
            runtime.kernel("predict_models", "add_models", SPARSE=0)(
                _blocks(runtime, part.n_rows), THREADS, leaves, self._n_trees, starts, outputs, values, columns,
                slopes, self._n_terms, positions, self._n_columns, part.n_rows, margin.shape[1], margin,
            )  # fmt: skip


def _filled(runtime: Runtime, array: Array) -> DeviceArray:
    """An array on the device; an empty one has an element, since kernels take an address."""
    found: DeviceArray = runtime.xp.asarray(array if array.size else np.zeros(1, array.dtype))
    return found


AnyForest = DeviceForest | VectorForest | ModelForest
"""What predicts rows on a device."""
