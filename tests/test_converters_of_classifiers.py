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
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier, kernels
from sklearn.gaussian_process._gpc import COEFS, LAMBDAS
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.multiclass import OneVsRestClassifier, OutputCodeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._fitted.converters.gaussian_process import _squashed
from onnxtrain_sklearn._fitted.provenance import FORMS
from onnxtrain_sklearn._fitted.traversal import follow
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn._graph.builder import GraphBuilder
from onnxtrain_sklearn._graph.protobuf import to_proto
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")

X, FOUR = make_classification(
    240, 5, n_informative=4, n_redundant=0, n_classes=4, n_clusters_per_class=1, class_sep=0.7, random_state=0
)
X = X.astype(np.float32)
THREE, TWO = np.minimum(FOUR, 2), (FOUR > 1).astype(int)
NUMBER = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + FOUR
GAPS = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.float32(np.nan), X)
OLD, NEW = slice(0, 80), slice(80, None)
TARGETS = {"two": TWO, "three": THREE, "words": np.array(["low", "mid", "high"])[THREE]}

SVM, TREE = LinearSVC(random_state=0), DecisionTreeClassifier(max_depth=3, random_state=0)
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


def still(model, X, y, **parameters):
    """Return the estimator at the fitted model: nothing has moved."""
    kind = OrtGradientRegressor if y.dtype.kind == "f" else OrtGradientClassifier
    return kind(model, learning_rate_init=0.0, max_iter=1, shuffle=False, batch_size=len(y), **parameters).fit(X, y)


def given(model, y):
    return copy.deepcopy(model).fit(X[OLD], y[OLD])


@functools.cache
def fitted_in_double(name, target):
    return copy.deepcopy(MODELS[name]).fit(X[OLD].astype(np.float64), TARGETS[target][OLD])


def numbers(model, X):
    return getattr(model, "predict_proba" if hasattr(model, "predict_proba") else "decision_function")(X)


@pytest.mark.thinned(by=lambda name, target: {name, target})
@pytest.mark.parametrize("target", ["two", "words"])
@pytest.mark.parametrize("name", MODELS)
def test_gives_what_scikit_learn_gives(name, target):
    """On the rows that it was fitted on, too: those lie on neighbours, and on thresholds."""
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


@pytest.mark.proof
@pytest.mark.thinned(by=lambda name, target, engine: {name, target, engine})
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("target", ["two", "three"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradient_is_that_of_scikit_learn(name, target, engine):
    """On rows whose probabilities float32 can tell from one; what is fitted to float32 would compare in it.

    None of them was fitted on: those lie on thresholds, and on neighbours.
    """
    pattern, count = DIFFERENTIATED[name]
    y = TARGETS[target]
    model = fitted_in_double(name, target)
    unsure = 80 + np.flatnonzero(model.predict_proba(X[NEW]).min(axis=1) > 0.02)
    assert len(unsure) >= 20
    rows, y = X[unsure], y[unsure]
    tuned = still(model, rows, y, trainable=[pattern], engine=engine)
    run, rng = tuned._run, np.random.default_rng(0)
    run.step.gradients(float(len(y)))
    assert len(run.parameters.names) >= count
    origins = {origin.name: origin for origin in run.fitted.origins}
    for parameter in run.parameters.names:
        span, origin = run.parameters.span(parameter), origins[parameter]
        w = run.parameters.vector[span].astype(np.float64)
        direction = rng.normal(size=w.shape) * (w * (1 - w) if origin.form == "probability" else np.abs(w) + 1e-3)
        sides = [loss_of(changed(model, origin, w + step * direction), rows, y) for step in (1e-5, -1e-5)]
        parts = run.parameters.gradient[span].astype(np.float64) * direction
        assert abs((sides[0] - sides[1]) / 2e-5 - parts.sum()) < 1e-3 * np.abs(parts).sum() + 2e-5, parameter


def changed(model, origin, w):
    """Return the model with an attribute set to other numbers, in float64."""
    model = copy.deepcopy(model)
    holder = follow(model, (*origin.owner, *origin.attribute[:-1]))
    name = origin.attribute[-1]
    old = getattr(holder, name)
    w = FORMS[origin.form][1](w)
    setattr(holder, name, w.reshape(np.shape(old)) if np.ndim(old) else float(w[0]))
    if name == "y_thresholds_":
        holder._build_f(holder.X_thresholds_, holder.y_thresholds_)
    return model


def loss_of(model, rows, y):
    return log_loss(y, model.predict_proba(rows.astype(np.float64)))


class TestNeighbours:
    @pytest.mark.parametrize(
        "model",
        [
            KNeighborsRegressor(weights="distance"),
            KNeighborsRegressor(weights="distance", p=1.5),
            RadiusNeighborsRegressor(5.0, weights="distance"),
        ],
    )
    def test_regressors(self, model):
        model = model.fit(X[OLD], NUMBER[OLD])
        tuned = still(model, X[NEW], NUMBER[NEW])
        assert {name.partition(".")[2] for name in tuned.weights_} == {"fit_X", "y"}
        assert_allclose(tuned.predict(X), model.predict(X), rtol=1e-4, atol=1e-4)

    def test_rows_without_neighbours_get_the_label_for_them(self):
        model = RadiusNeighborsClassifier(0.7, weights="distance", outlier_label=2).fit(X[OLD], THREE[OLD])
        expected = model.predict_proba(X)
        assert (expected[:, 2] == 1).sum() > 20
        assert_allclose(still(model, X[NEW], THREE[NEW]).predict_proba(X), expected, atol=1e-4)

    @pytest.mark.parametrize("y", [TWO, np.stack([TWO, THREE], axis=1)], ids=["one output", "two outputs"])
    @pytest.mark.parametrize("label", [-1, 2])
    def test_a_label_for_rows_without_neighbours_that_is_no_class(self, y, label):
        model = RadiusNeighborsClassifier(0.7, weights="distance", outlier_label=label).fit(X[OLD], y[OLD])
        with pytest.raises(ModelError, match=rf"the label {label}, which is no class.*outlier_label='most_frequent'"):
            still(model, X[NEW], y[NEW])

    @pytest.mark.parametrize("algorithm", ["brute", "kd_tree", "ball_tree"])
    def test_trees_are_built_of_the_trained_points(self, algorithm):
        model = KNeighborsClassifier(weights="distance", algorithm=algorithm).fit(X[OLD], THREE[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.05, random_state=0)
        tuned.fit(X[NEW], THREE[NEW])
        back = tuned.to_sklearn()
        assert np.abs(back._fit_X - model._fit_X).max() > 0.01
        assert_allclose(back.predict_proba(X), tuned.predict_proba(X), atol=1e-4)

    @pytest.mark.parametrize(
        "model",
        [
            KNeighborsClassifier(weights="distance"),
            KNeighborsClassifier(weights="distance", algorithm="brute"),
            RadiusNeighborsClassifier(4000.0, weights="distance"),
            GaussianProcessClassifier(kernels.RBF(2000.0), optimizer=None),
        ],
    )
    def test_points_of_integers(self, model):
        """Trained, they are integers no more."""
        rows = np.round(1000 * X).astype(np.int64)
        model = copy.deepcopy(model).fit(rows[OLD], TWO[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.05, random_state=0)
        tuned.fit(rows[NEW], TWO[NEW])
        back = tuned.to_sklearn()
        assert_allclose(back.predict_proba(rows[NEW]), tuned.predict_proba(rows[NEW]), atol=1e-4)
        assert np.abs(back.predict_proba(rows[NEW]) - model.predict_proba(rows[NEW])).max() > 1e-3

    def test_targets_of_integers(self):
        y = np.round(NUMBER).astype(int)
        model = KNeighborsRegressor(weights="distance").fit(X[OLD], y[OLD])
        tuned = OrtGradientRegressor(model, max_iter=5, learning_rate_init=0.05, random_state=0).fit(X[NEW], y[NEW])
        back = tuned.to_sklearn()
        assert 0.01 < np.abs(back._y - model._y).max() < 0.5
        assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore:Mind that for 0 < p < 1")
    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("kind", [KNeighborsRegressor, RadiusNeighborsRegressor])
    def test_powers_below_one(self, kind, engine):
        """Rows that lie on a point, and those that share one number with it, where the slope is infinite."""
        settings = {"n_neighbors": 5} if kind is KNeighborsRegressor else {"radius": 1e3}
        model = kind(weights="distance", p=0.5, algorithm="brute", **settings)
        model.fit(X[OLD].astype(np.float64), NUMBER[OLD])
        rows = X[NEW].copy()
        rows[:3], rows[3:6, 0] = X[:3], X[3:6, 0]
        tuned = still(model, rows, NUMBER[NEW], engine=engine)
        assert_allclose(tuned.predict(rows), model.predict(rows), rtol=1e-4, atol=1e-4)
        run = tuned._run
        run.step.gradients(float(len(rows)))
        name = f"{kind.__name__.lower()}.fit_X"
        origin = next(origin for origin in run.fitted.origins if origin.name == name)
        gradient = run.parameters.gradient[run.parameters.span(name)].reshape(-1, X.shape[1])
        assert np.isfinite(run.parameters.gradient).all()
        points, direction = model._fit_X, np.random.default_rng(0).normal(size=model._fit_X.shape)
        direction[:6] = 0  # a kink

        def loss(step):
            moved = changed(model, origin, points + step * direction)
            return ((moved.predict(rows.astype(np.float64)) - NUMBER[NEW]) ** 2).mean()

        expected = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert abs((gradient * direction).sum() - expected) < 1e-3 * np.abs(gradient * direction).sum()

    @pytest.mark.parametrize("settings", [{"metric": "cosine"}, {"metric": "chebyshev"}])
    def test_other_metrics(self, settings):
        model = KNeighborsClassifier(weights="distance", algorithm="brute", **settings).fit(X[OLD], TWO[OLD])
        with pytest.raises(ModelError, match=r"metric=.*euclidean, manhattan, minkowski"):
            still(model, X[NEW], TWO[NEW])


class TestCalibration:
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


class TestEnsembles:
    def test_weights_of_a_boost_that_stopped_early(self):
        y = (X[:, 0] > 0).astype(int)
        model = AdaBoostClassifier(SVC(kernel="linear"), n_estimators=6, random_state=0).fit(X[OLD], y[OLD])
        model.estimators_ = model.estimators_[:3]
        model.estimator_weights_[3:] = 0
        assert_allclose(still(model, X[NEW], y[NEW]).predict_proba(X), model.predict_proba(X), atol=1e-6)

    def test_a_boost_of_one_has_no_gradient(self):
        model = AdaBoostClassifier(n_estimators=1).fit(X[OLD], TWO[OLD])
        with pytest.raises(ModelError, match="has no parameter with a gradient"):
            still(model, X[NEW], TWO[NEW])

    def test_weights_of_regressors_may_be_a_list(self):
        parts = [("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=3, random_state=0)), ("c", LinearRegression())]
        model = VotingRegressor(parts, weights=[1, 2, 0.5]).fit(X[OLD], NUMBER[OLD])
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("model", "text"),
        [
            (KNeighborsClassifier(), "count neighbors.*weights='distance'"),
            (RadiusNeighborsClassifier(5.0), "count neighbors.*weights='distance'"),
            (make_pipeline(StandardScaler(), KNeighborsClassifier()), "count neighbors.*weights='distance'"),
            (BaggingClassifier(SVM, 2), "count the votes.*SVC.probability=True"),
            (VotingClassifier([("a", TREE), ("b", GaussianNB())]), "labels only.*voting='soft'"),
            (OneVsRestClassifier(Ridge()), "labels only"),
            (OneVsRestClassifier(SVC(probability=True)), "decision functions of its SVC.*one of both"),
            (OutputCodeClassifier(LogisticRegression()), "labels only"),
            (GaussianProcessClassifier(multi_class="one_vs_one"), "multi_class='one_vs_rest'"),
        ],
    )
    def test_says_why_not(self, model, text):
        with pytest.raises(ModelError, match=text):
            still(given(model, THREE), X[NEW], THREE[NEW])


class TestProcesses:
    def test_mean_of_the_sigmoid_keeps_its_digits(self):
        """The sum as it is written has lost all but four of them."""
        mean, variance = (a.ravel().astype(np.float32) for a in np.meshgrid(np.linspace(-8, 8, 81), [1e-3, 0.1, 1, 20]))
        inputs = [ir.val(name, ir.DataType.FLOAT, ("N", 1)) for name in ("mean", "variance")]
        graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 18}, name="squashed")
        graph.outputs.append(_squashed(GraphBuilder(graph, constant_nodes=True), *inputs))
        graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        proto = to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"mean": mean[:, np.newaxis], "variance": variance[:, np.newaxis]})
        m, v = mean.astype(np.float64), variance.astype(np.float64)
        whole = (COEFS * erf(LAMBDAS * m / np.sqrt(1 + 2 * v * LAMBDAS**2))).sum(axis=0)
        assert_allclose(found.ravel(), (whole + COEFS.sum()) / 2, rtol=0, atol=3e-6)

    def test_other_kernels(self):
        model = GaussianProcessClassifier(kernels.PairwiseKernel(metric="laplacian"), optimizer=None)
        with pytest.raises(ModelError, match=r"PairwiseKernel.* has no form"):
            still(given(model, TWO), X[NEW], TWO[NEW])


class TestSelfTraining:
    def test_the_classifier_in_it_is_trained(self):
        y = np.where(np.arange(80) % 3, TWO[OLD], -1)
        model = SelfTrainingClassifier(LogisticRegression()).fit(X[OLD], y)
        tuned = OrtGradientClassifier(model, max_iter=3, random_state=0).fit(X[NEW], TWO[NEW])
        back = tuned.to_sklearn()
        assert type(back) is SelfTrainingClassifier
        assert np.abs(back.estimator_.coef_ - model.estimator_.coef_).max() > 1e-4
        assert_allclose(back.predict_proba(X), tuned.predict_proba(X), atol=1e-5)


class TestDescent:
    @pytest.mark.parametrize(("dtype", "end"), [(np.float32, -88), (np.float64, -709)])
    def test_scores_beyond_the_sigmoid(self, dtype, end):
        """Rows whose sigmoids are all zero are even for scikit-learn, and NaN where zero is divided by zero."""
        data = X.astype(dtype)
        model = SGDClassifier(loss="log_loss", random_state=0).fit(data[OLD], THREE[OLD])
        model.intercept_ += end - np.median(model.decision_function(data).max(axis=1))
        with np.errstate(all="ignore"):
            expected = model.predict_proba(data)
        even = np.isclose(expected, 1 / 3).all(axis=1).sum()
        if not even and np.isnan(expected).any():
            pytest.skip("earlier versions of scikit-learn give NaN for such rows")
        assert 50 < even < 190
        tuned = still(model, data[NEW], THREE[NEW])
        clear = np.abs(model.decision_function(data) - end).min(axis=1) > 2
        assert_allclose(tuned.predict_proba(data)[clear], expected[clear], atol=1e-4)
        assert np.isfinite(tuned._run.parameters.gradient).all()

    @pytest.mark.parametrize("engine", available_engines())
    def test_learns_from_scores_of_zero(self, engine):
        """As a model whose start is all zeros has them: there, too, the slope of the logarithm is a half."""
        model = SGDClassifier(loss="log_loss", random_state=0).fit(X[OLD], THREE[OLD])
        model.coef_[:], model.intercept_[:] = 0, 0
        tuned = still(model, X[NEW], THREE[NEW], engine=engine)
        run = tuned._run
        loss = run.step.gradients(float(len(X[NEW])))
        assert_allclose(loss, np.log(3), rtol=1e-5)
        # Of equal probabilities, d loss / d score is (1/3 - [its class]) / 2.
        expected = (1 / 3 - np.eye(3)[THREE[NEW]]).mean(axis=0) / 2
        span = run.parameters.span("sgdclassifier.intercept")
        assert_allclose(run.parameters.gradient[span], expected, atol=1e-5)
        assert np.abs(expected).max() > 0.01


class TestTrees:
    @pytest.mark.parametrize(
        "model",
        [
            DecisionTreeClassifier(max_depth=4, random_state=0),
            ExtraTreeClassifier(max_depth=4, random_state=0),
            RandomForestClassifier(4, max_depth=4, random_state=0),
            ExtraTreesClassifier(4, max_depth=4, random_state=0),
            BaggingClassifier(TREE, 3, random_state=0),
        ],
    )
    @pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
    def test_missing_values_go_where_the_tree_has_learned(self, model, y):
        model = copy.deepcopy(model).fit(GAPS[OLD], y[OLD])
        tuned = still(model, GAPS[NEW], y[NEW])
        assert_allclose(tuned.predict_proba(GAPS), model.predict_proba(GAPS), atol=1e-5)

    @pytest.mark.parametrize(
        "model", [DecisionTreeRegressor(max_depth=4, random_state=0), RandomForestRegressor(4, random_state=0)]
    )
    def test_missing_values_of_regressors(self, model):
        model = copy.deepcopy(model).fit(GAPS[OLD], NUMBER[OLD])
        assert_allclose(still(model, GAPS[NEW], NUMBER[NEW]).predict(GAPS), model.predict(GAPS), rtol=1e-5, atol=1e-5)

    def test_boosting_from_zero(self):
        model = GradientBoostingClassifier(n_estimators=3, init="zero", random_state=0).fit(X[OLD], THREE[OLD])
        assert_allclose(still(model, X[NEW], THREE[NEW]).predict_proba(X), model.predict_proba(X), atol=1e-5)

    @pytest.mark.parametrize("kind", [HistGradientBoostingClassifier, HistGradientBoostingRegressor])
    def test_splits_by_categories(self, kind):
        codes = np.random.default_rng(0).integers(0, 6, (240, 1)).astype(np.float32)
        y = np.isin(codes.ravel(), [1, 4]).astype(int)
        y = y if kind is HistGradientBoostingClassifier else y.astype(float)
        model = kind(max_iter=2, categorical_features=[0]).fit(codes, y)
        with pytest.raises(ModelError, match="splits by categories"):
            still(model, codes, y)

    def test_leaves_that_are_all_zero_are_written(self):
        model = HistGradientBoostingRegressor(max_iter=3).fit(X[:30], np.zeros(30))
        tuned = OrtGradientRegressor(model, max_iter=5, learning_rate_init=0.05, random_state=0).fit(X, NUMBER)
        assert np.abs(tuned.weights_["histgradientboostingregressor.leaf_values"]).max() > 0
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-5)
