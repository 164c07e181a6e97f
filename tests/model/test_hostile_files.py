"""Model files that are truncated, corrupt, newer or hostile: refused, saying why, in bounded memory and time.

Files damaged at random are in `tests/fuzz`.
"""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from model.random_models import random_booster, random_rows
from strategies.trees import fit, make_data

from daskboost.errors import ModelFormatError
from daskboost.model.booster import Booster
from daskboost.objectives.classification import SoftProb

Document = dict[str, Any]
Edit = Callable[[Document], object]


@cache
def valid(file_format: str) -> bytes:
    rng = np.random.default_rng(7)
    return random_booster(rng, SoftProb(3), n_iterations=2, n_splits=4, names=True).to_bytes(file_format)  # type: ignore[arg-type]


def document() -> Document:
    found: Document = json.loads(valid("json"))
    return found


def refuse(data: bytes | Document, match: str) -> None:
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    with pytest.raises(ModelFormatError, match=match) as caught:
        Booster.from_bytes(data)
    assert len(str(caught.value)) < 1000


def param(doc: Document) -> Document:
    found: Document = doc["learner"]["learner_model_param"]
    return found


def model(doc: Document) -> Document:
    found: Document = doc["learner"]["gradient_booster"]["model"]
    return found


def tree(doc: Document) -> Document:
    found: Document = model(doc)["trees"][1]
    return found


def put(place: Callable[[Document], Document], key: str, value: object) -> Edit:
    return lambda doc: place(doc).__setitem__(key, value)


def put_at(key: str, index: int, value: object) -> Edit:
    return lambda doc: tree(doc)[key].__setitem__(index, value)


def cycle(doc: Document) -> None:
    """Two nodes that are each other's children, cut off from the root."""
    left, right = tree(doc)["left_children"], tree(doc)["right_children"]
    last = len(left) - 1
    parent = next(i for i in range(len(left)) if last in (left[i], right[i]))
    left[parent] = right[parent] = -1
    left[last], right[last] = last - 1, last
    left[last - 1] = right[last - 1] = -1


def without_pointers(doc: Document) -> None:
    del model(doc)["iteration_indptr"]
    model(doc)["gbtree_model_param"]["num_parallel_tree"] = "4"


def dart_of(*weights: float) -> Edit:
    """Make a DART model of the document's trees."""

    def edit(doc: Document) -> None:
        doc["learner"]["gradient_booster"] = {
            "gbtree": doc["learner"]["gradient_booster"], "name": "dart", "weight_drop": list(weights)
        }  # fmt: skip

    return edit


EDITS: dict[str, tuple[Edit, str]] = {
    "newer version": (put(lambda d: d, "version", [4, 0, 0]), r"version 4\.0\.0 .*newer than 3\.x.*update daskboost"),
    "no version": (lambda d: d.pop("version"), "'version' is None"),
    "text version": (put(lambda d: d, "version", "3.0"), "'version' is '3.0', not three integers"),
    "no learner": (lambda d: d.pop("learner"), "'learner' is missing"),
    "learner a list": (put(lambda d: d, "learner", []), "'learner' is list, not an object"),
    "dart": (put(lambda d: d["learner"]["gradient_booster"], "name", "dart"), "'gbtree' is missing"),
    "dart's weights": (dart_of(1.0), "'weight_drop' has 1 entries"),
    "dart's infinite weights": (dart_of(*[math.inf] * 6), "'weight_drop' makes leaf values that are not finite"),
    "gblinear": (put(lambda d: d["learner"]["gradient_booster"], "name", "gblinear"), "a linear model has no trees"),
    "unknown booster": (put(lambda d: d["learner"]["gradient_booster"], "name", "x"), "gradient_booster.name is 'x'"),
    "unknown objective": (put(lambda d: d["learner"]["objective"], "name", "multi:softprop"), "mean 'multi:softprob'"),
    "classes": (put(lambda d: d["learner"]["objective"], "softmax_multiclass_param", {"num_class": "1"}), "num_class"),
    "fewer classes": (put(param, "num_class", "2"), "num_target is 2, but 'multi:softprob' has 3 outputs"),
    "output": (lambda d: model(d)["tree_info"].__setitem__(0, 3), "'tree_info' holds 0 to 3"),
    "huge classes": (put(param, "num_class", "4000000000"), "'num_class' is '4000000000', not a whole number up to"),
    "huge features": (put(param, "num_feature", "4000000000"), "'num_feature' .*not a whole number up to"),
    "negative features": (put(param, "num_feature", "-1"), "'num_feature' is '-1'"),
    "features a number": (put(param, "num_feature", 5), "'num_feature' is 5, not a text"),
    "names": (put(lambda d: d["learner"], "feature_names", ["a"]), "'feature_names' has 1 entries.*5 features"),
    "twins": (put(lambda d: d["learner"], "feature_names", list("aabcd")), "two features have the same name"),
    "half a letter": (put(lambda d: d["learner"], "feature_names", ["\ud800", *"abcd"]), "not texts"),
    "a long name": (put(lambda d: d["learner"]["objective"], "name", "x" * 10**6), "objective 'xxx.*[.][.][.].*"),
    "types": (put(lambda d: d["learner"], "feature_types", ["x"] * 5), "feature_types has .*'x'"),
    "attributes": (put(lambda d: d["learner"], "attributes", {"a": 1}), "'attributes' holds values that are not texts"),
    "own": (put(lambda d: d["learner"], "attributes", {"daskboost": "{"}), "attribute 'daskboost' is damaged"),
    "newer own": (
        put(lambda d: d["learner"], "attributes", {"daskboost": '{"version":5,"params":{}}'}),
        "version 5, newer than 4; update daskboost",
    ),
    "huge parameter": (
        put(lambda d: d["learner"], "objective", {"name": "reg:tweedie", "tweedie_regression_param": {
            "tweedie_variance_power": 10**400}}), "learner.objective of the model: tweedie_variance_power=10+.* number",
    ),
    "base score": (put(param, "base_score", "half"), "base_score is 'half'"),
    "NaN base score": (put(param, "base_score", "nan"), "base_score is 'nan'"),
    "base scores": (put(param, "base_score", "[1,2]"), "base_score is .*for 3 outputs"),
    "trees a text": (put(model, "trees", "x"), "'trees' is str, not a list"),
    "trees of numbers": (put(model, "trees", [1] * 6), r"trees\[0\] is int, not an object"),
    "a tree less": (lambda d: model(d)["trees"].pop(), "num_trees is 6, but the file has 5"),
    "same ids": (put(tree, "id", 0), "'id's are not 0, 1, 2"),
    "tree_info": (put(model, "tree_info", [0, 1, 2]), "'tree_info' has 3 entries.*says 6"),
    "iterations": (put(model, "iteration_indptr", [0, 4, 3, 6]), "'iteration_indptr' does not rise"),
    "odd iterations": (without_pointers, "6 trees are no whole number of iterations of 12"),
    "no nodes": (lambda d: tree(d)["tree_param"].update(num_nodes="0"), "tree 1: .*no nodes"),
    "huge tree": (lambda d: tree(d)["tree_param"].update(num_nodes="2147483648"), "tree 1: .*'left_children' has 9"),
    "vector leaf": (lambda d: tree(d)["tree_param"].update(size_leaf_vector="3"), "tree 1: .*before 3.2"),
    "huge vectors": (lambda d: tree(d)["tree_param"].update(size_leaf_vector="2147483648"), "leaves have 2147483648"),
    "short array": (lambda d: tree(d)["split_indices"].pop(), "'split_indices' has 8 entries"),
    "missing array": (lambda d: tree(d).pop("default_left"), "tree 1: .*'default_left' is missing"),
    "child out of range": (put_at("left_children", 0, 9), "'left_children' holds -1 to 9"),
    "child below range": (put_at("left_children", 0, -2), "'left_children' holds -2 to"),
    "huge child": (put_at("left_children", 0, 10**30), "'left_children' holds a number that does not fit"),
    "one child": (put_at("left_children", 0, -1), "node 0 has only one child"),
    "own child": (put_at("left_children", 0, 0), "two parents or lies on a cycle"),
    "two parents": (lambda d: put_at("left_children", 0, tree(d)["right_children"][0])(d), "two parents"),
    "cycle": (cycle, "nodes can be reached from the root|two parents or lies on a cycle"),
    "feature out of range": (put_at("split_indices", 0, 5), "splits on feature 5, but the model has 5"),
    "NaN threshold": (put_at("split_conditions", 0, float("nan")), "'split_conditions' holds NaN"),
    "text threshold": (put_at("split_conditions", 0, "1"), "'split_conditions' is no list of numbers"),
    "infinite cover": (put_at("sum_hessian", 0, 1e39), "tree 1: .*'sum_hessian' holds infinity"),
    "infinite leaf": (put_at("split_conditions", 8, float("inf")), "a leaf's value is infinite"),
    "fraction as child": (put_at("left_children", 0, 1.0), "'left_children' is no list of integers"),
    "categorical split": (put_at("split_type", 0, 1), "tree 1: .*'categories_nodes' are not the nodes"),
    "nested arrays": (put_at("split_conditions", 0, [1.0]), "'split_conditions' is no list of numbers"),
    "direction": (put_at("default_left", 0, 2), "'default_left' holds 0 to 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_document_is_refused(name: str) -> None:
    edit, message = EDITS[name]
    edited = document()
    edit(edited)
    refuse(edited, message)


@cache
def linear() -> bytes:
    return fit(make_data(np.random.default_rng(1)), {"linear_leaves": True, "device": "cpu"}, 2).to_bytes("json")


def scale(doc: Document) -> Document:
    found: Document = model(doc)["leaf_scale"]
    return found


def without_scale(doc: Document) -> None:
    del model(doc)["leaf_scale"]


def put_in_scale(key: str, index: int, value: object) -> Edit:
    return lambda doc: scale(doc)[key].__setitem__(index, value)


LINEAR_EDITS: dict[str, tuple[Edit, str]] = {
    "no scale": (without_scale, "'leaf_scale' is of models, and of all models, whose .* is 'linear_leaves'"),
    "trees of constants": (
        put(lambda d: d["learner"]["gradient_booster"], "name", "gbtree"), "'leaf_scale' is of models, and of all",
    ),
    "no cuts": (put(scale, "cuts", []), "'cuts' has 0 entries"),
    "cuts that fall": (put_in_scale("cuts", 1, -1e9), "'cuts' of a feature of 'leaf_scale' .* do not increase"),
    "infinite cuts": (put_in_scale("cuts", 0, -1e60), "'cuts' of a feature of 'leaf_scale' are not finite"),
    "features that fall": (put_in_scale("features", 0, 4), "the 'features' of 'leaf_scale' do not increase"),
    "features beyond": (put_in_scale("features", -1, 5), "'features' holds 0 to 5"),
    "sizes": (put_in_scale("sizes", 0, -1), "'sizes' holds -1"),
    "nodes that are none": (put_at("linear_nodes", -1, 10_000), "'linear_nodes' holds"),
    "nodes that fall": (put_at("linear_nodes", 0, 90), "'linear_nodes' do not increase"),
    "inner nodes": (put_at("linear_nodes", 0, 0), "'linear_nodes' has a node that is no leaf"),
    "many terms": (put_at("linear_sizes", 0, 6), "'linear_sizes' holds .* to 6"),
    "other sizes": (put_at("linear_sizes", 0, 5), "'linear_features' has"),
    "other features": (put_at("linear_features", 0, 2**30), "of which 'leaf_scale' has no cut points"),
    "infinite slopes": (put_at("linear_slopes", 0, 1e300), "'linear_slopes' holds infinity"),
    "slopes of nothing": (put_at("linear_slopes", 0, math.nan), "'linear_slopes' holds NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR_EDITS)
def test_an_edited_document_of_linear_leaves_is_refused(name: str) -> None:
    edit, message = LINEAR_EDITS[name]
    edited: Document = json.loads(linear())
    assert Booster.from_bytes(json.dumps(edited).encode()).has_models
    edit(edited)
    refuse(edited, message)


def test_what_xgboost_has_and_we_have_not() -> None:
    rng = np.random.default_rng(0)
    rows, label = rng.integers(0, 4, (100, 2)), rng.random(100)
    cases = (
        ({"booster": "gblinear"}, label, "'gblinear' is not supported: a linear model"),
        ({"objective": "survival:cox"}, label, "objective 'survival:cox' is unknown"),
    )
    for params, y, message in cases:
        booster = xgb.train({**params, "nthread": 1}, xgb.DMatrix(rows, y), num_boost_round=1)
        for file_format in ("json", "ubj"):
            refuse(bytes(booster.save_raw(file_format)), message)


def test_other_files() -> None:
    refuse(b"", "neither JSON nor UBJSON")
    refuse(b"binf\x00\x00\x00", "neither JSON nor UBJSON; XGBoost's old binary format")
    refuse(b"\x1f\x8b\x08", "compressed files are not read")
    refuse(b"{}", "'version' is None")
    refuse(b"{" + b'"a":[' * 100_000, "JSON: values nest too deeply|truncated or corrupt")
    refuse(b'{"a":' + b"9" * 5_000 + b"}", "JSON: the model is truncated or corrupt")
    refuse(b'{"\xff": 1}', "JSON: the model is truncated or corrupt")


@pytest.mark.parametrize("file_format", ["json", "ubj"])
def test_every_truncation_is_refused(file_format: str) -> None:
    data = valid(file_format)
    for size in range(0, len(data), 7):
        refuse(data[:size], "truncated or corrupt|neither JSON nor UBJSON|bytes left|UBJSON")


def array_of(kind: bytes, count: int) -> bytes:
    return b"[$" + kind + b"#L" + count.to_bytes(8, "big", signed=True)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (array_of(b"d", 2**60), "size 1152921504606846976 declared .*with 1 bytes left"),
        (array_of(b"d", -1), "size -1 declared"),
        (array_of(b"Z", 1), "which holds nothing"),
        (b"[$d]", "has no count"),
        (b"S" + b"L" + (2**40).to_bytes(8, "big"), "size 1099511627776 declared"),
        (b"[#L" + (2**40).to_bytes(8, "big"), "size 1099511627776 declared"),
        (b"[" * 100, "nest deeper than 64"),
        (b"{i\x01a" * 100, "nest deeper than 64"),
        (b"q", "b'q', which is no type"),
        (b"Sx", "where the type of a size belongs"),
        (b"Si\x01\xff", "not UTF-8"),
    ],
)
def test_hostile_ubjson(payload: bytes, message: str) -> None:
    refuse(b"{i\x01a" + payload + b"}", message)


def test_bytes_after_the_document() -> None:
    refuse(valid("ubj") + b"N", "1 bytes follow the end of the document")


def shuffled_chain(rng: np.random.Generator) -> Document:
    """A valid model whose tree has 5,000 levels, its nodes numbered at random."""
    doc: Document = json.loads(
        random_booster(rng, SoftProb(3), n_iterations=2, n_splits=5_000, chain=True).to_bytes("json")
    )
    n = len(tree(doc)["left_children"])
    place = np.concatenate([[0], 1 + rng.permutation(n - 1)])
    for key, values in tree(doc).items():
        if key in ("left_children", "right_children"):
            values = [int(place[child]) if child >= 0 else -1 for child in values]
        if isinstance(values, list) and len(values) == n:
            tree(doc)[key] = [value for _, value in sorted(zip(place.tolist(), values, strict=True))]
    return doc


def test_memory_and_time_stay_near_the_size_of_the_file(rng: np.random.Generator) -> None:
    features = document()
    param(features)["num_feature"] = str(2**25)
    features["learner"]["feature_names"] = features["learner"]["feature_types"] = []
    lists = b"{i\x01a[" + b"[]" * 100_000 + b"]}"
    for data, accepted in (
        (json.dumps(shuffled_chain(rng)).encode(), True),
        (json.dumps(features).encode(), True),
        (lists, False),
    ):
        tracemalloc.start()
        start = time.perf_counter()
        try:
            Booster.from_bytes(data)
        except ModelFormatError:
            assert not accepted
        else:
            assert accepted
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 * len(data) + 300e6
        assert time.perf_counter() - start < 10


def test_renumbered_trees_predict_the_same(rng: np.random.Generator) -> None:
    shuffled = shuffled_chain(np.random.default_rng(3))
    straight = random_booster(np.random.default_rng(3), SoftProb(3), n_iterations=2, n_splits=5_000, chain=True)
    rows = random_rows(rng, 200)
    found = Booster.from_bytes(json.dumps(shuffled).encode()).predict(rows)
    np.testing.assert_array_equal(found, straight.predict(rows))
