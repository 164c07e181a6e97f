"""Kernel files say which variants most fits launch: a new process compiles these first, all at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost import DaskBoostClassifier, DaskBoostRegressor
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.kernel_source import KernelFile, Variant, kernel_file, kernel_names

pytestmark = [pytest.mark.emulated, pytest.mark.large]


class Noting(EmulatedRuntime):
    """A device that notes the variants that kernels are asked for."""

    def __init__(self) -> None:
        super().__init__(sm=90)
        self.free_bytes = 8 << 30
        self.asked: set[tuple[str, str]] = set()

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> Any:
        self.asked.add((source.name, str(variant)))
        return super().kernel_of(source, entry, variant)


def test_they_are_what_estimators_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 2**18 host values, which the GPU quantizes, two classes or numbers, evaluated; all else by default."""
    runtime = Noting()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    rng = np.random.default_rng(4)
    X = rng.standard_normal((9_000, 30), dtype=np.float32)
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.standard_normal(len(X), dtype=np.float32)
    for kind, label, metrics in ((DaskBoostClassifier, y > 0, ["auc", "logloss"]), (DaskBoostRegressor, y, ["rmse"])):
        model: Any = kind(n_estimators=2, device="cuda", eval_metric=metrics, n_jobs=1)
        model.fit(X, label, eval_set=[(X, label)])
    usual = {(name, str(variant)) for name in kernel_names() for variant in kernel_file(name).usual}
    assert usual == runtime.asked, "change the lines '// usual:' of kernels/*.cu"
