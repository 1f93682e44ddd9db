"""Fine-tuning with old rows beside the new ones, and the record of the candidates."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import FineTuner, Linear, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import each_engine

X, Y = load_diabetes(return_X_y=True)
X = (X / X.std(axis=0)).astype(np.float32)
OLD, NEW, TEST = slice(0, 250), slice(250, 270), slice(320, None)
WITH_OLD = {"X_old": X[OLD], "y_old": Y[OLD]}


def ridge():
    return make_pipeline(StandardScaler(), Ridge()).fit(X[OLD], Y[OLD])


def regressor(**settings):
    return OrtGradientRegressor(ridge(), random_state=0, **settings)


def table(estimator):
    """Return the candidates by name and strength: their loss and their share."""
    found = estimator.fine_tuning_
    keys = zip(found["candidate"].tolist(), found["strength"].tolist(), strict=True)
    return dict(zip(keys, zip(found["loss"], found["share"], strict=True), strict=True))


def weighted_least_squares(rows, y, weights):
    A = np.column_stack([rows, np.ones(len(rows))]) * np.sqrt(weights)[:, None]
    return np.linalg.lstsq(A, y * np.sqrt(weights), rcond=None)[0]


@each_engine
@pytest.mark.parametrize("old_weight", [0.5, 2.0])
def test_old_rows_count_as_a_multiple_of_the_new_ones(engine, old_weight):
    """The candidate is the least-squares fit of both, the old rows together weighted ``old_weight`` times the new."""
    drifted = np.where(np.arange(len(Y)) < 250, Y, Y + 10)
    new_weights, old_weights = np.random.RandomState(0).rand(2, 250) + 0.5
    tuner = FineTuner(old_weight=old_weight, max_iter=400, recalibrate=False)
    tuned = OrtGradientRegressor(Ridge().fit(X[OLD], Y[OLD]), finetune=tuner, random_state=0, engine=engine)
    tuned.fit(
        X[NEW], drifted[NEW], new_weights[:20], X_val=X[NEW], y_val=drifted[NEW], **WITH_OLD,
        sample_weight_old=old_weights,
    )  # fmt: skip
    own = tuned.fine_tuning_
    assert own["strength"][own["candidate"] == "old rows"].tolist() == [old_weight]
    share = old_weight * new_weights[:20].sum() / old_weights.sum()
    weights = np.concatenate([new_weights[:20], share * old_weights])
    expected = weighted_least_squares(np.concatenate([X[NEW], X[OLD]]), np.append(drifted[NEW], Y[OLD]), weights)
    residuals = X[NEW] @ expected[:10] + expected[10] - drifted[NEW]
    score = 1 - (residuals**2).sum() / ((drifted[NEW] - drifted[NEW].mean()) ** 2).sum()
    assert_allclose(own["score"][own["candidate"] == "old rows"], score, atol=5e-3)


@pytest.mark.long
def test_the_weight_of_the_old_rows_is_chosen_by_cross_validation():
    losses = {key: loss for key, (loss, _) in table(regressor().fit(X[NEW], Y[NEW], **WITH_OLD)).items()}
    tried = [strength for name, strength in losses if name == "old rows"]
    assert tried == [3.0, 1.0, 0.3, 0.1][: len(tried)]
    assert len(tried) > 1
    assert losses["old rows", 3.0] < losses["zero", np.inf]


@pytest.mark.slow
def test_old_rows_of_weight_zero_have_no_effect():
    weights = np.ones(250)
    weights[100:] = 0
    some = regressor().fit(X[NEW], Y[NEW], **WITH_OLD, sample_weight_old=weights)
    kept = regressor().fit(X[NEW], Y[NEW], X_old=X[:100], y_old=Y[:100])
    assert_allclose(some.predict(X[TEST]), kept.predict(X[TEST]), rtol=1e-3)


@pytest.mark.slow
def test_old_rows_help_where_new_ones_are_few():
    """The new rows vary in fewer directions than there are columns: only old rows tell about the others."""
    y = Y + 40 * X[:, 2]
    stale = make_pipeline(StandardScaler(), Ridge(alpha=1e4)).fit(X[OLD], y[OLD])
    alone = OrtGradientRegressor(stale, random_state=0).fit(X[NEW], y[NEW]).score(X[TEST], y[TEST])
    beside = OrtGradientRegressor(stale, random_state=0).fit(X[NEW], y[NEW], X_old=X[OLD], y_old=y[OLD])
    assert beside.score(X[TEST], y[TEST]) > max(alone, stale.score(X[TEST], y[TEST])) + 0.05


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ({"X_old": X[OLD]}, "X_old and y_old belong together"),
        ({"y_old": Y[OLD]}, "X_old and y_old belong together"),
        ({"X_old": X[OLD, :3], "y_old": Y[OLD]}, "3 features"),
        ({"X_old": X[OLD], "y_old": Y[:9]}, "X_old has 250, y_old has 9"),
        ({**WITH_OLD, "sample_weight_old": np.ones(3)}, "sample_weight_old"),
    ],
)
def test_old_rows_that_do_not_fit_are_named(old, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X[NEW], Y[NEW], **old)


def test_old_rows_of_unknown_classes_are_refused():
    rows, labels = load_iris(return_X_y=True)
    old = LogisticRegression(max_iter=1000).fit(rows, labels)
    with pytest.raises(ValueError, match="y_old contains labels that are not among the classes"):
        OrtGradientClassifier(old).fit(rows, labels, X_old=rows, y_old=labels + 1)


@pytest.mark.parametrize(
    "setting", [{"finetune": None}, {"learning_rate_init": 0.1, "max_iter": 5}, {"model": Linear()}]
)
def test_old_rows_without_fine_tuning_are_refused(setting):
    with pytest.raises(ValueError, match="X_old and y_old have a use in fine-tuning only"):
        regressor().set_params(**setting).fit(X[NEW], Y[NEW], **WITH_OLD)


def test_model_is_kept_if_new_rows_agree():
    kept = regressor().fit(X[250:290], ridge().predict(X[250:290]))
    assert_allclose(kept.predict(X[TEST]), ridge().predict(X[TEST]), rtol=1e-3)


def test_the_record_holds_each_candidate():
    tuned = regressor().fit(X[NEW], Y[NEW] + 30)
    record = tuned.fine_tuning_
    assert list(record) == ["candidate", "strength", "loss", "gain", "standard_error", "share"]
    assert {"old", "shifted", "rescaled", "zero"} == set(record["candidate"])
    assert_allclose(record["share"].sum(), 1.0)
    unchanged = (record["candidate"] == "old") & np.isinf(record["strength"])
    assert_allclose(record["gain"], record["loss"][unchanged] - record["loss"], atol=1e-6)
    record["share"][:] = 0.0
    assert tuned.fine_tuning_["share"].any()
    assert_array_equal(pickle.loads(pickle.dumps(tuned)).fine_tuning_["loss"], tuned.fine_tuning_["loss"])


def test_the_record_of_validation_data_holds_scores():
    record = regressor().fit(X[NEW], Y[NEW] + 30, X_val=X[TEST], y_val=Y[TEST] + 30).fine_tuning_
    assert list(record) == ["candidate", "strength", "score", "share"]
    assert record["share"][np.argmax(record["score"])] == 1.0


def test_plain_training_has_no_record():
    with pytest.raises(AttributeError, match="was not fine-tuned"):
        _ = regressor(finetune=None).partial_fit(X[NEW], Y[NEW]).fine_tuning_
