"""What categorical columns cost: seconds from a frame to the first tree, and milliseconds a tree, beside CatBoost.

    python -m benchmarks.category_speed                       # 3.6M rows on a GPU
    python -m benchmarks.category_speed --device cpu --rows 20000 --trees 20 --contenders daskboost

Ten numbers and eight columns of 100 to 50,000 levels, in a frame of the host's memory. The start is all of a fit of one
tree, beginning with the frame; a tree's time is that by which a fit of many trees exceeds it. Models are scored on rows
that no fit has seen. Names of contenders end with the number of columns that statistics combine at most, 1 or 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import category_rows, ours, peers
from benchmarks.gpu_contenders import scores
from benchmarks.harness import RESULTS, Run, comparison_rows, record, take_turns, timed

TEST_ROWS = 200_000
SCORE = "Cosine"
"""CatBoost's own choice for symmetric trees."""
FRAMES: dict[str, Callable[[Any], Any]] = {"integers": lambda frame: frame, "texts": category_rows.as_texts}
"""What categories come as."""


@dataclass(frozen=True)
class Config:
    """A case."""

    n_rows: int = 3_600_000
    trees: int = 200
    depth: int = 6
    learning_rate: float = 0.1
    categories: str = "integers"
    device: str = "cuda"
    repeats: int = 3


def fit_ours(config: Config, n_columns: int, x: Any, y: Any, rounds: int) -> Any:
    """Return a model of a frame."""
    combined = {} if n_columns == 1 else {"max_ctr_complexity": n_columns}
    found = ours.quantize_frame(
        x, y, categorical_features=list(category_rows.CATEGORIES), device=config.device, **combined
    )
    params = {"objective": "binary:logistic", "max_depth": config.depth, "learning_rate": config.learning_rate,
              "device": config.device}  # fmt: skip
    model = ours.train(params, found, rounds)
    found.close()
    return model


def fit_catboost(config: Config, n_columns: int, x: Any, y: Any, rounds: int) -> Any:
    """Return a model of a frame."""
    pool = peers.catboost_category_pool(x, y, list(category_rows.CATEGORIES))
    return peers.catboost_train(
        pool, config.depth, config.learning_rate, config.device, SCORE, rounds, max_ctr_complexity=n_columns
    )


@dataclass(frozen=True)
class Library:
    """How a library fits and predicts."""

    fit: Callable[[Config, int, Any, Any, int], Any]
    predict: Callable[[Any, Any], Any]


LIBRARIES = {
    "daskboost": Library(fit_ours, ours.predict), "catboost": Library(fit_catboost, peers.catboost_predict)
}  # fmt: skip
CONTENDERS = {f"{name} {n}": (name, n) for n in (1, 2) for name in LIBRARIES}


def contender(name: str, config: Config, train: tuple[Any, Any], test: tuple[Any, Any]) -> Callable[[], Run]:
    """Return what fits one tree, then all, and gives the seconds of a tree between; a model is scored once."""
    found: dict[str, float] = {}
    library, n_columns = LIBRARIES[CONTENDERS[name][0]], CONTENDERS[name][1]

    def run() -> Run:
        start, _ = timed(lambda: library.fit(config, n_columns, *train, 1))
        whole, model = timed(lambda: library.fit(config, n_columns, *train, config.trees))
        if not found:
            found.update(scores(test[1], np.asarray(library.predict(model, test[0]))))
        return Run((whole - start) / (config.trees - 1), {**found, "start_seconds": start, "whole_seconds": whole})

    return run


def bench(config: Config, names: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of contenders' repeats."""
    frame = FRAMES[config.categories]
    x, y = category_rows.rows(config.n_rows)
    x_test, y_test = category_rows.rows(min(TEST_ROWS, config.n_rows), first=config.n_rows)
    contenders = {name: contender(name, config, (frame(x), y), (frame(x_test), y_test)) for name in names}
    for run in contenders.values():  # kernels are compiled then
        run()
    result = take_turns(contenders, config.repeats)
    for name, runs in result.runs.items():
        starts = float(np.median([run.answer["start_seconds"] for run in runs]))
        print(f"  {name}: {starts:.3f} s to the first tree, then {1e3 * result.seconds(name):.3f} ms a tree; AUC "
              f"{runs[0].answer['auc']:.5f}", flush=True)  # fmt: skip
    return comparison_rows("categories", result)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--trees", type=int, default=Config.trees)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    parser.add_argument("--categories", choices=tuple(FRAMES), default=Config.categories)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Config.device)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="a library, and columns that are combined")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    config = Config(
        options.rows, options.trees, categories=options.categories, device=options.device, repeats=options.repeats
    )
    record("category_speed", config, bench(config, options.contenders.split(",")), options.results)


if __name__ == "__main__":
    main()
