"""Sums of losses and counts of scores, for metrics: launches of `kernels/metric_losses.cu`, `kernels/score_cells.cu`
and `kernels/finish_sums.cu`.

Nothing waits for the device until words are fetched, so that metrics may be part of recorded work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    KernelArgument,
    Runtime,
    Shapes,
    bytes_of,
    element_stride,
    make_arrays,
    to_device,
    to_host,
)
from daskboost.dtypes import Int64, UInt32

THREADS = 256
"""Threads of a block, as in all these kernels."""
LOSSES = (
    "squared", "absolute", "relative", "pseudo-huber", "pinball", "log", "wrong side", "multiclass log", "wrong class",
    "squared log", "gamma",
)  # fmt: skip
"""By their numbers in `kernels/metric_losses.cu`."""
CURVES = ("roc", "precision")
"""By their numbers in `kernels/score_cells.cu`."""
UNIT_EXPONENTS = {"roc": -1, "precision": -100}
"""Exponents of a unit of the sums of areas, and of losses, see `kernels/wide_sum.cuh`."""
LOSS_EXPONENT = -100
BLOCKS_PER_MULTIPROCESSOR = 4
"""Enough to hide the latency of reading rows; threads stride over the rest."""
SCORE_ROWS = 2**22
"""Rows up to which neighbouring groups of rows are evaluated together, where the host waits for each time."""
MOST_CELLS = 1 << 18
"""Most cells of scores that memory is planned for."""
CELL_KEY_BYTES = 8
"""Bytes of a cell's least and greatest key, where these are kept."""
LEAST_CELLS = 1 << 16
"""Cells that there must be room for: some lie in the words of one thread."""
KEY_BITS = 32
STATE_WORDS = 76
"""Words of what a metric knows about some rows: of each of two sums three words, OUTSIDE_WORDS and its specials."""
STATE_BYTES = 8 * STATE_WORDS

_SMALLEST_EXPONENT = -1074  # of a float64: ExactSum's unit
_USED_LIMBS = 8  # in `specials`
_LIMBS = 2048  # exponents
_OUTSIDE_WORDS = 34  # of a sum of any float64
_PREFIX_WORDS = 2**21  # a bit for each of the leading 26 bits of a key
_BLOCKS_OF_PREFIXES = _PREFIX_WORDS // (32 * THREADS)
_KEY_WORDS = 2  # below each of these, a bit for each key
_RESOLUTIONS = 11  # counted at most in each of the two levels
_FOUND = 4 + KEY_BITS + 1  # numbers that launches leave for those behind them, see `found` in the kernels
_CELLS_OF_BLOCK = 4 * THREADS
_ROWS_OF_BLOCK = 4 * THREADS

Words = npt.NDArray[np.uint64]
ExactWords = tuple[int, int]
"""The `units` and `specials` of an `ExactSum`."""


@dataclass(frozen=True)
class ScoredRows:
    """Rows with what a model says of them, on the device."""

    label: DeviceArray
    """float32, shape (rows,)."""
    prediction: DeviceArray
    """float32, shape (rows,), any stride, or (rows, outputs), C-contiguous."""
    weight: DeviceArray | None
    """float32, shape (rows,); None for ones."""


@dataclass(frozen=True)
class ScoreCells:
    """Counted cells of scores in the host's memory, as `KeyTable` has one series."""

    bits: int
    lower: UInt32
    upper: UInt32
    counts: Int64
    """Shape (cells, 2): negatives, positives."""


@dataclass(frozen=True)
class AreaWords:
    """What a device knows about an area under a curve."""

    area: ExactWords
    negatives: int
    positives: int
    refused: int
    """1 if a label is neither 0 nor 1, 2 if a score is NaN."""


def sum_shapes(multiprocessors: int) -> Shapes:
    """Return the shapes of what all sums take in turn: the words of blocks, and of values outside of them."""
    return {
        "limbs": ((2, _LIMBS, 2), np.uint64),
        "sums": ((max(BLOCKS_PER_MULTIPROCESSOR * multiprocessors, MOST_CELLS // _CELLS_OF_BLOCK), 6), np.uint64),
        "specials": ((2,), np.uint32),
    }  # fmt: skip


def score_shapes(n_rows: int, capacity: int) -> Shapes:
    """Return the shapes of what scores of so many rows are counted in; words that begin as zeros come first."""
    n_cells = max(1, min(n_rows, capacity))
    blocks = max(_BLOCKS_OF_PREFIXES, -(-n_cells // THREADS))
    return {
        "zeros": ((2 * n_cells + (_PREFIX_WORDS + _KEY_WORDS * n_cells) // 2 + _FOUND // 2 + 1,), np.uint64),
        "before_prefixes": ((_PREFIX_WORDS,), np.uint32), "before_keys": ((n_cells,), np.uint32),
        "of_blocks": ((blocks, _RESOLUTIONS), np.uint32),
        "totals": ((-(-n_cells // _CELLS_OF_BLOCK), 2), np.uint64),
    }  # fmt: skip


def score_bytes(n_rows: int, *, keeps_keys: bool) -> int:
    """Return the bytes of `ScoreRoom`, which has keys of cells where these are fetched."""
    found = bytes_of(score_shapes(n_rows, MOST_CELLS))
    return found + CELL_KEY_BYTES * min(n_rows, MOST_CELLS) * keeps_keys


class ScoreRoom:
    """Memory that scores of up to `n_rows` rows are counted in, in at most `capacity` cells."""

    def __init__(self, runtime: Runtime, n_rows: int, capacity: int) -> None:
        if capacity < LEAST_CELLS:
            raise ValueError(f"capacity={capacity}: scores are counted in at least {LEAST_CELLS} cells")
        self.capacity, self.n_rows, self._xp = capacity, n_rows, runtime.xp
        self._keys: DeviceArray | None = None
        made = make_arrays(runtime, score_shapes(n_rows, capacity))
        self._zeros, self.before_prefixes, self.before_keys = (
            made[name] for name in ("zeros", "before_prefixes", "before_keys")
        )
        self.of_blocks, self.totals = made["of_blocks"], made["totals"]
        self.n_cells = len(self.before_keys)
        words = self._zeros[2 * self.n_cells :].view(np.uint32)
        self.counts = self._zeros[: 2 * self.n_cells]
        """Negatives and positives of each cell, side by side."""
        self.marks, words = words[:_PREFIX_WORDS], words[_PREFIX_WORDS:]
        self.keys, self.found = words[: _KEY_WORDS * self.n_cells], words[_KEY_WORDS * self.n_cells :]

    def clear(self) -> None:
        """Have zeros where counting begins with them."""
        self._zeros.fill(0)

    def cleared_keys(self) -> DeviceArray:
        """Return the least key of each cell, all ones, and the greatest, 0; uint32, shape (2, cells)."""
        if self._keys is None:
            self._keys = self._xp.empty((2, self.n_cells), np.uint32)
        self._keys[0].fill(0xFFFFFFFF)
        self._keys[1].fill(0)
        return self._keys


class MetricKernels:
    """What metrics ask of the device that labels and predictions lie on."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.most_rows = 0
        """Rows whose scores there will be room for, once some are counted."""
        self._made: dict[str, DeviceArray] | None = None
        self._scores: ScoreRoom | None = None

    @property
    def _room(self) -> dict[str, DeviceArray]:
        """Arrays of `sum_shapes`, made when they are first needed; kept, since what is taken in between would cut a
        free piece, and because graphs have their addresses."""
        if self._made is None:
            self._made = make_arrays(self.runtime, sum_shapes(self.runtime.multiprocessors))
            for name in ("limbs", "specials"):  # finished sums leave zeros
                self._made[name].fill(0)
        return self._made

    def scores(self, n_rows: int, capacity: int) -> ScoreRoom:
        """Return what scores of so many rows are counted in, the same each time, as sums have theirs."""
        self.most_rows = max(self.most_rows, n_rows)
        if self._scores is None or (self._scores.capacity, self._scores.n_rows) != (capacity, self.most_rows):
            self._scores = None  # before the next is made
            self._scores = ScoreRoom(self.runtime, self.most_rows, capacity)
        return self._scores

    def state(self) -> DeviceArray:
        """Return memory of a metric's state, any content; uint64, shape (STATE_WORDS,)."""
        return self.runtime.xp.empty(STATE_WORDS, np.uint64)

    def parameters(self, parameters: Sequence[float]) -> DeviceArray:
        """Return the parameters of a loss on the device."""
        return to_device(self.runtime, np.array([*parameters, 0.0], np.float64))

    # Losses

    def add_losses(self, loss: str, rows: ScoredRows, parameters: DeviceArray, state: DeviceArray) -> None:
        """Have `state` become the exact sums of losses times weights, and of weights.

        `loss` : one of `LOSSES`; `parameters` : its own, see `MetricKernels.parameters`.
        """
        n, room = len(rows.label), self._room
        blocks = max(1, min(-(-n // THREADS), BLOCKS_PER_MULTIPROCESSOR * self.runtime.multiprocessors))
        self.runtime.kernel("metric_losses", "sum_losses", LOSS=LOSSES.index(loss))(
            blocks, THREADS, rows.label, rows.prediction, rows.prediction.size // max(n, 1), rows.weight, parameters, n,
            room["sums"], room["limbs"], room["specials"],
        )  # fmt: skip
        self._finish(blocks, 2, state)

    def add_values(self, n_queries: int, arguments: Sequence[KernelArgument], state: DeviceArray) -> None:
        """Have `state` become the exact sums of the values of queries times weights, and of weights; `arguments` : of
        `sum_values` of `kernels/query_metrics.cu`."""
        room, per_block = self._room, THREADS // 32
        blocks = max(1, min(-(-n_queries // per_block), BLOCKS_PER_MULTIPROCESSOR * self.runtime.multiprocessors))
        self.runtime.kernel("query_metrics", "sum_values")(
            blocks, THREADS, *arguments, room["sums"], room["limbs"], room["specials"]
        )
        self._finish(blocks, 2, state)

    def _finish(self, blocks: int, n_sums: int, state: DeviceArray) -> None:
        room = self._room
        self.runtime.kernel("finish_sums", "finish_sums")(
            n_sums, THREADS, room["sums"], blocks, 3 * n_sums, room["limbs"], room["specials"], state
        )

    def sum_losses(
        self, loss: str, label: DeviceArray, prediction: DeviceArray, weight: DeviceArray | None,
        parameters: Sequence[float] = (),
    ) -> tuple[ExactWords, ExactWords]:  # fmt: skip
        """Return what `read_losses` does, at once: the host waits.

        Parameters
        ----------
        loss : str
            One of `LOSSES`.
        label : float32 array, shape (rows,)
        prediction : float32 array, shape (rows,) or (rows, outputs)
        weight : float32 array, shape (rows,), or None for ones
        parameters : sequence of float
            The loss's own.
        """
        state, rows = self.state(), ScoredRows(label, self.runtime.xp.ascontiguousarray(prediction), weight)
        self.add_losses(loss, rows, self.parameters(parameters), state)
        return read_losses(to_host(state), len(label), is_weighted=weight is not None)

    # Scores

    def count_rows(self, rows: ScoredRows, scale: float, room: ScoreRoom, keys: DeviceArray | None = None) -> None:
        """Count fewer than 2**32 rows in the finest cells that have room.

        Parameters
        ----------
        rows : ScoredRows
            With a score each.
        scale : float
            A power of two; weights times it are counted.
        room : ScoreRoom
            Has the counts then.
        keys : uint32 array, shape (2, cells), optional
            The least key of each cell, from all ones, and the greatest, from 0.
        """
        n, prefixes, below = len(rows.label), _BLOCKS_OF_PREFIXES, -(-room.n_cells // THREADS)
        scores = (rows.prediction, element_stride(rows.prediction), rows.label, rows.weight, scale, n)
        lower, upper = (None, None) if keys is None else keys
        prefix = (room.marks, room.before_prefixes)
        room.clear()
        self._over_rows("mark_prefixes", n, *scores, room.marks, room.found)
        self._launch("count_prefixes", prefixes, room.marks, room.found, room.of_blocks)
        self._launch("number_prefixes", prefixes, *prefix, room.of_blocks, room.capacity, room.found)
        self._over_rows("mark_keys", n, *scores, *prefix, room.keys, room.found)
        self._launch("count_keys", below, room.keys, room.found, room.of_blocks)
        self._launch("number_keys", below, room.keys, room.before_keys, room.of_blocks, room.capacity, room.found)
        self._over_rows(
            "count_rows", n, *scores, *prefix, room.keys, room.before_keys, room.found, room.counts, lower, upper,
            keeps_keys=keys is not None,
        )  # fmt: skip
        self._launch("sum_cells", len(room.totals), room.counts, room.found, room.totals)

    def _over_rows(self, entry: str, n: int, *arguments: KernelArgument, keeps_keys: bool = False) -> None:
        if n:
            self.runtime.kernel("score_cells", entry, KEYS=int(keeps_keys), CURVE=0)(
                -(-n // _ROWS_OF_BLOCK), THREADS, *arguments
            )

    def _launch(self, entry: str, blocks: int, *arguments: KernelArgument) -> None:
        self.runtime.kernel("score_cells", entry, KEYS=0, CURVE=0)(blocks, THREADS, *arguments)

    def add_area(self, curve: str, room: ScoreRoom, state: DeviceArray) -> None:
        """Have `state` become the area under a curve, one of `CURVES`, of rows that are counted in `room`."""
        blocks, own = len(room.totals), self._room
        self.runtime.kernel("score_cells", "add_area", KEYS=0, CURVE=CURVES.index(curve))(
            blocks, THREADS, room.counts, room.totals, room.found, own["sums"], own["limbs"], own["specials"],
            state[STATE_WORDS // 2 :],
        )  # fmt: skip
        self._finish(blocks, 1, state)

    def count_scores(
        self, label: DeviceArray, score: DeviceArray, weight: DeviceArray | None, scale: float, capacity: int
    ) -> ScoreCells | None:
        """Count rows as `count_rows` does, and return the cells: the host waits.

        Returns
        -------
        ScoreCells, or None where a label is neither 0 nor 1 or a score is NaN
        """
        room = self.scores(len(label), capacity)
        keys = room.cleared_keys()
        self.count_rows(ScoredRows(label, score, weight), scale, room, keys)
        found = to_host(room.found).tolist()
        refused, _, bits, n_cells = found[:4]
        if refused:
            return None
        lower, upper = to_host(keys[:, :n_cells])
        return ScoreCells(
            bits, np.ascontiguousarray(lower), np.ascontiguousarray(upper),
            to_host(room.counts[: 2 * n_cells]).view(np.int64).reshape(n_cells, 2),
        )  # fmt: skip


def read_losses(words: Words, n_rows: int, *, is_weighted: bool) -> tuple[ExactWords, ExactWords]:
    """Return the exact sums of losses times weights, and of weights, from a state of `n_rows` rows in the host's
    memory."""
    half = STATE_WORDS // 2
    losses = _exact(words[:half], LOSS_EXPONENT)
    return losses, (_exact(words[half:], LOSS_EXPONENT) if is_weighted else (n_rows << -_SMALLEST_EXPONENT, 0))


def read_area(words: Words, curve: str) -> AreaWords:
    """Return what a state in the host's memory says of an area under a curve."""
    half = STATE_WORDS // 2
    negatives, positives, refused = words[half : half + 3].tolist()
    return AreaWords(_exact(words[:half], UNIT_EXPONENTS[curve]), negatives, positives, refused)


def _exact(words: Words, exponent: int) -> ExactWords:
    """A sum in units of 2**exponent, with what lay outside of it."""
    specials, units = int(words[3 + _OUTSIDE_WORDS]), _integer(words[:3]) << (exponent - _SMALLEST_EXPONENT)
    if specials & _USED_LIMBS:
        units += _integer(words[3 : 3 + _OUTSIDE_WORDS])
    return units, specials & ~_USED_LIMBS


def _integer(words: Words) -> int:
    """The integer of two's complement, low words first."""
    return int.from_bytes(np.ascontiguousarray(words).tobytes(), "little", signed=True)
