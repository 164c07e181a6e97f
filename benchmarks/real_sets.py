"""The real data sets, with their splits, tasks and the peers' scores.

The folder is `shared/data` beside the checkout or what DASKBOOST_DATA names; the four sets that ship in `tests/data`
are found without it.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
NOT_FEATURES = ("split", "Exposure", "Claim_Amount", "relevance")
OBJECTIVES = {
    "binary": "binary:logistic",
    "multiclass": "multi:softprob",
    "regression": "reg:squarederror",
    "count": "count:poisson",
    "ranking": "rank:ndcg",
}

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RealSet:
    """Facts about a set; its rows come from `load`."""

    name: str
    file: str
    task: str
    """One of the keys of OBJECTIVES."""
    target: str
    rounds: int
    """Boosting rounds of the published baselines."""
    xgboost: Mapping[str, float]
    """Test scores of XGBoost 3.2.0: learning rate 0.1, depth 6, 256 bins, no tuning."""
    lightgbm: Mapping[str, float]
    """Test scores of LightGBM 4.7.0: learning rate 0.1, 31 leaves, 255 bins."""
    group: str | None = None
    categorical: bool = False
    """Whether some columns are categories (dropped by `load(..., numeric_only=True)`)."""

    @property
    def objective(self) -> str:
        return OBJECTIVES[self.task]


@dataclass(frozen=True)
class Part:
    """Rows of one split."""

    x: Any
    """float32 (rows, features); a DataFrame where columns are categories; scipy.sparse CSR, absent meaning missing."""
    y: Vector
    """Labels; classes are numbered from 0."""
    base_margin: Vector | None = None
    """Offset of count models: log exposure plus the log of the training claim rate."""
    group: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Loaded:
    """A set in memory."""

    info: RealSet
    train: Part
    test: Part
    feature_names: tuple[str, ...] | None
    n_classes: int
    valid: Part | None = field(default=None)


def _scores(text: str) -> dict[str, float]:
    return {measure: float(value) for measure, value in (pair.split("=") for pair in text.split())}


def _catalogue() -> dict[str, RealSet]:
    with (Path(__file__).parent / "real_sets.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        row["name"]: RealSet(
            row["name"],
            row["file"],
            row["task"],
            row["target"],
            int(row["rounds"]),
            _scores(row["xgboost"]),
            _scores(row["lightgbm"]),
            row["group"] or None,
            row["categorical"] == "yes",
        )
        for row in rows
    }


SETS = _catalogue()

NUMERIC = (
    "higgs_7k", "higgs_11k", "give_me_some_credit", "electricity", "santander_satisfaction", "covtype_20k", "otto",
    "letter", "shuttle", "mnist_t10k", "california_housing", "protein_casp", "bike_sharing_hour", "fremtpl2_freq",
    "a9a", "agaricus", "reuters_r52_bow",
)  # fmt: skip
"""The sets of the quality table: those without categories, and fremtpl2_freq after dropping them."""


def find(info: RealSet) -> Path:
    """Path of a set's file.

    Raises
    ------
    FileNotFoundError
        The set neither ships with the repository nor lies in the data folder.
    """
    folder = Path(os.environ.get("DASKBOOST_DATA", ROOT.parent / "shared" / "data"))
    for candidate in (folder / info.file, ROOT / "tests" / "data" / info.file):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{info.file} is neither in {folder} nor in tests/data; set DASKBOOST_DATA to its folder")


def load(name: str, *, numeric_only: bool = False) -> Loaded:
    """Read a set.

    Parameters
    ----------
    name : str
        A key of SETS.
    numeric_only : bool, default False
        Drop categorical columns, so that features are a float32 matrix.
    """
    info = SETS[name]
    return _load_sparse(info) if info.file.endswith(".npz") else _load_parquet(info, numeric_only)


def _load_sparse(info: RealSet) -> Loaded:
    import scipy.sparse as sp

    path = find(info)
    x = sp.csr_matrix(sp.load_npz(path)).astype(np.float32)
    with np.load(path) as arrays:
        y, split = arrays["y"], arrays["split"].astype(str)
        group = arrays[info.group].astype(np.int64) if info.group else None
    labels, n_classes = _encode(info, y)
    parts = {
        name: Part(x[split == name], labels[split == name], group=None if group is None else group[split == name])
        for name in np.unique(split)
    }
    return Loaded(info, parts["train"], parts["test"], None, n_classes, parts.get("valid"))


def _load_parquet(info: RealSet, numeric_only: bool) -> Loaded:
    import pandas as pd
    import pyarrow.parquet as pq

    frame = pq.read_table(find(info)).to_pandas()
    split = frame["split"].astype(str).to_numpy()
    labels, n_classes = _encode(info, frame[info.target].to_numpy())
    group = pd.factorize(frame[info.group])[0].astype(np.int64) if info.group else None
    margin = _count_margin(frame, labels, split) if info.task == "count" else None
    dropped = {info.target, info.group, *NOT_FEATURES}
    features = frame.drop(columns=[c for c in frame.columns if c in dropped])
    categories = [c for c in features.columns if isinstance(features[c].dtype, pd.CategoricalDtype)]
    if numeric_only:
        features = features.drop(columns=categories)
    dense = numeric_only or not categories

    def part(name: str) -> Part:
        mask = split == name
        x = features[mask].to_numpy(np.float32, na_value=np.nan) if dense else features[mask].reset_index(drop=True)
        return Part(
            x,
            labels[mask],
            None if margin is None else margin[mask],
            None if group is None else group[mask],
        )

    parts = {name: part(name) for name in np.unique(split)}
    names = tuple(str(c) for c in features.columns)
    return Loaded(info, parts["train"], parts["test"], names, n_classes, parts.get("valid"))


def _encode(info: RealSet, y: npt.NDArray[Any]) -> tuple[Vector, int]:
    """Labels as float32, classes numbered from 0, and the number of classes (0 where there are none)."""
    if info.task not in ("binary", "multiclass"):
        return np.asarray(y, np.float32), 0
    classes, codes = np.unique(y, return_inverse=True)
    return codes.astype(np.float32), len(classes)


def _count_margin(frame: Any, labels: Vector, split: npt.NDArray[np.str_]) -> Vector:
    exposure = frame["Exposure"].to_numpy(np.float64)
    train = split == "train"
    rate = labels[train].sum(dtype=np.float64) / exposure[train].sum()
    return np.asarray(np.log(exposure) + np.log(rate), np.float32)


def categories_of(frame: Any) -> list[str]:
    """Names of the columns of a frame that hold categories; none of a matrix."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        return []
    return [name for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]


def with_texts(part: Part, columns: Sequence[str]) -> Part:
    """The same rows with categories as texts, of which a missing one is another."""
    if not columns:
        return part
    texts = {name: part.x[name].astype(object).where(part.x[name].notna(), "missing").astype(str) for name in columns}
    return replace(part, x=part.x.assign(**texts))


def part_of(own: Part, rows: npt.NDArray[np.bool_]) -> Part:
    """Some of the rows."""
    x = own.x[rows].reset_index(drop=True) if hasattr(own.x, "iloc") else own.x[rows]
    margin = None if own.base_margin is None else own.base_margin[rows]
    return Part(x, own.y[rows], margin, None if own.group is None else own.group[rows])
