"""Gradients of softmax cross-entropy: the bits of the array expressions, and rounds of several outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.gradient_rounds import Chunk, DeviceRounds, check_round, make_chunks
from kernels.test_loss_kernels import bits
from reference import gradients as reference

from daskboost.devices.gpu.device import kernel_gradients
from daskboost.devices.gpu.rows.gradients import loss_source
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.objectives.classification import SoftProb
from daskboost.objectives.objective import Objective, kernel_of
from daskboost.objectives.objective_names import make_objective


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3, 7, 32, 33, 80, 257])
def test_softmax(n_classes: int, small: bool, weighted: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """As many classes as fill a group of lanes, fewer, and more; rows of which the last warp has some, or that take a
    block several goes."""
    objective = make_objective("multi:softprob", {"num_class": n_classes})
    chunks = make_chunks(rng, objective, [{7: 700, 33: 150}.get(n_classes, 1200 // n_classes), 0, 3], weighted)
    for chunk in chunks:
        chunk.label = rng.integers(0, n_classes, len(chunk.label)).astype(np.float32)
        chunk.margin *= rng.choice(np.array([0.1, 1, 30], np.float32), (len(chunk.margin), 1))
    check_softmax_bits(runtime, objective, chunks[0], small)
    if n_classes <= 33:
        check_round(DeviceRounds(runtime, objective, chunks, small, 1.0), objective, small, 0, 1.0)


def check_softmax_bits(runtime: Runtime, objective: Objective, chunk: Chunk, small: bool) -> None:
    """Stored gradients and their range, ordinary margins and extreme ones."""
    loss, xp = kernel_of(objective), runtime.xp
    margin = chunk.margin.copy()
    extreme = np.array([np.nan, np.inf, -np.inf, 1e-45, -0.0, 3e38, -3e38], np.float32)
    for row in range(len(margin) // 2, len(margin)):
        margin[row, row % margin.shape[1]] = extreme[row % len(extreme)]
    for margins in (chunk.margin, margin):
        on_device: list[Any] = [None if a is None else xp.asarray(a) for a in (chunk.label, margins, chunk.weight)]
        assert loss is not None
        source = loss_source(runtime, loss, *on_device, small_data=small)
        tops = xp.zeros((2, objective.n_outputs), np.uint32)
        source.find_range(tops)
        found = [source.columns(output) for output in range(objective.n_outputs)]
        given = reference.weighted(objective, chunk.label, margins, chunk.weight, small)
        for columns, expected, top in zip(zip(*[(c.first, c.second) for c in found], strict=True), given,
                                          to_host(tops).view(np.float32), strict=True):  # fmt: skip
            values = np.stack([to_host(column) for column in columns], axis=1)
            np.testing.assert_array_equal(bits(values), bits(expected))
            np.testing.assert_array_equal(top, np.abs(expected).max(axis=0))


def test_too_many_classes_have_no_kernel(runtime: Runtime) -> None:
    """Not even one warp's classes fit the shared memory of a block; array expressions then serve."""
    label, loss = runtime.xp.zeros(2, np.float32), DeviceLoss(LossKernel.SOFTMAX)
    for n_classes, has_kernel in ((3_000, True), (10_000, False)):
        margin = runtime.xp.zeros((2, n_classes), np.float32)
        assert (kernel_gradients(loss, n_classes, stored=True) == "stored") == has_kernel
        if has_kernel:
            source = loss_source(runtime, loss, label, margin, None, small_data=False)
            tops = runtime.xp.zeros((2, n_classes), np.uint32)
            source.find_range(tops)
            top = to_host(tops).view(np.float32)
            expected = reference.weighted(
                SoftProb(n_classes), np.zeros(2, np.float32), np.zeros((2, n_classes), np.float32), None, False
            )
            np.testing.assert_array_equal(top, [np.abs(values).max(axis=0) for values in expected])
