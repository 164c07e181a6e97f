"""What a metric is: partial states of some rows, merged in any order, and one value in the end.

Every partition gives a state, states add up, and the value of the sum does not depend on how rows were dealt to
partitions: states hold exact sums, integer counts, or the rows themselves under their global ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, Float32, Float64, Int64, UInt64, flat
from daskboost.errors import DataError, ParameterError
from daskboost.exact_sum import ExactSum

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.devices.gpu.rows.metrics import MetricKernels, Words
    from daskboost.devices.gpu.rows.watched import WatchedRows
    from daskboost.devices.gpu.runtime.launches import DeviceArray

# Logarithms of arrays, the same bits on every processor; see `daskboost.devices.cpu.arithmetic`.

def log(values: Float64) -> Float64:
    """Natural logarithms; float64 of the same shape. -inf of 0, NaN below."""
    from daskboost.devices.cpu.arithmetic import logarithms

    logs = np.empty(np.shape(values), np.float64)
    logarithms(np.ascontiguousarray(values, np.float64).ravel(), logs.ravel())
    return logs


def log1p(values: Float64) -> Float64:
    """Natural logarithms of 1 plus the values; float64 of the same shape."""
    from daskboost.devices.cpu.arithmetic import logarithms_of_one_plus

    logs = np.empty(np.shape(values), np.float64)
    logarithms_of_one_plus(np.ascontiguousarray(values, np.float64).ravel(), logs.ravel())
    return logs


class RankedRows(Protocol):
    """Rows by their queries, as `engine/query_rows.py` has them."""

    @property
    def order(self) -> Int64:
        """Places among all rows of those that count, those of a query side by side, by increasing global id."""

    @property
    def begins(self) -> Int64:
        """Where each query begins in `order`, and where the last one ends; shape (queries + 1,)."""

    @property
    def label(self) -> Float32:
        """Labels in that order."""

    @property
    def weights(self) -> Float64:
        """Weight of each query, shape (queries,)."""

    @property
    def codes(self) -> UInt64:
        """Code of each query, shape (queries,)."""


Arrays = dict[str, npt.NDArray[np.generic]]


class MetricState(Protocol):
    """What a metric knows about some rows."""

    def __add__(self, other: Self, /) -> Self:
        """What it knows about both sets of rows; commutative and associative to the bit."""

    def to_arrays(self) -> Arrays:
        """The state for the wire."""


StateT = TypeVar("StateT", bound=MetricState)


@dataclass(frozen=True)
class RatioState:
    """Two exact sums whose ratio is the metric: losses times weights, and weights."""

    numerator: ExactSum = ExactSum()  # noqa: RUF009  # frozen, so a shared default is safe
    denominator: ExactSum = ExactSum()  # noqa: RUF009

    def __add__(self, other: RatioState) -> RatioState:
        return RatioState(self.numerator + other.numerator, self.denominator + other.denominator)

    def to_arrays(self) -> Arrays:
        return {"numerator": self.numerator.to_array(), "denominator": self.denominator.to_array()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RatioState:
        """The inverse of `to_arrays`; raises DataError where an array is absent or malformed."""
        for name in ("numerator", "denominator"):
            if name not in arrays:
                raise DataError(f"arrays: {name!r} is absent; pass what RatioState.to_arrays returned")
        return cls(ExactSum.from_array(arrays["numerator"]), ExactSum.from_array(arrays["denominator"]))


class Metric(ABC, Generic[StateT]):
    """A number that says how good predictions are. Subclasses are frozen dataclasses of the metric's parameters."""

    base_name: ClassVar[str]
    """The registered name, without an ``@`` argument."""
    device_loss: ClassVar[str | None] = None
    """What computes its states where rows lie on a GPU: one of `LOSSES` of `devices/gpu/rows/metrics.py`, or "scores";
    None: the host does. A subclass that changes what the states are has its own, or none."""
    by_query: ClassVar[bool] = False
    """Whether it is of whole queries: then `of_queries` gives states, and rows must have a `qid`."""
    needs_rows: ClassVar[bool] = False
    """Whether states hold rows, so that `partial` needs `first_row` and states grow with the data."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "device_loss" not in vars(cls) and not vars(cls).keys().isdisjoint(("loss", "partial", "shaped")):
            cls.device_loss = None

    @property
    def name(self) -> str:
        """What logs call it, with its argument: ``error@0.7``."""
        return self.base_name

    @property
    def is_watched(self) -> bool:
        """Whether a device computes all of it: `measure` launches what does, and `measured` reads it later."""
        return self.device_loss is not None

    @property
    def maximize(self) -> bool:
        """Whether larger is better; early stopping asks."""
        return False

    def prepare(self, stats: LabelStats) -> Metric[StateT]:
        """The metric for data of that summary (all partitions'); call it once per evaluation set, before `partial`."""
        return self

    @abstractmethod
    def partial(self, label: Array, prediction: Array, weight: Array | None = None, *, first_row: int = 0) -> StateT:
        """The state of some rows.

        Parameters
        ----------
        label : float array, shape (n,)
        prediction : float array, shape (n,) or (n, outputs)
            `Objective.evaluation` of the margins: means, probabilities, quantiles.
        weight : float array, shape (n,), or None for ones
        first_row : int
            Global id of the first row; the others follow it.

        Raises
        ------
        DataError
            Shapes the metric cannot use.
        """

    def of_queries(self, rows: RankedRows, prediction: Array) -> StateT:
        """The state of whole queries, for subclasses that are `by_query`.

        Parameters
        ----------
        rows : RankedRows
            The rows that count, by their queries.
        prediction : float array, shape (n,)
            `Objective.evaluation` of the margins of all rows, in their own order.
        """
        raise NotImplementedError(f"{type(self).__name__} is by query, and has no of_queries")

    def partial_on_device(
        self, kernels: MetricKernels, label: Array, prediction: Array, weight: Array | None = None
    ) -> StateT | None:
        """`partial` of float32 arrays on a GPU, to the byte; None where that is the host's to compute, or to refuse."""
        return None if self.device_loss is None else self.partial_of_loss(
            kernels, self.device_loss, label, prediction, weight
        )  # fmt: skip

    def partial_of_loss(
        self, kernels: MetricKernels, loss: str, label: Array, prediction: Array, weight: Array | None
    ) -> StateT | None:
        """`partial_on_device` by the kernel of a loss, for subclasses that have a `device_loss`."""
        raise NotImplementedError(f"{type(self).__name__} has device_loss={loss!r}, and no partial_of_loss")

    def check_shape(self, label: Array, prediction: Array) -> None:
        """Refuse labels, and predictions for their shape, as `partial` does: DataError. Predictions may lie on a GPU;
        for metrics that are watched."""

    def measure(self, rows: WatchedRows, state: DeviceArray) -> None:
        """Launch what has `state` become what is known of the rows on a GPU, all of an evaluation set, without waiting.
        `state` : uint64, shape (STATE_WORDS,)."""
        raise NotImplementedError(f"{type(self).__name__} has device_loss={self.device_loss!r}, and no measure")

    def measured(self, words: Words, label: Array, weight: Array | None) -> StateT:
        """Return the state of all rows from what `measure` left, fetched; its value is that of `partial`'s.

        Raises
        ------
        DataError
            Labels or predictions that `partial` refuses.
        """
        raise NotImplementedError(f"{type(self).__name__} has device_loss={self.device_loss!r}, and no measured")

    @abstractmethod
    def value(self, state: StateT) -> float:
        """The metric of all rows in the state; NaN where it is not defined (no rows, no weight, one class)."""

    @abstractmethod
    def state_from_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> StateT:
        """The inverse of the state's `to_arrays`.

        Raises
        ------
        DataError
            An array is absent or malformed.
        """

    def named_value(self, state: StateT) -> tuple[str, float]:
        """`value` and the name to log it under."""
        return self.name, self.value(state)

    @classmethod
    def from_argument(cls, argument: str | None, params: Mapping[str, Any]) -> Self:
        """Build from the text behind ``@`` (None without one) and the objective's `parameters()`; by default from
        nothing.

        Raises
        ------
        ParameterError
            An argument that is missing, malformed or not taken.
        """
        refuse_argument(cls.base_name, argument)
        return cls()


AnyMetric = Metric[Any]
"""A metric, whatever it knows about rows."""


def one_per_row(name: str, label: Array, prediction: Array) -> Array:
    """The prediction as shape (n,); DataError for several outputs per row or another number of rows."""
    found = flat(prediction)
    if found.shape != label.shape:
        raise DataError(
            f"prediction of shape {prediction.shape} for labels of shape {label.shape}: metric {name!r} needs one "
            "prediction per row; use mlogloss or merror for several classes, quantile for several quantiles"
        )
    return found


def row_blocks(label: Array, prediction: Array, weight: Array | None, n_values: int
               ) -> Iterator[tuple[Array, Array, Array | None]]:  # fmt: skip
    """Label, prediction and weight of rows of at most `n_values` predicted values at a time, or of a row; DataError
    where weights are not one per row."""
    if weight is not None and weight.shape != label.shape:
        raise DataError(f"weight of shape {weight.shape} for labels of shape {label.shape}; give one per row")
    n_rows = max(1, n_values * len(label) // max(prediction.size, 1))
    for start in range(0, len(label), n_rows):
        rows = slice(start, start + n_rows)
        yield label[rows], prediction[rows], None if weight is None else weight[rows]


def refuse_argument(name: str, argument: str | None) -> None:
    """ParameterError where a metric without an argument was given one."""
    if argument is not None:
        raise ParameterError(f"metric '{name}@{argument}': {name!r} takes no argument; write {name!r}")


def number_argument(name: str, argument: str, low: float, high: float) -> float:
    """The argument as a number in [low, high]; ParameterError otherwise."""
    try:
        number = float(argument)
    except ValueError as error:
        raise ParameterError(f"metric '{name}@{argument}': {argument!r} is not a number; write '{name}@0.5'") from error
    if not low <= number <= high:
        raise ParameterError(f"metric '{name}@{argument}': the argument must lie in [{low:g}, {high:g}]")
    return number
