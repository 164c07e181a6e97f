"""Sets of categories of a forest's nodes, laid out as `PackedSets` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Int64, UInt32
from daskboost.tree.category_sets import CategorySets

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict_sets import PackedSets


def pack_sets(sets: CategorySets, columns: Int64, n_columns: int) -> tuple[PackedSets, UInt32]:
    """Lay out sets for the kernels.

    Parameters
    ----------
    sets : CategorySets
        Of all nodes of the forest.
    columns : int64 array, shape (nodes with a set,)
        The column of each node that has a set, in the order of the nodes, counted among the columns of codes.
    n_columns : int
        How many columns of codes there are.

    Returns
    -------
    PackedSets
    uint32 array, shape (nodes with a set,)
        Where each set begins in its `words`.
    """
    from daskboost.devices.cpu.predict_sets import FIRST_PLACE, PackedSets

    sizes = np.diff(sets.begin)[np.diff(sets.begin) > 0].astype(np.int64)
    pairs, found = np.unique(np.repeat(columns, sizes) << 32 | sets.categories, return_inverse=True)
    code_start = np.searchsorted(pairs, np.arange(n_columns + 1) << 32).astype(np.int64)
    places = found - np.repeat(code_start[columns], sizes) + FIRST_PLACE
    starts, words = _words(sizes, places)
    return PackedSets(code_start, (pairs & 0xFFFFFFFF).astype(np.int32), words), starts


def _words(sizes: Int64, places: Int64) -> tuple[UInt32, UInt32]:
    """Return where each set begins and the words of all; `places` : of each set so many as `sizes` says, increasing."""
    from daskboost.devices.cpu.predict_sets import INSIDE, LIST_WORDS

    if not len(sizes):
        return np.empty(0, np.uint32), np.empty(0, np.uint32)
    first = np.cumsum(sizes) - sizes
    n_bit_words, n_listed = places[first + sizes - 1] // 32 + 1, sizes + 1  # all hold `INSIDE`
    is_list = n_bit_words > LIST_WORDS * n_listed
    n_words = np.where(is_list, n_listed, n_bit_words)
    starts = np.cumsum(n_words + 1) - (n_words + 1)
    words = np.zeros(int((n_words + 1).sum()), np.uint32)
    words[starts] = 2 * n_words + is_list
    words[starts + 1] = np.where(is_list, INSIDE, 1 << int(INSIDE))
    own, listed = np.repeat(starts, sizes), np.repeat(is_list, sizes)
    at = np.arange(len(places)) - np.repeat(first, sizes)
    words[(own + 2 + at)[listed]] = places[listed]
    bits = places[~listed]
    np.bitwise_or.at(words, own[~listed] + 1 + bits // 32, (1 << bits % 32).astype(np.uint32))
    return starts.astype(np.uint32), words
