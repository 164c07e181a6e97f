"""The rows of a shard's only chunk, as trees that grow without the host see them."""

from __future__ import annotations

from dataclasses import dataclass

from daskboost.devices.gpu.margins import add_leaf_values
from daskboost.devices.gpu.rows import DeviceOrder, GpuRows
from daskboost.devices.gpu.runtime import DeviceArray
from daskboost.devices.gpu.views import GpuView


@dataclass(frozen=True)
class ChunkRows:
    """The only chunk of a shard, as trees that grow without the host see it: all rows may be in their roots."""

    rows: GpuRows
    view: GpuView
    chunk: DeviceOrder
    in_order: bool
    """Whether the rows of a root are in the order of their indices: none is left out."""
    reaches_leaves: bool = False
    """Whether rows are moved to the leaves; otherwise they walk there once a tree is done, which takes as long as one
    level of moving does, but for rows of CSR, which look up symbols slowly."""

    def reserve(self, n_nodes: int, n_splits: int) -> tuple[int, int]:
        """See `GpuRows.reserve`; what says whether it took other memory since (`Recorder.expect`)."""
        self.rows.reserve(n_nodes, n_splits)
        return self.chunk.n_grown, self.rows.scratch.n_grown

    def build(self, nodes: DeviceArray, out: DeviceArray, *, is_root: bool = False, n_trees: int = 1) -> None:
        """See `GpuRows.build`; where no row is left out, positions in the root are rows."""
        self.rows.build(self.view, self.chunk, nodes, out, in_order=is_root and self.in_order, n_trees=n_trees)

    def split(self, splits: DeviceArray) -> None:
        """See `GpuRows.split_rows`."""
        self.rows.split_rows(self.view, self.chunk, splits)

    def add_leaf_values(self, leaves: DeviceArray, values: DeviceArray, margin: DeviceArray) -> None:
        """Add the values of leaves that rows have reached to the margins of these; see `margins.add_leaf_values`."""
        add_leaf_values(self.view.runtime, self.chunk, leaves, values, margin)
