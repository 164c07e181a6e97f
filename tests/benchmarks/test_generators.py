"""The benchmark generators: the same rows however they are cut, learnable, with the promised shape."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.generators import WORKLOADS, hashes, normals, uniforms

NAMES = sorted(WORKLOADS)
CLASSES = [name for name in NAMES if WORKLOADS[name].n_classes]


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_chunks(name: str) -> None:
    workload = WORKLOADS[name]
    whole_x, whole_y = workload.rows(1000, seed=3)
    parts = list(workload.chunks(1000, 137, seed=3))
    np.testing.assert_array_equal(whole_x, np.concatenate([x for x, _ in parts]))
    np.testing.assert_array_equal(whole_y, np.concatenate([y for _, y in parts]))


@pytest.mark.parametrize("name", CLASSES)
def test_shapes_and_classes(name: str) -> None:
    workload = WORKLOADS[name]
    x, y = workload.rows(4000, seed=0)
    assert (x.dtype, x.shape) == (np.float32, (4000, workload.n_features))
    assert (y.dtype, y.shape) == (np.float32, (4000,))
    assert set(np.unique(y)) == set(range(workload.n_classes))
    share = min(0.01, 0.4 / workload.n_classes)
    assert np.bincount(y.astype(int)).min() > share * 4000, "no class is rare"


@pytest.mark.parametrize("name", NAMES)
def test_seeds_give_different_rows(name: str) -> None:
    workload = WORKLOADS[name]
    assert not np.array_equal(workload.rows(100, seed=0)[0], workload.rows(100, seed=1)[0], equal_nan=True)


def test_noise_of_the_uneven_label_grows_with_a_feature() -> None:
    x, y = WORKLOADS["uneven"].rows(40_000)
    assert (x.dtype, y.dtype, x.shape, len(np.unique(y)) > 39_000) == (np.float32, np.float32, (40_000, 28), True)
    low, high = (y[some].std() for some in (abs(x[:, 9]) < 0.2, abs(x[:, 9]) > 2))
    assert high > 1.4 * low
    np.testing.assert_array_equal(x, WORKLOADS["higgs"].rows(40_000)[0])


def test_airline_has_missing_values_in_its_last_column_only() -> None:
    x, _ = WORKLOADS["airline"].rows(5000)
    missing = np.isnan(x).mean(axis=0)
    assert 0.04 < missing[-1] < 0.09
    assert missing[:-1].max() == 0


def test_skewed_features_are_what_they_are_called() -> None:
    """Heavy tails, zeros, counts, missing values, copies with noise, few values; in this order, again and again."""
    x, _ = WORKLOADS["skewed"].rows(20_000)
    log, rare, counts, holes, alike, few = (x[:, kind::6] for kind in range(6))
    logarithms = np.log(log.astype(np.float64))
    assert log.min() > 0 and abs(logarithms.std() - 1.5) < 0.1 and log.mean() > 2 * np.median(log)
    assert abs((rare == 0).mean() - 0.7) < 0.02
    assert (counts == np.floor(counts)).all() and 10 < len(np.unique(counts)) < 60 and (counts == 0).mean() > 0.1
    assert abs(np.isnan(holes).mean() - 0.3) < 0.02 and not np.isnan(np.delete(x, slice(3, None, 6), axis=1)).any()
    for j in range(alike.shape[1]):
        assert 0.85 < np.corrcoef(alike[:, j], logarithms[:, j])[0, 1] < 0.95
    assert 5 <= len(np.unique(few)) <= 8 and (few == few.astype(int)).all()
    narrow, _ = WORKLOADS["skewed"].wide(20).rows(50)
    wide, _ = WORKLOADS["skewed"].wide(50).rows(50)
    np.testing.assert_array_equal(narrow, wide[:, :20])


def test_normals_have_mean_zero_and_variance_one() -> None:
    bits = hashes(np.arange(20_000), np.arange(8), 1, np)
    values = normals(bits, np)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(values.var(axis=0), 1, atol=0.03)
    correlations = np.corrcoef(values, rowvar=False)
    np.testing.assert_allclose(correlations, np.eye(8), atol=0.03)


def test_uniforms_fill_the_unit_interval() -> None:
    draws = uniforms(hashes(np.arange(50_000), np.arange(1), 1, np), np)[:, 0]
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert draws.min() >= 0
    assert draws.max() < 1
    assert counts.sum() == 50_000
    assert abs(counts / 5000 - 1).max() < 0.06


@pytest.mark.parametrize("name", CLASSES)
def test_labels_can_be_learned(name: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    workload = WORKLOADS[name].wide(100) if name == "epsilon" else WORKLOADS[name]
    x, y = workload.rows(6000, seed=5)
    x = np.nan_to_num((x - np.nanmean(x, axis=0)) / np.maximum(np.nanstd(x, axis=0), 1e-6))
    model = LogisticRegression(max_iter=200).fit(x[:4000], y[:4000])
    shares = np.bincount(y[4000:].astype(int)) / 2000
    assert log_loss(y[4000:], model.predict_proba(x[4000:])) < 0.97 * -np.sum(shares * np.log(shares))
