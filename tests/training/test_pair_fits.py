"""Fits with pairs of categorical columns: what they learn, what limits them, and where pairs show."""

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
from daskboost.data.categories import pairs as module
from daskboost.errors import DatasetFormatError, ModelFormatError, ParameterError

PARAMS = {"objective": "binary:logistic", "max_depth": 3}


@pytest.fixture(scope="module", autouse=True)
def pairs_of_few() -> Any:
    """Let columns of 31 levels have pairs, so that few rows do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_LEVELS", 30)
        yield


@pytest.fixture(scope="module")
def rows() -> tuple[pd.DataFrame, pd.Series]:
    """Labels that depend on both columns at once and on neither alone, in pairs of some ten rows."""
    rng = np.random.default_rng(3)
    first, step = rng.integers(0, 40, 2000), rng.integers(0, 4, 2000)
    y = (first * 7 + step * step * 3) % 5 % 2 ^ (rng.random(2000) < 0.1)
    shop = pd.Series(first).map(lambda each: f"shop {each}")
    x = pd.DataFrame({"shop": shop, "size": rng.random(2000), "item": ((first + step) % 40).astype(str)})
    return x, pd.Series(y)


@pytest.fixture(scope="module")
def model(rows: Any) -> DaskBoostClassifier:
    return DaskBoostClassifier(n_estimators=10, max_depth=3).fit(*rows)


def pair_feature(booster: Booster) -> int:
    assert booster.schema.names is not None and booster.schema.names[-1] == "shop, item (target)"
    return booster.n_features - 1


def splits_on(booster: Booster) -> set[int]:
    return {int(feature) for tree in booster.trees for feature in tree.feature[~tree.is_leaf]}


def test_what_depends_on_two_columns_is_learned(rows: Any, model: DaskBoostClassifier) -> None:
    x, y = rows[0].iloc[1000:], rows[1].iloc[1000:]
    scores = []
    for complexity in (1, 2):
        fitted = DaskBoostClassifier(n_estimators=20, max_depth=3, max_ctr_complexity=complexity)
        fitted.fit(rows[0].iloc[:1000], rows[1].iloc[:1000])
        scores.append(roc_auc_score(y, fitted.predict_proba(x)[:, 1]))
    assert scores[1] > scores[0] + 0.05
    assert pair_feature(model.booster_) in splits_on(model.booster_)


def test_both_columns_have_equal_parts_of_their_pair(rows: Any, model: DaskBoostClassifier) -> None:
    booster, x = model.booster_, rows[0]
    splits = [tree.feature[~tree.is_leaf] for tree in booster.trees]
    counts = np.bincount(np.concatenate(splits), minlength=booster.n_features)
    weights = booster.get_score("weight")
    assert weights["shop"] == counts[:2].sum() + counts[-1] / 2
    assert weights["item"] == counts[3:5].sum() + counts[-1] / 2
    assert counts[-1] > 0 and sum(weights.values()) == counts.sum()
    assert model.feature_importances_.shape == (3,) and model.feature_importances_[1] < 0.1
    found = booster.predict(x, output="contributions")
    assert found.shape == (len(x), 4)
    np.testing.assert_allclose(found.sum(axis=1), booster.predict(x, output="margin"), atol=1e-4)
    assert "shop, item (target)" in set(booster.trees_to_dataframe()["Feature"])


def test_a_pair_is_left_out_with_either_column(rows: Any) -> None:
    for name, own in (("shop", {0, 1}), ("item", {3, 4})):
        fitted = DaskBoostClassifier(n_estimators=5, max_depth=3, ignored_features=[name]).fit(*rows)
        used = splits_on(fitted.booster_)
        assert used and not used & own and pair_feature(fitted.booster_) not in used
    with QuantizedDataset(*rows) as data:
        found = db.evaluate_features(PARAMS, data, ["shop", "size"], num_boost_round=5, folds=2)
        assert found[0].mean > 0.02 > abs(found[1].mean)


def test_a_pair_needs_both_columns_in_a_group(rows: Any) -> None:
    together = DaskBoostClassifier(n_estimators=5, max_depth=3, interaction_constraints=[["shop", "item"], ["size"]])
    used = splits_on(together.fit(*rows).booster_)
    assert 5 in used
    for tree in together.booster_.trees:
        features = set(tree.feature[~tree.is_leaf].tolist())
        assert features <= {0, 1, 3, 4, 5} or features <= {2}
    for groups in ([["shop", "size"], ["item"]], [["shop", "size"]]):
        apart = DaskBoostClassifier(n_estimators=5, max_depth=3, interaction_constraints=groups).fit(*rows)
        assert pair_feature(apart.booster_) not in splits_on(apart.booster_)
    with pytest.raises(ParameterError, match="binds 'shop', whose categories have no order"):
        DaskBoostClassifier(monotone_constraints={"shop": 1}).fit(*rows)
    rising = DaskBoostClassifier(n_estimators=5, monotone_constraints={"size": 1}).fit(*rows)
    assert pair_feature(rising.booster_) in splits_on(rising.booster_)


@pytest.mark.parametrize("suffix", [".json", ".ubj"])
def test_a_model_file_has_pairs(rows: Any, model: DaskBoostClassifier, tmp_path: Path, suffix: str) -> None:
    x = rows[0].assign(item=rows[0]["item"].where(rows[0].index % 3 > 0))  # pairs that training did not see
    model.save_model(tmp_path / f"model{suffix}")
    again = DaskBoostClassifier().load_model(tmp_path / f"model{suffix}")
    assert again.booster_ == model.booster_
    np.testing.assert_array_equal(again.predict_proba(x[x.columns[::-1]]), model.predict_proba(x))
    longer = DaskBoostClassifier(n_estimators=2, max_depth=3).fit(*rows, init_model=again)
    np.testing.assert_array_equal(longer.booster_[:10].predict(x), model.booster_.predict(x))
    assert longer.booster_.n_iterations == 12


def versions(booster: Booster) -> tuple[Any, dict[str, Any]]:
    document = json.loads(booster.to_bytes("json"))
    own: dict[str, Any] = json.loads(document["learner"]["attributes"]["daskboost"])
    return document, own


def test_files_without_pairs_have_the_version_of_before(rows: Any, model: DaskBoostClassifier, tmp_path: Path) -> None:
    alone = DaskBoostClassifier(n_estimators=2, max_ctr_complexity=1).fit(*rows).booster_
    assert versions(alone)[1]["version"] == 2 and "pairs" not in versions(alone)[1]["encoder"]
    assert Booster.from_bytes(alone.to_bytes("json")) == alone
    document, own = versions(model.booster_)
    assert own["version"] == 3
    for changed, match in (({"version": 5}, "version 5, newer than 4"), ({"encoder": {**own["encoder"], "pairs": []}},
                                                                         "makes 5 features, not the 6")):  # fmt: skip
        document["learner"]["attributes"]["daskboost"] = json.dumps({**own, **changed})
        with pytest.raises(ModelFormatError, match=match):
            Booster.from_bytes(json.dumps(document).encode())
    for complexity, version in ((1, 3), (2, 4)):
        path = tmp_path / f"data {complexity}"
        with QuantizedDataset(*rows, max_ctr_complexity=complexity) as data:
            expected = train(PARAMS, data, 3)
            data.save(path)
        assert json.loads((path / "manifest.json").read_bytes())["version"] == version
        with QuantizedDataset.open(path) as opened:
            assert train(PARAMS, opened, 3) == expected


def test_a_damaged_pair_in_a_saved_data_set_is_named(rows: Any, tmp_path: Path) -> None:
    import hashlib

    with QuantizedDataset(*rows) as data:
        data.save(tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["schema"]["encoder"]["pairs"][0]["keys"].reverse()
    text = json.dumps(manifest).encode() + b"\n"
    path.write_bytes(text)
    (tmp_path / "data" / "manifest.blake2b").write_text(hashlib.blake2b(text, digest_size=32).hexdigest() + "\n")
    with pytest.raises(DatasetFormatError, match=r"schema\.encoder is damaged: .*keys of a pair do not increase"):
        QuantizedDataset.open(tmp_path / "data")


def test_other_combinations_are_refused_before_any_work(rows: Any) -> None:
    match = r"max_ctr_complexity=4 is not possible: 1 makes features of single .* 2 of pairs"
    with pytest.raises(ParameterError, match=match):
        QuantizedDataset(*rows, max_ctr_complexity=4)
    with pytest.raises(ParameterError, match=match):
        DaskBoostClassifier(max_ctr_complexity=4).fit(*rows)
    with pytest.raises(ParameterError, match=r"max_ctr_complexity.*it is a parameter of the estimators and of"):
        train({**PARAMS, "max_ctr_complexity": 2}, QuantizedDataset(*rows), 1)
