"""Fits whose leaves are linear: margins are predictions, and what does not go with them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies.trees import fit, make_data, quantized

from daskboost import Booster, QuantizedDataset, plan, train, train_many
from daskboost.devices.leaf_models import MOST_ROWS
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ParameterError
from daskboost.estimators import DaskBoostClassifier, DaskBoostRegressor
from daskboost.model.average import average
from daskboost.model.plotting import dot_source
from daskboost.params import TrainParams
from daskboost.training.checks import check_rows_of_leaves

LINEAR = {"linear_leaves": True, "learning_rate": 0.3, "max_depth": 4, "device": "cpu", "n_jobs": 2}
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {}, "lossguide": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    "symmetric": {"grow_policy": "symmetric"}, "drawn": {"out_of_core": "sampled", "subsample": 0.5},
    "some rows": {"subsample": 0.6},
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "memory": {}, "sparse": {"encoding": "csr", "chunk_rows": 1_000},
    "disk": {"chunk_rows": 1_000, "limit": 2_000},
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("growth", GROWTH)
def test_margins_are_predictions(growth: str, place: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Of rows that grow trees, or not, and of rows that are evaluated: to the byte."""
    data, other = make_data(rng, n_rows=5_000, n_values=50), make_data(rng, n_rows=300, n_values=50)
    seen: dict[int, Float32] = {}

    def keep(label: Float32, prediction: Float32) -> float:
        seen[len(label)] = prediction.copy()
        return 0.0

    where = {**PLACES[place], **({"directory": str(tmp_path)} if place == "disk" else {})}
    with quantized(data, **where) as rows, quantized(other, reference=rows) as valid:
        model = train({**LINEAR, **GROWTH[growth]}, rows, 4, evals=[(rows, "train"), (valid, "valid")],
                      custom_metric=keep)  # fmt: skip
    assert all(tree.models for tree in model.trees)
    for each in (data, other):
        np.testing.assert_array_equal(model.predict(each.X), seen[len(each.y)])


def test_they_learn_lines(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (4_000, 3)).astype(np.float32)
    y = (3 * x[:, 0] * (x[:, 1] > 0) + x[:, 1]).astype(np.float32)
    errors = {}
    for linear in (False, True):
        params = {"n_estimators": 30, "max_depth": 3, "learning_rate": 0.3, "linear_leaves": linear, "device": "cpu"}
        found = DaskBoostRegressor(**params).fit(x, y)  # type: ignore[arg-type]
        errors[linear] = float(np.abs(found.predict(x) - y).mean())
    assert errors[True] < 0.5 * errors[False]


def test_penalties_shrink_slopes_to_constant_leaves(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=1_000)
    params = {**LINEAR, "min_child_weight": 20}
    plain = fit(data, {**params, "linear_leaves": False}, 1).trees[0]
    sizes = []
    for penalty in (0.0, 20.0, 1e9):
        tree = fit(data, {**params, "linear_lambda": penalty}, 1).trees[0]
        np.testing.assert_array_equal(tree.gain, plain.gain)
        np.testing.assert_array_equal(tree.cover, plain.cover)
        sizes.append(np.abs(tree.models.slope).max())
    assert sizes[0] > sizes[1] > 1e4 * sizes[2]
    np.testing.assert_allclose(tree.value, plain.value, rtol=1e-5)


def test_files_keep_them(rng: np.random.Generator) -> None:
    data = make_data(rng, "multi:softprob", n_rows=600)
    model = fit(data, {**LINEAR, "objective": "multi:softprob", "num_class": 5}, 2)
    for format in ("ubj", "json"):
        again = Booster.from_bytes(model.to_bytes(format))
        assert again == model and again.to_bytes(format) == model.to_bytes(format)
        np.testing.assert_array_equal(again.predict(data.X), model.predict(data.X))
    part = model[:1]
    np.testing.assert_array_equal(
        part.predict(data.X, output="margin"), model.predict(data.X, output="margin", iteration_range=(0, 1))
    )
    assert Booster.from_bytes(part.to_bytes()) == part


def test_sparse_rows_are_predicted_alike(rng: np.random.Generator) -> None:
    from scipy.sparse import csr_matrix

    data = make_data(rng, n_rows=600)
    model = fit(data, LINEAR, 3)
    present = ~np.isnan(data.X)
    sparse = csr_matrix((data.X[present], np.nonzero(present)), data.X.shape)
    assert sparse.nnz == present.sum()  # zeros are values
    np.testing.assert_array_equal(model.predict(sparse), model.predict(data.X))
    np.testing.assert_array_equal(model.predict(data.X[:7], n_threads=1), model.predict(data.X)[:7])


def test_other_readers_refuse_the_file(rng: np.random.Generator) -> None:
    """They would take leaves for constant."""
    xgboost = pytest.importorskip("xgboost")
    data = make_data(rng)
    model = fit(data, LINEAR, 2)
    with pytest.raises(xgboost.core.XGBoostError, match="linear_leaves"):
        xgboost.Booster(model_file=bytearray(model.to_bytes()))
    with pytest.raises(ParameterError, match=r"output='contributions' is of constant leaves.*without linear_leaves"):
        model.predict(data.X, output="contributions")
    leaves = model.predict(data.X, output="leaf")
    assert leaves.shape == (len(data.y), 2)


def test_nodes_as_a_table(rng: np.random.Generator) -> None:
    model = fit(make_data(rng), LINEAR, 2)
    table = model.trees_to_dataframe()
    assert (table.Slopes.notna() <= (table.Feature == "Leaf")).all() and table.Slopes.notna().any()
    found = table.Slopes.iloc[int(np.flatnonzero(table.Slopes.notna())[0])]
    assert 0 < len(found) <= 5 and set(found) <= {f"f{i}" for i in range(5)} and all(map(np.isfinite, found.values()))
    feature, slope = next(iter(found.items()))
    assert f"{slope:+.3g} {feature}" in dot_source(model, model.trees[0])
    assert "Slopes" not in fit(make_data(rng), {**LINEAR, "linear_leaves": False}, 1).trees_to_dataframe()


@pytest.mark.parametrize("place", PLACES)
def test_a_fit_goes_on(place: str, rng: np.random.Generator, tmp_path: Path) -> None:
    data = make_data(rng, n_rows=5_000)
    where = {**PLACES[place], **({"directory": str(tmp_path)} if place == "disk" else {})}
    with quantized(data, **where) as rows:
        whole, first = train(LINEAR, rows, 4), Booster.from_bytes(train(LINEAR, rows, 2).to_bytes())
        assert train(LINEAR, rows, 2, init_model=first).to_bytes() == whole.to_bytes()
        constant = {**LINEAR, "linear_leaves": False}
        more = train(constant, rows, 1, init_model=first)
        assert [bool(tree.models) for tree in more.trees] == [True, True, False]
        mixed = train(LINEAR, rows, 1, init_model=train(constant, rows, 1))
        assert [bool(tree.models) for tree in mixed.trees] == [False, True]
        assert Booster.from_bytes(more.to_bytes()) == more and Booster.from_bytes(mixed.to_bytes()) == mixed


def test_other_bins_are_refused(rng: np.random.Generator) -> None:
    """Positions are of bins, so that a model has one scale of each feature."""
    data, other = make_data(rng, n_rows=400), make_data(rng, n_rows=400, n_values=40)
    first = fit(data, LINEAR, 2)
    with (
        QuantizedDataset.from_dask(other.X, other.y, init_model=first) as rows,
        pytest.raises(ParameterError, match="init_model are linear over other bins of f0 than dtrain has"),
    ):
        train(LINEAR, rows, 1, init_model=first)
    with QuantizedDataset.from_dask(other.X, other.y, init_model=first) as rows:
        more = train({**LINEAR, "linear_leaves": False}, rows, 1, init_model=first)
    np.testing.assert_array_equal(
        more.predict(data.X, iteration_range=(0, 2)), first.predict(data.X)
    )
    with pytest.raises(ParameterError, match="cannot be averaged: their leaves are linear over different bins"):
        average([first, fit(other, {**LINEAR, "base_score": first.base_score[0]}, 2)])


def test_models_are_averaged(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=500)
    with quantized(data) as rows:
        models = [train({**LINEAR, "random_state": seed, "colsample_bytree": 0.5}, rows, 2) for seed in range(3)]
    found = average(models).predict(data.X)
    np.testing.assert_allclose(found, np.mean([model.predict(data.X) for model in models], axis=0), atol=1e-5)


def test_fits_that_share_passes(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=500)
    with quantized(data) as rows:
        alone = [train({**LINEAR, "max_depth": depth}, rows, 2) for depth in (2, 3)]
        together = train_many([{**LINEAR, "max_depth": depth} for depth in (2, 3)], rows, 2)
    assert [each.booster for each in together] == alone


def test_members_of_estimators_and_several_classes(rng: np.random.Generator) -> None:
    """Classes that would have had trees of all outputs have trees of their own."""
    data = make_data(rng, "multi:softprob", n_rows=900, weighted=False)
    found = DaskBoostClassifier(max_depth=3, linear_leaves=True, device="cpu", n_members=2).fit(data.X, data.y)
    assert found.booster_.has_models and not found.booster_.has_vectors
    assert found.score(data.X, data.y) > 0.5


def test_codes_of_categories_have_no_slopes(rng: np.random.Generator) -> None:
    import pandas as pd

    x = pd.DataFrame({"level": pd.Categorical(rng.integers(0, 30, 800).astype(str)), "number": rng.normal(size=800)})
    y = x.number * 2 + x.level.astype(int) % 7
    params = {**LINEAR, "encodings": "native"}
    with QuantizedDataset.from_dask(x, y.to_numpy(np.float32), encodings="native") as rows:
        model = train(params, rows, 3)
    codes = np.flatnonzero(model.schema.is_code)
    used = np.unique(np.concatenate([tree.models.feature.ravel() for tree in model.trees]))
    assert len(codes) and not np.isin(codes, used).any() and any(tree.sets for tree in model.trees)
    assert Booster.from_bytes(model.to_bytes()) == model


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "quantiles": ({"objective": "reg:absoluteerror"}, "objective 'reg:absoluteerror', whose leaves are quantiles"),
    "steps": ({"max_delta_step": 0.5}, "max_delta_step=0.5 of objective 'reg:squarederror'"),
    "steps of counts": ({"objective": "count:poisson"}, r"max_delta_step=0.7 .*max_delta_step=0 sets no limit"),
    "constraints": ({"monotone_constraints": [1, 0, 0, 0, 0]}, "monotone_constraints, whose limits"),
    "vectors": ({"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"}, "vectors"),
    "certified": ({"out_of_core": "certified"}, "out_of_core='certified', which certifies"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_them(case: str, rng: np.random.Generator) -> None:
    params, reason = REFUSED[case]
    data = make_data(rng, params.get("objective", "reg:squarederror"))
    with pytest.raises(ParameterError, match=f"linear_leaves=True does not go with .*{reason}.*; leave one"):
        fit(data, {**LINEAR, **params})
    with pytest.raises(ParameterError, match="linear_leaves=True does not go with"):
        plan({**LINEAR, **params}, data.X)
    counts = {**LINEAR, "objective": "count:poisson", "max_delta_step": 0}
    assert case != "steps of counts" or fit(data, counts, 1).has_models


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="linear_lambda=3 has no effect without linear_leaves=True"):
        TrainParams.from_mapping({"linear_lambda": 3})
    with pytest.raises(ParameterError, match=r"linear_lambda=-1 must lie in \[0, inf\)"):
        TrainParams.from_mapping({"linear_leaves": True, "linear_lambda": -1})
    with pytest.raises(ParameterError, match="linear_leaves=1 must be True or False"):
        TrainParams.from_mapping({"linear_leaves": 1})
    assert TrainParams.from_mapping({"linear_tree": True}).linear_leaves
    most = TrainParams.from_mapping({"linear_leaves": True})
    check_rows_of_leaves(most, MOST_ROWS)
    with pytest.raises(DataError, match=r"at most 17,4.* rows, whose sums fit 64 bits"):
        check_rows_of_leaves(most, MOST_ROWS + 1)


def test_a_plan_says_what_leaves_are(rng: np.random.Generator) -> None:
    found = plan(LINEAR, make_data(rng).X)
    assert "single leaves are linear models" in str(found.recipe)
