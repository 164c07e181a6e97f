"""Contradictions between a fit's arguments that no single one of them can tell: refused before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.data.spill import spill_path
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.base import Metric
from daskboost.metrics.custom import CustomMetric
from daskboost.metrics.registry import make_metric
from daskboost.model.booster import Booster
from daskboost.objectives.base import Objective, scores_weights
from daskboost.params import ON_SAMPLES, REPORT_NAME, TrainParams, split_device

LOSS_PARAMETERS = {
    "scale_pos_weight": "binary objectives; weight rows, or use class_weight of DaskBoostClassifier",
    "quantile_alpha": "objective='reg:quantileerror'; write the metric's quantiles as eval_metric='quantile@0.1,0.9'",
    "huber_slope": "objective='reg:pseudohubererror'",
    "tweedie_variance_power": "objective='reg:tweedie'; write the metric's power as eval_metric='tweedie-deviance@1.2'",
}
"""Parameters of some losses only, and what has them; `num_class` is judged by the outputs it makes."""


def check_contradictions(params: TrainParams, objective: Objective, eval_names: Sequence[str] = ()) -> None:
    """Refuse parameters that contradict each other or the objective; `train`, estimators and `plan` ask the same.

    Raises
    ------
    ParameterError
        Naming what does not go together.
    """
    check_loss_parameters(params, objective)
    check_multi_strategy(params, objective)
    check_out_of_core(params, objective, eval_names)  # before what "auto" would score by
    check_score_function(params, objective)


def check_loss_parameters(params: TrainParams, objective: Objective) -> None:
    """Refuse parameters without effect on the objective, and constraints that its leaves would break.

    Raises
    ------
    ParameterError
        A loss parameter other than its default that the named objective does not read; monotone constraints with
        leaves that are quantiles of residuals, which know no bounds (LightGBM refuses these as well).
    """
    if isinstance(params.objective, str):
        for name, owner in LOSS_PARAMETERS.items():
            value = getattr(params, name)
            if value != getattr(TrainParams, name) and not hasattr(objective, name):
                raise ParameterError(
                    f"{name}={value!r} has no effect with objective={objective.name!r}; it is of {owner}"
                )
        if params.num_class > 1 and objective.n_outputs != params.num_class:
            raise ParameterError(
                f"num_class={params.num_class} has no effect with objective={objective.name!r}; leave it out, or use "
                "'multi:softprob'"
            )
    if objective.adaptive_quantiles is not None and params.is_monotone:
        raise ParameterError(
            f"monotone_constraints contradicts objective={objective.name!r}, whose leaves become quantiles of "
            "residuals and would break it; use 'reg:pseudohubererror' for a robust loss with constraints"
        )


def check_multi_strategy(params: TrainParams, objective: Objective) -> None:
    """Refuse what trees of vector leaves cannot do, and parameters of them where there are none.

    Raises
    ------
    ParameterError
        A sketch without such trees, or of as many columns as outputs; monotone constraints, which one value per leaf
        can keep but several of different signs cannot (XGBoost refuses these as well).
    """
    k = objective.n_outputs
    vectors = params.has_vector_leaves(k)
    if params.sketch_outputs and not vectors:
        why = (
            f"objective {objective.name!r} has a single output" if k == 1
            else "only trees of all outputs search a sketch; set multi_strategy='multi_output_tree'"
        )  # fmt: skip
        raise ParameterError(f"sketch_outputs={params.sketch_outputs} has no effect: {why}")
    if params.sketch_outputs >= max(k, 2):
        raise ParameterError(
            f"sketch_outputs={params.sketch_outputs} must be less than the {k} outputs of objective "
            f"{objective.name!r}; leave it out to search all of them"
        )
    if vectors and params.is_monotone:
        raise ParameterError(
            "monotone_constraints contradicts multi_strategy='multi_output_tree', whose leaves hold a value per "
            "output; use 'one_output_per_tree'"
        )


def check_score_function(params: TrainParams, objective: Objective) -> None:
    """Refuse scores by weights where nothing could take them.

    Raises
    ------
    ParameterError
        Naming what they do not go with.
    """
    if not scores_weights(params, objective):
        return
    refused = {
        "multi_strategy='multi_output_tree'": params.has_vector_leaves(objective.n_outputs),
        "monotone_constraints, whose limits are of Newton's leaf values": params.is_monotone,
        "out_of_core='certified', which certifies what Newton's score gains": params.out_of_core == "certified",
    }
    for what, found in refused.items():
        if found:
            raise ParameterError(
                f"score_function={params.score_function!r} does not go with {what}; use score_function='newton', or "
                "leave the other out"
            )


CERTIFIED_PARAMS = ("certify_tolerance", "resident_share")


def check_out_of_core(params: TrainParams, objective: Objective, eval_names: Sequence[str] = ()) -> None:
    """Refuse what trees that grow on a sample cannot do, evaluation sets of their report's name, and parameters that
    would not be read.

    Raises
    ------
    ParameterError
        Naming the parameter, and what to do instead.
    """
    mode = params.out_of_core
    if params.device_memory_limit is not None and split_device(params.device)[0] == "cpu":
        raise ParameterError(
            f"device_memory_limit={params.device_memory_limit} is only read on GPUs, not with device='cpu'; use "
            "device='auto', or leave device_memory_limit out (host_memory_limit is that of RAM)"
        )
    if mode != "certified":
        unread = [name for name in CERTIFIED_PARAMS if getattr(params, name) != getattr(TrainParams, name)]
        if unread:
            raise ParameterError(
                f"{unread[0]}={getattr(params, unread[0])!r} is only read with out_of_core='certified', not with "
                f"{mode!r}; set that, or leave {unread[0]} out"
            )
    if mode not in ON_SAMPLES:
        return
    if REPORT_NAME in eval_names:
        raise ParameterError(
            f"an evaluation set is named {REPORT_NAME!r}, as what evals_result has of the passes; name it otherwise"
        )
    if mode == "sampled" and params.subsample == 1:
        raise ParameterError(
            "out_of_core='sampled' draws the share subsample of the rows, which is 1; set subsample=0.1, for instance, "
            "or use out_of_core='exact'"
        )
    if mode != "certified":
        return
    refused = {
        f"grow_policy={params.grow_policy!r}": params.grow_policy != "depthwise",
        f"max_leaves={params.max_leaves}": params.max_leaves > 0,
        "monotone_constraints": params.is_monotone,
        "interaction_constraints": params.interaction_constraints is not None,
        f"colsample_bynode={params.colsample_bynode:g}": params.colsample_bynode < 1,
        "multi_strategy='multi_output_tree'": params.has_vector_leaves(objective.n_outputs),
        f"objective {objective.name!r}, whose leaves are quantiles": objective.adaptive_quantiles is not None,
    }
    for what, found in refused.items():
        if found:
            raise ParameterError(
                f"out_of_core={mode!r} does not go with {what}; leave one of the two out (out_of_core='exact' does)"
            )


def check_made_with(params: TrainParams, made_with: Mapping[str, Any]) -> None:
    """Refuse parameters of data sets that dtrain was not made with: a fit cannot bring bins back, nor move chunks.

    Parameters
    ----------
    made_with : mapping
        `QuantizedDataset.made_with`.

    Raises
    ------
    ParameterError
        Naming both values.
    """
    for name, made in made_with.items():
        given = getattr(params, name)
        given = str(spill_path(given)) if name == "spill_directory" and given is not None else given
        asked = name in params.explicit or given != getattr(TrainParams, name)
        if asked and given not in (None, 0, made):  # None and 0 leave the choice to the data set
            also = " or .open" if name in ("host_memory_limit", "spill_directory") else ""
            raise ParameterError(
                f"{name}={given!r} contradicts dtrain, which was made with {name}={made!r}; leave it out of train's "
                f"parameters, or make the data set with QuantizedDataset.from_dask(..., {name}={given!r}){also}"
            )


def check_metrics(metrics: Sequence[Any], objective: Objective) -> list[Metric[Any]]:
    """The metrics of a fit.

    Raises
    ------
    ParameterError
        An unknown name; two metrics of one name, whose values would end in one list; a metric that cannot read what
        the objective predicts.
    """
    made = [make_metric(metric, objective.parameters()) for metric in metrics]
    names = [metric.name for metric in made if not isinstance(metric, CustomMetric)]  # functions may name their values
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ParameterError(f"eval_metric has {twice[0]!r} twice; name every metric once")
    nothing = np.empty((0, objective.n_outputs), np.float32)
    for metric in made:
        try:
            metric.partial(nothing[:, 0], objective.evaluation(nothing))
        except DataError as error:
            raise ParameterError(
                f"eval_metric={metric.name!r} does not suit objective {objective.name!r} with {objective.n_outputs} "
                f"output(s) per row: {error}"
            ) from error
    return made


def as_booster(model: Any) -> Booster | None:
    """The model that a fit continues: a Booster, a fitted estimator, or a model file's path.

    Raises
    ------
    ParameterError
        Anything else.
    """
    if model is None or isinstance(model, Booster):
        return model
    if hasattr(type(model), "booster_"):
        return as_booster(model.booster_)
    if isinstance(model, str | Path):
        return Booster.load_model(model)
    raise ParameterError(f"init_model is {type(model).__name__}; pass a Booster, an estimator or a file's path")
