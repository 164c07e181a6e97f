"""Every loss that has an elementwise kernel, with parameters that leave no operation out."""

from __future__ import annotations

import pytest

from daskboost.devices.losses import LossKernel
from daskboost.objectives.objective import kernel_of
from daskboost.objectives.objective_names import make_objective, objective_names

PARAMS = {
    "num_class": 7, "quantile_alpha": (0.1, 0.5, 0.8), "huber_slope": 0.7, "scale_pos_weight": 3.7,
    "tweedie_variance_power": 1.3, "max_delta_step": 0.31,
}  # fmt: skip

ALL = [make_objective(name, PARAMS) for name in objective_names() if not name.startswith("test:")]
OF_ROWS = [objective.name for objective in ALL if objective.query_loss is None]
"""Names of losses whose gradients are those of rows alone."""
KERNELS = {objective.name: kernel_of(objective) for objective in ALL}
LOSSES = [
    pytest.param(objective, id=objective.name) for objective in [*ALL, make_objective("binary:logistic")]
    if (loss := kernel_of(objective)) is not None and loss.kernel != LossKernel.SOFTMAX
]  # fmt: skip
