"""Kernels of metrics that are computed behind the trees: scores in cells, areas, sums of any floats, predictions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from kernels.test_loss_kernels import bits
from reference import score_cells as reference

from daskboost.data.cuts.key_counts import keys_of
from daskboost.devices.gpu.rows.metrics import (
    CURVES,
    LEAST_CELLS,
    MetricKernels,
    ScoredRows,
    ScoreRoom,
    read_area,
    read_losses,
)
from daskboost.devices.gpu.rows.watched import PREDICT, WatchedRoom, WatchedRows
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import LinkKernel
from daskboost.exact_sum import ExactSum
from daskboost.objectives.objective import Objective, link_of
from daskboost.objectives.objective_names import make_objective

UNITS = Fraction(1, 2**1074)


def scored(runtime: Runtime, rng: np.random.Generator, n: int, weighted: bool) -> tuple[Any, Any, Any, ScoredRows]:
    """Labels, scores of which many are equal, and weights of which some are 0."""
    label = (rng.random(n) < 0.4).astype(np.float32)
    score = (rng.integers(-60, 60, n) / 7).astype(np.float32)
    score[::3] = rng.normal(size=len(score[::3])).astype(np.float32)
    weight = rng.choice(np.array([0, 0.5, 1, 3], np.float32), n) if weighted else None
    put = runtime.xp.asarray
    return label, score, weight, ScoredRows(put(label), put(score), None if weight is None else put(weight))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [0, 1, 31, 700])
def test_scores_and_areas(n: int, weighted: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    label, score, weight, rows = scored(runtime, rng, n, weighted)
    scale = 2.0 if weighted else 1.0
    units = np.ones(n, np.int64) if weight is None else np.rint(weight * scale).astype(np.int64)
    resolution, cells = reference.count(keys_of(score).tolist(), label, units, 1 << 18)
    kernels = MetricKernels(runtime)
    found = kernels.count_scores(rows.label, rows.prediction, rows.weight, scale, 1 << 18)
    assert found is not None
    assert found.bits == resolution
    listed = zip(found.lower.tolist(), found.upper.tolist(), *found.counts.T.tolist(), strict=True)
    assert list(listed) == cells
    room = ScoreRoom(runtime, n, 1 << 18)
    for _ in range(2):  # the same memory again
        kernels.count_rows(rows, scale, room)
        for curve, expected in reference.areas(cells).items():
            state = kernels.state()
            kernels.add_area(curve, room, state)
            area = read_area(to_host(state), curve)
            assert area.area[0] * UNITS == expected
            assert (area.negatives, area.positives, area.area[1], area.refused) == (
                sum(cell[2] for cell in cells), sum(cell[3] for cell in cells), 0, 0,
            )  # fmt: skip
    assert set(reference.areas(cells)) == set(CURVES)


@pytest.mark.parametrize(("largest", "curve"), [(2**61, "roc"), (2**61, "precision"), (2**40, "precision")])
def test_areas_of_large_weights(largest: int, curve: str, runtime: Runtime, rng: np.random.Generator) -> None:
    """Terms of up to 2**122, and of many small digits, which lie outside of what a thread's sum holds."""
    label, score, _, _ = scored(runtime, rng, 300, False)
    weight = np.ldexp(rng.random(300), -rng.integers(0, 40, 300)).astype(np.float32)
    weight[7] = 1.0
    scale = largest / 1024
    units = np.rint(weight.astype(np.float64) * scale).astype(np.int64)
    put, kernels, room = runtime.xp.asarray, MetricKernels(runtime), ScoreRoom(runtime, 300, 1 << 18)
    kernels.count_rows(ScoredRows(put(label), put(score), put(weight)), scale, room)
    state = kernels.state()
    for _ in range(2):  # what lay outside the first time is forgotten
        kernels.add_area(curve, room, state)
        _, cells = reference.count(keys_of(score).tolist(), label, units, 1 << 18)
        area = read_area(to_host(state), curve)
        assert area.area[0] * UNITS == reference.areas(cells)[curve]


def test_what_is_refused(runtime: Runtime, rng: np.random.Generator) -> None:
    label, score, _, _ = scored(runtime, rng, 100, False)
    kernels, put = MetricKernels(runtime), runtime.xp.asarray
    for bad_label, bad_score, expected in ((0.5, 0.0, 1), (1.0, np.nan, 2), (np.nan, np.nan, 3)):
        label[40], score[60] = bad_label, bad_score
        room, state = ScoreRoom(runtime, 100, 1 << 18), kernels.state()
        kernels.count_rows(ScoredRows(put(label), put(score), None), 1.0, room)
        kernels.add_area("roc", room, state)
        assert read_area(to_host(state), "roc").refused == expected
    with pytest.raises(ValueError, match="capacity=100: scores are counted in at least 65536 cells"):
        ScoreRoom(runtime, 5, 100)
    assert LEAST_CELLS == 65_536


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_any_floats(weighted: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """Squares of all magnitudes, subnormal and nearly infinite ones: most lie outside of what a thread's sum holds."""
    n = 2_000
    prediction = rng.integers(0, 0x7F000000, n).astype(np.uint32).view(np.float32) * rng.choice([-1, 1], n)
    prediction = prediction.astype(np.float32)
    prediction[:3] = 1e-45, -1e-45, 0
    weight = rng.choice(np.array([0, 1e-40, 1, 1e30], np.float32), n) if weighted else None
    put, kernels = runtime.xp.asarray, MetricKernels(runtime)
    rows = ScoredRows(put(np.zeros(n, np.float32)), put(prediction), None if weight is None else put(weight))
    losses = np.square(prediction.astype(np.float64))
    expected = ExactSum.of(losses if weight is None else losses * weight.astype(np.float64))
    for _ in range(2):  # the second time begins with zeros again
        state = kernels.state()
        kernels.add_losses("squared", rows, kernels.parameters(()), state)
        found, weights = read_losses(to_host(state), n, is_weighted=weighted)
        assert ExactSum(*found) == expected
        assert ExactSum(*weights) == ExactSum.of(np.ones(n) if weight is None else weight)


EXTREME = np.array([np.nan, np.inf, -np.inf, 1e-45, -0.0, 3e38, -3e38, 80, -80.5, 88], np.float32)


@pytest.mark.parametrize(("name", "more"), [
    ("reg:squarederror", {}), ("binary:logistic", {}), ("binary:logitraw", {}), ("reg:logistic", {}),
    ("count:poisson", {}), ("reg:gamma", {}), ("reg:tweedie", {}),
    ("reg:quantileerror", {"quantile_alpha": [0.2, 0.7]}), ("multi:softprob", {"num_class": 3}),
    ("multi:softmax", {"num_class": 40}),
])  # fmt: skip
def test_predictions_have_the_bits_of_expressions(
    name: str, more: dict[str, Any], runtime: Runtime, rng: np.random.Generator
) -> None:
    objective = make_objective(name, more)
    margin = rng.normal(0, 5, (401, objective.n_outputs)).astype(np.float32)
    margin[: len(EXTREME), 0] = EXTREME
    link, xp = link_of(objective), runtime.xp
    assert link is not None
    found = PREDICT[link](runtime, xp.asarray(margin), xp.empty(margin.shape, np.float32))
    with np.errstate(all="ignore"):
        expected = objective.evaluation(margin)
    np.testing.assert_array_equal(bits(to_host(found).reshape(expected.shape)), bits(expected))


def test_which_objectives_have_a_kernel_of_predictions() -> None:
    """All of ours; none that a subclass predicts otherwise without saying by which kernel."""
    class Doubled(type(make_objective("reg:squarederror"))):  # type: ignore[misc]
        def prediction(self, margin: Any, xp: Any = np) -> Any:
            return 2 * margin[:, 0]

    class Told(Doubled):
        device_link = LinkKernel.EXP

    class Elsewhere(Told):
        def evaluation(self, margin: Any, xp: Any = np) -> Any:
            return margin[:, 0]

    class Gradients(type(make_objective("binary:logistic"))):  # type: ignore[misc]
        def gradients(self, label: Any, margin: Any, xp: Any = np) -> Any:
            return margin, margin

    made: list[Objective] = [Doubled(), Told(), Elsewhere(), Gradients()]
    assert [link_of(each) for each in made] == [None, LinkKernel.EXP, None, LinkKernel.SIGMOID]


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_margins_of_several_groups_are_put_together(n_outputs: int, runtime: Runtime, rng: np.random.Generator) -> None:
    sizes, kept = (40, 300, 7), np.array([3, 4, 250], np.int32)
    margins = [rng.normal(size=(n, n_outputs)).astype(np.float32) for n in sizes]
    put, kernels = runtime.xp.asarray, MetricKernels(runtime)
    chosen = [None, kept, None]
    expected = np.concatenate([m if c is None else m[c] for m, c in zip(margins, chosen, strict=True)])
    n = len(expected)
    on_device = [put(margin) for margin in margins]
    sources = list(zip(on_device, [None if c is None else put(c) for c in chosen], strict=True))
    rows = WatchedRows(
        WatchedRoom(kernels, n, 0, n_outputs), LinkKernel.MARGIN, put(np.zeros(n, np.float32)), None, sources
    )
    for factor in (1, 3):
        for margin in on_device:
            margin *= factor
        rows.predict()
        np.testing.assert_array_equal(to_host(rows.prediction).reshape(n, n_outputs), expected)
        expected = 3 * expected
