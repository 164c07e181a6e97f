"""Key counts: against the naive twin, and the law that order and partitioning leave no trace."""

from __future__ import annotations

import functools
import itertools
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import sketch as reference

from daskboost.data.cuts import key_counts
from daskboost.data.cuts.key_counts import KeyTable, keys_of, values_of
from daskboost.errors import DataError

unhurried = settings(deadline=None, max_examples=150)
floats = st.floats(allow_nan=False, width=32)
# Few distinct values, neighbours in the last bits, denormals, both zeros, and anything at all.
values_lists = st.lists(
    st.one_of(
        floats,
        st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.5]),
        st.integers(0, 40).map(lambda i: float(np.float32(1) + np.float32(i) * np.finfo(np.float32).eps)),
        st.integers(0, 9).map(lambda i: i * float(np.finfo(np.float32).smallest_subnormal)),
    ),
    max_size=60,
)
capacities = st.integers(1, 20)


def dump(counts: KeyTable) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in counts.to_arrays().items()}


@unhurried
@given(st.lists(floats, min_size=1, max_size=30))
def test_keys_order_as_values_and_return(values: list[float]) -> None:
    array = np.array(values, np.float32)
    keys = keys_of(array)
    assert keys.tolist() == [reference.key(value) for value in values]
    assert (values_of(keys) == array).all()
    assert ((keys[:, None] < keys) == (array[:, None] < array)).all()


@pytest.mark.parametrize("counts", [None, np.zeros((0, 2), np.int64)])
def test_of_nothing_no_kernel_counts_anything(counts: np.ndarray | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "daskboost.devices.cpu.sketch", None)  # an import of it raises
    found = KeyTable.of([], counts, capacity=9)
    assert (found.bits.tolist(), found.offsets.tolist()) == ([32], [0, 0])
    assert found.counts.shape == (0, 1 if counts is None else 2)


@unhurried
@given(values_lists, capacities, st.data())
def test_counts_equal_the_naive_twin(values: list[float], capacity: int, data: st.DataObject) -> None:
    row = st.lists(st.sampled_from([0, 0, 1, 5, 2**40]), min_size=2, max_size=2)
    counts = data.draw(st.lists(row, min_size=len(values), max_size=len(values)))
    found = KeyTable.of(values, np.array(counts, np.int64).reshape(-1, 2), capacity=capacity)
    bits, cells = reference.key_counts(values, counts, capacity)
    assert found.bits.tolist() == [bits]
    assert found.counts.tolist() == [sums for _, _, sums in cells]
    assert found.lower.tolist() == [low for low, _, _ in cells]
    assert found.upper.tolist() == [high for _, high, _ in cells]


@unhurried
@given(values_lists, capacities)
def test_counts_of_ones_equal_the_naive_twin(values: list[float], capacity: int) -> None:
    found = KeyTable.of(values, capacity=capacity)
    bits, cells = reference.key_counts(values, [[1]] * len(values), capacity)
    assert (found.bits.tolist(), found.counts.tolist()) == ([bits], [sums for _, _, sums in cells])
    assert len(found.lower) <= capacity
    assert found.counts.sum() == len(values)


@unhurried
@given(values_lists, capacities, st.randoms(use_true_random=False), st.lists(st.integers(0, 60), max_size=6))
def test_order_partitions_and_merge_order_leave_no_trace(
    values: list[float], capacity: int, generator: random.Random, cuts: list[int]
) -> None:
    whole = dump(KeyTable.of(values, capacity=capacity))
    shuffled = values.copy()
    generator.shuffle(shuffled)
    bounds = [0, *sorted(cuts), len(values)]
    parts = [KeyTable.of(shuffled[a:b], capacity=capacity) for a, b in itertools.pairwise(bounds)]
    while len(parts) > 1:  # any tree of merges
        first, second = (parts.pop(generator.randrange(len(parts))) for _ in range(2))
        parts.append(first + second)
    assert dump(parts[0]) == whole


@unhurried
@given(values_lists, values_lists, values_lists, capacities)
def test_merging_is_associative_and_commutative(a: list[float], b: list[float], c: list[float], capacity: int) -> None:
    x, y, z = (KeyTable.of(part, capacity=capacity) for part in (a, b, c))
    assert dump((x + y) + z) == dump(x + (y + z))
    assert dump(x + y) == dump(y + x)
    nothing = KeyTable.of([], capacity=capacity)
    assert dump(x + nothing) == dump(nothing + x) == dump(x)
    assert (nothing + x) is x, "which takes no time"


def test_many_values_of_every_shape_merge_to_the_whole(rng: np.random.Generator) -> None:
    n = 60_000
    shapes = {
        "normal": rng.standard_normal(n),
        "heavy tails": np.exp(rng.normal(0, 15, n)),
        "integers": rng.integers(0, 5000, n),
        "narrow band": 1000 + 1e-2 * rng.random(n),
        "constant": np.full(n, 3.5),
        "denormals": rng.integers(0, 2**14, n) * 2.0**-149,
    }
    for name, shape in shapes.items():
        values = shape.astype(np.float32)
        counts = rng.integers(0, 3, n)
        whole = KeyTable.of(values, counts, capacity=500)
        parts = [
            KeyTable.of(v, c, capacity=500)
            for v, c in zip(np.array_split(values, 7), np.array_split(counts, 7), strict=True)
        ]
        assert dump(functools.reduce(KeyTable.merged, parts)) == dump(whole), name
        distinct = len(np.unique(values[counts > 0]))
        assert (whole.lower == whole.upper).all() == (distinct <= 500), name
        if distinct > 500:  # the next finer resolution would not fit
            keys = keys_of(values[counts > 0])
            assert len(np.unique(keys >> np.uint32(31 - whole.bits[0]))) > 500 >= len(whole.lower), name


def test_the_wire_form_returns() -> None:
    counts = KeyTable.of([1.0, 2.0, -3.0, 2.0], [[1, 0], [0, 1], [2, 2], [1, 1]], capacity=3)
    assert dump(KeyTable.from_arrays(counts.to_arrays())) == dump(counts)


def test_the_example_of_the_docstring() -> None:
    left, right = (KeyTable.of(part, capacity=4) for part in ([1, 2, 2], [3, 1]))
    both = left + right
    assert values_of(both.lower).tolist() == [1.0, 2.0, 3.0]
    assert both.counts[:, 0].tolist() == [2, 2, 1]
    assert (both.bits.tolist(), both.capacities.tolist(), both.upper.tolist()) == ([32], [4], both.lower.tolist())


def test_inputs_are_not_changed() -> None:
    values, counts = np.array([3, 1, 2], np.float32), np.array([1, 2, 3])
    KeyTable.of(values, counts, capacity=2)
    assert (values.tolist(), counts.tolist()) == ([3, 1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], None, 0), "capacity: 0 is not positive; keep at least one cell"),
        (([float("nan")], None, 1), "values: contain NaN"),
        (([1.0], [[1], [2]], 1), "counts: 2 rows for 1 values; pass one row per value"),
        (([1.0], [-1], 1), "counts: the least is -1; pass counts that are not negative"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[list[float], object, int], message: str) -> None:
    values, counts, capacity = arguments
    with pytest.raises(DataError, match=message):
        KeyTable.of(values, counts, capacity=capacity)  # type: ignore[arg-type]


def test_counts_of_unlike_kinds_do_not_merge() -> None:
    with pytest.raises(DataError, match="only if they have the same series, capacities and count columns"):
        KeyTable.of([1.0], capacity=3) + KeyTable.of([1.0], capacity=4)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("lower", None, "'lower' is not an array of uint32"),
        ("counts", np.zeros((2, 1), np.int32), "'counts' is not an array of int64"),
        ("counts", np.zeros((3, 1), np.int64), "shapes and offsets contradict each other"),
        ("offsets", np.array([0, 5], np.int64), "shapes and offsets contradict each other"),
        ("bits", np.array([33], np.uint8), "shapes and offsets contradict each other"),
    ],
)
def test_foreign_arrays_are_refused(name: str, array: np.ndarray | None, message: str) -> None:
    arrays = KeyTable.of([1.0, 2.0], capacity=3).to_arrays()
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    with pytest.raises(DataError, match=message):
        KeyTable.from_arrays(arrays)


@unhurried
@given(st.lists(st.tuples(values_lists, values_lists, capacities), min_size=1, max_size=6), st.integers(2, 4))
def test_threads_leave_no_trace(series: list[tuple[list[float], list[float], int]], threads: int) -> None:
    """Series that threads have merged are those of a plain sum, to the byte."""

    def table(which: int) -> KeyTable:
        keys = [keys_of(np.array(own[which], np.float32)) for own in series]
        ends = np.cumsum([len(own) for own in keys])
        starts = ends - [len(own) for own in keys]
        return KeyTable.count(np.concatenate(keys), None, starts, ends, np.array([own[2] for own in series]))

    left, right = table(0), table(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_counts, "LEAST_MERGED_CELLS", 1)
        found, expected = left.merged(right, threads), left + right
    for name, array in expected.to_arrays().items():
        assert found.to_arrays()[name].tobytes() == array.tobytes(), name
