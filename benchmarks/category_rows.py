"""Rows of numbers and of categories with skewed frequencies, made in the host's memory (see `generators.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.generators import (
    BLOCK_VALUES,
    EFFECT_ROW,
    LABEL_COLUMN,
    Array,
    hashes,
    normals,
    uniforms,
)

if TYPE_CHECKING:
    import pandas as pd

N_NUMBERS = 10
LEVELS = (100, 300, 1_000, 3_000, 5_000, 10_000, 20_000, 50_000)
"""Levels of each categorical column."""
NUMBERS = tuple(f"number_{column}" for column in range(N_NUMBERS))
CATEGORIES = tuple(f"category_{column}" for column in range(len(LEVELS)))
PAIR = (1, 3)
"""Categorical columns whose levels have an effect together, beside that of each."""
STRENGTH, PAIR_STRENGTH = 0.5, 0.7
"""Standard deviations of the effects of a level, and of a pair of levels, on the logit."""


def rows(n_rows: int, *, seed: int = 0, first: int = 0) -> tuple[pd.DataFrame, Array]:
    """Return rows `first` to `first + n_rows`: a frame of float32 numbers and int32 categories, and labels, float32."""
    import pandas as pd

    numbers = np.empty((n_rows, N_NUMBERS), np.float32)
    codes = np.empty((n_rows, len(LEVELS)), np.int32)
    labels = np.empty(n_rows, np.float32)
    block = BLOCK_VALUES // (N_NUMBERS + len(LEVELS))
    for start in range(0, n_rows, block):
        part = slice(start, min(start + block, n_rows))
        ids = np.arange(first + part.start, first + part.stop, dtype=np.int64)
        numbers[part], codes[part], labels[part] = _make(ids, seed)
    columns = {name: numbers[:, at].copy() for at, name in enumerate(NUMBERS)}
    return pd.DataFrame(columns | {name: codes[:, at].copy() for at, name in enumerate(CATEGORIES)}), labels


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the same rows with categories of texts in dictionaries, pandas' `category`."""
    import pandas as pd

    found = {
        name: pd.Categorical.from_codes(frame[name].to_numpy(), [f"level {code}" for code in range(n_levels)])
        for name, n_levels in zip(CATEGORIES, LEVELS, strict=True)
    }
    return frame.assign(**found)


def _make(ids: Array, seed: int) -> tuple[Array, Array, Array]:
    columns = np.arange(N_NUMBERS + len(LEVELS) + 1, dtype=np.int64)
    bits = hashes(ids, columns, seed, np)
    numbers = normals(bits[:, :N_NUMBERS], np)
    draws = uniforms(bits[:, N_NUMBERS:-1], np)
    codes = (draws * draws * np.array(LEVELS)).astype(np.int32)
    logit = 0.5 * numbers[:, 0].astype(np.float64) - 0.4 * numbers[:, 1] * numbers[:, 2]
    for column in range(len(LEVELS)):
        logit += STRENGTH * _effects(codes[:, column].astype(np.int64), column, seed)
    together = codes[:, PAIR[0]].astype(np.int64) * LEVELS[PAIR[1]] + codes[:, PAIR[1]]
    logit += PAIR_STRENGTH * _effects(together, len(LEVELS), seed)
    draw = uniforms(hashes(ids, np.array([LABEL_COLUMN]), seed, np), np)[:, 0]
    return numbers, codes, (draw < 1 / (1 + np.exp(-logit))).astype(np.float32)


def _effects(levels: Array, kind: int, seed: int) -> Array:
    """Return the effect of each row's level, float64."""
    return normals(hashes(EFFECT_ROW + levels, np.array([kind]), seed, np), np)[:, 0].astype(np.float64)
