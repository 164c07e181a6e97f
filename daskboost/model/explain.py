"""SHAP values, from libraries that do nothing else: xgboost where it is installed, else shap.

Both compute TreeSHAP with the training covers as weights (Lundberg et al., "Consistent Individualized Feature
Attribution for Tree Ensembles", 2018), from our trees as they are exported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from daskboost.data.input.row_batch import Features, FeatureSchema
from daskboost.dtypes import Float32, Float64
from daskboost.errors import MissingDependencyError, ModelFormatError, ParameterError
from daskboost.objectives.regression import SquaredError
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.model.booster import Booster

# Feature importance, summed over the splits of a model as XGBoost does.

ImportanceType = Literal["weight", "gain", "cover", "total_gain", "total_cover"]


def importance(booster: Booster, importance_type: str = "gain") -> Float64:
    """Importance of every column that users give; float64, shape (columns,), 0 where no split uses it.

    Splits of the features that are made of one categorical column count together.

    Parameters
    ----------
    importance_type : {"weight", "gain", "cover", "total_gain", "total_cover"}
        Number of splits; or the loss reduction (gain) or sum of hessians (cover) of the splits, averaged or in total.
        Of symmetric trees, and where splits are scored by weights, single gains may be below 0.

    Raises
    ------
    ParameterError
        Another type.
    """
    if importance_type not in get_args(ImportanceType):
        valid = ", ".join(map(repr, get_args(ImportanceType)))
        raise ParameterError(f"importance_type={importance_type!r} is unknown; give one of {valid}")
    counts = np.zeros(booster.n_features, np.int64)
    totals = np.zeros(booster.n_features, np.float64)
    for tree in booster.trees:
        inner = ~tree.is_leaf
        features = tree.feature[inner]
        counts += np.bincount(features, minlength=booster.n_features)
        if importance_type != "weight":
            statistic = tree.gain if importance_type.endswith("gain") else tree.cover
            totals += np.bincount(features, statistic[inner].astype(np.float64), booster.n_features)
    counts, totals = booster.schema.by_column(counts), booster.schema.by_column(totals)
    if importance_type == "weight":
        return counts.astype(np.float64)
    if importance_type.startswith("total_"):
        return totals
    return np.divide(totals, counts, out=np.zeros_like(totals), where=counts > 0)


EMPTY_SHARE = 2.0**-40
"""Share of a tree's cover that a leaf without any gets: too little to show, while TreeSHAP can divide by it."""


def contributions(booster: Booster, rows: Features, start: Float32, trees: tuple[int, int]) -> Float32:
    """How much each feature moves each margin.

    Parameters
    ----------
    start : float32 array, shape (rows, outputs)
        Margins before the first tree; they belong to the bias.
    trees : tuple of int
        First tree and the one after the last; whole iterations.

    Returns
    -------
    float32 array, shape (rows, outputs, columns + 1)
        Of the columns that users give: those of the features that are made of one add up. The last is the bias. The sum
        over the last axis is the margin, up to rounding.

    Raises
    ------
    MissingDependencyError
        Neither xgboost nor shap is installed, or for sets of categories not xgboost.
    ModelFormatError
        Covers that a file brought are those of no rows, and XGBoost refuses to divide by them.
    ParameterError
        Leaves are linear.
    """
    if booster.has_models:
        raise ParameterError(
            "output='contributions' is of constant leaves, and the model's are linear: explain a model that is trained "
            "without linear_leaves, or sample predictions, as shap.explainers.Permutation does"
        )
    first, stop = (booster.iteration_indptr.index(tree) for tree in trees)
    part = booster if (first, stop) == (0, booster.n_iterations) else booster[first:stop]
    part = replace(part, trees=tuple(map(_covered, part.trees)))
    values = _library(part)(part, rows)
    values[:, :, -1] += start.astype(np.float64)
    if booster.schema.encoder is not None:
        values = np.concatenate([booster.schema.by_column(values[:, :, :-1]), values[:, :, -1:]], axis=2)
    return values.astype(np.float32)


def _library(booster: Booster) -> Callable[[Booster, Features], Float64]:
    """What computes a model's contributions: of the libraries that can, the first that is installed.

    Shap has none of splits by sets of categories.
    """
    able = {"xgboost": _with_xgboost, "shap": _with_shap}
    model = "contributions"
    if any(tree.sets for tree in booster.trees):
        model += " of splits by sets of categories"
        able.pop("shap")
    installed = [compute for name, compute in able.items() if find_spec(name) is not None]
    if not installed:
        remedy = "install it" if len(able) == 1 else "install one of them"
        raise MissingDependencyError(f"{model} need {' or '.join(able)}; {remedy}: pip install {next(iter(able))}")
    return installed[0]


def _of_numbers(booster: Booster) -> Booster:
    """Return the same model with a tree for each value of a leaf: XGBoost has no contributions of leaves of vectors."""
    trees = [replace(tree, value=value) for tree in booster.trees for value in tree.values.T]
    width = len(trees) // max(len(booster.trees), 1)
    return replace(
        booster,
        trees=tuple(trees),
        tree_outputs=tuple(first + k for first in booster.tree_outputs for k in range(width)),
        iteration_indptr=tuple(pointer * width for pointer in booster.iteration_indptr),
    )


def _covered(tree: TreeTable) -> TreeTable:
    """The tree with some cover in all nodes: symmetric trees split nodes without training rows as well, and hessians of
    settled rows may sum to 0."""
    empty = tree.cover <= 0
    if not empty.any():
        return tree
    cover = np.where(empty, EMPTY_SHARE * (tree.cover[0] if tree.cover[0] > 0 else 1.0), tree.cover)
    for node in np.flatnonzero(empty & ~tree.is_leaf)[::-1].tolist():  # children come after their parents
        cover[node] = cover[tree.left_child[node]] + cover[tree.right_child[node]]
    return replace(tree, cover=cover.astype(np.float32))


def _with_xgboost(booster: Booster, rows: Features) -> Float64:
    """Contributions without the base score; shape (rows, outputs, features + 1).

    XGBoost gets the trees alone, as those of a loss without parameters: what it thinks of a loss's parameters that come
    from a file does not matter.
    """
    import xgboost

    trees = replace(
        _of_numbers(booster), objective=SquaredError(), base_score=(0.0,) * booster.n_outputs,
        schema=FeatureSchema(None, ("float",) * booster.n_features), attributes={}, params={},
    )  # fmt: skip
    model = xgboost.Booster(model_file=bytearray(trees.to_bytes()))
    try:
        values = model.predict(xgboost.DMatrix(rows.exported()), pred_contribs=True, strict_shape=True)
    except xgboost.core.XGBoostError as error:  # covers that a file brought need not be those of any rows
        raise ModelFormatError(
            f"contributions: XGBoost cannot compute them from the covers (sum_hessian) of the model's trees: "
            f"{str(error).splitlines()[0]}; save the model again as it was trained"
        ) from error
    return np.asarray(values, np.float64)


def _with_shap(booster: Booster, rows: Features) -> Float64:
    """Contributions without the base score; shape (rows, outputs, features + 1)."""
    import shap

    pairs = zip(booster.trees, booster.tree_outputs, strict=True)
    trees = [_shap_tree(tree, k, booster.n_outputs) for tree, k in pairs]
    explainer = shap.TreeExplainer({"trees": trees, "input_dtype": np.float32})
    values = np.empty((rows.n_rows, booster.n_outputs, booster.n_features + 1))
    found = np.asarray(explainer.shap_values(rows.matrix(), check_additivity=False))
    values[:, :, :-1] = found.reshape(rows.n_rows, booster.n_features, booster.n_outputs).transpose(0, 2, 1)
    values[:, :, -1] = explainer.expected_value
    return values


def _shap_tree(tree: TreeTable, output: int, n_outputs: int) -> dict[str, Any]:
    """A tree in shap's own form; it goes left at ``<=``, so thresholds move down to the float before."""
    leaf = tree.is_leaf
    values = np.zeros((tree.n_nodes, n_outputs))
    values[:, tree.outputs(output)] = np.where(leaf[:, None], tree.values, 0)
    return {
        "children_left": tree.left_child,
        "children_right": tree.right_child,
        "children_default": np.where(tree.default_left, tree.left_child, tree.right_child),
        "feature": tree.feature,
        "threshold": np.where(leaf, 0, np.nextafter(tree.threshold, np.float32(-np.inf))).astype(np.float64),
        "value": values,
        "node_sample_weight": tree.cover.astype(np.float64),
    }
