"""Where rows of the host's memory are predicted: on a GPU where a call asks for one, or where that takes less time."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daskboost.errors import DeviceError, MissingDependencyError, NoDeviceError
from daskboost.params import split_device

if TYPE_CHECKING:
    from daskboost.devices.gpu.runtime.launches import Runtime

logger = logging.getLogger(__name__)

# Measured on a host of 16 cores and an H100, with rows of 50 float32 and trees of depth 6. The CPU's figures are its
# best of several sizes, so that a GPU that is chosen takes less time.

WALK_S = 6e-9
"""Seconds in which a thread of a CPU has a row find its leaf in a tree."""
READ_BYTES_PER_S = 5e9
"""Bytes of rows that a CPU checks and makes keys of in a second; hardly more with more threads."""
BYTES_PER_S = 1.4e10
"""Bytes of the host's memory that a GPU is given in a second, threads that fill pinned memory included."""
CALL_S = 1e-3
"""Seconds of a prediction on a GPU that do not depend on its rows."""
FIRST_CALL_S = 2.2
"""Seconds of a process's first use of a GPU: to import CuPy, to make a context and to load kernels."""


@dataclass(frozen=True)
class PredictionSize:
    """What the time of a prediction follows from."""

    n_rows: int
    row_bytes: float
    """Bytes of a row's features in the host's memory."""
    n_trees: int
    n_threads: int
    """Threads of the CPU."""

    def pays(self, has_begun: bool) -> bool:
        """Whether a GPU takes less time than the CPU; `has_begun` : this process has loaded CuPy."""
        n_bytes = self.n_rows * self.row_bytes
        on_cpu = self.n_rows * self.n_trees * WALK_S / self.n_threads + n_bytes / READ_BYTES_PER_S
        return on_cpu > (CALL_S if has_begun else FIRST_CALL_S) + n_bytes / BYTES_PER_S


@dataclass(frozen=True)
class Place:
    """The device that a call or an estimator names for rows of the host's memory."""

    device: str = "cpu"
    """One of `daskboost.params.DEVICES`, or "cuda:1"."""
    is_asked: bool = False
    """Whether the call itself names a GPU: it takes rows however few they are, and what keeps it from that is an error.
    Else the CPU predicts what is few, and whatever a GPU cannot, which the log says."""

    @classmethod
    def of_call(cls, device: str) -> Place:
        """Return the place that an argument of a call names; ParameterError for a name of none."""
        return cls(device, split_device(device)[0] == "cuda")

    def runtime_for(self, size: PredictionSize) -> Runtime | None:
        """The GPU that predicts so many rows; None where the CPU does.

        Raises
        ------
        MissingDependencyError, DeviceError
            The call asks for a GPU that this process cannot use.
        """
        kind, number = split_device(self.device)
        has_begun = "cupy" in sys.modules
        if kind == "cpu" or not (self.is_asked or size.pays(has_begun)):
            return None
        from daskboost.devices.gpu.runtime.cuda import get_runtime

        try:
            return get_runtime(number)
        except (MissingDependencyError, DeviceError) as error:
            self.turn_to_cpu(error)
        return None

    def turn_to_cpu(self, error: Exception) -> None:
        """Say in the log why the CPU predicts; raise the error where the call asks for a GPU."""
        if self.is_asked:
            raise error
        is_expected = self.device == "auto" and isinstance(error, (MissingDependencyError, NoDeviceError))
        logger.log(
            logging.DEBUG if is_expected else logging.WARNING, "device=%r predicts on the CPU: %s", self.device, error
        )


ON_CPU = Place()
