"""The average of models predicts the mean of their margins, iteration by iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from model.random_models import random_booster, random_rows

from daskboost import Booster
from daskboost.errors import ParameterError
from daskboost.model.average import average
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import SquaredError


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("objective", [SquaredError(), Logistic(), SoftProb(3)], ids=lambda each: each.name)
def test_margins_are_means_of_all_iterations_and_of_the_first(
    rng: np.random.Generator, objective: Objective, vectors: bool
) -> None:
    if vectors and objective.n_outputs == 1:
        pytest.skip("one output has no vectors")
    models = [random_booster(rng, objective, n_iterations=n, vectors=vectors) for n in (4, 2, 3)]
    models = [replace(model, base_score=models[0].base_score, schema=models[0].schema) for model in models]
    mean, rows = average(models), random_rows(rng, 50)
    assert mean.n_iterations == 4 and len(mean.trees) == sum(len(model.trees) for model in models)
    for stop in (1, 3, 4):
        margins = [
            model.predict(rows, output="margin", iteration_range=(0, min(stop, model.n_iterations))) for model in models
        ]
        found = mean.predict(rows, output="margin", iteration_range=(0, stop))
        np.testing.assert_allclose(found, np.mean(margins, axis=0), rtol=1e-5, atol=1e-5)
    assert Booster.from_bytes(mean.to_bytes()) == mean


def test_one_model_is_its_own_average(rng: np.random.Generator) -> None:
    model = random_booster(rng, SquaredError(), n_iterations=3)
    assert average([model]) == model


def test_other_models_are_refused(rng: np.random.Generator) -> None:
    model = random_booster(rng, SquaredError(), n_iterations=1)
    for other in (replace(model, base_score=(7.0,)), random_booster(rng, Logistic(), n_iterations=1)):
        with pytest.raises(ParameterError, match="cannot be averaged: objective, columns, base score"):
            average([model, other])
