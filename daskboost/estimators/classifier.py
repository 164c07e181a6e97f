"""`DaskBoostClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin

from daskboost.data.input.labels import find_classes
from daskboost.data.input.source import Source
from daskboost.errors import ParameterError
from daskboost.estimators.class_labels import CLASS_OBJECTIVES, ClassLabels
from daskboost.estimators.estimator import BoostedTrees, client_for
from daskboost.estimators.eval_sets import RowSet
from daskboost.estimators.parameters import estimator
from daskboost.estimators.scoring import accuracy
from daskboost.model.booster import Booster
from daskboost.params import TrainParams
from daskboost.training.dataset import run_or_await


@estimator
class DaskBoostClassifier(ClassifierMixin, BoostedTrees):  # type: ignore[misc]
    """Gradient-boosted trees for classes.

    Labels are strings, booleans or whole numbers; a partition need not have all of them. Two classes are fitted by
    ``binary:logistic``, more by ``multi:softprob``, unless `objective` says otherwise.

    Parameters
    ----------
    {parameters}
    class_weight : "balanced" or mapping of label to weight, optional
        Factors on the weights of the training rows by their class, counted over all partitions; "balanced" gives all
        classes the same sum. Evaluation sets are not weighted by it.

    Attributes
    ----------
    {attributes}
    classes_ : array, shape (classes,)
        Sorted.
    n_classes_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from daskboost import DaskBoostClassifier
    >>> x = np.arange(100.0).reshape(-1, 1)
    >>> model = DaskBoostClassifier(n_estimators=5).fit(x, np.where(x[:, 0] < 50, "low", "high"))
    >>> model.predict(x[[0, 99]]).tolist()
    ['low', 'high']
    """

    class_weight: Any = None

    def predict(
        self, X: object, *, output_margin: bool = False, iteration_range: tuple[int, int] | None = None,
        base_margin: object = None,
    ) -> Any:  # fmt: skip
        """The most probable label of every row, as labels were in training; lazily for a Dask collection.

        Parameters are those of `DaskBoostRegressor.predict`.
        """
        margins = self._predict(X, "margin", iteration_range, base_margin)
        return margins if output_margin else self._labels.of_margins(margins)

    def predict_proba(
        self, X: object, *, iteration_range: tuple[int, int] | None = None, base_margin: object = None
    ) -> Any:
        """The probability of every class; lazily for a Dask collection.

        Returns
        -------
        float32 array, shape (rows, classes), columns as in `classes_`
            For a Dask DataFrame a DataFrame whose columns are the labels.

        Raises
        ------
        ParameterError
            A custom objective, whose margins are no log-odds.
        """
        name = self.booster_.objective.name
        if not name.startswith(CLASS_OBJECTIVES):
            raise ParameterError(
                f"objective {name!r} gives no probabilities; turn predict(X, output_margin=True) into them yourself"
            )
        return self._labels.probabilities(self._predict(X, "margin", iteration_range, base_margin))

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Weighted share of rows whose label is predicted.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`, local or Dask
            Labels that the model does not know are never predicted.
        """
        request = self._request("margin")
        source = self._source(RowSet(X, y, {"weight": sample_weight}), self.booster_.schema)
        known = self.classes_

        def run() -> float:
            unknown = np.setdiff1d(find_classes(source), known)
            return accuracy(source.with_classes(np.concatenate([known, unknown])), request)

        return run_or_await(client_for(source), run)

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels, sorted; shape (classes,)."""
        self.booster_  # noqa: B018 - raises where nothing is fitted
        return self._labels.classes

    @property
    def n_classes_(self) -> int:
        """Number of classes."""
        return len(self.classes_)

    def _labelled(self, source: Source, init: Booster | None) -> tuple[Source, ClassLabels | None]:
        labels = ClassLabels.found_in(source) if init is None else ClassLabels.of_model(init)
        return labels.weighted(source.with_classes(labels.classes), self.class_weight), labels

    def _labels_of(self, n_classes: int) -> ClassLabels | None:
        return ClassLabels(np.arange(n_classes))

    def _params_for(self, labels: ClassLabels | None) -> TrainParams:
        assert labels is not None
        k, objective = len(labels.classes), self.objective
        if objective is None:
            objective = "binary:logistic" if k == 2 else "multi:softprob"
        if isinstance(objective, str):
            if not objective.startswith(CLASS_OBJECTIVES):
                raise ParameterError(f"objective={objective!r} is not for classes; leave it out, or use a regressor")
            if objective.startswith("binary:") and k > 2:
                raise ParameterError(f"objective={objective!r} is for two classes, but y has {k}; use 'multi:softprob'")
        several = k > 2 or (isinstance(objective, str) and objective.startswith("multi:"))
        return self.train_params(objective, k if several else 0)

    def _keep(self, booster: Booster, labels: ClassLabels | None) -> None:
        super()._keep(booster, labels)
        assert labels is not None
        self._labels = labels

    def _loaded(self, booster: Booster) -> None:
        self._keep(booster, ClassLabels.of_model(booster))
