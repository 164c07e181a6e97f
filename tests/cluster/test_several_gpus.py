"""Several GPUs of one process: rows are shared out to them, and the model is that of one CPU, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster.test_same_bytes import outcome
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.trees import make_data, quantized

from daskboost.devices.budget import partition
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.collective import Members

GROWTH: dict[str, dict[str, Any]] = {
    "levels": {"max_depth": 4}, "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
    "best first": {"grow_policy": "lossguide", "max_leaves": 7, "max_depth": 0},
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "logistic": {"objective": "binary:logistic"}, "five classes": {"objective": "multi:softprob", "num_class": 5},
    "absolute error": {"objective": "reg:absoluteerror"},
}  # fmt: skip
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "large": (4_500, {}), "drawn": (4_500, {"subsample": 0.6, "colsample_bylevel": 0.9}), "small": (900, {}),
}  # fmt: skip
"""Their number, and what is drawn of them."""


def emulated(monkeypatch: pytest.MonkeyPatch, n: int, **more: Any) -> list[EmulatedRuntime]:
    """Have the process see so many emulated GPUs."""
    made = [EmulatedRuntime(seed=3, **more) for _ in range(n)]
    for number, each in enumerate(made):
        each.device, each.name = number, f"GPU {number}"
    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: made[number or 0])
    monkeypatch.setattr(cuda, "n_visible", lambda: n)
    return made


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the GPUs that were joined with others, as they were."""
    found: list[int] = []
    kind: Any
    for kind in (EmulatedRuntime, cuda.CudaRuntime):
        def noted(self: Any, members: Members, gpus: tuple[str, ...], join: Any = kind.joined) -> Any:
            assert len(set(gpus)) == members.n_peers
            found.append(self.device)
            return join(self, members, gpus)

        monkeypatch.setattr(kind, "joined", noted)
    return found


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many the process sees; data of any size are shared out."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    if request.param == "emulated":
        return len(emulated(monkeypatch, 3))
    found = cuda.n_visible()
    if found < 2:
        pytest.skip("one GPU shares rows with no other")
    return found


def two_or_three(wanted: int, there: int) -> int:
    if wanted > there:
        pytest.skip(f"{wanted} GPUs are needed, there are {there}")
    return wanted


@every_pair({
    "growth": GROWTH, "loss": LOSSES, "rows": ROWS, "encoding": ["dense", "csr"], "n_gpus": [2, 3],
    "chunk_rows": [65_536, 1_000], "packing": ["aligned", "tight"], "evaluated": [False, True],
})  # fmt: skip
def test_models_and_metrics_are_those_of_one_cpu(
    growth: str, loss: str, rows: str, encoding: str, n_gpus: int, chunk_rows: int, packing: str, evaluated: bool,
    gpus: int, joins: list[int],
) -> None:  # fmt: skip
    n_rows, drawn = ROWS[rows]
    data = make_data(
        np.random.default_rng(8), LOSSES[loss]["objective"], n_rows, 5, n_values=60, missing=0.3
    )
    params = {**LOSSES[loss], **GROWTH[growth], **drawn, "n_jobs": 1}
    place: dict[str, Any] = {"encoding": encoding, "chunk_rows": chunk_rows, "packing": packing}
    with quantized(data, **place) as dataset:
        expected = outcome({**params, "device": "cpu"}, dataset, data, evaluated)
        more = {"device": "cuda", "n_gpus": two_or_three(n_gpus, gpus)}
        assert outcome({**params, **more}, dataset, data, evaluated) == expected
    assert sorted(joins) == sorted([*range(n_gpus)] * (1 + evaluated) * grows_alone(growth, loss))


def grows_alone(growth: str, loss: str) -> bool:
    """Whether trees grow on GPUs that are joined: else the host, which says what splits, has the same trees."""
    return not (growth == "best first" and loss == "absolute error")
