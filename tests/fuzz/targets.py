"""What is done with a damaged file: all that users do with a sound one. It works, or an error of ours says why not."""

from __future__ import annotations

import pickle
import shutil
import time
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from fuzz.corpus import DATASETS, dataset, models
from fuzz.mutations import damage_dataset, model_file
from scipy.sparse import csr_matrix

import daskboost
from daskboost import Booster, QuantizedDataset
from daskboost.errors import DaskBoostError
from daskboost.model.explain import ImportanceType
from daskboost.model.output import Output

WIDE = 1000
"""Features from which a model is asked about sparse rows: a file says how many there are, and no row shall be so
long."""
SLOWEST_S = 20.0
"""Seconds that a case may take, on a busy machine; most take a hundredth."""
BASE_BYTES = 400e6
"""Bytes that a file of any size may take: a text in a model gives the number of features, at most 2**25."""
BYTES_PER_BYTE = 200
"""Bytes that a byte of a file may take beyond these: Python's objects of JSON's shortest values."""

Case = Callable[[Random, Path], bool]


def try_model(draw: Random, folder: Path) -> bool:
    """Damage a model file and use it; whether it could be used."""
    data = model_file(draw, models())
    (folder / "case.model").write_bytes(data)
    return _bounded(lambda: use_model(data), len(data))


def try_dataset(draw: Random, folder: Path) -> bool:
    """Damage a saved data set and train on it; whether that could be done."""
    kind = draw.choice(DATASETS)
    path = folder / "case.dataset"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(dataset(*kind, folder), path)
    size = sum(file.stat().st_size for file in path.iterdir())
    damage_dataset(draw, path)
    objective = draw.choice(OBJECTIVES)
    _compile_for(dataset(*kind, folder), tuple(objective.items()))
    return _bounded(lambda: use_dataset(path, objective), size)


CASES: dict[str, Case] = {"model": try_model, "dataset": try_dataset}

OBJECTIVES: tuple[dict[str, Any], ...] = (
    {"objective": "reg:squarederror"},
    {"objective": "binary:logistic"},
    {"objective": "multi:softprob", "num_class": 3},
    {"objective": "reg:absoluteerror"},
    {"objective": "count:poisson", "grow_policy": "lossguide"},
    {"objective": "multi:softprob", "num_class": 2, "multi_strategy": "multi_output_tree"},
)


@cache
def _compile_for(sound: Path, objective: tuple[tuple[str, Any], ...]) -> None:
    """Train on a sound data set: what is compiled for it takes long where memory is traced, and is not the case's."""
    _ask(lambda: use_dataset(sound, dict(objective)))


def _bounded(use: Callable[[], None], size: int) -> bool:
    """Whether a file of so many bytes can be used, or is refused by an error of ours; in bounded time and memory."""
    started = time.monotonic()
    tracemalloc.start()
    try:
        use()
        used = True
    except DaskBoostError as error:
        assert len(str(error)) < 1000, f"a message of {len(str(error))} letters"
        used = False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    took = time.monotonic() - started
    assert took < SLOWEST_S, f"{took:.1f} s"
    assert peak < BASE_BYTES + BYTES_PER_BYTE * size, f"{peak / 1e6:.0f} MB for a file of {size} bytes"
    return used


def use_model(data: bytes) -> None:
    """Load a model, and ask it for all that it can say."""
    booster = Booster.from_bytes(data)
    rng = np.random.default_rng(0)
    rows: Any
    if booster.n_features < WIDE:
        rows = rng.normal(size=(7, booster.n_features)).astype(np.float32)
        rows[rng.random(rows.shape) < 0.2] = np.nan
    else:
        rows = csr_matrix((np.ones(7, np.float32), (range(7), rng.integers(0, booster.n_features, 7))),
                          (7, booster.n_features))  # fmt: skip
    with np.errstate(all="ignore"):  # leaves may be as large as float32 is
        for output in get_args(Output):
            if output != "contributions" or (booster.n_features < WIDE and booster.n_outputs < 20):
                _ask(partial(booster.predict, rows, output=output, n_threads=1))
    if booster.n_features < WIDE:
        for importance in get_args(ImportanceType):
            with np.errstate(all="ignore"):
                booster.get_score(importance)
        booster.trees_to_dataframe()
    assert isinstance(booster.best_score, float | None)
    assert Booster.from_bytes(booster.to_bytes("json")) == booster == pickle.loads(pickle.dumps(booster))


def _ask(question: Callable[[], Any]) -> None:
    """Ask a model that was loaded; it may refuse, as a regression does classes."""
    try:
        question()
    except DaskBoostError:
        pass


def use_dataset(path: Path, params: dict[str, Any]) -> None:
    """Open a data set, train and evaluate on it, and save it again."""
    with QuantizedDataset.open(path) as opened:
        assert opened.n_rows > 0
        opened.subset(np.arange(opened.n_rows) % 3 == 0)
        opened.save(path.with_name("again.dataset"), overwrite=True)
        with np.errstate(all="ignore"):
            booster = daskboost.train(
                {**params, "max_depth": 2, "n_jobs": 1}, opened, num_boost_round=2, evals=[(opened, "self")],
            )  # fmt: skip
            booster.predict(np.zeros((2, opened.n_features), np.float32), n_threads=1)
    with QuantizedDataset.open(path.with_name("again.dataset")) as again:
        assert again.n_rows == opened.n_rows
