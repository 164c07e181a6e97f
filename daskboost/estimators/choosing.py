"""What the held-out rows of members choose between: kinds of trees, and further features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from daskboost.data.categories.crosses import Cross, crosses_of
from daskboost.errors import DeviceError, StorageError
from daskboost.estimators.parameters import EstimatorParameters
from daskboost.estimators.presets import Facts
from daskboost.model.booster import Booster
from daskboost.model.explain import importance
from daskboost.params import TrainParams
from daskboost.training.checks import lacks_most_values
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.members import Candidate, Further

CROSSED = "cross_features"
"""The word of the log and of the model for features that are crosses."""


Quantized = Callable[[tuple[Cross, ...]], QuantizedDataset]
"""Reads the rows again, and makes these features of them as well."""


def choices(
    chosen: EstimatorParameters, params: TrainParams, dtrain: QuantizedDataset, facts: Facts, quantized: Quantized
) -> tuple[list[Candidate], Further | None]:
    """Return what members are trained by: the parameters, and others where these are not given and may be better; and
    what makes a further candidate with crosses of columns, None where these are not tried."""
    other = chosen.also_tried(facts)
    each = [{name: getattr(params, name) for name in other}, other] if other else [{}]
    crosses = _crosses_columns(chosen, params, dtrain, facts)
    told = {CROSSED: False} if crosses else {}
    candidates = [Candidate(replace(params, **own), dtrain, {**own, **told}) for own in each]
    return candidates, partial(_crossed, quantized) if crosses else None


def _crosses_columns(
    chosen: EstimatorParameters, params: TrainParams, dtrain: QuantizedDataset, facts: Facts
) -> bool:
    """Return whether crosses of columns are tried: where data are small, rows have most of the features, of which none
    are made where they are missing, and no parameter is about single features, of which others would not know."""
    by_feature = params.is_monotone or params.interaction_constraints or params.ignored_features
    return chosen.cross_features and facts.may_choose and not by_feature and not lacks_most_values(dtrain.info)


def _crossed(quantized: Quantized, best: Candidate, model: Booster) -> Candidate | None:
    """Return the same candidate with crosses of those columns that the model's splits gain most by; None where there
    are none."""
    categorical = frozenset(best.dtrain.schema.columns.categorical)
    gains = importance(model, "total_gain")
    crosses = crosses_of(gains, [column for column in range(len(gains)) if column not in categorical])
    if not crosses:
        return None
    try:
        data = quantized(crosses)
    except (DeviceError, StorageError) as error:
        error.add_note("rows are quantized once more to try crosses of columns; cross_features=False leaves them out")
        raise
    return replace(best, dtrain=data, told={**best.told, CROSSED: True})
