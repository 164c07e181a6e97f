"""Metrics where rows lie on a GPU: states of the host's bytes, or none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from metrics.test_metrics import BINARY, CLASSES, EXPECTED, QUANTILES, REAL, rows

from daskboost.data.input.labels import LabelStats
from daskboost.devices.gpu.rows.metrics import LEAST_CELLS, LOSSES, MetricKernels
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.dtypes import Float64
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum
from daskboost.metrics import classification as auc
from daskboost.metrics.elementwise import Rmse
from daskboost.metrics.metric import Metric
from daskboost.metrics.metric_names import make_metric, metric_names
from daskboost.metrics.own_metric import CustomMetric

ON_DEVICE = [name for name in EXPECTED if make_metric(name).device_loss is not None]


def assert_same_states(runtime: Runtime, metric: Metric[Any], label: Any, prediction: Any, weight: Any) -> None:
    """The wire's bytes of both states; the weights of none are ones."""
    heaviest = 1.0 if weight is None else float(np.max(weight, initial=0.0))
    metric = metric.prepare(LabelStats(len(label), max_weight=heaviest))
    put = runtime.xp.asarray
    on_device = put(label), put(prediction), None if weight is None else put(weight)
    state = metric.partial_on_device(MetricKernels(runtime), *on_device)
    with np.errstate(all="ignore"):
        expected = metric.partial(label, prediction, weight)
    assert state is not None
    found, wanted = state.to_arrays(), expected.to_arrays()
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].dtype == wanted[name].dtype and found[name].tobytes() == wanted[name].tobytes(), name


def test_which_metrics_the_device_computes() -> None:
    """All but those whose losses need powers and the gamma function, which only libraries have, and users' own."""
    ours = [name for name in metric_names() if not name.startswith("test")]
    on_host = {name for name in ours if make_metric(name).device_loss is None}
    assert on_host == {"poisson-nloglik", "tweedie-nloglik", "poisson-deviance", "gamma-deviance", "tweedie-deviance"}
    assert {make_metric(name).device_loss for name in ON_DEVICE} == {*LOSSES, "scores"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 300, 3_001])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_states_are_the_hosts(runtime: Runtime, name: str, n: int, weighted: bool) -> None:
    label, prediction, weight = (array[:n] for array in rows(EXPECTED[name][0], max(n, 2), n))
    assert_same_states(runtime, make_metric(name), label, prediction, weight if weighted else None)


@pytest.mark.parametrize("name", [name for name in ON_DEVICE if EXPECTED[name][0] != CLASSES and "auc" not in name])
def test_extreme_losses(runtime: Runtime, name: str, rng: np.random.Generator) -> None:
    """NaN, infinities, numbers beyond what a thread's sum holds on either side, and nothing at all."""
    some = np.array([0, -0.0, 1e-45, 1e-30, 1e-8, 0.3, 1 - 6e-8, 1, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    label, prediction = (part.ravel() for part in np.meshgrid(some[:9] if EXPECTED[name][0] == BINARY else some, some))
    metric = make_metric(name)
    for kept in (slice(None), label == label, np.isfinite(label) & np.isfinite(prediction)):
        y, p = label[kept], prediction[kept]
        w = rng.choice(some[:9], len(y))
        p = np.stack([p, p[::-1]], axis=1) if EXPECTED[name][0] == QUANTILES else p
        for weight in (None, w):
            assert_same_states(runtime, metric, y, p, weight)
    assert_same_states(runtime, metric, label[:0], prediction[:0] if p.ndim == 1 else p[:0], None)


@pytest.mark.parametrize("name", ["mlogloss", "merror"])
def test_extreme_classes(runtime: Runtime, name: str, rng: np.random.Generator) -> None:
    """Ties, zeros and NaN among the probabilities."""
    some = np.array([0, 0.25, 0.5, 1, np.nan], np.float32)
    prediction = np.stack(np.meshgrid(some, some, some), axis=-1).reshape(-1, 3)
    label = rng.integers(0, 3, len(prediction)).astype(np.float32)
    assert_same_states(runtime, make_metric(name), label, prediction, None)
    with pytest.raises(DataError, match="labels from 0 to 3 for metric"):
        make_metric(name).partial_on_device(
            MetricKernels(runtime), runtime.xp.asarray(np.array([3, 0], np.float32)), runtime.xp.asarray(prediction[:2])
        )


def test_sums_of_any_magnitude(runtime: Runtime, rng: np.random.Generator) -> None:
    """Absolute errors of all float32 magnitudes: most are beyond what a thread's sum holds, and all are added."""
    bits = rng.integers(0, 0x7F800000, 2_000).astype(np.uint32)
    prediction = bits.view(np.float32)
    (units, specials), (ones, _) = MetricKernels(runtime).sum_losses(
        "absolute", runtime.xp.zeros(2_000, np.float32), runtime.xp.asarray(prediction), None
    )
    expected = ExactSum.of(prediction)
    assert ExactSum(units, specials) == expected and ExactSum(ones).value() == 2_000
    assert ExactSum(units).value() == math.fsum(prediction.tolist())


SPREADS: dict[str, tuple[int, int]] = {
    "all floats": (0, 0x7F800000), "four binades": (0x3E000000, 0x3F800000), "tenths": (0x3F000000, 0x3F080000),
    "the last bits": (0x3F000000, 0x3F008000),
}  # fmt: skip
"""Ranges of bits of scores: the closer they lie, the more leading bits their cells share."""


@pytest.mark.parametrize("capacity", [LEAST_CELLS, 80_000, 1 << 18])
@pytest.mark.parametrize("spread", SPREADS)
def test_scores_beyond_capacity(
    runtime: Runtime, capacity: int, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours share cells, at the finest resolution that has room."""
    monkeypatch.setattr(auc, "CAPACITY", capacity)
    label, _, weight = rows(BINARY, 100_000, 1)
    bits = np.random.default_rng(4).integers(*SPREADS[spread], len(label)).astype(np.uint32)
    prediction = bits.view(np.float32).copy()
    prediction[::7] *= -1
    prediction[5:8] = 0, -0.0, np.inf
    for name, weights in (("auc", None), ("aucpr", weight)):
        assert_same_states(runtime, make_metric(name), label, prediction, weights)


@pytest.mark.parametrize(("spread", "repeats", "bits"), [
    (200_000, 1, 23), (60_000, 1, 24), (16_000, 1, 26), (9_000, 1, 27), (500, 1, 31), (12_000, 12, 32),
])  # fmt: skip
def test_resolutions_of_both_levels(
    spread: int, repeats: int, bits: int, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spread` : of scores, in units of 256 float32; `repeats` : of each score."""
    monkeypatch.setattr(auc, "CAPACITY", LEAST_CELLS)
    n = 3 * LEAST_CELLS // 2
    rng = np.random.default_rng(7)
    label = (rng.random(n) < 0.4).astype(np.float32)
    scores = (0x3F000000 + rng.integers(0, 256 * spread, n // repeats)).astype(np.uint32).view(np.float32)
    prediction = np.resize(scores, n)
    assert_same_states(runtime, make_metric("auc"), label, prediction, None)
    put = runtime.xp.asarray
    found = MetricKernels(runtime).count_scores(put(label), put(prediction), None, 1.0, LEAST_CELLS)
    assert found is not None
    assert found.bits == bits


@pytest.mark.parametrize("which", ["all equal", "no weight", "one row", "none"])
def test_few_scores(runtime: Runtime, which: str) -> None:
    label, prediction, weight = rows(BINARY, 200, 2)
    if which == "all equal":
        prediction[:] = 0.5
    elif which == "no weight":
        weight[:] = 0
    kept = slice({"one row": 1, "none": 0}.get(which))
    assert_same_states(runtime, make_metric("auc"), label[kept], prediction[kept], weight[kept])


def test_scores_that_the_host_refuses(runtime: Runtime) -> None:
    label, prediction, _ = rows(BINARY, 200, 2)
    put, kernels = runtime.xp.asarray, MetricKernels(runtime)
    for bad_label, bad_score in ((0.5, 0.5), (1, np.nan), (np.nan, 0.5)):
        label[100], prediction[100] = bad_label, bad_score
        assert make_metric("auc").partial_on_device(kernels, put(label), put(prediction)) is None


def test_a_subclass_with_another_loss_stays_on_the_host() -> None:
    @dataclass(frozen=True)
    class Cubed(Rmse):
        base_name: ClassVar[str] = "cubed"

        def loss(self, label: Float64, prediction: Float64) -> Float64:
            return np.abs(prediction - label) ** 3

    @dataclass(frozen=True)
    class Renamed(Rmse):
        base_name: ClassVar[str] = "renamed"

    @dataclass(frozen=True)
    class Clipped(auc.RocAuc):
        base_name: ClassVar[str] = "clipped"

        def partial(self, *arguments: Any, **more: Any) -> Any:
            return super().partial(*arguments, **more)

    class Mine(CustomMetric):
        device_loss: ClassVar[str | None] = "squared"

    assert (Cubed().device_loss, Renamed().device_loss, Clipped().device_loss) == (None, "squared", None)
    kernels: Any = None
    for metric in (Cubed(), Clipped()):
        assert metric.partial_on_device(kernels, np.zeros(1), np.zeros(1)) is None
    with pytest.raises(NotImplementedError, match="Mine has device_loss='squared', and no partial_of_loss"):
        Mine(max).partial_on_device(kernels, np.zeros(1), np.zeros(1))
    assert EXPECTED["rmse"][0] == REAL
