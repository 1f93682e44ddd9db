"""Converters of our own and repairs of classifiers: what the graph gives, and its gradients, beside scikit-learn's.

The gradients are compared with central differences of what scikit-learn computes in float64 from a changed attribute.
"""

from __future__ import annotations

import copy
import functools

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import erf
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier, kernels
from sklearn.gaussian_process._gpc import COEFS, LAMBDAS
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    RadiusNeighborsClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier
from onnxtrain_sklearn._fitted.converters.kernels import mean_sigmoid
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.converted import NEW, OLD, SVM, THREE, TREE, TWO, X, changed, given, still
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")

TARGETS = {"two": TWO, "three": THREE, "words": np.array(["low", "mid", "high"])[THREE]}


HAS_TEMPERATURE = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 8)
MODELS = {
    "boosted trees": AdaBoostClassifier(n_estimators=5, random_state=0),
    "boosted machines": AdaBoostClassifier(SVM, n_estimators=4, random_state=0),
    "votes": VotingClassifier([("a", LogisticRegression()), ("b", TREE)], voting="soft"),
    "weighted votes": VotingClassifier(
        [("a", LogisticRegression()), ("b", "drop"), ("c", GaussianNB())], voting="soft", weights=[1, 5, 2]
    ),
    "stack of decisions": StackingClassifier([("a", SVM), ("b", TREE), ("c", SVC())], passthrough=True),
    "stack of labels": StackingClassifier([("a", TREE), ("b", GaussianNB())], SVM, stack_method="predict"),
    "stack of pipelines": StackingClassifier([("a", make_pipeline(StandardScaler(), SVM))]),
    "one vs rest of machines": OneVsRestClassifier(SVC()),
    "one vs rest of lines": OneVsRestClassifier(SVM),
    "sigmoid": CalibratedClassifierCV(SVM, cv=3),
    "sigmoid of a pipeline": CalibratedClassifierCV(make_pipeline(StandardScaler(), SVM), cv=2, ensemble=False),
    "sigmoid of discriminants": CalibratedClassifierCV(LinearDiscriminantAnalysis(), cv=2),
    "isotonic": CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=3),
    "isotonic machines": CalibratedClassifierCV(SVC(), method="isotonic", cv=2),
    "isotonic lines": CalibratedClassifierCV(SVM, method="isotonic", cv=2),
    "temperature": CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=2),
    "temperature of probabilities": CalibratedClassifierCV(GaussianNB(), method="temperature", cv=2),
    "nearest": KNeighborsClassifier(weights="distance"),
    "nearest by blocks": KNeighborsClassifier(3, weights="distance", p=1, algorithm="ball_tree"),
    "nearest by cubes": KNeighborsClassifier(weights="distance", p=3, algorithm="brute"),
    "radius": RadiusNeighborsClassifier(4.0, weights="distance"),
    "process": GaussianProcessClassifier(random_state=0),
    "process of kernels": GaussianProcessClassifier(
        2.0 * kernels.Matern(nu=0.5) + kernels.RationalQuadratic() * kernels.DotProduct() + kernels.WhiteKernel(),
        optimizer=None,
    ),
    "process of waves": GaussianProcessClassifier(
        kernels.ExpSineSquared(periodicity=9.0) ** 2
        + kernels.Matern([1.0, 2.0, 1.0, 3.0, 1.0], nu=2.5)
        + kernels.WhiteKernel(),
        optimizer=None,
    ),
    "descent": SGDClassifier(loss="log_loss", alpha=0.1, random_state=0),
}
MODELS = {key: value for key, value in MODELS.items() if HAS_TEMPERATURE or "temperature" not in key}


@functools.cache
def fitted_in_double(name, target):
    return copy.deepcopy(MODELS[name]).fit(X[OLD].astype(np.float64), TARGETS[target][OLD])


def numbers(model, X):
    return getattr(model, "predict_proba" if hasattr(model, "predict_proba") else "decision_function")(X)


@pytest.mark.thinned(by=lambda name, target: {name, target})
@pytest.mark.parametrize("target", ["two", "words"])
@pytest.mark.parametrize("name", MODELS)
def test_converted_classifier_predicts_as_scikit_learn(name, target):
    """On the rows that it was fitted on, too: those lie on neighbors, and on thresholds."""
    y = TARGETS[target]
    model = given(MODELS[name], y)
    tuned = still(model, X[NEW], y[NEW])
    expected = numbers(model, X)
    tolerance = (1e-4 if "process" in name else 2e-5) * max(1.0, np.abs(expected).max())
    assert_allclose(numbers(tuned, X), expected, rtol=1e-4, atol=tolerance)
    top = np.sort(expected.reshape(len(X), -1), axis=1)
    clear = (top[:, -1] - top[:, -2] if top.shape[1] > 1 else np.abs(top[:, 0])) > 1e-3
    assert_array_equal(tuned.predict(X)[clear], model.predict(X)[clear])


DIFFERENTIATED = {
    "boosted trees": ("*estimator_weights", 1),
    "stack of decisions": ("estimators.0.coef", 1),
    "sigmoid": ("*.a", 3),
    "isotonic": ("*.y_thresholds", 3),
    "isotonic lines": ("*.coef", 2),
    "temperature": ("*.beta", 2),
    "temperature of probabilities": ("*.theta", 2),
    "nearest by cubes": ("*.fit_X", 1),
    "process": ("*.pi", 1),
    "process of waves": ("*.X_train", 1),
    "descent": ("*.coef", 1),
}
DIFFERENTIATED = {key: value for key, value in DIFFERENTIATED.items() if HAS_TEMPERATURE or "temperature" not in key}


"""A pattern of parameters, and how many there are for two classes."""


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.thinned(by=lambda name, target, engine: {target, engine})
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("target", ["two", "three"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradient_is_that_of_scikit_learn(name, target, engine):
    """On rows whose probabilities float32 can tell from one; what is fitted to float32 would compare in it.

    None of them was fitted on: those lie on thresholds, and on neighbors.
    """
    pattern, count = DIFFERENTIATED[name]
    y = TARGETS[target]
    model = fitted_in_double(name, target)
    unsure = 80 + np.flatnonzero(model.predict_proba(X[NEW]).min(axis=1) > 0.02)
    assert len(unsure) >= 20
    rows, y = X[unsure[:40]], y[unsure[:40]]
    tuned = still(model, rows, y, trainable=[pattern], engine=engine)
    run, rng = tuned._state, np.random.default_rng(0)
    run.live.step.compute_gradients(float(len(y)))
    assert len(run.parameters.names) >= count
    origins = {origin.name: origin for origin in run.fitted.origins}
    for parameter in run.parameters.names:
        span, origin = run.parameters.span(parameter), origins[parameter]
        w = run.parameters.vector[span].astype(np.float64)
        direction = rng.normal(size=w.shape) * (w * (1 - w) if origin.form == "probability" else np.abs(w) + 1e-3)
        sides = [loss_of(changed(model, origin, w + step * direction), rows, y) for step in (1e-5, -1e-5)]
        parts = run.parameters.gradient[span].astype(np.float64) * direction
        assert abs((sides[0] - sides[1]) / 2e-5 - parts.sum()) < 1e-3 * np.abs(parts).sum() + 2e-5, parameter


def loss_of(model, rows, y):
    return log_loss(y, model.predict_proba(rows.astype(np.float64)))


class TestCalibration:
    @pytest.mark.slow
    def test_trained_probabilities_stay_probabilities(self):
        model = given(MODELS["isotonic"], THREE)
        tuned = OrtGradientClassifier(model, max_iter=30, learning_rate_init=0.3, random_state=0, trainable=["*.y_*"])
        tuned.fit(X[NEW], THREE[NEW])
        assert any((w < 0).any() or (w > 1).any() for w in tuned.weights_.values())
        for one in tuned.to_sklearn().calibrated_classifiers_:
            for calibrator in one.calibrators:
                assert ((calibrator.y_thresholds_ >= 0) & (calibrator.y_thresholds_ <= 1)).all()

    def test_a_frozen_estimator(self):
        inner = RidgeClassifier().fit(X[OLD], TWO[OLD])
        model = CalibratedClassifierCV(FrozenEstimator(inner)).fit(X[OLD], TWO[OLD])
        tuned = OrtGradientClassifier(model, max_iter=3, random_state=0).fit(X[NEW], TWO[NEW])
        assert {"ridgeclassifier.coef", "calibrated_classifiers.0.calibrators.0.a"} <= set(tuned.weights_)
        assert_allclose(tuned.to_sklearn().predict_proba(X), tuned.predict_proba(X), atol=1e-5)

    def test_a_class_that_an_estimator_has_not_seen(self):
        rows = np.arange(80)
        folds = [(rows[:40][THREE[:40] != 1], rows[40:]), (rows[40:], rows[:40])]
        model = CalibratedClassifierCV(GaussianNB(), cv=folds).fit(X[OLD], THREE[OLD])
        assert [len(one.estimator.classes_) for one in model.calibrated_classifiers_] == [2, 3]
        assert_allclose(still(model, X[NEW], THREE[NEW]).predict_proba(X), model.predict_proba(X), atol=1e-5)

    def test_equal_numbers_of_two_estimators_stay_apart(self):
        model = CalibratedClassifierCV(GaussianNB(priors=[0.5, 0.5]), cv=2).fit(X[OLD], TWO[OLD])
        tuned = OrtGradientClassifier(model, max_iter=3, random_state=0, trainable=["*class_prior"])
        tuned.fit(X[NEW], TWO[NEW])
        assert len([name for name in tuned.weights_ if name.endswith("class_prior")]) == 2
        assert_allclose(tuned.to_sklearn().predict_proba(X), tuned.predict_proba(X), atol=1e-5)

    @pytest.mark.skipif(not HAS_TEMPERATURE, reason="scikit-learn before 1.8 has no calibration by a temperature")
    @pytest.mark.parametrize(
        "trees",
        [
            DecisionTreeClassifier(max_depth=3, random_state=0),
            RandomForestClassifier(5, random_state=0),
            BaggingClassifier(TREE, 3, random_state=0),
            make_pipeline(StandardScaler(), TREE),
        ],
    )
    def test_temperature_of_leaves_of_zero(self, trees):
        """Their logarithms are of 1e-12, and would be of what training keeps them at."""
        model = CalibratedClassifierCV(trees, method="temperature", cv=2).fit(X[OLD], THREE[OLD])
        with pytest.raises(ModelError, match=r"leaves of its \w+ hold no row of some class.*method='sigmoid'"):
            still(model, X[NEW], THREE[NEW])

    @pytest.mark.skipif(not HAS_TEMPERATURE, reason="scikit-learn before 1.8 has no calibration by a temperature")
    def test_temperature_of_leaves_with_all_classes(self):
        trees = RandomForestClassifier(4, min_samples_leaf=15, random_state=1)
        model = CalibratedClassifierCV(trees, method="temperature", cv=2).fit(X, TWO)
        assert min(one.estimator.predict_proba(X).min() for one in model.calibrated_classifiers_) > 0.001
        assert_allclose(still(model, X, TWO).predict_proba(X), model.predict_proba(X), atol=1e-5)

    def test_decision_functions_that_the_graph_lacks(self):
        from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

        model = CalibratedClassifierCV(QuadraticDiscriminantAnalysis(), cv=2).fit(X[OLD], TWO[OLD])
        with pytest.raises(ModelError, match="QuadraticDiscriminantAnalysis gives probabilities"):
            still(model, X[NEW], TWO[NEW])


class TestProcesses:
    def test_mean_of_the_sigmoid_keeps_its_digits(self):
        """The sum as it is written has lost all but four of them."""
        mean, variance = (a.ravel().astype(np.float32) for a in np.meshgrid(np.linspace(-8, 8, 81), [1e-3, 0.1, 1, 20]))
        inputs = [ir.val(name, ir.DataType.FLOAT, ("N", 1)) for name in ("mean", "variance")]
        graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 18}, name="squashed")
        graph.outputs.append(mean_sigmoid(GraphBuilder(graph, constant_nodes=True), *inputs))
        graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        proto = to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"mean": mean[:, np.newaxis], "variance": variance[:, np.newaxis]})
        m, v = mean.astype(np.float64), variance.astype(np.float64)
        whole = (COEFS * erf(LAMBDAS * m / np.sqrt(1 + 2 * v * LAMBDAS**2))).sum(axis=0)
        assert_allclose(found.ravel(), (whole + COEFS.sum()) / 2, rtol=0, atol=3e-6)

    def test_other_kernels(self):
        model = GaussianProcessClassifier(kernels.PairwiseKernel(metric="laplacian"), optimizer=None)
        with pytest.raises(ModelError, match=r"PairwiseKernel.* is not supported for training"):
            still(given(model, TWO), X[NEW], TWO[NEW])
