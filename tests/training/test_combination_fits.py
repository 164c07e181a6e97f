"""Fits with combinations of categorical columns: what they learn, what limits them, and where combinations show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import daskboost as db
from daskboost import Booster, DaskBoostClassifier, QuantizedDataset, train
from daskboost.data.categories import combinations as module
from daskboost.errors import DatasetFormatError, ModelFormatError, ParameterError

PARAMS = {"objective": "binary:logistic", "max_depth": 3}
COLUMNS = ("shop", "item", "day")
"""Categorical columns, of which a test has two or all."""
N = 6000


@pytest.fixture(scope="module", autouse=True)
def combinations_of_few() -> Any:
    """Let columns of 31 levels have combinations, so that few rows do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_LEVELS", 30)
        yield


@pytest.fixture(scope="module", params=[2, 3])
def complexity(request: pytest.FixtureRequest) -> int:
    """How many columns labels depend on."""
    return int(request.param)


@pytest.fixture(scope="module")
def rows(complexity: int) -> tuple[pd.DataFrame, pd.Series]:
    """Labels that depend on all columns at once and on none alone, each level of them together of about ten rows."""
    rng = np.random.default_rng(3)
    n = 2000 if complexity == 2 else N
    first, step, other = rng.integers(0, 40, n), rng.integers(0, 4, n), rng.integers(0, 4, n)
    table = rng.integers(0, 2, (40, 4, 4))
    y = table[first, step, other if complexity == 3 else 0] ^ (rng.random(n) < 0.1)
    shop = pd.Series(first).map(lambda each: f"shop {each}")
    x = pd.DataFrame({"shop": shop, "size": rng.random(n), "item": ((first + step) % 40).astype(str),
                      "day": ((first + other) % 40).astype(str)})  # fmt: skip
    return x[["shop", "size", *COLUMNS[1:complexity]]], pd.Series(y)


@pytest.fixture(scope="module")
def model(rows: Any, complexity: int) -> DaskBoostClassifier:
    return DaskBoostClassifier(n_estimators=10, max_depth=3, max_ctr_complexity=complexity).fit(*rows)


def columns_of_features(booster: Booster) -> list[tuple[str, ...]]:
    """Return the names of the columns that each feature is made of."""
    return [tuple(name.split(" (")[0].split(", ")) for name in booster.schema.names or ()]


def used_columns(booster: Booster) -> set[tuple[str, ...]]:
    """Return the columns of the features that are split."""
    own = columns_of_features(booster)
    return {own[int(feature)] for tree in booster.trees for feature in tree.feature[~tree.is_leaf]}


def test_what_depends_on_several_columns_is_learned(rows: Any, model: DaskBoostClassifier, complexity: int) -> None:
    half, scores = len(rows[1]) // 2, []
    x, y = rows[0].iloc[half:], rows[1].iloc[half:]
    for most in (complexity - 1, complexity):
        fitted = DaskBoostClassifier(n_estimators=20, max_depth=3, max_ctr_complexity=most)
        fitted.fit(rows[0].iloc[:half], rows[1].iloc[:half])
        scores.append(roc_auc_score(y, fitted.predict_proba(x)[:, 1]))
    assert scores[1] > scores[0] + 0.05
    assert columns_of_features(model.booster_)[-1] == COLUMNS[:complexity]
    assert COLUMNS[:complexity] in used_columns(model.booster_)


def test_columns_have_equal_parts_of_their_combinations(rows: Any, model: DaskBoostClassifier, complexity: int) -> None:
    booster, x = model.booster_, rows[0]
    splits = [tree.feature[~tree.is_leaf] for tree in booster.trees]
    counts = np.bincount(np.concatenate(splits), minlength=booster.n_features)
    weights, columns = booster.get_score("weight"), columns_of_features(booster)
    for name in COLUMNS[:complexity]:
        wanted = sum(n / len(own) for n, own in zip(counts, columns, strict=True) if name in own)
        assert weights[name] == pytest.approx(wanted, rel=1e-6)
    assert counts[-1] > 0 and sum(weights.values()) == pytest.approx(counts.sum())
    assert model.feature_importances_.shape == (complexity + 1,) and model.feature_importances_[1] < 0.1
    found = booster.predict(x, output="contributions")
    assert found.shape == (len(x), complexity + 2)
    np.testing.assert_allclose(found.sum(axis=1), booster.predict(x, output="margin"), atol=1e-4)
    assert f"{', '.join(COLUMNS[:complexity])} (target)" in set(booster.trees_to_dataframe()["Feature"])


def test_a_combination_is_left_out_with_any_of_its_columns(rows: Any, complexity: int) -> None:
    for name in COLUMNS[:complexity]:
        fitted = DaskBoostClassifier(n_estimators=5, max_ctr_complexity=complexity, ignored_features=[name])
        used = used_columns(fitted.fit(*rows).booster_)
        assert used and not any(name in own for own in used)
    with QuantizedDataset(*rows, max_ctr_complexity=complexity) as data:
        found = db.evaluate_features(PARAMS, data, ["shop", "size"], num_boost_round=5, folds=2)
        assert found[0].mean > 0.02 > abs(found[1].mean)


def test_a_combination_needs_all_columns_in_a_group(rows: Any, complexity: int) -> None:
    names = COLUMNS[:complexity]
    fixed: dict[str, Any] = {"n_estimators": 5, "max_depth": 3, "max_ctr_complexity": complexity}
    together = DaskBoostClassifier(interaction_constraints=[[*names], ["size"]], **fixed).fit(*rows).booster_
    assert names in used_columns(together)
    of_features = columns_of_features(together)
    for tree in together.trees:
        used = {of_features[int(feature)] for feature in tree.feature[~tree.is_leaf]}
        assert used == {("size",)} or ("size",) not in used
    for groups in ([[*names[:-1], "size"], [names[-1]]], [[*names[:-1], "size"]]):
        apart = DaskBoostClassifier(interaction_constraints=groups, **fixed).fit(*rows).booster_
        used = used_columns(apart)
        assert not any(len(own) > 1 and names[-1] in own for own in used)
        assert names[:-1] in used, "what has a group is split"
    with pytest.raises(ParameterError, match="binds 'shop', whose categories have no order"):
        DaskBoostClassifier(monotone_constraints={"shop": 1}, **fixed).fit(*rows)
    rising = DaskBoostClassifier(monotone_constraints={"size": 1}, **fixed).fit(*rows)
    assert names in used_columns(rising.booster_)


@pytest.mark.parametrize("suffix", [".json", ".ubj"])
def test_a_model_file_has_combinations(
    rows: Any, model: DaskBoostClassifier, complexity: int, tmp_path: Path, suffix: str
) -> None:
    x = rows[0].assign(item=rows[0]["item"].where(rows[0].index % 3 > 0))  # levels that training did not see
    model.save_model(tmp_path / f"model{suffix}")
    again = DaskBoostClassifier().load_model(tmp_path / f"model{suffix}")
    assert again.booster_ == model.booster_
    np.testing.assert_array_equal(again.predict_proba(x[x.columns[::-1]]), model.predict_proba(x))
    longer = DaskBoostClassifier(n_estimators=2, max_depth=3, max_ctr_complexity=complexity)
    longer.fit(*rows, init_model=again)
    np.testing.assert_array_equal(longer.booster_[:10].predict(x), model.booster_.predict(x))
    assert longer.booster_.n_iterations == 12


def versions(booster: Booster) -> tuple[Any, dict[str, Any]]:
    document = json.loads(booster.to_bytes("json"))
    own: dict[str, Any] = json.loads(document["learner"]["attributes"]["daskboost"])
    return document, own


def test_files_have_the_least_version_that_reads_them(
    rows: Any, model: DaskBoostClassifier, complexity: int, tmp_path: Path
) -> None:
    alone = DaskBoostClassifier(n_estimators=2, max_ctr_complexity=1).fit(*rows).booster_
    assert versions(alone)[1]["version"] == 2 and "pairs" not in versions(alone)[1]["encoder"]
    assert Booster.from_bytes(alone.to_bytes("json")) == alone
    document, own = versions(model.booster_)
    encoder = own["encoder"]
    assert own["version"] == 3 and encoder["version"] == 5
    n_singles = 2 * complexity + 1
    for changed, match in (
        ({"version": 5}, "version 5, newer than 4"),
        ({"encoder": encoder | {"pairs": []}}, f"makes {n_singles} features, not the {model.booster_.n_features}"),
        ({"encoder": encoder | {"version": 6}}, "encoder has version 6, this daskboost reads up to 5"),
        ({"encoder": encoder | {"share": 0.0}}, "the share of rows that count is none"),
    ):
        document["learner"]["attributes"]["daskboost"] = json.dumps({**own, **changed})
        with pytest.raises(ModelFormatError, match=match):
            Booster.from_bytes(json.dumps(document).encode())
    for most, version in ((1, 3), (complexity, 4)):
        path = tmp_path / f"data {most}"
        with QuantizedDataset(*rows, max_ctr_complexity=most) as data:
            expected = train(PARAMS, data, 3)
            data.save(path)
        assert json.loads((path / "manifest.json").read_bytes())["version"] == version
        with QuantizedDataset.open(path) as opened:
            assert train(PARAMS, opened, 3) == expected


def test_a_damaged_combination_in_a_saved_data_set_is_named(rows: Any, complexity: int, tmp_path: Path) -> None:
    import hashlib

    with QuantizedDataset(*rows, max_ctr_complexity=complexity) as data:
        data.save(tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["schema"]["encoder"]["pairs"][-1]["keys"].reverse()
    text = json.dumps(manifest).encode() + b"\n"
    path.write_bytes(text)
    (tmp_path / "data" / "manifest.blake2b").write_text(hashlib.blake2b(text, digest_size=32).hexdigest() + "\n")
    match = r"schema\.encoder is damaged: .*keys of a combination do not increase"
    with pytest.raises(DatasetFormatError, match=match):
        QuantizedDataset.open(tmp_path / "data")


def test_other_combinations_are_refused_before_any_work(rows: Any) -> None:
    match = r"max_ctr_complexity=5 is not possible: 1 makes features of single .* 2 to 4 of combinations"
    with pytest.raises(ParameterError, match=match):
        QuantizedDataset(*rows, max_ctr_complexity=5)
    with pytest.raises(ParameterError, match=match):
        DaskBoostClassifier(max_ctr_complexity=5).fit(*rows)
    with pytest.raises(ParameterError, match=r"max_ctr_complexity.*it is a parameter of the estimators and of"):
        train({**PARAMS, "max_ctr_complexity": 2}, QuantizedDataset(*rows), 1)
