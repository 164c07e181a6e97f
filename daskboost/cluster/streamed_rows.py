"""Engines whose trees grow on a sample of their rows, between passes over all of them.

A pass does everything that wants the bins of all rows, so that each chunk comes once: its margins take the trees that
were finished since the last pass, and what the kind of engine looks for is found. The sample has bins, margins and a
row order of its own, in the device's memory: to the rest of an engine's code it is another shard of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from daskboost.cluster import messages as m
from daskboost.cluster.engine import Engine, EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.row_groups import RowGroup
from daskboost.cluster.shard_margins import ShardMargins
from daskboost.cluster.shared_views import SharedViews
from daskboost.data.chunk import ChunkRows
from daskboost.data.shard import Shard
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.device import Array, Device, View
from daskboost.devices.sampling import TakenSample


class StreamedEngine(Engine):
    """`Engine` with a sample; the same parameters. Subclasses make the sample."""

    sample: Engine
    """Of the sample's rows, which answers what comes as `OnSample`."""

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharedViews | None = None) -> None:  # fmt: skip
        super().__init__(setup, train, evals, device, peers, shared)
        self._keep_gradients = False  # margins wait for the next round, so that a chunk's outputs start from the same
        self._finished: list[tuple[WalkArrays, int]] = []
        """Trees and outputs that the margins of the training rows do not have yet."""
        self._unevaluated: list[tuple[WalkArrays, int]] = []
        """The same of the evaluation sets'."""
        self._answers[m.OnSample] = self._on_sample

    @property
    def _current(self) -> Sequence[ShardMargins]:
        """None: margins of training rows wait for the next pass, so that rows that are evaluated have their own."""
        return ()

    def close(self) -> None:
        self.sample.close()
        super().close()

    def _on_sample(self, message: m.OnSample) -> Any:
        return self.sample.handle(message.request)

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        """The margins of the training rows wait for the next pass, those of evaluation sets for one that adds all trees
        of a round."""
        self._finished.append((message.tree, message.output))
        if self.evals:
            self._unevaluated.append((message.tree, message.output))
        return m.Done()

    def _evaluate(self, message: m.Evaluate) -> m.MetricParts:
        for margins in self.evals if self._unevaluated else ():
            margins.add_trees(self._unevaluated)
        self._unevaluated.clear()
        return super()._evaluate(message)

    def pass_over_rows(self) -> Iterator[tuple[int, View]]:
        """Each chunk's index and view, once; by then its margins have every finished tree."""
        yield from self.train.adding(self._finished)
        self._finished.clear()


class HeldEngine(Engine):
    """The engine of a sample, which is of other rows from time to time."""

    def hold(self, rows: TakenRows) -> None:
        """Take other rows, or none."""
        self.train, self._sketches = rows, []
        self._labels, self._weights = [group.rows.label for group in rows.groups], [g.rows.weight for g in rows.groups]
        self.rows = self._make_rows()


class TakenRows(ShardMargins):
    """Some rows of a shard as one of a single chunk, or of none: bins and margins of their own.

    Parameters
    ----------
    of : ShardMargins
        Where they come from.
    group : RowGroup, optional
        What is known of the rows; None where there are none.
    view : View
        Their bins.
    margins : Array, optional
        float32, shape (rows, outputs).
    room_rows : int, default 0
        As `Device.rows` takes it.
    """

    is_resident = True

    def __init__(self, of: ShardMargins, group: RowGroup | None = None, view: View = None,
                 margins: Array | None = None, room_rows: int = 0) -> None:  # fmt: skip
        self.room_rows = room_rows
        self.shard, self._device, self._shared, self.n_outputs = of.shard, of._device, None, of.n_outputs
        self._kept, self.groups, self.margins = {}, [], []
        if group is not None:
            self._kept, self.groups, self.margins = {0: view}, [group], [margins]

    @classmethod
    def of_sample(cls, of: ShardMargins, sample: TakenSample | None) -> TakenRows:
        """What was taken for a sample, if there are rows."""
        if sample is None:
            return cls(of)
        group = RowGroup(range(0), sample.n_rows, sample.ids, ChunkRows(sample.label, sample.weight))
        return cls(of, group, sample.view, sample.margin, sample.room_rows)
