"""A data set whose rows start from a model's margins knows which model that is, and `train` continues no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import pandas as pd
import pytest
from distributed import Client
from strategies.rows import regression
from strategies.saved_dataset import edit

from daskboost import Booster, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, DatasetFormatError, DataTypeError, ParameterError

PARAMS: dict[str, Any] = {"max_depth": 3, "n_jobs": 1}
X, Y = regression(200)


@pytest.fixture(scope="module")
def models() -> tuple[Booster, Booster]:
    """Two models of the same rows that differ in one round."""
    with QuantizedDataset.from_dask(X, Y) as data:
        return train(PARAMS, data, 3), train(PARAMS, data, 4)


@pytest.fixture(params=["made", "opened"])
def rest(request: pytest.FixtureRequest, models: tuple[Booster, Booster], tmp_path: Path) -> Iterator[QuantizedDataset]:
    """Rows that start from the first model's margins."""
    with QuantizedDataset.from_dask(X, Y, init_model=models[0]) as made:
        if request.param == "made":
            yield made
            return
        made.save(tmp_path / "saved")
    with QuantizedDataset.open(tmp_path / "saved") as opened:
        yield opened


def names(*models: Booster) -> str:
    """How a message names models, in this order."""
    return ".*".join(f"init_model=<{model.digest[:12]}>" for model in models)


def test_the_model_itself_is_continued(rest: QuantizedDataset, models: tuple[Booster, Booster]) -> None:
    copy = Booster.from_bytes(models[0].to_bytes())  # the same model is the same file, not the same object
    assert train(PARAMS, rest, 1, init_model=copy).to_bytes() == models[1].to_bytes()
    assert train(PARAMS, rest, 1, init_model=copy, evals=[(rest, "train")]).to_bytes() == models[1].to_bytes()


def test_another_model_is_refused(rest: QuantizedDataset, models: tuple[Booster, Booster]) -> None:
    message = rf"{names(models[1], models[0])}.*; give train that model, or make the data sets again with"
    with pytest.raises(ParameterError, match=message):
        train(PARAMS, rest, 1, init_model=models[1])


def test_no_model_is_refused(rest: QuantizedDataset, models: tuple[Booster, Booster]) -> None:
    with pytest.raises(
        ParameterError, match=rf"dtrain was made with {names(models[0])}.*; give that model to train too"
    ):
        train(PARAMS, rest, 1)


def test_a_model_without_its_margins_is_grafted_on_or_refused(models: tuple[Booster, Booster]) -> None:
    with QuantizedDataset.from_dask(X, Y) as data:
        assert data.info.init_model_digest is None
        assert train(PARAMS, data, 1, init_model=models[0]).to_bytes() == models[1].to_bytes()
    with QuantizedDataset.from_dask(X * 2 + 0.1, Y) as other:
        with pytest.raises(ParameterError, match=r"no cut point of this QuantizedDataset; .*init_model=model"):
            train(PARAMS, other, 1, init_model=models[0])


@pytest.mark.parametrize("other", ["none", "another"])
def test_evaluation_sets_start_from_the_same_model(
    rest: QuantizedDataset, models: tuple[Booster, Booster], other: str
) -> None:
    init = None if other == "none" else models[1]
    named = "init_model=None" if init is None else names(init)
    with QuantizedDataset.from_dask(X, Y, reference=rest, init_model=models[0]) as valid:
        assert train(PARAMS, rest, 1, evals=[(valid, "v")], init_model=models[0]).to_bytes() == models[1].to_bytes()
    with QuantizedDataset.from_dask(X, Y, reference=rest, init_model=init) as valid:
        message = (
            rf"evaluation set 'v' was made with {named}, dtrain with {names(models[0])}.*same model, or all without"
        )
        with pytest.raises(DataError, match=message):
            train(PARAMS, rest, 1, evals=[(valid, "v")], init_model=models[0])
    with QuantizedDataset.from_dask(X, Y) as data, QuantizedDataset.from_dask(
        X, Y, reference=data, init_model=models[0]
    ) as valid:  # fmt: skip
        with pytest.raises(DataError, match=rf"'v' was made with {names(models[0])}, dtrain with init_model=None"):
            train(PARAMS, data, 1, evals=[(valid, "v")], init_model=models[0])


def test_on_a_cluster(cluster_client: Client, models: tuple[Booster, Booster]) -> None:
    parts = [da.from_array(array, chunks=(70, *array.shape[1:])) for array in (X, Y)]
    with QuantizedDataset.from_dask(*parts, init_model=models[0], client=cluster_client) as rest:
        with pytest.raises(ParameterError, match=names(models[1], models[0])):
            train(PARAMS, rest, 1, init_model=models[1])
        assert train(PARAMS, rest, 1, init_model=models[0]).to_bytes() == models[1].to_bytes()


METADATA: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (lambda m: m.pop("init_model_digest"), "KeyError"),
    "short": (lambda m: m.update(init_model_digest="0" * 63), "is not a SHA-256"),
    "upper case": (lambda m: m.update(init_model_digest="A" * 64), "is not a SHA-256"),
    "a number": (lambda m: m.update(init_model_digest=1), "TypeError"),
    "version 1": (lambda m: m.update(has_init_margin=True), "version 1 does not say which model's; make the data set"),
}


@pytest.mark.parametrize("name", METADATA)
def test_a_saved_data_set_that_does_not_name_its_model_is_refused(tmp_path: Path, name: str) -> None:
    change, message = METADATA[name]
    with QuantizedDataset.from_dask(X, Y) as data:
        data.save(tmp_path / "d")
    edit(tmp_path / "d", lambda root: change(root["metadata"]))
    with pytest.raises(DatasetFormatError, match=message):
        QuantizedDataset.open(tmp_path / "d")


def test_version_1_without_a_model_is_read(tmp_path: Path, models: tuple[Booster, Booster]) -> None:
    with QuantizedDataset.from_dask(X, Y) as data:
        data.save(tmp_path / "d")

    def older(root: dict[str, Any]) -> None:
        root["version"] = 1
        assert root["metadata"].pop("init_model_digest") is None
        root["metadata"]["has_init_margin"] = False

    edit(tmp_path / "d", older)
    with QuantizedDataset.open(tmp_path / "d") as opened:
        assert train(PARAMS, opened, 4).to_bytes() == models[1].to_bytes()


def test_the_manifest_holds_the_digest_as_documented(tmp_path: Path, models: tuple[Booster, Booster]) -> None:
    with QuantizedDataset.from_dask(X, Y, init_model=models[0]) as data:
        data.save(tmp_path / "d")
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_bytes())
    assert manifest["version"] == 2
    models[0].save_model(tmp_path / "m.ubj")
    written = (tmp_path / "m.ubj").read_bytes()
    assert manifest["metadata"]["init_model_digest"] == hashlib.sha256(written).hexdigest()
    page = (Path(__file__).parents[2] / "docs" / "dataset_format.md").read_text()
    assert [name for name in manifest["metadata"] if f"`{name}`" not in page] == []


@pytest.mark.parametrize("precision", ["exact", "packed"])
def test_models_that_name_a_parameter_of_the_past_load_and_continue(models: tuple[Booster, Booster], precision: str
                                                                    ) -> None:  # fmt: skip
    """Models were once trained with a gradient_precision; what they predict does not depend on its being known."""
    params = {**models[0].params, "gradient_precision": precision}
    old = Booster.from_bytes(replace(models[0], params=params).to_bytes())
    assert old.params["gradient_precision"] == precision
    assert old.predict(X).tobytes() == models[0].predict(X).tobytes()
    with QuantizedDataset.from_dask(X, Y) as data:
        continued = train(PARAMS, data, 1, init_model=old)
    assert continued.to_bytes() == models[1].to_bytes()


def test_names_of_the_new_rows_are_kept() -> None:
    """They are those of the rows that a fit has, also where the model that it continues knows none."""
    x, y = regression(60, 2)
    first = DaskBoostRegressor(n_estimators=1, n_jobs=1).fit(x, y)
    frame = pd.DataFrame(x, columns=["a", "b"])
    second = DaskBoostRegressor(n_estimators=1, n_jobs=1).fit(frame, y, init_model=first)
    assert second.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(DataTypeError, match="'a'"):
        DaskBoostRegressor(n_estimators=1, n_jobs=1).fit(frame.assign(a="x"), y, init_model=first)
