"""What labels in a GPU's memory are like: launches of `kernels/labels.cu`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_device, to_host

THREADS = 256
"""Threads of a block, as in `kernels/labels.cu`."""
BLOCKS_PER_PROCESSOR = 8


@dataclass(frozen=True)
class LabelSummary:
    """What the labels are like."""

    n_missing: int
    n_infinite: int
    all_whole: bool
    least_key: int
    """Least label that is not missing, as an order-preserving key; 2**32 - 1 if there are none."""
    greatest_key: int
    """0 if there are none."""


def summarize_labels(runtime: Runtime, labels: DeviceArray) -> LabelSummary:
    """Look at labels, float32 of shape (rows,), contiguous."""
    xp, n = runtime.xp, len(labels)
    counts, ends = xp.zeros(3, np.uint64), to_device(runtime, np.array([0xFFFFFFFF, 0], np.uint32))
    if n:
        blocks = min(-(-n // THREADS), BLOCKS_PER_PROCESSOR * runtime.multiprocessors)
        runtime.kernel("labels", "summarize_labels")(blocks, THREADS, labels, n, counts, ends)
    missing, infinite, broken = to_host(counts).tolist()
    least, greatest = to_host(ends).tolist()
    return LabelSummary(missing, infinite, broken == 0, least, greatest)
