"""Importance, the table of nodes, SHAP values and plots."""

from __future__ import annotations

import builtins
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import graphviz
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from model.random_models import OBJECTIVES, random_booster, random_rows
from scipy.sparse import csr_matrix

from daskboost import to_graphviz
from daskboost.data.input.row_batch import FeatureSchema
from daskboost.errors import MissingDependencyError, ModelFormatError, ParameterError
from daskboost.model import plotting
from daskboost.model.booster import Booster
from daskboost.model.explain import ImportanceType, importance
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import Poisson, SquaredError
from daskboost.tree.table import TreeTable


def exported(booster: Booster) -> xgb.Booster:
    return xgb.Booster(model_file=bytearray(booster.to_bytes()))


@pytest.mark.parametrize("kind", get_args(ImportanceType))
@pytest.mark.parametrize("names", [False, True])
def test_importance_is_xgboosts(rng: np.random.Generator, kind: ImportanceType, names: bool) -> None:
    booster = random_booster(rng, SoftProb(3), n_features=40, names=names)
    expected = exported(booster).get_score(importance_type=kind)
    assert booster.get_score(kind) == pytest.approx(expected, rel=1e-5)
    assert 0 < len(expected) < 41
    values = importance(booster, kind)
    assert values.shape == (40,)
    assert (
        values[booster.trees[0].feature[0]]
        == booster.get_score(kind)[booster.schema.label(booster.trees[0].feature[0])]
    )


def test_unknown_importance(rng: np.random.Generator) -> None:
    with pytest.raises(ParameterError, match="importance_type='split' is unknown; give one of 'weight', 'gain'"):
        random_booster(rng, SquaredError()).get_score("split")  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [False, True])
def test_table_is_xgboosts(rng: np.random.Generator, names: bool) -> None:
    booster = random_booster(rng, SoftProb(3), names=names)
    found, expected = booster.trees_to_dataframe(), exported(booster).trees_to_dataframe()
    assert list(found.columns) == list(expected.columns)
    texts = ["Tree", "Node", "ID", "Feature", "Yes", "No", "Missing"]
    pd.testing.assert_frame_equal(found[texts], expected[texts], check_dtype=False)
    numbers = ["Split", "Gain", "Cover"]
    np.testing.assert_allclose(found[numbers], expected[numbers], rtol=1e-6)
    assert found["Category"].isna().all()


@pytest.fixture
def only_shap(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "xgboost")


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("daskboost.model.explain.find_spec", lambda name: None if name in packages else find(name))


def check_contributions(rng: np.random.Generator, booster: Booster, reference: xgb.Booster) -> None:
    rows = random_rows(rng, 40)
    found = booster.predict(rows, output="contributions")
    expected = reference.predict(xgb.DMatrix(rows), pred_contribs=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=-1), booster.predict(rows, output="margin"), rtol=1e-5, atol=1e-5)
    present = ~np.isnan(rows)
    sparse = csr_matrix((rows[present], np.nonzero(present)), rows.shape)
    np.testing.assert_array_equal(booster.predict(sparse, output="contributions"), found)
    margin = rng.normal(size=(40, booster.n_outputs)).astype(np.float32)
    found = booster.predict(rows, output="contributions", base_margin=margin, iteration_range=(1, 3))
    expected = booster.predict(rows, output="margin", base_margin=margin, iteration_range=(1, 3))
    np.testing.assert_allclose(found.sum(axis=-1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_contributions_through_xgboost(rng: np.random.Generator, objective: Objective) -> None:
    booster = random_booster(rng, objective)
    check_contributions(rng, booster, exported(booster))


# shap colours its plots when it is imported, in a way that matplotlib is about to drop.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_contributions_through_shap(rng: np.random.Generator, objective: Objective, only_shap: None) -> None:
    booster = random_booster(rng, objective)
    check_contributions(rng, booster, exported(booster))


def test_contributions_do_not_depend_on_parameters_of_the_loss(rng: np.random.Generator) -> None:
    """XGBoost refuses this one, which has nothing to do with the trees."""
    booster, rows = random_booster(rng, Poisson(max_delta_step=1e-45)), random_rows(rng, 20)
    plain = replace(booster, objective=Poisson())
    found = booster.predict(rows, output="contributions")
    np.testing.assert_array_equal(found, plain.predict(rows, output="contributions"))


def test_covers_of_no_rows_have_no_contributions(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SquaredError())
    trees = [replace(tree, cover=np.where(np.arange(tree.n_nodes) == 0, np.inf, tree.cover).astype(np.float32))
             for tree in booster.trees]  # fmt: skip
    with pytest.raises(ModelFormatError, match=r"contributions: XGBoost cannot .* covers \(sum_hessian\)"):
        replace(booster, trees=tuple(trees)).predict(random_rows(rng, 20), output="contributions")


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("hidden", ["shap", "xgboost"])
def test_contributions_of_nodes_without_rows(rng: np.random.Generator, hidden: str, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:  # fmt: skip
    """Symmetric trees have such nodes; what lies below them weighs nothing, and rows may go there nevertheless."""
    booster = random_booster(rng, Logistic(), n_splits=30)
    emptied, trimmed = [], []
    for tree in booster.trees:
        cover, below = tree.cover.copy(), [int(tree.left_child[0])]
        while below:
            node = below.pop()
            cover[node] = 0
            if tree.left_child[node] >= 0:
                below += [int(tree.left_child[node]), int(tree.right_child[node])]
        cover[0] = cover[tree.right_child[0]]
        emptied.append(replace(tree, cover=cover))
        trimmed.append(replace(tree, cover=np.where(cover > 0, cover, tree.cover * np.float32(1e-6))))
    rows = random_rows(rng, 60)
    expected = replace(booster, trees=tuple(trimmed)).predict(rows, output="contributions")
    hide(monkeypatch, hidden)
    booster = replace(booster, trees=tuple(emptied))
    found = booster.predict(rows, output="contributions")
    np.testing.assert_allclose(found.sum(axis=-1), booster.predict(rows, output="margin"), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[:, -1], expected[:, -1], rtol=1e-4, atol=1e-4)


def test_contributions_without_either(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "xgboost", "shap")
    with pytest.raises(MissingDependencyError, match="contributions need xgboost or shap; install one of them"):
        random_booster(rng, Logistic()).predict(random_rows(rng, 3), output="contributions")


@pytest.fixture
def pyplot() -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_plot_importance(rng: np.random.Generator, pyplot: Any) -> None:
    booster = random_booster(rng, Logistic(), names=True)
    axes = plotting.plot_importance(booster, "weight", max_num_features=3)
    bars: list[Any] = list(axes.patches)
    scores = sorted(booster.get_score("weight").values())[-3:]
    assert [bar.get_width() for bar in bars] == scores
    assert axes.get_xlabel() == "weight"
    given = pyplot.subplots()[1]
    assert plotting.plot_importance(booster, max_num_features=None, ax=given) is given
    assert len(given.patches) == len(booster.get_score())
    with pytest.raises(ParameterError, match="no splits"):
        plotting.plot_importance(random_booster(rng, Logistic(), n_splits=0))


def test_plot_learning_curve(pyplot: Any) -> None:
    result = {"train": {"auc": [0.6, 0.7], "logloss": [0.5, 0.4]}, "valid": {"logloss": [0.6, 0.55]}}
    axes = plotting.plot_learning_curve(result, best_iteration=1)
    assert axes.get_ylabel() == "logloss"
    assert [line.get_label() for line in axes.lines] == ["train", "valid", "best iteration (1)"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [0.6, 0.55])
    assert len(plotting.plot_learning_curve(result, "auc").lines) == 1
    with pytest.raises(ParameterError, match="metric='rmse' was not evaluated; evals_result has 'auc', 'logloss'"):
        plotting.plot_learning_curve(result, "rmse")
    with pytest.raises(ParameterError, match="evals_result is empty: train with evals="):
        plotting.plot_learning_curve({})
    streamed = {"out_of_core": {"passes": [1.0, 2.0]}}
    assert plotting.plot_learning_curve({**streamed, **result}).get_ylabel() == "logloss"
    assert plotting.plot_learning_curve(streamed, "passes").get_ylabel() == "passes"
    with pytest.raises(ParameterError, match="evals_result is empty: train with evals="):
        plotting.plot_learning_curve(streamed)


def full_tree(depth: int) -> Booster:
    """Return a model of one tree that has all its leaves, with names and numbers of many lengths."""
    n = 2 ** (depth + 1) - 1
    inner = np.arange(n) < 2**depth - 1
    numbers = np.arange(n, dtype=np.float32)
    tree = TreeTable(
        left_child=np.where(inner, 2 * np.arange(n) + 1, -1).astype(np.int32),
        right_child=np.where(inner, 2 * np.arange(n) + 2, -1).astype(np.int32),
        feature=np.where(inner, np.arange(n) % 3, 0).astype(np.int32), split_bin=np.full(n, -1, np.int32),
        threshold=np.where(inner, (-1.0) ** numbers * 10.0 ** (numbers % 9 - 4), 0).astype(np.float32),
        default_left=np.arange(n) % 2 == 0, gain=inner.astype(np.float32), cover=numbers + 1,
        value=(np.sin(numbers) / 1000).astype(np.float32),
    )  # fmt: skip
    schema = FeatureSchema(("x", "a rather long name of a feature", "price in $ and other $"), ("float",) * 3)
    return Booster((tree,), (0,), (0, 1), SquaredError(), (0.5,), schema)


def assert_apart(boxes: Sequence[Any]) -> None:
    """No two rectangles overlap by a pixel, to which letters are rounded where the whole tree is a few of them high."""
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            wide = min(one.x1, other.x1) - max(one.x0, other.x0)
            high = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert wide < 1 or high < 1, (one, other)


@pytest.mark.parametrize("depth", [1, 2, 4, 6])
@pytest.mark.parametrize("place", ["own figure", "large axes", "small axes"])
def test_no_box_of_a_drawn_tree_hides_another(depth: int, place: str, pyplot: Any) -> None:
    booster = full_tree(depth)
    given = None
    if place != "own figure":
        size, n_columns = ((40, 30), 1) if place == "large axes" else ((14, 6), 2)
        given = pyplot.subplots(1, n_columns, figsize=size, squeeze=False)[1][0, 0]
    axes = plotting.plot_tree(booster, ax=given)
    axes.figure.canvas.draw()
    n_nodes = booster.trees[0].n_nodes
    patches = [text.get_bbox_patch() for text in axes.texts[:n_nodes]]
    boxes = [patch.get_window_extent() for patch in patches if patch is not None]
    assert len(boxes) == n_nodes
    words = [text.get_window_extent() for text in axes.texts[n_nodes:]]
    assert len(words) == n_nodes - 1
    assert_apart([*boxes, *words])
    room = axes.get_window_extent()
    if (depth, place) == (6, "small axes"):
        return  # letters of one point, the smallest there are, have no room for 64 leaves in axes 490 pixels wide
    assert all(room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1 for box in boxes)
    if place == "own figure":
        assert {text.get_fontsize() for text in axes.texts[:n_nodes]} == {plotting.FONT_SIZE}


def test_the_smallest_tree_is_drawn(pyplot: Any) -> None:
    axes = plotting.plot_tree(full_tree(0))
    axes.figure.canvas.draw()
    assert [text.get_text() for text in axes.texts] == ["leaf\n0"]


def test_plot_tree(rng: np.random.Generator, pyplot: Any) -> None:
    booster = random_booster(rng, Logistic(), names=True)
    axes = plotting.plot_tree(booster, 2)
    tree = booster.trees[2]
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 2 * tree.n_nodes - 1 and len(axes.lines) == tree.n_nodes - 1
    assert texts[0] == f"feature {tree.feature[0]}\n< {tree.threshold[0]:.6g}"
    words = texts[tree.n_nodes :]
    assert set(words) <= {"yes", "no", "yes, missing", "no, missing"}
    n_inner = tree.n_leaves - 1
    assert sum("yes" in word for word in words) == sum("missing" in word for word in words) == n_inner
    for n_splits, wrong, message in (
        (12, 6, "tree=6: the model has trees 0 to 5"),
        (600, 0, "too many for one picture"),
    ):
        with pytest.raises(ParameterError, match=message):
            plotting.plot_tree(random_booster(rng, Logistic(), n_splits=n_splits), wrong)


def test_to_graphviz(rng: np.random.Generator) -> None:
    booster = random_booster(rng, Logistic(), names=True)
    tree = booster.trees[0]
    drawn = to_graphviz(booster)
    assert isinstance(drawn, graphviz.Source)
    source = drawn.source
    assert source.startswith("digraph {") and source.count("->") == tree.n_nodes - 1
    default = tree.left_child[0] if tree.default_left[0] else tree.right_child[0]
    word = "yes" if tree.default_left[0] else "no"
    assert f'0 -> {default} [label="{word}, missing"]' in source
    assert source.count("leaf") == tree.n_leaves


def test_plots_without_their_packages(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(("matplotlib", "graphviz")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    booster = random_booster(rng, Logistic())
    with pytest.raises(
        MissingDependencyError, match=r"plots need matplotlib; install it: pip install 'daskboost\[plot\]'"
    ):
        plotting.plot_importance(booster)
    with pytest.raises(MissingDependencyError, match=r"to_graphviz needs graphviz; install it: pip install 'daskboost"):
        to_graphviz(booster)


def test_reading_a_model_imports_little() -> None:
    """Models are loaded where nothing else is needed: no pandas, Dask, numba or matplotlib."""
    code = (
        "import sys; from daskboost.model.booster import Booster; import daskboost.model.validate; "
        "heavy = {'numba', 'pandas', 'dask', 'distributed', 'matplotlib', 'xgboost', 'scipy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
