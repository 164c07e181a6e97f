"""What an objective is: gradients, links and the rules a fit asks it for. Frozen values, no state.

Scores and margins: a *margin* is what trees add up; a *score* is what users read (mean, probability, quantile).
The link is `to_margin`; `prediction` is its inverse, where scores are what users read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.losses import AnyQueryLoss, DeviceLoss, LinkKernel
from daskboost.dtypes import Array, ArrayModule, Float32, Float64, flat
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats
    from daskboost.params import TrainParams

# exp and what follows from it, in float32 operations that every device rounds alike.
#
# Libraries' own `exp` differ in the last bit between processors (AVX2, AVX-512, ARM, CUDA), and so would a model
# trained on a mixed cluster. Addition, multiplication, division and rounding do not: IEEE 754 fixes every bit. This
# module uses nothing else, one array operation at a time, so no compiler can fuse a multiplication with an addition.
# The price is about twice the time of NumPy's vectorised `exp`.

EXP_LIMIT = np.float32(80.0)
"""Arguments of `exp` are clipped to +-80: exp(80) = 5.5e34 leaves a factor of 6,000 for a weight within float32."""

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # 10 significant bits: a product with an integer below 2**14 is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_POLYNOMIAL = tuple(
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
_ONE = np.float32(1.0)
_EXPONENT_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)


def exp(x: Float32, xp: ArrayModule = np) -> Float32:
    """e**x for |x| <= 80, to 2 units in the last place; beyond, the value at the end of that range.

    Parameters
    ----------
    x : float32 array of `xp`
    xp : module
        numpy or cupy.

    Returns
    -------
    float32 array of the same shape

    Notes
    -----
    Cody and Waite's reduction and the polynomial of Cephes `expf` (Moshier, "Methods and Programs for Mathematical
    Functions", 1989): x = n ln 2 + r, e**x = 2**n (1 + r + r**2 p(r)).
    """
    x = xp.clip(x, -EXP_LIMIT, EXP_LIMIT)
    n: Float32 = xp.rint(x * _LOG2_E)
    r = x - n * _LN2_HIGH
    r -= n * _LN2_LOW
    exponent = n.astype(np.int32)
    exponent += _EXPONENT_BIAS
    exponent <<= _MANTISSA_BITS
    del x, n  # of millions of rows, on a GPU too: at most four arrays at a time
    p = r * _POLYNOMIAL[0]
    for coefficient in _POLYNOMIAL[1:]:
        p += coefficient
        p *= r
    p *= r
    p += r
    p += _ONE
    p *= exponent.view(np.float32)
    return p


def sigmoid(x: Float32, xp: ArrayModule = np) -> Float32:
    """1 / (1 + e**-x); float32, never overflows, exactly 1/2 at 0."""
    odds = exp(-x, xp)
    odds += _ONE
    return _ONE / odds


def softmax(x: Float32, xp: ArrayModule = np) -> Float32:
    """Columns of `x`, shape (k, n), as probabilities; float32.

    Classes come first because operations along long contiguous rows are what arrays are fast at.
    """
    e = exp(x - fold(x, xp.maximum), xp)
    e /= fold(e, xp.add)
    return e


def fold(values: Array, operation: Callable[[Array, Array], Array]) -> Array:
    """Reduce the first axis by halves: one order of operations, whatever the shape, library or device.

    Parameters
    ----------
    values : array, shape (k, n), k >= 1
    operation : associative function of two arrays

    Returns
    -------
    array, shape (n,)
    """
    while len(values) > 1:
        half = len(values) // 2
        folded = operation(values[:half], values[half : 2 * half])
        if len(values) % 2:
            folded[0] = operation(folded[0], values[-1])
        values = folded
    last: Array = values[0]
    return last


BaseScoreRule = Literal["mean", "quantile", "shares", "constant"]
LABEL_LIMIT = 2.0**60
"""Largest absolute label of a regression: its square, and a weight of a million, still fit in float32."""


class Objective(ABC):
    """A loss of (label, margin), summed over rows.

    Subclasses are frozen dataclasses whose fields are the loss's parameters; two equal values are the same loss.
    Everything that touches rows is elementwise array code of the module `xp` (numpy or cupy) in float32, and never
    reduces over rows, so a row's result depends on that row alone.
    """

    name: ClassVar[str]
    """XGBoost's name."""
    most_query_rows: ClassVar[int] = 2**31 - 1
    """Rows of a query that it takes, of a loss of queries."""
    needs: ClassVar[tuple[str, ...]] = ("label",)
    """Fields of `RowColumns` that data sets must have for it."""
    section: ClassVar[str] = ""
    """Where XGBoost's model JSON has the parameters, each under the name of its field; empty for a loss without any."""
    constant_hessian: ClassVar[bool] = False
    """Whether the unweighted hessian is 1 for every row, so that a device need not store it."""
    symmetric_score: ClassVar[Literal["newton", "l2"]] = "newton"
    """What `score_function="auto"` is for symmetric trees: what scores better on real data (`benchmarks/README.md`)."""
    device_link: ClassVar[LinkKernel | None] = LinkKernel.MARGIN
    """The kernel that computes `evaluation` on a GPU; None where array code does. A subclass that overrides that or
    `prediction` alone loses its parent's, see `link_of`."""
    default_max_delta_step: ClassVar[float] = 0.0
    """`max_delta_step` where the user gives none; 0 is unlimited."""
    base_score_rule: ClassVar[BaseScoreRule] = "mean"
    """How the base score comes from the labels: their weighted mean, their weighted quantiles at
    `adaptive_quantiles`, the shares of their classes (`base_scores_of`), or the constant `base_score_constant`."""
    base_score_constant: ClassVar[float] = 0.5
    """Base score of the rule "constant"; XGBoost's default."""

    @property
    def n_outputs(self) -> int:
        """Margins per row."""
        return 1

    @property
    def positive_weight(self) -> float:
        """Factor on the weight of rows whose label is exactly 1, which gradients and hessians contain."""
        return 1.0

    @property
    @abstractmethod
    def default_metric(self) -> str:
        """Name of the metric that evaluates it where the user names none."""

    @property
    def adaptive_quantiles(self) -> tuple[float, ...] | None:
        """Per output, the quantile of (label - margin) that a leaf's value becomes after its tree has grown.

        None where the Newton step is the leaf's value. Source: Friedman, "Greedy Function Approximation", 2001,
        algorithm 3 (LAD_TreeBoost).
        """
        return None

    def going_on(self, earlier: Objective) -> Self:
        """Return the loss of a fit that goes on from a model of `earlier`, with what that fit has estimated."""
        return self

    def with_chances(self, chances: Float32) -> Self:
        """Return the loss with what rounds have estimated, float32 of shape (2, positions), of one that has them
        estimate the chances of positions (`QueryLoss.positions`)."""
        raise NotImplementedError(f"{type(self).__name__} has no chances of positions")

    @property
    def of_model(self) -> Objective:
        """Return what models of it keep."""
        return self

    @abstractmethod
    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        """First and second derivative of the loss by the margin, not weighted.

        Parameters
        ----------
        label : float32 array, shape (n,)
        margin : float32 array, shape (n, n_outputs)
        xp : module
            numpy or cupy, whichever made the arrays.

        Returns
        -------
        gradient, hessian : float32 arrays, shape (n, n_outputs), C-contiguous
            Finite for finite margins; the hessian is not negative. Both are rounded on the scale of the largest of all
            rows, so a few that exceed the others some thousand times coarsen all (Notes of `daskboost.train`).
        """

    @property
    def device_loss(self) -> DeviceLoss | None:
        """The kernel that computes these gradients on a GPU, with its parameters; None where array code does.

        A subclass that overrides `gradients` alone loses its parent's kernel, see `kernel_of`.
        """
        return None

    @property
    def query_loss(self) -> AnyQueryLoss | None:
        """The loss of the rows of a query together, of one that ranks them; its gradients are computed by query, and
        never by `gradients`. None where a row's gradient depends on that row alone."""
        return None

    def prediction(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        """What `predict` returns.

        Parameters
        ----------
        margin : float32 array, shape (n, n_outputs)

        Returns
        -------
        float32 array, shape (n,) for one output, else (n, n_outputs)
        """
        return flat(margin)

    def evaluation(self, margin: Float32, xp: ArrayModule = np) -> Float32:
        """What metrics see; differs from `prediction` where that has lost what metrics need (classes, raw margins)."""
        return self.prediction(margin, xp)

    def to_margin(self, base_score: npt.ArrayLike) -> Float64:
        """The link: scores to margins, float64, any shape.

        Raises
        ------
        ParameterError
            A score outside the link's domain.
        """
        return np.asarray(base_score, dtype=np.float64)

    def base_score_of(self, mean: float) -> float:
        """The base score for labels of that weighted mean (rule "mean"), moved inside the link's domain."""
        return mean

    def base_scores_of(self, shares: Float64) -> Float64:
        """Return the base score of each output for classes of those weighted shares, float64 of shape (outputs,); for
        subclasses whose rule is "shares" to override."""
        raise NotImplementedError(f"{type(self).__name__} has no base scores of shares")

    def check_params(self, params: TrainParams) -> None:
        """Refuse training parameters that do not go with the loss; `train`, estimators and `plan` ask before any work.

        Raises
        ------
        ParameterError
            Monotone constraints where leaves are quantiles of residuals, which do not know their bounds (LightGBM
            refuses them as well).
        """
        if self.adaptive_quantiles is not None and params.is_monotone:
            raise ParameterError(
                f"monotone_constraints contradicts objective={self.name!r}, whose leaves become quantiles of "
                "residuals and would break it; use 'reg:pseudohubererror' for a robust loss with constraints"
            )

    def check_labels(self, stats: LabelStats) -> None:
        """Refuse labels the loss is not defined for.

        Raises
        ------
        DataError
            Names the label's range, the offending value and the remedy.
        """
        if stats.minimum <= stats.maximum:  # false without rows, which have nothing to refuse
            self.check_label_range(stats)

    def check_label_range(self, stats: LabelStats) -> None:
        """What `check_labels` does where there are labels; for subclasses to override."""
        for value in (stats.minimum, stats.maximum):
            if abs(value) > LABEL_LIMIT:
                raise DataError(
                    f"label {value:g} is too large for objective {self.name!r}: squares of labels must fit in float32, "
                    f"so labels must lie within +-{LABEL_LIMIT:.3g}; rescale the labels"
                )

    def reads(self, name: str) -> bool:
        """Whether gradients or predictions depend on the training parameter of this name, one of some losses."""
        return hasattr(self, name)

    def parameters(self) -> dict[str, Any]:
        """The loss's parameters under the names users give them; metrics read theirs from here."""
        return {}

    def config(self) -> dict[str, Any]:
        """Return `learner.objective` of XGBoost's model JSON: the name, and parameters as texts."""
        texts = {name: json_number(value) for name, value in vars(self).items()}
        return {"name": self.name, self.section: texts} if self.section else {"name": self.name}

    def foreign_config(self) -> dict[str, Any]:
        """Return what files say to other libraries: `config()`, or that of a loss of XGBoost's that predicts the same,
        where it lacks this one. Then files have `config()` in their own attribute."""
        return self.config()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Build from training parameters, ignoring those of others.

        Raises
        ------
        ParameterError
            A parameter of this loss that is malformed or out of range.
        """
        return cls()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build from `config()`'s or XGBoost's own JSON.

        Raises
        ------
        ModelFormatError
            A parameter that is malformed.
        ParameterError
            One out of range, of which `objective_from_config` makes a ModelFormatError.
        """
        return cls.from_params(config_section(config, cls.section)) if cls.section else cls()


def kernel_of(objective: Objective) -> DeviceLoss | None:
    """The objective's `device_loss`, unless a more derived class than the one that says so has gradients of its own."""
    return objective.device_loss if _describes(objective, "device_loss", "gradients") else None


def link_of(objective: Objective) -> LinkKernel | None:
    """The objective's `device_link`, unless a class more derived than the one that says so has its own predictions."""
    return objective.device_link if _describes(objective, "device_link", "prediction", "evaluation") else None


def has_constant_hessian(objective: Objective) -> bool:
    """The objective's `constant_hessian`, with the same exception."""
    return objective.constant_hessian and _describes(objective, "constant_hessian", "gradients")


def scores_weights(params: TrainParams, objective: Objective) -> bool:
    """Whether a fit's splits are scored by sums of weights, where sums of hessians are others."""
    chosen = params.score_function
    if chosen == "auto":
        chosen = objective.symmetric_score if params.grow_policy == "symmetric" and not params.is_monotone else "newton"
    return chosen == "l2" and not has_constant_hessian(objective)


def _describes(objective: Objective, name: str, *methods: str) -> bool:
    """Whether a class at least as derived as the one that has these methods says what `name` is."""
    kinds = (vars(kind).keys() for kind in type(objective).__mro__)
    return next((name in own for own in kinds if name in own or not own.isdisjoint(methods)), False)


def float32_pair(a: float, b: float = 0.0) -> tuple[tuple[float, float]]:
    """Parameters of a kernel for one output, rounded as array code rounds them."""
    return ((float(np.float32(a)), float(np.float32(b))),)


def number_parameter(
    params: Mapping[str, Any], name: str, default: float, low: float, high: float, *, closed_low: bool = False
) -> float:
    """Return a number in (low, high), or in [low, high) with `closed_low`, that float32 holds without loss of range.

    Raises
    ------
    ParameterError
        Another value. XGBoost too refuses what float32 would turn into infinity or a subnormal number.
    """
    value = params.get(name)
    if value is None:
        return default
    interval = f"{'[' if closed_low else '('}{low:g}, {high:g})"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"{name}={shown(value)} is not a number; give one in {interval}") from error
    if not ((low <= number if closed_low else low < number) and number < high):
        raise ParameterError(f"{name}={shown(value)} is out of range; give a number in {interval}")
    limits = np.finfo(np.float32)
    if number != 0 and not float(limits.tiny) <= abs(number) <= float(limits.max):
        raise ParameterError(
            f"{name}={shown(value)} is out of range: float32, in which models have it, holds {limits.tiny:.3g} to "
            f"{limits.max:.3g}"
        )
    return number


def json_number(value: float) -> str:
    """A number as XGBoost's parameter texts hold it: the shortest text that reads back as the same number."""
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def config_section(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    """A sub-object of `learner.objective`; empty where the file has none, as older versions of XGBoost wrote it."""
    found = config.get(section, {})
    if not isinstance(found, Mapping):
        raise ModelFormatError(f"objective.{section} of the model is {type(found).__name__}, not an object")
    return dict(found)
