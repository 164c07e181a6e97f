"""Metrics of arrays that are all there is."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.data.input.labels import LabelStats
from daskboost.dtypes import Array
from daskboost.metrics.metric import Metric


def evaluate(metric: Metric[Any], label: Array, prediction: Array, weight: Array | None = None) -> float:
    """Return the metric of all rows in one state."""
    heaviest = 1.0 if weight is None else float(np.max(weight, initial=0.0))
    whole = metric.prepare(LabelStats(n_rows=len(label), max_weight=heaviest))
    return float(whole.value(whole.partial(label, prediction, weight)))
