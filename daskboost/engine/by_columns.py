"""All rows of a fit on every GPU, each of which has a share of the features: what engines bring there from one another.

Every engine tells the others what its own rows have, by sums to which the others add zeros. What grows over these rows
is what grows over an engine's own (`device_grower.py`). Where GPUs have room, each has the symbols of all features by
columns, and moves rows by itself; else a split's sides come from the GPU that has its feature.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from daskboost.data.input.row_columns import RowColumns
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.rows.row_state import GpuRows
from daskboost.devices.gpu.rows.views import DenseView, DeviceLayout
from daskboost.devices.gpu.runtime.collective import ALONE, Collective, Sharing
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime
from daskboost.devices.gpu.trees.split import FeatureShare
from daskboost.engine.device_grower import GrownOver
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.engine.row_gradients import GrowingRows, searched_gradients
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.tree_rows import make_rows
from daskboost.fit.peers import Peers, feature_shares
from daskboost.fit.spec import FitSpec

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 28
"""Bytes of symbols that all engines tell each other at a time."""
ROW_BYTES = 64
"""Bytes of a row beside its symbols, about: its place and gradients in two orders, label, margin, weight."""
SYMBOL_BYTES = 2
"""Bytes of a symbol, at most."""


def why_not_by_columns(engine: Engine, spec: FitSpec, n_engines: int) -> str:
    """Say why GPUs do not share the features of a fit; empty where they can."""
    recipe, params, groups = spec.recipe, spec.params, engine.sets.train.groups
    views = [view for _, view in engine.sets.train.views()]
    reasons = {
        "rows are sparse": not all(isinstance(view, DenseView) for view in views),
        "an engine has no rows, or several chunks": len(groups) != 1,
        "trees leave rows out": recipe.subsample < 1,
        "trees grow best first": params.grow_policy == "lossguide",
        "leaves take exact sums beside": recipe.refits,
        "data are small": recipe.small_data,
        "there are fewer features than GPUs": spec.cuts.n_features < n_engines,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def has_room(engine: Engine, spec: FitSpec, n_engines: int, *, has_all: bool = False) -> bool:
    """Whether the engine's GPU has room for a share of the features of all rows beside what it has already: once by
    rows, and once by columns, which may be those of all features."""
    kernels, n_features = engine.device.split_kernels, spec.cuts.n_features
    assert kernels is not None
    own, trees = -(-n_features // n_engines), max(engine.sets.train.margins[0].shape[1], 1)
    of_row = SYMBOL_BYTES * (own + (n_features if has_all else own)) + ROW_BYTES * trees
    return bool(spec.recipe.n_rows * of_row + 2 * BLOCK_BYTES < kernels.runtime.free_bytes)


@dataclass(frozen=True)
class Everywhere:
    """Where an engine's rows lie among those of all."""

    runtime: Runtime
    joined: Collective
    begin: int
    n_rows: int
    """Rows of all engines."""

    def spread(self, own: DeviceArray, axis: int = 0) -> DeviceArray:
        """Return what all rows have, each engine's of its own; of any numbers, rows along an axis."""
        xp, shape, rows = self.runtime.xp, list(own.shape), [slice(None)] * own.ndim
        rows[axis], shape[axis] = slice(self.begin, self.begin + own.shape[axis]), self.n_rows
        n_bytes = int(np.prod(shape)) * own.itemsize
        words = xp.zeros(-(-n_bytes // 4), np.uint32)  # numbers of which all others have zeros: any sum has their bits
        found: DeviceArray = words.view(np.uint8)[:n_bytes].view(own.dtype).reshape(shape)
        found[tuple(rows)] = own
        self.joined.add_up(words)
        return found


def rows_by_columns(engine: Engine, spec: FitSpec, peers: Peers, joined: Collective) -> GrownOver:
    """Bring all rows to every GPU, with a share of the features each; collective."""
    trees, setup, device, kernels = engine.trees, engine.setup, engine.device, engine.device.split_kernels
    assert isinstance(trees, TreesOnAllRows) and kernels is not None
    runtime, own = kernels.runtime, engine.sets.rows
    (group,) = own.train.groups
    told = peers.share((group.n_rows, np.array(group.pieces, np.int64), own.weights[0] is not None))
    begins = np.cumsum([0, *(n for n, _, _ in told)]).tolist()
    place = Everywhere(runtime, joined, begins[peers.rank], begins[-1])
    weight = None
    if any(has_weight for _, _, has_weight in told):
        mine = runtime.xp.ones(group.n_rows, np.float32) if own.weights[0] is None else own.weights[0]
        weight = place.spread(mine)
    label, margin = place.spread(own.labels[0]), place.spread(own.train.margins[0])
    layout, shares = kernels.layout, feature_shares(setup.layout, peers.n_peers)
    mine_layout = layout.part(*shares[peers.rank], place.n_rows)
    has_all = all(peers.share(has_room(engine, spec, peers.n_peers, has_all=True)))
    logger.info("each GPU has the symbols of %s", "all features" if has_all else "its own features alone")
    view = _view_of_all(engine, place, layout, mine_layout) if has_all else _view(
        engine, place, mine_layout, shares, peers.rank
    )
    pieces = tuple(
        (begin + at, row) for begin, (_, part, _) in zip(begins, told, strict=False) for at, row in part.tolist()
    )
    all_rows = RowGroup(range(0), begins[-1], pieces, RowColumns(label, weight))
    train = replace(
        own.train, groups=(all_rows,), margins=(margin,), views=lambda: iter(((0, view),)), is_resident=True
    )
    growing = GrowingRows(train, (label,), (weight,))
    gradients = searched_gradients(setup, device, growing, keep=setup.keeps_round)
    rows = make_rows(setup, device, growing)
    assert isinstance(rows, GpuRows)
    share = FeatureShare(layout, joined, [first for first, _ in shares])
    return GrownOver(
        rows, gradients, train, type(kernels)(mine_layout, share),
        Sharing(features=joined, sides=ALONE if has_all else joined),
        slice(place.begin, place.begin + group.n_rows), rows.chunks[0].n_trees,
        all(peers.share(device.orders_rows)),
    )  # fmt: skip


def _view_of_all(engine: Engine, place: Everywhere, layout: DeviceLayout, share: DeviceLayout) -> DenseView:
    """Return the view of all rows with one share of the features, in which all features can be looked up."""
    ((_, own),) = engine.sets.train.views()
    assert isinstance(own, DenseView)
    columns, (first, n) = place.spread(own.by_feature, axis=1), share.features
    symbols = DeviceSymbols.empty(place.runtime, share.places(columns.dtype), place.n_rows)
    symbols.put_columns(0, columns[first : first + n].T)
    view = DenseView(share, [symbols], place.n_rows, copy_columns=False)
    view.look_up_in(layout, columns)
    return view


def _view(engine: Engine, place: Everywhere, layout: DeviceLayout, shares: Sequence[tuple[int, int]], rank: int
          ) -> DenseView:  # fmt: skip
    """Return the view of all rows with one share of the features."""
    ((_, own),) = engine.sets.train.views()
    assert isinstance(own, DenseView)
    symbols = own.dense_symbols
    found = DeviceSymbols.empty(place.runtime, layout.places(symbols.places.dtype), place.n_rows)
    at_once = max(1, BLOCK_BYTES // (place.n_rows * symbols.places.dtype.itemsize))
    for owner, (begin, end) in enumerate(shares):
        for first, last in pairwise([*range(begin, end, at_once), end]):
            block = place.spread(symbols.columns(first, last))
            if owner == rank:
                found.put_columns(first - begin, block)
    return DenseView(layout, [found], place.n_rows, copy_columns=True)
