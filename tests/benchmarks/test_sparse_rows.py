"""The generator of sparse rows: the same rows however they are cut, valid CSR, learnable."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sparse_rows import SPARSE_WORKLOADS, SparseWorkload

WORDS = SPARSE_WORKLOADS["words"]


def test_rows_do_not_depend_on_where_they_begin() -> None:
    x, y = WORDS.rows(300, seed=2)
    tail_x, tail_y = WORDS.rows(200, seed=2, first=100)
    assert (x[100:] != tail_x).nnz == 0
    np.testing.assert_array_equal(y[100:], tail_y)


@pytest.mark.parametrize("workload", SPARSE_WORKLOADS.values(), ids=list(SPARSE_WORKLOADS))
def test_rows_are_canonical_csr(workload: SparseWorkload) -> None:
    x, y = workload.rows(1000)
    assert (x.shape, x.dtype, y.dtype) == ((1000, workload.n_features), np.float32, np.float32)
    np.testing.assert_array_equal(np.diff(x.indptr), 50)
    assert all((np.diff(x.indices[a : a + 50]) > 0).all() for a in x.indptr[:-1]), "distinct columns, in order"
    assert set(np.unique(y)) == {0, 1}
    assert 0.3 < y.mean() < 0.7


def test_columns_differ_in_how_often_they_occur() -> None:
    counts = np.bincount(WORDS.rows(5000)[0].indices, minlength=5000).reshape(50, 100)
    assert counts[:, 0].min() > 3 * counts[:, -10:].mean()


def test_only_the_first_column_of_indicators_has_values() -> None:
    x = SPARSE_WORKLOADS["indicators"].rows(1000)[0].tocsc()
    assert len(np.unique(x[:, [0]].toarray())) > 990
    assert set(np.unique(x[:, 1:].data)) == {1}


def test_seeds_give_different_rows() -> None:
    assert (WORDS.rows(50, seed=0)[0] != WORDS.rows(50, seed=1)[0]).nnz > 0


def test_labels_can_be_learned() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    workload = SparseWorkload("few", 100, 20)
    x, y = workload.rows(6000, seed=5)
    indicators = (x != 0).astype(np.float32)
    model = LogisticRegression(max_iter=200).fit(indicators[:4000], y[:4000])
    assert roc_auc_score(y[4000:], model.predict_proba(indicators[4000:])[:, 1]) > 0.6
