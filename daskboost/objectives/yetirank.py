"""YetiRank: rows of a query that lie side by side in orders of noisy scores pull each other apart.

Gradients need the rows of a query together; `daskboost/devices/cpu/yetirank.py` computes them, from what `query_loss`
says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from daskboost.devices.losses import Noise, NoisyOrders, PairWeight, QueryLoss
from daskboost.errors import DataError, ModelFormatError
from daskboost.objectives.by_query import QueryObjective
from daskboost.objectives.objective import config_section
from daskboost.objectives.ranking import RankPairwise, check_gains, check_relevance
from daskboost.params import OF_GAINS, YETIRANK_PARAMETERS, check_yetirank, gains_parameter

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats

WEIGHTS = {
    "classic": PairWeight.NDCG, "ndcg": PairWeight.NDCG, "dcg": PairWeight.NDCG, "mrr": PairWeight.MRR,
    "err": PairWeight.ERR, "map": PairWeight.MAP,
}  # fmt: skip
"""What pairs count by mode."""
METRICS = {"mrr": "mrr", "map": "map"}
"""Metrics of modes, of others `ndcg`."""


@dataclass(frozen=True)
class YetiRank(QueryObjective):
    """Pairs of neighbors in orders of scores with noise, whose loss is that of the scores without it.

    A pair of rows with labels a > b and scores s, t adds ``w log(1 + exp(t - s))`` to the loss, averaged over the
    orders. Sources: Gulin, Kuralenok and Pavlov, "Winning the transfer learning track of Yahoo!'s learning to rank
    challenge with YetiRank", 2011; of the modes that are metrics: Lyzhin et al., "Which tricks are important for
    learning to rank?", 2023.

    Parameters
    ----------
    yetirank_mode : {"classic", "ndcg", "dcg", "mrr", "err", "map"}
        What w is: ``0.15 * yetirank_decay**k * (a - b)`` of places k and k + 1, or how much the metric would change if
        both rows swapped their places in the noisy order.
    yetirank_permutations : int, default 10
        Orders of each query in a round.
    yetirank_decay : float in (0, 1], default 0.85
        What a pair counts less from place to place in mode ``classic``.
    yetirank_neighbors : int, default 1
        Places below its own that a row is paired with.
    yetirank_top : int, optional
        First places that a metric sees, by default all; not in mode ``classic``.
    yetirank_noise : {"logistic", "gumbel"}
        What is added to scores: ``log(u / (1 - u))``, or ``-log(-log(u))``, u being drawn from (0, 1).
    yetirank_noise_power : float, default 1
        What noise is multiplied by.
    ndcg_exp_gain : bool, default True
        Whether the gain of a label in modes ``ndcg`` and ``dcg`` is ``2**label - 1``, rather than the label.
    label_gain : tuple of float, optional
        Gains of labels 0, 1, ... instead.
    """

    name: ClassVar[str] = "yetirank"
    section: ClassVar[str] = "yetirank_param"
    yetirank_mode: str = "classic"
    yetirank_permutations: int = 10
    yetirank_decay: float = 0.85
    yetirank_neighbors: int = 1
    yetirank_top: int | None = None
    yetirank_noise: str = "logistic"
    yetirank_noise_power: float = 1.0
    ndcg_exp_gain: bool = True
    label_gain: tuple[float, ...] = ()

    @property
    def default_metric(self) -> str:
        top = f"@{self.yetirank_top}" if self.yetirank_top else ""
        return METRICS.get(self.yetirank_mode, "ndcg") + top

    @property
    def has_gains(self) -> bool:
        """Return whether pairs count by gains of labels, rather than by labels."""
        return self.yetirank_mode in ("ndcg", "dcg")

    @property
    def query_loss(self) -> QueryLoss:
        mode, has_gains = self.yetirank_mode, self.has_gains
        orders = NoisyOrders(
            self.yetirank_neighbors, Noise[self.yetirank_noise.upper()], self.yetirank_noise_power,
            self.yetirank_decay if mode == "classic" else 0.0, mode == "ndcg",
        )  # fmt: skip
        return QueryLoss(
            WEIGHTS[mode], self.yetirank_top or 0, self.yetirank_permutations, has_gains and self.ndcg_exp_gain,
            normalized=True, by_score=False, orders=orders, label_gain=self.label_gain if has_gains else (),
        )  # fmt: skip

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        check_relevance(self.name, stats)
        what = f"objective {self.name!r} with yetirank_mode={self.yetirank_mode!r}"
        if self.has_gains:
            check_gains(what, stats, exponential=self.ndcg_exp_gain, label_gain=self.label_gain)
        if self.yetirank_mode == "err" and stats.maximum > 1:
            raise DataError(
                f"{what} takes labels from 0 to 1, chances that a row satisfies, not label {stats.maximum:g}; divide "
                "(2**label - 1) by 2**largest, as the metric's authors do"
            )

    def reads(self, name: str) -> bool:
        """See `Objective.reads`; modes without gains have these for their metric alone."""
        return super().reads(name) and (name not in OF_GAINS or self.has_gains)

    def parameters(self) -> dict[str, Any]:
        return dict(vars(self))

    def config(self) -> dict[str, Any]:
        return {"name": self.name, self.section: {name: json.dumps(value) for name, value in asdict(self).items()}}

    def foreign_config(self) -> dict[str, Any]:
        return RankPairwise().config()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        given = {name: params[name] for name in YETIRANK_PARAMETERS if params.get(name) is not None}
        given = {**{name: getattr(cls, name) for name in YETIRANK_PARAMETERS}, **given}
        check_yetirank(given)
        whole = {name: int(given[name]) for name in ("yetirank_permutations", "yetirank_neighbors")}
        real = {name: float(given[name]) for name in ("yetirank_decay", "yetirank_noise_power")}
        top = given["yetirank_top"]
        return cls(**{
            **given, **whole, **real, "yetirank_top": None if top is None else int(top),
            "ndcg_exp_gain": bool(given["ndcg_exp_gain"]), "label_gain": gains_parameter(given["label_gain"]),
        })  # fmt: skip

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        found = config_section(config, cls.section)
        try:
            given = {name: json.loads(text) for name, text in found.items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelFormatError(f"objective.{cls.section} of the model has a value that is no JSON") from error
        return cls.from_params(given)
