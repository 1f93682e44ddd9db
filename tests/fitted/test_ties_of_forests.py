"""Votes of trees tie often: untrained, a forest predicts the labels of the model or file that was given."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_array_equal
from skl2onnx import to_onnx
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier

from onnxtrain_sklearn import OrtGradientClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FORESTS = [
    RandomForestClassifier(6, random_state=0),
    ExtraTreesClassifier(6, random_state=0),
    BaggingClassifier(n_estimators=6, random_state=0),
]


def rows_and_others(data):
    """Return data, and rows whose columns were permuted: trees disagree on them."""
    X, y = {"iris": load_iris, "digits": load_digits}[data](return_X_y=True)
    X, rng = X[:600].astype(np.float32), np.random.RandomState(1)
    return X, y[:600], np.stack([rng.permutation(column) for column in X.T], axis=1)


@pytest.mark.long
@pytest.mark.parametrize("data", ["iris", "digits"])
@pytest.mark.parametrize("forest", FORESTS, ids=lambda forest: type(forest).__name__)
def test_first_of_tied_classes_is_predicted(forest, data):
    X, y, others = rows_and_others(data)
    forest.fit(X, y)
    votes = np.sort(forest.predict_proba(others), axis=1)
    assert (votes[:, -1] - votes[:, -2] < 1e-9).mean() > 0.04
    proto = to_onnx(forest, X[:1], options={"zipmap": False}, target_opset=18)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for model, labels in ((forest, forest.predict(others)), (proto, session.run(None, {"X": others})[0])):
        start = OrtGradientClassifier(model, max_iter=1, optimizer="sgd", learning_rate_init=1e-30).fit(X, y)
        assert_array_equal(start.predict(others), labels)
        trained = OrtGradientClassifier(model, max_iter=2, learning_rate_init=0.01, random_state=0).fit(X, y)
        exported = trained.to_onnx()
        again = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
        assert_array_equal(again.run(None, {again.get_inputs()[0].name: others})[0], trained.predict(others))
