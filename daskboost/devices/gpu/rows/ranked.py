"""Rows of an evaluation set by their queries on a GPU, for metrics of rankings: launches of `kernels/query_metrics.cu`.

Nothing here waits for the device, so that metrics may be part of recorded work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.queries import discounts_of, ideal_gains
from daskboost.devices.cpu.query_metrics import Measure, QueryValue
from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.gpu.rows.query_order import THREADS, BlockSize, QueryOrder, room
from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    Shapes,
    element_stride,
    make_arrays,
    overwrite,
    to_device,
)
from daskboost.dtypes import Float32, Float64, Int64


def block_bytes(n_rows: int) -> int:
    """Return the bytes of dynamic shared memory of a block that has a query of so many rows."""
    return 8 * room(n_rows)


BLOCKS = BlockSize(block_bytes)


def ranked_shapes(n_rows: int, n_queries: int, most: int) -> Shapes:
    """Return the shapes of what is known of rows and queries, `most` rows in the largest query."""
    return {
        "order": ((n_rows,), np.uint32), "labels": ((n_rows,), np.float32), "begins": ((n_queries + 1,), np.int64),
        "weights": ((n_queries,), np.float64), "discounts": ((most,), np.float64), "ranked": ((n_rows,), np.float32),
    }  # fmt: skip


class RankedLabels:
    """Labels of rows in the order of their scores, query by query.

    Parameters
    ----------
    kernels : MetricKernels
    order, begins, label, weights : arrays
        On the host, as `QueryRows` of `engine/query_rows.py` has them.
    """

    def __init__(self, kernels: MetricKernels, order: Int64, begins: Int64, label: Float32, weights: Float64) -> None:
        self._kernels, self._begins, self._label, sizes = kernels, begins, label, np.diff(begins)
        self._discounts = discounts_of(int(sizes.max(initial=0)))
        self._held = make_arrays(kernels.runtime, ranked_shapes(len(label), len(sizes), len(self._discounts)))
        given: Mapping[str, npt.NDArray[Any]] = {
            "order": order, "labels": label, "begins": begins, "weights": weights, "discounts": self._discounts,
        }  # fmt: skip
        for name, values in given.items():
            overwrite(kernels.runtime, self._held[name], values)
        self._sorted = QueryOrder(kernels.runtime, sizes, BLOCKS)
        self._bests: dict[Measure, DeviceArray] = {}
        self._gains: dict[Measure, DeviceArray] = {}

    def rank(self, scores: DeviceArray) -> None:
        """Enqueue: labels are in the order of `scores` of all rows, float32 of shape (rows,) and any stride."""
        held, runtime = self._held, self._kernels.runtime
        order, begins, labels, ranked = (held[name] for name in ("order", "begins", "labels", "ranked"))
        for each in self._sorted.blocks:
            runtime.kernel("query_metrics", "rank_labels")(
                len(each.which), each.threads, each.which, order, begins, labels, scores, element_stride(scores),
                ranked, shared_bytes=each.shared_bytes,
            )  # fmt: skip
        large = self._sorted.large
        if large is not None:
            keys = large.sorted_keys(begins, order, scores)
            runtime.kernel("query_metrics", "rank_tiles")(
                large.n_tiles, THREADS, large.tiles, begins, keys, labels, ranked
            )

    def add_values(self, measure: Measure, state: DeviceArray) -> None:
        """Enqueue: `state` becomes the exact sums of the values of queries times weights, and of weights; NaN where a
        score is. What queries are divided by goes to the device the first time, which is not recorded."""
        if measure not in self._bests:
            gains = np.array(measure.gains, np.float64)
            self._bests[measure], self._gains[measure] = (
                to_device(self._kernels.runtime, own) for own in (self._best(measure), gains)
            )
        held = self._held
        self._kernels.add_values(
            len(self._begins) - 1, (
                held["begins"], len(self._begins) - 1, held["ranked"], held["weights"], held["discounts"],
                self._bests[measure], measure.kind, measure.top, self._gains[measure], len(measure.gains),
                measure.otherwise, measure.unit, measure.patience,
            ), state,
        )  # fmt: skip

    def _best(self, measure: Measure) -> Float64:
        """Return what sums of terms of each query are divided by, 0 where no row is relevant, or no area is defined;
        shape (queries,)."""
        sizes, relevant = np.diff(self._begins), np.concatenate([[0], np.cumsum(self._label > 0)])
        counts = relevant[self._begins[1:]] - relevant[self._begins[:-1]]
        if measure.kind == QueryValue.NDCG:
            found, top = np.empty(len(sizes)), 0 if measure.top >= sizes.max(initial=0) else measure.top
            gains = np.array(measure.gains, np.float64)
            ideal_gains(self._label, self._begins, self._discounts, top, gains, found, 0, len(found))
        elif measure.kind == QueryValue.AVERAGE_PRECISION:
            found = np.minimum(counts, measure.top).astype(np.float64)
        elif measure.kind == QueryValue.RECALL:
            found = counts.astype(np.float64)
        elif measure.kind == QueryValue.AUC:
            found = (2 * counts * (sizes - counts)).astype(np.float64)
        elif measure.kind in (QueryValue.EXPECTED_RECIPROCAL_RANK, QueryValue.PFOUND):
            found = np.ones(len(sizes))
        else:
            found = np.minimum(sizes, measure.top).astype(np.float64)
        found[counts == 0] = 0
        return found
