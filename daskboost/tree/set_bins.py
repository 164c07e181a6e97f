"""Sets of categories as row loops take them, a bit for each bin of a node, and as models have them."""

from __future__ import annotations

import numpy as np

from daskboost.devices.bin_lists import codes_of_list
from daskboost.devices.row_order import BITS
from daskboost.dtypes import Bool, Int32, UInt8, UInt32
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


def sets_of_lists(kinds: Int32, lists: Int32, by_set: Bool) -> CategorySets:
    """Return the sets of a tree's nodes as a GPU has them (`bin_lists.py`).

    Parameters
    ----------
    kinds : int32 array, shape (nodes,)
        What nodes have in place of the last bin on the left.
    lists : int32 array, shape (nodes, width)
        Of nodes that do not split by a set, anything.
    by_set : bool array, shape (nodes,)
        Whether a node does.
    """
    sizes, found = np.zeros(len(kinds), np.int64), [np.zeros(0, np.int32)]
    for node in np.flatnonzero(by_set).tolist():
        found.append(codes_of_list(kinds[node], lists[node]))
        sizes[node] = len(found[-1])
    return CategorySets.of_sizes(sizes, np.concatenate(found))


def bins_of_sets(sets: CategorySets, n_nodes: int) -> UInt32:
    """Return a bit for each bin that goes right; uint32, shape (nodes, words), as many words as the sets need."""
    words = int(sets.categories.max(initial=-1)) // BITS + 1
    found = np.zeros((n_nodes, words), np.uint32)
    if not words:
        return found
    nodes, codes = np.repeat(np.arange(n_nodes), sets.sizes(n_nodes)), sets.categories
    np.bitwise_or.at(found, (nodes, codes // BITS), np.uint32(1) << (codes % BITS).astype(np.uint32))
    return found
