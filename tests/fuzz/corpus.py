"""Sound files to begin with: models of every kind in both formats, ours and XGBoost's, and saved data sets."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import xgboost as xgb
from model.random_models import OBJECTIVES, random_booster
from strategies.saved_dataset import N_ROWS
from strategies.trees import fit, make_data

from daskboost import QuantizedDataset
from daskboost.data.chunks.packing import Encoding, Packing
from daskboost.model.serialize import Format
from daskboost.objectives.classification import SoftProb


@cache
def models() -> tuple[bytes, ...]:
    """Model files, the smallest that have all there is: vectors, names, attributes, each objective's parameters."""
    rng = np.random.default_rng(1)
    made = [
        random_booster(rng, objective, n_iterations=2, n_splits=3, names=i % 2 == 0)
        for i, objective in enumerate(OBJECTIVES)
    ]
    for options in ({"vectors": True}, {"codes": range(7)}, {"codes": (3, 40, 1000, 2**24 - 1), "vectors": True}):
        made.append(random_booster(rng, SoftProb(3), n_iterations=2, n_splits=3, **options))
    made.append(fit(make_data(rng, n_rows=40), {"linear_leaves": True, "max_depth": 2, "device": "cpu"}, 2))
    files = [booster.to_bytes(file_format) for booster in made for file_format in get_args(Format)]
    rows, label = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    for params in (
        {"objective": "multi:softprob", "num_class": 3},
        {"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree", "tree_method": "hist"},
        {"objective": "reg:quantileerror", "quantile_alpha": [0.2, 0.8]},
        {"objective": "count:poisson", "num_parallel_tree": 2},
    ):
        booster = xgb.train({"max_depth": 2, "nthread": 1, **params}, xgb.DMatrix(rows, label), num_boost_round=2)
        files += [bytes(booster.save_raw(file_format)) for file_format in ("json", "ubj")]
    codes = xgb.DMatrix(rows.round() + 4, label, feature_types=["c"] * 4, enable_categorical=True)
    booster = xgb.train({"max_depth": 3, "nthread": 1, "max_cat_to_onehot": 3}, codes, num_boost_round=2)
    files += [bytes(booster.save_raw(file_format)) for file_format in ("json", "ubj")]
    return tuple(files)


Kind = Literal["classes", "weights", "margins", "bare"]
"""Labels that are classes; with weights; with weights and the margins of two outputs; without labels."""


@cache
def dataset(encoding: Encoding, packing: Packing, kind: Kind, folder: Path) -> Path:
    """A saved data set of three chunks and three features."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(N_ROWS, 3)).astype(np.float32)
    values[:, 2] = values[:, 2] > 0
    values[:, :2][rng.random((N_ROWS, 2)) < 0.2] = np.nan
    weight = rng.random(N_ROWS).astype(np.float32) if kind in ("weights", "margins") else None
    margin = rng.normal(size=(N_ROWS, 2)).astype(np.float32) if kind == "margins" else None
    label = None if kind == "bare" else rng.integers(0, 2, N_ROWS).astype(np.float32)
    path = folder / f"{encoding}-{packing}-{kind}"
    with QuantizedDataset.from_dask(
        values, label, weight=weight, base_margin=margin, encoding=encoding, packing=packing, chunk_rows=15, max_bin=8
    ) as made:
        made.save(path)
    return path


DATASETS: tuple[tuple[Encoding, Packing, Kind], ...] = (
    ("dense", "aligned", "classes"),
    ("dense", "tight", "margins"),
    ("dense", "common", "bare"),
    ("csr", "aligned", "weights"),
    ("csr", "tight", "classes"),
)
