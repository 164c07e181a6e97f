"""How partial histograms become best splits: at the coordinator, or shared out among the engines.

Both give the same candidates, because integer sums do not depend on who adds them in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu.arithmetic import narrow_into
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import Array, Int32, Int64, UInt8
from daskboost.fit import messages as m
from daskboost.fit.messages import Answers, Outbox
from daskboost.tree.split_search import Candidates, OpenNodes, SplitRules, SplitSearch, combine

V = TypeVar("V")

# An engine's side of the other engines of a fit.

class Peers(Protocol):
    """An engine's side: the other engines of the fit, itself included."""

    @property
    def rank(self) -> int:
        """This engine's place in engine order, from 0."""

    @property
    def n_peers(self) -> int:
        """How many engines take part, this one included."""

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        """All-to-all: `parts[i]` goes to engine i; returns what each engine sent here, in rank order.

        Collective: every engine calls it equally often. The part for oneself comes back as it is.

        Raises
        ------
        PeerLostError
            Another engine failed, so this exchange can never complete.
        """

    def share(self, message: V, /) -> list[V]:
        """All-gather: what each engine says, in rank order; a message, or an array. Otherwise as `exchange`."""

    def common_memory(self, n_bytes: int, /) -> list[UInt8] | None:
        """Return a room of each engine, cleared, which all of them see, in rank order; None where they have no memory
        in common. Collective, with as many bytes on all; uint8, shape (n_bytes,)."""

    def check(self) -> None:
        """Raise `PeerLostError` if another engine is known to have failed, for those that wait for it in common
        memory."""

    def close(self) -> None:
        """Make every engine that waits for this one, now or later, raise `PeerLostError`; from any thread."""


class Only:
    """`Peers` of the only engine of a fit."""

    rank, n_peers = 0, 1

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        return list(parts)

    def share(self, message: V, /) -> list[V]:
        return [message]

    def common_memory(self, n_bytes: int, /) -> list[UInt8] | None:
        return [np.zeros(n_bytes, np.uint8)]

    def check(self) -> None:
        """Miss nobody."""

    def close(self) -> None:
        """Let nobody know: nobody waits."""


ONLY = Only()


def feature_shares(layout: SlotLayout, n_peers: int) -> list[tuple[int, int]]:
    """One range of features per peer, with about equal numbers of slots; later ranges may be empty."""
    if n_peers == 1:
        return [(0, len(layout.n_bins))]
    goals = layout.n_slots * np.arange(1, n_peers) / n_peers
    edges = [0, *np.searchsorted(layout.offsets, goals).tolist(), len(layout.n_bins)]
    return list(pairwise(edges))


def narrow(sums: Int64, buffers: Buffers) -> Int64 | Int32:
    """The same sums as int32 where they all fit: half the bytes to send. C-contiguous in and out."""
    small: Int32 = buffers.empty(sums.shape, np.int32)
    return small if narrow_into(sums.reshape(-1), small.reshape(-1)) else sums


def total(parts: Sequence[Int64 | Int32], buffers: Buffers) -> Int64:
    """Sum of narrowed histograms; one part alone is not copied if it is wide already."""
    if len(parts) == 1:
        return np.asarray(parts[0], np.int64)
    result: Int64 = np.add(parts[0], parts[1], out=buffers.empty(parts[0].shape))
    for part in parts[2:]:
        result += part
    return result


PEER_BYTES = 2**15
"""Histogram bytes per node and engine from which sharing the reduction out beats sending all of it to one place."""


class Reduction(Protocol):
    """Applies splits everywhere and finds the best splits of the opened nodes."""

    def start_tree(self, start: m.StartTree) -> list[m.RootSums]:
        """Start a tree on all engines; their sums at its root."""
        ...

    def search(self, splits: RowSplits | None, nodes: OpenNodes) -> Candidates: ...

    def end_tree(self) -> None: ...


class AtCoordinator:
    """Engines send all their histograms; the coordinator adds and searches. Least latency, most inbound bytes."""

    def __init__(self, engines: Outbox, layout: SlotLayout, rules: SplitRules, threads: Threads) -> None:
        self._engines = engines
        self._buffers = Buffers()
        self._search = SplitSearch(layout, rules, threads, (0, len(layout.n_bins)))
        self._root: Answers[m.PartialHistograms] | None = None

    def start_tree(self, start: m.StartTree) -> list[m.RootSums]:
        """Start a tree; the root's histograms come in the same round trip, for the first search."""
        sums = self._engines.later(start)
        self._root = self._build(None, np.zeros(1, np.int32))
        return self._engines.get(sums)

    def search(self, splits: RowSplits | None, nodes: OpenNodes) -> Candidates:
        answers, self._root = self._root, None
        if answers is None:
            answers = self._build(splits, nodes.built)
        return self._search.search(nodes, total([part.sums for part in self._engines.get(answers)], self._buffers))

    def _build(self, splits: RowSplits | None, built: Int32) -> Answers[m.PartialHistograms]:
        return self._engines.later(m.Build(splits, built, compact=self._engines.n_engines > 1))

    def end_tree(self) -> None:
        self._root = None
        self._search.forget()


class AmongPeers:
    """Reduce-scatter by feature: each engine adds and searches its share of the features. GPUs that are joined reduce
    to all: each searches all features, and all find the same."""

    def __init__(self, engines: Outbox) -> None:
        self._engines = engines

    def start_tree(self, start: m.StartTree) -> list[m.RootSums]:
        return self._engines.ask(start)

    def search(self, splits: RowSplits | None, nodes: OpenNodes) -> Candidates:
        return combine(self._engines.ask(m.Search(splits, nodes)))

    def end_tree(self) -> None:
        """Do nothing: engines forget their histograms when the next tree starts."""


def make_reduction(name: str, engines: Outbox, layout: SlotLayout, rules: SplitRules, threads: Threads
                   ) -> Reduction:  # fmt: skip
    """The strategy of that name; ``auto`` picks by the number of engines and the bytes of a histogram.

    The only engine of a fit searches its histograms itself, where they lie, and so do GPUs that ``nccl`` has joined.
    """
    if name == "auto":
        at_engines = engines.n_engines == 1 or layout.n_entries * 16 >= PEER_BYTES
        name = "peers" if at_engines else "coordinator"
    return AtCoordinator(engines, layout, rules, threads) if name == "coordinator" else AmongPeers(engines)
