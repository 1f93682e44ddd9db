"""Fine-tuning on rows that leave the range of a frozen scaler: the damped weights."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.fine_tuning import record_damping
from tests.helpers.sessions import session

STILL = 3
"""The column that hardly varies in the old rows."""

OLD, NEW, TEST = slice(0, 300), slice(300, 340), slice(340, None)


def rows(spread=1.0):
    """Return rows and targets; the column STILL varies by ``spread`` in the new rows."""
    rng = np.random.RandomState(0)
    X = rng.randn(940, 6)
    X[OLD, STILL] *= 0.01
    X[NEW.start :, STILL] *= spread
    y = X[:, 0] - X[:, 1] + 0.5 * rng.randn(len(X))
    return X.astype(np.float32), y


X, NUMBER = rows()
LABEL = (NUMBER > 0).astype(np.int64)
NETWORK = MLPClassifier((8,), solver="lbfgs", alpha=1.0, random_state=0, max_iter=1000)


def fitted(last, scaler=None, y=LABEL):
    return make_pipeline(scaler or StandardScaler(), last).fit(X[OLD], y[OLD])


def tuned(model, **settings):
    settings = {"finetune": FineTuner(cv=2, max_iter=10), "random_state": 0, **settings}
    return OrtGradientClassifier(model, **settings).fit(X[NEW], LABEL[NEW])


@each_engine
@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("last", [LogisticRegression(), NETWORK])
def test_damped_weights_are_the_better_start(engine, last, as_file):
    model = fitted(last)
    given = to_onnx(model, X[:1], options={"zipmap": False}) if as_file else model
    found = tuned(given, engine=engine)
    report = found.fine_tuning_
    is_damped = np.array([name.startswith("damped") for name in report["candidate"]])
    assert report["share"][is_damped].sum() > 0.5
    starts = {
        name: loss
        for name, strength, loss in zip(report["candidate"], report["strength"], report["loss"], strict=True)
        if np.isinf(strength)
    }
    assert starts["damped"] < 0.3 * starts["old"]
    assert found.score(X[TEST], LABEL[TEST]) > model.score(X[TEST], LABEL[TEST])


@pytest.mark.parametrize("scaler", [StandardScaler(), RobustScaler(), MinMaxScaler()])
@pytest.mark.parametrize("last", [Ridge(), NETWORK])
def test_weights_are_divided_by_rms_of_scaled_columns(scaler, last, monkeypatch):
    found = record_damping(monkeypatch)
    y, estimator = (NUMBER, OrtGradientRegressor) if isinstance(last, Ridge) else (LABEL, OrtGradientClassifier)
    model, weights = fitted(last, scaler, y), np.random.RandomState(0).rand(40) + 0.5
    run = estimator(model, random_state=0).fit(X[NEW], y[NEW], weights)._state
    sizes = np.sqrt(np.average(model[0].transform(X[NEW]) ** 2, axis=0, weights=weights))
    assert sizes[STILL] > 5
    expected = {name: np.ones_like(array) for name, array in run.parameters.views().items()}
    first = "ridge.coef" if isinstance(last, Ridge) else "mlpclassifier.coefs.0"
    by_column = np.maximum(1, sizes)
    wide = expected[first].shape[0] != len(sizes) or expected[first].shape == (1, len(sizes))
    expected[first] *= by_column if wide else by_column[:, None]
    for name, array in expected.items():
        assert_allclose(found[0][run.parameters.span(name)], array.ravel(), rtol=1e-3)


def test_scalers_of_some_columns_count(monkeypatch):
    found = record_damping(monkeypatch)
    parts = [("a", StandardScaler(), [0, STILL]), ("b", MinMaxScaler(), [1, 2])]
    tuned(fitted(LogisticRegression(), ColumnTransformer(parts)))
    assert (found[0] > 5).sum() == 1


@pytest.mark.long
def test_range_of_tables_with_text_is_checked():
    table = pd.DataFrame(X.astype(np.float64), columns=list("abcdef")).assign(kind=np.where(X[:, 4] > 0, "p", "n"))
    parts = [("numbers", StandardScaler(), list("abcdef")), ("kind", OneHotEncoder(), ["kind"])]
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(table[OLD], LABEL[OLD])
    found = OrtGradientClassifier(model, random_state=0).fit(table[NEW], LABEL[NEW])
    assert "damped" in found.fine_tuning_["candidate"]
    assert found.score(table[TEST], LABEL[TEST]) > model.score(table[TEST], LABEL[TEST])


@pytest.mark.parametrize(
    ("scaler", "settings"),
    [
        (make_pipeline(StandardScaler(), PCA(5)), {}),
        (StandardScaler(), {"finetune": FineTuner(freeze_preprocessing=False)}),
        (StandardScaler(), {"trainable": ["*intercept*"]}),
    ],
)
def test_only_trained_weights_right_behind_frozen_scalers_are_damped(scaler, settings):
    found = tuned(fitted(LogisticRegression(), scaler), **settings)
    assert not any(name.startswith("damped") for name in found.fine_tuning_["candidate"])


def test_columns_within_range_give_no_damped_candidate():
    near, _ = rows(spread=0.02)
    model = fitted(LogisticRegression())
    found = OrtGradientClassifier(model, random_state=0).fit(near[NEW], LABEL[NEW])
    assert not any(name.startswith("damped") for name in found.fine_tuning_["candidate"])


@pytest.mark.long
def test_old_rows_are_searched_from_the_damped_weights():
    found = OrtGradientClassifier(fitted(NETWORK), random_state=0)
    found.fit(X[NEW], LABEL[NEW], X_old=X[OLD], y_old=LABEL[OLD])
    assert {"old", "damped", "damped, shifted", "old rows"} <= set(found.fine_tuning_["candidate"])


@pytest.mark.slow
def test_validation_rows_choose_among_damped_candidates():
    found = OrtGradientClassifier(fitted(NETWORK), random_state=0)
    found.fit(X[NEW], LABEL[NEW], X_val=X[TEST], y_val=LABEL[TEST])
    assert "damped" in found.fine_tuning_["candidate"]


@pytest.mark.parametrize("last", [LogisticRegression(), NETWORK])
def test_the_result_is_given_back_whole(last):
    model = fitted(last)
    found = tuned(model)
    expected = found.predict_proba(X[TEST])
    back = found.to_sklearn()
    assert_array_equal(back[0].scale_, model[0].scale_)
    assert_allclose(back.predict_proba(X[TEST]), expected, atol=1e-4)
    assert_array_equal(pickle.loads(pickle.dumps(found)).predict_proba(X[TEST]), expected)
    exported = session(found.to_onnx())
    assert_allclose(exported.run(None, {exported.get_inputs()[0].name: X[TEST]})[1], expected, atol=1e-5)
