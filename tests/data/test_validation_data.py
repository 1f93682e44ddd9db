"""Data that training is judged by: too few, of rare classes, wrong; and scores of predictions that overflowed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
import sklearn
from scipy.special import softmax
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import DivergenceError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = X.sum(axis=1)
LABELS = np.where(y > 0, "yes", "no")


def validated_regressor(**parameters: object) -> OrtGradientRegressor:
    return OrtGradientRegressor(MLP((3,)), max_iter=2, random_state=0, **parameters)


def validated_classifier(**parameters: object) -> OrtGradientClassifier:
    return OrtGradientClassifier(MLP((3,)), max_iter=2, random_state=0, **parameters)


SPLITS_ARE_CHECKED = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 7)
"""Before, MLPRegressor takes a single row of validation data, and scores it with a warning."""


@pytest.mark.parametrize(("kind", "peer"), [(validated_regressor, MLPRegressor), (validated_classifier, MLPClassifier)])
def test_a_split_of_a_single_row_is_refused_as_by_scikit_learn(kind, peer):
    target = y[:8] if kind is validated_regressor else np.resize(["no", "yes"], 8)
    message = (
        "The validation set is too small" if kind is validated_regressor else "too small|should be greater or equal"
    )
    peers = [peer(early_stopping=True)] if peer is MLPClassifier or SPLITS_ARE_CHECKED else []
    for estimator in (kind(early_stopping=True), *peers):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X[:8], target)
    kind(early_stopping=True, validation_split=0.4).fit(X[:8], target)


def test_a_single_row_of_validation_data_is_refused_for_regression():
    with pytest.raises(ValueError, match=r"too small: R² needs 2 rows .*, X_val and y_val have 1"):
        validated_regressor().fit(X, y, X_val=X[:1], y_val=y[:1])
    with pytest.raises(ValueError, match=r"too small: R² needs 2 rows"):
        validated_regressor().fit(X, y, X_val=X[:3], y_val=y[:3], sample_weight_val=[1, 0, 0])
    assert len(validated_classifier().fit(X, LABELS, X_val=X[:1], y_val=LABELS[:1]).validation_scores_) == 2


def test_a_rare_class_is_named_by_its_label():
    rare = LABELS.copy().astype(object)
    rare[3] = "perhaps"
    with pytest.raises(ValueError, match=r"single row of class 'perhaps'\. .*X_val") as error:
        validated_classifier(early_stopping=True).fit(X, rare)
    assert "test_size" not in str(error.value)
    numbers = np.where(y > 0, 70, 50)
    numbers[3] = 90
    with pytest.raises(ValueError, match="single row of class 90"):
        validated_classifier(early_stopping=True).fit(X, numbers)


def test_a_rare_class_among_the_weighted_rows_is_named():
    three = np.resize([50, 70, 90], 40)
    with pytest.raises(ValueError, match="single row of class 70"):
        validated_classifier(early_stopping=True).fit(X, three, sample_weight=(three != 70) | (np.arange(40) == 1))


def test_split_smaller_than_class_count_is_refused():
    with pytest.raises(ValueError, match=r"validation_split=0.1 of 40 rows splits them into 36 and 4, with 8 cl"):
        validated_classifier(early_stopping=True).fit(X, np.arange(40) % 8)


FAULTS = {
    "features": ({"X_val": X[:, :3], "y_val": y}, ValueError, r"X_val has 3 features, but .* is expecting 4"),
    "missing numbers": ({"X_val": np.full((5, 4), np.nan), "y_val": y[:5]}, ValueError, "Input X_val contains NaN"),
    "missing targets": ({"X_val": X[:2], "y_val": [0.0, np.nan]}, ValueError, "Input y_val contains NaN"),
    "rows": ({"X_val": X[:9], "y_val": y[:8]}, ValueError, "X_val has 9, y_val has 8"),
    "outputs": ({"X_val": X, "y_val": np.stack([y, y], 1)}, ValueError, r"^y_val has 2 output\(s\), expected 1"),
    "type": ({"X_val": X, "y_val": np.full(40, "a")}, ValueError, "y_val must hold numbers"),
    "dict": ({"X_val": {"a": X}, "y_val": y}, (TypeError, ValueError), "X_val"),
    "weights": (
        {"X_val": X, "y_val": y, "sample_weight_val": -np.ones(40)}, ValueError, "passed to `sample_weight_val`"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_validation_data_are_reported_as_theirs(case):
    data, error, message = FAULTS[case]
    with pytest.raises(error, match=message):
        validated_regressor().fit(X, y, **data)


def test_labels_that_are_unknown_are_those_of_y_val():
    letters = np.where(y > 0, "X", "y")
    with pytest.raises(ValueError, match=r"y_val contains labels .*: \['z'\]\. .*\['X', 'y'\]"):
        validated_classifier().fit(X, letters, X_val=X, y_val=np.full(40, "z"))


def test_faults_of_training_data_are_reported_as_theirs():
    with pytest.raises(ValueError, match=r"Input X contains NaN"):
        validated_regressor().fit(np.full((40, 4), np.nan), y, X_val=X, y_val=y)


def test_patience_may_be_infinite_as_in_scikit_learn():
    settings = {"max_iter": 30, "tol": 10.0, "n_iter_no_change": np.inf, "early_stopping": True}
    assert OrtGradientRegressor(Linear(), **settings).fit(X, y).n_iter_ == 30
    assert MLPRegressor(**settings).fit(X, y).n_iter_ == 30
    for wrong in (0, -np.inf, np.nan, 2.5, "inf"):
        with pytest.raises((ValueError, TypeError), match="n_iter_no_change"):
            validated_regressor(n_iter_no_change=wrong).fit(X, y)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_predictions_that_overflow_are_a_divergence(early_stopping):
    estimator = OrtGradientRegressor(
        Linear(), optimizer="sgd", learning_rate_init=1e20, batch_size=40, early_stopping=early_stopping, random_state=0
    )
    with pytest.raises(DivergenceError, match="learning_rate_init"):
        estimator.fit(X, y, X_val=X * np.float32(1e25), y_val=y)
    assert np.isfinite(estimator.predict(X)).all()


# X_val of another length than X, for a graph that leaves the axis free.

STEPS_NET = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> net (float[N, steps, 2] x) => (float[N, 3] scores) {
        h = MatMul(x, W)
        a = Tanh(h)
        scores = ReduceMean <keepdims = 0> (a, one)
    }"""
)
STEPS_NET.graph.initializer.extend(
    onnx.numpy_helper.from_array(array, name)
    for name, array in {"W": rng.normal(size=(2, 3)).astype(np.float32), "one": np.array([1])}.items()
)
SHORT, LONG = rng.normal(size=(30, 5, 2)), rng.normal(size=(12, 9, 2))
CLASSES = np.arange(30) % 3


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [
        (OrtGradientClassifier, None),
        (OrtGradientClassifier, "neg_log_loss"),
        (OrtGradientRegressor, None),
        (OrtGradientRegressor, "neg_mean_absolute_error"),
        (OrtGradientMultiOutput, None),
    ],
)
def test_validation_rows_may_be_longer(kind, scoring):
    settings = {"max_iter": 2, "random_state": 0, "early_stopping": True, "tol": 0.0}
    several = kind is OrtGradientMultiOutput
    targets = rng.normal(size=(30, 3)) if kind is OrtGradientRegressor else CLASSES
    named = (lambda y: {"scores": y}) if several else (lambda y: y)
    given = {"loss": {"scores": "log_loss"}} if several else {}
    fitted = kind(STEPS_NET, scoring=scoring, **given, **settings)
    fitted.fit(SHORT, named(targets), X_val=LONG, y_val=named(targets[:12]))
    scores = np.tanh(LONG @ fitted.weights_["W"].astype(float)).mean(axis=1)
    if kind is OrtGradientRegressor:
        y = targets[:12]
        expected = -np.abs(scores - y).mean() if scoring else r2_score(y, scores)
    else:
        expected = {
            None: np.mean(scores.argmax(axis=1) == targets[:12]),
            "neg_log_loss": np.log(softmax(scores, axis=1))[np.arange(12), targets[:12]].mean(),
        }[scoring]
    assert max(fitted.validation_scores_) == pytest.approx(expected, rel=1e-5)


def test_validation_rows_of_another_size_than_a_fixed_one_are_refused():
    fixed = onnx.ModelProto()
    fixed.CopyFrom(STEPS_NET)
    fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    with pytest.raises(ValueError, match=r"X_val has 18 features, .* is expecting 10"):
        OrtGradientClassifier(fixed, early_stopping=True).fit(SHORT, CLASSES, X_val=LONG, y_val=CLASSES[:12])
