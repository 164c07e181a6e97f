"""Float gradients of rows while trees grow over them: computed, kept or not; and columns of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from daskboost.devices.cpu.losses import GradientLoops
from daskboost.devices.cpu.queries import Queries, QueryLoops
from daskboost.devices.cpu.rounds import Filling
from daskboost.devices.gpu.rows.given_pairs import PairKernels
from daskboost.devices.gpu.rows.gradients import GradientPair, Source, StoredChunk
from daskboost.devices.gpu.rows.moved_rows import MovedRows
from daskboost.devices.gpu.rows.queries import QueryChunk, QueryKernels
from daskboost.devices.gpu.rows.query_lists import ListKernels
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.losses import AnyQueryLoss, EngineLoss, GivenPairs, OwnLoss, QueryLoss, is_positive, ones_of
from daskboost.devices.protocols import Device, QueryFilling, RowGradients
from daskboost.devices.row_order import Following
from daskboost.dtypes import Array, Float32, Float64, UInt64, flat
from daskboost.engine.own_loss import OwnLossFilling
from daskboost.engine.placed_pairs import placed_pairs
from daskboost.engine.query_owners import OwnedQueries
from daskboost.engine.query_rows import QueryRows
from daskboost.engine.setup import EngineSetup
from daskboost.engine.shard_margins import ShardMargins
from daskboost.errors import DataError
from daskboost.fit.messages import GradientRange, StartRound, StartTree
from daskboost.fit.peers import ONLY, Peers
from daskboost.objectives.objective import Objective, kernel_of

T = TypeVar("T")


@dataclass(frozen=True)
class GrowingRows:
    """Rows that trees grow over: their bins and margins, labels and weights, by chunk."""

    train: ShardMargins
    labels: Sequence[Array]
    weights: Sequence[Array | None]

    @classmethod
    def of(cls, train: ShardMargins, device: Device) -> GrowingRows:
        """The rows of a shard, whose labels and weights are brought to the device."""
        groups = train.groups
        weights = [None if group.rows.weight is None else device.put(group.rows.weight) for group in groups]
        return cls(train, [device.put(group.label) for group in groups], weights)

    def multipliers(self, index: int, setup: EngineSetup, xp: Any) -> Array:
        """Return what a chunk's gradients are multiplied by, but for weights of small data, which come later; float32,
        shape (rows,)."""
        label, factor = self.labels[index], np.float32(setup.objective.positive_weight)
        weight = None if setup.recipe.small_data else self.weights[index]
        if factor == 1:
            return ones_of(xp, len(label)) if weight is None else weight
        weights = xp.where(label == 1, factor, np.float32(1))
        found: Array = weights if weight is None else weights * weight
        return found


@dataclass(frozen=True, eq=False)
class PairKeys:
    """Hash keys of the pairs that ranking losses draw in the rounds of a fit."""

    of_rounds: UInt64
    """Shape (rounds,)."""
    ended: Array
    """On the device, the number of the round that has ended last: that of the next one is its key."""


def largest_of(tops: Sequence[Float64]) -> Float64:
    """Return the largest of parts of rows, entry by entry; NaN wins, as it should."""
    found: Float64 = np.max(np.stack(tops), axis=0) if len(tops) > 1 else tops[0]
    return found


def range_of(tops: Float64) -> GradientRange:
    """Return the range of rows by their largest |g|, then h; float64, shape (2, columns)."""
    return GradientRange(tops[0], tops[1])


class ExpressionGradients:
    """Gradients by the objective's array expressions, by loops of the device that do the same, or those that rows
    bring: `RowGradients` of any device.

    With `keep`, those of all chunks stay in memory between their range and their quantizing; one chunk's do otherwise.
    """

    def __init__(self, setup: EngineSetup, device: Device, *, keep: bool) -> None:
        self._setup, self._device, self._keep = setup, device, keep
        self._stored: list[tuple[Array, Array]] = []
        self._tops: list[Float64] = []

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None) -> None:
        """Take other rows; memory for gradients is used again where it is large enough."""
        self._rows, self._is_given = rows, given is not None
        if given is not None:
            self._stored = list(given)
        elif self._stored and len(self._stored[0][0]) < max([rows.train.room_rows, *map(len, rows.train.margins)]):
            self._stored = []

    def find_range(self, index: int) -> None:
        loops = self.loops
        self._tops += (
            self._by_ranges(index, self._range_gradients) if loops is None else [loops.fill(*self.filled(index))]
        )

    def compute(self, index: int) -> None:
        if self.loops is None:
            self._by_ranges(index, self._fill)
        else:
            self.loops.fill(*self.filled(index))

    @cached_property
    def loops(self) -> GradientLoops | None:
        """Loops of the device that fill gradients of the loss; None where array expressions do, or rows bring them."""
        loss = None if self._is_given else kernel_of(self._setup.objective)
        return None if loss is None else self._device.gradient_loops(loss)

    def filled(self, index: int) -> tuple[Array, Array, Array | None, Array, Array]:
        """Return what loops of the device fill of a chunk, as `GradientLoops.fill` takes it."""
        rows = self._rows
        return (
            rows.labels[index], rows.train.margins[index], self._multiplier(rows.weights[index]),
            *self.gradients(index),
        )  # fmt: skip

    def _multiplier(self, weight: Array | None) -> Array | None:
        """Return what multiplies gradients; rows of small data without weight must not widen the range."""
        if weight is None or not self._setup.recipe.small_data:
            return weight
        return is_positive(weight).astype(np.float32)

    def filling(self) -> Filling | None:
        """Return what fills gradients in compiled code; None where array expressions do."""
        loops = self.loops
        if loops is None:
            return None
        return Filling(loops, [loops.job(*self.filled(index)) for index in range(len(self._rows.train.margins))])

    def recall(self, index: int) -> None:
        if not self._keep:
            self.compute(index)

    def found_ranges(self) -> Float64:
        tops, self._tops = self._tops or [np.zeros((2, self._setup.objective.n_outputs))], []
        return largest_of(tops)

    def columns(self, index: int, output: int, *, by_weight: bool = False) -> GradientPair:
        g, h = self.gradients(index)
        return g[:, output], self._rows.multipliers(index, self._setup, self._device.xp) if by_weight else h[:, output]

    def gradients(self, index: int) -> tuple[Array, Array]:
        margins = self._rows.train.margins
        if not self._stored:
            sizes = [max(len(own), self._rows.train.room_rows) for own in margins]
            sizes = sizes if self._keep else [max(sizes, default=0)]
            shapes = [(size, self._setup.objective.n_outputs) for size in sizes]
            empty = partial(self._device.xp.empty, dtype=np.float32)
            self._stored = [(empty(shape), empty(shape)) for shape in shapes]
        pair = self._stored[index if self._keep else 0]
        n_rows = len(margins[index])
        return pair if len(pair[0]) == n_rows else (pair[0][:n_rows], pair[1][:n_rows])

    def all_outputs(self, index: int) -> GradientPair:
        self.compute(index)
        return self.gradients(index)

    def recorded(self, runtime: Runtime) -> tuple[Source, Callable[[], None]]:
        stored = StoredChunk(runtime, *self.gradients(0), self._rows.multipliers(0, self._setup, runtime.xp))
        return stored, partial(self.compute, 0)

    def _by_ranges(self, index: int, work: Callable[[int, int, int], T]) -> list[T]:
        """Do `work(index, begin, end)` on ranges of a chunk's rows; memory for its gradients is there."""
        return self._device.each_range(len(self.gradients(index)[0]), partial(work, index))

    def _range_gradients(self, index: int, begin: int, end: int) -> Float64:
        """Fill the gradients of some rows of a chunk; the largest |g| and h."""
        self._fill(index, begin, end)
        return np.stack([self._device.largest(part[begin:end]) for part in self.gradients(index)])

    def _fill(self, index: int, begin: int, end: int) -> None:
        """Compute the gradients of some rows of a chunk, unless rows bring them."""
        if self._is_given:
            return
        device, xp, rows = self._device, self._device.xp, self._rows
        label, margin, weight = rows.labels[index], rows.train.margins[index], rows.weights[index]
        all_g, all_h = self.gradients(index)
        weight = self._multiplier(weight)
        for start in range(begin, end, device.gradient_rows):
            part = slice(start, min(start + device.gradient_rows, end))
            g, h = self._setup.objective.gradients(label[part], margin[part], xp)
            if weight is None:
                all_g[part], all_h[part] = g, h
            else:
                with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
                    xp.multiply(g, weight[part, None], out=all_g[part])
                    xp.multiply(h, weight[part, None], out=all_h[part])


class Gradients:
    """Gradients of the rows that trees grow over; `keep` as of `ExpressionGradients`, `given` as of `hold`."""

    source: RowGradients
    """Computes the gradients: kernels of the loss, where it has some, or array expressions."""
    estimates: Array
    """What recorded rounds have estimated beside them so far, on the device: float32, shape (2, positions)."""

    def __init__(self, setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool,
                 given: Sequence[tuple[Array, Array]] | None = None) -> None:  # fmt: skip
        self._setup, self._device = setup, device
        self._expressions = ExpressionGradients(setup, device, keep=keep)
        self.estimates = device.xp.empty((2, 0), np.float32)
        self.hold(rows, given)

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        """Take other rows, which may bring their gradients: float32, shape (rows, outputs), of each chunk."""
        self.rows, setup = rows, self._setup
        self._expressions.hold(rows, given)
        kernels = self._device.loss_rows(
            kernel_of(setup.objective) if given is None else None, rows.labels, rows.train.margins, rows.weights,
            setup.objective.n_outputs, small_data=setup.recipe.small_data, stored=setup.recipe.vector_leaves,
            room_rows=rows.train.room_rows,
        )  # fmt: skip
        self.source = self._expressions if kernels is None else kernels

    def recorded(self, runtime: Runtime, keys: PairKeys, joined: Collective
                 ) -> tuple[Source, Callable[[], None]]:  # fmt: skip
        """Return what `RowGradients.recorded` does.

        `keys` : those of the pairs that ranking losses draw; `joined` : the GPUs of engines that have other rows.
        """
        return self.source.recorded(runtime)

    def start_round(self, message: StartRound) -> GradientRange:
        """Compute what the trees of a round are searched on, of all rows; its range."""
        for index in range(len(self.rows.train.margins)):
            self._take_in(index)
        return range_of(self._found_ranges())

    def _take_in(self, index: int) -> None:
        """Compute what trees are searched on, of a chunk, and take it into the range."""
        self.source.find_range(index)

    def _found_ranges(self) -> Float64:
        """Return the largest |g|, then h, of each column over the chunks of a round; float64, shape (2, columns)."""
        return self.source.found_ranges()

    def all_searched(self, index: int) -> tuple[Array, Array]:
        """Return all columns of a chunk that a tree of vector leaves is searched on."""
        return self.source.gradients(index)

    def searched(self, column: int, index: int) -> GradientPair:
        """Return a column of a chunk's gradients as trees are searched on it."""
        return self.column(column, index, by_weight=self._by_weight)

    @property
    def _by_weight(self) -> bool:
        """Whether trees are searched on weights in place of hessians."""
        return self._setup.recipe.searched == "weights"

    def column(self, output: int, index: int, *, by_weight: bool = False) -> GradientPair:
        """Return one output's column of a chunk's gradients, or what a kernel makes it of; with weights in place of
        hessians if that is asked for."""
        self.source.recall(index)
        return self.source.columns(index, output, by_weight=by_weight)

    def following(self, start: StartTree) -> Following | None:
        """Return the tree whose root the pass that finishes another one is to build; None where that would save no
        pass, or its gradients would not be there."""
        if len(start.columns) > 1 or self.rows.train.is_resident:
            return None
        return Following(partial(self._fresh, start.columns[0]), start.roundings[0])

    def _fresh(self, column: int, index: int) -> GradientPair:
        """Return a column of a chunk's gradients as trees are searched on it, at its margins as they are now."""
        self.source.compute(index)
        return self.source.columns(index, column, by_weight=self._by_weight)


# Gradients of rows whose trees are searched on a sketch: few random combinations of the outputs' gradients.

class SketchedGradients(Gradients):
    """`Gradients` with a sketch of them for each round, whose columns count from the number of outputs on."""

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        self._sketches: list[tuple[Array, Array]] = []
        """The sketch of each chunk's gradients."""
        super().hold(rows, given)

    def start_round(self, message: StartRound) -> GradientRange:
        assert message.projection is not None
        self._projection: Float32 = message.projection
        self._tops = [np.zeros((2, self._projection.shape[1]))]
        return super().start_round(message)

    def _take_in(self, index: int) -> None:
        super()._take_in(index)
        n_rows = len(self.rows.train.margins[index])
        if len(self._sketches) <= index:
            shape, empty = (n_rows, self._projection.shape[1]), self._device.xp.empty
            self._sketches.append((empty(shape, np.float32), empty(shape, np.float32)))
        self._tops += self._device.each_range(n_rows, partial(self._sketch_rows, index))

    def _sketch_rows(self, index: int, begin: int, end: int) -> Float64:
        """Project the gradients of some rows of a chunk; the largest |g| and h of the sketch."""
        signs = (self._projection, np.abs(self._projection))  # a step along a column moves its outputs up or down
        for values, projection, into in zip(self.source.gradients(index), signs, self._sketches[index], strict=True):
            self._device.project(values[begin:end], projection, into[begin:end])
        return np.stack([self._device.largest(part[begin:end]) for part in self._sketches[index]])

    def _found_ranges(self) -> Float64:
        return np.concatenate([super()._found_ranges(), largest_of(self._tops)], axis=1)

    def all_searched(self, index: int) -> tuple[Array, Array]:
        return self._sketches[index]

    def searched(self, column: int, index: int) -> GradientPair:
        g, h = self._sketches[index]
        place = column - self._setup.objective.n_outputs
        return g[:, place], h[:, place]

    def following(self, start: StartTree) -> Following | None:
        """Return None: a tree is searched on what its round has begun with."""
        return None


class QueryGradients(Gradients):
    """`Gradients` of a ranking loss: those of all rows are computed together, when a round starts, and stay.

    Rows whose queries other engines rank have them from there. Who ranks which queries engines agree on when gradients
    are first asked for, as all of them are there then.

    Parameters
    ----------
    peers : Peers
        The other engines; other parameters are those of `Gradients`.
    """

    def __init__(self, setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool, peers: Peers,
                 given: Sequence[tuple[Array, Array]] | None = None) -> None:  # fmt: skip
        self._peers = peers
        self._owned: OwnedQueries | None = None
        super().__init__(setup, device, rows, keep=keep, given=given)

    @property
    def _queries(self) -> OwnedQueries:
        """The queries that this engine ranks; collective when they are first asked for, DataError where the rows of one
        have different weights."""
        if self._owned is None:  # `cached_property` has one lock for all engines of a process
            self._owned = OwnedQueries.of(self.rows.train.groups, self._peers)
            self._loss = _engine_loss(self._setup.objective.query_loss, self._owned.rows, self._peers)
            if isinstance(self._loss, QueryLoss) and self._loss.positions:
                most_rows = max(self._peers.share(largest_size(self._owned.rows)))
                self._loss = replace(self._loss, positions=min(self._loss.positions, most_rows))
        return self._owned

    def _filling(self, rows: QueryRows) -> QueryFilling:
        """Return what fills the gradients of queries' rows."""
        loss = self._loss
        queries = Queries(
            rows.order, rows.begins, rows.label, rows.ids if loss.drawn else np.empty(0, np.uint64),
            rows.factors(by_weight=not self._setup.recipe.small_data),
        )  # fmt: skip
        if isinstance(loss, OwnLoss):
            return OwnLossFilling(loss, queries, self._device)
        if isinstance(loss, QueryLoss):
            check_sizes(self._setup.objective, largest_size(rows))
        return self._device.query_loops(loss, queries)

    @cached_property
    def _loops(self) -> QueryFilling:
        return self._filling(self._queries.rows)

    @cached_property
    def _sent(self) -> Array:
        """Places of the rows that other engines rank, on the device."""
        found: Array = self._device.xp.asarray(self._queries.moves.sent)
        return found

    def start_round(self, message: StartRound) -> GradientRange:
        parts, xp = [flat(own) for own in self.rows.train.margins], self._device.xp
        chunks = [(flat(g), flat(h)) for g, h in map(self.source.gradients, range(len(parts)))]
        if len(parts) == 1:
            (margin,), ((g, h),) = parts, chunks
        else:
            margin = xp.concatenate([*parts, xp.empty(0, np.float32)])
            g, h = xp.empty_like(margin), xp.empty_like(margin)
        self._fill(np.uint64(message.pair_key), margin, g, h)
        begin = 0
        for own_g, own_h in chunks if len(parts) > 1 else ():
            rows = slice(begin, begin + len(own_g))
            own_g[:], own_h[:], begin = g[rows], h[rows], rows.stop
        if not len(margin):
            return replace(range_of(np.zeros((2, 1))), chances=self._chances())
        largest = np.stack([self._device.largest(each[:, None]) for each in (g, h)])
        return replace(range_of(largest), chances=self._chances())

    def _chances(self) -> Float32 | None:
        """Estimate the chances of positions by the pairs of all engines, if the loss does, and return them on the host;
        collective."""
        loops, device = self._loops, self._device
        if not self._loss.positions:
            return None
        assert isinstance(loops, QueryLoops | QueryKernels)

        def add_up(costs: Array) -> None:  # engines of one process may have what others share before these add it up
            costs[:] = device.put(np.sum(self._peers.share(device.fetch(costs).copy()), axis=0))

        loops.learn(add_up)
        found: Float32 = device.fetch(loops.chances).copy()
        return found

    def _fill(self, key: np.uint64, margin: Array, g: Array, h: Array) -> None:
        """Fill the gradients of all rows, of which some come from other engines; collective."""
        queries, device, xp = self._queries, self._device, self._device.xp
        moves = queries.moves
        g[:] = h[:] = 0  # rows of weight 0 are of no query
        if not moves.are_any:
            self._loops.fill(key, margin, g, h)
            return
        n, sent = len(margin), self._sent
        others = moves.to_owners(device.fetch(margin[sent]))
        scores = xp.concatenate([margin, device.put(others)])
        every = xp.zeros((2, len(scores)), np.float32)
        self._loops.fill(key, scores, every[0], every[1])
        found = moves.from_owners(device.fetch(every[:, n:]))
        every[:, :n][:, sent] = device.put(found)
        g[:], h[:] = every[0, :n], every[1, :n]

    def recorded(self, runtime: Runtime, keys: PairKeys, joined: Collective
                 ) -> tuple[Source, Callable[[], None]]:  # fmt: skip
        """See `Gradients.recorded`; they are computed within a round, or before it by a user's function; collective."""
        stored, _ = self.source.recorded(runtime)
        (margin,), queries, moved = self.rows.train.margins, self._queries, None
        if isinstance(self._loss, OwnLoss):
            return stored, partial(self._fill, np.uint64(0), flat(margin), *map(flat, stored.stored()))
        room = queries.moves.most_sent
        kernels = self._filling(queries.with_room(room))
        assert isinstance(kernels, QueryKernels | ListKernels | PairKernels)
        kernels.follow(keys.of_rounds, keys.ended)
        for own in stored.stored():
            own.fill(0)
        if room:
            moved = MovedRows(kernels.runtime, joined, len(margin), queries.moves.sent, room)
        learn: Callable[[], None] = _nothing
        if self._loss.positions:
            assert isinstance(kernels, QueryKernels)
            learn, self.estimates = partial(kernels.learn, joined.add_up), kernels.chances
        return QueryChunk(kernels, stored, flat(margin), moved, learn), _nothing

    def following(self, start: StartTree) -> Following | None:
        """Return None: the next round's gradients need the margins of all rows."""
        return None


def _engine_loss(loss: AnyQueryLoss | None, rows: QueryRows, peers: Peers) -> EngineLoss:
    """Return the loss of the queries that an engine ranks; collective."""
    assert loss is not None
    return placed_pairs(loss, rows, peers) if isinstance(loss, GivenPairs) else loss


def largest_size(rows: QueryRows) -> int:
    """Return how many rows the largest query has."""
    return int(np.diff(rows.begins).max(initial=0))


def check_sizes(objective: Objective, n_rows: int) -> None:
    """Refuse the largest query, of so many rows, where its gradients would take too long: DataError."""
    if n_rows > objective.most_query_rows:
        raise DataError(
            f"objective {objective.name!r} takes all pairs of rows of a query, at most {objective.most_query_rows} "
            f"rows, and the largest has {n_rows}; use objective='rank:pairwise', which pairs the first rows with all, "
            "or some rows of each with lambdarank_pair_method='mean'"
        )


def _nothing() -> None:
    """Launch nothing."""


def searched_gradients(setup: EngineSetup, device: Device, rows: GrowingRows, *, keep: bool, peers: Peers = ONLY,
                       given: Sequence[tuple[Array, Array]] | None = None) -> Gradients:  # fmt: skip
    """Return the gradients of rows that trees are searched on; parameters are those of `Gradients`, and `peers` are the
    other engines, where these have rows of the same queries."""
    if setup.recipe.by_query:
        return QueryGradients(setup, device, rows, keep=keep, peers=peers, given=given)
    kind = SketchedGradients if setup.recipe.sketch else Gradients
    return kind(setup, device, rows, keep=keep, given=given)
