"""Writing models in XGBoost's schema, as JSON or UBJSON.

One document of dicts, lists and arrays serves both formats. Its keys are sorted and its numbers are the shortest text
that reads back as the same float32, so equal models are equal bytes. xgboost, treelite and shap read it.

What the schema cannot say lies in `learner.attributes`, texts that all of them keep or ignore; our own under the key
`daskboost`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from daskboost.data.categories.encoder import Encoder
from daskboost.data.input.row_batch import CATEGORICAL, CATEGORY_CODE, FeatureSchema
from daskboost.devices.leaf_models import NONE
from daskboost.dtypes import Float32
from daskboost.errors import ModelFormatError, ParameterError, shortened
from daskboost.model import ubjson
from daskboost.model.leaf_scale import LeafScale
from daskboost.params import as_path
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.model.booster import Booster

Format = Literal["json", "ubj"]

ATTRIBUTE: Final = "daskboost"
"""Key of our own attribute: a JSON object with the version of its layout and the training parameters."""
ATTRIBUTE_VERSION: Final = 1
ENCODER_VERSION: Final = 2
"""The same of models whose features are made of categorical columns, which say how."""
PAIRS_VERSION: Final = 3
"""The same where some features are made of combinations of columns."""
MODELS_VERSION: Final = 4
"""The same of models whose leaves are linear."""
TREES: Final = "gbtree"
"""XGBoost's name of what has trees."""
LINEAR_TREES: Final = "linear_leaves"
"""Our name of trees whose leaves are linear: XGBoost and treelite, which would take them for constant, refuse it."""
ROOT_PARENT: Final = 2**31 - 1
"""Parent of a root, in XGBoost's words."""

_SCALAR_VERSION: Final = [3, 0, 0]
_VECTOR_VERSION: Final = [3, 1, 0]
_LEAVES_VERSION: Final = [3, 2, 0]
"""XGBoost's versions whose schema we write: since 3.1 a base score may have a number per output, and 3.2 gave vector
leaves the form that we read and write."""
NO_CONDITION: Final = np.float32(1e-45)
"""What stands among the split conditions of nodes that have none, the least number above 0: of splits by sets, and of
leaves that are vectors."""


def to_bytes(booster: Booster, format: Format = "ubj") -> bytes:
    """A model as the bytes of a file; equal models give equal bytes.

    Parameters
    ----------
    format : {"ubj", "json"}, default "ubj"
        UBJSON is about half the size and much faster to read; JSON is for human readers.
    """
    if format == "ubj":
        return ubjson.encode(document(booster))
    if format == "json":
        return "".join(_json(document(booster))).encode()
    raise ParameterError(f"format={format!r} is unknown; give one of {get_args(Format)}")


def from_bytes(data: bytes | bytearray | memoryview) -> Booster:
    """Read a model that daskboost or XGBoost (1.3 and later) wrote, JSON or UBJSON.

    Raises
    ------
    ModelFormatError
        Data that is truncated, corrupt or hostile, from a newer version, or a model that this library cannot
        represent; the message says which.
    """
    from daskboost.model.validate import read_model

    try:
        data = bytes(memoryview(data))
    except TypeError as error:
        raise ParameterError(
            f"data is of type {type(data).__name__}; pass the bytes of a model, of a JSON text text.encode()"
        ) from error
    if not data.startswith(b"{"):
        raise ModelFormatError(
            f"the model begins with {data[:8]!r}, which is neither JSON nor UBJSON; XGBoost's old binary format and "
            "compressed files are not read: save the model again as .json or .ubj"
        )
    try:
        return read_model(_parse_json(data) if _is_json(data) else ubjson.decode(data))
    except ModelFormatError as error:
        raise ModelFormatError(shortened(str(error))) from error.__cause__


def _is_json(data: bytes) -> bool:
    """A key of UBJSON starts with the type of its size, a key of JSON with a quotation mark."""
    return data[1:].lstrip()[:1] in (b'"', b"}") and data[1:2] not in (b"i", b"U", b"I", b"l", b"L")


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ModelFormatError("JSON: values nest too deeply for a model") from error
    except ValueError as error:  # malformed JSON, bytes that are not UTF-8, integers of thousands of digits
        raise ModelFormatError(f"JSON: the model is truncated or corrupt: {error}") from error


def format_of(path: str | Path) -> Format:
    """The format that a file name asks for; ParameterError where it ends neither in ``.json`` nor in ``.ubj``."""
    suffix = as_path("path", path).suffix.lower()
    if suffix not in (".json", ".ubj"):
        raise ParameterError(f"path={str(path)!r}: the name of a model file ends in .json or .ubj")
    return "json" if suffix == ".json" else "ubj"


def document(booster: Booster) -> dict[str, Any]:
    """The model as XGBoost's document; numeric arrays are NumPy arrays."""
    schema, objective = booster.schema, booster.objective
    multiclass = objective.name.startswith("multi:")
    base_score, scalar = _base_score(booster)
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(booster.trees))},
        # Lists, not arrays: XGBoost writes and treelite reads these value by value.
        "iteration_indptr": list(booster.iteration_indptr),
        **({} if booster.leaf_scale is None else {"leaf_scale": _scale(booster.leaf_scale)}),
        "tree_info": list(booster.tree_outputs),
        "trees": [_tree(i, tree, schema.n_features) for i, tree in enumerate(booster.trees)],
    }
    return {
        "learner": {
            "attributes": dict(sorted({**booster.attributes, **_own_attribute(booster)}.items())),
            "feature_names": list(schema.names or ()),
            "feature_types": _feature_types(schema),
            "gradient_booster": {"model": model, "name": LINEAR_TREES if booster.leaf_scale is not None else TREES},
            "learner_model_param": {
                "base_score": base_score,
                "boost_from_average": "0",  # the base score stands: XGBoost must not estimate another
                "num_class": str(booster.n_outputs) if multiclass else "0",
                "num_feature": str(schema.n_features),
                "num_target": "1" if multiclass else str(booster.n_outputs),
            },
            "objective": dict(objective.foreign_config()),
        },
        "version": _LEAVES_VERSION if booster.has_vectors else _SCALAR_VERSION if scalar else _VECTOR_VERSION,
    }


def _scale(scale: LeafScale) -> dict[str, Any]:
    return {"cuts": scale.cuts, "features": scale.feature, "sizes": np.diff(scale.begin)}


def _models(tree: TreeTable) -> dict[str, Any]:
    """What a tree's document has of models of leaves, node by node; nothing where there are none."""
    if not tree.models:
        return {}
    sizes, is_term = tree.models.sizes(tree.n_nodes), tree.models.feature != NONE
    return {
        "linear_features": tree.models.feature[is_term],
        "linear_nodes": np.flatnonzero(sizes).astype(np.int32),
        "linear_sizes": sizes[sizes > 0],
        "linear_slopes": tree.models.slope[is_term],
    }


def _feature_types(schema: FeatureSchema) -> list[str]:
    """XGBoost's words for the kinds of features; none where all are floats without a name."""
    kinds = [CATEGORICAL if kind == CATEGORY_CODE else kind for kind in schema.kinds]
    return kinds if schema.names or set(kinds) > {"float"} or CATEGORICAL in kinds else []


def _base_score(booster: Booster) -> tuple[str, bool]:
    """The base score's text, and whether it is a plain number, which every version of every reader understands."""
    texts = [str(np.float32(score)) for score in booster.base_score]
    return (texts[0], True) if len(set(texts)) == 1 else (f"[{','.join(texts)}]", False)


def _own_attribute(booster: Booster) -> dict[str, str]:
    encoder, objective = booster.schema.encoder, booster.objective.config()
    is_foreign = objective["name"] != booster.objective.foreign_config()["name"]
    if not booster.params and encoder is None and not is_foreign and booster.leaf_scale is None:
        return {}
    own: dict[str, Any] = {"version": ATTRIBUTE_VERSION, "params": dict(booster.params)}
    if isinstance(encoder, Encoder):
        own |= {"version": PAIRS_VERSION if encoder.combinations else ENCODER_VERSION, "encoder": encoder.parts}
    if is_foreign:
        own["objective"] = objective
    if booster.leaf_scale is not None:
        own["version"] = MODELS_VERSION
    return {ATTRIBUTE: "".join(_plain_json(own))}


def _plain_json(value: object) -> Iterator[str]:
    """Yield a value as JSON without spaces, keys in their order; what has `to_json` becomes plain values one after the
    other."""
    if isinstance(value, dict):
        for place, key in enumerate(sorted(value)):
            yield f"{',' if place else '{'}{json.dumps(key)}:"
            yield from _plain_json(value[key])
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple) and any(hasattr(each, "to_json") for each in value):
        for place, each in enumerate(value):
            yield "," if place else "["
            yield from _plain_json(each)
        yield "]"
    else:
        plain = value.to_json() if hasattr(value, "to_json") else value
        yield json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _tree(index: int, tree: TreeTable, n_features: int) -> dict[str, Any]:
    n, leaf = tree.n_nodes, tree.is_leaf
    parents, right, values = tree.parent, tree.right_child, tree.value
    vectors = {}
    if tree.has_vectors:
        vectors["leaf_weights"] = values[leaf].reshape(-1)
        right = np.where(leaf, np.cumsum(leaf) - 1, right).astype(np.int32)  # a leaf's place among them
        conditions = np.where(leaf, NO_CONDITION, tree.threshold)
    else:
        parents[0] = ROOT_PARENT
        conditions = np.where(leaf, values, tree.threshold)
    sets, sizes, has_set = tree.sets, tree.sets.sizes(n), tree.has_set
    return {
        "base_weights": values.reshape(-1),
        "categories": sets.categories,
        "categories_nodes": np.flatnonzero(has_set).astype(np.int32),
        "categories_segments": (np.cumsum(sizes) - sizes)[has_set].astype(np.int64),
        "categories_sizes": sizes[has_set].astype(np.int64),
        "default_left": tree.default_left.astype(np.uint8),
        "id": index,
        **vectors,
        "left_children": tree.left_child,
        **_models(tree),
        "loss_changes": tree.gain,
        "parents": parents,
        "right_children": right,
        "split_conditions": np.where(has_set, NO_CONDITION, conditions).astype(np.float32),
        "split_indices": tree.feature,
        "split_type": has_set.astype(np.uint8),
        "sum_hessian": tree.cover,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": str(tree.leaf_width),
        },
    }


def _json(value: object) -> Iterator[str]:
    """JSON text in pieces, with neither spaces nor line breaks."""
    match value:
        case dict():
            for i, (key, item) in enumerate(value.items()):
                yield f"{',' if i else '{'}{_json_text(key)}:"
                yield from _json(item)
            yield "}" if value else "{}"
        case list():
            for i, item in enumerate(value):
                yield "," if i else "["
                yield from _json(item)
            yield "]" if value else "[]"
        case np.ndarray():
            yield f"[{','.join(_number_texts(value))}]"
        case _:
            yield _json_text(value)


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # XGBoost does not understand escapes of other characters


def _number_texts(array: npt.NDArray[Any]) -> list[str]:
    """Floats always with a point or an exponent: readers of the schema refuse the integer 0 in an array of floats."""
    texts: list[str] = array.astype(str).tolist()
    if array.dtype == np.float32 and not np.isfinite(array).all():
        texts = [_INFINITIES.get(text, text) for text in texts]
    return texts


_INFINITIES: Final = {"inf": "Infinity", "-inf": "-Infinity"}


def as_float32(values: npt.ArrayLike) -> Float32:
    """Round once to float32; what does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)
