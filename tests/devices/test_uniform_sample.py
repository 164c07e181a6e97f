"""Rows that are drawn by their hashes: the kernel against its naive twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, device_of, make_layout, make_symbols, make_view
from devices.test_sampling import KEY, N_BINS, SIZES, SOME_VIEWS, check_bins, ids_of, put_on
from reference.sampling import of_share

from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.sampling import TurnRows, UniformSize


@pytest.mark.parametrize(("n_outputs", "share", "weighted"), [(1, 0.3, False), (3, 0.9, True), (2, 1.0, True)])
@pytest.mark.parametrize("ids", ["stretches", "single ids"])
@pytest.mark.parametrize("encoding", SOME_VIEWS)
def test_rows_are_drawn_as_the_naive_twin_does(
    encoding: str, ids: str, n_outputs: int, share: float, weighted: bool
) -> None:
    """With what they have at the time, by increasing number; more than were expected."""
    rng, layout, threads = np.random.default_rng(4), make_layout(N_BINS), EagerThreads(2)
    symbols = [make_symbols(rng, n, N_BINS) for n in SIZES]
    views = [make_view(encoding, each, layout) for each in symbols]
    device, beside = device_of(views[0], layout, threads), partial(put_on, views[0])
    all_ids, pieces = zip(*(ids_of(n, index, ids) for index, n in enumerate(SIZES)), strict=True)
    sample = device.uniform_sample(UniformSize(share, n_outputs, weighted, 40, 3), copies_columns=False)
    for key in (KEY, KEY + 1, 3, KEY):
        sample.start(key)
        expected: dict[str, list[Any]] = {name: [] for name in ("ids", "margin", "label", "weight", "symbols")}
        for index, n_rows in enumerate(SIZES):
            margin = rng.normal(size=(n_rows, n_outputs)).astype(np.float32)
            label, weight = (rng.random(n_rows).astype(np.float32) for _ in range(2))
            own = beside(margin), beside(label), beside(weight) if weighted else None
            sample.add(views[index], TurnRows(index, *own, pieces[index]))
            values = {"ids": all_ids[index], "margin": margin, "label": label, "weight": weight}
            for name, array in (values | {"symbols": symbols[index]}).items():
                expected[name].append(array[of_share(all_ids[index], key, share)])
        found = sample.taken()
        assert found is not None
        wanted = {name: np.concatenate(parts) for name, parts in expected.items()}
        assert found.n_rows == len(wanted["ids"]) <= found.room_rows
        assert (found.weight is not None) == weighted
        for name in ("ids", "margin", "label", *["weight"] * weighted):
            np.testing.assert_array_equal(to_host(getattr(found, name)).astype(wanted[name].dtype), wanted[name])
        check_bins(found.view, wanted["symbols"], layout, "csr" not in encoding)


@pytest.mark.parametrize("encoding", SOME_VIEWS)
def test_a_sample_may_have_no_rows(encoding: str) -> None:
    """None was added, or none of those that were is of it."""
    layout = make_layout(N_BINS)
    view = make_view(encoding, make_symbols(np.random.default_rng(1), 9, N_BINS), layout)
    device = device_of(view, layout, EagerThreads(2))
    sample = device.uniform_sample(UniformSize(2.0**-32, 1, False, 5, 5), copies_columns=False)
    assert sample.taken() is None
    sample.start(KEY)
    margin = put_on(view, np.zeros((9, 1), np.float32))
    sample.add(view, TurnRows(0, margin, margin[:, 0], None, [(0, 0)]))
    assert sample.taken() is None
