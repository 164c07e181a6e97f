"""Sparse rows like those of indicators and counts of words, made on the host or on the device (see `generators.py`).

The columns are divided into as many strips as a row has values, and each strip gives one: column indices are distinct
and in order without a search. Within a strip the first columns are the frequent ones, the last ten times as rare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.generators import BLOCK_VALUES, EFFECT_ROW, LABEL_COLUMN, Array, hashes, normals, uniforms

VALUE_COLUMN = 1 << 19
"""Columns from here on feed values, those below indices."""


@dataclass(frozen=True)
class SparseWorkload:
    """A generator of CSR rows with two classes."""

    name: str
    n_features: int
    per_row: int
    """Values of each row; divides `n_features`."""
    indicators: bool = False
    """Whether the first column is there in every row, and is the only one whose values differ: the others are 1."""

    @property
    def n_classes(self) -> int:
        return 2

    def rows(self, n_rows: int, *, seed: int = 0, first: int = 0, xp: Any = np) -> tuple[Any, Array]:
        """Rows `first` to `first + n_rows`: CSR float32, of scipy.sparse or cupyx; label float32 (n_rows,)."""
        values = xp.empty((n_rows, self.per_row), xp.float32)
        columns = xp.empty((n_rows, self.per_row), xp.int32)
        label = xp.empty(n_rows, xp.float32)
        block_rows = max(1, BLOCK_VALUES // self.per_row)
        for start in range(0, n_rows, block_rows):
            part = slice(start, min(start + block_rows, n_rows))
            numbers = xp.arange(first + part.start, first + part.stop, dtype=xp.int64)
            columns[part], values[part], label[part] = self._make(numbers, seed, xp)
        indptr = xp.arange(n_rows + 1, dtype=xp.int32) * xp.int32(self.per_row)
        arrays = (values.reshape(-1), columns.reshape(-1), indptr)
        return _csr_matrix(xp)(arrays, shape=(n_rows, self.n_features)), label

    def _make(self, rows: Array, seed: int, xp: Any) -> tuple[Array, Array, Array]:
        strips = xp.arange(self.per_row, dtype=xp.int64)
        width = self.n_features // self.per_row
        draw = uniforms(hashes(rows, strips, seed, xp), xp)
        columns = strips * width + (draw * draw * width).astype(xp.int64)
        values = normals(hashes(rows, VALUE_COLUMN + strips, seed, xp), xp)
        if self.indicators:
            columns[:, 0], values[:, 1:] = 0, 1.0
        every = xp.arange(self.n_features, dtype=xp.int64)
        effects = normals(hashes(EFFECT_ROW + every, strips[:2], seed, xp), xp).astype(xp.float64)
        # A column says something by being there, and more by its value.
        terms = effects[:, 0][columns] + effects[:, 1][columns] * values.astype(xp.float64)
        logit = terms.sum(axis=1) * (2.0 / self.per_row**0.5)
        chance = uniforms(hashes(rows, xp.arange(LABEL_COLUMN, LABEL_COLUMN + 1, dtype=xp.int64), seed, xp), xp)[:, 0]
        return columns.astype(xp.int32), values, (chance < 1.0 / (1.0 + xp.exp(-logit))).astype(xp.float32)


def _csr_matrix(xp: Any) -> Any:
    if xp is np:
        from scipy.sparse import csr_matrix
    else:
        from cupyx.scipy.sparse import csr_matrix
    return csr_matrix


SPARSE_WORKLOADS = {w.name: w for w in (
    SparseWorkload("words", 5000, 50),
    SparseWorkload("many_words", 100_000, 50),
    SparseWorkload("indicators", 5000, 50, indicators=True),
)}  # fmt: skip
