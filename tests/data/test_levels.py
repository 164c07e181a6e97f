"""Levels of categorical columns: counted and coded alike in every container, merged in any order, refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import levels as naive

from daskboost import wire
from daskboost.data.categories.levels import LevelCounts, LevelRoom, Levels
from daskboost.data.categories.values import LevelValues
from daskboost.errors import DataError, DataTypeError, ModelFormatError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
FEW = st.sampled_from(["", "a", "b", "ä", "\U0001f388", "a longer text than eight bytes", "None", "nan", "1"])
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
SMALL = st.integers(-100, 100)
COLUMNS = st.one_of(*(st.lists(st.none() | each, max_size=30) for each in (TEXT, FEW, INTEGERS, SMALL, st.booleans())))


def halved(array: pa.Array) -> pa.ChunkedArray:
    half = len(array) // 2
    return pa.chunked_array([array[:half], array[half:]], array.type)


def two_dictionaries(array: pa.Array) -> pa.ChunkedArray:
    half = len(array) // 2
    return pa.chunked_array([part.dictionary_encode() for part in (array[:half], array[half:])])


def with_unused(values: list[Any]) -> pd.Series:
    present = list(dict.fromkeys(value for value in values if value is not None))
    return pd.Series(pd.Categorical(values, categories=pd.Index([*present[::-1], "unused", 2.5], dtype=object)))


def dictionary_with_nulls(values: list[Any], dtype: pa.DataType) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), pa.array(values, dtype))


def sliced(array: Any) -> Any:
    """The same rows as a part of a larger array of Arrow."""
    return pa.concat_arrays([array[:1], array, array[:1]])[min(len(array), 1) :][: len(array)]


def numpy_array(values: list[Any]) -> Any:
    return np.array(values) if values else np.empty(0, "U1")


Containers = dict[str, Callable[[list[Any]], Any]]
ANY: Containers = {
    "list": list,
    "object": lambda values: np.fromiter(values, object, len(values)),
    "pandas object": lambda values: pd.Series(values, dtype=object),
    "pandas object of NA": lambda values: pd.Series([pd.NA if v is None else v for v in values], dtype=object),
    "pandas object of NaN": lambda values: pd.Series([np.nan if v is None else v for v in values], dtype=object),
    "category": lambda values: pd.Series(pd.Series(values, dtype=object).astype("category")),
    "category with unused": with_unused,
}
"""Containers of texts, integers and booleans."""


def of_arrow(dtype: pa.DataType) -> Containers:
    return {
        f"{dtype}": lambda values: pa.array(values, dtype),
        f"slice of {dtype}": lambda values: sliced(pa.array(values, dtype)),
        f"chunked {dtype}": lambda values: halved(pa.array(values, dtype)),
        f"pandas {dtype}": lambda values: pd.Series(values, dtype=pd.ArrowDtype(dtype)),
        f"dictionary of {dtype}": lambda values: pa.array(values, dtype).dictionary_encode(),
        f"dictionaries of {dtype}": lambda values: two_dictionaries(pa.array(values, dtype)),
        f"dictionary with nulls of {dtype}": lambda values: dictionary_with_nulls(values, dtype),
        f"polars of {dtype}": lambda values: pl.Series(pl.from_arrow(pa.array(values, dtype))),
    }


TEXTS: Containers = {
    **ANY, **of_arrow(pa.string()), **of_arrow(pa.large_string()),
    "string view": lambda values: pa.array(values, pa.string_view()),
    "pandas string view": lambda values: pd.Series(values, dtype=pd.ArrowDtype(pa.string_view())),
    "pandas str": lambda values: pd.Series(values, dtype="str"),
    "pandas string": lambda values: pd.Series(values, dtype="string"),
    "pandas string of Python": lambda values: pd.Series(values, dtype="string[python]"),
    "polars categorical": lambda values: pl.Series(values, dtype=pl.Categorical),
    "NumPy strings": lambda values: np.array(
        [np.nan if v is None else v for v in values], np.dtypes.StringDType(na_object=np.nan)
    ),
}  # fmt: skip
INTEGER_CONTAINERS: Containers = {
    **ANY, **of_arrow(pa.int64()),
    "Int64": lambda values: pd.Series(values, dtype="Int64"),
    "masked": lambda values: np.ma.MaskedArray(
        np.array([v or 0 for v in values], np.int64), [v is None for v in values]
    ),
}  # fmt: skip
SMALL_CONTAINERS: Containers = {
    **INTEGER_CONTAINERS, **of_arrow(pa.int8()), **of_arrow(pa.float64()), **of_arrow(pa.float32()),
    "float64": lambda values: pd.Series(values, dtype="float64"),
    "big-endian": lambda values: np.array([np.nan if v is None else v for v in values], ">f8"),
    "sparse": lambda values: pd.Series(pd.arrays.SparseArray([np.nan if v is None else float(v) for v in values])),
    "float16": lambda values: np.array([np.nan if v is None else v for v in values], np.float16),
    "longdouble": lambda values: np.array([np.nan if v is None else v for v in values], np.longdouble),
    "Float32": lambda values: pd.Series(values, dtype="Float32"),
    "category of floats": lambda values: pd.Series(values, dtype="float64").astype("category"),
    "objects of floats": lambda values: pd.Series([None if v is None else float(v) for v in values], dtype=object),
}  # fmt: skip
BOOLEAN_CONTAINERS: Containers = {
    **ANY, **of_arrow(pa.bool_()), "boolean": lambda values: pd.Series(values, dtype="boolean"),
}  # fmt: skip
PRESENT: Containers = {"NumPy": numpy_array, "NumPy column": lambda values: numpy_array(values)[:, None]}
"""Containers of values of which none is missing."""


def containers_of(values: list[Any]) -> Containers:
    present = [value for value in values if value is not None]
    found = TEXTS
    if present and isinstance(present[0], bool):
        found = BOOLEAN_CONTAINERS
    elif present and isinstance(present[0], int):
        found = SMALL_CONTAINERS if max(map(abs, present)) < 128 else INTEGER_CONTAINERS
    return {**found, **(PRESENT if len(present) == len(values) else {})}


def in_frames(message: object) -> list[bytes]:
    return [bytes(frame) for frame in wire.encode(message)]


def plain(array: np.ndarray[Any, Any]) -> list[Any]:
    values: list[Any] = array.tolist()
    return values


@settings(max_examples=100, deadline=None)
@given(COLUMNS, st.integers(0, 6))
def test_every_container_gives_the_levels_of_the_naive_twin(values: list[Any], most: int) -> None:
    wanted, kept = naive.level_counts(values), naive.kept(values, most)
    frames = None
    for name, make in containers_of(values).items():
        column = make(values)
        counts = LevelCounts.of(column, "x")
        assert plain(counts.names) == list(wanted), name
        assert plain(counts.counts) == list(wanted.values()), name
        assert counts.n_missing == values.count(None), name
        assert plain(counts.hashes) == sorted(counts.hashes.tolist()), name
        frames = frames or in_frames(counts)
        assert in_frames(counts) == frames, name
        levels = Levels.kept(counts, LevelRoom(most))
        assert levels.values.plain == kept, name
        codes = levels.codes(column, "x")
        assert codes.dtype == np.int32
        assert plain(codes) == naive.codes(kept, values), name


@settings(max_examples=100, deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_partitions_merge_in_any_order(parts: list[list[Any]], random: Any) -> None:
    kinds = [{type(value) for value in part if value is not None} for part in parts]
    first = next((kind for kind in kinds if kind), set())
    parts = [part for part, kind in zip(parts, kinds, strict=True) if kind <= first]
    whole = LevelCounts.of([value for part in parts for value in part], "x")
    counted = [LevelCounts.of(part, "x") for part in parts]
    random.shuffle(counted)
    total = counted[0]
    for part in counted[1:]:
        total = part + total if random.random() < 0.5 else total + part
    assert in_frames(total) == in_frames(whole)


@settings(max_examples=60, deadline=None)
@given(COLUMNS, COLUMNS, st.integers(0, 6))
def test_levels_survive_files_and_messages(values: list[Any], others: list[Any], most: int) -> None:
    counts = LevelCounts.of(values, "x")
    levels = Levels.kept(counts, LevelRoom(most))
    read = Levels.from_json(json.loads(json.dumps(levels.to_json())))
    sent = wire.decode(wire.encode(levels))
    assert in_frames(wire.decode(wire.encode(counts))) == in_frames(counts)
    assert levels.n_pooled_levels == counts.n_levels - levels.n_levels
    assert levels.n_pooled_rows + int(levels.counts.sum()) + levels.n_missing == counts.n_rows == len(values)
    for other in (read, sent):
        assert other.to_json() == levels.to_json()
        assert plain(other.codes(values, "x")) == plain(levels.codes(values, "x"))


def test_levels_are_ordered_by_rows_then_by_value() -> None:
    texts = ["b", "a", "\U0001f388", "\uffff", "c", "c"]
    assert plain(Levels.kept(LevelCounts.of(texts, "x"), LevelRoom(9)).names) == ["c", "a", "b", "\uffff", "\U0001f388"]
    assert plain(Levels.kept(LevelCounts.of([10, 9, -1, 9], "x"), LevelRoom(9)).names) == [9, -1, 10]


@pytest.mark.parametrize("most", [0, 1, 3, 4, 50, 99, 100, 101])
@pytest.mark.parametrize("as_text", [False, True])
def test_few_of_many_equally_frequent_levels_are_those_of_least_hashes(most: int, as_text: bool) -> None:
    values = [str(number) if as_text else number for number in np.random.default_rng(0).permutation(100).tolist()]
    levels = Levels.kept(LevelCounts.of([*values, values[7]], "x"), LevelRoom(most))
    assert levels.values.plain == naive.kept([*values, values[7]], most)
    assert (levels.n_pooled_levels, levels.n_pooled_rows) == (100 - len(levels.names), 101 - int(levels.counts.sum()))


def test_kinds_are_different_levels() -> None:
    kinds = [LevelCounts.of(values, "x").kind for values in (["1"], [1], [True], [None], [])]
    assert kinds == ["text", "integer", "boolean", "", ""]


@pytest.mark.parametrize("values", [["a"], [1], [True], [None]])
def test_columns_without_values_fit_every_kind(values: list[Any]) -> None:
    counts = LevelCounts.of(values, "x")
    empties = [
        pd.Series([], dtype="datetime64[ns]"), pd.Series([None, pd.NaT]), np.full(3, np.nan), pa.nulls(2),
        pd.Series([None], dtype="datetime64[ns]"), pd.Series([None]).astype("category"),
        np.array(["NaT"], "M8[s]"), pd.Series([None], dtype=pd.ArrowDtype(pa.date32())), [], np.empty(0, "U0"),
    ]  # fmt: skip
    for empty in empties:
        nothing = LevelCounts.of(empty, "x")
        assert (nothing.kind, nothing.n_levels, nothing.n_missing) == ("", 0, len(empty))
        assert in_frames(nothing + counts) == in_frames(counts + nothing)
        assert (nothing + counts).kind == counts.kind
        assert plain(Levels.kept(counts, LevelRoom(9)).codes(empty, "x")) == [-1] * len(empty)
        assert plain(Levels.kept(nothing, LevelRoom(9)).codes(values, "x")) == [-1 if v is None else -2 for v in values]


def test_the_same_value_twice_in_a_dictionary_is_one_level() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(["a", "b", "a"]))
    counts = LevelCounts.of(column, "x")
    assert dict(zip(counts.names, counts.counts, strict=True)) == {"a": 2, "b": 1}
    zeros = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array([0.0, -0.0]))
    assert plain(LevelCounts.of(zeros, "x").counts) == [3]


OBJECT = np.empty(1, object)
OBJECT[0] = [1, 2]
REFUSED: dict[str, tuple[Any, type[DataError], str]] = {
    "3 and '3'": ([3, "3"], DataTypeError, r"mixes numbers \(such as 3\) and strings \(such as '3'\).*astype\(str\)"),
    "True and 1": ([True, 1], DataTypeError, r"mixes booleans \(such as True\) and numbers \(such as 1\).*one type"),
    "mixed categories": (pd.Series(["a", 3]).astype("category"), DataTypeError, r"mixes numbers.*'a'"),
    "fractions": (np.array([1, 2.5]), DataTypeError, r"holds 2\.5 of type float64.*Round"),
    "fractions of float32": (np.array([0.5], np.float32), DataTypeError, r"holds 0\.5 of type float32.*Round"),
    "Arrow's fractions": (pa.array([1.5]), DataTypeError, r"holds 1\.5 of type float64.*Round"),
    "fractions as objects": ([1, 2.5], DataTypeError, r"holds 2\.5 of type float64.*Round"),
    "categories of fractions": (pd.Series([1.5]).astype("category"), DataTypeError, r"holds 1\.5.*Round"),
    "decimals": ([Decimal("1.5")], DataTypeError, r"holds Decimal\('1\.5'\) of type Decimal.*Round"),
    "infinite": (np.array([np.inf]), DataError, r"holds inf, which is no level.*Replace"),
    "doubtful": (np.array([2.0**53]), DataError, r"holds 9007199254740992 as float64.*Int64"),
    "doubtful float32": (np.array([-(2.0**24)], np.float32), DataError, r"holds -16777216 as float32.*Int64"),
    "doubtful longdouble": (np.array([2.0**64], np.longdouble), DataError, r"holds 18446744073709551616.*strings"),
    "beyond uint64": ([2**64], DataError, r"holds 18446744073709551616, which does not fit.*strings"),
    "uint64": (np.array([2**63], np.uint64), DataError, r"holds 9223372036854775808, which does not fit.*strings"),
    "Arrow's uint64": (pa.array([2**63], pa.uint64()), DataError, r"holds 9223372036854775808.*strings"),
    "dates": (pd.Series(pd.date_range("2020", periods=1)), DataTypeError, r"holds datetime.*2020, 1, 1.*month"),
    "dates of a zone": (pd.Series(pd.date_range("2020", periods=1, tz="UTC")), DataTypeError, r"2020-01-01.*month"),
    "dates as objects": ([date(2020, 1, 1)], DataTypeError, r"2020, 1, 1\) of type date,.*month"),
    "Arrow's dates": (pa.array([date(2020, 1, 1)]), DataTypeError, r"2020, 1, 1\) of type date32.*month"),
    "durations": (pd.Series([timedelta(days=1)]), DataTypeError, r"days=1.*whole days"),
    "bytes": (np.array([b"a"]), DataTypeError, r"holds b'a'.*decode"),
    "bytes as objects": ([b"a"], DataTypeError, r"holds b'a' of type bytes.*decode"),
    "Arrow's bytes": (pa.array([b"a"]), DataTypeError, r"holds b'a' of type binary.*decode"),
    "unhashable": (OBJECT, DataTypeError, r"holds \[1, 2\] of type list.*astype\(str\)"),
    "Arrow's lists": (pa.array([[1, 2]]), DataTypeError, r"holds \[1, 2\] of type list.*astype\(str\)"),
    "tuples": ([("a", 1)], DataTypeError, r"holds \('a', 1\) of type tuple.*astype\(str\)"),
    "intervals": (pd.Series(pd.cut([1, 2], 1)), DataTypeError, r"holds Interval.*astype\(str\)"),
    "plain intervals": (pd.Series(pd.interval_range(0, 1)), DataTypeError, r"holds Interval\(0, 1.*astype\(str\)"),
    "periods": (pd.Series(pd.period_range("2020", periods=1)), DataTypeError, r"holds Period.*astype\(str\)"),
    "complex": (np.array([1 + 2j]), DataTypeError, r"holds \(1\+2j\) of type complex128.*astype\(str\)"),
    "dictionaries of Python": (pd.Series([{"a": 1}]), DataTypeError, r"holds \{'a': 1\} of type dict.*astype\(str\)"),
    "no Unicode": (["\ud800"], DataError, r"holds the text '\\ud800'.*Replace"),
    "NumPy's texts that are no Unicode": (np.array(["a", "\ud800"]), DataError, r"holds the text '\\ud800'.*Replace"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_values_are_refused_by_name_and_value(case: str) -> None:
    column, error, message = REFUSED[case]
    levels = Levels.kept(LevelCounts.of([], "color"), LevelRoom(3))
    for read in (LevelCounts.of, levels.codes):
        with pytest.raises(error, match=rf"^column 'color' {message}" if "mixes" in message else message) as caught:
            read(column, "color")
        assert str(caught.value).startswith("column 'color' ")


@pytest.mark.parametrize("frame", [pd.DataFrame({"a": [1]}), pa.table({"a": [1], "b": [2]}), np.zeros((2, 2))])
def test_frames_are_no_columns(frame: Any) -> None:
    with pytest.raises(DataTypeError, match=r"column 'x' is of shape \(., .\), which is no column. Pass a single one"):
        LevelCounts.of(frame, "x")


def test_unused_categories_are_not_looked_at() -> None:
    column = pd.Series(pd.Categorical([1, 2], categories=pd.Index([1, 2, "x", 2.5, date(2020, 1, 1)], dtype=object)))
    assert plain(np.sort(LevelCounts.of(column, "x").names)) == [1, 2]


def test_partitions_of_different_kinds_are_refused() -> None:
    with pytest.raises(DataTypeError, match=r"column 'zip' mixes numbers \(such as 3\) and strings \(such as '3'\)"):
        LevelCounts.of([3], "zip") + LevelCounts.of(["3"], "zip")


@pytest.mark.parametrize(("trained", "given_"), [(["3"], [3]), ([3], ["3"]), ([True], [1]), ([1], np.array([False]))])
def test_another_kind_than_in_training_is_refused(trained: list[Any], given_: Any) -> None:
    levels = Levels.kept(LevelCounts.of(trained, "zip"), LevelRoom(3))
    with pytest.raises(DataTypeError, match=rf"column 'zip' holds .*{given_[0]}.* in training. Convert it") as caught:
        levels.codes(given_, "zip")
    assert repr(trained[0]) in str(caught.value)


GOOD = Levels.kept(LevelCounts.of(["a", "b", "a", None, "c"], "x"), LevelRoom(2)).to_json()
DAMAGED: dict[str, object] = {
    "no object": [1], "a field too few": {"kind": "text"}, "a field more": {**GOOD, "x": 1},
    "another kind": {**GOOD, "kind": "float"}, "no text as kind": {**GOOD, "kind": []},
    "names of another kind": {**GOOD, "names": [1, 2]}, "names without a kind": {**GOOD, "kind": ""},
    "booleans as integers": {**GOOD, "kind": "integer", "names": [True, False]},
    "the same name twice": {**GOOD, "names": ["a", "a"]}, "a name too few": {**GOOD, "names": ["a"]},
    "names that are no list": {**GOOD, "names": "ab"}, "no rows": {**GOOD, "counts": [1, 0]},
    "negative rows": {**GOOD, "n_missing": -1}, "half a row": {**GOOD, "n_pooled_rows": 0.5},
    "too many rows": {**GOOD, "counts": [1, 2**63]}, "no Unicode": {**GOOD, "names": ["a", "\ud800"]},
    "too large a name": {**GOOD, "kind": "integer", "names": [1, 2**63]},
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(case: str) -> None:
    with pytest.raises(ModelFormatError, match="the model is corrupt: levels of 'x' "):
        Levels.from_json(DAMAGED[case], "levels of 'x'")


@pytest.mark.parametrize(
    ("kind", "n_bytes", "ends"),
    [("text", 3, [0, 4]), ("text", 3, [1, 3]), ("text", 3, [0, 3, 1, 3]), ("text", 0, []), ("integer", 9, [0, 9]),
     ("float", 3, [0, 3]), ("text", 0, [0]), ("", 3, [0, 3])],
)  # fmt: skip
def test_messages_with_ends_beyond_their_bytes_are_refused(kind: str, n_bytes: int, ends: list[int]) -> None:
    with pytest.raises(ValueError, match=r"ends of shape|values are not"):
        LevelValues(kind, np.zeros(n_bytes, np.uint8), np.array(ends, np.int64))
