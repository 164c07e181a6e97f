"""What is measured on a GPU: workloads, parameters, what is asked of each, and the least that it could take.

Floors are of an H200 (`gpu_floors.py`). A level below the root is counted as half of the rows, since of two siblings
the smaller one is added up, so a tree of depth d adds up its rows 1 + (d - 1) / 2 times; trees whose siblings differ in
size take less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu_floors import LAUNCH_S, Floor, memory_ms, prediction_floor, updates_ms

LABEL_BYTES, MARGIN_BYTES, GRADIENT_BYTES = 4, 8, 8
"""Of a row and a round of trees, beside bins: of its label; of each output, margin read and written; of each column of
gradients that is searched, g and h of 16 bits written and read."""
LAUNCHES_PER_LEVEL, LAUNCHES_PER_TREE = 3, 2
"""Histograms, search, rows to their children; gradients, margins."""


@dataclass(frozen=True)
class Config:
    """One workload and how long to train on it."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    max_depth: int = 0
    peer: str = "xgboost"
    kind: str = "train"
    """"train" for the time of one more tree, "fit" for all that a call takes, by tree; "quantize" or "predict"."""
    max_bin: int = 256
    trees: int = 50
    """Rounds of the longer of two fits, whose difference counts; the shorter one has a fifth. Of kind "fit" of one."""
    repeats: int = 3
    learning_rate: float = 0.1
    grow_policy: str = "depthwise"
    max_leaves: int = 0
    n_classes: int = 2
    quantiles: tuple[float, ...] = ()
    """Predicted together by ours, by a fit each of XGBoost."""
    eval_metric: tuple[str, ...] = ()
    """Computed of an evaluation set after each round; "auc" or "logloss"."""
    eval_rows: int = 0
    """So many of the test rows are that set."""
    leeway: float = 1.0
    """Times the usual tolerance that scores may be worse by: small data gives models that differ by chance."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters by the names that XGBoost and daskboost share."""
    searched: int = 0
    """Features that a node below the root is searched on at the least, where `more` leaves some out; 0 for all."""
    reg_alpha: float = 0.0
    per_row: int = 0
    """Values of a sparse row; 0 for dense ones."""
    test_rows: int = 500_000
    draws: int = 1
    """Training sets over which scores are averaged before they are compared; times are of the first. More than one
    where scores of equally good models differ by more than the tolerance from one set of rows to the next."""
    score_function: str = "auto"
    """Of ours."""
    peer_score_function: str = ""
    """Of CatBoost; other peers have but Newton's."""
    sparse_on: str = "host"
    """Where sparse rows are that ours gets: "device" (CuPy's CSR) or "host" (scipy's). Peers take scipy's alone."""
    device: str = "cuda"

    def sized(self, n_rows: int, trees: int) -> Config:
        """The same on at most so many rows, and as many for tests, with so many trees; 0 leaves either as it is."""
        few = min(self.n_rows, n_rows or self.n_rows)
        tested = min(self.test_rows, few) if n_rows else self.test_rows
        return replace(
            self, n_rows=few, test_rows=tested, eval_rows=min(self.eval_rows, tested), trees=trees or self.trees
        )  # fmt: skip

    @property
    def n_outputs(self) -> int:
        return len(self.quantiles) or (self.n_classes if self.n_classes > 2 else 1)

    @property
    def short_trees(self) -> int:
        """Rounds of the shorter of two fits; 0 where whole fits are timed."""
        return 0 if self.kind == "fit" else max(1, self.trees // 5)

    def loss(self) -> dict[str, Any]:
        """The objective with its parameters."""
        if self.quantiles:
            return {"objective": "reg:quantileerror", "quantile_alpha": list(self.quantiles)}
        multi = self.n_classes > 2
        return {"objective": "multi:softprob" if multi else "binary:logistic",
                "num_class": self.n_classes if multi else 0}  # fmt: skip

    def params(self) -> dict[str, Any]:
        """Training parameters by the names that XGBoost and daskboost share."""
        return {
            **self.loss(), **self.more, "max_depth": self.max_depth, "max_bin": self.max_bin,
            "learning_rate": self.learning_rate, "max_leaves": self.max_leaves, "grow_policy": self.grow_policy,
            "device": self.device, "base_score": 0.5, "reg_alpha": self.reg_alpha,
        }  # fmt: skip

    @property
    def levels(self) -> int:
        return self.max_depth or math.ceil(math.log2(self.max_leaves))


@dataclass(frozen=True)
class Case:
    """A config and what is asked of it."""

    config: Config
    asked: float
    """Times that ours must be faster than the peer; of vector leaves `vectors_asked`, if it is given."""
    stretch: float
    published: Mapping[str, float]
    """What peers took on an H200 in another run, ms; displayed, never part of a ratio."""
    estimate_s: float
    """About how long the case takes on an H200, rows, peer and repeats included."""
    vectors_asked: float = 0.0


def floor_of(config: Config, columns: int = 0) -> Floor:
    """Of a tree, of a round of trees, of quantizing or of predicting once.

    Trees of a round share what they read of bins, and a tree of vector leaves adds up what a tree each would.
    Quantizing reads floats and writes bins. `columns` : of gradients that splits are searched on, 0 for all.
    """
    if config.kind == "predict":
        return prediction_floor(config.n_rows, config.n_features, config.trees, config.max_depth)
    n, entries = config.n_rows, config.n_rows * (config.per_row or config.n_features)
    bin_bytes = entries * (4 if config.per_row else math.ceil(math.log2(config.max_bin)) / 8)
    if config.kind == "quantize":
        return Floor(memory_ms(4 * entries + bin_bytes), 0.0, 1e3 * LAUNCH_S)
    below = (config.levels - 1) / 2
    passes, searched = 1 + below, 1 + below * (config.searched or config.n_features) / config.n_features
    launches, columns = LAUNCHES_PER_LEVEL * config.levels + LAUNCHES_PER_TREE, columns or config.n_outputs
    state_bytes = n * (LABEL_BYTES + MARGIN_BYTES * config.n_outputs + GRADIENT_BYTES * columns)
    return Floor(
        memory_ms(bin_bytes * passes + state_bytes),
        updates_ms(entries * searched * columns),
        1e3 * launches * LAUNCH_S,
    )


_HIGGS = ("higgs", 11_000_000, 28)
_WIDE = ("epsilon", 400_000, 2000)
_LARGE = ("higgs", 40_000_000, 100)
_MIDDLE, _DEEP = ("higgs", 5_000_000, 50), ("higgs", 2_000_000, 50)
_GROUPS = [list(range(first, first + 10)) for first in range(0, 50, 10)]
"""Five groups of features. They do not overlap: of groups that do, XGBoost's paths on a GPU hold features that no group
has together, so that it would grow trees of another kind."""
_WATCHED: dict[str, Any] = {"max_depth": 6, "kind": "fit", "trees": 300, "repeats": 5, "eval_metric": ("auc",)}
_WORDS: dict[str, Any] = {"per_row": 50, "trees": 100}
_CATBOOST: dict[str, Any] = {
    "peer": "catboost", "grow_policy": "symmetric", "max_bin": 129, "peer_score_function": "Cosine"
}  # fmt: skip
"""128 borders make 129 bins; CatBoost's default score."""
_NEWTON: dict[str, Any] = {**_CATBOOST, "score_function": "newton", "peer_score_function": "NewtonL2"}
"""The same score on both sides, which CatBoost has on GPUs alone."""

CASES = {
    case.config.name: case
    for case in (
        Case(Config("higgs_11m_depth6", *_HIGGS, 6, trees=100), 5, 8, {"xgboost": 9.5}, 20),
        Case(Config("higgs_11m_depth8", *_HIGGS, 8, trees=500), 5, 8, {"xgboost": 13.1}, 60),
        Case(Config("higgs_11m_64bins", *_HIGGS, 8, trees=100, max_bin=64), 5, 8, {"xgboost": 13.2}, 20),
        Case(
            Config("higgs_11m_lossguide", *_HIGGS, 0, grow_policy="lossguide", max_leaves=255),
            4, 10, {"xgboost": 39.8}, 25,
        ),
        Case(Config("quantize_11m", *_HIGGS, kind="quantize"), 1, 3, {"xgboost": 60}, 8),
        Case(Config("predict_11m", *_HIGGS, 8, kind="predict", trees=500), 1, 2, {"xgboost": 43}, 20),
        Case(
            Config("symmetric_11m_depth6", *_HIGGS, 6, **_CATBOOST, trees=100, draws=24),
            7, 12, {"catboost": 14.5}, 240,
        ),
        Case(
            Config("symmetric_11m_depth8", *_HIGGS, 8, **_CATBOOST, trees=100, draws=3),
            7, 12, {"catboost": 22.2}, 40,
        ),
        Case(Config("symmetric_11m_newton", *_HIGGS, 6, **_NEWTON, trees=100, draws=3), 7, 12, {}, 35),
        Case(Config("epsilon_400k", *_WIDE, 8, test_rows=400_000, draws=12), 5, 9, {"xgboost": 31.1}, 80),
        Case(Config("symmetric_400k", *_WIDE, 8, **_CATBOOST, test_rows=100_000), 5, 9, {"catboost": 24.2}, 75),
        Case(Config("higgs_40m", *_LARGE, 8, trees=25), 6, 12, {"xgboost": 101.6}, 50),
        Case(Config("quantize_40m", *_LARGE, kind="quantize"), 1, 3, {"xgboost": 800}, 20),
        Case(
            Config("higgs_100k", "higgs", 100_000, 28, 6, trees=500, repeats=5, draws=20),
            3, 6, {"xgboost": 1.25}, 40,
        ),
        Case(Config("skewed_20m_18", "skewed", 20_000_000, 18, 8), 5, 8, {}, 25),
        Case(Config("skewed_10m_39", "skewed", 10_000_000, 39, 8), 6, 8, {}, 25),
        Case(Config("skewed_1m_50", "skewed", 1_000_000, 50, 6, trees=200, draws=6), 5, 8, {}, 30),
        Case(Config("skewed_20k_50", "skewed", 20_000, 50, 6, trees=500, repeats=5, draws=20), 4, 6, {}, 40),
        Case(Config("sparse_1m", "words", 1_000_000, 5000, 8, **_WORDS, sparse_on="host"), 2, 5, {"xgboost": 9.7}, 20),
        Case(
            Config("sparse_1m_cupy", "words", 1_000_000, 5000, 8, **_WORDS, sparse_on="device"),
            2, 5, {"xgboost": 9.7}, 20,
        ),
        Case(Config("sparse_wide", "many_words", 1_000_000, 100_000, 8, **_WORDS), 2, 5, {}, 50),
        Case(Config("sparse_wide_l1", "many_words", 1_000_000, 100_000, 8, reg_alpha=1.0, **_WORDS), 2, 5, {}, 60),
        Case(
            Config(
                "sparse_wide_best_first", "many_words", 1_000_000, 100_000, 0, grow_policy="lossguide",
                max_leaves=255, **{**_WORDS, "trees": 10, "repeats": 2},
            ),
            2, 5, {}, 90,
        ),
        Case(Config("sparse_many_bins", "indicators", 1_000_000, 5000, 8, **_WORDS, max_bin=4096), 2, 5, {}, 30),
        Case(
            Config("classes_80", "classes", 4_660_000, 200, 6, trees=10, repeats=2, n_classes=80, test_rows=100_000),
            6, 12, {"xgboost": 1533, "xgboost vector leaves": 1283}, 150,
        ),
        Case(
            Config("classes_10_small", "ten_classes", 100_000, 28, 6, trees=100, n_classes=10, test_rows=100_000),
            3, 6, {}, 30, vectors_asked=1.5,
        ),
        Case(
            Config("quantiles_1m", "uneven", 1_000_000, 28, 6, quantiles=(0.1, 0.5, 0.9), trees=100), 3, 4, {}, 30,
        ),
        Case(Config("watched_2k", "higgs", 2_000, 20, **_WATCHED, eval_rows=500, draws=12, leeway=6), 2, 4, {}, 15),
        Case(Config("watched_20k", "higgs", 20_000, 50, **_WATCHED, eval_rows=5_000, draws=6, leeway=3), 2, 4, {}, 15),
        Case(
            Config("watched_100k", "higgs", 100_000, 50, **_WATCHED, eval_rows=25_000, draws=4, leeway=2),
            2, 4, {}, 15,
        ),
        Case(
            Config(
                "evaluated_11m", *_HIGGS, 6, "daskboost unwatched", trees=100, test_rows=2_750_000,
                eval_rows=2_750_000, eval_metric=("auc", "logloss"),
            ),
            round(1 / 1.15, 3), round(1 / 1.08, 3), {}, 12,
        ),
        Case(
            Config("bynode_5m", *_MIDDLE, 8, more={"colsample_bynode": 0.5}, searched=25, draws=3), 5, 8, {}, 20,
        ),
        Case(
            Config("interactions_5m", *_MIDDLE, 8, more={"interaction_constraints": _GROUPS}, searched=10),
            5, 8, {}, 12,
        ),
        Case(Config("depth14_2m", *_DEEP, 14, trees=20, draws=3), 4, 8, {}, 25),
        Case(Config("depth16_2m", *_DEEP, 16, trees=20, repeats=2, draws=3), 3, 8, {}, 40),
    )
}  # fmt: skip
"""Every row of speed that is asked for, but the histogram kernel's, which is in `gpu_histogram.py`. Neighbours share
their rows."""
