"""Files of classifiers of several labels a row: they start from their own predictions, train, and give labels back."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from skl2onnx import to_onnx
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # skl2onnx reads what scikit-learn means to drop
]

X, INDICATORS = make_multilabel_classification(150, 6, n_classes=3, random_state=0)
X = X.astype(np.float32)
NAMES = np.stack([np.array(["low", "mid", "top"])[(X[:, 0] > 2).astype(int) + (X[:, 0] > 5)],
                  np.array(["no", "yes"])[INDICATORS[:, 1]]], axis=1)  # fmt: skip
AT_REST = {"max_iter": 1, "optimizer": "sgd", "learning_rate_init": 1e-30}

CASES = {
    "network": (MLPClassifier((8,), max_iter=40, random_state=0), INDICATORS, True),
    "scaled network": (make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=20)), INDICATORS, False),
    "one a label": (OneVsRestClassifier(LogisticRegression()), INDICATORS, False),
    "margins": (RidgeClassifier(), INDICATORS, False),
    "sequence": (MultiOutputClassifier(LogisticRegression()), INDICATORS, False),
    "sequence of names": (MultiOutputClassifier(LogisticRegression()), NAMES, False),
    "forest": (RandomForestClassifier(4, max_depth=4, random_state=0), INDICATORS, False),
    "forests": (MultiOutputClassifier(RandomForestClassifier(4, max_depth=4, random_state=0)), INDICATORS, False),
}


def made(case):
    """Return a fitted model, its labels, and the file that skl2onnx makes of it."""
    model, y, zipped = CASES[case]
    model.fit(X, y)
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return model, y, to_onnx(model, X[:1], options=None if zipped else {id(last): {"zipmap": False}}, target_opset=18)


def results(proto, rows):
    """Return the labels and the numbers of a file, a matrix for each label or one of all, by onnxruntime alone."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    labels, numbers = session.run(None, {"X": rows})
    if isinstance(numbers, list) and isinstance(numbers[0], dict):
        numbers = np.array([[row[key] for key in sorted(row)] for row in numbers])
    return labels, numbers


@pytest.mark.parametrize("case", CASES)
def test_training_starts_from_the_file(case):
    model, y, proto = made(case)
    labels, numbers = results(proto, X)
    start = OrtGradientClassifier(proto, **AT_REST).fit(X, y)
    assert_array_equal(start.predict(X), labels)
    if case == "margins":
        assert_allclose(start.decision_function(X), model.decision_function(X), rtol=1e-3, atol=1e-4)
        return
    ours = start.predict_proba(X)
    if isinstance(ours, list):
        for own, of_file, expected in zip(ours, numbers, model.predict_proba(X), strict=True):
            assert_allclose(own, of_file, atol=1e-5)
            assert_allclose(own, expected, atol=1e-5)
        return
    numbers = np.asarray(numbers)
    assert_allclose(ours, numbers[:, :, 1].T if numbers.ndim == 3 else numbers, atol=1e-5)
    expected = np.asarray(model.predict_proba(X))
    assert_allclose(ours, expected[:, :, 1].T if expected.ndim == 3 else expected, atol=1e-5)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("case", ["network", "one a label", "sequence of names", "forest"])
def test_training_lowers_the_loss_and_gives_labels_back(case, engine):
    _, y, proto = made(case)
    y = y[::-1].copy()  # the model is at its optimum for its own
    options = {"learning_rate_init": 0.03, "max_iter": 10, "random_state": 0, "engine": engine}
    trained = OrtGradientClassifier(proto, **options).fit(X, y)
    assert trained.loss_curve_[-1] < trained.loss_curve_[0]
    labels, numbers = results(trained.to_onnx(), X)
    assert_array_equal(labels, trained.predict(X))
    assert labels.shape == y.shape
    ours = trained.predict_proba(X)
    for own, of_file in zip(ours, numbers, strict=True):
        assert_allclose(own, of_file, atol=1e-6)
    again = OrtGradientClassifier(trained.to_onnx(), **AT_REST)
    if case == "network":  # without operators of ai.onnx.ml: a graph that returns its probabilities
        again.set_params(model__output="probabilities")
        assert_allclose(again.fit(X, y).predict_proba(X), ours, atol=1e-5)


def test_the_gradient_is_that_of_the_labels():
    """One step of plain gradient descent on three logistic regressions, against the formula in float64."""
    model, y, proto = made("one a label")
    step = OrtGradientClassifier(proto, max_iter=1, optimizer="sgd", learning_rate_init=0.5, batch_size=len(X))
    step.fit(X, y)
    slope = (model.predict_proba(X) - y) / (3 * len(X))  # the loss of a row is the mean over its labels
    expected = np.stack([one.coef_[0] for one in model.estimators_]) - 0.5 * slope.T @ X.astype(np.float64)
    scores = X @ expected.T + [one.intercept_[0] for one in model.estimators_] - 0.5 * slope.sum(axis=0)
    assert_allclose(step.decision_function(X), scores, rtol=1e-3, atol=1e-3)


def test_labels_that_do_not_fit_are_refused():
    _, y, proto = made("network")
    with pytest.raises(ValueError, match="predicts 3 labels a row, and y has 2"):
        OrtGradientClassifier(proto).fit(X, y[:, :2])
    with pytest.raises(ValueError, match="predicts 3 labels a row, and y has 1"):
        OrtGradientClassifier(proto).fit(X, y[:, 0])
    _, names, proto = made("sequence of names")
    with pytest.raises(ValueError, match="not among the classes"):
        OrtGradientClassifier(proto).fit(X, np.where(names == "mid", "other", names))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OneVsRestClassifier(LinearSVC(random_state=0)), "above 0.5, as of probabilities, instead of above 0"),
        (DecisionTreeClassifier(max_depth=3), "no number that it has a gradient for"),
    ],
)
def test_files_that_skl2onnx_writes_wrong_are_refused(model, message):
    """It decides margins at 0.5, and rounds the probabilities of a single tree to booleans."""
    model.fit(X, INDICATORS)
    proto = to_onnx(model, X[:1], options={id(model): {"zipmap": False}}, target_opset=18)
    labels, numbers = results(proto, X)
    if isinstance(model, DecisionTreeClassifier):
        assert set(np.unique(numbers)) == {0.0, 1.0}
        assert 0 < np.asarray(model.predict_proba(X)).min(axis=-1).max() < 1
    else:
        assert (labels != model.predict(X)).any()
    with pytest.raises(ModelError, match=message):
        OrtGradientClassifier(proto).fit(X, INDICATORS)
