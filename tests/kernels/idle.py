"""An emulated device whose kernels do nothing: what a fit allocates, without what it computes.

Trees that grow without the host ask a GPU for no decision, so their fits take the same memory as with kernels
(`test_plans_of_random_fits.py`), in a hundredth of the time. Every tree is one leaf.
"""

from __future__ import annotations

from typing import Any

from kernels.tracked import Module, TrackedRuntime

from daskboost.devices.gpu.runtime.kernel_source import LEAST_SM, Entry, KernelFile, Variant

FINISHING = ("finish_trees", "finish_best")
"""Entry points that leave finished trees in tables."""
KEEPING = "keep_bytes"
"""Copies tables to the place of their round, from which the host fetches them."""


class IdleKernel:
    """An entry point that checks its arguments."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __call__(self, grid: int, block: int, *arguments: Any, shared_bytes: int = 0) -> None:
        self._entry.bind(arguments)
        if self._entry.name in FINISHING:
            names = [parameter.name for parameter in self._entry.parameters]
            sizes = max(place for place, name in enumerate(names) if name.endswith("sizes"))
            arguments[sizes][:], arguments[sizes + 1][:] = 1, -1  # nodes and leaves; links, of which a leaf has none
        if self._entry.name == KEEPING:
            values, ring = arguments[0], arguments[5]
            ring[:, : len(values)] = values  # whichever round it is


class ZeroModule(Module):
    """Counts arrays as `Module` does, all of which begin with zeros: no flag is set by chance."""

    def empty(self, *arguments: Any, **options: Any) -> Any:
        return self.zeros(*arguments, **options)


class IdleRuntime(TrackedRuntime):
    """Counts bytes without computing anything."""

    def __init__(self, free_bytes: int = 1 << 30, sm: int = LEAST_SM) -> None:
        super().__init__(free_bytes, sm)
        self.xp = ZeroModule()

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> Any:
        return IdleKernel(source.entries(variant)[entry])
