"""Comparing models."""

from __future__ import annotations

from dataclasses import replace

from daskboost import Booster


def tree_bytes(booster: Booster) -> bytes:
    """All of a model but its feature names, attributes and the record of its parameters, as bytes."""
    schema = replace(booster.schema, names=None, kinds=("float",) * booster.n_features)
    return replace(booster, schema=schema, attributes={}, params={}).to_bytes()
