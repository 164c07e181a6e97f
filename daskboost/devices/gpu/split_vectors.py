"""The best splits for leaves that are vectors, in histograms on a GPU: launches of `kernels/split_vectors.cu`."""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, KernelArgument, Runtime, to_device
from daskboost.devices.gpu.split import RESULTS, THREADS, WARP, HostNodes, Regular, SplitKernels


def n_chunks(n_slots: int, n_features: int) -> int:
    """Places of the sums before chunks of bins, of one node and output."""
    return n_slots // WARP + 2 * n_features


class VectorKernels(SplitKernels):
    """Searches the histograms of several outputs."""

    def search(self, nodes: HostNodes, regular: Regular, *, symmetric: bool) -> DeviceArray:
        return best_splits(self, nodes, regular, symmetric=symmetric)


def best_splits(kernels: SplitKernels, nodes: HostNodes, regular: Regular, *, symmetric: bool) -> DeviceArray:
    """Find what `SplitKernels.search` gives, by the gains of all outputs."""
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


def _upload(runtime: Runtime, nodes: HostNodes) -> list[DeviceArray]:
    """The nodes' arrays, in one copy: addresses, steps, sums, units."""
    numbers = [*nodes.addresses, *nodes.steps, np.ascontiguousarray(nodes.sums), nodes.units]
    packed = to_device(runtime, np.concatenate([np.ravel(part).view(np.int64) for part in numbers]))
    found, begin = [], 0
    for part in numbers:
        found.append(packed[begin : begin + part.size].view(part.dtype))
        begin += part.size
    return found
