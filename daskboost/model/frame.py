"""Trees as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Bool, Int32
from daskboost.tree.table import TreeTable

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
        ``Category`` (empty: splits are numeric).
    """
    import pandas as pd

    columns = ["Tree", "Node", "ID", "Feature", "Split", "Yes", "No", "Missing", "Gain", "Cover", "Category"]
    parts = [_tree(booster, i, tree) for i, tree in enumerate(booster.trees)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _tree(booster: Booster, index: int, tree: TreeTable) -> pd.DataFrame:
    import pandas as pd

    leaf = tree.is_leaf
    nodes = np.arange(tree.n_nodes)
    names = [booster.schema.label(int(feature)) for feature in tree.feature]
    return pd.DataFrame(
        {
            "Tree": index,
            "Node": nodes,
            "ID": [f"{index}-{node}" for node in nodes],
            "Feature": ["Leaf" if is_leaf else name for name, is_leaf in zip(names, leaf, strict=True)],
            "Split": np.where(leaf, np.nan, tree.threshold),
            "Yes": _ids(index, tree.left_child, leaf),
            "No": _ids(index, tree.right_child, leaf),
            "Missing": _ids(index, np.where(tree.default_left, tree.left_child, tree.right_child), leaf),
            "Gain": np.where(leaf, tree.value, tree.gain),
            "Cover": tree.cover,
            "Category": np.nan,
        }
    )


def _ids(index: int, nodes: Int32, leaf: Bool) -> list[str | float]:
    return [np.nan if is_leaf else f"{index}-{node}" for node, is_leaf in zip(nodes.tolist(), leaf, strict=True)]
