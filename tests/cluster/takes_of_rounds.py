"""What the host has to do with a device in the takes of rounds of a fit, whose trees grow without it.

An emulated device notes it (`kernels/apart.py`). A take of rounds is a word, with a letter for each thing that is done
outside of graphs; the words that are documented are written down here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernels.apart import LAUNCH, READ, RECORD, REPLAY, UPLOAD, ApartRuntime, Note
from strategies.trees import Data, make_data, quantized

from daskboost import train
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import sorted_entries
from daskboost.devices.gpu.trees.best_first import STEPS
from daskboost.engine.whole_rounds import WholeRounds
from daskboost.fit import coordinator
from daskboost.fit import scales as rounding

N_ROUNDS = 4
N_ROWS = 1_500
LETTERS = {LAUNCH: "l", READ: "r", REPLAY: "G", UPLOAD: "u"}
GROUP = "G"
"""Trees that grow together: their graph, in which their learning rate and keys are found, and their tables kept."""
LAST_METRICS = "G"
"""Metrics after the last round of a take: a graph of their own."""
BEST = "GG+(rG)+"
"""A tree that grows best first: the root, as many steps as the last tree took without a question, then a question
before all others and before the leaves."""
ROUNDS_READ = "r"
"""When a take of rounds ends."""
BEST_FIRST: dict[str, Any] = {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 30, "min_child_weight": 0}
GROWTH: dict[str, dict[str, Any]] = {
    "stumps": {"max_depth": 1},
    "a leaf": {"max_depth": 3, "max_leaves": 1},
    "depthwise": {"max_depth": 4},
    "deep": {"max_depth": 9, "min_child_weight": 0},
    "few leaves": {"max_depth": 6, "max_leaves": 11},
    "symmetric": {"max_depth": 3, "grow_policy": "symmetric"},
    "deep symmetric": {"max_depth": 7, "grow_policy": "symmetric"},
}


@dataclass
class Takes:
    """What the host did in each take of rounds of a fit, and how many rounds it asked for."""

    runtime: ApartRuntime
    asked: list[int] = field(default_factory=list)
    notes: list[list[Note]] = field(default_factory=list)

    def note(self, take: Callable[[], tuple[Any, ...]], n: int) -> tuple[Any, ...]:
        """The rounds of a take."""
        begin = len(self.runtime.notes)
        rounds = take()
        self.asked.append(n)
        self.notes.append(self.runtime.notes[begin:])
        return rounds

    @property
    def in_graphs(self) -> list[Note]:
        return [note for notes in self.notes for note in notes if note.recorded]

    @property
    def replays(self) -> list[list[str]]:
        """What each launched."""
        found: list[list[str]] = []
        for notes in self.notes:
            for note in notes:
                if note.kind == REPLAY:
                    found.append([])
                elif note.recorded:
                    found[-1].append(note.what)
        return found


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Takes:
    found, take = Takes(ApartRuntime(seed=5)), WholeRounds._take
    monkeypatch.setattr(WholeRounds, "_take", lambda self, n: found.note(lambda: take(self, n), n))
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: found.runtime)
    monkeypatch.setattr(coordinator, "ASK_SECONDS", 1e6)  # some rounds are asked for together
    monkeypatch.setattr(coordinator, "MORE_ROUNDS", 2)
    monkeypatch.setattr(coordinator, "first_rounds", lambda *_: 1)
    monkeypatch.setattr(rounding, "SMALL_ROWS", 0)
    return found


def search_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse rows are searched in sorted entries, however few cells their histograms had."""
    for name in ("LEAST_CELLS", "CELLS_PER_ENTRY"):
        monkeypatch.setattr(sorted_entries, name, 0)


def data_of(params: dict[str, Any]) -> Data:
    objective, most = params.get("objective", "reg:squarederror"), params.get("num_class", np.inf) - 1
    data = make_data(np.random.default_rng(3), objective, N_ROWS, n_values=60)
    return replace(data, y=np.minimum(data.y, most).astype(np.float32))


def fit(takes: Takes, params: dict[str, Any], *, evaluated: bool = False, objective: Any = None, **how: Any) -> None:
    with quantized(data_of(params), **how) as dataset:
        evals = [(dataset, "train")] if evaluated else []
        train({**params, "n_jobs": 1, "device": "cuda"}, dataset, N_ROUNDS, evals=evals, objective=objective)
    assert takes.asked == [1, 2, 1]


def said(notes: list[Note]) -> str:
    """The word of what was done outside of graphs, but for recording them, which is counted."""
    return "".join(LETTERS[note.kind] for note in notes if not note.recorded and note.kind != RECORD)


def check(takes: Takes, one_round: str, n_graphs: int, first_round: str = "[lu]+", end: str = "", *,
          ahead: bool = True) -> None:  # fmt: skip
    """Rounds are as documented; the launches of the first one come one by one, before anything is recorded.

    `one_round`, `first_round` : regular expressions. `end` : what comes behind the rounds of a take but the first's.
    `ahead` : whether the next round grows before the rounds of a take are read, so that it is there when it is asked
    for.
    """
    broken = [note for note in takes.in_graphs if note.kind != LAUNCH]
    assert not broken, f"in graphs, which only launch: {broken}"
    each = f"(?:{one_round})"
    words = (
        [f"(?:{first_round}){each}", f"{each}{end}{each}", end] if ahead
        else [f"(?:{first_round})", f"{each}{each}{end}", f"{each}{end}"]
    )  # fmt: skip
    for wanted, notes in zip(words, takes.notes, strict=True):
        reads = [note.what for note in notes if note.kind == READ]
        done = said(notes)
        assert re.fullmatch(wanted + ROUNDS_READ, done), (
            f"outside of graphs {done}, not {wanted}{ROUNDS_READ}; the host reads {reads}"
        )
    recorded = sum(note.kind == RECORD for notes in takes.notes for note in notes)
    assert recorded == n_graphs, f"{recorded} graphs, not {n_graphs}"


def check_best_first(takes: Takes, n_trees: int = 1, draws: str = "", at_once: int = STEPS) -> None:
    """`n_trees` of a round; `at_once` : steps of a replay."""
    first = f"(?:[lu]+G*(?:rG)*r[lu]+){{{n_trees}}}"  # steps are replayed already, all but the first ones
    check(takes, f"(?:{draws}{BEST}){{{n_trees}}}", 3 * n_trees, first)
    steps = [each.count("choose_best") for each in takes.replays if not {"start_best", "finish_best"} & set(each)]
    assert steps
    assert min(steps) >= at_once, f"steps between two questions: {steps}"
    found = re.findall("G(G+)((?:rG)+)", " ".join(said(notes) for notes in takes.notes))
    trees = [(len(unasked), len(asked) // len("rG")) for unasked, asked in found][-sum(takes.asked[1:]) * n_trees :]
    assert len(trees) == sum(takes.asked[1:]) * n_trees
    for (before, questions), (unasked, _) in pairwise(trees):  # the last answer is no, and no step follows it
        assert unasked == max(before + questions - 2, 1), f"replays without a question, then questions: {trees}"
