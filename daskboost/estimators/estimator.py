"""What both estimators share: the fit, predictions, and what a fitted model tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, get_args

import numpy as np

from daskboost.data.categories.combinations import check_complexity
from daskboost.data.categories.crosses import Cross
from daskboost.data.categories.encode import CategoryOptions
from daskboost.data.chunks.build import BuildOptions, DatasetInfo
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.data.input.source import Source, make_source
from daskboost.devices.budget.plan import Plan
from daskboost.devices.choose import budget_of, check_device, check_n_gpus, gpus_meant
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ParameterError
from daskboost.estimators.choosing import choices
from daskboost.estimators.class_labels import ClassLabels, with_classes
from daskboost.estimators.eval_sets import (
    RowSet,
    check_labels,
    check_queries,
    evaluation_sets,
    features_of,
    labels_of,
)
from daskboost.estimators.parameters import EstimatorParameters, estimator, parameter_names
from daskboost.estimators.presets import LEAST_ROWS, MEMBERS_ROWS, PRESETS, Facts
from daskboost.estimators.stopping import FitShape, Rounds, rounds_of
from daskboost.fit.recipe import evaluated_metrics
from daskboost.foreign_words import takes_foreign_words
from daskboost.model.booster import Booster
from daskboost.model.explain import ImportanceType, importance
from daskboost.model.output import Output, PredictRequest, make_request
from daskboost.model.placement import Place
from daskboost.model.route import predict
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import objective_of_pairs
from daskboost.params import TrainParams, as_tuple, shown
from daskboost.training.callbacks import Callback, check_callbacks, evaluation_log
from daskboost.training.checks import (
    as_booster,
    check_drawn_queries,
    goes_with_shared_trees,
    is_wide,
    may_have_sets,
)
from daskboost.training.dataset import (
    QuantizedDataset,
    computed_by,
    computed_values,
    current_client,
    of_model,
    run_or_await,
)
from daskboost.training.members import Candidate, train_members
from daskboost.training.plan_fit import plan
from daskboost.training.train import check_params, train

if TYPE_CHECKING:
    from sklearn.utils import Tags

T = TypeVar("T")
EvalsResult = dict[str, dict[str, list[float]]]
"""Evaluation set -> metric -> a value per round."""


class Pairs(NamedTuple):
    """Pairs of rows that `fit` was given, and what they count."""

    rows: object = None
    weight: object = None

    @property
    def are_there(self) -> bool:
        """Whether any were given, or weights of some."""
        return self.rows is not None or self.weight is not None


NO_PAIRS = Pairs()


class Log(NamedTuple):
    """What is told of the rounds of a fit."""

    callbacks: Sequence[Callback]
    verbose: bool | int | None

    def of_a_fit(self, labels: ClassLabels | None = None) -> list[Callback]:
        """Return the callbacks of one fit, whose printed lines are its own; `labels` : classes of the models that they
        see."""
        return [*with_classes(self.callbacks, labels), *evaluation_log(self.verbose)]


@estimator
class BoostedTrees(EstimatorParameters):
    """Base of the estimators.

    Parameters
    ----------
    {parameters}
    """

    @takes_foreign_words(lambda self: parameter_names(type(self)), "give it to the constructor: {name}=...")
    def fit(
        self, X: object, y: object = None, *, qid: object = None, sample_weight: object = None,
        base_margin: object = None, eval_set: object = None, eval_qid: object = None,
        sample_weight_eval_set: object = None, base_margin_eval_set: object = None,
        verbose: bool | int | None = None, init_model: object = None, eval_metric: object = None,
        early_stopping_rounds: int | None = None, callbacks: Sequence[Callback] | None = None,
        pairs: object = None, pair_weight: object = None,
    ) -> Self:  # fmt: skip
        """Train on local data, or on a Dask collection where its partitions lie.

        Parameters
        ----------
        X : Dask DataFrame or Array, pandas or polars DataFrame, NumPy array, pyarrow Table, scipy.sparse matrix or path
            A path is Parquet's: a file, or a directory of files in the order of the numbers in their names. Columns of
            frames are matched by name when predicting.
            CuPy arrays and matrices, cuDF DataFrames, and Dask collections of them stay on their GPU; with
            ``device="cpu"`` their bins are copied to the host.
            Shape (rows, features). NaN, nulls and absent sparse entries are missing.
        y, sample_weight, base_margin : column name of `X`, or an aligned collection
            Labels; weights (finite, at least 0; default 1); margins that rows start from, (rows,) or (rows, outputs).
        qid : column name of `X`, or an aligned collection, optional
            The query of each row, for ranking objectives, for metrics such as ``ndcg@10`` and for draws of whole
            queries: integers, whole floats or texts, in any order. Rows of a query have the same weight, or 0.
        eval_set : list of (X, y), optional
            Evaluated after every round as ``validation_0``, ``validation_1``, ...; of any supported kind, and with
            other partitions, workers and sizes than the training data.
        eval_qid, sample_weight_eval_set, base_margin_eval_set : list, optional
            One entry per evaluation set, which may be None.
        verbose : bool or int, optional
            Print the metrics of every round, or of every so many rounds.
        init_model : Booster, fitted estimator or path, optional
            Continue this model; its trees come first. `xgb_model` is XGBoost's name of it. Columns of frames are
            matched to it by name, and positions in parameters, as in `monotone_constraints`, are those of its columns.
        pairs, pair_weight : arrays of shape (pairs, 2) and (pairs,), optional
            Of ``objective="pairlogit"``: rows by their numbers, the one that should come first and the other, and what
            each pair counts; see `train`. Then `y` may be None.
        eval_metric, early_stopping_rounds, callbacks : optional
            In place of the constructor's, for this fit; `get_params` and clones do not know of them.

        Returns
        -------
        self
            An awaitable of it on the event loop of an asynchronous client.

        Raises
        ------
        ParameterError, DataError, DataTypeError
            Parameters that are out of range or contradict each other; input that cannot be trained on. Whatever
            metadata tells is refused before any row is read; bad labels of local evaluation sets before training rows.
        """
        given = {"eval_metric": eval_metric, "early_stopping_rounds": early_stopping_rounds, "callbacks": callbacks}
        sets = evaluation_sets(eval_set, {
            "weight": ("sample_weight_eval_set", sample_weight_eval_set),
            "base_margin": ("base_margin_eval_set", base_margin_eval_set),
            "qid": ("eval_qid", eval_qid),
        })  # fmt: skip
        rows = RowSet(X, y, {"weight": sample_weight, "base_margin": base_margin, "qid": qid})
        return self._fit_on(rows, sets, init_model, verbose, given, Pairs(pairs, pair_weight))

    def predict(
        self, X: object, *, output_margin: bool = False, iteration_range: tuple[int, int] | None = None,
        base_margin: object = None,
    ) -> Any:  # fmt: skip
        """Predict rows; lazily for a Dask collection.

        Rows of the host's memory go to a GPU where `device` does not say "cpu" and that takes less time than the CPU,
        as by `Booster.predict` with ``device="auto"``, also where it names a GPU. Where that cannot be used, as on
        another machine than the fit's, or its memory is full, the CPU predicts the same, and the log says so.

        Parameters
        ----------
        X : as in `fit`
            Frames are matched by column name, whatever their order; further columns are ignored.
        output_margin : bool, default False
            Raw scores instead.
        iteration_range : (int, int), optional
            First iteration and the one after the last; by default up to the best where early stopping ran.
        base_margin : column name or aligned collection, optional
            Replaces the base score.

        Returns
        -------
        numpy array, of rows on a GPU a CuPy array; for Dask input a Dask Series, DataFrame or Array with X's partitions
            Float32 of shape (rows,), or (rows, outputs) for several quantiles or margins of several classes; a
            classifier's labels as they were in training.
        """
        output: Output = "margin" if output_margin else "prediction"
        return self._predict(X, output, iteration_range, base_margin)

    def apply(self, X: object, *, iteration_range: tuple[int, int] | None = None) -> Any:
        """The leaf of every tree in which rows end: node numbers, int32, shape (rows, trees)."""
        return self._predict(X, "leaf", iteration_range, None)

    @property
    def booster_(self) -> Booster:
        """The model."""
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"This {type(self).__name__} is not fitted yet. Call fit, or load_model, first.")
        booster: Booster = self._booster
        return booster

    def get_booster(self) -> Booster:
        """The model, under XGBoost's name."""
        return self.booster_

    def evals_result(self) -> EvalsResult:
        """`evals_result_`, under XGBoost's name: evaluation set -> metric -> a value per round."""
        self.booster_  # noqa: B018 - raises where nothing is fitted
        return self.evals_result_

    @property
    def best_iteration(self) -> int:
        """The iteration that early stopping found best; AttributeError where it did not run."""
        return self._best(self.booster_.best_iteration)

    @property
    def best_score(self) -> float:
        """The metric at `best_iteration`; AttributeError where early stopping did not run."""
        return self._best(self.booster_.best_score)

    @property
    def feature_importances_(self) -> Float32:
        """Importance of every feature by `importance_type`, summing to 1; float32, shape (features,)."""
        values = importance(self.booster_, self.importance_type)
        total = values.sum()
        return (values / total if total > 0 else values).astype(np.float32)

    def save_model(self, path: str | Path) -> None:
        """Write the model to a ``.json`` or ``.ubj`` file, with its classes; XGBoost reads it too.

        Of categorical columns, and of crosses (`cross_features`), the file has the features that are made of them,
        which other libraries want in place of the columns.
        """
        self.booster_.save_model(path)

    def load_model(self, path: str | Path) -> Self:
        """Become the model of a file that `save_model` or XGBoost wrote; parameters stay as they are.

        Raises
        ------
        ParameterError
            A classifier's model for a regressor, or the other way round.
        ModelFormatError
            See `Booster.from_bytes`.
        """
        self._loaded(Booster.load_model(path))
        self.evals_result_: EvalsResult = {}
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "_booster" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    # What the two estimators do differently

    def _labelled(self, source: Source, init: Booster | None) -> tuple[Source, ClassLabels | None]:
        """The training source with its labels as the loss reads them, and the classes behind them."""
        return source, None

    def _params_for(self, labels: ClassLabels | None) -> TrainParams:
        """The training parameters once the classes are known."""
        return self.train_params(self.objective)

    def _loaded(self, booster: Booster) -> None:
        self._keep(booster, None)

    def plan(self, X: object = None, *, n_classes: int = 2, **shape: Any) -> Plan:
        """State the memory that `fit` will take, by purpose, before anything is read.

        Parameters
        ----------
        X : as in `fit`, or `QuantizedDataset`, optional
            Only its shape is looked at, unless it is quantized: columns of categories are taken for one number each,
            and no features are added that are made of several columns. A plan of a quantized set knows both.
        n_classes : int, default 2
            Of a classifier's labels.
        **shape
            As of `daskboost.plan`: ``n_rows`` and ``n_features`` instead of `X`, ``evals``, ``weight``, ``memory``, ...

        Returns
        -------
        Plan
            `print` it for a table.
        """
        n_rows = rows_known(X, shape)
        rounds = rounds_of(self, FitShape(), n_rows)
        labels = self._labels_of(n_classes)
        fit_shape = FitShape(n_classes=0 if labels is None else n_classes)
        params = self._params_for(labels)
        info = X.info if isinstance(X, QuantizedDataset) else None
        params = replace(params, **self.unset_values(self._facts(params, fit_shape, rounds, n_rows, info)))
        return plan(params, X, num_boost_round=rounds.most, **shape)

    def _labels_of(self, n_classes: int) -> ClassLabels | None:
        """Any labels of so many classes; None where labels are numbers."""
        return None

    # Steps

    def _check_arguments(self, y: object, shape: FitShape, pairs: Pairs) -> None:
        """Everything that needs no data."""
        if y is None and pairs.rows is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Pass labels as the name of "
                "a column of X, or as a collection aligned with X."
            )
        rounds_of(self, shape, LEAST_ROWS)
        check_complexity(self.max_ctr_complexity)
        if not isinstance(self.cross_features, bool | np.bool_):
            raise ParameterError(f"cross_features={shown(self.cross_features)} must be True or False")
        self.train_params("reg:squarederror" if self.objective is None else self.objective)
        known = get_args(ImportanceType)
        if not (isinstance(self.importance_type, str) and self.importance_type in known):
            raise ParameterError(
                f"importance_type={shown(self.importance_type)} must be one of "
                f"{', '.join(map(repr, known))}"
            )

    def _fit_on(self, rows: RowSet, sets: Sequence[RowSet], init_model: object, verbose: bool | int | None,
                given: Mapping[str, object], pairs: Pairs = NO_PAIRS) -> Self:  # fmt: skip
        """Fit any rows; `given` : parameters that this fit has in place of the constructor's, where they are not None.

        An estimator whose rows have other columns has a `fit` of its own, which ends here.
        """
        chosen = copy(self).set_params(**{name: value for name, value in given.items() if value is not None})
        own = [] if chosen.callbacks is None else chosen.callbacks
        check_callbacks(own)
        log = Log(own, verbose)
        log.of_a_fit()  # refuses what is no number of rounds
        other_reason = "init_model" if init_model is not None else "pairs" if pairs.are_there else ""
        shape = FitShape(bool(sets), other_reason, bool(own), rows.beside.get("qid") is not None)
        chosen._check_arguments(rows.y, shape, pairs)
        init = as_booster(init_model)
        source = chosen._source(rows)
        return run_or_await(
            client_for(source), lambda: self._take(chosen._fit(source, rows, sets, init, log, pairs, shape))
        )

    def _fit(
        self, source: Source, given: RowSet, sets: Sequence[RowSet], init: Booster | None, log: Log, pairs: Pairs,
        shape: FitShape,
    ) -> Self:  # fmt: skip
        """Find the classes, quantize, train."""
        if pairs.are_there:
            found = computed_values(client_for(source) or current_client(), pairs)
            self.objective = objective_of_pairs(self.objective, *found)
        given_sets = [self._source(one, source.schema) for one in sets]  # refuses before any row is read
        source, labels = self._labelled(source, init)
        if init is not None:  # so that positions in parameters are those of its columns
            source = of_model(init, source)
        params = self._params_for(labels)
        shape = replace(shape, n_classes=0 if labels is None else len(labels.classes))
        objective = check_params(params, source.schema, rounds_of(self, shape, LEAST_ROWS).most, log.callbacks)
        client = client_for(source)
        check_n_gpus(params.n_gpus, client is not None)
        if client is None:  # on a cluster the workers know
            check_device(params.device)
        metrics = evaluated_metrics(params, objective) if sets else []
        check_queries(source, given_sets, objective, metrics)
        check_drawn_queries(params, source.has("qid"))
        given_sets = [own if labels is None else own.with_classes(labels.classes) for own in given_sets]
        check_labels(given_sets, objective)
        evals_result: EvalsResult = {}
        with ExitStack() as opened:
            dtrain = opened.enter_context(self._quantized(source, params, objective, init))
            evals = []
            for i, (one, own) in enumerate(zip(sets, given_sets, strict=True)):
                data = dtrain
                if not one.same_as(given) or source.spec.class_weights is not None:
                    data = opened.enter_context(self._quantized(own, params, objective, init, dtrain))
                evals.append((data, f"validation_{i}"))
            n_rows = dtrain.info.stats.positive_weight_rows
            rounds = rounds_of(self, shape, n_rows)
            facts = self._facts(params, shape, rounds, n_rows, dtrain.info, init)
            params = replace(params, **self.unset_values(facts))
            if rounds.holding_out is None:
                booster = train(
                    params, dtrain, rounds.most, evals=evals, early_stopping_rounds=rounds.patience,
                    evals_result=evals_result, init_model=init, callbacks=log.of_a_fit(labels),
                )  # fmt: skip
            else:
                def quantized(crosses: tuple[Cross, ...]) -> QuantizedDataset:
                    made = self._quantized(source, params, objective, init, crosses=crosses, beside=dtrain)
                    return opened.enter_context(made)

                candidates, further = [Candidate(params, dtrain)], None
                if rounds.holding_out.n_members > 1 and not log.callbacks:
                    candidates, further = choices(self, params, dtrain, facts, quantized)
                booster, evals_result = train_members(
                    candidates, rounds.most, rounds.holding_out, lambda _: log.of_a_fit(labels), further
                )
        self._keep(booster, labels)
        if not all(isinstance(name, str) for name in source.spec.columns or ()):
            self.__dict__.pop("feature_names_in_", None)  # scikit-learn's tools take names for all columns being texts
        self.evals_result_ = evals_result
        return self

    def _facts(
        self, params: TrainParams, shape: FitShape, rounds: Rounds, n_rows: int,
        info: DatasetInfo | None = None, init: Booster | None = None,
    ) -> Facts:  # fmt: skip
        """Return what parameters that are not given go by."""
        if init is not None and init.trees:
            shares_trees = init.has_vectors
        else:
            wanted = rounds.stops and shape.n_classes > 2 and PRESETS[self.preset].stops
            shares_trees = wanted and goes_with_shared_trees(params, info)
        encoder = None if info is None else info.schema.encoder
        return Facts(
            rounds.most, n_rows, shape.n_classes, rounds.stops, rounds.holding_out is not None,
            params.grow_policy == "depthwise", shares_trees, 0 if info is None else info.cuts.n_features,
            encoder is not None and encoder.has_statistics, info is not None and is_wide(info), shape.has_queries,
        )  # fmt: skip

    def _take(self, fitted: Self) -> Self:
        """Become what a copy of this estimator has learned; parameters stay as they are."""
        parameters = parameter_names(type(self))
        for name in [name for name in vars(self) if name not in parameters]:
            delattr(self, name)
        self.__dict__.update({name: value for name, value in vars(fitted).items() if name not in parameters})
        return self

    def _source(self, rows: RowSet, schema: FeatureSchema | None = None) -> Source:
        source = make_source(
            features_of(rows.X, type(self).__name__, None if schema is None else schema.columns.n_features),
            labels_of(rows.y), missing=self.missing, schema=schema,
            categorical=as_tuple(self.categorical_features), **rows.beside,
        )  # fmt: skip
        return computed_by(client_for(source), source)

    def _quantized(
        self, source: Source, params: TrainParams, objective: Objective, init: Booster | None,
        reference: QuantizedDataset | None = None, crosses: tuple[Cross, ...] = (),
        beside: QuantizedDataset | None = None,
    ) -> QuantizedDataset:  # fmt: skip
        limit, budget = params.host_memory_limit, None
        device_limit = None if params.device_memory_limit is None else int(params.device_memory_limit)
        if client_for(source) is None:  # what the workers of a cluster have is not known here
            budget = budget_of(params.device, device_limit)
            budget = None if budget is None else budget * gpus_meant(params.n_gpus)
        options = BuildOptions(
            params.max_bin, chunk_rows=params.chunk_rows, device_budget_bytes=budget,
            categories=CategoryOptions(
                params.random_state, complexity=check_complexity(self.max_ctr_complexity), encodings=params.encodings,
                may_have_sets=may_have_sets(params, objective), has_time=bool(params.has_time), crosses=crosses,
            ),
        )  # fmt: skip
        return QuantizedDataset.from_source(
            source, options, reference=reference, beside=beside, init_model=init,
            n_jobs=params.n_jobs, host_memory_limit=None if limit is None else int(limit),
            spill_directory=params.spill_directory, check=lambda info: objective.check_labels(info.stats),
            device=params.device, device_memory_limit=device_limit, lends=params.n_gpus == 1,
        )  # fmt: skip

    def _keep(self, booster: Booster, labels: ClassLabels | None) -> None:
        """What a fit leaves behind; set at its very end, so that a fit that fails changes nothing."""
        self._booster = booster if labels is None else labels.stored_in(booster)
        columns = booster.schema.columns
        self.n_features_in_ = columns.n_features
        self.__dict__.pop("feature_names_in_", None)
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)

    def _predict(self, X: object, output: Output, iteration_range: tuple[int, int] | None, base_margin: object) -> Any:
        rows = features_of(X, type(self).__name__, self.booster_.schema.columns.n_features)
        return predict(self._request(output, iteration_range), rows, base_margin, self.missing)

    def _request(self, output: Output, iteration_range: tuple[int, int] | None = None) -> PredictRequest:
        return make_request(self.booster_, output, iteration_range, self.n_threads or None, Place(self.device))

    def _best(self, value: T | None) -> T:
        if value is None:
            raise AttributeError("best_iteration and best_score exist only after a fit that an eval_set stopped")
        return value


def client_for(source: Source) -> Any:
    """The current client where rows lie in a Dask collection, else None."""
    return current_client() if source.is_dask else None


def rows_known(X: object, shape: Mapping[str, Any]) -> int:
    """Return how many rows a plan is for, as far as that is known without reading any, else a million."""
    if "n_rows" in shape:
        return int(shape["n_rows"])
    n_rows = X.n_rows if isinstance(X, QuantizedDataset) else (getattr(X, "shape", None) or [None])[0]
    return int(n_rows) if isinstance(n_rows, int | np.integer) else MEMBERS_ROWS
