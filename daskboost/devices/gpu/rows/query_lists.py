"""Gradients of losses of all rows of a query together, on a GPU: launches of `kernels/query_lists.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture it.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu.queries import Queries
from daskboost.devices.cpu.query_lists import list_rule
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.devices.losses import ListKernel, ListLoss
from daskboost.dtypes import Array, Int64, UInt64

THREADS = 256
"""Threads of a block, as in `kernels/query_lists.cu`."""
WARPS = THREADS // 32
WARP_ROWS = 1024
"""Rows of a query that a warp has, at most."""
TILE_ROWS = 2048
"""Rows of a larger query that a block has, as in `kernels/query_lists.cu`."""


def list_shapes(loss: ListLoss, n_rows: int, n_queries: int, n_large: int, n_parts: int) -> Shapes:
    """Return the shapes of what is known of rows and queries for all rounds, of which `n_large` have no warp, but
    `n_parts` blocks."""
    n_totals = n_queries if loss.kernel == ListKernel.SOFTMAX else 0
    return {
        "order": ((n_rows,), np.uint32), "labels": ((n_rows,), np.float32), "begins": ((n_queries + 1,), np.int64),
        "totals": ((n_totals,), np.float64), "factors": ((n_queries,), np.float64),
        "which": ((n_queries - n_large,), np.uint32), "parts": ((n_parts, 3), np.int64),
        "keys": ((n_large,), np.uint32), "sums": ((n_large,), np.uint64),
    }  # fmt: skip


def large_parts(n_rows: int) -> int:
    """Return how many blocks have the rows of a query; 0 where a warp has."""
    return -(-n_rows // TILE_ROWS) if n_rows > WARP_ROWS else 0


class ListKernels:
    """Fills the gradients of a loss of lists on a GPU; `ListLoops` of `devices/cpu/query_lists.py` is its twin.

    Parameters
    ----------
    runtime : Runtime
    loss : ListLoss
    queries : Queries
        On the host.
    """

    def __init__(self, runtime: Runtime, loss: ListLoss, queries: Queries) -> None:
        self.runtime, self._loss = runtime, loss
        sizes = np.diff(queries.begins)
        large, parts = np.flatnonzero(sizes > WARP_ROWS), _parts(sizes)
        rule = list_rule(loss, queries)
        small = np.flatnonzero(sizes <= WARP_ROWS)
        small = small[np.argsort(-sizes[small], kind="stable")]  # warps of a block take about as long
        self._held = make_arrays(runtime, list_shapes(loss, len(queries.label), len(sizes), len(large), len(parts)))
        held: dict[str, Array] = {
            "order": queries.order, "labels": queries.label, "begins": queries.begins, "totals": rule.totals,
            "factors": rule.factors, "which": small, "parts": parts,
        }  # fmt: skip
        for name, values in held.items():
            overwrite(runtime, self._held[name], values)
        self._beta, self._penalty = rule.beta, rule.penalty
        self._n_small, self._n_large, self._n_parts = len(small), len(large), len(parts)

    def fill(self, key: np.uint64, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue: `g` and `h` of all rows of queries, float32 of shape (rows,); `key` is not read."""
        self.fill_next(margin, g, h)

    def follow(self, draw_keys: UInt64, ended: DeviceArray) -> None:
        """Take nothing: there are no draws."""

    def fill_next(self, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue what `fill` does."""
        held = self._held
        rows = [held[name] for name in ("order", "begins", "labels")]
        of_queries = held["totals"], held["factors"]
        if self._n_small:
            self._launch(
                "fill_lists", -(-self._n_small // WARPS), held["which"], self._n_small, *rows, *of_queries, self._beta,
                self._penalty, margin, g, h,
            )  # fmt: skip
        if self._n_large:
            keys, sums = held["keys"], held["sums"]
            self._launch("begin_lists", -(-self._n_large // THREADS), self._n_large, keys, sums)
            self._launch("find_tops", self._n_parts, held["parts"], *rows, margin, keys)
            self._launch("sum_lists", self._n_parts, held["parts"], *rows, self._beta, margin, keys, sums)
            self._launch(
                "write_lists", self._n_parts, held["parts"], *rows, *of_queries, self._beta, self._penalty, margin,
                keys, sums, g, h,
            )  # fmt: skip

    def _launch(self, name: str, blocks: int, *arguments: DeviceArray | np.float32 | float) -> None:
        self.runtime.kernel("query_lists", name, LOSS=int(self._loss.kernel))(blocks, THREADS, *arguments)


def _parts(sizes: Int64) -> Int64:
    """Return the query, its number among the large ones, and the first row of each block's part, shape (parts, 3)."""
    large = np.flatnonzero(sizes > WARP_ROWS).tolist()
    parts = [
        (query, number, first)
        for number, query in enumerate(large) for first in range(0, int(sizes[query]), TILE_ROWS)
    ]  # fmt: skip
    return np.array(parts, np.int64).reshape(-1, 3)
