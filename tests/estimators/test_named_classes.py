"""fit(classes=...): heads with scores for classes that the rows do not have."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import Linear, OrtGradientClassifier
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
y = X[:, :3].argmax(axis=1) * 2  # 0, 2, 4
HEAD = Linear().build(4, 6, random_state=0)


def named_classifier(model=HEAD, **parameters):
    return OrtGradientClassifier(model, **{"max_iter": 20, "learning_rate_init": 0.05, "random_state": 0} | parameters)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("names", [np.arange(6), np.array(list("abcdef"))], ids=["numbers", "strings"])
def test_a_head_is_trained_on_some_of_its_classes(engine, names):
    fitted = named_classifier(engine=engine).fit(X, names[y], classes=names)
    assert_array_equal(fitted.classes_, names)
    assert fitted.n_outputs_ == 6
    p = fitted.predict_proba(X)
    assert p.shape == (90, 6)
    assert p[:, 1::2].mean() < p[:, ::2].mean() / 2
    assert fitted.score(X, names[y]) > 0.8
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    labels, probabilities = session.run(None, {"X": X})
    assert_array_equal(labels, names[probabilities.argmax(axis=1)])
    assert_array_equal(probabilities, p)


def test_the_first_loss_is_that_of_the_columns_of_the_named_classes():
    few = np.isin(y, (2, 4))
    start = named_classifier(learning_rate_init=0.0, max_iter=1, batch_size=90).fit(X[few], y[few], classes=range(6))
    s = start.decision_function(X[few]).astype(np.float64)
    expected = np.log(np.exp(s).sum(axis=1)) - s[np.arange(len(s)), y[few]]
    assert_allclose(start.loss_, expected.mean(), rtol=1e-5)


@pytest.mark.parametrize("model", [None, Linear(), Linear().build(4, 3, random_state=0)], ids=["0", "builder", "graph"])
def test_rows_of_one_class_are_enough(model):
    fitted = named_classifier(model).fit(X[y == 2], y[y == 2], classes=[0, 2, 4])
    assert_array_equal(fitted.classes_, [0, 2, 4])
    assert fitted.score(X[y == 2], y[y == 2]) > 0.9


def test_fit_with_classes_equals_partial_fit():
    first = named_classifier(Linear(), max_iter=1, shuffle=False).fit(X, y, classes=range(6))
    other = named_classifier(Linear(), shuffle=False).partial_fit(X, y, classes=range(6))
    assert_array_equal(first.predict_proba(X), other.predict_proba(X))


def test_validation_data_may_bring_the_other_classes():
    labels = y // 2
    few = labels < 2
    fitted = named_classifier(Linear()).fit(X[few], labels[few], X_val=X, y_val=labels, classes=[0, 1, 2])
    assert len(fitted.validation_scores_) == fitted.n_iter_
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        named_classifier(Linear()).fit(X[few], labels[few], X_val=X, y_val=labels)


def test_warm_start_keeps_named_classes():
    fitted = named_classifier(warm_start=True).fit(X, y, classes=range(6))
    assert len(fitted.fit(X, y).classes_) == 6
    with pytest.raises(ValueError, match="is not the same as on the last call"):
        fitted.fit(X, y, classes=[0, 2, 4])


def test_other_classes_without_a_warm_start():
    fitted = named_classifier(Linear()).fit(X, y, classes=range(6)).fit(X, y, classes=[0, 2, 4])
    assert_array_equal(fitted.classes_, [0, 2, 4])


def test_a_search_passes_them_on():
    search = GridSearchCV(named_classifier(), {"alpha": [0.0, 0.1]}, cv=2, error_score="raise").fit(
        X, y, classes=range(6)
    )
    assert search.predict_proba(X).shape == (90, 6)


def test_missing_classes_error_names_the_parameter():
    with pytest.raises(ValueError, match=r"6 column\(s\), but y has 3 classes.*fit\(X, y, classes=...\)"):
        named_classifier().fit(X, y)


@pytest.mark.parametrize(
    ("classes", "match"),
    [
        ([0, 2], r"labels that are not among the classes: \[4\]"),
        ([0], "at least 2 classes in classes"),
        (3, "classes must be a list of labels, got 3"),
        ("abc", "classes must be a list of labels"),
        ([0, 2, 4, 1, 3, 5], "classes must be sorted"),
        ([0, 1, 2, 3, 4, 5, 5], "classes must be sorted and without repetition"),
        (range(7), r"6 column\(s\), but y has 7 classes"),
    ],
)
def test_wrong_classes(classes, match):
    with pytest.raises(ValueError, match=match):
        named_classifier().fit(X, y, classes=classes)


def test_a_fitted_model_knows_its_own():
    model = LogisticRegression().fit(X, y)
    assert len(named_classifier(model).fit(X[y < 4], y[y < 4], classes=[0, 2, 4]).classes_) == 3
    with pytest.raises(ValueError, match="are not those of the fitted model"):
        named_classifier(model).fit(X, y, classes=range(6))
