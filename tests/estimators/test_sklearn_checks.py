"""scikit-learn's own checks of estimators on local input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskboost import DaskBoostClassifier, DaskBoostRegressor

_ROUNDED = (
    "gradients are rounded to integers per row, so that a row of weight 2 and two rows of weight 1 differ in the last "
    "of 15 bits; the check asks for 7 digits on 15 rows"
)
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": _ROUNDED,
    "check_sample_weight_equivalence_on_sparse_data": _ROUNDED,
}
"""Checks that cannot pass, and why. Weights that stand for repeated rows have a test in `test_weights.py`."""


@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [DaskBoostRegressor(n_estimators=30, n_jobs=1), DaskBoostClassifier(n_estimators=30, n_jobs=1)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
