"""Few random combinations of many outputs' gradients, on which the structure of a vector-leaf tree is searched.

Iosipoi and Vakhrushev, "SketchBoost: Fast Gradient Boosted Decision Tree for Multioutput Problems", NeurIPS 2022: a
random projection of the gradients whose entries have mean zero. Ours is sparse (the count sketch of Charikar, Chen and
Farach-Colton, "Finding Frequent Items in Data Streams", 2002): hashes deal the outputs evenly among the columns and
give each a sign. The squared sums of the columns then estimate those of all outputs, as those of a dense projection do,
and every column has a second derivative of its own: a step along it moves its outputs by as much up or down, which
changes the loss by the sum of their hessians. So a column's gain is that of a true Newton step, and with as many
columns as outputs nothing would be lost. Dense signs share the mean hessian among all columns; with 10 columns for the
26 classes of the letter set, test log-loss after 30 rounds was .98 with them, .85 so, and .79 without a sketch.
"""

from __future__ import annotations

import numpy as np

from daskboost.dtypes import Float32
from daskboost.hashing import Purpose, draws, key


def make_projection(seed: int, iteration: int, n_outputs: int, n_columns: int) -> Float32:
    """The projection of one round, entries -1, 0 and 1; float32, shape (outputs, columns)."""
    bits = draws(key(seed, Purpose.GRADIENT_SKETCH, iteration), np.arange(n_outputs, dtype=np.uint64))
    column = np.empty(n_outputs, np.int64)
    column[np.argsort(bits, kind="stable")] = np.arange(n_outputs) % n_columns
    projection = np.zeros((n_outputs, n_columns), np.float32)
    projection[np.arange(n_outputs), column] = np.where(bits & np.uint64(1), -1, 1)
    return projection
