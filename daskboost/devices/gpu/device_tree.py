"""A tree on a GPU, whose leaves' values are added to margins, and of vectors to those of all outputs."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.gpu.margins import Segments, add_leaf_values, add_leaf_vectors
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device
from daskboost.devices.gpu.views import WALK_BLOCKS, WALK_THREADS, GpuView, walk_trees


class ScalarTree:
    """A tree of one output.

    Parameters
    ----------
    runtime : Runtime
    columns : sequence of arrays on the device, shape (nodes,)
        Left and right child, feature and bin, int32; default left, uint8; value, float32.
    """

    def __init__(self, runtime: Runtime, columns: tuple[DeviceArray, ...]) -> None:
        self.runtime, self.columns = runtime, columns

    def walk(self, view: GpuView, margin: DeviceArray) -> None:
        """Enqueue: add leaf values to the margins of all rows, by bins; `margin` : float32, shape (rows,), any stride,
        or C-contiguous of vectors, shape (rows, outputs)."""
        walk_trees(self.runtime, view, tuple(column[None] for column in self.columns), margin[:, None])

    def add_leaf_values(self, chunk: Segments, leaves: DeviceArray, margin: DeviceArray) -> None:
        """Enqueue: add leaf values to the margins of the rows that lie in the leaves, see `margins.add_leaf_values`."""
        add_leaf_values(self.runtime, chunk, leaves, self.columns[-1], margin)


class VectorTree(ScalarTree):
    """A tree of several outputs, whose value has a column for each."""

    def walk(self, view: GpuView, margin: DeviceArray) -> None:
        n = len(margin)
        if n == 0:
            return
        blocks = min(-(-n // WALK_THREADS), self.runtime.multiprocessors * WALK_BLOCKS)
        self.runtime.kernel("walk_vectors", "walk_vectors", SYMBOL_BYTES=view.symbol_bytes)(
            blocks, WALK_THREADS, *view.symbols, *self.columns, margin.shape[1], n, margin
        )

    def add_leaf_values(self, chunk: Segments, leaves: DeviceArray, margin: DeviceArray) -> None:
        add_leaf_vectors(self.runtime, chunk, leaves, self.columns[-1], margin)


def device_tree(runtime: Runtime, tree: WalkArrays) -> ScalarTree:
    """Bring a tree to the device, in one copy, since each takes as long as a launch."""
    n, n_words = len(tree.left_child), tree.value.size
    numbers = (tree.left_child, tree.right_child, tree.feature, tree.split_bin, tree.value.ravel().view(np.int32))
    words = np.zeros(4 * n + n_words + -(-n // 4), np.int32)
    np.concatenate(numbers, out=words[: 4 * n + n_words])
    words[4 * n + n_words :].view(np.uint8)[:n] = tree.default_left
    made = to_device(runtime, words)
    links = tuple(made[k * n : (k + 1) * n] for k in range(4))
    default_left = made[4 * n + n_words :].view(np.uint8)[:n]
    value = made[4 * n : 4 * n + n_words].view(np.float32).reshape(tree.value.shape)
    kind = VectorTree if tree.has_vectors else ScalarTree
    return kind(runtime, (*links, default_left, value))
