"""Drawing rows by their gradients: the kernel against its naive twin, and the threshold that makes a sample's size."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import (
    VIEWS,
    EagerThreads,
    built,
    device_of,
    make_layout,
    make_rows,
    make_symbols,
    make_view,
    put_rows,
    walks_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.losses import PARAMS
from reference import histogram
from reference.sampling import cell_of, drawn, threshold_of

from daskboost.devices.cpu.samples import CpuCandidates
from daskboost.devices.cpu.views import DenseView, SlotLayout
from daskboost.devices.gpu.rows import views as gpu_views
from daskboost.devices.gpu.rows.gradients import LossRows, loss_source
from daskboost.devices.gpu.rows.samples import GpuCandidates, RoomSize
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.protocols import Candidates
from daskboost.devices.sampling import N_CELLS, RowsToDraw, cell_norms
from daskboost.fit.samplers import sample_threshold
from daskboost.objectives.objective import kernel_of
from daskboost.objectives.objective_names import make_objective

KEY = 0x9D2C5680A7F1C3E5
N_BINS = [5, 3, 7, 2]
SOME_VIEWS = [view for view in VIEWS if view.values[0].split()[-1] in ("uint8", "csr")]
SIZES = (1_300, 0, 1, 2_600)
"""Rows of chunks: more than a block has, none, and what threads divide."""


def gradients(rng: np.random.Generator, n_rows: int, n_outputs: int) -> tuple[Any, Any]:
    """Of all sizes, some 0, and of some rows not finite."""
    g, h = (rng.normal(size=(n_rows, n_outputs)).astype(np.float32) * np.float32(scale) for scale in (1, 3))
    h = np.abs(h)
    g[::7], h[::7] = 0, 0
    g[5::11] *= np.float32(1e-30)
    h[5::11] = 0
    g[3:4], g[4:5], h[10:11] = np.inf, np.nan, 3e38
    return g, h


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("ids", ["stretches", "single ids"])
@pytest.mark.parametrize("encoding", SOME_VIEWS)
def test_rows_are_drawn_as_the_naive_twin_does(encoding: str, ids: str, n_outputs: int) -> None:
    """Their bins, ids and gradients, in order; a second round has more rows than the first one."""
    rng, layout, threads = np.random.default_rng(4), make_layout(N_BINS), EagerThreads(2)
    symbols = [make_symbols(rng, n, N_BINS) for n in SIZES]
    views = [make_view(encoding, each, layout) for each in symbols]
    device = device_of(views[0], layout, threads)
    beside = partial(put_on, views[0])
    candidates: Candidates = device.candidates(n_outputs, lambda n_rows: n_rows > 400)
    by_weight = n_outputs == 3
    for key, threshold, exact in ((KEY, 2.0, 4.0), (KEY + 1, 0.6, 1.1), (KEY, 1e-3, 1e-3), (KEY, 1e30, 2e30)):
        candidates.start(key, threshold, sum(SIZES))
        expected_counts, n_drawn = np.zeros(N_CELLS, np.int64), 0
        expected: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "symbols")}
        for index, n_rows in enumerate(SIZES):
            (g, h), (own_ids, pieces) = gradients(rng, n_rows, n_outputs), ids_of(n_rows, index, ids)
            margin = rng.normal(size=g.shape).astype(np.float32)
            label, weight = (rng.random(n_rows).astype(np.float32) for _ in range(2))
            searched = weight * np.float32(2)
            candidates.add(views[index], RowsToDraw(
                index, beside(margin), beside(label), beside(weight) if by_weight else None, pieces,
                (beside(g), beside(h)), beside(searched) if by_weight else None,
            ))  # fmt: skip
            of_norms = np.repeat(searched[:, None], n_outputs, axis=1) if by_weight else h
            expected_counts += drawn(g, of_norms, own_ids, key, threshold)[3]
            n_drawn += len(drawn(g, of_norms, own_ids, key, threshold)[0])
            rows, norms, _, _ = drawn(g, of_norms, own_ids, key, exact)
            share = np.minimum(np.array(norms, np.float64) / exact, 1)
            own = {"ids": own_ids, "margin": margin, "label": label, "symbols": symbols[index]}
            for name, values in own.items():
                expected[name].append(values[rows])
            weights = weight if by_weight else np.ones_like(weight)
            for name, values in {"g": g, "h": h, "weight": weights}.items():
                shares = share if values.ndim == 1 else share[:, None]
                with np.errstate(over="ignore"):
                    expected[name].append((values[rows] / shares).astype(np.float32))
        assert (candidates.counts == expected_counts).all()
        assert candidates.n_drawn == n_drawn
        sample = candidates.take(exact)
        assert sample is not None
        wanted = {name: np.concatenate(parts) for name, parts in expected.items()}
        assert sample.n_rows == len(wanted["ids"]) >= 3
        for name in COLUMNS:
            np.testing.assert_array_equal(to_host(getattr(sample, name)).astype(wanted[name].dtype), wanted[name])
        check_bins(sample.view, wanted["symbols"], layout, "csr" not in encoding)


def ids_of(n_rows: int, index: int, kind: str) -> tuple[Any, Any]:
    """Global ids of a chunk's rows, in two stretches, and the same as devices take them: as such or "single ids"."""
    first_row = 2**33 + 10_000 * index
    own = np.concatenate([np.arange(n_rows // 2), np.arange(n_rows // 2, n_rows) + 5_000]).astype(np.uint64)
    own += np.uint64(first_row)
    if kind == "single ids":
        return own, own
    second = (n_rows // 2, first_row + n_rows // 2 + 5_000)
    return own, [(0, first_row), second] if n_rows > 1 else [(0, second[1])]


def check_bins(view: Any, symbols: Any, layout: SlotLayout, missing: bool) -> None:
    """A view of samples has rows of these symbols, in order: their histogram is the naive twin's."""
    n_rows = len(symbols)
    rows, ones = make_rows(view, n_rows, layout, EagerThreads(2)), np.ones(n_rows, np.int64)
    put_rows(rows.chunks[0], [list(range(n_rows))], np.arange(n_rows), ones)
    found = built(rows, None, np.zeros(1, np.int32))
    expected = histogram.histogram(symbols, range(n_rows), np.arange(n_rows), ones, layout, missing)
    assert (found[0] == expected).all()


COLUMNS = ("ids", "g", "h", "margin", "label", "weight")


def put_on(view: Any, values: Any) -> Any:
    """Values where a view lies."""
    return view.runtime.xp.asarray(values) if walks_all(view) else values


@pytest.mark.parametrize("encoding", SOME_VIEWS)
def test_too_many_candidates_are_counted_and_not_kept(encoding: str) -> None:
    """Of an infinite threshold there are none, which wants no view."""
    rng, layout = np.random.default_rng(4), make_layout(N_BINS)
    view = make_view(encoding, make_symbols(rng, 1_300, N_BINS), layout)
    candidates: Candidates = device_of(view, layout, EagerThreads(2)).candidates(1, lambda n_rows: False)
    (g, h), zeros = gradients(rng, 1_300, 1), np.zeros((1_300, 1), np.float32)
    g, h, zeros = (put_on(view, each) for each in (g, h, zeros))
    rows = RowsToDraw(0, zeros, zeros[:, 0], None, [(0, 0)], (g, h), None)
    counts, n_kept = [], []
    for threshold, most_rows in ((1.0, 5_000), (1.0, 1_500), (np.inf, 0), (1.0, 5_000)):
        candidates.start(KEY, threshold, most_rows)
        for _ in range(2):
            candidates.add(view if most_rows else None, rows)
        sample = candidates.take(max(threshold, 1.0))
        n_kept.append((candidates.n_drawn, 0 if sample is None else sample.n_rows))
        counts.append(candidates.counts.tolist())
    n = n_kept[0][0]
    assert 1_500 < n < 2_600
    assert n_kept == [(n, n), (n, 0), (0, 0), (n, n)]
    assert counts[0] == counts[1] == counts[2] == counts[3]


@pytest.mark.parametrize("name", ["binary:logistic", "reg:quantileerror", "multi:softprob"])
def test_gradients_of_kernels_are_those_of_the_expressions(name: str, runtime: Runtime) -> None:
    """Of one output, of several, and of classes, whose gradients are stored; weights take the place of hessians."""
    rng, layout = np.random.default_rng(4), make_layout(N_BINS)
    objective, n_rows = make_objective(name, PARAMS), 1_500
    symbols, loss = make_symbols(rng, n_rows, N_BINS).astype(np.uint8), kernel_of(objective)
    margin = rng.normal(size=(n_rows, objective.n_outputs)).astype(np.float32)
    label, weight = rng.integers(0, 2, n_rows).astype(np.float32), rng.random(n_rows).astype(np.float32)
    assert loss is not None
    on_device = [runtime.xp.asarray(each) for each in (label, margin, weight)]
    source = loss_source(runtime, loss, *on_device, small_data=False)
    losses = LossRows(runtime, [source], objective.n_outputs)
    losses.compute(0)
    device_layout, nothing = DeviceLayout(runtime, layout), RoomSize()
    g, h = (each * weight[:, None] for each in objective.gradients(label, margin))
    here: Candidates = CpuCandidates(layout, EagerThreads(2), lambda n_rows: False)
    there: Candidates = GpuCandidates(device_layout, objective.n_outputs, nothing, nothing)
    view_there = gpu_views.DenseView(device_layout, [symbols], n_rows, copy_columns=False)
    for by_weight in (False, True):
        found: list[Any] = []
        for candidates, view, gradient, (own_label, own_margin, own_weight) in (
            (here, DenseView(symbols, layout), (g, h), (label, margin, weight)),
            (there, view_there, losses.columns(0, 0), on_device),
        ):
            candidates.start(KEY, 0.5, n_rows)
            candidates.add(view, RowsToDraw(
                0, own_margin, own_label, own_weight, [(0, 0)], gradient, own_weight if by_weight else None
            ))  # fmt: skip
            sample = candidates.take(0.75)
            assert sample is not None
            columns = [to_host(getattr(sample, each)).tolist() for each in COLUMNS]
            found.append((candidates.counts.tolist(), candidates.n_drawn, columns))
        assert found[0] == found[1]


def test_cells_hold_the_norms_that_they_stand_for() -> None:
    norms = cell_norms()
    assert [cell_of(norm) for norm in norms.tolist()] == list(range(N_CELLS))
    assert (np.diff(norms) > 0).all() and np.abs(np.diff(norms) / norms[1:]).max() < 1 / 60


@settings(max_examples=60, deadline=None)
@given(
    norms=st.lists(st.floats(2.0**-100, 2.0**100), min_size=1, max_size=20), rate=st.floats(0.01, 0.99),
    repeats=st.integers(1, 5),
)  # fmt: skip
def test_the_threshold_gives_a_sample_of_the_wanted_size(norms: list[float], rate: float, repeats: int) -> None:
    cells = np.array([cell_of(norm) for norm in norms])
    counts = np.bincount(cells, minlength=N_CELLS) * repeats
    threshold = sample_threshold(counts, rate)
    shares = np.minimum(1, cell_norms() / threshold)
    assert (shares * counts).sum() == pytest.approx(rate * counts.sum(), rel=1e-9)
    assert threshold == pytest.approx(threshold_of(np.repeat(cell_norms()[cells], repeats), rate), rel=1e-6)


def test_rows_without_gradients_need_no_threshold() -> None:
    assert sample_threshold(np.zeros(N_CELLS, np.int64), 0.1) == 1.0
