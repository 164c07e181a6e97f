"""Kernel files say which variants most fits launch: a new process compiles these first, all at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from kernels.processes import run_python

from daskboost import DaskBoostClassifier, DaskBoostRegressor
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.kernel_source import KernelFile, Variant, kernel_file, kernel_names

pytestmark = [pytest.mark.emulated, pytest.mark.large]

FIT = """
import sys
import numpy as np
from kernels.emulation import EmulatedRuntime
from kernels.processes import run_python
from daskboost import DaskBoostClassifier
from daskboost.devices.gpu.runtime import cuda
runtime = EmulatedRuntime(sm=90)
runtime.free_bytes = 8 << 30
cuda.get_runtime = lambda *_: runtime
X = np.random.default_rng(4).standard_normal((9_000, 30), dtype=np.float32)
model = DaskBoostClassifier(n_estimators=2, device="cuda", eval_metric=METRICS, n_jobs=1)
model.fit(X, X[:, 0] > 0, eval_set=[(X, X[:, 0] > 0)])
assert len(model.booster_.trees) == 2
print("numba.np.linalg" in sys.modules)
"""
"""Says at last whether numba has compiled or loaded a kernel, for which it imports all that it knows of NumPy."""


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


def test_a_fit_on_a_gpu_loads_no_cpu_kernel() -> None:
    """A new process would wait a third of a second for numba, and for seconds on a machine without its caches."""
    done = run_python("-c", FIT.replace("METRICS", "['auc', 'logloss']"))
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_numba_shows_that_it_loads() -> None:
    done = run_python("-c", "from daskboost.exact_sum import ExactSum\nimport sys\nExactSum.of([0.5])\n"
                      "print('numba.np.linalg' in sys.modules)")  # fmt: skip
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
