"""Estimators predict rows on a GPU there, labels and probabilities included."""

from __future__ import annotations

import logging
from typing import Any

import dask.array as da
import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from model.test_device_predict import fake

from daskboost import QuantizedDataset
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.gpu.runtime import cuda
from daskboost.estimators.class_labels import ClassLabels
from daskboost.estimators.classifier import DaskBoostClassifier
from daskboost.estimators.regressor import DaskBoostRegressor

LABELS: dict[str, Any] = {
    "numbers": [3, 7],
    "classes": [2.0, 4.0, 8.0],
    "strings": ["no", "yes"],
    "booleans": [False, True],
}


def fitted(rng: np.random.Generator, labels: str) -> tuple[Any, Any, Any]:
    X = rng.normal(size=(120, 4)).astype(np.float32)
    y = np.array(LABELS[labels])[rng.integers(0, len(LABELS[labels]), 120)]
    return DaskBoostClassifier(n_estimators=3, max_depth=2, device="cpu").fit(X, y), X, y


@pytest.mark.emulated
@pytest.mark.parametrize("labels", LABELS)
def test_classes(labels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = EmulatedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    model, X, _ = fitted(rng, labels)
    np.testing.assert_array_equal(model.predict(fake(X)), model.predict(X))
    np.testing.assert_array_equal(model.predict_proba(fake(X)), model.predict_proba(X))
    assert model.booster_.device_forests
    regressor = DaskBoostRegressor(n_estimators=2, device="cpu").fit(X, X[:, 0])
    np.testing.assert_array_equal(regressor.predict(fake(X)), regressor.predict(X))


@pytest.mark.parametrize("settings, device", [
    ({}, "auto"), ({"device": "cpu"}, "cpu"), ({"out_of_core": "sampled", "subsample": 0.5}, "auto"),
])  # fmt: skip
def test_data_sets_are_told_the_device_of_the_fit(
    settings: dict[str, Any], device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, told = rng.normal(size=(300, 4)), []
    make = QuantizedDataset.from_source

    def from_source(*arguments: Any, device: str, **options: Any) -> QuantizedDataset:
        told.append(device)
        return make(*arguments, **options)

    monkeypatch.setattr(QuantizedDataset, "from_source", from_source)
    DaskBoostRegressor(n_estimators=1, max_depth=2, **settings).fit(X, X[:, 0], eval_set=[(X[:50], X[:50, 0])])
    assert told == [device, device]


@pytest.mark.gpu
def test_rows_on_the_host_are_quantized_on_the_gpu(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    X, other = rng.normal(size=(5_000, 4)), rng.normal(size=(50, 4))
    settings: dict[str, Any] = {"n_estimators": 3, "max_depth": 3}
    with caplog.at_level(logging.DEBUG, "daskboost.data.chunks.shard"):
        found = DaskBoostRegressor(**settings, device="cuda").fit(X, X[:, 0], eval_set=[(other, other[:, 0])])
    assert sorted({record.getMessage() for record in caplog.records}) == [
        "rows 0 to 49 were quantized on GPU 0", "rows 0 to 4999 were quantized on GPU 0",
    ]  # fmt: skip
    expected = DaskBoostRegressor(**settings, device="cpu").fit(X, X[:, 0], eval_set=[(other, other[:, 0])])
    assert found.booster_.to_bytes() == expected.booster_.to_bytes()
    assert found.evals_result_ == expected.evals_result_


@pytest.mark.gpu
@pytest.mark.parametrize("labels", LABELS)
def test_classes_of_cupy_arrays(labels: str, rng: np.random.Generator) -> None:
    import cupy

    model, X, _ = fitted(rng, labels)
    x = cupy.asarray(X)
    found, probabilities = model.predict(x), model.predict_proba(x)
    assert type(found) is (np.ndarray if labels == "strings" else cupy.ndarray)
    assert type(probabilities) is cupy.ndarray
    np.testing.assert_array_equal(cupy.asnumpy(found), model.predict(X))
    np.testing.assert_array_equal(probabilities.get(), model.predict_proba(X))
    lazy = da.from_array(x, chunks=(50, 4), asarray=False)
    for given, expected in ((model.predict_proba(lazy), probabilities), (model.predict(lazy), found)):
        computed = given.compute(scheduler="sync")
        assert type(computed) is type(given._meta) is type(expected)
        np.testing.assert_array_equal(cupy.asnumpy(computed), cupy.asnumpy(expected))


def test_labels_on_the_host_are_as_before() -> None:
    margins = np.array([-1.0, 2.0], np.float32)
    labels = ClassLabels(np.array(["a", "b"], object))
    assert labels.of_margins(margins).tolist() == ["a", "b"]
    assert labels.probabilities(margins).shape == (2, 2)
