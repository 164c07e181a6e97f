"""Reading models: a parsed document becomes a Booster, or a ModelFormatError that names the place and the fault.

A file is trusted in nothing. Every array is compared with the others before it is used as an index; a tree must be
one, each node reached once from its root; numbers are of the right type and range. Time and memory stay
proportional to the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from daskboost.data.categories.encoder import Encoder
from daskboost.data.input.row_batch import CATEGORICAL, CATEGORY_CODE, FeatureSchema
from daskboost.devices.leaf_models import MOST_TERMS, NO_MODELS, LeafModels
from daskboost.dtypes import MAX_CATEGORIES, Bool, Float32, Int64
from daskboost.errors import ModelFormatError, ParameterError
from daskboost.model.booster import Booster
from daskboost.model.leaf_scale import LeafScale
from daskboost.model.serialize import (
    ATTRIBUTE,
    ENCODER_VERSION,
    LINEAR_TREES,
    MODELS_VERSION,
    PAIRS_VERSION,
    TREES,
    as_float32,
)
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import objective_from_config
from daskboost.tree.category_sets import NO_SETS, CategorySets
from daskboost.tree.table import TreeTable

NEWEST_MAJOR: Final = 3
"""XGBoost's last major version whose schema this module knows."""
MAX_FEATURES: Final = 2**25
"""A number in the file, not backed by data, decides what we allocate per feature; this many cost 256 MB."""
MAX_OUTPUTS: Final = 2**16
_KINDS: Final = {"float": "float", "int": "int", "i": "i", "q": "float", CATEGORICAL: CATEGORY_CODE}
_UNSUPPORTED: Final = {
    "gblinear": "a linear model has no trees",
}


def fail(message: str) -> NoReturn:
    raise ModelFormatError(f"the model is corrupt or not one of XGBoost's: {message}")


def read_model(document: object) -> Booster:
    """Check and convert a parsed file.

    Parameters
    ----------
    document : object
        Dicts, lists, texts, numbers, and NumPy arrays where the format has typed arrays.
    """
    root = _object(document, "the document")
    _check_version(root)
    learner = _child(root, "learner")
    attributes, params, encoder, own_objective = _attributes(learner)
    objective = objective_from_config(_child(learner, "objective") if own_objective is None else own_objective)
    param = _child(learner, "learner_model_param")
    n_features = _count(param, "num_feature", MAX_FEATURES)
    n_outputs = max(_count(param, "num_class", MAX_OUTPUTS), _count(param, "num_target", MAX_OUTPUTS, 1), 1)
    if objective.n_outputs not in (1, n_outputs):
        fail(f"num_class or num_target is {n_outputs}, but {objective.name!r} has {objective.n_outputs} outputs")
    model, weights = _trees_and_weights(learner)
    scale = _leaf_scale(model, n_features)
    if (scale is None) == (learner["gradient_booster"]["name"] == LINEAR_TREES):
        fail(f"'leaf_scale' is of models, and of all models, whose gradient_booster.name is {LINEAR_TREES!r}")
    trees = _trees(model, n_features, n_outputs, scale)
    if weights is not None:
        trees = _weighted(trees, weights)
    if len({tree.has_vectors for tree in trees}) > 1:
        raise ModelFormatError(
            "some of the model's trees have vectors as leaves and others have not, which is not supported; train all "
            "rounds with one multi_strategy"
        )
    outputs = _integers(model, "tree_info", len(trees), 0, n_outputs)
    return Booster(
        trees=trees,
        tree_outputs=tuple(outputs.tolist()),
        iteration_indptr=_iteration_indptr(model, len(trees), 1 if trees and trees[0].has_vectors else n_outputs),
        objective=objective,
        base_score=_base_score(param, objective, n_outputs),
        schema=_encoded(_schema(learner, n_features, _features_of_sets(trees)), encoder),
        attributes=attributes,
        params=params,
        leaf_scale=scale,
    )


def _leaf_scale(model: Mapping[str, Any], n_features: int) -> LeafScale | None:
    """The cut points of features that models of leaves have; None where the file has none."""
    if "leaf_scale" not in model:
        return None
    section = _child(model, "leaf_scale")
    features = _integers(section, "features", None, 0, n_features)
    sizes = _integers(section, "sizes", len(features), 0, 2**16)
    cuts = _floats(section, "cuts", int(sizes.sum()))
    owners = np.repeat(features, sizes)
    if (np.diff(features) <= 0).any():
        fail("the 'features' of 'leaf_scale' do not increase")
    if not np.isfinite(cuts).all() or ((np.diff(cuts) <= 0) & (np.diff(owners) == 0)).any():
        fail("the 'cuts' of a feature of 'leaf_scale' are not finite or do not increase")
    begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return LeafScale(features.astype(np.int32), begin, cuts)


def _check_version(root: Mapping[str, Any]) -> None:
    version = root.get("version")
    numbers = version.tolist() if isinstance(version, np.ndarray) else version
    if not isinstance(numbers, list) or len(numbers) != 3 or {type(n) for n in numbers} != {int}:
        fail(f"'version' is {_shown(version)}, not three integers")
    if numbers[0] > NEWEST_MAJOR:
        raise ModelFormatError(
            f"the model was written by version {'.'.join(map(str, numbers))} of XGBoost's format, newer than "
            f"{NEWEST_MAJOR}.x, the newest this daskboost reads; update daskboost, or save it from an older XGBoost"
        )


def _trees_and_weights(learner: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the section that has the trees, and the one with the weight of each where they were trained by DART."""
    booster = _child(learner, "gradient_booster")
    name = _text(booster, "name")
    if name == "dart":
        return _child(_child(booster, "gbtree"), "model"), booster
    if name in _UNSUPPORTED:
        raise ModelFormatError(f"booster {name!r} is not supported: {_UNSUPPORTED[name]}; train with booster='gbtree'")
    if name not in (TREES, LINEAR_TREES):
        fail(f"gradient_booster.name is {_shown(name)}")
    return _child(booster, "model"), None


def _weighted(trees: tuple[TreeTable, ...], section: Mapping[str, Any]) -> tuple[TreeTable, ...]:
    """Return the trees of a DART model with their weights in their values, so that they are those of any model.

    Source: Vinayak and Gilad-Bachrach, "DART: Dropouts meet Multiple Additive Regression Trees", 2015.
    """
    weights = _floats(section, "weight_drop", len(trees))
    with np.errstate(over="ignore", invalid="ignore"):
        found = tuple(  # values of inner nodes may be infinite, which times 0 is NaN
            replace(tree, value=tree.value * weight if weight else np.zeros_like(tree.value))
            for tree, weight in zip(trees, weights, strict=True)
        )
    if not all(np.isfinite(tree.value[tree.is_leaf]).all() for tree in found):
        fail("'weight_drop' makes leaf values that are not finite")
    return found


def _trees(model: Mapping[str, Any], n_features: int, n_outputs: int, scale: LeafScale | None
           ) -> tuple[TreeTable, ...]:  # fmt: skip
    listed = _list(model, "trees")
    declared = _count(_child(model, "gbtree_model_param"), "num_trees", 2**31)
    if declared != len(listed):
        fail(f"num_trees is {declared}, but the file has {len(listed)} trees")
    documents = [_object(tree, f"trees[{i}]") for i, tree in enumerate(listed)]
    places = [tree.get("id", i) for i, tree in enumerate(documents)]
    if {type(place) for place in places} - {int} or sorted(places) != list(range(len(places))):
        fail("the trees' 'id's are not 0, 1, 2, ...")
    ordered = dict(sorted(zip(places, documents, strict=True)))
    return tuple(_tree(tree, i, n_features, n_outputs, scale) for i, tree in ordered.items())


def _tree(tree: Mapping[str, Any], index: int, n_features: int, n_outputs: int, scale: LeafScale | None) -> TreeTable:
    try:
        return _checked_tree(tree, n_features, n_outputs, scale)
    except ModelFormatError as error:
        raise ModelFormatError(f"tree {index}: {error}") from error


def _checked_tree(tree: Mapping[str, Any], n_features: int, n_outputs: int, scale: LeafScale | None) -> TreeTable:
    param = _child(tree, "tree_param")
    n = _count(param, "num_nodes", 2**31)
    if n < 1:
        fail("it has no nodes")
    width = max(_count(param, "size_leaf_vector", 2**31, 1), 1)
    if width not in (1, n_outputs):
        fail(f"its leaves have {width} values, but the model has {n_outputs} outputs")
    left = _integers(tree, "left_children", n, -1, n)
    right = _integers(tree, "right_children", n, -1, n)
    place = right  # of a leaf's values, where they are vectors
    if width > 1:
        right = np.where(left < 0, -1, right)
    order = reachable(left, right, n - _count(param, "num_deleted", 2**31, 0))
    leaf = left[order] < 0
    by_set = _splits_by_set(tree, n)
    condition = _floats(tree, "split_conditions", n, by_set)[order]
    feature = np.where(leaf, 0, _integers(tree, "split_indices", n, 0, 2**31)[order])
    if (feature >= n_features).any():
        fail(f"it splits on feature {feature.max()}, but the model has {n_features} features")
    value = np.where(leaf, condition, _floats(tree, "base_weights", n)[order]) if width == 1 else _vectors(
        tree, place[order], leaf, order, width
    )
    if not np.isfinite(value[leaf]).all():
        fail("a leaf's value is infinite")
    cover = _floats(tree, "sum_hessian", n)[order]
    if not np.isfinite(cover).all():
        fail("'sum_hessian' holds infinity")
    numbers = np.empty(n, np.int32)  # new numbers of the old nodes
    numbers[order] = np.arange(len(order), dtype=np.int32)
    return TreeTable(
        left_child=np.where(leaf, -1, numbers[left[order]]).astype(np.int32),
        right_child=np.where(leaf, -1, numbers[right[order]]).astype(np.int32),
        feature=feature.astype(np.int32),
        split_bin=np.full(len(order), -1, np.int32),
        threshold=np.where(leaf | by_set[order], np.float32(0), condition),
        default_left=_integers(tree, "default_left", n, 0, 2)[order].astype(np.bool_),
        gain=np.where(leaf, np.float32(0), _floats(tree, "loss_changes", n)[order]),
        cover=cover,
        value=value,
        sets=_sets(tree, by_set, order, leaf),
        models=_models(tree, order, leaf, scale, width),
    )


def _models(tree: Mapping[str, Any], order: Int64, leaf: Bool, scale: LeafScale | None, width: int) -> LeafModels:
    """The models of the nodes `order`, of which only leaves have any, of features that the file's scale has."""
    if "linear_nodes" not in tree:
        return NO_MODELS
    n = len(tree["left_children"])
    nodes = _integers(tree, "linear_nodes", None, 0, n)
    sizes = _integers(tree, "linear_sizes", len(nodes), 1, MOST_TERMS + 1)
    n_terms = int(sizes.sum())
    features = _integers(tree, "linear_features", n_terms, 0, 2**31)
    slopes = _floats(tree, "linear_slopes", n_terms)
    if (np.diff(nodes) <= 0).any():
        fail("'linear_nodes' do not increase")
    if scale is None or width > 1 or not np.isin(features, scale.feature).all():
        fail("the models of its leaves have features of which 'leaf_scale' has no cut points, or leaves are vectors")
    if not np.isfinite(slopes).all():
        fail("'linear_slopes' holds infinity")
    is_leaf = np.zeros(n, np.bool_)
    is_leaf[order] = leaf
    if not is_leaf[nodes].all():
        fail("'linear_nodes' has a node that is no leaf")
    of_nodes = np.zeros(n, np.int64)
    of_nodes[nodes] = sizes
    found = LeafModels.of_sizes(of_nodes, features, slopes)
    return LeafModels.of_nodes(found.feature[order], found.slope[order]) if found else NO_MODELS


def _splits_by_set(tree: Mapping[str, Any], n: int) -> Bool:
    """Which of a file's nodes are said to split by a set; nodes that XGBoost has pruned to leaves may be."""
    if "split_type" not in tree:
        return np.zeros(n, np.bool_)
    return _integers(tree, "split_type", n, 0, 2) > 0


def _sets(tree: Mapping[str, Any], by_set: Bool, order: Int64, leaf: Bool) -> CategorySets:
    """The sets of the nodes `order`, of which some are leaves; they must be those that `by_set` names."""
    if not by_set.any():
        return NO_SETS
    n = len(by_set)
    nodes = _integers(tree, "categories_nodes", None, 0, n)
    sizes = _integers(tree, "categories_sizes", None, 0, MAX_CATEGORIES + 1)
    segments = _integers(tree, "categories_segments", None, 0, 2**63)
    codes = _integers(tree, "categories", None, 0, MAX_CATEGORIES)
    if not np.array_equal(nodes, np.flatnonzero(by_set)):
        fail("'categories_nodes' are not the nodes, in their order, whose 'split_type' is 1")
    if not len(nodes) == len(sizes) == len(segments):
        fail(f"{len(nodes)} nodes have sets, but there are {len(sizes)} 'categories_sizes', {len(segments)} segments")
    if not np.array_equal(segments, np.cumsum(sizes) - sizes) or sizes.sum() != len(codes):
        fail(f"'categories_segments' and 'categories_sizes' do not divide the {len(codes)} 'categories' into sets")
    owners = np.repeat(nodes, sizes)
    if ((np.diff(codes) <= 0) & (np.diff(owners) == 0)).any():
        fail("the 'categories' of a node do not increase")
    of_nodes = np.zeros(n, np.int64)
    of_nodes[nodes] = sizes
    kept = np.where(leaf, 0, of_nodes[order])
    if (kept[by_set[order] & ~leaf] == 0).any():
        fail("a node splits by a set that has no categories")
    first = np.zeros(n, np.int64)
    first[nodes] = segments
    places = np.repeat(first[order] - (np.cumsum(kept) - kept), kept) + np.arange(kept.sum())
    return CategorySets.of_sizes(kept, codes[places])


def _vectors(tree: Mapping[str, Any], place: Int64, leaf: Bool, order: Int64, width: int) -> Float32:
    """Values of nodes, float32 of shape (nodes, width); those of `leaf` lie at their places in 'leaf_weights'."""
    if "leaf_weights" not in tree:
        raise ModelFormatError(
            "its leaves are vectors as XGBoost before 3.2 wrote them, which is not supported; train or save it again "
            "with XGBoost 3.2 or later"
        )
    of_leaves = _floats(tree, "leaf_weights", int(leaf.sum()) * width).reshape(-1, width)
    if not np.array_equal(np.sort(place[leaf]), np.arange(len(of_leaves))):
        fail("the leaves' 'right_children' are not the places of their values, 0, 1, 2, ...")
    values = _floats(tree, "base_weights", len(tree["left_children"]) * width).reshape(-1, width)[order]
    values[leaf] = of_leaves[place[leaf]]
    return values


def reachable(left: Int64, right: Int64, expected: int) -> Int64:
    """Nodes in an order in which children follow their parent; the nodes' own numbers where those already do.

    Parameters
    ----------
    left, right : int64 arrays, shape (nodes,), values in [-1, nodes)
    expected : int
        How many nodes the tree has; XGBoost leaves pruned ones behind in its arrays.

    Raises
    ------
    ModelFormatError
        A node with one child or two parents, a cycle, or another number of nodes than expected.
    """
    parents = np.flatnonzero((left >= 0) & (right >= 0))
    children = np.concatenate([left[parents], right[parents]])
    whole = len(left) == expected and np.array_equal(left >= 0, right >= 0)
    in_order = whole and (np.minimum(left[parents], right[parents]) > parents).all()
    if in_order and np.array_equal(np.sort(children), np.arange(1, expected)):
        return np.arange(expected)
    return _walk(left.tolist(), right.tolist(), expected)


def _walk(left: Sequence[int], right: Sequence[int], expected: int) -> Int64:
    order, seen = [0], {0}
    for node in order:  # grows while it is read: breadth first
        if left[node] < 0 and right[node] < 0:
            continue
        for child in (left[node], right[node]):
            if child < 0:
                fail(f"node {node} has only one child")
            if child in seen:
                fail(f"node {child} has two parents or lies on a cycle")
            seen.add(child)
            order.append(child)
    if len(order) != expected:
        fail(f"{len(order)} of {expected} nodes can be reached from the root")
    return np.array(order, np.int64)


def _iteration_indptr(model: Mapping[str, Any], n_trees: int, n_outputs: int) -> tuple[int, ...]:
    """Where each iteration's trees begin; before version 2.0 they were as many in every iteration."""
    if "iteration_indptr" not in model:
        size = n_outputs * max(_count(_child(model, "gbtree_model_param"), "num_parallel_tree", 2**31, 1), 1)
        if n_trees % size:
            fail(f"{n_trees} trees are no whole number of iterations of {size} trees")
        return tuple(range(0, n_trees + 1, size))
    pointers = _integers(model, "iteration_indptr", None, 0, n_trees + 1)
    if len(pointers) == 0 and n_trees == 0:
        return (0,)
    if len(pointers) == 0 or pointers[0] != 0 or pointers[-1] != n_trees or (np.diff(pointers) <= 0).any():
        fail(f"'iteration_indptr' does not rise from 0 to the number of trees, {n_trees}")
    return tuple(pointers.tolist())


def _base_score(param: Mapping[str, Any], objective: Objective, n_outputs: int) -> tuple[float, ...]:
    """A number, since XGBoost 3.1 also one per output in brackets."""
    text = _text(param, "base_score")
    try:
        numbers = as_float32([float(part) for part in text.strip().removeprefix("[").removesuffix("]").split(",")])
        margins = objective.to_margin(numbers)
    except (ValueError, ParameterError) as error:
        raise ModelFormatError(f"base_score is {_shown(text)}: {error}") from error
    if not (np.isfinite(numbers).all() and np.isfinite(margins).all()) or len(numbers) not in (1, n_outputs):
        fail(f"base_score is {_shown(text)}, for {n_outputs} outputs of objective {objective.name!r}")
    if len(numbers) < n_outputs != objective.n_outputs:
        numbers = np.repeat(numbers, n_outputs)  # several targets of a loss of one output
    return tuple(numbers.tolist())


def _features_of_sets(trees: Sequence[TreeTable]) -> set[int]:
    """The features that some set of categories splits."""
    return {feature for tree in trees if tree.sets for feature in tree.feature[tree.has_set].tolist()}


def _schema(learner: Mapping[str, Any], n_features: int, of_sets: Set[int]) -> FeatureSchema:
    """Names and kinds of the features; those that sets split, `of_sets`, hold codes though a file has no types."""
    names = _texts(learner, "feature_names")
    types = _texts(learner, "feature_types")
    for what, given in (("feature_names", names), ("feature_types", types)):
        if given and len(given) != n_features:
            fail(f"{what!r} has {len(given)} entries, but the model has {n_features} features")
    if len(set(names)) != len(names):
        fail("two features have the same name")
    if unknown := sorted(set(types) - _KINDS.keys()):
        raise ModelFormatError(f"feature_types has {unknown}: known are float, int, i, q and c")
    if types and (numbers := sorted(each for each in of_sets if types[each] != CATEGORICAL)):
        fail(f"feature {numbers[0]} is split by a set of categories, but is {types[numbers[0]]!r} in 'feature_types'")
    if of_sets and not types:
        types = [CATEGORICAL if feature in of_sets else "float" for feature in range(n_features)]
    kinds = tuple(_KINDS[kind] for kind in types) or ("float",) * n_features
    return FeatureSchema(tuple(names) or None, kinds)


def _encoded(schema: FeatureSchema, encoder: Encoder | None) -> FeatureSchema:
    """Return the schema with what makes its features; ModelFormatError where that makes others."""
    if encoder is None:
        return schema
    try:
        return encoder.schema_for(schema)
    except ValueError as error:
        fail(str(error))


def _attributes(learner: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], Encoder | None, object]:
    """The user's attributes, and from our own the parameters of the training, the encoder, and the objective that
    XGBoost lacks, or None."""
    attributes = dict(_child(learner, "attributes")) if "attributes" in learner else {}
    if not all(map(_is_text, [*attributes, *attributes.values()])):
        fail("'attributes' holds values that are not texts")
    if ATTRIBUTE not in attributes:
        return attributes, {}, None, None
    try:
        own = json.loads(attributes.pop(ATTRIBUTE))
        version, params = own["version"], own["params"]
        if not isinstance(version, int) or not all(map(_is_text, [*params, *params.values()])):
            raise TypeError("wrong types")
        has_encoder = ENCODER_VERSION <= version <= PAIRS_VERSION or (version == MODELS_VERSION and "encoder" in own)
        encoder = Encoder.from_json(own["encoder"]) if has_encoder else None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelFormatError(f"attribute {ATTRIBUTE!r} is damaged: {error}") from error
    if version > MODELS_VERSION:
        raise ModelFormatError(
            f"attribute {ATTRIBUTE!r} has version {version}, newer than {MODELS_VERSION}; update daskboost"
        )
    return attributes, params, encoder, own.get("objective")


def _shown(value: object) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        fail(f"{where} is {type(value).__name__}, not an object")
    return value


def _get(parent: Mapping[str, Any], key: str) -> Any:
    if key not in parent:
        fail(f"{key!r} is missing")
    return parent[key]


def _child(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _object(_get(parent, key), repr(key))


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = _get(parent, key)
    if not _is_text(value):
        fail(f"{key!r} is {_shown(value)}, not a text")
    return str(value)


def _is_text(value: object) -> bool:
    """A text that can be written again: JSON may escape halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _list(parent: Mapping[str, Any], key: str) -> list[Any]:
    value = _get(parent, key)
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    if not isinstance(value, list):
        fail(f"{key!r} is {type(value).__name__}, not a list")
    return value


def _texts(parent: Mapping[str, Any], key: str) -> list[str]:
    values = _list(parent, key) if key in parent else []
    if not all(map(_is_text, values)):
        fail(f"{key!r} holds values that are not texts")
    return values


def _count(parent: Mapping[str, Any], key: str, limit: int, default: int | None = None) -> int:
    """A parameter: a whole number as a text."""
    if default is not None and key not in parent:
        return default
    text = _text(parent, key)
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= limit):
        fail(f"{key!r} is {_shown(text)}, not a whole number up to {limit}")
    return int(text)


def _array(parent: Mapping[str, Any], key: str, n: int | None, types: set[type]) -> npt.NDArray[Any]:
    """An array, or a list of numbers of the given types, of n values."""
    value = _get(parent, key)
    if isinstance(value, list) and set(map(type, value)) <= types:
        try:
            value = np.array(value, np.float64 if float in types else np.int64)
        except OverflowError as error:
            raise ModelFormatError(f"{key!r} holds a number that does not fit") from error
    if not isinstance(value, np.ndarray):
        fail(f"{key!r} is no list of {'numbers' if float in types else 'integers'}")
    if n is not None and len(value) != n:
        fail(f"{key!r} has {len(value)} entries, but num_nodes or num_trees says {n}")
    return value


def _integers(parent: Mapping[str, Any], key: str, n: int | None, low: int, stop: int) -> Int64:
    values = _array(parent, key, n, {int, bool})
    if values.dtype.kind not in "iu":
        fail(f"{key!r} holds numbers that are not integers")
    if len(values) and not (low <= values.min() and values.max() < stop):
        fail(f"{key!r} holds {values.min()} to {values.max()}; at least {low} and less than {stop} is possible")
    return values.astype(np.int64)


def _floats(parent: Mapping[str, Any], key: str, n: int, unused: Bool | None = None) -> Float32:
    """Numbers, of which those `unused` become 0 whatever they are."""
    values = as_float32(_array(parent, key, n, {int, float}))
    if unused is not None:
        values[unused] = 0
    if np.isnan(values).any():
        fail(f"{key!r} holds NaN")
    return values
