"""What differs on a GPU between trees that search one output and trees that search several side by side."""

from __future__ import annotations

from dataclasses import dataclass

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows import GpuRows
from daskboost.devices.gpu.split import SplitKernels
from daskboost.devices.gpu.split_vectors import VectorKernels
from daskboost.devices.gpu.vector_rows import VectorRows


@dataclass(frozen=True)
class TreeKind:
    """Classes of what trees of a fit grow by."""

    rows: type[GpuRows]
    kernels: type[SplitKernels]


SCALAR = TreeKind(GpuRows, SplitKernels)
VECTOR = TreeKind(VectorRows, VectorKernels)


def tree_kind(layout: SlotLayout) -> TreeKind:
    """Return the kind of trees whose histograms are laid out so."""
    return VECTOR if layout.width > 1 else SCALAR
