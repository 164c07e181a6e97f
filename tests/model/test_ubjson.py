"""The UBJSON codec: against itself, and against the bytes XGBoost writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daskboost.errors import ModelFormatError
from daskboost.model import ubjson

ARRAYS = st.sampled_from(["i1", "u1", "i2", "i4", "i8", "f4", "f8"]).flatmap(
    lambda code: hnp.arrays(
        np.dtype(code), st.integers(0, 5), elements={"allow_nan": False} if code[0] == "f" else None
    )
)
DOCUMENTS = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=6) | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def plain(value: Any) -> Any:
    """Arrays with their types, as values that compare."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(DOCUMENTS)
def test_round_trip(document: Any) -> None:
    assert plain(ubjson.decode(ubjson.encode(document))) == plain(document)


def train(**params: Any) -> xgb.Booster:
    rng = np.random.default_rng(0)
    data = xgb.DMatrix(rng.normal(size=(200, 3)), rng.random(200), feature_names=["a", "b", "ü"])
    booster = xgb.train({"max_depth": 4, "nthread": 1, **params}, data, num_boost_round=3)
    booster.set_attr(note="text")
    return booster


@pytest.mark.parametrize("params", [{}, {"num_parallel_tree": 3}, {"max_depth": 12}], ids=["trees", "forest", "deep"])
def test_xgboosts_bytes_round_trip(params: dict[str, Any]) -> None:
    """Every byte of XGBoost's files is understood: encoding what was decoded gives the same bytes."""
    data = bytes(train(**params).save_raw("ubj"))
    assert ubjson.encode(ubjson.decode(data)) == data


def test_xgboosts_json_says_the_same() -> None:
    booster = train()

    def lists(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist() if value.dtype.kind != "f" else [float(str(number)) for number in value]
        if isinstance(value, list):
            return [lists(item) for item in value]
        return {key: lists(item) for key, item in value.items()} if isinstance(value, dict) else value

    assert lists(ubjson.decode(bytes(booster.save_raw("ubj")))) == json.loads(booster.save_raw("json"))


def test_other_writers_containers() -> None:
    """Counted objects, typed objects, null, booleans and letters: valid, though XGBoost does not write them."""
    assert ubjson.decode(b"{#i\x01i\x01aT") == {"a": True}
    assert ubjson.decode(b"{$i#i\x02i\x01a\x05i\x01b\x06") == {"a": 5, "b": 6}
    assert ubjson.decode(b"[ZFCxHi\x0212D" + np.array(0.5, ">f8").tobytes() + b"]") == [None, False, "x", "12", 0.5]
    assert ubjson.decode(b"[$S#i\x02i\x01ai\x00") == ["a", ""]


def test_what_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="hold no float"):
        ubjson.encode({"a": 0.5})
    with pytest.raises(OverflowError, match="does not fit in 64 bits"):
        ubjson.encode(2**63)
    with pytest.raises(ModelFormatError, match="truncated or corrupt"):
        ubjson.decode(b"")
