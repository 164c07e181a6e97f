"""A user's own loss, as a function of arrays: of rows by themselves, or of whole queries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.losses import OwnLoss
from daskboost.dtypes import ArrayModule, Float32, Int64
from daskboost.errors import ParameterError
from daskboost.objectives.by_query import QueryObjective
from daskboost.objectives.objective import BaseScoreRule, Objective
from daskboost.objectives.ranking import RankPairwise
from daskboost.params import check_call, keyword_of, shown

GradientFunction = Callable[[Any, Any], tuple[Any, Any]]
QueryFunction = Callable[..., tuple[Any, Any]]
OF_QUERIES = "group"
"""The parameter by which a function says that it takes whole queries, with LightGBM's name."""


def takes_queries(function: object) -> bool:
    """Whether a function has the parameter `group`, and so takes whole queries."""
    return callable(function) and keyword_of(function, OF_QUERIES) is not None


def checked_derivatives(who: str, result: object, shape: tuple[int, ...]) -> tuple[Float32, Float32]:
    """Return the gradient and the hessian that a user's function has returned for margins of this shape.

    `who` : how messages name the function.

    Raises
    ------
    ParameterError
        It returned something else than two finite arrays of that shape, or a negative hessian.
    """
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ParameterError(f"{who} returned {type(result).__name__}; it must return (gradient, hessian)")
    g, h = (_checked(f"{who} returned", what, each, shape) for what, each in
            zip(("gradient", "hessian"), result, strict=True))  # fmt: skip
    if not bool((h >= 0).all()):
        raise ParameterError(
            f"{who} returned a negative hessian; leaf values divide by its sum, so return a non-negative bound on it"
        )
    return g, h


def _checked(returned: str, what: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> Float32:
    values = np.asarray(given)
    if values.dtype.kind not in "fiub":
        raise ParameterError(f"{returned} a {what} of dtype {values.dtype}; return numbers")
    if values.shape != shape:
        raise ParameterError(
            f"{returned} a {what} of shape {values.shape}; it must have the margin's shape {shape}, one value per row "
            "and output"
        )
    if not bool((np.abs(values) <= np.finfo(np.float32).max).all()):  # also catches NaN, which compares false
        raise ParameterError(
            f"{returned} NaN, infinity or values beyond float32 in its {what}; guard its divisions, logarithms and "
            "exponentials"
        )
    return np.ascontiguousarray(values, dtype=np.float32)


@dataclass(frozen=True)
class CustomObjective(Objective):
    """The loss whose derivatives a function gives.

    Parameters
    ----------
    function : callable, ``f(label, margin) -> (gradient, hessian)``
        `label` is float32 of shape (n,); `margin` float32 of shape (n,), or (n, n_outputs) for several outputs; so
        are both results. It sees one chunk of rows at a time and must treat every row by itself: a result that
        depends on other rows (a mean, a rank) depends on how the data is cut into chunks; `CustomQueryObjective` takes
        whole queries. Arrays are NumPy's, also where the fit runs on a GPU, and the function's own: it may change them.
    outputs : int, default 1
        Margins per row.

    Notes
    -----
    Predictions are margins, and the fit starts from `base_score` 0.5 as in XGBoost. Subclass `Objective` for a link,
    a metric or label checks of your own.
    """

    name: ClassVar[str] = "custom"
    base_score_rule: ClassVar[BaseScoreRule] = "constant"
    function: GradientFunction
    outputs: int = 1

    @property
    def n_outputs(self) -> int:
        return self.outputs

    @property
    def default_metric(self) -> str:
        return "rmse" if self.outputs == 1 else "mlogloss"

    @property
    def function_name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> tuple[Float32, Float32]:
        """See `Objective.gradients`.

        Raises
        ------
        ParameterError
            The function returned something else than two finite arrays of the margin's shape, or a negative hessian.
        """
        if xp is not np:  # users' functions are NumPy's
            g, h = self.gradients(to_host(label), to_host(margin))
            return xp.asarray(g), xp.asarray(h)
        own = np.array(margin[:, 0] if self.outputs == 1 else margin)  # copies, which a function may write to
        g, h = checked_derivatives(f"objective {self.function_name!r}", self.function(np.array(label), own), own.shape)
        return g.reshape(margin.shape), h.reshape(margin.shape)

    def config(self) -> dict[str, Any]:
        """Squared error's: a function cannot be stored, and that link is the identity too, so predictions agree."""
        return {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        function = params.get("objective")
        if not callable(function):
            raise ParameterError(f"objective={shown(function)} is no function f(label, margin) -> (gradient, hessian)")
        check_call(
            "objective", function, "f(label, margin)",
            remedy="take these two arguments. Weights multiply what it returns.",
        )  # fmt: skip
        return cls(function, max(1, int(params.get("num_class") or 1)))


class OwnQueryObjective(QueryObjective):
    """A loss whose derivatives are computed from whole queries, in NumPy, by `query_gradients` of a subclass.

    On a GPU scores are copied to the host and derivatives back in each round. What is said of a function in
    `CustomQueryObjective` holds for that method.
    """

    default_metric: ClassVar[str] = "ndcg"

    @abstractmethod
    def query_gradients(self, label: Float32, margin: Float32, group: Int64) -> tuple[Any, Any]:
        """Return the first and second derivative of the loss by the margins of rows.

        Parameters
        ----------
        label, margin : float32 arrays, shape (n,)
            Rows of a query lie side by side, by increasing global id.
        group : int64 array, shape (queries,)
            Rows of each query, at least 1.

        Returns
        -------
        gradient, hessian : arrays, shape (n,)
            Finite; the hessian is not negative. They are multiplied by the weights of queries afterwards.
        """

    @property
    def who(self) -> str:
        """How messages name it."""
        return f"objective {self.name!r}"

    @property
    def query_loss(self) -> OwnLoss:
        return OwnLoss(self._derivatives)

    def _derivatives(self, label: Float32, margin: Float32, group: Int64) -> tuple[Float32, Float32]:
        return checked_derivatives(self.who, self.query_gradients(label, margin, group), margin.shape)

    def foreign_config(self) -> dict[str, Any]:
        return RankPairwise().config()


@dataclass(frozen=True)
class CustomQueryObjective(OwnQueryObjective):
    """The loss of whole queries whose derivatives a function gives.

    Parameters
    ----------
    function : callable, ``f(label, margin, group) -> (gradient, hessian)``
        `label` and `margin` are float32 of shape (n,), and so are both results; `group` has the number of rows of each
        query, int64. Rows of the first query come first, those of a query by increasing global id; rows of weight 0 are
        left out. It sees some of the queries at a time, all rows of each, and must treat every query by itself. Arrays
        are NumPy's, also where the fit runs on a GPU, and are not to be changed.

    Notes
    -----
    Gradients are multiplied by the weights of queries, as those of all losses of queries. Predictions are scores, and
    start at 0. A file of the model names ``rank:pairwise``, which predicts the same: a function cannot be stored.
    """

    name: ClassVar[str] = "custom:query"
    function: QueryFunction

    @property
    def who(self) -> str:
        return f"objective {str(getattr(self.function, '__qualname__', type(self.function).__qualname__))!r}"

    def query_gradients(self, label: Float32, margin: Float32, group: Int64) -> tuple[Any, Any]:
        return self.function(label, margin, **{OF_QUERIES: group})

    def config(self) -> dict[str, Any]:
        return RankPairwise().config()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        function, outputs = params["objective"], int(params.get("num_class") or 1)
        check_call(
            "objective", function, "f(label, margin, group=group)", OF_QUERIES,
            remedy="take these three arguments. Weights multiply what it returns.",
        )  # fmt: skip
        if outputs > 1:
            raise ParameterError(
                f"num_class={outputs} does not go with a function f(label, margin, group), whose rows have one score; "
                "leave it out"
            )
        return cls(function)
