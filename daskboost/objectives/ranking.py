"""Learning to rank: losses of pairs of rows of a query (LambdaMART), with the names and defaults of XGBoost 3.2.

Gradients need the rows of a query together; `daskboost/devices/cpu/queries.py` computes them, from what `query_loss`
says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from daskboost.devices.losses import PairWeight, PositionStart, QueryLoss
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ModelFormatError
from daskboost.objectives.by_query import QueryObjective
from daskboost.objectives.objective import Objective, config_section, json_number
from daskboost.params import OF_GAINS, PAIR_FLAGS, check_pairs, gains_parameter

if TYPE_CHECKING:
    from daskboost.data.input.labels import LabelStats


NUM_PAIRS = {"topk": 32, "mean": 1}
"""What `lambdarank_num_pair_per_sample` is where it is not given; XGBoost's."""
NOT_SET = 2**32 - 1
"""How XGBoost's files say that it is not given."""
MOST_EXPONENTIAL_LABEL = 31
"""Largest label whose exponential gain, 2**label - 1, XGBoost takes; gains beyond would hide those of all others."""


BIASED_POSITIONS = 32
"""Positions of a query whose chances are estimated where pairs are drawn; XGBoost's number."""
LARGEST_CHANCE = float(np.finfo(np.float32).max)
"""Chances are float32 numbers."""
NO_NORM = 1.0
"""What `lambdarank_bias_norm` is where it is not given; XGBoost's."""


@dataclass(frozen=True)
class PositionBias:
    """How likely rows at each position are to be clicked, positions being those of the query's order, as rounds have
    estimated so far (Hu et al., "Unbiased LambdaMART", 2019)."""

    relevant: tuple[float, ...] = ()
    """Chances of rows that are clicked, divided by that of the first position (``ti+``)."""
    irrelevant: tuple[float, ...] = ()
    """Chances of rows that are not, likewise (``tj-``)."""
    norm: float = NO_NORM
    """``lambdarank_bias_norm``."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], norm: float) -> Self:
        """Read it from `learner.objective` of a model; ModelFormatError where it has no such numbers.

        Chances that are infinite or NaN, which XGBoost writes where costs were infinite, are 1, as estimates begin.
        """
        try:
            told = [[float(value) for value in config[name]] for name in ("ti+", "tj-")]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelFormatError("objective.ti+ and .tj- of the model are no numbers of positions") from error
        if len(told[0]) != len(told[1]) or any(value < 0 for own in told for value in own):
            raise ModelFormatError(
                "objective.ti+ and .tj- of the model are no numbers of positions: there must be as many of both, none "
                "below 0"
            )
        found = [tuple(value if value <= LARGEST_CHANCE else 1.0 for value in own) for own in told]
        return cls(found[0], found[1], norm)

    def config(self) -> dict[str, Float32]:
        """Return its arrays by their names in `learner.objective`."""
        return {"ti+": np.array(self.relevant, np.float32), "tj-": np.array(self.irrelevant, np.float32)}

    def start(self) -> PositionStart:
        """Return it as devices take it."""
        return PositionStart(self.relevant, self.irrelevant, 1.0 / (1.0 + self.norm))


@dataclass(frozen=True)
class RankingObjective(QueryObjective):
    """What losses of pairs of rows share.

    A pair of rows of a query with labels a > b and scores s, t adds ``w log(1 + exp(t - s))`` to the loss; w is what
    what the pair counts. Source: Burges, "From RankNet to LambdaRank to LambdaMART: An Overview", 2010. Where labels
    are clicks, w is divided by the chances of the positions that both rows were shown at (`PositionBias`).

    Parameters
    ----------
    lambdarank_pair_method : {"topk", "mean"}
        Which pairs: of each of the rows with the highest scores with all rows of lower scores, or some drawn for each
        row, with rows of other labels.
    lambdarank_num_pair_per_sample : int, optional
        How many rows of highest scores, by default 32, or how many pairs are drawn for each row, by default 1.
    lambdarank_normalization : bool, default True
        Whether the gradients of a query are multiplied by ``log2(1 + s) / s``, s being twice the sum of the sizes of
        its pairs' gradients, or divided by the number of pairs drawn for each row.
    lambdarank_score_normalization : bool, default True
        Whether w is divided by ``|s - t| + 0.01``, unless all scores of the query are equal.
    ndcg_exp_gain : bool, default True
        Whether the gain of a label is ``2**label - 1``, rather than the label.
    position_bias : PositionBias, optional
        What rounds have estimated of positions, where ``lambdarank_unbiased`` asks for it.
    """

    section: ClassVar[str] = "lambdarank_param"
    pair_weight: ClassVar[PairWeight]
    """What a pair counts."""
    metric_name: ClassVar[str] = "ndcg"
    lambdarank_pair_method: str = "topk"
    lambdarank_num_pair_per_sample: int | None = None
    lambdarank_normalization: bool = True
    lambdarank_score_normalization: bool = True
    ndcg_exp_gain: bool = True
    position_bias: PositionBias | None = None

    @property
    def lambdarank_unbiased(self) -> bool:
        """Return whether pairs are divided by the chances of their positions."""
        return self.position_bias is not None

    @property
    def lambdarank_bias_norm(self) -> float:
        """Return what evens these out."""
        return NO_NORM if self.position_bias is None else self.position_bias.norm

    @property
    def n_pairs(self) -> int:
        """Return `lambdarank_num_pair_per_sample`, or what stands for it."""
        return self.lambdarank_num_pair_per_sample or NUM_PAIRS[self.lambdarank_pair_method]

    @property
    def default_metric(self) -> str:
        return f"{self.metric_name}@{self.n_pairs}" if self.lambdarank_pair_method == "topk" else self.metric_name

    @property
    def query_loss(self) -> QueryLoss:
        is_top, bias = self.lambdarank_pair_method == "topk", self.position_bias
        return QueryLoss(
            self.pair_weight, self.n_pairs if is_top else 0, 0 if is_top else self.n_pairs, self.ndcg_exp_gain,
            self.lambdarank_normalization, self.lambdarank_score_normalization,
            positions=0 if bias is None else self.n_pairs if is_top else BIASED_POSITIONS,
            start=None if bias is None else bias.start(),
        )  # fmt: skip

    def going_on(self, earlier: Objective) -> Self:
        """See `Objective.going_on`; what is estimated of positions goes on from what the earlier fit has found."""
        if not isinstance(earlier, RankingObjective) or earlier.position_bias is None or self.position_bias is None:
            return self
        return replace(self, position_bias=replace(earlier.position_bias, norm=self.position_bias.norm))

    def with_chances(self, chances: Float32) -> Self:
        """See `Objective.with_chances`."""
        assert self.position_bias is not None
        relevant, irrelevant = chances.tolist()
        return replace(self, position_bias=PositionBias(tuple(relevant), tuple(irrelevant), self.position_bias.norm))

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        check_relevance(self.name, stats)

    def reads(self, name: str) -> bool:
        """See `Objective.reads`; ``rank:pairwise`` and ``rank:map`` have `ndcg_exp_gain` for their metrics alone."""
        return super().reads(name) and (name not in OF_GAINS or self.pair_weight == PairWeight.NDCG)

    def parameters(self) -> dict[str, Any]:
        found = {**vars(self), "lambdarank_num_pair_per_sample": self.n_pairs}
        del found["position_bias"]
        return found | {name: getattr(self, name) for name in ("lambdarank_unbiased", "lambdarank_bias_norm")}

    def config(self) -> dict[str, Any]:
        pairs = NOT_SET if self.lambdarank_num_pair_per_sample is None else self.lambdarank_num_pair_per_sample
        bias = self.position_bias
        biases = {} if bias is None else bias.config()
        return {"name": self.name, **biases, self.section: {
            "lambdarank_bias_norm": json_number(self.lambdarank_bias_norm),
            "lambdarank_normalization": str(int(self.lambdarank_normalization)),
            "lambdarank_num_pair_per_sample": str(pairs),
            "lambdarank_pair_method": self.lambdarank_pair_method,
            "lambdarank_score_normalization": str(int(self.lambdarank_score_normalization)),
            "lambdarank_unbiased": str(int(bias is not None)),
            "ndcg_exp_gain": str(int(self.ndcg_exp_gain)),
        }}  # fmt: skip

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        given: dict[str, Any] = {name: params.get(name, True) for name in PAIR_FLAGS}
        given["lambdarank_pair_method"] = params.get("lambdarank_pair_method") or "topk"
        given["lambdarank_num_pair_per_sample"] = pairs = params.get("lambdarank_num_pair_per_sample")
        given["lambdarank_unbiased"] = params.get("lambdarank_unbiased", False)
        given["lambdarank_bias_norm"] = norm = params.get("lambdarank_bias_norm", NO_NORM)
        check_pairs(given)
        flags: dict[str, Any] = {name: bool(given[name]) for name in PAIR_FLAGS}
        bias = PositionBias(norm=float(norm)) if given["lambdarank_unbiased"] else None
        return cls(given["lambdarank_pair_method"], None if pairs is None else int(pairs), **flags, position_bias=bias)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        found = config_section(config, cls.section)
        try:
            given: dict[str, Any] = {name: bool(int(found[name])) for name in PAIR_FLAGS if name in found}
            pairs = int(found.get("lambdarank_num_pair_per_sample", NOT_SET))
            norm = float(found.get("lambdarank_bias_norm", NO_NORM))
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelFormatError(f"objective.{cls.section} of the model has a value that is no number") from error
        given["lambdarank_num_pair_per_sample"] = None if pairs == NOT_SET else pairs
        given["lambdarank_pair_method"] = found.get("lambdarank_pair_method")
        if str(found.get("lambdarank_unbiased", "0")) == "0":
            return cls.from_params(given)
        made = cls.from_params({**given, "lambdarank_unbiased": True, "lambdarank_bias_norm": norm})
        return replace(made, position_bias=PositionBias.from_config(config, norm))


@dataclass(frozen=True)
class RankNdcg(RankingObjective):
    """Pairs count how much the query's NDCG would change if both rows swapped their places.

    Parameters
    ----------
    label_gain : tuple of float, optional
        Gains of labels 0, 1, ... in place of those that `ndcg_exp_gain` tells.
    """

    name: ClassVar[str] = "rank:ndcg"
    pair_weight: ClassVar[PairWeight] = PairWeight.NDCG
    label_gain: tuple[float, ...] = ()

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        check_gains(
            f"objective {self.name!r}", stats, exponential=self.ndcg_exp_gain, label_gain=self.label_gain
        )

    @property
    def query_loss(self) -> QueryLoss:
        return replace(super().query_loss, label_gain=self.label_gain)

    def config(self) -> dict[str, Any]:
        """See `Objective.config`; XGBoost has no gains of labels, and passes over what it does not know."""
        found = super().config()
        if self.label_gain:
            found[self.section]["label_gain"] = json.dumps(self.label_gain)
        return found

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        return replace(super().from_params(params), label_gain=gains_parameter(params.get("label_gain")))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        text = config_section(config, cls.section).get("label_gain", "[]")
        try:
            gains = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ModelFormatError(f"label_gain={text!r} of the model's objective is no list of numbers") from error
        return replace(super().from_config(config), label_gain=gains_parameter(gains))


@dataclass(frozen=True)
class RankPairwise(RankingObjective):
    """All pairs count the same."""

    name: ClassVar[str] = "rank:pairwise"
    pair_weight: ClassVar[PairWeight] = PairWeight.ONE


@dataclass(frozen=True)
class RankMap(RankingObjective):
    """Pairs count how much the query's average precision would change if both rows swapped their places; labels are 0
    or 1."""

    name: ClassVar[str] = "rank:map"
    pair_weight: ClassVar[PairWeight] = PairWeight.MAP
    metric_name: ClassVar[str] = "map"

    def check_label_range(self, stats: LabelStats) -> None:
        super().check_label_range(stats)
        if stats.maximum > 1 or not stats.all_integer:
            raise DataError(
                f"objective {self.name!r} needs labels 0 and 1, relevant or not, but the largest is {stats.maximum:g}; "
                "mark relevant rows by 1, or use objective='rank:ndcg'"
            )


def check_relevance(name: str, stats: LabelStats) -> None:
    """Refuse labels below 0: DataError naming the objective of this name."""
    if stats.minimum < 0:
        raise DataError(
            f"label {stats.minimum:g} is out of range for objective {name!r}: labels are degrees of relevance, at "
            "least 0; add a constant to them"
        )


def check_gains(what: str, stats: LabelStats, *, exponential: bool, label_gain: tuple[float, ...] = ()) -> None:
    """Refuse labels that have no gain: DataError with the option that takes them.

    `what` : what messages say asks for gains.
    """
    if label_gain:
        if stats.minimum <= stats.maximum and (stats.maximum >= len(label_gain) or not stats.all_integer):
            value = f"label {stats.maximum:g}" if stats.maximum >= len(label_gain) else "labels that are not whole"
            raise DataError(
                f"{what} takes whole labels up to {len(label_gain) - 1}, of which label_gain has the gains, not "
                f"{value}; give a gain for each label from 0 on"
            )
    elif exponential and stats.minimum <= stats.maximum and (
        stats.maximum > MOST_EXPONENTIAL_LABEL or not stats.all_integer
    ):
        value = f"label {stats.maximum:g}" if stats.maximum > MOST_EXPONENTIAL_LABEL else "labels that are not whole"
        raise DataError(
            f"{what} with the exponential gain 2**label - 1 takes whole labels up to {MOST_EXPONENTIAL_LABEL}, not "
            f"{value}; set ndcg_exp_gain=False, with which the label is the gain, or name another eval_metric"
        )
