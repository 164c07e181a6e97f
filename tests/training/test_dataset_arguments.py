"""Arguments of `QuantizedDataset.from_dask` that are none, and models that were made for other columns."""

from __future__ import annotations

import asyncio
import copy
import errno
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from distributed import Client
from strategies.rows import regression

from daskboost import Booster, Checkpoint, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, DataTypeError, ParameterError, StorageError

X, Y = regression(60, 3)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


@pytest.mark.parametrize(("options", "message"), [
    ({"encoding": "sparse"}, "encoding='sparse' must be one of 'auto', 'dense', 'csr'"),
    ({"packing": "dense"}, "packing='dense' must be one of 'aligned', 'tight', 'common'"),
    ({"chunk_rows": -1}, "chunk_rows=-1 must be an integer from 0 to"),
    ({"chunk_rows": 1.5}, "chunk_rows=1.5 must be an integer"),
    ({"n_jobs": -2}, "n_jobs=-2 must be an integer from -1 to"),
    ({"max_bin": True}, "max_bin=True must be an integer from 2 to 65535"),
    ({"reference": X}, "reference is ndarray; pass the QuantizedDataset"),
    ({"init_model": "model.ubj"}, "init_model is str; pass a Booster"),
    ({"spill_directory": 5}, "spill_directory=5 must be the path of a directory"),
    ({"spill_directory": ""}, "spill_directory='' must be the path of a directory"),
    ({"client": "tcp://scheduler:8786"}, r"client is str; pass a dask.distributed.Client"),
])  # fmt: skip
def test_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        QuantizedDataset.from_dask(X, Y, **options)


def test_the_constructor_quantizes_as_from_dask_does() -> None:
    options: dict[str, Any] = {"weight": np.arange(1.0, 61), "max_bin": 16}
    with QuantizedDataset(FRAME, Y, **options) as made, QuantizedDataset.from_dask(FRAME, Y, **options) as expected:
        assert repr(made) == repr(expected) and made.made_with == expected.made_with
        models = [train({"max_depth": 3, "n_jobs": 1, "max_bin": 16}, data, 3) for data in (made, expected)]
        assert models[0].to_bytes() == models[1].to_bytes()
        with QuantizedDataset(FRAME[["c", "a", "b"]], Y, reference=made) as other:
            assert other.schema.names == ("a", "b", "c")
    with pytest.raises(DataError, match="closed"):
        made.subset([0])
    with pytest.raises(ParameterError, match="max_bin=1 must be"):
        QuantizedDataset(X, Y, max_bin=1)
    with pytest.raises(TypeError, match="max_bins"):
        QuantizedDataset(X, Y, max_bins=3)


def test_the_constructor_refuses_an_asynchronous_client() -> None:
    async def main() -> None:
        async with Client(processes=False, n_workers=1, dashboard_address=":0", asynchronous=True) as client:
            with pytest.raises(ParameterError, match=r"asynchronous.*await QuantizedDataset\.from_dask"):
                QuantizedDataset(X, Y, client=client)
            data = await QuantizedDataset.from_dask(X, Y, client=client)  # type: ignore[misc]
            assert data.n_rows == 60
            await asyncio.to_thread(data.close)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["from_dask", "open", "fit"])
def test_a_spill_directory_that_cannot_be_written_to_is_refused_before_rows_are_read(tmp_path: Path, how: str) -> None:
    (tmp_path / "file").write_text("")
    below: dict[str, Any] = {"spill_directory": tmp_path / "file" / "below"}
    lazy = da.from_delayed(delayed(never)(), (60, 3), np.float32)
    with QuantizedDataset.from_dask(X, Y) as data:
        data.save(tmp_path / "saved")
    with pytest.raises(StorageError, match=r"spill_directory cannot be written to: .*; name .*below") as caught:
        if how == "from_dask":
            QuantizedDataset.from_dask(lazy, Y, **below)
        elif how == "open":
            QuantizedDataset.open(tmp_path / "saved", **below)
        else:
            DaskBoostRegressor(**below).fit(lazy, Y)
    assert caught.value.errno == errno.ENOTDIR


def never() -> NoReturn:
    raise AssertionError("read")


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_a_budget_without_a_disk_says_the_least_that_works(encoding: str) -> None:
    make = partial(QuantizedDataset.from_dask, X, Y, chunk_rows=16, packing="tight", encoding=encoding)
    with pytest.raises(StorageError, match=r"host_memory_limit=100 bytes has no room .* set spill_dir") as caught:
        make(host_memory_limit=100)
    least = int(str(caught.value).rpartition(" ")[2])
    with make(host_memory_limit=np.int64(least)) as data:  # type: ignore[arg-type]
        held = data.shards.shards[0].store.counters().ram_bytes
    assert least - 12 * 4 < held <= least


@pytest.mark.parametrize("encoding", ["dense", "csr"])
def test_opening_with_a_budget_without_a_disk_says_the_least_that_works(encoding: str, tmp_path: Path) -> None:
    with QuantizedDataset.from_dask(X, Y, encoding=encoding, chunk_rows=7) as data:
        data.save(tmp_path / "saved")
    with pytest.raises(StorageError, match="host_memory_limit=1 bytes has no room for the chunks of 60") as caught:
        QuantizedDataset.open(tmp_path / "saved", host_memory_limit=1)
    least = int(str(caught.value).rpartition(" ")[2])
    with pytest.raises(StorageError, match=f"a host_memory_limit of at least {least}"):
        QuantizedDataset.open(tmp_path / "saved", host_memory_limit=least - 1)
    QuantizedDataset.open(tmp_path / "saved", host_memory_limit=least).close()


def test_files_are_found_and_removed_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with QuantizedDataset.from_dask(X, Y, host_memory_limit=1, spill_directory="spilled") as data:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert list((tmp_path / "spilled").rglob("*.chunk"))
        train({"max_depth": 2}, data, 1)
    assert list((tmp_path / "spilled").iterdir()) == []
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_evaluation_sets_take_what_the_training_set_leaves_of_the_budget(tmp_path: Path) -> None:
    def ram(data: QuantizedDataset) -> int:
        return int(data.shards.shards[0].store.counters().ram_bytes)

    make: Callable[..., QuantizedDataset] = partial(QuantizedDataset.from_dask, X, Y, chunk_rows=10)
    with make() as data:
        taken, limit = ram(data), ram(data) * 4 // 3
        with make(reference=data, host_memory_limit=limit, spill_directory=tmp_path) as first:
            assert 0 < ram(first) <= limit - taken
            with make(reference=data, host_memory_limit=limit, spill_directory=tmp_path) as second:
                assert ram(second) == 0
        with make(reference=data, host_memory_limit=limit, spill_directory=tmp_path) as third:
            assert ram(third) > 0, "what was closed has left its room"
        with pytest.raises(StorageError, match=rf"beside {taken} bytes of its reference, or .* at least") as caught:
            make(reference=data, host_memory_limit=limit)
        make(reference=data, host_memory_limit=int(str(caught.value).rpartition(" ")[2])).close()


def test_integers_of_numpy_and_all_cores() -> None:
    with QuantizedDataset.from_dask(X, Y, max_bin=np.int64(8), chunk_rows=np.int32(20), n_jobs=-1) as data:  # type: ignore[arg-type]
        assert data.info.max_bin == 8


def test_a_model_of_other_columns_is_not_continued() -> None:
    turned = FRAME[["b", "a", "c"]]
    with QuantizedDataset.from_dask(FRAME, Y) as data, QuantizedDataset.from_dask(turned, Y) as other:
        model = train({}, data, 2)
        with pytest.raises(DataError, match=r"column 0 of the training data is 'b', but .* trained with 'a' there"):
            train({}, other, 1, init_model=model)
        with pytest.raises(DataError, match="column 0 of the reference is 'b', but init_model was trained with 'a'"):
            QuantizedDataset.from_dask(FRAME, Y, init_model=model, reference=other)
        for frame, message in (
            (turned.drop(columns="a"), "X lacks 1 of the 3 feature columns used in training: 'a'"),
            (turned.rename(columns={"a": "d"}), "X lacks 1 of the 3 .*: 'a'. It has: 'b', 'd', 'c'"),
            (turned.assign(d=0.0), "X has 1 .* that the model to be continued was not trained with: 'd'. Drop"),
        ):
            with pytest.raises(DataError, match=message):
                QuantizedDataset.from_dask(frame, Y, init_model=model)
            with pytest.raises(DataError, match=message):
                DaskBoostRegressor(n_estimators=1).fit(frame, Y, init_model=model)
        with pytest.raises(DataError, match="init_model has 3 features, X 2; pass the same columns"):
            QuantizedDataset.from_dask(X[:, :2], Y, init_model=model)
        assert train({}, data, 1, init_model=model).n_iterations == 3
    with QuantizedDataset.from_dask(X, Y, init_model=model) as unnamed:  # a matrix has its columns in the model's order
        assert train({}, unnamed, 1, init_model=model).n_iterations == 3


@pytest.mark.parametrize("carry", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_leads_to_save_and_open(carry: Callable[[Any], Any]) -> None:
    with QuantizedDataset.from_dask(X, Y) as data:
        with pytest.raises(DataTypeError, match=r"cannot be pickled or copied: .*save\(path\) .*Dataset\.open\("):
            carry(data)
        assert train({}, data, 1).n_iterations == 1


@pytest.mark.parametrize("path", ["a\0b.ubj", Path("a\0b.ubj"), "a\ud800b.ubj"])
def test_paths_that_no_system_has_are_refused_by_name(path: Any, tmp_path: Path) -> None:
    model = DaskBoostRegressor(n_estimators=1, device="cpu").fit(X, Y)
    with QuantizedDataset.from_dask(X, Y) as data:
        data.save(tmp_path / "there")
        calls: list[tuple[str, Callable[[], object]]] = [
            ("path", lambda: model.save_model(path)),
            ("path", lambda: model.booster_.save_model(path)),
            ("path", lambda: model.load_model(path)),
            ("path", lambda: Booster.load_model(path)),
            ("path", lambda: Checkpoint(path)),
            ("path", lambda: data.save(path)),
            ("path", lambda: QuantizedDataset.open(path)),
            ("spill_directory", lambda: QuantizedDataset.from_dask(X, Y, spill_directory=path)),
            ("spill_directory", lambda: QuantizedDataset.open(tmp_path / "there", spill_directory=path)),
            ("spill_directory", lambda: DaskBoostRegressor(spill_directory=path).fit(X, Y)),
            ("init_model", lambda: train({}, data, 1, init_model=path)),
        ]
        for name, call in calls:
            with pytest.raises(ParameterError, match=rf"^{name}=.* has a null byte or a lone surrogate, which no path"):
                call()


def test_names_that_no_model_file_holds_are_refused_before_rows_are_read() -> None:
    def never() -> NoReturn:
        raise AssertionError("read")

    frame = pd.DataFrame(X, columns=pd.Index(["a", "b\ud800", "c"], dtype=object))
    lazy = da.from_delayed(delayed(never)(), (60, 3), np.float32)
    with pytest.raises(DataError, match=r"X has column names with lone surrogates, .*: 'b\\ud800'\. Rename"):
        DaskBoostRegressor(n_estimators=1).fit(frame, Y)
    with pytest.raises(DataError, match=r"feature_names has column names with lone surrogates, .*: 'b\\ud800'"):
        QuantizedDataset.from_dask(lazy, Y, feature_names=["a", "b\ud800", "c"])
    with QuantizedDataset.from_dask(frame.fillna(0), "b\ud800") as data:
        assert data.schema.names == ("a", "c")
