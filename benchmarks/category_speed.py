"""What categorical columns cost: seconds from a frame to the first tree, and milliseconds a tree, beside CatBoost.

    python -m benchmarks.category_speed                       # 3.6M rows on a GPU
    python -m benchmarks.category_speed --device cpu --rows 20000 --trees 20 --contenders daskboost

Ten numbers and eight columns of 100 to 50,000 levels, in a frame of the host's memory. The start is all of a fit of one
tree, beginning with the frame. A tree's time is that by which a fit of all trees on what was read exceeds one of a
fifth. CatBoost makes its statistics anew in each fit, for seconds that differ from fit to fit: of its trees after the
same fifth, its own record of when rounds end tells the time. Models are scored on rows that no fit has seen. Names of
contenders end with the number of columns that statistics combine at most, 1 or 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import category_rows, ours, peers
from benchmarks.gpu_contenders import scores
from benchmarks.gpu_speed import gpu_name
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
    trees: int = 100
    depth: int = 6
    learning_rate: float = 0.1
    categories: str = "integers"
    device: str = "cuda"
    repeats: int = 3


class Library:
    """How a library reads a frame, trains and predicts; `n_columns` : that statistics combine at most."""

    def __init__(self, config: Config, n_columns: int) -> None:
        self.config, self.n_columns = config, n_columns

    def open(self, x: Any, y: Any) -> Any:
        """Return what is trained on."""

    def train(self, data: Any, rounds: int) -> Any:
        """Return a model."""

    def tree_seconds(self, data: Any) -> tuple[float, Any]:
        """Return the seconds of a tree after the first fifth, and a model of all trees."""
        trees, short = self.config.trees, max(1, self.config.trees // 5)
        few = timed(lambda: self.train(data, short))[0]
        all_, model = timed(lambda: self.train(data, trees))
        return (all_ - few) / (trees - short), model

    def predict(self, model: Any, x: Any) -> Any:
        """Return probabilities."""

    def close(self, data: Any) -> None:
        """Free what is trained on."""


class Ours(Library):
    """daskboost."""

    def open(self, x: Any, y: Any) -> Any:
        return ours.quantize_frame(
            x, y, categorical_features=list(category_rows.CATEGORIES), max_ctr_complexity=self.n_columns,
            device=self.config.device,
        )

    def train(self, data: Any, rounds: int) -> Any:
        config = self.config
        return ours.train({
            "objective": "binary:logistic", "max_depth": config.depth, "learning_rate": config.learning_rate,
            "device": config.device,
        }, data, rounds)  # fmt: skip

    def predict(self, model: Any, x: Any) -> Any:
        return ours.predict(model, x)

    def close(self, data: Any) -> None:
        data.close()


class Catboost(Library):
    """CatBoost, whose statistics are made in each fit."""

    def open(self, x: Any, y: Any) -> Any:
        return peers.catboost_category_pool(x, y, list(category_rows.CATEGORIES))

    def train(self, data: Any, rounds: int, **more: Any) -> Any:
        config = self.config
        return peers.catboost_train(
            data, config.depth, config.learning_rate, config.device, SCORE, rounds,
            max_ctr_complexity=self.n_columns, **more,
        )  # fmt: skip

    def tree_seconds(self, data: Any) -> tuple[float, Any]:
        return peers.catboost_tree_seconds(partial(self.train, data), self.config.trees)

    def predict(self, model: Any, x: Any) -> Any:
        return peers.catboost_predict(model, x)


LIBRARIES: dict[str, type[Library]] = {"daskboost": Ours, "catboost": Catboost}
CONTENDERS = {f"{name} {n}": partial(library, n_columns=n) for n in (1, 2) for name, library in LIBRARIES.items()}


def contender(library: Library, train: tuple[Any, Any], test: tuple[Any, Any]) -> Callable[[], Run]:
    """Return what gives the seconds of a tree beside those from the frame to the first tree; a model is scored once."""
    found: dict[str, float] = {}

    def first_tree() -> Any:
        data = library.open(*train)
        library.train(data, 1)
        return data

    def run() -> Run:
        start, data = timed(first_tree)
        seconds, model = library.tree_seconds(data)
        library.close(data)
        if not found:
            found.update(scores(test[1], np.asarray(library.predict(model, test[0]))))
        print(f"  {start:.3f} s from the frame to the first tree", flush=True)
        return Run(seconds, {**found, "start_seconds": start})

    return run


def bench(config: Config, names: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of contenders' repeats."""
    frame = FRAMES[config.categories]
    x, y = category_rows.rows(config.n_rows)
    x_test, y_test = category_rows.rows(min(TEST_ROWS, config.n_rows), first=config.n_rows)
    contenders = {name: contender(CONTENDERS[name](config), (frame(x), y), (frame(x_test), y_test)) for name in names}
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
    gpu, rows = gpu_name(options.device), bench(config, options.contenders.split(","))
    record("category_speed", config, [{"gpu": gpu, **row} for row in rows], options.results)


if __name__ == "__main__":
    main()
