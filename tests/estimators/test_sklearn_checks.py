"""scikit-learn's own checks of estimators on local input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from daskboost import DaskBoostClassifier, DaskBoostRegressor


@pytest.mark.slow
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [DaskBoostRegressor(n_estimators=30, n_jobs=1), DaskBoostClassifier(n_estimators=30, n_jobs=1)],
)
def test_scikit_learn_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
