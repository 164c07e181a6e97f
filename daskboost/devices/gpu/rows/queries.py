"""Gradients of ranking losses on a GPU, of all queries' rows together: launches of `kernels/queries.cu`.

Nothing here waits for the device, and nothing is allocated once objects are made, so that a CUDA graph may capture it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.queries import PairRule, Queries, pair_rule
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.rows.given_pairs import PairKernels
from daskboost.devices.gpu.rows.gradients import Columns, Source
from daskboost.devices.gpu.rows.moved_rows import MovedRows
from daskboost.devices.gpu.rows.positions import PositionKernels
from daskboost.devices.gpu.rows.query_lists import ListKernels
from daskboost.devices.gpu.rows.query_order import (
    MOST_WARPS,
    THREADS,
    TILE,
    WARP,
    WARP_ROWS,
    BlockSize,
    LargeQueries,
    QueryOrder,
    padded,
    room,
)
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite, to_device
from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.dtypes import Array, Float32, Int64, UInt32, UInt64, flat

PART_ROWS = 512
"""Rows of a tile that a block adds the pairs of, in `PART_THREADS` threads."""
PART_THREADS = 128
TILE_BYTES = 1024
"""Bytes of 32 rows that a warp has side by side, twice."""
PAIR_WARPS = 4
"""Most warps of a block that adds pairs in registers, `BLOCK_THREADS` of the kernel."""


def block_size(loss: QueryLoss) -> BlockSize:
    """Return the size of blocks that have queries."""
    return BlockSize(partial(block_bytes, loss), MOST_WARPS if loss.orders is not None else PAIR_WARPS)


def block_bytes(loss: QueryLoss, n_rows: int) -> int:
    """Return the bytes of dynamic shared memory of a block that has a query of so many rows."""
    if loss.orders is not None:
        return (32 + 8 * _has_aboves(loss)) * room(n_rows)
    is_random = loss.drawn > 0 or loss.positions > 0
    n_firsts = padded(n_rows if loss.drawn else min(loss.top, n_rows))
    n_warps = max(room(n_rows) // WARP_ROWS, 1)
    return TILE_BYTES * n_warps + (28 + 4 * is_random) * max(room(n_rows), WARP) + (24 + 8 * is_random) * n_firsts


def _has_aboves(loss: QueryLoss) -> bool:
    """Whether what a pair counts is written for each place."""
    return loss.weight in (PairWeight.MAP, PairWeight.ERR)


def row_shapes(loss: QueryLoss, n_rows: int, n_queries: int, most: int) -> Shapes:
    """Return the shapes of what is known of rows and queries for all rounds, `most` rows in the largest query."""
    n_drawn, has_pairs = n_rows if loss.drawn else 0, loss.orders is None
    return {
        "order": ((n_rows,), np.uint32), "gains": ((n_rows,), np.float32), "begins": ((n_queries + 1,), np.int64),
        "scales": ((n_queries,), np.float64), "factors": ((n_queries,), np.float64),
        "worths": ((n_queries,), np.float32), "steps": ((most,), np.float64),
        "by_label": ((n_drawn * has_pairs,), np.uint32), "groups": ((n_drawn * has_pairs, 2), np.uint32),
        "ids": ((n_drawn,), np.uint64), "fades": ((n_rows * (loss.weight == PairWeight.ERR),), np.uint32),
    }  # fmt: skip


def large_shapes(loss: QueryLoss, n_rows: int, n_queries: int, n_tiles: int, all_rows: int) -> Shapes:
    """Return the shapes of what queries that have no block take, once sorted; `n_rows` : of these, each query's
    padded; `all_rows` : with those of no query."""
    if loss.orders is not None:
        has_firsts = loss.weight == PairWeight.MRR
        return {
            "sums": ((n_rows, 2), np.uint64), "aboves": ((n_rows * _has_aboves(loss),), np.float64),
            "of_tiles": ((n_tiles * (loss.weight != PairWeight.NDCG), 2), np.int64),
            "firsts": ((n_queries * has_firsts, 2), np.int32), "noisy": ((all_rows * (n_tiles > 0),), np.float32),
        }  # fmt: skip
    of_map, has_place = loss.weight == PairWeight.MAP, loss.drawn > 0 or loss.positions > 0
    return {
        "sums": ((n_rows, 2), np.uint64), "totals": ((n_queries,), np.uint64), "scales": ((n_queries,), np.float32),
        "firsts": ((n_rows, 4), np.float32), "seconds": ((n_rows, 4), np.float32),
        "of_tiles": ((n_tiles * of_map, 2), np.int64), "place": ((n_rows * has_place,), np.uint32),
    }  # fmt: skip


class QueryKernels:
    """Fills the gradients of a ranking loss on a GPU; `QueryLoops` of `devices/cpu/queries.py` is its twin.

    Parameters
    ----------
    runtime : Runtime
    loss : QueryLoss
    queries : Queries
        On the host.
    threads : Threads
        Of the host.
    """

    def __init__(self, runtime: Runtime, loss: QueryLoss, queries: Queries, threads: Threads) -> None:
        self.runtime, self._loss = runtime, loss
        self._variant = {
            "WEIGHT": int(loss.weight), "DRAWN": int(loss.drawn > 0), "BY_POSITION": int(loss.positions > 0),
        }  # fmt: skip
        self._positions = PositionKernels(runtime, loss.start, loss.positions)
        sizes = np.diff(queries.begins)
        rule = pair_rule(loss, queries.label, queries.begins, threads)
        self._held = make_arrays(runtime, row_shapes(loss, len(queries.label), len(sizes), len(rule.steps)))
        for name, values in self._tables(queries, rule).items():
            overwrite(runtime, self._held[name], values)
        self._draw_keys = runtime.xp.zeros(1, np.uint64)
        self._ended: DeviceArray | None = None
        self._sorted = QueryOrder(runtime, sizes, block_size(loss))
        large = self._sorted.large
        self._of_large = {} if large is None else make_arrays(
            runtime, large_shapes(loss, large.n_rows, large.n_queries, large.n_tiles, int(queries.order.max()) + 1)
        )  # fmt: skip

    def fill(self, key: np.uint64, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue: `g` and `h` of all rows of queries, float32 of shape (rows,); `key` : that of the round's draws."""
        if self._loss.drawn:
            overwrite(self.runtime, self._draw_keys, np.array([key], np.uint64))
        self.fill_next(margin, g, h)

    def follow(self, draw_keys: UInt64, ended: DeviceArray) -> None:
        """Take the keys of draws of all rounds, of which `fill_next` uses the one after `ended`, int32 of shape (1,)
        on the device."""
        self._draw_keys, self._ended = to_device(self.runtime, draw_keys), ended

    def fill_next(self, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue what `fill` does, with the key that is next."""
        held, loss = self._held, self._loss
        rules = loss.curvature, loss.top, loss.drawn, int(loss.normalized), int(loss.by_score)
        tables = [held[name] for name in ("order", "begins", "gains", "steps", "scales", "worths", "factors")]
        for each in self._sorted.blocks:
            self.runtime.kernel("queries", "fill_queries", **self._variant)(
                len(each.which), each.threads, each.which, *tables, *rules, *self._draws, *self._positions.arguments,
                margin, g, h, shared_bytes=each.shared_bytes,
            )  # fmt: skip
        if self._sorted.large is not None:
            self._fill_large(self._sorted.large, margin, g, h)

    @property
    def chances(self) -> DeviceArray:
        """Return the chances of positions as they are now, float32 of shape (2, positions)."""
        return self._positions.chances

    def learn(self, add_up: Callable[[Array], None]) -> None:
        """See `PositionKernels.learn`."""
        self._positions.learn(add_up)

    def _tables(self, queries: Queries, rule: PairRule) -> dict[str, npt.NDArray[Any]]:
        """Return what is known of rows and queries for all rounds, by the names of `row_shapes`."""
        found = held(queries, rule)
        if rule.drawn:
            by_label, groups = label_groups(queries.label, queries.begins)
            found |= {"by_label": by_label, "groups": groups, "ids": queries.ids}
        return found

    @property
    def _draws(self) -> tuple[DeviceArray | None, ...]:
        """What kernels draw by."""
        return self._held["by_label"], self._held["groups"], self._held["ids"], self._draw_keys, self._ended

    def _fill_large(self, large: LargeQueries, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue the gradients of large queries."""
        held, own, loss = self._held, self._of_large, self._loss
        begins, keys = held["begins"], large.sorted_keys(held["begins"], held["order"], margin)
        positions = self._positions.arguments

        def launch(name: str, *arguments: DeviceArray | float | None, parts: int = 1, threads: int = THREADS) -> None:
            kernel = self.runtime.kernel("queries", name, **self._variant)
            kernel(parts * large.n_tiles, threads, large.tiles, *arguments)

        if loss.weight == PairWeight.MAP:
            launch("sum_shares", begins, keys, held["gains"], held["steps"], own["of_tiles"])
        launch(
            "place_rows", begins, keys, held["gains"], held["steps"], own["of_tiles"], own["firsts"], own["seconds"],
            own["place"], own["sums"], own["totals"],
        )  # fmt: skip
        launch(
            "add_pairs", begins, keys, own["firsts"], own["seconds"], held["steps"], held["scales"], held["worths"],
            loss.top, loss.drawn, int(loss.by_score), own["place"], *self._draws, *positions, own["sums"],
            own["totals"], own["scales"], parts=TILE // PART_ROWS, threads=PART_THREADS,
        )  # fmt: skip
        if loss.positions and loss.top:
            launch(
                "add_costs", keys, own["firsts"], own["seconds"], held["scales"], held["worths"], loss.top,
                int(loss.by_score), own["place"], *positions,
            )  # fmt: skip
        launch(
            "write_rows", begins, held["order"], keys, held["scales"], held["worths"], held["factors"], loss.curvature,
            loss.drawn, int(loss.normalized), own["sums"], own["totals"], own["scales"], g, h,
        )  # fmt: skip


class QueryChunk:
    """Gradients of a ranking loss of all rows of a fit, stored, which are computed as a round begins: a `Source`.

    Parameters
    ----------
    kernels : QueryKernels, ListKernels or PairKernels
    stored : Source
        Where they are stored; those of rows of no query stay as they are.
    margin : float32, shape (rows,)
    moved : MovedRows, optional
        Where some rows' gradients are computed on other GPUs.
    learn : Callable
        Enqueues what follows from the gradients for those of the next round; collective.
    """

    def __init__(self, kernels: QueryKernels | ListKernels | PairKernels, stored: Source, margin: DeviceArray,
                 moved: MovedRows | None, learn: Callable[[], None]) -> None:  # fmt: skip
        self._stored, self._margin, self._learn = stored, margin, learn
        self._fill = kernels.fill_next if moved is None else partial(moved.fill, kernels.fill_next)

    def find_range(self, tops: DeviceArray) -> None:
        g, h = self._stored.stored()
        self._fill(self._margin, flat(g), flat(h))
        self._learn()
        self._stored.find_range(tops)

    def columns(self, output: int, *, by_weight: bool = False) -> Columns:
        return self._stored.columns(output, by_weight=by_weight)

    def stored(self) -> tuple[DeviceArray, DeviceArray]:
        return self._stored.stored()


def held(queries: Queries, rule: PairRule) -> dict[str, npt.NDArray[Any]]:
    """Return what any loss of pairs knows of rows and queries for all rounds, by the names of `row_shapes`."""
    return {
        "order": queries.order, "begins": queries.begins, "gains": rule.gain, "steps": rule.steps,
        "scales": rule.scale, "worths": rule.worth, "factors": queries.factor,
    }  # fmt: skip


def label_groups(label: Float32, begins: Int64) -> tuple[UInt32, UInt32]:
    """Return the rows of each query from the highest label to the lowest, numbered within the query, and where the rows
    of each row's label begin and end among them, shape (rows, 2)."""
    query = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    order = np.lexsort((-label, query))  # stable: of equal labels in the order of ids
    is_first = np.ones(len(label) + 1, bool)
    is_first[1:-1] = (query[1:] != query[:-1]) | (label[order][1:] != label[order][:-1])
    edges = np.flatnonzero(is_first)
    group = np.cumsum(is_first[:-1]) - 1
    groups = np.empty((len(label), 2), np.uint32)
    groups[order, 0] = edges[group] - begins[query]
    groups[order, 1] = edges[group + 1] - begins[query]
    return (order - begins[query]).astype(np.uint32), groups
