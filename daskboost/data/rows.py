"""Rows as they come from a source: one partition's features, label, weight and base margin as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

from daskboost.dtypes import Float32, Int32, Int64


@dataclass(frozen=True)
class FeatureSchema:
    """Names and kinds of the features, agreed on before any partition is read.

    Parameters
    ----------
    names : tuple of str, or None
        Column names in training order; None where the input has none (arrays, sparse matrices).
    kinds : tuple of str
        One of ``"float"``, ``"int"``, ``"i"`` (boolean indicator) per feature: XGBoost's ``feature_types``.
    """

    names: tuple[str, ...] | None
    kinds: tuple[str, ...]

    @property
    def n_features(self) -> int:
        return len(self.kinds)

    def label(self, feature: int) -> str:
        """How messages and plots call a feature: its name, or ``f<index>``."""
        return self.names[feature] if self.names is not None else f"f{feature}"


@dataclass(frozen=True)
class DenseRows:
    """Features as a matrix; NaN is missing."""

    values: Float32
    """float32, C-contiguous, shape (rows, features); never infinite."""

    @property
    def n_rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.values.shape[1])


@dataclass(frozen=True)
class SparseRows:
    """Features as CSR; an absent entry is missing, a stored zero is a value."""

    indptr: Int64
    """int64, shape (rows + 1,)."""
    indices: Int32
    """int32, feature of each entry, increasing within a row."""
    values: Float32
    """float32, never NaN (such entries are dropped on reading), never infinite."""
    n_features: int

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1


Features = DenseRows | SparseRows


@dataclass(frozen=True)
class RowBatch:
    """One partition, converted and checked.

    Parameters
    ----------
    features : DenseRows or SparseRows
    label : float32 array, shape (rows,), or None when predicting
    weight : float32 array, shape (rows,), or None for all ones
    base_margin : float32 array, shape (rows, outputs), or None for the model's base score
    """

    features: Features
    label: Float32 | None = None
    weight: Float32 | None = None
    base_margin: Float32 | None = None

    @property
    def n_rows(self) -> int:
        return self.features.n_rows
