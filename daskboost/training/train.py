"""`train`: parameters and quantized data sets in, a Booster out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from daskboost.data.categories.column_encoders import NATIVE
from daskboost.data.categories.encode import encodings_of
from daskboost.data.cuts.cut_points import PRESENT_THRESHOLD
from daskboost.data.input.kinds import is_lazy
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.devices.choose import check_n_gpus, gpus_meant
from daskboost.dtypes import Int32
from daskboost.errors import ParameterError
from daskboost.fit.recipe import make_recipe
from daskboost.fit.spec import EarlyStopping, FitSpec, Progress, Report
from daskboost.foreign_words import takes_foreign_words
from daskboost.local.in_process import LocalShards, fit_here
from daskboost.local.several_gpus import gpus_that_pay, shared_out
from daskboost.metrics.metric import Metric
from daskboost.model.booster import Booster
from daskboost.model.leaf_scale import LeafScale
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import make_objective, objective_of_pairs
from daskboost.params import PARAMETERS, TrainParams, shown
from daskboost.training.callbacks import Callback, LearningRateSchedule, RoundInfo, check_callbacks, evaluation_log
from daskboost.training.checks import (
    CERTIFIED_PARAMS,
    as_booster,
    check_contradictions,
    check_crossed_constraints,
    check_data,
    check_drawn_queries,
    check_encodings_made,
    check_evaluated_queries,
    check_init_model,
    check_made_with,
    check_metrics,
    check_rounds,
    check_rows_of_leaves,
    check_same_codes,
    check_same_crosses,
    check_same_positions,
    check_sets,
    device_of_sets,
)
from daskboost.training.dataset import QuantizedDataset, computed_values, run_or_await
from daskboost.tree.constraints import ignored_features, interaction_groups, monotone_directions
from daskboost.tree.split_search import SetSearch, SplitRules
from daskboost.tree.table import TreeTable

IN_PARAMS = "give it in params: {{'{name}': ...}}"
"""What a function that has `params` says of a parameter given as a keyword."""


@takes_foreign_words(lambda _: PARAMETERS, IN_PARAMS)
def train(
    params: Mapping[str, Any] | TrainParams, dtrain: QuantizedDataset, num_boost_round: int = 100, *,
    evals: Sequence[tuple[QuantizedDataset, str]] = (), early_stopping_rounds: int | None = None,
    evals_result: MutableMapping[str, dict[str, list[float]]] | None = None, init_model: Any = None,
    callbacks: Sequence[Callback] = (), objective: Any = None, custom_metric: Any = None,
    pairs: object = None, pair_weight: object = None, verbose: bool | int | None = None,
) -> Booster:  # fmt: skip
    """Train a model.

    Parameters
    ----------
    params : mapping or TrainParams
        Training parameters by XGBoost's names (see `TrainParams`). Those of data sets (`max_bin`, `chunk_rows`,
        `host_memory_limit`, `spill_directory`) belong to `QuantizedDataset`: other values than dtrain's are refused.
    dtrain : QuantizedDataset
        Training rows, with labels; some of them: ``data.subset(rows)``.
    num_boost_round : int, default 100
        Rounds to add; one tree per output and round, or one of all outputs (``multi_strategy="multi_output_tree"``).
    evals : sequence of (QuantizedDataset, name)
        Data sets to evaluate after every round; made with ``reference=dtrain``, or `dtrain` itself or rows of
        it, whose margins training keeps anyway.
    early_stopping_rounds : int, optional
        Stop after so many rounds without improvement of the last metric on the last evaluation set.
    evals_result : dict, optional
        Filled with data set -> metric -> values; with ``out_of_core="certified"`` also "out_of_core" -> "passes" over
        all rows, "gain_lost" (share of the gain) and "splits_redone" of every round, with ``"sampled"`` "passes" and
        "rows" of the sample.
    init_model : Booster, fitted estimator or path, optional
        Continue this model: `dtrain` and `evals` must have its cut points, or have been made with the same
        ``init_model``. ``xgb_model`` is XGBoost's name of it.
    callbacks : sequence of Callback
    objective : callable or Objective, optional
        Overrides ``params["objective"]``: ``f(label, margin) -> (gradient, hessian)``, or ``f(label, margin, group)``,
        which gets whole queries, `group` being their numbers of rows.
    custom_metric : callable, optional
        Added behind ``params["eval_metric"]``: ``f(y_true, y_pred) -> value`` or ``(name, value)``, with probabilities
        or means as `y_pred`. Early stopping takes smaller values for better ones, unless the function has an attribute
        ``maximize`` that is true, or is one of scikit-learn's ``..._score``.
    pairs : array of integers, shape (pairs, 2), optional
        Of ``objective="pairlogit"``, in place of all pairs of rows with different labels: numbers of rows of a query in
        `dtrain`, the one that should come first and the other. A Dask collection is computed; each engine gets all
        pairs, 20 bytes each. Labels are not needed then.
    pair_weight : array, shape (pairs,), optional
        What each pair counts; 1 by default.
    verbose : bool or int, optional
        Print the metrics of every round, or of every so many rounds. ``verbose_eval`` is XGBoost's name of it.

    Returns
    -------
    Booster
        With `best_iteration` and `best_score` if stopping early was asked for. An awaitable of it on the event loop
        of an asynchronous client.

    Raises
    ------
    ParameterError, DataError
        Before any work: unknown or contradictory parameters, labels outside the objective's range, evaluation sets
        with other columns or cut points, another `init_model` than the data sets were made with.

    Notes
    -----
    Gradients and hessians (times weights) of more than 4,096 rows become integers of 15 bits on one scale, that of the
    largest, by unbiased random rounding. Beside extreme outliers the other rows lose precision: where the largest
    gradient is R times the root mean square of the others, rounding adds noise of at most ``R**2 / 2**30`` of their
    variance: 0.1 % for R = 1,000, as much as they have for R = 33,000. Against it help ``reg:pseudohubererror`` and
    ``reg:absoluteerror``, whose gradients are bounded, and clipping labels or weights.
    """
    client = getattr(dtrain.shards, "client", None) if isinstance(dtrain, QuantizedDataset) else None
    if is_lazy(pairs) or is_lazy(pair_weight):
        again = partial(
            train, params, dtrain, num_boost_round, evals=evals, early_stopping_rounds=early_stopping_rounds,
            evals_result=evals_result, init_model=init_model, callbacks=callbacks, objective=objective,
            custom_metric=custom_metric, verbose=verbose,
        )  # fmt: skip
        return run_or_await(client, lambda: with_computed_pairs(again, client, pairs, pair_weight))
    check_callbacks(callbacks)
    if not (evals_result is None or isinstance(evals_result, MutableMapping)):
        raise ParameterError(f"evals_result={shown(evals_result)} must be a dict, which is filled, or None")
    chosen = params if isinstance(params, TrainParams) else TrainParams.from_mapping(params)
    check_n_gpus(chosen.n_gpus, is_on_cluster(dtrain))
    chosen = with_pairs(with_callables(chosen, objective, custom_metric), pairs, pair_weight)
    prepared = prepare_fit(
        chosen, dtrain, num_boost_round, evals, early_stopping_rounds,
        init_model, [*callbacks, *evaluation_log(verbose)], evals_result,
    )  # fmt: skip
    return run_or_await(client, lambda: prepared.run(prepared.fit))


@dataclass(frozen=True)
class PreparedFit:
    """A fit that was checked and has not begun."""

    spec: FitSpec
    dtrain: QuantizedDataset
    evals: Sequence[QuantizedDataset]
    callbacks: Sequence[Callback]
    earlier: Booster | None
    evals_result: MutableMapping[str, dict[str, list[float]]] | None

    def run(self, fit: Callable[[Report], Progress]) -> Booster:
        """The model, with callbacks around and between the rounds that `fit` grows."""
        spec, n_rounds = self.spec, self.spec.first_iteration + len(self.spec.learning_rates)

        def report(iteration: int, progress: Progress) -> bool:
            if self.evals_result is not None:
                self.evals_result.update(progress.history)
            if not self.callbacks:
                return False
            snapshot = partial(make_booster, spec, self.dtrain, progress, self.earlier)
            info = RoundInfo(iteration, n_rounds, progress.history, snapshot)
            return any([callback.after_round(info) for callback in self.callbacks])

        for callback in self.callbacks:
            callback.before_training(n_rounds)
        booster = make_booster(spec, self.dtrain, fit(report), self.earlier)
        for callback in self.callbacks:
            callback.after_training(booster)
        return booster

    def fit(self, report: Report) -> Progress:
        """Grow all rounds where the training rows are."""
        sets = [data.shards for data in self.evals]
        if isinstance(self.dtrain.shards, LocalShards):
            with shared_out(self.spec, [self.dtrain.shards, *sets]) as (train, *evals):
                return fit_here(self.spec, train, evals, self.spec.params.n_jobs, report)
        from daskboost.cluster.dask_fit import fit_on_cluster

        return fit_on_cluster(self.spec, self.dtrain.shards, sets, report)


def with_callables(params: TrainParams, objective: Any, custom_metric: Any) -> TrainParams:
    """Put an objective and a metric that were given beside the parameters in among these."""
    if objective is not None:
        params = replace(params, objective=objective)
    if custom_metric is None:
        return params
    if not (callable(custom_metric) or isinstance(custom_metric, Metric)):
        raise ParameterError(f"custom_metric={shown(custom_metric)} must be a function f(y_true, y_pred) -> value")
    return replace(params, eval_metric=(*params.eval_metric, custom_metric))


def with_computed_pairs(
    fit: Callable[..., Booster], client: object, pairs: object, pair_weight: object
) -> Booster:
    """Call `fit` with pairs in the memory of this process."""
    rows, weight = computed_values(client, [pairs, pair_weight])
    return fit(pairs=rows, pair_weight=weight)


def with_pairs(params: TrainParams, pairs: object, pair_weight: object) -> TrainParams:
    """Put pairs that were given beside the parameters in among these."""
    if pairs is None and pair_weight is None:
        return params
    return with_callables(params, objective_of_pairs(params.objective, pairs, pair_weight), None)


def prepare_fit(
    params: TrainParams, dtrain: QuantizedDataset, num_boost_round: int, evals: Sequence[tuple[QuantizedDataset, str]],
    early_stopping_rounds: int | None, init_model: Any, callbacks: Sequence[Callback],
    evals_result: MutableMapping[str, dict[str, list[float]]] | None,
) -> PreparedFit:  # fmt: skip
    """Check the arguments of `train`."""
    loss = objective_of(params)
    earlier = as_booster(init_model)
    spec = make_spec(params, loss, dtrain, num_boost_round, evals, early_stopping_rounds, earlier, callbacks)
    return PreparedFit(spec, dtrain, [data for data, _ in evals], callbacks, earlier, evals_result)


def split_rules(params: TrainParams, objective: Objective, monotone: Int32) -> SplitRules:
    """Return the split rules of a fit; `monotone` : int32, shape (features,)."""
    step = objective.default_max_delta_step if params.max_delta_step is None else params.max_delta_step
    symmetric = params.grow_policy == "symmetric"
    return SplitRules(params.reg_lambda, params.reg_alpha, step, params.min_child_weight, monotone, symmetric)


def set_search(params: TrainParams, schema: FeatureSchema) -> SetSearch | None:
    """Return how features of codes are split; None where there are none."""
    if schema.encoder is None or not schema.encoder.codes:
        return None
    most = max(schema.encoder.codes.values())
    return SetSearch(
        schema.is_code, most, params.max_cat_to_onehot, params.max_cat_threshold, params.cat_smooth, params.cat_l2,
        params.min_data_per_group,
    )


def make_spec(
    params: TrainParams, objective: Objective, dtrain: QuantizedDataset, n_rounds: int,
    evals: Sequence[tuple[QuantizedDataset, str]], early_stopping_rounds: int | None, init_model: Booster | None,
    callbacks: Sequence[Callback],
) -> FitSpec:  # fmt: skip
    """Check everything that can be checked before work starts, and put it together."""
    check_rounds(n_rounds, early_stopping_rounds, evals)
    check_data(objective, dtrain, evals)
    check_init_model(init_model, objective, dtrain, params.has_vector_leaves(objective.n_outputs))
    if init_model is not None:
        objective = objective.going_on(init_model.objective)
    check_made_with(params, dtrain.made_with)
    check_contradictions(params, objective, [name for _, name in evals])
    check_drawn_queries(params, dtrain.info.has("qid"))
    check_rows_of_leaves(params, dtrain.n_rows)
    if init_model is not None and (params.linear_leaves or dtrain.info.init_model_digest is None):
        check_same_positions(init_model, dtrain.cuts)
    schema, cuts = dtrain.schema, dtrain.cuts
    groups = interaction_groups(params.interaction_constraints, schema)
    ignored = ignored_features(params.ignored_features, schema, groups)
    if ignored != params.ignored_features:  # parameters are checked as they are made
        params = replace(params, ignored_features=ignored)
    check_encodings_made(params, schema)
    monotone = monotone_directions(params.monotone_constraints, schema)
    check_crossed_constraints(monotone, schema)
    rules = split_rules(params, objective, monotone)
    sets = set_search(params, schema)
    if sets is not None:
        check_sets(params, schema.label(int(np.flatnonzero(sets.is_code)[0])))
        rules, params = replace(rules, sets=sets), replace(params, device=device_of_sets(params))
    made = check_metrics(params.eval_metric or (objective.default_metric,) * bool(evals), objective, params)
    check_evaluated_queries(made, evals)
    earlier: tuple[TreeTable, ...] = ()
    best: tuple[int, float] | None = None
    if init_model is not None and dtrain.info.init_model_digest is None:
        check_same_codes(init_model, schema)
        check_same_crosses(init_model, schema)
        earlier = tuple(rebin(tree, dtrain) for tree in init_model.trees)
        best = _best_of(init_model)
    n_engines = engines_of(params, dtrain, [data for data, _ in evals])
    recipe = make_recipe(params, objective, dtrain.n_rows, n_engines)
    return FitSpec(
        params=params, objective=objective, recipe=recipe,
        metrics=[[metric.prepare(data.info.stats) for metric in made] for data, _ in evals],
        cuts=cuts, layout=cuts.slot_layout(recipe.columns), rules=rules,
        interaction_groups=groups,
        learning_rates=learning_rates(params, n_rounds, callbacks), eval_names=[name for _, name in evals],
        feature_sizes=dtrain.info.feature_sizes, largest_weight=max(dtrain.info.stats.max_weight, 1e-30),
        early_stopping=None if early_stopping_rounds is None else EarlyStopping(early_stopping_rounds),
        earlier_trees=earlier, earlier_outputs=() if init_model is None or not earlier else init_model.tree_outputs,
        first_iteration=0 if init_model is None else init_model.n_iterations,
        base_score=None if init_model is None else init_model.base_score, earlier_best=best,
    )  # fmt: skip


def engines_of(params: TrainParams, dtrain: QuantizedDataset, evals: Sequence[QuantizedDataset]) -> int:
    """Return how many engines a fit has: one for each that has rows of a data set, or for each GPU that these are
    shared out to."""
    n_owners = len({owner for data in (dtrain, *evals) for owner in data.shards.owners})
    if is_on_cluster(dtrain) or n_owners > 1:
        return n_owners
    return gpus_that_pay(gpus_meant(params.n_gpus), dtrain.info.nbytes, dtrain.n_rows)


def is_on_cluster(data: QuantizedDataset) -> bool:
    """Whether rows are on a cluster; anything but a data set is refused elsewhere."""
    return isinstance(data, QuantizedDataset) and not isinstance(data.shards, LocalShards)


def learning_rates(params: TrainParams, n_rounds: int, callbacks: Sequence[Callback]) -> list[float]:
    """The learning rate of every round: the schedule's if there is one, else the parameters'."""
    check_callbacks(callbacks)
    schedules = [callback for callback in callbacks if isinstance(callback, LearningRateSchedule)]
    return schedules[-1].rates(n_rounds) if schedules else [params.learning_rate] * n_rounds


def checked_objective(params: TrainParams) -> Objective:
    """Return the objective, once what contradicts it is refused."""
    objective = objective_of(params)
    check_contradictions(params, objective)
    check_metrics(params.eval_metric, objective, params)
    return objective


def check_params(params: TrainParams, schema: FeatureSchema, n_rounds: int, callbacks: Sequence[Callback]) -> Objective:
    """Refuse, before any row is read, what `train` would refuse once all are quantized; give the objective.

    Raises
    ------
    ParameterError
        Unknown objectives or metrics, parameters and metrics that do not suit the objective, constraints of features
        that there are not, callbacks that are none.
    """
    objective = checked_objective(params)
    words = zip(schema.columns.categorical, encodings_of(params.encodings, schema.columns), strict=True)
    native = [schema.columns.label(at) for at, word in words if word == NATIVE]
    if native:
        check_sets(params, native[0])
    monotone_directions(params.monotone_constraints, schema)
    interaction_groups(params.interaction_constraints, schema)
    ignored_features(params.ignored_features, schema)
    learning_rates(params, n_rounds, callbacks)
    return objective


def make_booster(spec: FitSpec, dtrain: QuantizedDataset, progress: Progress, init_model: Booster | None) -> Booster:
    """The model of what has been built so far."""
    new = progress.trees[len(spec.earlier_trees) :]
    outputs = progress.outputs[len(spec.earlier_trees) :]
    trees = (*init_model.trees, *new) if init_model is not None else tuple(new)
    pointers = init_model.iteration_indptr if init_model is not None else (0,)
    per_round = len(spec.recipe.tree_outputs)
    added = tuple(pointers[-1] + per_round * (i + 1) for i in range(len(new) // per_round))
    attributes = {} if init_model is None else {k: v for k, v in init_model.attributes.items() if k not in BEST}
    if progress.best_iteration is not None and progress.best_score is not None:
        attributes |= {"best_iteration": str(progress.best_iteration), "best_score": repr(float(progress.best_score))}
    objective = spec.objective if progress.chances is None else spec.objective.with_chances(progress.chances)
    return Booster(
        trees=trees,
        tree_outputs=(*(init_model.tree_outputs if init_model is not None else ()), *outputs),
        iteration_indptr=(*pointers, *added),
        objective=objective.of_model,
        base_score=progress.base_score,
        schema=dtrain.schema,
        attributes=attributes,
        params=provenance(spec.params),
        leaf_scale=LeafScale.of_trees(new, spec.cuts, None if init_model is None else init_model.leaf_scale),
    )


BEST = ("best_iteration", "best_score")
"""Attributes that early stopping writes."""
PLACE_PARAMS = ("explicit", "device", "n_gpus", "n_jobs", "chunk_rows", "reduction", "partition_by",
                "host_memory_limit", "spill_directory", "device_memory_limit")  # fmt: skip
"""Parameters of where and how a fit ran: kept out of the model, whose bytes must not depend on them."""


ADDRESS = " at 0x"
"""What texts of objects have that say where these lie in memory."""


def provenance(params: TrainParams) -> dict[str, str]:
    """The parameters that shaped the model, as texts."""
    dropped = PLACE_PARAMS
    if params.out_of_core != "certified" or params.certify_tolerance == 0:
        dropped = (*dropped, *CERTIFIED_PARAMS, *(() if params.out_of_core == "sampled" else ("out_of_core",)))
    kept = {name: value for name, value in vars(params).items() if name not in dropped}
    return {name: str(recorded(value)) for name, value in sorted(kept.items())}


def recorded(value: object) -> object:
    """Return a parameter as a model records it, which no address, order of a set or type of NumPy's or pandas' may
    change: lists, arrays, series and sets as tuples, enumerations as what they stand for, and functions by their names.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return dict(sorted((str(key), recorded(each)) for key, each in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(recorded, value), key=repr))
    if isinstance(value, str):
        return "".join(value)  # without the type of a subclass, such as an enumeration
    if isinstance(value, int | float):
        return value if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Collection) and not callable(value):
        return tuple(map(recorded, value))
    name = getattr(value, "__name__", None)
    if name is None and ADDRESS in repr(value):
        name = getattr(value, "name", type(value).__name__)
    return value if name is None else name


def rebin(tree: TreeTable, data: QuantizedDataset) -> TreeTable:
    """The same tree with its splits as bins of a data set, whose cut points must contain its split values."""
    split_bin = np.full(tree.n_nodes, -1, np.int32)
    for node in np.flatnonzero(~tree.is_leaf & ~tree.has_set).tolist():
        cuts = data.cuts.of(int(tree.feature[node]))
        at = int(np.searchsorted(cuts, tree.threshold[node]))
        if at < len(cuts) and cuts[at] == tree.threshold[node]:
            split_bin[node] = at
        elif tree.threshold[node] == PRESENT_THRESHOLD:
            split_bin[node] = len(cuts)
        else:
            raise ParameterError(
                f"init_model splits {data.schema.label(int(tree.feature[node]))} at {tree.threshold[node]!r}, which is "
                "no cut point of this QuantizedDataset; make the data sets with QuantizedDataset.from_dask(..., "
                "init_model=model), which starts from the model's margins"
            )
    return replace(tree, split_bin=split_bin)


def _best_of(model: Booster) -> tuple[int, float] | None:
    """What early stopping has found: a fit that resumes on the same cut points goes on as if not interrupted."""
    iteration, score = model.best_iteration, model.best_score
    return None if iteration is None or score is None else (iteration, score)


def objective_of(params: TrainParams) -> Objective:
    """Return the objective that parameters name, with those of its own."""
    values = {name: value for name, value in vars(params).items() if name != "explicit"}
    return make_objective(params.objective, {**values, "num_class": params.num_class or None})
