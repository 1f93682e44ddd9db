"""Fine-tuning on sparse rows behind scalers: damped where dense ones are, and never made dense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, Normalizer, StandardScaler

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier
from tests.helpers.environment import each_engine
from tests.helpers.fine_tuning import record_damping
from tests.helpers.observed import forbid_dense_rows

FAR_COLUMN, N_COLUMNS = 7, 400
OLD, NEW, TEST = slice(0, 400), slice(400, 480), slice(480, None)


def sparse_rows():
    """Return rows and labels; a column with tiny numbers in the old rows has usual ones in the new."""
    rng = np.random.RandomState(0)
    X = sp.random(1000, N_COLUMNS, density=0.05, random_state=0, format="lil", dtype=np.float32)
    X[:, 0], X[:, 1] = rng.randn(1000, 1), rng.randn(1000, 1)
    X[:, FAR_COLUMN] = (rng.rand(1000, 1) < 0.5) * rng.randn(1000, 1)
    X[:400, FAR_COLUMN] = X[:400, FAR_COLUMN] * 0.01
    X = X.tocsr()
    X.eliminate_zeros()
    return X, (X[:, [0]].toarray() - X[:, [1]].toarray() + 0.5 * rng.randn(1000, 1)).ravel()


X, SCORES = sparse_rows()
LABEL = (SCORES > 0).astype(int)
SCALERS = [StandardScaler(with_mean=False), MaxAbsScaler()]


def fitted(scaler):
    return make_pipeline(scaler, LogisticRegression(C=10.0)).fit(X[OLD], LABEL[OLD])


def tuned(model, rows=X, weights=None, **settings):
    settings = {"finetune": FineTuner(cv=2, max_iter=8), "random_state": 0, **settings}
    return OrtGradientClassifier(model, **settings).fit(rows[NEW], LABEL[NEW], weights)


@pytest.fixture
def seen(monkeypatch):
    """The numbers by which each fit divides its weights."""
    return record_damping(monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("scaler", SCALERS)
def test_sparse_rows_are_damped_as_dense_ones_are(scaler, seen):
    model, weights = fitted(scaler), np.random.RandomState(1).rand(80) + 0.5
    sparse = tuned(model, weights=weights)
    tuned(model, X.toarray(), weights)
    assert seen[1].max() > 5
    assert_allclose(seen[0], seen[1], rtol=1e-4)
    assert "damped" in sparse.fine_tuning_["candidate"]


@pytest.mark.long
@each_engine
def test_the_damped_weights_are_the_better_start(engine):
    model = fitted(StandardScaler(with_mean=False))
    found = tuned(model, engine=engine)
    assert found.score(X[TEST], LABEL[TEST]) > model.score(X[TEST], LABEL[TEST])
    assert any(name.startswith("damped") for name in found.fine_tuning_["candidate"][found.fine_tuning_["share"] > 0])


@pytest.mark.parametrize("scaler", SCALERS)
def test_the_search_never_makes_them_dense(scaler, monkeypatch):
    forbid_dense_rows(monkeypatch)
    found = tuned(fitted(scaler))
    assert len(found.fine_tuning_["candidate"]) > 4


@pytest.mark.long
@pytest.mark.parametrize("scaler", SCALERS)
def test_the_losses_are_those_of_dense_rows(scaler):
    model = fitted(scaler)  # folds differ, as the order of the rows does, but these candidates are the same in all
    sparse, dense = (_losses(tuned(model, rows)) for rows in (X, X.toarray()))
    assert_allclose(sparse, dense, rtol=1e-5)


def _losses(found):
    record = found.fine_tuning_
    starts = np.isinf(record["strength"])
    return [record["loss"][starts & (record["candidate"] == name)].item() for name in ("old", "damped")]


@pytest.mark.long
@pytest.mark.parametrize("first", [Normalizer(), FunctionTransformer()])
def test_other_steps_are_not_taken_for_scalers(first, seen):
    model = make_pipeline(first, StandardScaler(with_mean=False), LogisticRegression()).fit(X[OLD], LABEL[OLD])
    found = tuned(model)
    expected = isinstance(first, FunctionTransformer)
    assert (seen[0] is not None) == expected
    assert found.score(X[TEST], LABEL[TEST]) > 0.6
