"""The best splits for leaves that are vectors, in histograms on a GPU: launches of `kernels/split_vectors.cu`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, KernelArgument, Runtime, to_device
from daskboost.devices.gpu.split import RESULTS, THREADS, WARP, Regular, SplitKernels
from daskboost.dtypes import Float64, Int64, UInt8, UInt64


def empty_histograms(runtime: Runtime, n_nodes: int, n_slots: int, width: int) -> DeviceArray:
    """Histograms of `width` outputs; int64, shape (nodes, slots, 2) of one, else (nodes, slots, width, 2).

    Of several they lie output by output in memory, so that each output's are those of a single one.
    """
    shape = (n_nodes, n_slots, 2) if width == 1 else (width, n_nodes, n_slots, 2)
    found: DeviceArray = runtime.xp.empty(shape, np.int64)
    return found if width == 1 else found.transpose(1, 2, 0, 3)


def output_bytes(histograms: DeviceArray) -> int:
    """Bytes from one output's histogram to the next one's, of what `empty_histograms` gives."""
    return int(histograms.strides[2]) if histograms.ndim == 4 else 0


def n_chunks(n_slots: int, n_features: int) -> int:
    """Places of the sums before chunks of bins, of one node and output."""
    return n_slots // WARP + 2 * n_features


@dataclass(frozen=True)
class VectorNodes:
    """Nodes to search, on the host; arrays of shape (..., nodes)."""

    addresses: UInt64
    """Addresses of the first output's histogram of each node, of its parent, which is 0 where rows have built the
    node's own, and of its sibling; shape (3, nodes)."""
    steps: UInt64
    """Bytes from there to the next output's; shape (3, nodes)."""
    sums: Int64
    """Shape (nodes, 2 * outputs)."""
    allowed: UInt8
    """Shape (nodes or 1, features)."""
    units: Float64
    """Shape (2 * outputs,)."""


def best_splits(kernels: SplitKernels, nodes: VectorNodes, regular: Regular, *, symmetric: bool) -> DeviceArray:
    """Each node's best split, or with `symmetric` the one that gains most over all.

    int64, shape (nodes, RESULTS - 2 + 2 * outputs), on the device: as `split.RESULTS`, with the sums of all outputs.
    """
    runtime, layout = kernels.runtime, kernels.layout
    xp, n, width = runtime.xp, len(nodes.sums), len(nodes.units) // 2
    n_features = len(layout.host.n_bins)
    own, parents, siblings, own_steps, parent_steps, sibling_steps, totals, units = _upload(runtime, nodes)
    sums_before = xp.empty((n, n_chunks(layout.host.n_slots, n_features), width, 2), np.int64)

    def launch(entry: str, grid: int, *arguments: KernelArgument) -> None:
        runtime.kernel("split_vectors", entry)(grid, THREADS, *arguments)

    shape = (layout.offsets, layout.n_bins, n_features)
    launch(
        "sum_chunks", -(-n * n_features * width * WARP // THREADS), own, own_steps, parents, parent_steps, siblings,
        sibling_steps, *shape, width, n, sums_before,
    )  # fmt: skip
    rows = 1 if symmetric else n
    gains, places = xp.empty((rows, n_features)), xp.empty((rows, n_features), np.int32)
    launch(
        "best_of_level_features" if symmetric else "best_of_features", rows * n_features, own, own_steps, totals,
        kernels.allowed_of(nodes.allowed), n if len(nodes.allowed) == 1 else 1, units, width, *shape, n,
        *regular.numbers, int(regular.plain), sums_before, gains, places,
    )  # fmt: skip
    results = xp.empty((n, RESULTS - 2 + 2 * width), np.int64)
    launch(
        "best_of_nodes", n, own, own_steps, totals, *shape, width, sums_before, gains, places, int(symmetric), results
    )
    found: DeviceArray = results
    return found


def _upload(runtime: Runtime, nodes: VectorNodes) -> list[DeviceArray]:
    """The nodes' arrays, in one copy: addresses, steps, sums, units."""
    numbers = [*nodes.addresses, *nodes.steps, np.ascontiguousarray(nodes.sums), nodes.units]
    packed = to_device(runtime, np.concatenate([np.ravel(part).view(np.int64) for part in numbers]))
    found, begin = [], 0
    for part in numbers:
        found.append(packed[begin : begin + part.size].view(part.dtype))
        begin += part.size
    return found
