"""Models that compare rows with points start from scikit-learn's predictions, and are written back."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine
from sklearn.ensemble import VotingClassifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

KINDS = {"numbers": lambda y: y, "texts": lambda y: np.array(["a", "b", "c"])[y], "two": lambda y: y > 0}


def as_it_is(net, X, y):
    return net.set_params(learning_rate_init=1e-12, max_iter=1, batch_size=len(X)).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "last",
    [
        NearestCentroid(),
        NearestCentroid(shrink_threshold=0.2, priors="empirical"),
        LabelPropagation(gamma=0.7),
        LabelSpreading(gamma=0.5),
        VotingClassifier([("a", NearestCentroid()), ("b", LogisticRegression())], voting="soft"),
    ],
    ids=repr,
)
def test_classifiers(last, kind):
    X, y = load_wine(return_X_y=True)
    y = KINDS[kind](y)
    model = make_pipeline(StandardScaler(), last).fit(X, y)
    net = as_it_is(OrtGradientClassifier(model), X, y)
    assert (net.predict(X) == model.predict(X)).all()
    np.testing.assert_allclose(net.predict_proba(X), model.predict_proba(X), atol=1e-5)
    net.set_params(learning_rate_init=0.01, max_iter=3).fit(X, y)
    given = net.to_sklearn()
    assert (net.predict(X) == given.predict(X)).mean() > 0.99
    np.testing.assert_allclose(net.predict_proba(X), given.predict_proba(X), atol=1e-5)
    assert np.abs(given.predict_proba(X) - model.predict_proba(X)).max() > 1e-4


@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly"])
@pytest.mark.parametrize("targets", [1, 2])
def test_kernel_ridge(kernel, targets):
    X, _ = load_iris(return_X_y=True)
    y = X[:, 2] if targets == 1 else X[:, 2:]
    model = make_pipeline(StandardScaler(), KernelRidge(kernel=kernel, alpha=10)).fit(X[:, :2], y)
    net = as_it_is(OrtGradientRegressor(model), X[:, :2], y)
    np.testing.assert_allclose(net.predict(X[:, :2]), model.predict(X[:, :2]), atol=1e-4)
    net.set_params(learning_rate_init=1e-4, max_iter=3).fit(X[:, :2], y)
    np.testing.assert_allclose(net.predict(X[:, :2]), net.to_sklearn().predict(X[:, :2]), atol=1e-4)
    assert np.abs(net.predict(X[:, :2]) - model.predict(X[:, :2])).max() > 1e-4


@pytest.mark.parametrize("last", [KernelRidge(kernel="laplacian"), LabelSpreading(kernel="knn")], ids=repr)
def test_other_kernels_are_refused(last):
    X, y = load_iris(return_X_y=True)
    net = OrtGradientRegressor if isinstance(last, KernelRidge) else OrtGradientClassifier
    with pytest.raises(ModelError, match=r"has no ONNX form: other settings of it have one"):
        net(make_pipeline(StandardScaler(), last).fit(X, y)).fit(X, y)
