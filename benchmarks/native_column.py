"""What a categorical column that is split by sets costs a tree: 11M rows, 27 numbers and one column of 100,000 levels.

    python -m benchmarks.native_column                        # on a GPU
    python -m benchmarks.native_column --device cpu --rows 20000 --levels 300 --trees 10

The same rows are trained on with the column and without it, in turns; a tree's time is that by which a fit of all
trees exceeds one of a fifth of them. Levels of low numbers are frequent, and each has an effect on the label: a model
with the column must score better, or its time means nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.generators import EFFECT_ROW, LABEL_COLUMN, WORKLOADS, Array, hashes, normals, uniforms
from benchmarks.gpu_contenders import array_module, host, scores
from benchmarks.gpu_speed import gpu_name
from benchmarks.harness import RESULTS, Run, beside_row, comparison_rows, interleave, record, timed

WITH, WITHOUT = "with the column", "without it"
TEST_ROWS = 200_000
BLOCK_ROWS = 2_000_000
"""Rows whose levels are drawn at a time."""


@dataclass(frozen=True)
class Config:
    """The case; `n_features` with the column, which is the last."""

    n_rows: int = 11_000_000
    n_features: int = 28
    n_levels: int = 100_000
    trees: int = 100
    depth: int = 8
    learning_rate: float = 0.1
    device: str = "cuda"
    repeats: int = 3
    asked: float = 1.3
    """How many times as long as without the column a tree may take with it."""


def rows(config: Config, first: int, n_rows: int) -> tuple[Array, Array]:
    """Rows in the memory of the device. A level decides the label of more rows, the larger its effect is; of the other
    rows numbers do."""
    xp, last = array_module(config.device), config.n_features - 1
    numbers, by_numbers = WORKLOADS["higgs"].wide(last).rows(n_rows, first=first, xp=xp)
    x, y = xp.empty((n_rows, last + 1), xp.float32), xp.empty(n_rows, xp.float32)
    x[:, :last] = numbers
    for start in range(0, n_rows, BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, n_rows))
        ids = xp.arange(first + part.start, first + part.stop, dtype=xp.int64)
        bits = hashes(ids, xp.array([last, LABEL_COLUMN + 1]), 0, xp)
        levels = (uniforms(bits[:, 0], xp) ** 2 * config.n_levels).astype(xp.int64)
        effects = normals(hashes(EFFECT_ROW + levels, xp.array([last]), 0, xp), xp)[:, 0]
        decides = uniforms(bits[:, 1], xp) < xp.tanh(xp.abs(effects))
        x[part, last] = levels
        y[part] = xp.where(decides, effects > 0, by_numbers[part])
    return x, y


def contender(config: Config, n_features: int, train: tuple[Array, Array], test: tuple[Array, Array]
              ) -> Callable[[], Run]:  # fmt: skip
    """Return what trains on the first `n_features`, read once, and gives the seconds of a tree."""
    column = config.n_features - 1
    categories: dict[str, Any] = {"categorical_features": [column], "encodings": {column: "native"}}
    if n_features == column:
        categories = {}
    data = ours.quantize(train[0][:, :n_features].copy(), train[1], device=config.device, **categories)
    params = {
        "objective": "binary:logistic", "max_depth": config.depth, "learning_rate": config.learning_rate,
        "device": config.device,
    }  # fmt: skip
    found: dict[str, float] = {}

    def run() -> Run:
        short = max(1, config.trees // 5)
        few = timed(lambda: ours.train(params, data, short))[0]
        all_, model = timed(lambda: ours.train(params, data, config.trees))
        if not found:
            prediction = ours.predict(model, host(test[0][:, :n_features]))
            found.update(scores(host(test[1]), prediction))
        return Run((all_ - few) / (config.trees - short), found)

    return run


def learned_from_levels(runs: Mapping[str, Run]) -> None:
    """The check that levels tell something of rows that no fit has seen."""
    with_, without = (runs[name].answer["auc"] for name in (WITH, WITHOUT))
    if with_ < without + 0.005:
        raise AssertionError(f"AUC {with_:.5f} with the column, {without:.5f} without it: nothing was learned from it")


def bench(config: Config) -> list[dict[str, Any]]:
    """Measure; the rows of repeats, and the ratio."""
    train, test = rows(config, 0, config.n_rows), rows(config, config.n_rows, min(TEST_ROWS, config.n_rows))
    contenders = {
        name: contender(config, n_features, train, test)
        for name, n_features in ((WITH, config.n_features), (WITHOUT, config.n_features - 1))
    }
    result = interleave(contenders, config.repeats, learned_from_levels)
    times = {name: 1e3 * result.seconds(name) for name in result.runs}
    for name, milliseconds in times.items():
        auc = result.runs[name][0].answer["auc"]
        print(f"  {milliseconds:.3f} ms a tree {name}, AUC {auc:.5f}", flush=True)
    return [*comparison_rows("levels", result), beside_row("levels", result, WITHOUT, WITH, asked=config.asked)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--levels", type=int, default=Config.n_levels)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    config = Config(
        options.rows, n_levels=options.levels, trees=options.trees, device=options.device, repeats=options.repeats
    )
    gpu = gpu_name(options.device)
    record("native_column", config, [{"gpu": gpu, **row} for row in bench(config)], options.results)


if __name__ == "__main__":
    main()
