"""Sets of categories as row loops take them, a bit for each bin of a node, and as models have them."""

from __future__ import annotations

import numpy as np

from daskboost.devices.row_order import BITS
from daskboost.dtypes import Bool, UInt8, UInt32
from daskboost.tree.category_sets import CategorySets


def sets_of_bins(right_bins: UInt32, by_set: Bool) -> CategorySets:
    """Return the sets of a tree's nodes; a code is the number of its bin.

    Parameters
    ----------
    right_bins : uint32 array, shape (nodes, words)
        A bit for each bin that goes right, of nodes that split by a set; of others anything.
    by_set : bool array, shape (nodes,)
        Whether a node does.
    """
    own = np.where(by_set[:, None], right_bins, np.uint32(0))
    bits: UInt8 = np.unpackbits(np.ascontiguousarray(own).astype("<u4").view(np.uint8), axis=1, bitorder="little")
    return CategorySets.of_sizes(bits.sum(axis=1, dtype=np.int64), np.nonzero(bits)[1])


def bins_of_sets(sets: CategorySets, n_nodes: int) -> UInt32:
    """Return a bit for each bin that goes right; uint32, shape (nodes, words), as many words as the sets need."""
    words = int(sets.categories.max(initial=-1)) // BITS + 1
    found = np.zeros((n_nodes, words), np.uint32)
    nodes, codes = np.repeat(np.arange(n_nodes), sets.sizes(n_nodes)), sets.categories
    np.bitwise_or.at(found, (nodes, codes // BITS), np.uint32(1) << (codes % BITS).astype(np.uint32))
    return found
