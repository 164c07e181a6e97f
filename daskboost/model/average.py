"""One model that predicts the mean of several models' margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

import numpy as np

from daskboost.data.categories.encoder import Encoder
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.errors import ParameterError
from daskboost.model.booster import Booster
from daskboost.model.leaf_scale import joined
from daskboost.tree.table import TreeTable


def average(models: Sequence[Booster]) -> Booster:
    """Return the model whose margin is the mean of those of some models: all their trees, with smaller leaves.

    Its iteration i has the trees that the models grew in theirs, so that its first iterations are the mean of the
    models' first ones. Objective, parameters and attributes are those of the first model. Models that were trained on
    other numbers of rows have target statistics of other shares of the rows; the average has those of the middle share.

    Raises
    ------
    ParameterError
        Models of other objectives, columns, base scores or kinds of leaves than the first one's.
    """
    first = models[0]
    for model in models:
        if _kind(model) != _kind(first):
            raise ParameterError(f"{model!r} and {first!r} cannot be averaged: objective, columns, base score and "
                                 "kind of leaves must be the same in all models")  # fmt: skip
    scales = [model.leaf_scale for model in models if model.leaf_scale is not None]
    if not all(scale.agrees(other) for at, scale in enumerate(scales) for other in scales[:at]):
        raise ParameterError(f"{first!r} and others cannot be averaged: their leaves are linear over different bins; "
                             "train all models on data with the same cut points")  # fmt: skip
    trees: list[TreeTable] = []
    outputs: list[int] = []
    pointers = [0]
    for iteration in range(max(model.n_iterations for model in models)):
        for model in (own for own in models if iteration < own.n_iterations):
            grown = slice(*model.iteration_indptr[iteration : iteration + 2])
            trees += [_part_of(tree, np.float32(len(models))) for tree in model.trees[grown]]
            outputs += model.tree_outputs[grown]
        pointers.append(len(trees))
    return replace(
        first, schema=_schema(models), trees=tuple(trees), tree_outputs=tuple(outputs),
        iteration_indptr=tuple(pointers), leaf_scale=joined([model.leaf_scale for model in models]),
    )  # fmt: skip


def _schema(models: Sequence[Booster]) -> FeatureSchema:
    """Return the schema of the model whose target statistics have the middle one of all models' shares of the rows;
    that of the first model where features are no statistics."""
    schemas = [model.schema for model in models]
    shares = [own.encoder.share if isinstance(own.encoder, Encoder) else 1.0 for own in schemas]
    return schemas[shares.index(median_low(shares))]


def _part_of(tree: TreeTable, n_models: np.float32) -> TreeTable:
    """Return a tree that adds less to margins, as one of so many models."""
    return replace(tree, value=tree.value / n_models, models=tree.models.over(n_models))


def _kind(model: Booster) -> tuple[object, ...]:
    widths = {tree.leaf_width for tree in model.trees}
    return model.objective.name, model.n_outputs, model.base_score, model.schema.columns, max(widths, default=1)
