"""`DaskBoostRanker`."""

from __future__ import annotations

from daskboost.errors import ParameterError
from daskboost.estimators.class_labels import ClassLabels
from daskboost.estimators.estimator import BoostedTrees, client_for
from daskboost.estimators.eval_sets import RowSet
from daskboost.estimators.parameters import estimator
from daskboost.estimators.scoring import ndcg
from daskboost.fit.recipe import metric_defaults
from daskboost.model.booster import Booster
from daskboost.objectives.objective_names import make_objective
from daskboost.params import TrainParams
from daskboost.training.dataset import run_or_await


@estimator
class DaskBoostRanker(BoostedTrees):
    """Gradient-boosted trees that rank the rows of queries: ``fit(X, y, qid=...)``, `predict` gives scores.

    Labels are degrees of relevance, the largest being the best. A prediction means something beside those of the same
    query alone. Rows of a query may lie anywhere, on several workers too. `sample_weight` has a value for each row, the
    same for all rows of a query, where XGBoost's ranker takes one for each query.

    Objectives are those of pairs, ``rank:ndcg`` (the default), ``rank:pairwise``, ``rank:map``, ``yetirank`` and
    ``pairlogit`` (all pairs of a query, or the `pairs` that `fit` is given), and those of lists, ``querysoftmax`` and
    ``queryrmse``, whose time grows as the number of rows alone (`docs/ranking.md`); or a function
    ``f(label, margin, group) -> (gradient, hessian)`` that gets whole queries
    (`daskboost.objectives.own_objective.CustomQueryObjective`).

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from daskboost import DaskBoostRanker
    >>> x, query = np.arange(100.0).reshape(-1, 1) % 10, np.arange(100) // 10
    >>> model = DaskBoostRanker(n_estimators=5).fit(x, x[:, 0] // 3, qid=query)
    >>> bool(model.score(x, x[:, 0] // 3, qid=query) > 0.99)
    True
    """

    objective: object = "rank:ndcg"

    def score(self, X: object, y: object, qid: object = None, sample_weight: object = None) -> float:
        """Return the NDCG of the predictions, averaged over the queries: 1 is a perfect ranking.

        All rows of a query count, gains are those of the objective, and queries without a relevant row are worth 1.

        Parameters
        ----------
        X, y, qid, sample_weight : as in `fit`, local or Dask
            Of Dask collections, labels, queries and predictions are gathered in this process, 20 bytes a row.

        Raises
        ------
        DataError
            No `qid`, which scikit-learn passes on only where it is asked to; no query of a weight above 0.
        """
        request = self._request("prediction")
        source = self._source(RowSet(X, y, {"weight": sample_weight, "qid": qid}), self.booster_.schema)
        defaults = metric_defaults(self, self.booster_.objective)
        return run_or_await(client_for(source), lambda: ndcg(source, request, defaults))

    def _loaded(self, booster: Booster) -> None:
        """Keep a model of a ranking objective; ParameterError for any other."""
        if booster.objective.query_loss is None:
            raise ParameterError(
                f"DaskBoostRanker cannot be a model of objective {booster.objective.name!r}, which ranks nothing; use "
                "DaskBoostRegressor or DaskBoostClassifier, or Booster.load_model for any model"
            )
        super()._loaded(booster)

    def _params_for(self, labels: ClassLabels | None) -> TrainParams:
        params = super()._params_for(labels)
        if make_objective(params.objective, vars(params)).query_loss is None:
            raise ParameterError(
                f"objective={self.objective!r} ranks nothing; use 'rank:ndcg', 'rank:pairwise' or 'rank:map', a "
                "function f(label, margin, group), which gets whole queries, or DaskBoostRegressor, which takes qid "
                "and eval_metric='ndcg@10' as well"
            )
        return params
