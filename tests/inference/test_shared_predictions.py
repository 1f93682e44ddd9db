"""Predictions and validation scores of fits that share compiled graphs are those of their own weights."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor, clear_cache
from tests.helpers.observed import record_inference_graphs, record_sessions

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = X @ RNG.normal(size=4) + 0.1 * RNG.normal(size=40)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_equal_structures_predict_with_own_weights(method):
    labels = [(Y > 0).astype(int), np.array(["a", "b"])[(Y > 0).astype(int)], (Y > 0).astype(int) + 5]
    fitted = [OrtGradientClassifier(MLP((5,)), random_state=i, max_iter=3).fit(X, y) for i, y in enumerate(labels)]
    clear_cache()
    expected = []
    for one in fitted:
        clear_cache()
        expected.append(getattr(pickle.loads(pickle.dumps(one)), method)(X))
    clear_cache()
    for one, numbers in zip(fitted, expected, strict=True):
        assert_array_equal(getattr(pickle.loads(pickle.dumps(one)), method)(X), numbers)


@pytest.mark.parametrize("clips", [False, True])
def test_scaled_targets_share_the_graph_that_predicts(clips, monkeypatch):
    targets = [Y, 50 * Y + 7, Y - Y.mean(), 1e-3 * Y - 1]
    fitted = [OrtGradientRegressor(MLP((5,)), clip_predictions=clips, max_iter=3).fit(X, y) for y in targets]
    expected = [pickle.loads(pickle.dumps(one)).model_.SerializeToString() for one in fitted]
    clear_cache()
    made = record_inference_graphs(monkeypatch)
    for one, proto in zip(fitted, expected, strict=True):
        session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
        assert_array_equal(pickle.loads(pickle.dumps(one)).predict(X), session.run(None, {"X": X})[0].ravel())
    assert len(made) == 1


def test_validation_scores_are_those_of_the_current_weights():
    def curve(seed):
        net = OrtGradientRegressor(
            MLP((5,)), random_state=seed, early_stopping=True, max_iter=4, trainable=["layers.1.*"]
        )
        return net.fit(X, Y).validation_scores_

    expected = []
    for seed in (0, 1):
        clear_cache()
        expected.append(curve(seed))
    clear_cache()
    assert [curve(seed) for seed in (0, 1)] == expected
    assert expected[0] != expected[1]


@pytest.mark.long
def test_fits_share_the_session_that_scores_validation_rows(monkeypatch):
    """Also those in other threads: each run reads the parameters of its own fit."""

    def curve(seed):
        net = OrtGradientClassifier(
            MLP((5,)), random_state=seed, early_stopping=True, scoring="neg_log_loss", max_iter=20
        )
        return net.fit(X, (Y > 0).astype(int)).validation_scores_

    expected = []
    for seed in range(4):
        clear_cache()
        expected.append(curve(seed))
    made = record_sessions(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(curve, range(4))) == expected
    assert not made
    assert expected[0] != expected[1]
