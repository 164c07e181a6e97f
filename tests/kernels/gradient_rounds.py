"""Rounds of gradients on a device, and the naive twin's, for tests to compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from devices.backends import unpack
from reference import gradients as reference
from strategies.roundings import make_rounding, sample_bound

from daskboost.devices.gpu.rows.gradients import Quantizer, RoundGradients, loss_source
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.runtime.launches import Runtime, overwrite, to_host
from daskboost.fit.messages import GradientRange
from daskboost.fit.scales import scale_rule, tree_keys
from daskboost.objectives.objective import Objective, kernel_of
from daskboost.params import TrainParams


@dataclass
class Chunk:
    """Rows on the host; margins change from round to round."""

    label: Any
    margin: Any
    weight: Any
    pieces: list[tuple[int, int]]


def make_chunks(rng: np.random.Generator, objective: Objective, sizes: list[int], weighted: bool) -> list[Chunk]:
    chunks = []
    for n in sizes:
        label = rng.choice(np.array([0, 1, 0.3], np.float32), n)
        margin = rng.normal(scale=2, size=(n, objective.n_outputs)).astype(np.float32)
        weight = (rng.integers(0, 3, n) * rng.random(n)).astype(np.float32) if weighted else None
        begins = sorted({0, *(rng.integers(1, n, 3).tolist() if n > 9 else [])}) if n else []
        chunks.append(Chunk(label, margin, weight, [(begin, 2**40 + 10_000 * begin) for begin in begins]))
    return chunks


class DeviceRounds:
    """The same rows on a device, and everything that a round of them takes."""

    def __init__(self, runtime: Runtime, objective: Objective, chunks: list[Chunk], small: bool, share: float,
                 by_weight: bool = False) -> None:  # fmt: skip
        xp, loss = runtime.xp, kernel_of(objective)
        assert loss is not None
        self.chunks, self.runtime, self.xp = chunks, runtime, xp
        below = sample_bound(TrainParams(subsample=share))
        self.rounding = DeviceRounding(runtime, objective.n_outputs)
        self.margins = [xp.asarray(chunk.margin) for chunk in chunks]
        self.rounds, self.rows = [], []
        for chunk, margin in zip(chunks, self.margins, strict=True):
            n = len(chunk.label)
            weight = None if chunk.weight is None else xp.asarray(chunk.weight)
            own = xp.ones(n, np.float32) if small and weight is None else weight
            source = loss_source(runtime, loss, xp.asarray(chunk.label), margin, weight, small_data=small)
            quantizer = Quantizer(runtime, chunk.pieces, n, own if small else None)
            self.rounds.append(RoundGradients(source, quantizer, self.rounding, below, by_weight=by_weight))
            pairs = xp.zeros(n, np.int64 if small else np.int32)
            self.rows.append((xp.full(n, 77, np.uint32), pairs, xp.full((3, 2), 7, np.int64)))

    def start(self, total_weight: float | None, largest_searched: float = 0.0) -> None:
        """Everything of a round but the host's keys."""
        for round_ in self.rounds:
            round_.find_range()
        rule = scale_rule(total_weight, TrainParams().reg_lambda, 0.0, largest_searched=largest_searched)
        self.rounding.find_scales(rule)

    def quantize(self, output: int, ordered: bool = True) -> None:
        for round_, (order, pairs, bounds) in zip(self.rounds, self.rows, strict=True):
            round_.quantize(output, order if ordered else None, pairs, bounds)

    def found(self, chunk: int) -> list[tuple[int, ...]]:
        """Sampled rows of a chunk and their pairs."""
        order, pairs, bounds = (to_host(array) for array in self.rows[chunk])
        begin, kept = bounds[0].tolist()
        assert begin == 0 and (bounds[1:] == 7).all()
        g, h = unpack(pairs[:kept])
        return list(zip(order[:kept].tolist(), g.tolist(), h.tolist(), strict=True))


def naive(chunk: Chunk, g: Any, h: Any, rounding: Any, small: bool) -> list[tuple[int, ...]]:
    """What `DeviceRounds.found` should be, by the naive twin, one piece at a time."""
    weight = None
    if small:
        weight = np.ones(len(g), np.float32) if chunk.weight is None else chunk.weight
    ends = [begin for begin, _ in chunk.pieces[1:]] + [len(g)]
    expected: list[tuple[int, ...]] = []
    for (begin, first), end in zip(chunk.pieces, ends, strict=False):
        own = None if weight is None else weight[begin:end]
        part = reference.quantize(g[begin:end], h[begin:end], rounding, first, own)
        expected += [(begin + row, *pair) for row, *pair in part]
    return expected


def sum_of_weights(chunks: list[Chunk]) -> float:
    weights = [np.ones(len(each.label)) if each.weight is None else each.weight for each in chunks]
    return math.fsum(np.concatenate(weights).tolist())


def weights_of(chunks: list[Chunk], objective: Objective, small: bool) -> list[Any]:
    """What takes the place of h, of each output."""
    found = []
    for chunk in chunks:
        factor = np.where(chunk.label == 1, np.float32(objective.positive_weight), np.float32(1))
        own = factor if chunk.weight is None or small else factor * chunk.weight
        found.append(np.repeat(own[:, None], objective.n_outputs, axis=1))
    return found


def check_round(device: DeviceRounds, objective: Objective, small: bool, iteration: int, share: float,
                by_weight: bool = False) -> None:  # fmt: skip
    """One round on the device, and the same by array expressions, the host's scales and the naive twin."""
    chunks, params = device.chunks, TrainParams(subsample=share)
    n_outputs = objective.n_outputs
    given = [reference.weighted(objective, each.label, each.margin, each.weight, small) for each in chunks]
    tops = [np.concatenate([pair[i] for pair in given]) for i in range(2)]
    ranges = [GradientRange(*(np.abs(values).max(axis=0).astype(np.float64) for values in tops))]
    total = sum_of_weights(chunks) if small else None
    searched = weights_of(chunks, objective, small) if by_weight else []
    most = float(max(np.max(each) for each in searched)) if by_weight else 0.0
    roundings = [make_rounding(params, "any", iteration, k, ranges, total, most) for k in range(n_outputs)]
    keys = [tree_keys(params.random_state, iteration, k) for k in range(n_outputs)]
    overwrite(device.runtime, device.rounding.keys, np.array(keys, np.uint64))
    device.start(total, most)
    largest = device.rounding.largest()
    np.testing.assert_array_equal(largest, [ranges[0].largest_g, ranges[0].largest_h])
    scales = to_host(device.rounding.scales)
    expected = [(own.scale_g, own.scale_h, own.scale_w, *own.units, own.noise_gain) for own in roundings]
    np.testing.assert_array_equal(scales[:, [0, 1, 2, 3, 4, 7]], expected)
    np.testing.assert_array_equal(to_host(device.rounding.units), scales[:, 3:5])
    given = [(g, searched[index] if by_weight else h) for index, (g, h) in enumerate(given)]
    for output, rounding in enumerate(roundings):
        device.quantize(output)
        found = [device.found(index) for index in range(len(chunks))]
        for index, (chunk, (g, h)) in enumerate(zip(chunks, given, strict=True)):
            assert found[index] == naive(chunk, g[:, output], h[:, output], rounding, small)
        rows = [row for part in found for row in part]
        assert device.rounding.sums_of(output) == (sum(row[1] for row in rows), sum(row[2] for row in rows))
