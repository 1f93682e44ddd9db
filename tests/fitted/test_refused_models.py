"""Fitted models that are refused, each with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_diabetes, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    RandomTreesEmbedding,
)
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from sklearn.svm import OneClassSVM

from onnxtrain_sklearn import GraphModel, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.fitted_models import BINARY, NUMBER, X, classifier, logistic, regressor, ridge

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def one_boost():
    return AdaBoostClassifier(n_estimators=1, random_state=0).fit(X, BINARY)


def network():
    return classifier(Linear(), max_iter=2).fit(X, BINARY)


def scaled(estimator):
    return make_pipeline(StandardScaler(), estimator).fit(X, BINARY)


def rbm():
    return make_pipeline(BernoulliRBM(2, random_state=0), logistic()).fit(X, BINARY)


def embedded():
    return make_pipeline(RandomTreesEmbedding(2, random_state=0), Ridge()).fit(X, BINARY)


def bagged(estimator):
    return BaggingClassifier(estimator, n_estimators=2, random_state=0).fit(X, BINARY)


class TestRefused:
    @pytest.mark.parametrize(
        ("estimator", "y", "error", "text"),
        [
            (lambda: regressor(Ridge()), NUMBER, NotFittedError, "Ridge"),
            (lambda: regressor(make_pipeline(StandardScaler(), Ridge())), NUMBER, NotFittedError, "not fitted"),
            (lambda: regressor(logistic()), NUMBER, ModelError, "OrtGradientClassifier"),
            (lambda: classifier(ridge()), BINARY, ModelError, "OrtGradientRegressor"),
            (lambda: regressor(StandardScaler().fit(X)), NUMBER, ModelError, "nor classes, but transforms rows"),
            (lambda: regressor(KMeans(2, n_init=1).fit(X)), NUMBER, ModelError, "nor classes, but clusters"),
            (lambda: regressor(GaussianMixture(2).fit(X)), NUMBER, ModelError, "nor classes, but clusters"),
            (lambda: regressor(NearestNeighbors().fit(X)), NUMBER, ModelError, r"nor classes\. Give"),
            (lambda: regressor(OneClassSVM().fit(X)), NUMBER, ModelError, "take OrtGradientClassifier"),
            (lambda: regressor(GraphModel(ridge(), output="variable")), NUMBER, ValueError, "output='variable'"),
            (lambda: classifier(one_boost()), BINARY, ModelError, "has no parameter with a gradient"),
            (lambda: classifier(network()), BINARY, ModelError, "^OrtGradientClassifier is a network"),
            (lambda: classifier(scaled(network())), BINARY, ModelError, "in this Pipeline is a network"),
            (
                lambda: regressor(KernelRidge(kernel="laplacian").fit(X, NUMBER)),
                NUMBER,
                ModelError,
                "^KernelRidge.kernel='laplacian'. has no ONNX form: other settings",
            ),
            (lambda: classifier(rbm()), BINARY, ModelError, "^BernoulliRBM in this Pipeline .* give what follows it"),
            (
                lambda: regressor(embedded()),
                NUMBER,
                ModelError,
                "^RandomTreesEmbedding in this Pipeline .* Fit a",
            ),
            (lambda: classifier(bagged(network())), BINARY, ModelError, "in this BaggingClassifier is a network"),
        ],
    )
    def test_says_why_and_leaves_the_estimator(self, estimator, y, error, text):
        tuned = estimator()
        before = dict(vars(tuned))
        with pytest.raises(error, match=text):
            tuned.fit(X, y)
        assert vars(tuned) == before

    @pytest.mark.parametrize(
        ("step", "columns", "text"),
        [
            (LinearDiscriminantAnalysis(n_components=2), np.float64, "transforms rows, and has an ONNX form as a clas"),
            (TargetEncoder(), str, "encodes by several classes"),
            (RandomTreesEmbedding(2, sparse_output=False, random_state=0), np.float64, "has no ONNX form"),
        ],
    )
    def test_names_the_step_that_is_refused(self, step, columns, text):
        rows = (np.round(np.abs(X[:, :3])) + 0.5).astype(columns)
        rows = rows.astype(object) if columns is str else rows
        labels = np.arange(len(X)) % 3
        tuned = classifier(make_pipeline(step, LogisticRegression()).fit(rows, labels))
        name = type(step).__name__
        with pytest.raises(ModelError, match=f"^{name} in this Pipeline {text}.*in place of {name};"):
            tuned.fit(rows, labels)

    def test_later_errors_leave_it_fitted(self):
        tuned = regressor(ridge()).fit(X, NUMBER)
        before = dict(vars(tuned))
        tuned.model = Ridge()
        with pytest.raises(NotFittedError):
            tuned.fit(X, NUMBER)
        tuned.model = before["model"]
        assert vars(tuned) == before

    def test_to_sklearn_of_a_graph(self):
        tuned = regressor(Linear()).fit(X, NUMBER)
        with pytest.raises(ModelError, match="built or given"):
            tuned.to_sklearn()
        with pytest.raises(NotFittedError):
            regressor(ridge()).to_sklearn()


def test_gaussian_process_without_noise_names_a_remedy_that_works():
    rows, y = np.concatenate([X[:60], X[:60]]), np.concatenate([NUMBER[:60], NUMBER[59::-1]])
    with pytest.raises(ModelError, match=r"kernel=RBF\(\) \+ WhiteKernel\(\), and with normalize_y=True"):
        regressor(GaussianProcessRegressor(alpha=1e-10, optimizer=None).fit(rows, y), max_iter=1).fit(rows, y)
    mended = GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True).fit(rows, y)
    start = regressor(mended, max_iter=1, learning_rate_init=1e-12).fit(rows, y)
    np.testing.assert_allclose(start.predict(rows), mended.predict(rows), atol=1e-3 * np.abs(y).max())


@pytest.mark.parametrize("scaled", [True, False])
def test_advice_on_nystroem_does_not_name_a_scaler_that_is_there(scaled):
    X, y = load_diabetes(return_X_y=True)
    steps = [StandardScaler()] if scaled else []
    kernel = Nystroem(gamma=1e-3 if scaled else 1e-2, random_state=0)
    model = make_pipeline(*steps, kernel, LinearRegression()).fit(X[:120], y[:120])
    with pytest.raises(ModelError, match="float32") as caught:
        OrtGradientRegressor(model).fit(X[120:170], y[120:170])
    assert ("scaled columns" in str(caught.value)) != scaled
    assert ("larger gamma or fewer n_components" in str(caught.value)) == scaled


def test_new_classes_of_a_fitted_model_name_the_new_head():
    X, y = load_iris(return_X_y=True)
    old = LogisticRegression().fit(X[:100], y[:100])
    for more in ({}, {"classes": [0, 1, 2]}):
        with pytest.raises(ValueError, match=r"FineTuner\(new_head=True\)"):
            OrtGradientClassifier(old).fit(X, y, **more)
