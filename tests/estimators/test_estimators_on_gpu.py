"""Estimators predict rows on a GPU there, labels and probabilities included."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from model.test_device_predict import fake

from daskboost.devices.gpu import cuda
from daskboost.estimators.classes import ClassLabels
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
