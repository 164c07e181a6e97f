"""Which engine a fit's parameters ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from daskboost.cluster.certified_rows import CertifiedEngine
from daskboost.cluster.coordinator import FitSpec
from daskboost.cluster.engine import Engine
from daskboost.cluster.sampled_rows import SampledEngine


def engine_kind(spec: FitSpec) -> Callable[..., Engine]:
    """What makes the engines of a fit."""
    params = spec.params
    if params.out_of_core == "certified":
        return partial(CertifiedEngine, seed=params.random_state, share=params.resident_share)
    return SampledEngine if params.out_of_core == "sampled" else Engine
