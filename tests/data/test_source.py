"""Every kind of input, every way of passing labels and weights, any partitioning: the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from strategies.frames import COLUMNS, LOCAL_FRAMES

from daskboost.data.input import blocks
from daskboost.data.input.labels import find_classes
from daskboost.data.input.row_batch import DenseRows, SparseRows
from daskboost.data.input.row_columns import RowBatch
from daskboost.data.input.source import Source, make_source

N, NAMES = 40, ("a", "b", "c")


@pytest.fixture
def frame(rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame(rng.normal(size=(N, 3)).astype(np.float32), columns=list(NAMES))
    frame.iloc[::7, 1] = np.nan
    return frame.assign(y=rng.integers(0, 3, N).astype(np.float64), w=rng.random(N), m0=1.0, m1=rng.normal(size=N))


def batches(source: Source) -> list[Any]:
    return list(source.batches())


def dense(source: Source) -> np.ndarray:
    return np.concatenate([batch.features.on_host().values for batch in source.batches()])


def joined(batches: list[RowBatch]) -> tuple[np.ndarray, ...]:
    return (
        np.concatenate([batch.features.on_host().values for batch in batches]),
        np.concatenate([batch.columns.label for batch in batches]),
        np.concatenate([batch.columns.weight for batch in batches]),
        np.concatenate([batch.columns.base_margin for batch in batches]),
    )


def assert_reads_as(source: Source, frame: pd.DataFrame) -> None:
    expected = (
        frame[list(NAMES)].to_numpy(np.float32),
        frame.y.to_numpy(np.float32),
        frame.w.to_numpy(np.float32),
        frame[["m0", "m1"]].to_numpy(np.float32),
    )
    delayed = source.delayed()
    assert len(delayed) == source.n_partitions == len(source.partitions)
    for batches in (list(source.batches()), list(dask.compute(*delayed, scheduler="synchronous"))):
        assert all(isinstance(batch.features, DenseRows) for batch in batches)
        for got, wanted in zip(joined(batches), expected, strict=True):
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, wanted)


def _local(made: Callable[[pd.DataFrame], Any], frame: pd.DataFrame, _: Path) -> Any:
    return made(frame)


FRAMES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    **{kind: partial(_local, made) for kind, made in LOCAL_FRAMES.items()},
    "dask": lambda frame, _: dd.from_pandas(frame, npartitions=3),
    "narwhals of dask": lambda frame, _: _wrapped(dd.from_pandas(frame, npartitions=3)),
    "parquet": lambda frame, path: _written(frame, path / "rows.parquet"),
}


def _wrapped(frame: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # narwhals announces that Dask's frames will take a package of its own
        return nw.from_native(frame)


def _written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path, row_group_size=9)
    return path


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_with_everything_in_named_columns(kind: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    X = FRAMES[kind](frame, tmp_path)
    source = make_source(X, "y", weight="w", base_margin=["m0", "m1"])
    assert source.schema.names == NAMES and source.schema.kinds == ("float",) * 3
    assert source.is_dask == kind.endswith("dask")
    assert_reads_as(source, frame)


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "polars", "parquet"])
@pytest.mark.parametrize("container", COLUMNS)
def test_local_frames_with_aligned_collections(
    kind: str, container: str, frame: pd.DataFrame, tmp_path: Path
) -> None:
    X = FRAMES[kind](frame, tmp_path)
    y, w = COLUMNS[container](frame.y.to_numpy()), COLUMNS[container](frame.w.to_numpy())
    kinds: list[Callable[[pd.DataFrame], Any]] = [*LOCAL_FRAMES.values(), np.asarray]
    for made in kinds:
        margin = made(frame[["m0", "m1"]])
        assert_reads_as(make_source(X, y, weight=w, base_margin=margin, feature_names=NAMES), frame)


@pytest.mark.parametrize("as_list", [False, True])
def test_matrices(as_list: bool, frame: pd.DataFrame) -> None:
    X = frame[list(NAMES)].to_numpy()
    source = make_source(
        X.tolist() if as_list else np.asfortranarray(X), frame.y, weight=frame.w, base_margin=frame[["m0", "m1"]]
    )
    assert source.schema.names is None and source.n_rows == N
    assert_reads_as(source, frame)


@pytest.mark.parametrize("n_partitions", range(1, 8))
def test_any_number_of_dask_partitions(n_partitions: int, frame: pd.DataFrame) -> None:
    ddf = dd.from_pandas(frame, npartitions=n_partitions)
    X, margin = ddf[list(NAMES)], ddf[["m0", "m1"]]
    assert_reads_as(make_source(X, ddf.y, weight=ddf.w, base_margin=margin), frame)
    # a DataFrame's features with an Array's labels, and unknown chunk sizes
    assert_reads_as(make_source(X, ddf.y.to_dask_array(), weight=ddf.w, base_margin=margin), frame)
    arrays = [part.to_dask_array() for part in (X, ddf.y, ddf.w, margin)]
    assert np.isnan(arrays[0].shape[0])
    assert_reads_as(make_source(arrays[0], arrays[1], weight=arrays[2], base_margin=arrays[3]), frame)


@pytest.mark.parametrize("chunks", [(N, 3), (11, 3), (11, 2), (1, 1)])
def test_dask_arrays_of_any_chunks(chunks: tuple[int, int], frame: pd.DataFrame) -> None:
    X = da.from_array(frame[list(NAMES)].to_numpy(), chunks=chunks)
    y, w = (da.from_array(frame[name].to_numpy(), chunks=chunks[0]) for name in "yw")
    margin = da.from_array(frame[["m0", "m1"]].to_numpy(), chunks=(chunks[0], 1))
    assert_reads_as(make_source(X, y, weight=w, base_margin=margin), frame)
    # local labels fit where the chunk sizes are known
    assert_reads_as(make_source(X, frame.y.tolist(), weight=frame.w, base_margin=frame[["m0", "m1"]]), frame)
    known = (X[:, 0] < 99) | da.isnan(X[:, 0])
    assert_reads_as(make_source(X[known], y[known], weight=w[known], base_margin=margin[known]), frame)


@pytest.mark.parametrize("empty", ["first", "middle", "last", "most"])
def test_empty_partitions(empty: str, frame: pd.DataFrame) -> None:
    whole = [frame.iloc[:25], frame.iloc[25:]]
    none = frame.iloc[:0]
    parts = {
        "first": [none, *whole],
        "middle": [whole[0], none, whole[1]],
        "last": [*whole, none],
        "most": [none, none, frame, none, none],
    }[empty]
    ddf = dd.from_delayed([dask.delayed(part) for part in parts], meta=none)
    source = make_source(ddf, "y", weight="w", base_margin=["m0", "m1"])
    assert [batch.n_rows for batch in source.batches()] == [len(part) for part in parts]
    assert_reads_as(source, frame)
    X, y, w, m = (ddf[part].to_dask_array() for part in (list(NAMES), "y", "w", ["m0", "m1"]))
    assert_reads_as(make_source(X, y, weight=w, base_margin=m), frame)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("wrap", [sp.csr_matrix, sp.csr_array])
def test_sparse_matrices(form: str, wrap: Any, rng: np.random.Generator) -> None:
    reference = sp.random(50, 6, density=0.3, format="csr", random_state=rng, dtype=np.float64)
    X = wrap(reference).asformat(form)
    (batch,) = batches(make_source(X, np.arange(50)))
    assert_same_csr(batch.features, reference)


def assert_same_csr(rows: Any, reference: Any) -> None:
    assert isinstance(rows, SparseRows)
    assert [array.dtype for array in (rows.indptr, rows.indices, rows.values)] == ["int64", "int32", "float32"]
    np.testing.assert_array_equal(rows.indptr, reference.indptr)
    np.testing.assert_array_equal(rows.indices, reference.indices)
    np.testing.assert_array_equal(rows.values, reference.data.astype(np.float32))


@pytest.mark.parametrize("column_chunk", [6, 2])
def test_dask_arrays_of_sparse_blocks(column_chunk: int, rng: np.random.Generator) -> None:
    reference = sp.random(30, 6, density=0.3, format="csr", random_state=rng)
    X = da.from_array(reference.toarray(), chunks=(8, column_chunk)).map_blocks(sp.csr_array)
    y = da.arange(30, chunks=8)
    source = make_source(X, y)
    assert source.n_partitions == 4
    for i, batch in enumerate(dask.compute(*source.delayed(), scheduler="synchronous")):
        assert_same_csr(batch.features, reference[8 * i : 8 * i + 8])
        np.testing.assert_array_equal(batch.columns.label, np.arange(30)[8 * i : 8 * i + 8])


def test_sparse_entries_out_of_order_and_repeated_are_put_right_without_touching_the_input() -> None:
    X = sp.csr_matrix(([1.0, 2.0, 3.0], [2, 0, 0], [0, 3]), shape=(1, 3))
    (batch,) = batches(make_source(X))
    assert batch.features.indices.tolist() == [0, 2] and batch.features.values.tolist() == [5.0, 1.0]
    assert X.indices.tolist() == [2, 0, 0] and X.data.tolist() == [1.0, 2.0, 3.0]


def test_large_local_input_is_cut_into_views(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(blocks, "MAX_ROWS", 16)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    source = make_source(X, X[:, 0])
    assert [len(p.blocks[0]) for p in source.partitions] == [13, 13, 14]
    for partition, batch in zip(source.partitions, source.batches(), strict=True):
        assert np.shares_memory(partition.blocks[0], X) and np.shares_memory(batch.features.on_host().values, X)
    np.testing.assert_array_equal(dense(source), X)
    S = sp.random(40, 5, density=0.4, format="csr", random_state=rng)
    for partition in make_source(S).partitions:
        assert np.shares_memory(partition.blocks[0].data, S.data)
    got = sp.vstack([partition.blocks[0] for partition in make_source(S).partitions])
    assert (got != S).nnz == 0


def test_partitions_of_local_input_stay_under_the_byte_limit() -> None:
    cuts = blocks.even_cuts(10_000_000, row_bytes=4 * 1000)
    assert max(np.diff(cuts)) * 4000 <= blocks.MAX_BYTES and cuts[0] == 0 and cuts[-1] == 10_000_000
    assert max(np.diff(blocks.even_cuts(5_000_000, row_bytes=4))) <= blocks.MAX_ROWS
    assert blocks.even_cuts(3, row_bytes=1e12) == (0, 1, 2, 3)


def test_batches_cannot_be_written_to(frame: pd.DataFrame) -> None:
    (batch,) = batches(make_source(frame, "y", weight="w", base_margin="m1"))
    for array in (batch.features.values, batch.columns.label, batch.columns.weight, batch.columns.base_margin):
        assert not array.flags.writeable
    assert batch.columns.base_margin.shape == (N, 1)


def test_parquet_that_dask_wrote_is_read_in_its_order(frame: pd.DataFrame, tmp_path: Path) -> None:
    dd.from_pandas(frame, npartitions=12).to_parquet(tmp_path, write_index=False)
    assert (tmp_path / "part.10.parquet").exists()
    np.testing.assert_array_equal(dense(make_source(str(tmp_path))), frame.to_numpy(np.float32))


def test_parquet_files_are_sorted_by_any_numbers_in_their_names(tmp_path: Path) -> None:
    names = ["1/b.parquet", "2.parquet", "2a1.parquet", "9/10.parquet", "10.parquet", "a01.parquet", "a1.parquet"]
    names += ["a1b2.parquet", "a.parquet", "b/2/1.parquet", "b/10/1.parquet"]
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({"a": [float(i)]}).to_parquet(tmp_path / name)
    assert dense(make_source(str(tmp_path)))[:, 0].tolist() == list(range(len(names)))


def test_parquet_directory_is_read_in_the_order_of_its_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    for i, start in enumerate((0, 15, 30)):
        frame.iloc[start : start + 15].to_parquet(tmp_path / f"part.{i}.parquet")
    (tmp_path / "_metadata.parquet").write_bytes(b"no rows")
    source = make_source(str(tmp_path), "y", weight="w", base_margin=["m0", "m1"])
    assert source.n_partitions == 3 and source.n_rows == N
    assert_reads_as(source, frame)


def test_delayed_labels_and_features_of_parquet_are_one_task_each(frame: pd.DataFrame, tmp_path: Path) -> None:
    for i in range(4):
        frame.iloc[10 * i : 10 * i + 10].to_parquet(tmp_path / f"{i}.parquet")
    source = make_source(dd.read_parquet(tmp_path), "y", weight="w", base_margin=["m0", "m1"])
    assert len(dict(source.delayed()[0].__dask_graph__())) == 4
    assert_reads_as(source, frame)


def test_pandas_index_stored_in_arrow_is_no_feature(frame: pd.DataFrame, tmp_path: Path) -> None:
    indexed = frame.set_index(pd.Index(range(100, 100 + N)))
    indexed = indexed[indexed.a < 99]
    for X in (pa.Table.from_pandas(indexed), _written(indexed, tmp_path / "i.parquet")):
        assert make_source(X, "y").schema.names == ("a", "b", "c", "w", "m0", "m1")


def test_works_through_a_distributed_cluster(cluster_client: Any, frame: pd.DataFrame) -> None:
    ddf = dd.from_pandas(frame, npartitions=3).persist()
    source = make_source(ddf, "y", weight="w", base_margin=["m0", "m1"])
    batches = cluster_client.gather(cluster_client.compute(source.delayed()))
    np.testing.assert_array_equal(joined(batches)[0], frame[list(NAMES)].to_numpy(np.float32))
    np.testing.assert_array_equal(joined(list(source.batches()))[1], frame.y.to_numpy(np.float32))


@pytest.mark.parametrize(
    ("name", "target"),
    [("california_housing", "medianHouseValue"), ("higgs_11k", "label"), ("covtype_20k", "Cover_Type")],
)
def test_bundled_sets(name: str, target: str, bundled_data: Path) -> None:
    path = bundled_data / f"{name}.parquet"
    frame = pd.read_parquet(path)
    features = [column for column in frame.columns if column not in (target, "split")]
    source = make_source(path, target, feature_names=features)
    np.testing.assert_array_equal(dense(source), frame[features].to_numpy(np.float32))


@pytest.mark.parametrize("name", ["santander_satisfaction", "give_me_some_credit", "mnist_t10k"])
def test_real_sets_through_dask_and_files_are_equal(name: str, data_dir: Path) -> None:
    path = data_dir / f"{name}.parquet"
    columns = [c for c in pd.read_parquet(path).columns if c != "split"][:40]
    lazily = make_source(dd.read_parquet(path, columns=columns), feature_names=columns)
    np.testing.assert_array_equal(dense(make_source(path, feature_names=columns)), dense(lazily))


@pytest.mark.parametrize("name", ["a9a", "agaricus", "reuters_r52_bow"])
def test_real_sparse_sets(name: str, data_dir: Path) -> None:
    X = sp.load_npz(data_dir / f"{name}.npz")
    source = make_source(X, np.load(data_dir / f"{name}.npz")["y"])
    (batch,) = batches(source.with_classes(find_classes(source)))
    assert_same_csr(batch.features, X.tocsr())
    assert np.unique(batch.columns.label).tolist() == list(range(len(find_classes(source))))


@pytest.mark.parametrize("kind", ["frames", "arrays"])
def test_a_pass_computes_a_dask_partition_once(kind: str, frame: pd.DataFrame) -> None:
    """However many of features, labels, weights and margins come out of it: it may be a day's query."""
    computed: list[int] = []
    columns = ["y", "w", "m0", "m1", *NAMES]

    def part(index: int) -> pd.DataFrame:
        computed.append(index)
        return frame.iloc[index * 10 : index * 10 + 10]

    def block(block_id: tuple[int, int]) -> Any:
        return part(block_id[0])[columns].to_numpy()

    if kind == "frames":
        whole = dd.from_map(part, range(4), meta=frame.iloc[:0])
        x, y, weight, margin = whole[list(NAMES)], whole["y"], whole["w"], whole[["m0", "m1"]]
    else:
        whole = da.map_blocks(block, chunks=((10,) * 4, (7,)), dtype=np.float64, meta=np.empty((0, 0)))
        x, y, weight, margin = whole[:, 4:], whole[:, 0], whole[:, 1], whole[:, 2:4]
    source = make_source(x, y, weight=weight, base_margin=margin)
    computed.clear()  # Dask may look at a partition to learn its kind
    for read in (source.batches, source.batches):
        assert len(list(read())) == 4
        assert sorted(computed) == [0, 1, 2, 3]
        computed.clear()
    assert_reads_as(source, frame)


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_labels_of_files_that_dask_reads_several_of_at_once(kind: str, tmp_path: Path, frame: pd.DataFrame) -> None:
    """As it does where it needs few of their columns: labels then have fewer partitions than features."""
    for index in range(8):
        frame.iloc[index * 5 : index * 5 + 5].to_parquet(tmp_path / f"{index}.parquet")
    whole = dd.read_parquet(tmp_path)
    assert len(whole["y"].to_delayed(optimize_graph=True)) < 8, "nothing is read at once, so nothing is tested"
    expected = frame[list(NAMES)].to_numpy(np.float32)
    source = make_source(whole[list(NAMES)] if kind == "frame" else da.from_array(expected, chunks=(5, 3)), whole["y"])
    for read in (batches(source), list(dask.compute(*source.delayed(), scheduler="synchronous"))):
        np.testing.assert_array_equal(np.concatenate([b.features.on_host().values for b in read]), expected)
        np.testing.assert_array_equal(np.concatenate([b.columns.label for b in read]), frame.y)
