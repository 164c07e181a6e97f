"""Labels and weights looked at on a GPU, or its emulation: what NumPy says of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.tracked import Module
from strategies.device_arrays import Place, place

from daskboost import DaskBoostClassifier
from daskboost.data.cuts.sketch import integer_weights, weight_exponent
from daskboost.data.input import device_read as device_columns
from daskboost.data.input import labels as weights
from daskboost.data.input.classes import ClassWeights, class_codes, read_codes, unique_labels
from daskboost.data.input.device_read import device_column, exact_doubles, exact_sum, looked_at
from daskboost.data.input.labels import LabelStats, count_classes, find_classes, total_weight
from daskboost.data.input.row_batch import DenseRows, DeviceColumn, RowBatch
from daskboost.data.input.source import make_source
from daskboost.devices.gpu.quantize.labels import summarize_labels
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import is_positive
from daskboost.errors import DataError, DataTypeError
from daskboost.exact_sum import ExactSum

__all__ = ["place"]

LABELS: dict[str, Any] = {
    "none": [],
    "one": [-2.5],
    "whole": [3, -1e30, 2**24 + 2, 0, -7],
    "halves below 2**23": [1, 2**22 + 0.5],
    "zero": [-0.0],
    "smallest": [1e-45, 0],
    "largest": [3.4028235e38, 16777217.0, -3.4028235e38],
}


def stats(labels: Any, n: int) -> LabelStats:
    return LabelStats.of(RowBatch(DenseRows(np.empty((n, 0), np.float32)), labels))


@pytest.mark.parametrize("name", LABELS)
def test_stats_are_the_hosts(runtime: Runtime, name: str) -> None:
    labels = np.array(LABELS[name], np.float32)
    there = runtime.xp.asarray(labels)
    found = stats(looked_at(runtime, there), len(labels))
    assert repr(found) == repr(stats(labels, len(labels)))


def every_exponent(rng: np.random.Generator) -> Any:
    """float32 of all sizes and signs, with those at the ends of ranges."""
    ends = np.array([0, 1, 0x7FFFFF, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F800000], np.uint32)
    sizes = np.concatenate([ends, np.arange(255, dtype=np.uint32) << 23 | rng.integers(1, 2**23, 255, np.uint32)])
    return np.concatenate([sizes, sizes | np.uint32(1 << 31)]).view(np.float32)


def test_numbers_become_doubles_exactly(runtime: Runtime, rng: np.random.Generator) -> None:
    values, xp = every_exponent(rng), Module() if runtime.xp is np else runtime.xp
    given = np.append(values, np.float32(np.nan))
    found = to_host(exact_doubles(runtime.xp.asarray(given), xp))
    assert found[:-1].tobytes() == values.astype(np.float64).tobytes()
    assert np.isnan(found[-1])  # with whatever bits


def test_what_is_above_zero(runtime: Runtime, rng: np.random.Generator) -> None:
    values = every_exponent(rng)
    found = to_host(is_positive(runtime.xp.asarray(values)))
    np.testing.assert_array_equal(found, values > 0)


def test_many_labels(runtime: Runtime, rng: np.random.Generator) -> None:
    labels = rng.standard_normal(20_001).astype(np.float32) * 100
    labels[rng.integers(0, 20_001, 99)] = np.nan
    labels[rng.integers(0, 20_001, 9)] = -np.inf
    whole = np.round(labels)
    for values in (labels, whole):
        summary = summarize_labels(runtime, runtime.xp.asarray(values))
        assert summary.n_missing == np.isnan(values).sum()
        assert summary.n_infinite == np.isinf(values).sum()
        assert summary.all_whole == (values is whole)
    finite = np.nan_to_num(labels, neginf=5)
    there = runtime.xp.asarray(finite)
    assert stats(looked_at(runtime, there), 20_001) == stats(finite, 20_001)


def test_a_copy_fetches_its_own(runtime: Runtime, rng: np.random.Generator) -> None:
    """What Dask moves to another process is not on its way from a GPU."""
    labels = rng.standard_normal(2_000_001).astype(np.float32)
    there = runtime.xp.asarray(labels)
    found = DeviceColumn(runtime, there, summarize_labels(runtime, there[:5]))
    host, _ = found.fetch(3)
    moved = copy.copy(found)
    for each in (found, moved, found):
        np.testing.assert_array_equal(each.on_host, labels)
    assert found.on_host is host is not moved.on_host


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are many, in several parts, the last of them smaller."""
    monkeypatch.setattr(device_columns, "FEW_ROWS", 1)
    monkeypatch.setattr(device_columns, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(device_columns, "CACHED_ROWS", 64)


CLASSES: dict[str, Any] = {
    "booleans": np.array([True, False]),
    "bytes": np.array([3, 0, 250], np.uint8),
    "negative": np.array([-7, 0, 12, 5], np.int16),
    "large": np.array([2**53, 2**53 + 1, -(2**62), 2**62 + 1], np.int64),
    "beyond int64": np.array([2**63 + 1, 2**63, 2**64 - 1, 0], np.uint64),
    "zeros": np.array([0.0, -0.0, 1.0], np.float32),
    "subnormal": np.array([1e-45, 0, -1e-45, 1e-38, -3e-39, 1.2e-38], np.float32),
    "half": np.array([1, 2, 60000, 6e-8, 0], np.float16),
    "double": np.array([0.1, 1e300, -5.0]),
    "one": np.array([4], np.int32),
}


def drawn(classes: Any, rng: np.random.Generator) -> Any:
    """Labels of every class."""
    labels = classes[rng.integers(0, len(classes), 430)]
    labels[: len(classes)] = classes
    return labels


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("shape", ["vector", "strided", "one column"])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_those_of_the_host(name: str, shape: str, place: Place, rng: np.random.Generator) -> None:
    labels = drawn(CLASSES[name], rng)
    there = place.array(labels[:, None] if shape == "one column" else labels)
    if shape == "strided":
        there = place.array(np.repeat(labels, 3))[::3]
    found, expected = unique_labels(there), unique_labels(labels)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()
    assert expected.tolist() == sorted(set(CLASSES[name].tolist()))
    shuffled = rng.permutation(expected).tolist()
    codes = read_codes(there, shuffled)
    assert isinstance(codes, DeviceColumn)
    np.testing.assert_array_equal(codes.on_host, class_codes(labels, shuffled))
    assert [shuffled[int(code)] for code in codes.on_host] == labels.tolist()
    assert codes.ends == (0, len(expected) - 1)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("labels", "classes"), [
    (np.array([1, 2, 7, 9, 7]), [1, 2]), (np.array([0.0, 0.5]), [0, 1]), (np.array([1.0, np.nan]), [1.0]),
    (np.array([2**63, 1], np.uint64), [0, 1]), (np.array([1, 2]), ["1", "2"]),
    (np.array([True, False]), [0, 2]), (np.array([np.inf]), [1.0]),
], ids=str)  # fmt: skip
def test_other_labels_are_refused_in_the_same_words(labels: Any, classes: Any, place: Place) -> None:
    def words(read: Callable[[Any], Any], given: Any) -> str | None:
        try:
            read(given)
        except DataError as error:
            return str(error)
        return None

    there = place.array(labels)
    codes = partial(read_codes, classes=classes)
    assert words(codes, there) == words(codes, labels) is not None
    assert words(unique_labels, there) == words(unique_labels, labels)
    assert (words(unique_labels, labels) is not None) == bool(np.isnan(labels).any())


@pytest.mark.parametrize("labels", [[2**64, 0], [-1, 2**63], [10**400, 0.5]], ids=["uint64", "both signs", "double"])
def test_integers_beyond_64_bits(labels: Any) -> None:
    with pytest.raises(DataTypeError, match="y holds integers beyond 64 bits"):
        unique_labels(np.array(labels, dtype=object))


def test_integers_that_float64_would_confuse(place: Place) -> None:
    """Where CuPy compares int64 with uint64 as float64, the host does it."""
    labels = np.full(2**16, 2**63 - 1, np.uint64)
    assert not isinstance(read_codes(place.array(labels), [0, 2**63 - 1]), DeviceColumn)
    with pytest.raises(DataError, match="not among the 2 classes"):
        read_codes(place.array(labels + 1), [0, 2**63 - 1])


def test_neighbours_among_unsigned_integers() -> None:
    """Classes, as Python's integers, are signed; float64 has but one of the neighbours."""
    labels, classes = np.array([2**53 + 1, 2**53, 5], np.uint64), [-1, 2**53, 5, 2**53 + 1]
    assert class_codes(labels, classes).tolist() == [3, 1, 2]
    for other in (2**53 + 2, 2**64 - 1):
        with pytest.raises(DataError, match=f"not among the 4 classes: {other}"):
            class_codes(np.append(labels, np.uint64(other)), classes)


def test_few_labels_come_to_the_host(place: Place) -> None:
    labels = np.arange(100) % 3
    assert isinstance(read_codes(place.array(labels), [0, 1, 2]), np.ndarray)
    assert isinstance(read_codes(place.array(np.resize(labels, 2**16)), [0, 1, 2]), DeviceColumn)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("nulls", [False, True])
def test_labels_of_frames(nulls: bool, place: Place, rng: np.random.Generator) -> None:
    labels = pd.Series(pd.array(drawn(CLASSES["negative"], rng), "Int16"))
    if nulls:
        labels[5] = pd.NA
        with pytest.raises(DataError, match="y has 1 missing labels"):
            unique_labels(place.frame(labels))
        return
    assert unique_labels(place.frame(labels)).tolist() == [-7, 0, 5, 12]
    codes = read_codes(place.frame(labels), [12, 5, 0, -7])
    assert isinstance(codes, DeviceColumn)
    np.testing.assert_array_equal(codes.on_host, class_codes(labels.to_numpy(np.int16), [12, 5, 0, -7]))


@pytest.mark.usefixtures("many")
def test_labels_of_an_index(place: Place) -> None:
    """cuDF's say of their nulls what Series do not; so they come to the host."""
    labels = pd.array([3, -1, 3], "Int16")
    assert read_codes(place.frame(pd.Index(labels)), [-1, 3]).tolist() == [1, 0, 1]  # type: ignore[union-attr]
    labels[1] = pd.NA
    with pytest.raises(DataError, match="y has 1 missing labels"):
        unique_labels(place.frame(pd.Index(labels)))


@pytest.mark.usefixtures("many")
def test_classes_of_a_source(place: Place, rng: np.random.Generator) -> None:
    labels = drawn(CLASSES["negative"], rng)
    source = make_source(place.array(np.zeros((430, 1), np.float32)), place.array(labels))
    classes = find_classes(source)
    assert classes.tolist() == [-7, 0, 5, 12]
    counts = count_classes(source, classes)
    assert counts.dtype == np.int64
    assert counts.tolist() == [int((labels == label).sum()) for label in (-7, 0, 5, 12)]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("where", ["both", "no weights", "labels", "weights"])
def test_weights_by_class(where: str, place: Place, rng: np.random.Generator) -> None:
    by_class = ClassWeights((0.1, 3.0, 1e-30), (1, 1, 1))
    codes, weight = rng.integers(0, 3, 430).astype(np.float32), rng.random(430).astype(np.float32)
    weight[:200] *= np.float32(1e-37)  # float32 below 2**-126, before or after the product
    there = {name: device_column(place.array(column), name) for name, column in (("y", codes), ("weight", weight))}
    assert there["y"] is not None
    expected = by_class.weigh(codes, None if where == "no weights" else weight)
    found = by_class.weigh(
        codes if where == "weights" else there["y"],
        {"both": there["weight"], "no weights": None, "labels": weight, "weights": there["weight"]}[where],
    )
    assert isinstance(found, DeviceColumn) == (where in ("both", "no weights"))
    np.testing.assert_array_equal(found.on_host if isinstance(found, DeviceColumn) else found, expected)
    factors = np.array(by_class.factors)[codes.astype(int)]
    np.testing.assert_array_equal(expected, (factors * (1 if where == "no weights" else weight)).astype(np.float32))


WEIGHTS: dict[str, Any] = {
    "some": [0.1, 3, 0, 1e-45, 0, 7e4],
    "wild": [3.4e38, 1e-38, 1e-45, 1, 3.3e38],
    "subnormal": [1e-40, 3e-42, 0, 1e-45, -0.0],
    "zeros": [0.0, -0.0],
    "double": np.array([0.1, 1e-60, 5e30]),
    "integers": np.array([1, 0, 2**40]),
    "booleans": np.array([True, False, True]),
}


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.array(WEIGHTS[name], np.float32) if isinstance(WEIGHTS[name], list) else WEIGHTS[name]
    weight = given.astype(np.float32)
    X, y = np.zeros((len(weight), 1), np.float32), np.zeros(len(weight))
    source = make_source(place.array(X), place.array(y), weight=place.array(given))
    (batch,), (expected,) = source.batches(), make_source(X, y, weight=given).batches()
    assert isinstance(batch.weight, DeviceColumn)
    assert batch.weight.on_host.tobytes() == weight.tobytes()
    assert repr(LabelStats.of(batch)) == repr(LabelStats.of(expected))
    assert exact_sum(batch.weight) == ExactSum.of(weight)
    exponent = weight_exponent(ExactSum.of(weight).value())
    units = integer_weights(batch.weight.values, exponent, batch.weight.runtime.xp)
    np.testing.assert_array_equal(to_host(units), integer_weights(weight, exponent))
    assert to_host(units).any() == weight.any()
    summed: list[DeviceColumn] = []

    def noted(column: DeviceColumn) -> ExactSum:
        summed.append(column)
        return exact_sum(column)

    monkeypatch.setattr(weights, "exact_sum", noted)
    assert total_weight(source, lambda blocks, function: [function(block) for block in blocks]) == sum(weight.tolist())
    assert len(summed) == 1, "where they lie"


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("bad", [-1e-45, np.nan, np.inf, -np.inf, 3.4028234663852886e38, 1e300])
def test_weights_that_are_refused(bad: float, place: Place) -> None:
    """In the words of the host; where they sum to no number, so that nothing is read, too."""
    given = np.array([2.0, bad, 0.5])
    given = given if abs(bad) == 1e300 else given.astype(np.float32)
    X, y = np.zeros((3, 1), np.float32), np.zeros(3)

    def words(read: Callable[[Any], Any], at: Callable[[Any], Any]) -> str:
        try:
            return repr(read(make_source(at(X), at(y), weight=at(given))))
        except DataError as error:
            return str(error)

    def total(source: Any) -> float | None:
        return total_weight(source, lambda blocks, function: [function(block) for block in blocks])

    def batches(source: Any) -> list[RowBatch]:
        return list(source.batches())

    for read in (total, batches):
        assert words(read, place.array) == words(read, lambda array: array)
    assert "weight has 1 values that are negative" in words(batches, place.array)


@pytest.mark.emulated
def test_columns_on_two_gpus_meet_on_the_host() -> None:
    codes, other = np.array([1, 0, 1], np.float32), EmulatedRuntime()
    other.device = 1
    there = looked_at(EmulatedRuntime(), codes), looked_at(other, np.array([3, 0.5, 0], np.float32))
    found = ClassWeights((2.0, 10.0), (1, 2)).weigh(*there)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [30, 1, 0]


def test_class_weights_that_float32_does_not_hold(rng: np.random.Generator) -> None:
    """The power of two that would make integers of them is beyond float64."""
    X, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    with pytest.raises(DataError, match="weight is 0 in all 30 rows"):
        DaskBoostClassifier(class_weight={0: 1e-300, 1: 1e-300}, device="cpu").fit(X, y)


def test_a_classifier_of_rows_on_the_device(many: None, place: Place, rng: np.random.Generator) -> None:
    """Classes, their weights and rows' weights, all from there, give the model that the host's give."""
    X = rng.normal(size=(900, 4)).astype(np.float32)
    y = np.array([-3, 5, 40])[np.digitize(X[:, 0] + 0.3 * rng.normal(size=900), [-0.5, 0.5])]
    weight = rng.integers(0, 3, 900) * 0.7
    params: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "class_weight": "balanced"}
    expected = DaskBoostClassifier(**params, device="cpu").fit(X, y, sample_weight=weight)
    found = DaskBoostClassifier(**params, device="cuda").fit(
        place.array(X), place.array(y), sample_weight=place.array(weight)
    )
    assert found.booster_.to_bytes() == expected.booster_.to_bytes()
    assert found.classes_.tolist() == [-3, 5, 40]
