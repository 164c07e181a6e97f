"""The least that work on a GPU could take: rates of an H200, and the floors that more than one benchmark states.

A rate is what the hardware does of one kind of operation alone, not what a kernel of ours or a prototype has reached:
device memory read in sequence, native int32 atomics in shared memory none of which wait for a bank, cycles of shared
memory, launches in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_S = 4.5e12
"""Of device memory."""
ATOMICS_PER_S = 7.7e12
"""Native int32 additions in shared memory."""
CYCLES_PER_S = 132 * 1.75e9
"""Of shared memory, over all multiprocessors; a cycle serves 32 lanes."""
LAUNCH_S = 0.86e-6
WARP = 32


@dataclass(frozen=True)
class Floor:
    """The least time of a unit of work, by what bounds it; ms."""

    bytes_ms: float
    updates_ms: float
    launches_ms: float
    lookups_ms: float = 0.0

    @property
    def ms(self) -> float:
        """Reading, adding up and looking up go on at the same time, launches one after the other."""
        return max(self.bytes_ms, self.updates_ms, self.lookups_ms) + self.launches_ms


def memory_ms(n_bytes: float) -> float:
    """Of bytes of device memory that are read or written."""
    return 1e3 * n_bytes / BYTES_PER_S


def updates_ms(n_updates: float) -> float:
    """Return the time of adding a row's g and h to a bin so many times, by two atomics each."""
    return 1e3 * n_updates * 2 / ATOMICS_PER_S


def prediction_floor(n_rows: int, n_features: int, trees: int, max_depth: int) -> Floor:
    """Of predicting dense rows by full trees: cycles of shared memory that `kernels/predict.cu` counts for every visit;
    device memory of values, of ranks (twice) and of margins (twice)."""
    nodes = sum(1.0 if level < 6 else {6: 2.0, 7: 2.7}.get(level, 3.4) for level in range(max_depth))
    cycles = n_rows / WARP * trees * (nodes + max_depth + 3.4)
    n_bytes = n_rows * (n_features * (4 + 2) + 8)
    return Floor(memory_ms(n_bytes), 0.0, 1e3 * LAUNCH_S, 1e3 * cycles / CYCLES_PER_S)
