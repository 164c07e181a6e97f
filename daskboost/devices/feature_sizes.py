"""How many present values the features of a data set have, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.dtypes import Int64


@dataclass(frozen=True)
class FeatureSizes:
    """Features by the size of what they have: those of size k have more than 2**(k-1) values, and at most 2**k."""

    n_features: tuple[int, ...]
    """Number of features of each size, from 0."""
    n_entries: tuple[int, ...]
    """Values that these have together."""

    @classmethod
    def of(cls, entries: Int64) -> FeatureSizes:
        """Count features by their numbers of values; those without any do not count."""
        entries = entries[entries > 0]
        sizes = np.frexp((entries - 1).astype(np.float64))[1]  # exact: no count has more than 53 bits
        n = int(sizes.max(initial=-1)) + 1
        sums = np.zeros(n, np.int64)
        np.add.at(sums, sizes, entries)
        return cls(tuple(np.bincount(sizes, minlength=n).tolist()), tuple(sums.tolist()))

    @classmethod
    def even(cls, n_features: int, n_entries: int) -> FeatureSizes:
        """Where nothing else is known: each as many as any other."""
        counts = np.full(n_features, n_entries // max(n_features, 1))
        counts[: n_entries % max(n_features, 1)] += 1
        return cls.of(counts)

    def above(self, n: int) -> tuple[int, int]:
        """Features that have more than `n` values, a power of two, and the values that they have together."""
        size = n.bit_length()
        return sum(self.n_features[size:]), sum(self.n_entries[size:])
