"""What `train` refuses before any work: rounds, data sets and models that do not fit together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.data.categories.encode import AUTO, encodings_of
from daskboost.data.categories.encoder import Encoder
from daskboost.data.chunks.build import DatasetInfo
from daskboost.data.chunks.tiers import spill_path
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.data.input.row_columns import COLUMNS
from daskboost.devices.gpu.trees.split_sets import MOST_THRESHOLD
from daskboost.devices.leaf_models import MOST_ROWS
from daskboost.dtypes import Int32
from daskboost.errors import DataError, ParameterError
from daskboost.fit.recipe import metric_defaults
from daskboost.metrics.metric import Metric
from daskboost.metrics.metric_names import make_metric
from daskboost.metrics.own_metric import CustomMetric
from daskboost.model.booster import Booster
from daskboost.objectives.objective import Objective, scores_weights
from daskboost.objectives.pair_logit import PairLogitOfPairs
from daskboost.params import (
    OF_GAINS,
    ON_SAMPLES,
    REPORT_NAME,
    TrainParams,
    as_path,
    check_count,
    shown,
    split_device,
)
from daskboost.training.dataset import QuantizedDataset, check_same_features

logger = logging.getLogger(__name__)

# Contradictions between a fit's arguments that no single one of them can tell: refused before any work.

LOSS_PARAMETERS = {
    "scale_pos_weight": "binary objectives; weight rows, or use class_weight of DaskBoostClassifier",
    "quantile_alpha": "objective='reg:quantileerror'; write the metric's quantiles as eval_metric='quantile@0.1,0.9'",
    "huber_slope": "objective='reg:pseudohubererror'",
    **dict.fromkeys((
        "lambdarank_pair_method", "lambdarank_num_pair_per_sample", "lambdarank_normalization",
        "lambdarank_score_normalization", "lambdarank_unbiased", "lambdarank_bias_norm",
    ), "objectives 'rank:ndcg', 'rank:pairwise' and 'rank:map'"),
    **dict.fromkeys(("querysoftmax_beta", "querysoftmax_lambda"), "objective='querysoftmax'"),
    **dict.fromkeys(OF_GAINS, (
        "objective='rank:ndcg', of modes 'ndcg' and 'dcg' of 'yetirank', and of eval_metric='ndcg' beside any"
    )),
    **dict.fromkeys((
        "yetirank_mode", "yetirank_permutations", "yetirank_decay", "yetirank_neighbors", "yetirank_top",
        "yetirank_noise", "yetirank_noise_power",
    ), "objective='yetirank'"),
    "tweedie_variance_power": "objective='reg:tweedie'; write the metric's power as eval_metric='tweedie-deviance@1.2'",
}
"""Parameters of some losses only, and what has them; `num_class` is judged by the outputs it makes."""


def check_contradictions(params: TrainParams, objective: Objective, eval_names: Sequence[str] = ()) -> None:
    """Refuse parameters that contradict each other or the objective, by ParameterErrors; `train`, estimators and `plan`
    ask the same."""
    check_loss_parameters(params, objective)
    check_whole_queries(params, objective)
    check_multi_strategy(params, objective)
    check_out_of_core(params, objective, eval_names)  # before what "auto" would score by
    check_score_function(params, objective)
    check_linear_leaves(params, objective)
    if params.base_score is not None:
        objective.to_margin(float(np.float32(params.base_score)))  # refuses scores outside the link's domain


def check_loss_parameters(params: TrainParams, objective: Objective) -> None:
    """Refuse loss parameters other than their defaults that the named objective does not read, and what it refuses
    itself, see `Objective.check_params`."""
    if isinstance(params.objective, str) or isinstance(objective, PairLogitOfPairs):  # made of a name and pairs
        for name, owner in LOSS_PARAMETERS.items():
            value = getattr(params, name)
            if value == getattr(TrainParams, name) or objective.reads(name):
                continue
            metrics = params.eval_metric or (objective.default_metric,)
            if name not in OF_GAINS or not _has_gains(metrics):
                given = f"{value:g}" if isinstance(value, float) else repr(value)
                raise ParameterError(
                    f"{name}={given} has no effect with objective={objective.name!r}; it is of {owner}"
                )
        if params.num_class > 1 and objective.n_outputs != params.num_class:
            raise ParameterError(
                f"num_class={params.num_class} has no effect with objective={objective.name!r}; leave it out, or use "
                "'multi:softprob'"
            )
    objective.check_params(params)


def _has_gains(metrics: Sequence[object]) -> bool:
    """Whether one of the metrics has other gains with another `ndcg_exp_gain`."""
    return any(
        isinstance(each, str)
        and make_metric(each, {"ndcg_exp_gain": True}) != make_metric(each, {"ndcg_exp_gain": False})
        for each in metrics
    )


def check_multi_strategy(params: TrainParams, objective: Objective) -> None:
    """Refuse a sketch without trees of vector leaves, or of as many columns as outputs, and monotone constraints on
    such trees, which one value per leaf can keep but several of different signs cannot (XGBoost refuses these as
    well)."""
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


FEW_BINS = 2**13
"""Up to so many bins of all features histograms are searched in no time."""


def goes_with_shared_trees(params: TrainParams, info: DatasetInfo | None) -> bool:
    """Return whether trees of all outputs go with the other parameters, and with the data as far as these are known.

    They do not go with features that are split by sets of categories; nor with data that are wide.
    """
    needs_others = params.is_monotone or params.score_function == "l2" or params.linear_leaves
    if needs_others or params.out_of_core in ON_SAMPLES:
        return False
    if info is None:
        return True
    has_codes = info.schema.encoder is not None and bool(info.schema.encoder.codes)
    return not has_codes and not is_wide(info)


def is_wide(info: DatasetInfo) -> bool:
    """Return whether data have so many features that searching the histograms of all nodes of a tree of depth 6 takes
    longer than adding them up."""
    n_bins, n_added = info.cuts.total_bins, 6 * info.n_entries
    return n_bins > FEW_BINS and n_added < 2**7 * n_bins


def lacks_most_values(info: DatasetInfo) -> bool:
    """Return whether rows lack more than half of the features."""
    return 2 * info.n_entries < info.n_rows * info.cuts.n_features


def check_whole_queries(params: TrainParams, objective: Objective) -> None:
    """Refuse losses of queries, and draws of these, where trees grow on samples of rows."""
    if params.out_of_core not in ON_SAMPLES:
        return
    if objective.query_loss is not None:
        raise ParameterError(
            f"out_of_core={params.out_of_core!r} does not go with objective={objective.name!r}, whose gradients need "
            "whole queries, not samples of rows; use out_of_core='exact'"
        )
    if params.sampling_unit == "group":
        raise ParameterError(
            f"sampling_unit='group' does not go with out_of_core={params.out_of_core!r}, whose trees grow on samples "
            "of rows; use out_of_core='exact', or sampling_unit='object', which draws rows"
        )


def check_drawn_queries(params: TrainParams, has_queries: bool) -> None:
    """Refuse rows without queries where trees are to draw these."""
    if params.sampling_unit == "group" and not has_queries:
        raise DataError(
            "sampling_unit='group' draws whole queries, and the training rows have none; pass qid, the query of each "
            "row, or use sampling_unit='object', which draws rows"
        )


def check_score_function(params: TrainParams, objective: Objective) -> None:
    """Refuse scores by weights where nothing could take them."""
    if not scores_weights(params, objective):
        return
    _refuse_beside(f"score_function={params.score_function!r}", {
        "multi_strategy='multi_output_tree'": params.has_vector_leaves(objective.n_outputs),
        "monotone_constraints, whose limits are of Newton's leaf values": params.is_monotone,
        "out_of_core='certified', which certifies what Newton's score gains": params.out_of_core == "certified",
    }, "use score_function='newton', or leave the other out")  # fmt: skip


def check_linear_leaves(params: TrainParams, objective: Objective) -> None:
    """Refuse models of leaves beside what limits leaf values, or makes them of something else than sums."""
    if not params.linear_leaves:
        return
    step = objective.default_max_delta_step if params.max_delta_step is None else params.max_delta_step
    is_default = " (its default; max_delta_step=0 sets no limit)" if params.max_delta_step is None else ""
    _refuse_beside("linear_leaves=True", {
        f"objective {objective.name!r}, whose leaves are quantiles": objective.adaptive_quantiles is not None,
        f"max_delta_step={step:g} of objective {objective.name!r}{is_default}": step > 0,
        "monotone_constraints, whose limits are of constant leaves": params.is_monotone,
        "multi_strategy='multi_output_tree', whose leaves are vectors": params.has_vector_leaves(objective.n_outputs),
        "out_of_core='certified', which certifies constant leaves": params.out_of_core == "certified",
    }, "leave one of the two out")  # fmt: skip


def check_same_positions(model: Booster, cuts: Cuts) -> None:
    """Refuse to continue a model whose leaves are linear over other bins than the training data's."""
    scale = model.leaf_scale
    if scale is None:
        return
    for feature in scale.feature.tolist():
        if not np.array_equal(scale.of(feature), cuts.of(feature)):
            raise ParameterError(
                f"the leaves of init_model are linear over other bins of {model.schema.label(feature)} than dtrain "
                "has; make the data sets with the cut points of the data that the model was trained on "
                "(reference=...), or continue without linear_leaves in either"
            )


def check_rows_of_leaves(params: TrainParams, n_rows: int) -> None:
    """Refuse more rows than sums of leaves' normal equations hold."""
    if params.linear_leaves and n_rows > MOST_ROWS:
        raise DataError(
            f"linear_leaves=True takes at most {MOST_ROWS:,} rows, whose sums fit 64 bits, and there are {n_rows:,}; "
            "leave it out"
        )


def _refuse_beside(what: str, others: Mapping[str, bool], remedy: str) -> None:
    """Raise ParameterError for the first of `others` that is set, beside which `what` is not possible."""
    for other, is_there in others.items():
        if is_there:
            raise ParameterError(f"{what} does not go with {other}; {remedy}")


def check_sets(params: TrainParams, column: str) -> None:
    """Refuse what cannot split a column of codes by sets of categories.

    `column` : what messages call one of these columns.
    """
    _refuse_beside(
        f"encodings='native' of column {column!r}", _without_sets(params),
        "use encodings='target' for it (and for the model that is continued, if one is), or leave the other out",
    )  # fmt: skip


def may_have_sets(params: TrainParams, objective: Objective) -> bool:
    """Return whether trees of one output can split columns by sets of categories, whatever the device.

    Those of symmetric trees, which all nodes of a level share, are for who asks for them.
    """
    if objective.n_outputs > 1 or params.grow_policy == "symmetric":
        return False
    return not any(_without_sets(replace(params, device="cuda")).values())


def _without_sets(params: TrainParams) -> dict[str, bool]:
    """Return what keeps trees from splitting by sets, and whether it is there."""
    kind, _ = split_device(params.device)
    is_named, why = kind == "cuda", _why_cpu(params)
    return {
        f"device={params.device!r} and {why}": is_named and bool(why),
        "partition_by='columns', as GPUs that share features do not tell each other sets":
            kind != "cpu" and params.partition_by == "columns",
    }


def _why_cpu(params: TrainParams) -> str:
    """Return why GPUs have no splits by sets with these parameters; empty where they have."""
    if params.max_cat_threshold > MOST_THRESHOLD:
        return f"max_cat_threshold={params.max_cat_threshold}, of which a GPU takes {MOST_THRESHOLD} at most"
    return ""


def device_of_sets(params: TrainParams) -> str:
    """Return the device of a fit whose trees split by sets: the parameters', or the CPU where GPUs have no such splits,
    which the log says."""
    why = _why_cpu(params)
    if split_device(params.device)[0] == "cpu" or not why:
        return params.device
    logger.info("device='auto' trains on the CPU: %s", why)
    return "cpu"


def check_encodings_made(params: TrainParams, schema: FeatureSchema) -> None:
    """Refuse encodings of columns other than those that dtrain was made with, as `encodings_of` those of none, and an
    order of rows that it was not made with."""
    encodings = params.encodings
    words, encoder = encodings_of(encodings, schema.columns), schema.encoder
    if not isinstance(encoder, Encoder):
        return
    if params.has_time and encoder.has_statistics and not encoder.has_time:
        raise ParameterError(
            "has_time=True contradicts dtrain, whose statistics of categories were made without it; make the data set "
            "with QuantizedDataset.from_dask(..., has_time=True)"
        )
    made = [own.word for own in encoder.encoders if own is not None]
    for at, word, own in zip(schema.columns.categorical, words, made, strict=True):
        if word not in (AUTO, own):
            raise ParameterError(
                f"encodings={shown(encodings)} contradicts dtrain, whose column {schema.columns.label(at)!r} was made "
                f"with {own!r}, by its own encodings= or by those of the model that is continued; leave it out, or "
                "make the data set with QuantizedDataset.from_dask(..., encodings=...)"
            )


def check_same_codes(model: Booster, schema: FeatureSchema) -> None:
    """Refuse a model whose trees have sets of categories, unless these are the same codes in the training data."""
    if not any(tree.sets for tree in model.trees):
        return
    own, given = model.schema.encoder, schema.encoder
    same = isinstance(own, Encoder) and isinstance(given, Encoder) and own.has_codes_of(given)
    if not same:
        raise ParameterError(
            "init_model splits codes of categories by sets, and the training data's codes are not known to be of the "
            "same categories; make the data sets with QuantizedDataset.from_dask(..., init_model=model)"
        )


def check_same_crosses(model: Booster, schema: FeatureSchema) -> None:
    """Refuse a model whose trees split crosses of columns, unless the training data have the same."""
    encoders = model.schema.encoder, schema.encoder
    own, given = (encoder.crosses if isinstance(encoder, Encoder) else () for encoder in encoders)
    if own != given:
        raise ParameterError(
            "init_model splits features that are made of two columns each, which the training data lack; make the data "
            "sets with QuantizedDataset.from_dask(..., init_model=model)"
        )


def check_crossed_constraints(monotone: Int32, schema: FeatureSchema) -> None:
    """Refuse monotone constraints of columns that further features are made of, which would break them."""
    for feature, columns in schema.of_several.items():
        bound = [column for column in columns if any(monotone[own] for own in schema.of_column(column))]
        if bound:
            raise ParameterError(
                f"monotone_constraints binds {schema.columns.label(bound[0])!r}, of which init_model has the feature "
                f"{schema.label(feature)!r} too; leave it out, or start from a model fitted with cross_features=False"
            )


def check_evaluated_queries(metrics: Sequence[Metric[Any]], evals: Sequence[tuple[QuantizedDataset, str]]) -> None:
    """Refuse evaluation sets without queries, where a metric is of queries."""
    for metric in metrics:
        for data, name in evals if metric.by_query else ():
            if not data.info.has("qid"):
                raise DataError(f"eval_metric={metric.name!r} is of queries, and {name!r} has none; make it with qid")


CERTIFIED_PARAMS = ("certify_tolerance", "resident_share")


def check_out_of_core(params: TrainParams, objective: Objective, eval_names: Sequence[str] = ()) -> None:
    """Refuse what trees that grow on a sample cannot do, evaluation sets of their report's name, and parameters that
    would not be read."""
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
    _refuse_beside(f"out_of_core={mode!r}", {
        f"grow_policy={params.grow_policy!r}": params.grow_policy != "depthwise",
        f"max_leaves={params.max_leaves}": params.max_leaves > 0,
        "monotone_constraints": params.is_monotone,
        "interaction_constraints": params.interaction_constraints is not None,
        f"colsample_bynode={params.colsample_bynode:g}": params.colsample_bynode < 1,
        "multi_strategy='multi_output_tree'": params.has_vector_leaves(objective.n_outputs),
        f"objective {objective.name!r}, whose leaves are quantiles": objective.adaptive_quantiles is not None,
    }, "leave one of the two out (out_of_core='exact' does)")  # fmt: skip


def check_made_with(params: TrainParams, made_with: Mapping[str, Any]) -> None:
    """Refuse parameters of data sets that dtrain was not made with: a fit cannot bring bins back, nor move chunks.

    `made_with` : `QuantizedDataset.made_with`.
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


def check_metrics(metrics: Sequence[Any], objective: Objective, params: TrainParams) -> list[Metric[Any]]:
    """The metrics of a fit with these parameters.

    ParameterError for an unknown name, two metrics of one name, whose values would end in one list, and a metric that
    cannot read what the objective predicts.
    """
    made = [make_metric(metric, metric_defaults(params, objective)) for metric in metrics]
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
    """The model that a fit continues: a Booster, a fitted estimator, or a model file's path; ParameterError for
    anything else."""
    if model is None or isinstance(model, Booster):
        return model
    if hasattr(type(model), "booster_"):
        return as_booster(model.booster_)
    if isinstance(model, str | Path):
        return Booster.load_model(as_path("init_model", model))
    raise ParameterError(f"init_model is {type(model).__name__}; pass a Booster, an estimator or a file's path")


def check_rounds(n_rounds: int, early: int | None, evals: Sequence[tuple[QuantizedDataset, str]]) -> None:
    """Refuse numbers of rounds that are none, and evaluation sets that cannot be told apart."""
    check_count("num_boost_round", n_rounds, least=0)
    if early is not None:
        check_count("early_stopping_rounds", early, least=1, hint=", or None for no stop")
    pairs = isinstance(evals, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in evals)
    if not pairs or not all(isinstance(name, str) for _, name in evals):
        given = shown(evals)
        raise ParameterError(f"evals={given}: give a list of pairs of a data set and its name: [(data, 'valid')]")
    if early is not None and not evals:
        raise ParameterError("early_stopping_rounds needs an evaluation set; pass evals=[(data, 'valid')]")
    names = [name for _, name in evals]
    if len(set(names)) < len(names):
        raise ParameterError(f"evals has two sets of one name: {names}; name each differently")


def check_data(objective: Objective, dtrain: QuantizedDataset, evals: Sequence[tuple[QuantizedDataset, str]]) -> None:
    """Refuse data sets that were closed, that do not belong together, or whose labels the objective cannot take."""
    for data, name in ((dtrain, "dtrain"), *evals):
        if not isinstance(data, QuantizedDataset):
            raise ParameterError(
                f"{name} is {type(data).__name__}; pass a QuantizedDataset (QuantizedDataset.from_dask(X, y))"
            )
        if data.shards.closed:
            raise DataError(f"{name} was closed; make it again, or close it after the fit")
        if type(data.shards) is not type(dtrain.shards) or _client_of(data) is not _client_of(dtrain):
            raise DataError(
                f"evaluation set {name!r} is not where the training set is; make it with "
                "QuantizedDataset.from_dask(..., reference=dtrain), or open both with the same client"
            )
        evaluated = any(data is each for each, _ in evals)
        for column in dict.fromkeys((*objective.needs, *(("label",) if evaluated else ()))):
            if not data.info.has(column):
                raise DataError(f"{name} has no {column}s; make it with {COLUMNS[column].argument}")
        objective.check_labels(data.info.stats)
        own, cuts = data.cuts, dtrain.cuts
        if own is not cuts and not (
            np.array_equal(own.values, cuts.values) and np.array_equal(own.offsets, cuts.offsets)
        ):
            raise DataError(
                f"evaluation set {name!r} has cut points of its own; make it with QuantizedDataset.from_dask(..., "
                "reference=dtrain)"
            )
        if data.info.init_model_digest != dtrain.info.init_model_digest:
            models = [_short(each.info.init_model_digest) for each in (data, dtrain)]
            raise DataError(
                f"evaluation set {name!r} was made with init_model={models[0]}, dtrain with init_model={models[1]} "
                "(models by Booster.digest); make all of them with the same model, or all without"
            )
    _check_rows_of(objective, dtrain)


def _check_rows_of(objective: Objective, dtrain: QuantizedDataset) -> None:
    """Refuse an objective of given rows that there are not: DataError."""
    if isinstance(objective, PairLogitOfPairs):
        objective.check_rows(dtrain.n_numbered_rows)


def _client_of(data: QuantizedDataset) -> Any:
    return getattr(data.shards, "client", None)


def _short(digest: str | None) -> str:
    """A model as messages name it."""
    return "None" if digest is None else f"<{digest[:12]}>"


def check_init_model(
    model: Booster | None, objective: Objective, dtrain: QuantizedDataset, vectors: bool = False
) -> None:
    """Refuse a model that the training set cannot continue, or a fit of other leaves: each must be made for the other.

    `vectors` : whether the fit's leaves are.
    """
    made_with = dtrain.info.init_model_digest
    if model is None:
        if made_with is not None:
            raise ParameterError(
                f"dtrain was made with init_model={_short(made_with)}, from which its rows start; give that model to "
                "train too"
            )
        return
    if model.objective.name != objective.name or model.n_outputs != objective.n_outputs:  # XGBoost has several targets
        raise ParameterError(
            f"init_model was trained for {model.objective.name!r} with {model.n_outputs} outputs, the fit is "
            f"for {objective.name!r} with {objective.n_outputs}; use the model's objective"
        )
    if model.trees and model.has_vectors != vectors:
        raise ParameterError(
            f"the leaves of init_model {'are' if model.has_vectors else 'are not'} vectors (multi_strategy="
            f"'multi_output_tree'), those of the fit {'are' if vectors else 'are not'}; use the model's multi_strategy"
        )
    check_same_features(model, dtrain.schema, "the training data")
    if made_with not in (None, model.digest):
        raise ParameterError(
            f"init_model={_short(model.digest)} is not the model from whose margins the rows of dtrain start: dtrain "
            f"was made with init_model={_short(made_with)} (models by Booster.digest); give train that model, or make "
            "the data sets again with QuantizedDataset.from_dask(..., init_model=model)"
        )
