"""Scores of fits round by round, on rows that they have not seen.

Exact trees of 80M rows take minutes, and their model has the same bytes whatever the machine and the commit, so what
they reach may be taken from a row of an earlier call.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import ours
from benchmarks.fit_callbacks import UntilScore
from benchmarks.harness import timed
from benchmarks.out_of_core_cases import Config
from benchmarks.out_of_core_data import quantized_test_rows

if TYPE_CHECKING:
    from benchmarks.out_of_core_kinds import Bench

OF_FITS = ("n_rows", "n_features", "max_depth", "rounds", "max_bin", "workload", "test_rows", "block_rows", "device")
"""What of a config the scores of exact trees depend on."""


@dataclass(frozen=True)
class Curve:
    """A fit, round by round."""

    auc: tuple[float, ...]
    """On rows that it has not seen; the last alone where a row tells it."""
    passes: tuple[int, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from, unless it was measured now."""


def curve(bench: Bench, goal: float | None = None) -> Curve:
    """Of the exact fit; or of the certified one until it has as many trees and the goal's AUC, or twice the trees."""
    if goal is None and bench.exact_from is not None:
        return recorded(bench.config, bench.exact_from)
    return _curve(replace(bench, config=replace(bench.config, name="", trees=0, repeats=0)), goal)


@functools.lru_cache(maxsize=4)
def _curve(bench: Bench, goal: float | None) -> Curve:
    config, data = bench.config, bench.dataset()
    evals = [(quantized_test_rows(config, data), "fresh")]
    more: dict[str, Any] = {"evals": evals, "eval_metric": "auc"}
    params = bench.params(data, config.resident, **more) if goal is None else bench.certified(data, **more)
    history: dict[str, Any] = {}
    seconds, _ = timed(lambda: ours.train(
        params, data, config.rounds * (1 if goal is None else 2), evals=evals, evals_result=history,
        callbacks=[] if goal is None else [UntilScore(goal, config.rounds)],
    ))  # fmt: skip
    auc = history["fresh"]["auc"]
    passes = history.get("out_of_core", {}).get("passes", [config.max_depth] * len(auc))
    print(f"  {'exact' if goal is None else 'certified'}: {len(auc)} trees in {seconds:.1f} s, {sum(passes)} passes, "
          f"AUC {auc[-1]:.5f}", flush=True)  # fmt: skip
    return Curve(tuple(auc), tuple(passes))


def recorded(config: Config, path: Path) -> Curve:
    """What exact trees have reached by the last row of such a fit in a file of `passes_to_score`'s rows, of those that
    did not take it from another row.

    Raises
    ------
    ValueError
        The file has none.
    """
    asked = {name: asdict(config)[name] for name in OF_FITS}
    for line in reversed(path.read_text().splitlines()):
        row = json.loads(line)
        measured = "goal_auc" in row and "exact_from" not in row
        if measured and {name: row["config"].get(name) for name in OF_FITS} == asked:
            notes = {"exact_from": {name: row[name] for name in ("commit", "date", "gpu")}}
            per_tree = row["exact_passes"] // config.rounds
            return Curve((row["goal_auc"],), (per_tree,) * config.rounds, notes)
    raise ValueError(f"{path} has no row of exact trees of {asked}: leave --exact-from out, and they are grown")
