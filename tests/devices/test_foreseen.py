"""Kernels that are foreseen are those that a fit with an evaluation set comes to."""

from __future__ import annotations

import subprocess
import sys

FITS = """
import numpy as np
from daskboost import DaskBoostClassifier
from daskboost.devices.cpu.foreseen import foreseen
x = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.float32)
model = DaskBoostClassifier(n_estimators=2, device="cpu", eval_metric="auc", n_jobs=2)
model.fit(x[:300], y[:300], eval_set=[(x[300:], y[300:])])
print([order.part.py_func.__name__ for order in foreseen() if order.signature not in order.part.overloads])
"""


def test_a_fit_comes_to_what_is_foreseen() -> None:
    done = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
