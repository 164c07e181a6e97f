"""Saved data sets: nothing is lost, any number of engines writes and opens them, and a failure leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import quantize as naive
from strategies.saved_dataset import (
    CUTS,
    N_ROWS,
    SCHEMA,
    batch,
    build_shard,
    layout_for,
    read_all,
    save,
    write_dataset,
)

from daskboost.data.chunks.packing import Encoding, Packing, choose_layout
from daskboost.data.chunks.shard import Shard
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows, FeatureSchema
from daskboost.data.input.row_columns import COLUMNS, RowBatch
from daskboost.data.saved import shard_files
from daskboost.data.saved.array_file import ArrayFile
from daskboost.data.saved.manifest import ChunkRecord
from daskboost.data.saved.shard_files import DatasetWriter, open_shard, read_dataset, write_chunk_files
from daskboost.errors import DatasetFormatError, ParameterError, StorageError


@pytest.mark.parametrize("encoding", ["dense", "csr"])
@pytest.mark.parametrize("packing", ["aligned", "tight", "common"])
@pytest.mark.parametrize("n_engines", [1, 2, 3, 7])
def test_any_number_of_engines_opens_what_was_saved(
    tmp_path: Path, encoding: Encoding, packing: Packing, n_engines: int
) -> None:
    layout = save(tmp_path / "d", encoding, packing, chunk_rows=10, metadata={"max_bin": 4, "x": ["y", None]})
    dataset = read_dataset(tmp_path / "d")
    assert dataset.schema == SCHEMA and dataset.layout == layout and dataset.n_rows == N_ROWS
    assert dataset.metadata == {"max_bin": 4, "x": ["y", None]}
    for name in ("values", "offsets", "has_missing"):
        np.testing.assert_array_equal(getattr(dataset.cuts, name), getattr(CUTS, name))
        assert getattr(dataset.cuts, name).dtype == getattr(CUTS, name).dtype
    with ChunkStore() as store:
        expected = build_shard([(0, batch())], CUTS, layout, 10, store)
        chunks = dict(expected.chunks())
        seen = []
        for engine in range(n_engines):
            shard = open_shard(dataset, range(engine, len(dataset.chunks), n_engines), store)
            for index, kept in shard.chunks():
                chunk = kept.on_host()
                position = [entry.first_row for entry in expected.entries].index(chunk.first_row)
                seen.append(position)
                original, rows = chunks[position].on_host(), shard.entries[index].rows
                for array, same in zip(chunk.arrays, original.arrays, strict=True):
                    np.testing.assert_array_equal(array, same)
                for name in ("label", "weight", "base_margin"):
                    np.testing.assert_array_equal(
                        getattr(rows, name), getattr(expected.entries[position].rows, name), strict=True
                    )
        assert sorted(seen) == [0, 1, 2, 3]


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=25)
def test_engines_write_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, n_rows: int, chunk_rows: int, n_engines: int, csr: bool
) -> None:
    path = tmp_path_factory.mktemp("sets") / "d"
    layout = layout_for("csr" if csr else "dense", "tight")
    with ChunkStore() as store, DatasetWriter(path) as writer:
        records = []
        for engine in reversed(range(n_engines)):
            shard = build_shard([(engine * n_rows, batch(n_rows, engine))], CUTS, layout, chunk_rows, store)
            wire = json.loads(json.dumps([record.to_json() for record in write_chunk_files(writer.directory, shard)]))
            records += [ChunkRecord.from_json(value, f"chunks[{i}]") for i, value in enumerate(wire)]
        assert not path.exists()
        writer.commit(CUTS, SCHEMA, layout, records)
    assert [file.name for file in path.parent.iterdir()] == ["d"]
    label = np.concatenate([rows.label for rows in read_all(path) if rows.label is not None])
    expected: Any = [batch(n_rows, engine).columns.label for engine in range(n_engines)]
    np.testing.assert_array_equal(label, np.concatenate(expected))


def test_a_data_set_without_rows_names_or_labels(tmp_path: Path) -> None:
    cuts = Cuts(np.zeros(0, np.float32), np.zeros(3, np.int32), np.zeros(2, bool))
    layout = choose_layout(cuts, cuts.has_missing, n_rows=0, n_entries=0)
    schema = FeatureSchema(None, ("float", "float"))
    with ChunkStore() as store:
        write_dataset(tmp_path / "none", cuts, schema, layout, [Shard(store, (), cuts, layout)])
        bare = RowBatch(DenseRows(np.ones((3, 2), np.float32)))
        write_dataset(tmp_path / "bare", cuts, schema, layout, [build_shard([(4, bare)], cuts, layout, 9, store)])
    assert read_dataset(tmp_path / "none").n_rows == 0 and read_all(tmp_path / "none") == []
    assert read_dataset(tmp_path / "bare").schema == schema
    (rows,) = read_all(tmp_path / "bare")
    assert not rows.present and not read_dataset(tmp_path / "bare").columns.names
    save(tmp_path / "full")
    assert read_dataset(tmp_path / "full").columns.names == COLUMNS.keys()


def test_a_data_set_in_the_way_is_replaced_only_on_request(tmp_path: Path) -> None:
    save(tmp_path / "d", metadata={"n": 1})
    with pytest.raises(ParameterError, match=r"path '.*d' exists already: pass overwrite=True"):
        save(tmp_path / "d")
    save(tmp_path / "d", metadata={"n": 2}, overwrite=True)
    assert read_dataset(tmp_path / "d").metadata == {"n": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["d"]


def test_nothing_but_a_data_set_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("")
    with pytest.raises(ParameterError, match="is not a saved data set, so overwrite=True does not replace it"):
        save(tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    if overwrite:
        save(tmp_path / "d", metadata={"n": 1})

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left on device") as caught:
        patch.setattr(os, "write", full)
        save(tmp_path / "d", overwrite=overwrite)
    assert caught.value.errno == errno.ENOSPC and "rows-" in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == (["d"] if overwrite else [])
    if overwrite:
        assert read_dataset(tmp_path / "d").metadata == {"n": 1} and len(read_all(tmp_path / "d")) == 3


def test_a_failed_replacement_brings_the_old_data_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "d", metadata={"n": 1})
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="could not move the data set to"):
        patch.setattr(Path, "rename", failing)
        save(tmp_path / "d", overwrite=True)
    assert read_dataset(tmp_path / "d").metadata == {"n": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["d"]


def test_metadata_must_be_json(tmp_path: Path) -> None:
    for metadata in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(ParameterError, match="metadata must be a JSON object"):
            save(tmp_path / "d", metadata=metadata)
    assert list(tmp_path.iterdir()) == []


def test_rows_saved_twice_are_refused(tmp_path: Path) -> None:
    layout = layout_for("dense", "tight")
    with ChunkStore() as store:
        shards = [build_shard([(first, batch())], CUTS, layout, 50, store) for first in (0, 39)]
        with pytest.raises(DatasetFormatError, match=r"chunks\[1\].first_row must lie behind"):
            write_dataset(tmp_path / "d", CUTS, SCHEMA, layout, shards)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("packing", ["aligned", "tight"])
@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_the_reader_in_the_documentation_reads_the_format(tmp_path: Path, encoding: Encoding, packing: Packing) -> None:
    page = (Path(__file__).parents[2] / "docs" / "dataset_format.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    documented: dict[str, Any] = {}
    exec(program, documented)
    save(tmp_path / "d", encoding, packing)
    found = list(documented["read"](tmp_path / "d"))
    label = batch().columns.label
    assert label is not None
    np.testing.assert_array_equal([row["label"] for row in found], label)
    expected = naive.symbols(batch().features.on_host(), CUTS)
    for row, symbols in zip(found, expected.tolist(), strict=True):
        assert row["bins"] == {f: bin_ for f, bin_ in enumerate(symbols) if bin_ < CUTS.n_bins[f]}


@pytest.mark.parametrize("name", ["manifest.json", "cuts.bin", "rows-0000000000000000015.bin"])
@pytest.mark.parametrize("back", [True, False])
def test_a_data_set_that_is_replaced_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, back: bool
) -> None:
    """Another process moves it away, another one into its place, and removes it, before a file of it is read."""
    save(tmp_path / "d")
    save(tmp_path / "other", "csr", metadata={"n": 2})

    class Replacing(ArrayFile):
        def __init__(self, path: Path) -> None:
            if path.name == name and (tmp_path / "other").exists():
                shutil.rmtree(tmp_path / "d")
                (tmp_path / "other").rename(tmp_path / ("d" if back else "elsewhere"))
            super().__init__(path)

    monkeypatch.setattr(shard_files, "ArrayFile", Replacing)
    with pytest.raises(DatasetFormatError, match="d was replaced or removed while it was opened: open it again"):
        read_all(tmp_path / "d")
    if back:
        assert read_dataset(tmp_path / "d").n_rows == N_ROWS


def test_engines_read_the_data_set_that_their_client_has_found(tmp_path: Path) -> None:
    save(tmp_path / "d")
    found = read_dataset(tmp_path / "d")
    assert read_dataset(tmp_path / "d", found.digest).digest == found.digest
    save(tmp_path / "d", metadata={"n": 2}, overwrite=True)
    with pytest.raises(DatasetFormatError, match="was replaced or removed while it was opened"):
        read_dataset(tmp_path / "d", found.digest)
