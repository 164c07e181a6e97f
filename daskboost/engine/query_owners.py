"""Queries whose rows lie on several engines: which one ranks each of them, and what travels there and back.

Features never move. Once for a set of rows, engines agree on an owner of each query, the one that has most of its rows,
and tell it what queries need to know of the others' rows. From then on a row's score goes to the owner of its query, 4
bytes, and what the owner makes of it comes back: of rows that lie in the order of their queries, those of a few queries
move.

    engine 0: rows a a a b        a a a b b           b's row travels, and what its owner makes of it
    engine 1: rows b b c c   ->   engine 1 owns b, engine 0 owns a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from daskboost.dtypes import Array, Float32, Int64
from daskboost.engine.query_rows import QueryRows, RowFacts
from daskboost.engine.row_groups import RowGroup
from daskboost.exact_sum import ExactSum
from daskboost.fit.peers import Peers
from daskboost.hashing import draws


@dataclass(frozen=True, eq=False)
class Moves:
    """Rows of an engine whose queries other engines own, and rows of others whose queries it owns."""

    peers: Peers
    sent: Int64
    """Places of the engine's rows that others rank, those of each owner together, in the order of engines."""
    counts: Int64
    """Rows that each engine has of queries that each one owns, others than itself; shape (engines, engines)."""

    @property
    def are_any(self) -> bool:
        """Whether any engine has rows that another one ranks; all engines say the same."""
        return bool(self.counts.any())

    @property
    def most_sent(self) -> int:
        """Most rows that an engine has which others rank."""
        return int(self.counts.sum(axis=1).max())

    def to_owners(self, values: Float32) -> Float32:
        """Return what other engines tell of their rows that this one ranks, engine by engine, given what it tells of
        the rows `sent`; float32, shape (rows,); collective."""
        return self._exchanged(values, self.counts[self.peers.rank])

    def from_owners(self, values: Float32) -> Float32:
        """Return what owners tell of the rows `sent`, given what this engine tells of others' rows that it ranks;
        float32, shape (numbers, rows); collective."""
        return self._exchanged(values, self.counts[:, self.peers.rank])

    def _exchanged(self, values: Float32, n_to: Int64) -> Float32:
        if not self.are_any:
            return values
        parts = np.split(values, np.cumsum(n_to)[:-1], axis=-1)
        found: Float32 = np.concatenate(self.peers.exchange([np.ascontiguousarray(part) for part in parts]), axis=-1)
        return found

    def behind(self, n_rows: int, room: int) -> Int64:
        """Return where others' rows that this engine ranks lie behind `n_rows` of its own, where each engine has a
        place for each of `room` rows that it may send; shape (received rows,)."""
        begins = np.cumsum(self.counts, axis=1) - self.counts
        rank = self.peers.rank
        return np.concatenate([
            np.arange(self.counts[engine, rank]) + n_rows + engine * room + begins[engine, rank]
            for engine in range(self.peers.n_peers)
        ])  # fmt: skip


@dataclass(frozen=True, eq=False)
class OwnedQueries:
    """The queries that an engine ranks, and the rows that move for that."""

    rows: QueryRows
    """Places are those of the engine's own rows; behind them lie others' rows, as `Moves.to_owners` returns them."""
    n_rows: int
    """Rows of the engine."""
    moves: Moves

    @classmethod
    def of(cls, groups: Sequence[RowGroup], peers: Peers) -> OwnedQueries:
        """Agree with the other engines on who ranks which queries of a set, of which this one has the rows of chunks;
        collective.

        Raises
        ------
        DataError
            Rows of a query with different weights, or rows without queries.
        """
        facts = RowFacts.of_groups(groups)
        if peers.n_peers == 1:
            moves = Moves(peers, np.empty(0, np.int64), np.zeros((1, 1), np.int64))
            return cls(QueryRows.of(facts.qid, facts.label, facts.weight, facts.ids), len(facts.qid), moves)
        n_rows, places = len(facts.qid), facts.counted
        moves = _agree(facts, places, peers)
        if moves.are_any:
            stays = np.zeros(n_rows, np.bool_)
            stays[places], stays[moves.sent] = True, False
            kept = np.flatnonzero(stays)
            received = _told(facts.taken(moves.sent), moves)
            places = np.concatenate([kept, np.arange(n_rows, n_rows + sum(len(each.qid) for each in received))])
            facts = facts.taken(kept).with_others(received)
        else:
            facts = facts.taken(places)
        found = QueryRows.of(facts.qid, facts.label, facts.weight, facts.ids)
        weights = peers.share((found.n_queries, ExactSum.of(found.weights).to_array()))
        total = reduce(add, [ExactSum.from_array(each) for _, each in weights]).value()
        rows = replace(found, order=places[found.order], n_everywhere=sum(n for n, _ in weights), total_weight=total)
        return cls(rows, n_rows, moves)

    def with_room(self, room: int) -> QueryRows:
        """Return the rows where each engine has places for so many that it may send, one engine behind the other."""
        places = np.concatenate([np.arange(self.n_rows), self.moves.behind(self.n_rows, room)])
        return replace(self.rows, order=places[self.rows.order])

    def scores(self, own: Array) -> Array:
        """Return scores of the engine's rows, then of others' that it ranks; on the host; collective."""
        if not self.moves.are_any:
            return own
        return np.concatenate([own, self.moves.to_owners(own[self.moves.sent])])


def _agree(facts: RowFacts, counted: Int64, peers: Peers) -> Moves:
    """Find the rows that count whose queries other engines own; collective."""
    order = counted[np.argsort(facts.qid[counted], kind="stable")]
    ordered = facts.qid[order]
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, len(order)), np.bool_), ordered[1:] != ordered[:-1]]))
    sizes = np.diff(begins, append=len(order))
    owner = np.repeat(_owners(ordered[begins], sizes, peers), sizes)
    elsewhere = np.flatnonzero(owner != peers.rank)
    elsewhere = elsewhere[np.argsort(owner[elsewhere], kind="stable")]
    own_counts = np.bincount(owner[elsewhere], minlength=peers.n_peers)
    return Moves(peers, order[elsewhere], np.stack(peers.share(own_counts)))


def _owners(codes: Int64, sizes: Int64, peers: Peers) -> Int64:
    """Return which engine owns each query of these codes, of which this engine has `sizes` rows; collective.

    Codes are dealt out to engines by their hashes, where the rows of each are compared: an engine hears of about as
    many queries as it has, however many engines there are. Equal numbers of rows are decided by these hashes, too.
    """
    n, hashes = peers.n_peers, draws(np.uint64(0), codes.view(np.uint64)) >> np.uint64(1)
    home = (hashes % np.uint64(n)).astype(np.int64)
    by_home = np.argsort(home, kind="stable")
    facts = np.stack([codes, sizes, (hashes // np.uint64(n)).astype(np.int64)])[:, by_home]
    told = peers.exchange(_dealt(facts, np.bincount(home, minlength=n)))
    n_told = [part.shape[1] for part in told]
    engine = np.repeat(np.arange(n), n_told)
    code, n_rows, draw = np.concatenate(told, axis=1)
    best = np.lexsort(((engine + draw) % n, -n_rows, code))
    is_first = np.concatenate([np.ones(min(1, len(best)), np.bool_), code[best[1:]] != code[best[:-1]]])
    owner = np.empty(len(code), np.int64)
    owner[best] = engine[best[is_first]][np.cumsum(is_first) - 1]
    replies = np.concatenate(peers.exchange(_dealt(owner, np.array(n_told))))
    found = np.empty(len(codes), np.int64)
    found[by_home] = replies
    return found


def _told(facts: RowFacts, moves: Moves) -> list[RowFacts]:
    """Return what other engines know of the rows that this one ranks, given what it knows of those that it sends;
    collective."""
    weight = np.ones(len(facts.qid), np.float32) if facts.weight is None else facts.weight
    floats = np.ascontiguousarray(np.stack([facts.label, weight], axis=1)).view(np.int64)[:, 0]
    numbers = np.stack([facts.qid, facts.ids.view(np.int64), floats])
    received = moves.peers.exchange(_dealt(numbers, moves.counts[moves.peers.rank]))
    found = []
    for qid, ids, words in received:
        label, weight = words.view(np.float32).reshape(-1, 2).T
        found.append(RowFacts(qid, ids.view(np.uint64), label, weight))
    return found


def _dealt(numbers: Int64, n_to: Int64) -> list[Array]:
    """Return each engine's part of numbers, of which it gets so many, along the last axis."""
    return [np.ascontiguousarray(part) for part in np.split(numbers, np.cumsum(n_to)[:-1], axis=-1)]
