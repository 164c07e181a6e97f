"""Trees as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Bool

if TYPE_CHECKING:
    import pandas as pd

    from daskboost.model.booster import Booster


def trees_to_dataframe(booster: Booster) -> pd.DataFrame:
    """One row per node: XGBoost's ``Booster.trees_to_dataframe``.

    Returns
    -------
    pandas.DataFrame
        ``Tree, Node, ID`` ("tree-node"), ``Feature`` (a name, or "Leaf"), ``Split`` (values below it go to ``Yes``,
        others to ``No``, missing ones to ``Missing``), ``Gain`` (in a leaf its value), ``Cover`` (sum of hessians),
        ``Category`` (empty: splits are numeric). Where leaves are vectors, which XGBoost does not tabulate, ``Gain`` is
        NaN in a leaf and its values stand in further columns, ``Value 0`` to ``Value {outputs - 1}``.
    """
    import pandas as pd

    n_nodes = np.array([tree.n_nodes for tree in booster.trees], np.int64)
    index = np.repeat(np.arange(len(n_nodes)), n_nodes)
    nodes = np.arange(len(index)) - np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    leaf: Bool = _all(booster, "is_leaf", np.bool_)
    left, right = _all(booster, "left_child", np.int32), _all(booster, "right_child", np.int32)
    labels = np.array([*map(booster.schema.label, range(booster.n_features)), "Leaf"], object)
    trees = np.char.add(index.astype(str), "-")
    values = _all(booster, "value", np.float32)
    frame = pd.DataFrame(
        {
            "Tree": index,
            "Node": nodes,
            "ID": _ids(trees, nodes, np.zeros_like(leaf)),
            "Feature": labels[np.where(leaf, booster.n_features, _all(booster, "feature", np.int32))],
            "Split": np.where(leaf, np.nan, _all(booster, "threshold", np.float32)),
            "Yes": _ids(trees, left, leaf),
            "No": _ids(trees, right, leaf),
            "Missing": _ids(trees, np.where(_all(booster, "default_left", np.bool_), left, right), leaf),
            "Gain": np.where(leaf, np.nan if booster.has_vectors else values, _all(booster, "gain", np.float32)),
            "Cover": _all(booster, "cover", np.float32),
            "Category": np.nan,
        }
    )
    for output in range(booster.n_outputs if booster.has_vectors else 0):
        frame[f"Value {output}"] = np.where(leaf, values[:, output], np.float32(np.nan))
    return frame


def _all(booster: Booster, field: str, dtype: type) -> npt.NDArray[Any]:
    """A field of the nodes of all trees."""
    found = [getattr(tree, field) for tree in booster.trees]
    return np.concatenate(found) if found else np.empty(0, dtype)


def _ids(trees: npt.NDArray[Any], nodes: npt.NDArray[Any], absent: Bool) -> npt.NDArray[Any]:
    """Texts "tree-node", NaN where there is none."""
    return np.where(absent, np.nan, np.char.add(trees, nodes.astype(str)).astype(object))
