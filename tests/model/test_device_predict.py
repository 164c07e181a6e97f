"""Rows on a GPU are predicted there: the CPU's bytes, in the kind that came in, and nothing copied to the host.

Without a GPU, arrays that claim to be CuPy's stand in, and the emulation runs the kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dask.array as da
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from dask.array.dispatch import concatenate_lookup
from kernels.emulation import EmulatedRuntime
from kernels.runtimes import EMULATED
from model.random_models import OBJECTIVES, random_booster, random_codes, random_rows
from model.test_lazy_predict import CASES
from strategies.trees import make_data, quantized

from daskboost import QuantizedDataset, train
from daskboost.devices.gpu import predict as predict_vectors
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.model.output import DEVICE_FORESTS, Output
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import SquaredError


class FakeCupyArray(np.ndarray):
    """Claims to lie on a GPU."""


FakeCupyArray.__module__, FakeCupyArray.__name__ = "cupy._core.core", "ndarray"


class FakeCupyMatrix(sp.csr_matrix):  # type: ignore[misc]
    """Claims to be cupyx's, of arrays that lie on a GPU."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, fake(value) if name in ("data", "indices", "indptr") else value)


FakeCupyMatrix.__module__ = "cupyx.scipy.sparse._csr"


@pytest.fixture(params=EMULATED)
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EmulatedRuntime:
    runtime: EmulatedRuntime = request.param()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    return runtime


def fake(values: Any) -> Any:
    return values.view(FakeCupyArray)


def csr_of(values: Any, kind: Any = sp.csr_matrix) -> Any:
    present = ~np.isnan(values)
    return kind((values[present], np.nonzero(present)), values.shape)


@pytest.mark.emulated
@pytest.mark.parametrize(("objective", "output"), CASES)
def test_every_output(
    emulated: EmulatedRuntime, rng: np.random.Generator, objective: Objective, output: Output
) -> None:
    booster, values = random_booster(rng, objective), random_rows(rng, 70)
    expected = booster.predict(values, output=output)
    found = booster.predict(fake(values), output=output)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    assert booster.device_forests


@pytest.mark.emulated
@pytest.mark.parametrize("n_features", [5, 400])
@pytest.mark.parametrize("n_classes", [2, 35])
def test_vectors(
    emulated: EmulatedRuntime, rng: np.random.Generator, n_classes: int, n_features: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of any width, of narrow rows, wide ones and sparse ones, a few of whose leaves are found at a time."""
    monkeypatch.setattr(predict_vectors, "LEAF_BYTES", 4 * 6 * 33)
    booster = random_booster(rng, SoftProb(n_classes), n_features=n_features, vectors=True)
    values, margin = random_rows(rng, 70, n_features), rng.normal(size=(70, n_classes))
    outputs: tuple[Output, ...] = ("margin", "prediction", "class", "leaf")
    for output in outputs:
        expected = booster.predict(values, output=output)
        for given in (fake(values), fake(values.astype(np.float64)), csr_of(values, FakeCupyMatrix)):
            assert booster.predict(given, output=output).tobytes() == expected.tobytes()
    expected = booster.predict(values, output="margin", base_margin=margin, iteration_range=(1, 4))
    found = booster.predict(fake(values), output="margin", base_margin=margin, iteration_range=(1, 4))
    assert found.tobytes() == expected.tobytes()
    values[[3, 60], [1, 4]] = np.inf
    for given in (fake(values), csr_of(values, FakeCupyMatrix)):
        with pytest.raises(DataError, match=r"infinite or too large for float32 .3.4e38. in: 'f1', 'f4'"):
            booster.predict(given)


CODES: dict[str, list[int]] = {
    "bits": list(range(40)), "few": [3, 4], "lists": [0, 7, *range(1_000, 60_000, 911), 2**24 - 1],
}  # fmt: skip
"""Codes that sets of categories hold, as bits or as lists."""


def finite_codes(rng: np.random.Generator, codes: list[int], n_rows: int) -> Any:
    """Return rows for models with these codes, without what no features may be."""
    values = random_codes(rng, n_rows, codes)
    return np.where(np.isinf(values), np.float32(5), values)


@pytest.mark.emulated
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("vectors", [False, True])
def test_sets_of_categories(emulated: EmulatedRuntime, rng: np.random.Generator, codes: str, vectors: bool) -> None:
    booster = random_booster(rng, SoftProb(3), codes=CODES[codes], vectors=vectors)
    assert any(tree.sets for tree in booster.trees)
    values = finite_codes(rng, CODES[codes], 300)
    outputs: tuple[Output, ...] = ("margin", "leaf")
    for output in outputs:
        for missing in (np.nan, 0.25, 3.0):
            expected = booster.predict(values, output=output, missing=missing)
            for given in (fake(values), fake(values.astype(np.float64)), csr_of(values, FakeCupyMatrix)):
                assert booster.predict(given, output=output, missing=missing).tobytes() == expected.tobytes()
    assert booster.predict(values, device="cuda").tobytes() == booster.predict(values, device="cpu").tobytes()
    values[[3, 200], [0, 1]] = np.inf
    with pytest.raises(DataError, match=r"infinite or too large for float32 .3.4e38. in: 'f0', 'f1'"):
        booster.predict(fake(values))


@pytest.mark.gpu
@pytest.mark.parametrize("codes", CODES)
def test_sets_of_categories_on_a_gpu(rng: np.random.Generator, codes: str) -> None:
    import cupy

    booster = random_booster(rng, SoftProb(3), codes=CODES[codes], n_iterations=30)
    values = finite_codes(rng, CODES[codes], 5_000)
    outputs: tuple[Output, ...] = ("margin", "leaf")
    for output in outputs:
        expected = booster.predict(values, output=output, device="cpu")
        assert cupy.asnumpy(booster.predict(cupy.asarray(values), output=output)).tobytes() == expected.tobytes()
        assert booster.predict(values, output=output, device="cuda").tobytes() == expected.tobytes()


@pytest.mark.emulated
@pytest.mark.parametrize("objective", ["reg:squarederror", "multi:softprob"])
def test_linear_leaves(
    emulated: EmulatedRuntime, rng: np.random.Generator, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows at a time, of any type and layout; also iterations whose leaves are constant."""
    monkeypatch.setattr(predict_vectors, "LEAF_BYTES", 4 * 6 * 33)
    monkeypatch.setattr(predict_vectors, "CONVERTED_BYTES", 4 * 5 * 20)
    data = make_data(rng, objective, n_values=40)
    params = {"objective": objective, "num_class": 5 if objective == "multi:softprob" else 0, "device": "cpu"}
    with quantized(data) as rows:
        first = train({**params, "max_depth": 3}, rows, 1)
        booster = train({**params, "max_depth": 3, "linear_leaves": True}, rows, 2, init_model=first)
    values = data.X[:150].copy()
    values[:40] = random_rows(rng, 40, 5)
    kinds = (fake(values), fake(values.astype(np.float64)), fake(np.asfortranarray(values)),
             csr_of(values, FakeCupyMatrix))  # fmt: skip
    for range_ in ((0, 0), (0, 1), (1, 3)):
        expected = booster.predict(values, output="margin", iteration_range=range_)
        for given in kinds:
            assert booster.predict(given, output="margin", iteration_range=range_).tobytes() == expected.tobytes()
    for given in (fake(values), csr_of(values, FakeCupyMatrix)):
        expected = booster.predict(values, missing=0.25)
        assert booster.predict(given, missing=0.25).tobytes() == expected.tobytes()
        assert booster.predict(given, output="leaf").tobytes() == booster.predict(values, output="leaf").tobytes()
    assert booster.predict(values, device="cuda").tobytes() == booster.predict(values).tobytes()


@pytest.mark.emulated
def test_ranges_of_iterations_have_forests_of_their_own(emulated: EmulatedRuntime, rng: np.random.Generator) -> None:
    booster, values = random_booster(rng, SoftProb(3)), random_rows(rng, 20)
    for range_ in ((0, 0), (1, 3), (0, 2), (5, 6), (2, 4), (1, 3)):
        for output in ("margin", "leaf"):
            expected = booster.predict(values, output=output, iteration_range=range_)
            found = booster.predict(fake(values), output=output, iteration_range=range_)
            np.testing.assert_array_equal(found, expected)
            assert len(booster.device_forests) <= DEVICE_FORESTS
    kept = booster.device_forests[emulated, (3, 9), False]
    booster.predict(fake(values), output="margin", iteration_range=(1, 3))
    assert booster.device_forests[emulated, (3, 9), False] is kept


@pytest.mark.emulated
def test_a_forest_that_another_thread_drops_at_once_is_used(
    emulated: EmulatedRuntime, rng: np.random.Generator
) -> None:
    class Forgetful(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            """As if other threads had made `DEVICE_FORESTS` forests since."""

    booster, values = random_booster(rng, SquaredError()), random_rows(rng, 20)
    booster.__dict__["device_forests"] = Forgetful()
    np.testing.assert_array_equal(booster.predict(fake(values)), booster.predict(values))


@pytest.mark.emulated
@pytest.mark.parametrize("missing", [np.nan, -0.5, 0.0])
def test_matrices(emulated: EmulatedRuntime, rng: np.random.Generator, missing: float) -> None:
    booster, values = random_booster(rng, Logistic()), random_rows(rng, 90)
    expected = booster.predict(values, missing=missing)
    matrix = csr_of(values, FakeCupyMatrix)
    doubled = FakeCupyMatrix((np.repeat(matrix.data / 2, 2), np.repeat(matrix.indices, 2), 2 * matrix.indptr), (90, 5))
    doubled.has_canonical_format = False
    for given in (fake(values), fake(values.astype(np.float64)), fake(np.asfortranarray(values)), matrix, doubled):
        found = booster.predict(given, missing=missing)
        assert found.tobytes() == expected.tobytes()
    assert doubled.nnz == 2 * matrix.nnz  # the user's matrix is left alone


@pytest.mark.emulated
def test_base_margins(emulated: EmulatedRuntime, rng: np.random.Generator) -> None:
    booster, values = random_booster(rng, SoftProb(3)), random_rows(rng, 30)
    margin = rng.normal(size=(30, 3))
    expected = booster.predict(values, base_margin=margin)
    for given in (fake(margin), margin, margin.tolist(), pl.from_numpy(margin), nw.from_native(pl.from_numpy(margin))):
        np.testing.assert_array_equal(booster.predict(fake(values), base_margin=given), expected)
    single = random_booster(rng, SquaredError())
    np.testing.assert_array_equal(
        single.predict(fake(values), base_margin=fake(margin[:, 0])), single.predict(values, base_margin=margin[:, 0])
    )
    np.testing.assert_array_equal(
        single.predict(fake(values), base_margin=pl.Series(margin[:, 0])),
        single.predict(values, base_margin=margin[:, 0]),
    )
    for bad, message in (
        (margin[:, :2], r"base_margin has shape \(30, 2\), but X has 30 rows and the model 3 outputs"),
        (margin[:29], "base_margin has 29 rows where X has 30"),
        (np.where(margin == margin[3, 1], np.nan, margin), "base_margin has 1 missing values"),
        (np.where(margin == margin[3, 1], np.inf, margin), "base_margin has 1 values that are infinite"),
        (np.full((30, 3), "a"), "must hold a number per row"),
    ):
        with pytest.raises(DataError, match=message):
            booster.predict(fake(values), base_margin=bad)
    with pytest.raises(DataError, match="base_margin is 'm', but X has no column names"):
        booster.predict(fake(values), base_margin="m")


@pytest.mark.emulated
def test_refusals(emulated: EmulatedRuntime, rng: np.random.Generator) -> None:
    """Those that rows on the host meet."""
    booster, values = random_booster(rng, Logistic(), names=True), random_rows(rng, 30)
    with pytest.raises(ParameterError, match=r"output='contributions' is computed on the CPU: pass X .* X.get\(\)"):
        booster.predict(fake(values), output="contributions")
    with pytest.raises(DataError, match="X has 4 features, but 5 were used in training"):
        booster.predict(fake(values[:, :4]))
    with pytest.raises(DataError, match=r"X has 1 dimension\(s\), but must have 2"):
        booster.predict(fake(values[0]))
    with pytest.raises(DataTypeError, match="X is an array of type complex64, which is not a number"):
        booster.predict(fake(values.astype(np.complex64)))
    values[7, 3] = -np.inf
    with pytest.raises(DataError, match=r"infinite or too large for float32 .3.4e38. in: 'feature 3'\. Replace them"):
        booster.predict(fake(values))
    with pytest.raises(DataError, match="'feature 3'"):
        booster.predict(csr_of(values, FakeCupyMatrix))


@pytest.mark.emulated
def test_partitions_on_the_device(emulated: EmulatedRuntime, rng: np.random.Generator) -> None:
    """A Dask Array whose chunks claim to be CuPy's; lazily."""
    concatenate_lookup.register(FakeCupyArray, np.concatenate)
    booster, values = random_booster(rng, SoftProb(3)), random_rows(rng, 100)
    collection = da.from_array(fake(values), chunks=(40, 5), asarray=False)
    assert type(collection._meta) is FakeCupyArray
    for output in ("prediction", "margin", "class", "leaf"):
        expected = booster.predict(values, output=output)
        result = booster.predict(collection, output=output)
        assert type(result._meta) is FakeCupyArray and result.dtype == expected.dtype
        assert not booster.device_forests or output != "prediction"
        np.testing.assert_array_equal(result.compute(scheduler="sync"), expected)
    values[99, 1] = np.inf
    with pytest.raises(DataError, match=r"infinite.*f1"):
        booster.predict(da.from_array(fake(values), chunks=(40, 5), asarray=False)).compute(scheduler="sync")


@pytest.mark.emulated
def test_lack_of_memory_says_so(
    emulated: EmulatedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daskboost.errors import DeviceError

    def refuse(*args: object) -> None:
        raise MemoryError("out of it")

    monkeypatch.setattr("daskboost.devices.gpu.predict.DeviceForest.run", refuse)
    with pytest.raises(DeviceError, match=r"does not hold the prediction \(out of it; 1.07 GB are free\)"):
        random_booster(rng, Logistic()).predict(fake(random_rows(rng, 3)))


# On a GPU.


@pytest.fixture
def no_host_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """A function that forbids copies of as many bytes as an array has, or more, to the host."""
    import cupy

    get, limit = cupy.ndarray.get, [np.inf]

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert self.nbytes < limit[0], f"{self.nbytes} bytes copied to the host"
        return get(self, *args, **kwargs)

    monkeypatch.setattr(cupy.ndarray, "get", watched)

    def forbid(array: Any) -> None:
        limit[0] = array.nbytes // array.shape[1]

    yield forbid


@pytest.mark.gpu
@pytest.mark.parametrize(("objective", "output"), CASES)
def test_cupy_arrays(
    rng: np.random.Generator, objective: Objective, output: Output, no_host_copies: Callable[[Any], None]
) -> None:
    import cupy

    booster, values = random_booster(rng, objective, n_iterations=30), random_rows(rng, 5_000)
    expected, x = booster.predict(values, output=output), cupy.asarray(values)
    no_host_copies(x)
    found = booster.predict(x, output=output)
    assert type(found) is cupy.ndarray and found.dtype == expected.dtype
    assert bool((found.view(np.uint32) == cupy.asarray(expected).view(np.uint32)).all())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "bool", "F", "strided", "csr", "csc", "coo", "empty"])
def test_kinds_of_cupy_input(rng: np.random.Generator, kind: str) -> None:
    import cupy
    import cupyx.scipy.sparse as csp

    booster, values = random_booster(rng, SoftProb(4), n_iterations=10), random_rows(rng, 1_000)
    if kind in ("float16", "float64", "int32", "bool"):
        given = np.nan_to_num(values).astype(kind) if kind in ("int32", "bool") else values.astype(kind)
        x, expected = cupy.asarray(given), booster.predict(given)
    elif kind in ("csr", "csc", "coo"):
        matrix = csr_of(values).asformat(kind)
        x, expected = getattr(csp, f"{kind}_matrix")(matrix), booster.predict(matrix)
    else:
        x = cupy.asarray(values)
        x = {"F": cupy.asfortranarray(x), "strided": cupy.repeat(x, 2, axis=1)[::-1, ::2], "empty": x[:0]}[kind]
        expected = booster.predict({"strided": values[::-1], "empty": values[:0], "F": values}[kind])
    found = booster.predict(x)
    assert type(found) is cupy.ndarray
    np.testing.assert_array_equal(found.get(), expected)


@pytest.mark.gpu
def test_dask_arrays_of_cupy(rng: np.random.Generator) -> None:
    import cupy

    booster, values = random_booster(rng, SoftProb(3)), random_rows(rng, 1_000)
    collection = da.from_array(cupy.asarray(values), chunks=(300, 5), asarray=False)
    margin = rng.normal(size=(1_000, 3)).astype(np.float32)
    margins = da.from_array(cupy.asarray(margin), chunks=(300, 3), asarray=False)
    for given, expected in ((None, booster.predict(values)), (margins, booster.predict(values, base_margin=margin))):
        result = booster.predict(collection, base_margin=given)
        assert type(result._meta) is cupy.ndarray
        computed = result.compute(scheduler="sync")
        assert type(computed) is cupy.ndarray
        np.testing.assert_array_equal(computed.get(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("n_thresholds", [200, 5_000])
def test_a_large_forest_on_many_rows(n_thresholds: int, rng: np.random.Generator) -> None:
    """Many blocks and groups of trees, with races if there are any; ranks of one and of two bytes."""
    import cupy

    booster = random_booster(rng, SquaredError(), n_features=28, n_splits=255, n_iterations=100)
    thresholds = rng.normal(size=n_thresholds)
    trees = tuple(
        replace(tree, threshold=np.where(tree.is_leaf, 0, rng.choice(thresholds, tree.n_nodes)).astype(np.float32))
        for tree in booster.trees
    )
    booster, values = replace(booster, trees=trees), random_rows(rng, 300_000, 28)
    np.testing.assert_array_equal(booster.predict(cupy.asarray(values)).get(), booster.predict(values))


def cudf_and_frame(rng: np.random.Generator) -> tuple[Any, pd.DataFrame]:
    cudf = pytest.importorskip("cudf")
    frame = pd.DataFrame(random_rows(rng, 400), columns=[f"feature {i}" for i in range(5)], index=np.arange(400) * 2)
    return cudf, frame


@pytest.mark.gpu
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_cudf_frames(rng: np.random.Generator, objective: Objective) -> None:
    cudf, frame = cudf_and_frame(rng)
    import cupy

    booster = random_booster(rng, objective, names=True)
    shuffled = cudf.from_pandas(frame[frame.columns[::-1]].assign(more="text"), nan_as_null=True)
    assert shuffled["feature 1"].null_count > 0
    found = booster.predict(shuffled)
    assert type(found) is cupy.ndarray
    np.testing.assert_array_equal(found.get(), booster.predict(frame))


@pytest.mark.gpu
@pytest.mark.parametrize("output", ["prediction", "leaf", "class"])
def test_dask_cudf_frames(rng: np.random.Generator, output: Output) -> None:
    cudf, frame = cudf_and_frame(rng)
    dask_cudf = pytest.importorskip("dask_cudf")
    booster = random_booster(rng, Logistic(), names=True)
    result = booster.predict(dask_cudf.from_cudf(cudf.from_pandas(frame), npartitions=3), output=output)
    computed, expected = result.compute(scheduler="sync"), booster.predict(frame, output=output)
    assert isinstance(computed, cudf.Series if expected.ndim == 1 else cudf.DataFrame)
    np.testing.assert_array_equal(computed.to_pandas().to_numpy(), expected)
    pd.testing.assert_index_equal(computed.index.to_pandas(), frame.index)


class Foreign:
    """As PyTorch's tensors and Numba's arrays on a GPU: not CuPy's, but for this interface."""

    is_cuda = True

    def __init__(self, array: Any, refuses: str = "") -> None:
        self.array, self.refuses, self.ndim, self.shape = array, refuses, array.ndim, array.shape

    @property
    def __cuda_array_interface__(self) -> Any:
        if self.refuses:
            raise RuntimeError(self.refuses)
        return getattr(self.array, "__cuda_array_interface__", {})


@pytest.mark.emulated
def test_arrays_of_other_libraries(
    emulated: EmulatedRuntime, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asarray(x: Any) -> Any:
        assert x.__cuda_array_interface__ is not None
        return fake(x.array)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=asarray))
    booster, values, margin = random_booster(rng, Logistic()), random_rows(rng, 30), rng.normal(size=30)
    found = booster.predict(Foreign(values), base_margin=Foreign(margin))
    np.testing.assert_array_equal(found, booster.predict(values, base_margin=margin))
    assert booster.device_forests, "they were predicted on the device"
    with pytest.raises(DataTypeError, match=r"X is of type .*Foreign, and cannot be read where it lies: use detach"):
        booster.predict(Foreign(values, refuses="use detach()"))


@pytest.mark.gpu
def test_arrays_of_other_libraries_on_a_gpu(rng: np.random.Generator) -> None:
    import cupy

    from daskboost import train

    values = rng.normal(size=(3_000, 5)).astype(np.float32)
    label = (values[:, 0] > 0).astype(np.float32)
    params = {"objective": "binary:logistic", "max_depth": 3}
    expected = train({**params, "device": "cpu"}, QuantizedDataset.from_dask(values, label), 3)
    x, y = Foreign(cupy.asarray(values)), Foreign(cupy.asarray(label))
    booster = train({**params, "device": "cuda"}, QuantizedDataset.from_dask(x, y), 3)
    assert booster.to_bytes() == expected.to_bytes()
    found = booster.predict(x)
    assert type(found) is cupy.ndarray
    np.testing.assert_array_equal(found.get(), booster.predict(values))
