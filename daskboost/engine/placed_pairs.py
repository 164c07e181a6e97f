"""Pairs of rows, by their numbers among all, become pairs of the rows that an engine ranks."""

from __future__ import annotations

import numpy as np

from daskboost.devices.losses import GivenPairs, PlacedPairs
from daskboost.dtypes import Bool, Int64, UInt64
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError
from daskboost.fit.peers import ONLY, Peers


def placed_pairs(pairs: GivenPairs, rows: QueryRows, peers: Peers = ONLY) -> PlacedPairs:
    """Return the pairs of the rows that an engine ranks, both of which count; collective.

    Raises
    ------
    DataError
        A pair of rows of different queries, whoever ranks these: the same on all engines.
    """
    by_id = np.argsort(rows.ids, kind="stable")
    ids = rows.ids[by_id]
    (winner, wins_here), (loser, loses_here) = (
        _places(numbers.view(np.uint64), ids, by_id) for numbers in (pairs.winner, pairs.loser)
    )
    query = np.repeat(np.arange(rows.n_queries), np.diff(rows.begins))
    _check_queries(pairs, _lone_sides(rows, query, winner, loser, wins_here, loses_here), peers)
    here = wins_here & loses_here
    return PlacedPairs(winner[here], loser[here], pairs.weight[here])


def _places(numbers: UInt64, ids: UInt64, by_id: Int64) -> tuple[Int64, Bool]:
    """Return the places of rows of these numbers, and which are there; `ids` increase, and have the places `by_id`."""
    if not len(ids):
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.bool_)
    at = np.minimum(np.searchsorted(ids, numbers), len(ids) - 1)  # with a sorter it takes five times as long
    return by_id[at], ids[at] == numbers


def _lone_sides(rows: QueryRows, query: Int64, winner: Int64, loser: Int64, wins_here: Bool, loses_here: Bool) -> Int64:
    """Return numbers of pairs, and the codes of queries of those of their rows whose other row is of no query or of
    another one; int64, shape (2, rows)."""
    together = np.zeros(len(winner), np.bool_)
    both = np.flatnonzero(wins_here & loses_here)
    together[both] = query[winner[both]] == query[loser[both]]
    sides = []
    for place, is_here in ((winner, wins_here), (loser, loses_here)):
        lone = np.flatnonzero(is_here & ~together)
        sides.append(np.stack([lone, rows.codes[query[place[lone]]].view(np.int64)]))
    return np.concatenate(sides, axis=1)


def _check_queries(pairs: GivenPairs, lone: Int64, peers: Peers) -> None:
    """Refuse pairs both of whose rows some engine has, of different queries: DataError; collective."""
    number, code = np.concatenate(peers.share(lone), axis=1)
    order = np.argsort(number, kind="stable")
    twice = np.flatnonzero(number[order][1:] == number[order][:-1])
    if not len(twice):
        return
    first, second = order[twice[0]], order[twice[0] + 1]
    at = int(number[first])
    raise DataError(
        f"pairs[{at}] is of rows {pairs.winner[at]} and {pairs.loser[at]}, which are of different queries, "
        f"{' and '.join(map(str, sorted(code[[first, second]].tolist())))}: scores mean something beside those of the "
        "same query alone; pair rows of one query, or leave the pair out"
    )
