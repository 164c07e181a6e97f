"""Predicting Dask collections: nothing is computed at the call, and the result is shaped as its meta says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from model.random_models import OBJECTIVES, random_booster, random_rows

from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.model.booster import Booster
from daskboost.model.output import Output
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective

if TYPE_CHECKING:
    from distributed import Client

OUTPUTS: tuple[Output, ...] = ("prediction", "margin", "class", "leaf")


def outputs_of(objective: Objective) -> list[Output]:
    classifies = objective.name.startswith(("binary", "multi"))
    return [output for output in OUTPUTS if output != "class" or classifies]


CASES = [
    pytest.param(objective, output, id=f"{objective.name}-{output}")
    for objective in OBJECTIVES
    for output in outputs_of(objective)
]


def frame_of(rng: np.random.Generator, n_rows: int = 100) -> pd.DataFrame:
    columns = [f"feature {i}" for i in range(5)]
    return pd.DataFrame(random_rows(rng, n_rows), columns=columns, index=np.arange(n_rows) * 3 + 7)


@pytest.fixture
def no_computing() -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("computed at the call of predict")

    with dask.config.set(scheduler=refuse):
        yield


@pytest.mark.parametrize(("objective", "output"), CASES)
def test_frames(rng: np.random.Generator, objective: Objective, output: Output) -> None:
    booster = random_booster(rng, objective, names=True)
    frame = frame_of(rng)
    collection = dd.from_pandas(frame[frame.columns[::-1]].assign(more="text"), npartitions=4)
    result = booster.predict(collection, output=output)
    expected = booster.predict(frame, output=output)
    assert result.npartitions == 4 and result.divisions == collection.divisions
    computed = result.compute(scheduler="sync")
    np.testing.assert_array_equal(computed.to_numpy(), expected)
    pd.testing.assert_index_equal(computed.index, frame.index)
    for i in range(4):  # each partition is what the meta promises
        part = result.partitions[i].compute(scheduler="sync")
        if expected.ndim == 1:
            assert isinstance(part, pd.Series) and result.name == part.name == output
            assert part.dtype == result.dtype == expected.dtype
        else:
            pd.testing.assert_index_equal(part.columns, result.columns)
            assert (part.dtypes == result.dtypes).all() and (part.dtypes == expected.dtype).all()


@pytest.mark.parametrize(("objective", "output"), CASES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_arrays(rng: np.random.Generator, objective: Objective, output: Output, known: bool) -> None:
    booster = random_booster(rng, objective)
    values = random_rows(rng, 100)
    collection = da.from_array(values, chunks=(30, 2))
    if not known:
        collection = collection.rechunk({1: -1})[da.from_array(values[:, 0] < 0.5, chunks=30)]
        values = values[values[:, 0] < 0.5]
    result = booster.predict(collection, output=output)
    expected = booster.predict(values, output=output)
    assert result.ndim == expected.ndim and result.dtype == expected.dtype == result._meta.dtype
    assert result.shape[1:] == expected.shape[1:]
    assert str(result.chunks[0]) == str(collection.chunks[0])  # as text: an unknown size is not equal to itself
    assert type(result._meta) is np.ndarray
    np.testing.assert_array_equal(result.compute(scheduler="sync"), expected)


def test_nothing_is_computed_at_the_call(rng: np.random.Generator, no_computing: None) -> None:
    booster = random_booster(rng, SoftProb(3))

    def explode(*args: object, **kwargs: object) -> Any:
        raise AssertionError("read at the call of predict")

    lazy = dask.delayed(explode)()
    array = da.from_delayed(lazy, (10, 5), np.float32)
    meta = frame_of(rng, 0)
    frame = dd.from_delayed([lazy], meta=meta, verify_meta=False)
    for output in OUTPUTS:
        assert booster.predict(array, output=output).shape[0] == 10
        assert booster.predict(frame, output=output).npartitions == 1
    assert booster.predict(array, output="contributions").shape == (10, 3, 6)
    with pytest.raises(AssertionError, match="computed at the call"):
        array.compute()  # the guard guards


def test_sparse_blocks(rng: np.random.Generator) -> None:
    booster = random_booster(rng, Logistic())
    values = random_rows(rng, 90)
    collection = da.from_array(values, chunks=(40, 5)).map_blocks(
        lambda block: sp.csr_matrix((block[~np.isnan(block)], np.nonzero(~np.isnan(block))), block.shape),
        dtype=np.float32,
        meta=sp.csr_matrix((0, 0), dtype=np.float32),
    )
    result = booster.predict(collection)
    assert result.chunks == ((40, 40, 10),)
    np.testing.assert_array_equal(result.compute(scheduler="sync"), booster.predict(values))


def test_partitions_do_not_change_a_byte(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3), n_iterations=30)
    values = random_rows(rng, 500)
    expected = booster.predict(values).tobytes()
    for chunk in (1, 7, 500):
        result = booster.predict(da.from_array(values, chunks=(chunk, 5)))
        assert result.compute(scheduler="threads").tobytes() == expected


def test_empty_partitions(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3))
    frame = frame_of(rng)
    collection = dd.from_pandas(frame, npartitions=5)
    collection = collection.map_partitions(lambda part: part[part.index > 200])
    result = booster.predict(collection).compute(scheduler="sync")
    np.testing.assert_array_equal(result.to_numpy(), booster.predict(frame[frame.index > 200]))


def test_base_margins(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3), names=True)
    frame, margin = frame_of(rng), rng.normal(size=(100, 3)).astype(np.float32)
    expected = booster.predict(frame, base_margin=margin)
    margins = pd.DataFrame(margin, columns=list("abc"), index=frame.index)
    lazy = dd.from_pandas(frame, npartitions=3)
    found = booster.predict(lazy, base_margin=dd.from_pandas(margins, npartitions=3))
    np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)
    found = booster.predict(dd.from_pandas(frame.join(margins), npartitions=3), base_margin=["a", "b", "c"])
    np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)
    array = da.from_array(frame.to_numpy(), chunks=(40, 5))
    for given in (da.from_array(margin, chunks=(40, 3)), margin):
        found = booster.predict(array, base_margin=given)
        assert found.chunks == ((40, 40, 20), (3,))
        np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)
    with pytest.raises(DataError, match="base_margin is an array, but X is a Dask DataFrame; pass a Dask Series"):
        booster.predict(lazy, base_margin=da.from_array(margin, chunks=(40, 3)))
    with pytest.raises(DataError, match=r"base_margin has shape .100, 1., but X has 100 rows and the model 3 outputs"):
        booster.predict(frame, base_margin=margin[:, 0])


def test_bad_columns(rng: np.random.Generator) -> None:
    booster = random_booster(rng, Logistic(), names=True)
    lazy = dd.from_pandas(frame_of(rng), npartitions=2)
    with pytest.raises(DataError, match="lacks 1 of the 5 feature columns used in training: 'feature 2'"):
        booster.predict(lazy.drop(columns="feature 2"))
    with pytest.raises(DataTypeError, match="'feature 1'"):
        booster.predict(lazy.assign(**{"feature 1": "a"}))
    with pytest.raises(DataError, match=r"4 .*5|5 .*4"):
        booster.predict(np.zeros((3, 4), np.float32))
    infinite = frame_of(rng)
    infinite.iloc[-1, 3] = np.inf
    with pytest.raises(DataError, match=r"partition 1: .*infinite.*'feature 3'"):
        booster.predict(dd.from_pandas(infinite, npartitions=2)).compute(scheduler="sync")


def test_contributions_of_frames(rng: np.random.Generator) -> None:
    booster, frame = random_booster(rng, Logistic(), names=True), frame_of(rng)
    result = booster.predict(dd.from_pandas(frame, npartitions=2), output="contributions")
    assert list(result.columns) == [*frame.columns, "bias"]
    found = result.compute(scheduler="sync")
    np.testing.assert_allclose(found.sum(axis=1), booster.predict(frame, output="margin"), rtol=1e-5, atol=1e-5)
    with pytest.raises(ParameterError, match="three dimensions, which a DataFrame lacks"):
        random_booster(rng, SoftProb(3)).predict(dd.from_pandas(frame, npartitions=2), output="contributions")


def test_on_a_cluster(rng: np.random.Generator, cluster_client: Client) -> None:
    """The model travels as its own bytes, once, and predicts the same there."""
    booster = random_booster(rng, SoftProb(3), names=True)
    frame = frame_of(rng)
    result = booster.predict(dd.from_pandas(frame, npartitions=5)).compute()
    np.testing.assert_array_equal(result.to_numpy(), booster.predict(frame))


def test_equal_models_share_their_graph_keys(rng: np.random.Generator) -> None:
    booster = random_booster(rng, Logistic())
    array = da.from_array(random_rows(rng, 20), chunks=(10, 5))
    again = Booster.from_bytes(booster.to_bytes())
    assert booster.predict(array).name == again.predict(array).name
    assert booster.predict(array).name != booster[:2].predict(array).name
