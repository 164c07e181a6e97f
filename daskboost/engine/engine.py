"""One shard on one device: a state machine that answers the coordinator's requests. It knows nothing of Dask.

An engine holds what loops over rows; every decision (splits, leaf values, stopping) comes from the coordinator, or from
its loop run beside each engine, where these grow whole rounds (`whole_rounds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

from daskboost.data.chunks.shard import Shard
from daskboost.devices.budget.plan import RowSource
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.protocols import Device
from daskboost.engine.certifying import CertifiedTrees
from daskboost.engine.drawing import DrawnTrees
from daskboost.engine.passes import RowSets
from daskboost.engine.row_gradients import searched_gradients
from daskboost.engine.setup import Answers, EngineSetup
from daskboost.engine.shard_margins import SharesViews
from daskboost.engine.tree_rows import HistogramSearch, TreeRows
from daskboost.fit import messages as m
from daskboost.fit.peers import ONLY, Peers

R = TypeVar("R")


class Part(Protocol):
    """A part of an engine."""

    @property
    def answers(self) -> Answers:
        """What answers each request that is this part's."""

    def stop(self) -> None:
        """Wait for no other engine any more, which may not come; from any thread."""

    def close(self) -> None:
        """Free what is not freed with the arrays."""


class GrowsTrees(Part, Protocol):
    """The part of an engine that trees grow over: all rows, or a sample between passes over all of them."""

    @property
    def sample_answers(self) -> Answers:
        """What answers requests to the sample; nothing where there is none."""


class Engine:
    """One worker's share of a fit.

    Parameters
    ----------
    setup : EngineSetup
    train : Shard
        Training rows; may be empty.
    evals : sequence of Shard
        This engine's rows of each evaluation set; may be empty.
    device : Device
        Where the rows lie; closed by `close`.
    peers : Peers, optional
        The other engines; needed by `Search`, and by queries whose rows lie on several engines.
    shared : SharesViews, optional
        Where views come from, if other fits of this process train on the same data set.
    """

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharesViews | None = None) -> None:  # fmt: skip
        self.setup, self.device = setup, device
        with device.errors():
            self.sets = RowSets(setup, device, train, evals, shared, peers or ONLY)
            self.trees = GROWN_ON[setup.recipe.rows](setup, device, self.sets, peers)
        self._sample_answers = dict(self.trees.sample_answers)
        self._answers: dict[type[m.Request[Any]], Callable[[Any], Any]] = {
            m.LabelSums: self.sets.label_sums,
            m.TotalWeight: self.sets.total_weight,
            m.ClassWeights: self.sets.class_weights,
            m.SetBaseMargin: self.sets.set_base,
            m.AddTree: self.sets.add_tree,
            m.OnSample: self._on_sample,
            m.Several: self._several,
        }
        self._parts: list[Part] = []
        self._next_work: Callable[[], None] | None = None
        self.add(self.trees)

    def add(self, part: Part, next_work: Callable[[], None] | None = None) -> None:
        """Have a part answer its requests; it is closed with the engine. It may know what work is likely to be asked
        for next."""
        self._answers |= part.answers
        self._parts.append(part)
        self._next_work = next_work or self._next_work

    def handle(self, message: m.Request[R]) -> R:
        """Answer one request."""
        with self.device.errors():
            reply: R = self._answers[type(message)](message)
            return reply

    def go_on(self) -> None:
        """Do what is likely to be asked for next, if a part knows that; its failures are told when it is asked for."""
        if self._next_work is not None:
            with self.device.errors():
                self._next_work()

    def stop(self) -> None:
        """See `Part.stop`; what is worked on ends soon, if only with an error."""
        for part in list(self._parts):
            part.stop()

    def close(self) -> None:
        """Free the device's threads and the rows' memory; shards belong to whoever made them."""
        self._answers.clear()  # methods refer to the engine, whose arrays would wait for the garbage collector
        self._sample_answers.clear()
        self._next_work = None
        try:
            with self.device.errors(), ExitStack() as stack:
                for part in reversed(self._parts):
                    stack.callback(part.close)
        finally:
            self.device.close()

    def _on_sample(self, message: m.OnSample[R]) -> R:
        reply: R = self._sample_answers[type(message.request)](message.request)
        return reply

    def _several(self, message: m.Several) -> m.Replies:
        return m.Replies(tuple([self.handle(request) for request in message.requests]))


class TreesOnAllRows:
    """What an engine answers about trees that grow on all of its rows."""

    sample_answers: Answers = {}  # noqa: RUF012  # nobody changes it

    def __init__(self, setup: EngineSetup, device: Device, sets: RowSets, peers: Peers | None) -> None:
        self._sets = sets
        self.gradients = searched_gradients(setup, device, sets.rows, keep=setup.keeps_round, peers=sets.peers)
        self.tree_rows = TreeRows(setup, device, HistogramSearch(setup, device, peers), self.gradients)

    @property
    def answers(self) -> Answers:
        """What answers each request about trees."""
        return {
            **self.tree_rows.answers,
            m.FinishTree: self._finish_tree,
            m.Evaluate: self._sets.evaluate,
        }

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        self.tree_rows.finish_tree(message)
        self._sets.add_to_evals([(message.tree, message.output)])
        return m.Done()

    def stop(self) -> None:
        """Do nothing: it waits for others by their peers."""

    def close(self) -> None:
        """Free nothing: memory goes with the arrays."""


GROWN_ON: Mapping[RowSource, Callable[[EngineSetup, Device, RowSets, Peers | None], GrowsTrees]] = {
    "all": TreesOnAllRows, "certified": CertifiedTrees, "drawn": DrawnTrees,
}  # fmt: skip
"""The part of an engine that answers about trees, by the rows that they grow on."""


def engine_on(make_device: Callable[[Threads], Device], threads: Threads, make_engine: Callable[[Device], Engine]
              ) -> Engine:  # fmt: skip
    """Make an engine on a device of these threads, which end at once if either cannot be made; so does what the device
    streams, since a sample is taken in a pass."""
    device: Device | None = None
    try:
        device = make_device(threads)
        return make_engine(device)
    except BaseException:
        (threads if device is None else device).close()
        raise
