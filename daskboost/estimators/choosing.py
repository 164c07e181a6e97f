"""What the held-out rows of members choose between: kinds of trees, and further features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from daskboost.data.categories.crosses import Cross, crosses_of
from daskboost.estimators.parameters import EstimatorParameters
from daskboost.estimators.presets import Facts
from daskboost.model.booster import Booster
from daskboost.model.explain import importance
from daskboost.params import TrainParams
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.members import Candidate

CROSSED = "cross_features"
"""The word of the log and of the model for features that are crosses."""


def candidates_of(
    chosen: EstimatorParameters, params: TrainParams, dtrain: QuantizedDataset, facts: Facts
) -> list[Candidate]:
    """Return what members are trained by: the parameters, and others where these are not given and may be better."""
    other = chosen.also_tried(facts)
    each = [{name: getattr(params, name) for name in other}, other] if other else [{}]
    told = {CROSSED: False} if crosses_columns(chosen, params, facts) else {}
    return [Candidate(replace(params, **own), dtrain, {**own, **told}) for own in each]


def crosses_columns(chosen: EstimatorParameters, params: TrainParams, facts: Facts) -> bool:
    """Return whether crosses of columns are tried: where data are small, and no parameter is about single features, of
    which others would not know."""
    by_feature = params.is_monotone or params.interaction_constraints or params.ignored_features
    return bool(chosen.cross_features) and facts.may_choose and not by_feature


def crossed(
    quantized: Callable[[tuple[Cross, ...]], QuantizedDataset], best: Candidate, model: Booster
) -> Candidate | None:
    """Return the same candidate with crosses of those columns that the model's splits gain most by; None where there
    are none.

    `quantized` : reads the rows again, and makes these features of them as well.
    """
    categorical = frozenset(best.dtrain.schema.columns.categorical)
    gains = importance(model, "total_gain")
    crosses = crosses_of(gains, [column for column in range(len(gains)) if column not in categorical])
    return replace(best, dtrain=quantized(crosses), told={**best.told, CROSSED: True}) if crosses else None
