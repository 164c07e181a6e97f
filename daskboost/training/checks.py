"""What `train` refuses before any work: rounds, data sets and models that do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskboost.errors import DataError, ParameterError
from daskboost.model.booster import Booster
from daskboost.objectives.base import Objective
from daskboost.params import check_count, shown
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.dataset_checks import check_same_features


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
        if not data.info.has_label:
            raise DataError(f"{name} has no labels; make it with y")
        objective.check_labels(data.info.stats)
        own, cuts = data.cuts, dtrain.cuts
        alike = np.array_equal(own.values, cuts.values) and np.array_equal(own.offsets, cuts.offsets)
        if own is not cuts and not alike:
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
