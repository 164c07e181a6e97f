"""A user's own loss, as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.dtypes import ArrayModule, Float32
from daskboost.errors import ParameterError
from daskboost.objectives.objective import BaseScoreRule, Objective
from daskboost.params import shown

GradientFunction = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class CustomObjective(Objective):
    """The loss whose derivatives a function gives.

    Parameters
    ----------
    function : callable, ``f(label, margin) -> (gradient, hessian)``
        `label` is float32 of shape (n,); `margin` float32 of shape (n,), or (n, n_outputs) for several outputs; so
        are both results. It sees one chunk of rows at a time and must treat every row by itself: a result that
        depends on other rows (a mean, a rank) depends on how the data is cut into chunks. Arrays are NumPy's, also
        where the fit runs on a GPU.
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
        if xp is not np:  # users' functions are NumPy's: on a GPU they get copies, and the model keeps its bytes
            g, h = self.gradients(to_host(label), to_host(margin))
            return xp.asarray(g), xp.asarray(h)
        shown = margin[:, 0] if self.outputs == 1 else margin
        result = self.function(label, shown)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise ParameterError(
                f"objective {self.function_name!r} returned {type(result).__name__}; it must return (gradient, hessian)"
            )
        g = self._checked("gradient", result[0], shown.shape, xp)
        h = self._checked("hessian", result[1], shown.shape, xp)
        if not bool((h >= 0).all()):
            raise ParameterError(
                f"objective {self.function_name!r} returned a negative hessian; leaf values divide by its sum, so "
                "return a non-negative bound on it"
            )
        return g.reshape(margin.shape), h.reshape(margin.shape)

    def _checked(self, what: str, given: npt.ArrayLike, shape: tuple[int, ...], xp: ArrayModule) -> Float32:
        values = xp.asarray(given)
        if values.dtype.kind not in "fiub":
            raise ParameterError(
                f"objective {self.function_name!r} returned a {what} of dtype {values.dtype}; return numbers"
            )
        if values.shape != shape:
            raise ParameterError(
                f"objective {self.function_name!r} returned a {what} of shape {values.shape}; it must have the "
                f"margin's shape {shape}, one value per row and output"
            )
        limit = np.finfo(np.float32).max
        if not bool((xp.abs(values) <= limit).all()):  # also catches NaN, which compares false
            raise ParameterError(
                f"objective {self.function_name!r} returned NaN, infinity or values beyond float32 in its {what}; "
                "guard its divisions, logarithms and exponentials"
            )
        return xp.ascontiguousarray(values, dtype=np.float32)

    def config(self) -> dict[str, Any]:
        """Squared error's: a function cannot be stored, and that link is the identity too, so predictions agree."""
        return {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        function = params.get("objective")
        if not callable(function):
            raise ParameterError(f"objective={shown(function)} is no function f(label, margin) -> (gradient, hessian)")
        return cls(function, max(1, int(params.get("num_class") or 1)))
