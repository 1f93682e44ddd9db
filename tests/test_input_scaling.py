"""Rows of large numbers in front of the networks of regressors, which divide them by a power of two."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.linear_model import Ridge

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._estimators.input_scaling import with_divided_rows
from onnxtrain_sklearn._graph.protobuf import load
from onnxtrain_sklearn.losses import Huber
from onnxtrain_sklearn.models import Embedded

pytestmark = pytest.mark.filterwarnings("ignore:Training has not converged")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
X /= np.sqrt(np.mean(X**2)) * 0.9  # the root mean square is between 1 and 2
Y = 7e5 + 1e4 * (X[:, 0] - np.abs(X[:, 1]) + 0.1 * RNG.normal(size=300))
"""Prices: far from 0, and much larger than the columns."""


def divisor(estimator: OrtGradientRegressor | OrtGradientClassifier) -> float:
    """Return what the first product of the exported graph divides rows by."""
    node = next(node for node in estimator.to_onnx().graph.node if node.op_type == "Gemm")
    return next((1 / a.f for a in node.attribute if a.name == "alpha"), 1.0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"model": MLP((16,))},
        {"model": MLP((16, 8), activation="tanh", residual=True, dropout=0.1)},
        {"model": MLP((16,)), "alpha": 0.1, "optimizer": SGD(momentum=0.9), "learning_rate_init": 0.01},
        {"model": MLP((16,)), "loss": Huber(0.5), "early_stopping": True},
        {"model": Linear()},
        {"model": Linear(), "optimizer": "lbfgs"},
    ],
    ids=str,
)
def test_columns_a_thousand_times_larger_give_the_same_regressor(parameters):
    small, large = (
        OrtGradientRegressor(**parameters, max_iter=30, tol=1e-9, random_state=0).fit(factor * X, Y)
        for factor in (1.0, 1024.0)
    )
    assert (divisor(small), divisor(large)) == (1.0, 1024.0)
    np.testing.assert_allclose(large.predict(1024 * X), small.predict(X), rtol=1e-5)  # Y is 7e5 ± 1e4
    np.testing.assert_allclose(large.loss_curve_[:4], small.loss_curve_[:4], rtol=1e-5)


def test_the_scale_of_columns_is_not_a_matter_of_their_weights_alone():
    """Without the division the default regressor is 10 to 1,000 times worse than the mean on such columns."""
    columns = X * [1, 10, 3000, 1e4] + [0, 40, 2000, 5e4]
    net = OrtGradientRegressor(max_iter=50, random_state=0).fit(columns, Y)
    assert net.score(columns, Y) > -1.0
    assert divisor(net) == 2.0 ** np.floor(np.log2(np.sqrt(np.mean(columns**2))))


def test_sparse_rows_are_divided_like_dense_ones():
    wide = sp.random(200, 400, density=0.05, random_state=0, format="csr") * 4096.0
    y = np.asarray(wide.sum(axis=1)).ravel()
    sparse, dense = (
        OrtGradientRegressor(MLP((8,)), max_iter=5, tol=1e-9, random_state=0).fit(rows, y)
        for rows in (wide, wide.toarray())
    )
    assert divisor(sparse) == divisor(dense) > 100
    np.testing.assert_allclose(sparse.predict(wide), dense.predict(wide), rtol=1e-4)


def test_coefficients_are_those_of_the_columns():
    net = OrtGradientRegressor(Linear(), max_iter=20, tol=1e-9, random_state=0).fit(4096 * X, Y)
    expected = 4096 * X.astype(np.float64) @ np.ravel(net.coef_) + net.intercept_
    np.testing.assert_allclose(net.predict(4096 * X), expected, rtol=1e-6)


def test_a_penalty_on_a_linear_model_keeps_its_unit():
    columns = 1024 * X.astype(np.float64)
    net = OrtGradientRegressor(Linear(), alpha=2e8, optimizer="lbfgs", tol=1e-9, max_iter=500, random_state=0)
    ridge = Ridge(alpha=1e8).fit(columns, Y)
    assert divisor(net.fit(columns, Y)) == 1.0
    np.testing.assert_allclose(np.ravel(net.coef_), ridge.coef_, rtol=1e-3, atol=1e-3)


def test_weights_of_rows_decide_the_size_of_the_numbers():
    rows, y = np.vstack([X, 1e6 * X]), np.append(Y, Y)
    weights = np.repeat([1.0, 0.0], len(X))
    assert divisor(OrtGradientRegressor(max_iter=2, random_state=0).fit(rows, y, weights)) == 1.0


class FromData(Linear):
    """A builder whose weights may depend on the rows as they are."""

    def build(self, n_features, n_outputs, random_state=None, *, X):
        assert X.max() > 1000
        return super().build(n_features, n_outputs, random_state)


@pytest.mark.parametrize(
    "parameters",
    [{"target_scaling": None}, {"model": Embedded("periodic", MLP((4,)))}, {"model": FromData()}],
    ids=["targets", "Embedded", "FromData"],
)
def test_rows_stay_as_they_are_where_targets_or_rows_are_not_scaled(parameters):
    assert divisor(OrtGradientRegressor(**parameters, max_iter=1, tol=1e9, random_state=0).fit(1024 * X, Y)) == 1.0


def test_rows_of_classifiers_stay_as_they_are():
    rows, y = load_iris(return_X_y=True)
    assert divisor(OrtGradientClassifier(max_iter=1, random_state=0).fit(1000 * rows, y)) == 1.0


def test_later_calls_and_copies_divide_as_the_first_call_does():
    net = OrtGradientRegressor(MLP((8,)), random_state=0).partial_fit(1024 * X, Y)
    net.partial_fit(X, Y)
    assert divisor(net) == 1024.0
    copy = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(copy.predict(1024 * X), net.predict(1024 * X))
    np.testing.assert_array_equal(copy.partial_fit(X, Y).predict(X), net.partial_fit(X, Y).predict(X))


def test_a_graph_that_reads_rows_elsewhere_too_stays_as_it_is():
    added = MLP((4,), residual=True).build(n_features=4, n_outputs=1, random_state=0)  # rows + hidden units
    before = added.SerializeToString()
    model = with_divided_rows(load(added), 8.0)
    assert not any("alpha" in node.attributes for node in model.graph)
    assert added.SerializeToString() == before
