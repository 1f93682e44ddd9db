"""Rows of large numbers in front of the networks that are built for them, which scale each column or channel."""

import pickle

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_sample_images, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, SGD, ConvNet, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import Huber
from onnxtrain_sklearn.models import Embedded

pytestmark = pytest.mark.filterwarnings("ignore:Training has not converged")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
X /= np.sqrt(np.mean(X**2)) * 0.9  # the root mean squares of the columns are between 1 and 2
Y = 7e5 + 1e4 * (X[:, 0] - np.abs(X[:, 1]) + 0.1 * RNG.normal(size=300))
"""Prices: far from 0, and much larger than the columns."""


def numbers(estimator: OrtGradientRegressor | OrtGradientClassifier) -> dict[str, np.ndarray]:
    """Return what the nodes that read the rows in the exported graph compute with, by operator."""
    graph = estimator.to_onnx().graph
    values = {n.output[0]: onnx.numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"}
    found, name = {}, graph.input[0].name
    for node in graph.node:
        if node.op_type in ("Sub", "Mul") and node.input[0] == name:
            found[node.op_type], name = values[node.input[1]][0], node.output[0]
    return found


def divisor(estimator: OrtGradientRegressor | OrtGradientClassifier) -> np.ndarray:
    """Return what the exported graph divides each column by."""
    return 1 / numbers(estimator).get("Mul", np.ones(1))


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
@pytest.mark.parametrize("units", [np.full(4, 1024.0), 2.0 ** np.array([0, 4, 10, 20])], ids=["alike", "apart"])
def test_columns_in_larger_units_give_the_same_regressor(parameters, units):
    small, large = (
        OrtGradientRegressor(**parameters, max_iter=30, tol=1e-9, random_state=0).fit(factor * X, Y)
        for factor in (1.0, units)
    )
    assert numbers(small) == {}
    np.testing.assert_array_equal(divisor(large), units)
    np.testing.assert_allclose(large.predict(units * X), small.predict(X), rtol=1e-5)  # Y is 7e5 ± 1e4
    np.testing.assert_allclose(large.loss_curve_[:4], small.loss_curve_[:4], rtol=1e-5)


def test_columns_in_larger_units_give_the_same_classifier():
    y = np.where(np.mean(Y) < Y, "dear", "cheap")
    small, large = (
        OrtGradientClassifier(MLP((16,)), max_iter=30, tol=1e-9, random_state=0).fit(factor * X, y)
        for factor in (1.0, 1024.0)
    )
    np.testing.assert_allclose(large.predict_proba(1024 * X), small.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_raw_columns_are_learned_almost_as_well_as_standardized_ones(load):
    """As they are, columns of thousands beside columns of tenths cost 20 points of accuracy on wine."""
    rows, y = load(return_X_y=True)
    raw, standardized = (
        cross_val_score(OrtGradientClassifier(max_iter=60, random_state=0), part, y, cv=3).mean()
        for part in (rows, scale(rows))
    )
    assert raw > standardized - 0.04 > 0.9


def test_centers_are_whole_multiples_of_divisors_near_the_means():
    columns = X * [1, 10, 3000, 0.4] + [0, 40, 2000, 2006]
    net = OrtGradientRegressor(max_iter=50, random_state=0).fit(columns, Y)
    center, parts = numbers(net)["Sub"], divisor(net)
    np.testing.assert_array_equal(parts, [1.0, 8.0, 2048.0, 1.0])
    np.testing.assert_array_equal(center % parts, 0)
    np.testing.assert_array_less(np.abs(columns.mean(axis=0) - center), 0.51 * parts)
    assert net.score(columns, Y) > 0.5


def test_constant_columns_are_divided_by_their_size():
    columns = np.column_stack([X, np.full(300, 5000.0)])
    net = OrtGradientRegressor(max_iter=2, random_state=0).fit(columns, Y)
    np.testing.assert_array_equal(divisor(net), [1, 1, 1, 1, 4096])
    one = OrtGradientRegressor(random_state=0).partial_fit(columns[:1], Y[:1])
    assert divisor(one)[4] == 4096


def test_the_spread_of_columns_far_from_zero_is_exact():
    columns = X + np.array([0, 1e7, 0, 0])
    net = OrtGradientRegressor(max_iter=2, random_state=0).fit(columns, Y)
    assert divisor(net).tolist() == [1.0]
    np.testing.assert_array_equal(numbers(net)["Sub"], [0, 1e7, 0, 0])


@pytest.mark.parametrize("estimator", [OrtGradientRegressor, OrtGradientClassifier])
def test_sparse_rows_are_divided_without_becoming_dense(estimator, monkeypatch):
    wide = sp.random(200, 400, density=0.05, random_state=0, format="csr")
    wide = wide.multiply(2.0 ** (np.arange(400) % 16)).tocsr()
    y = np.asarray(wide.sum(axis=1)).ravel() if estimator is OrtGradientRegressor else np.arange(200) % 3
    net = estimator(MLP((8,)), max_iter=5, tol=1e-9, random_state=0)
    rows = wide.toarray()
    monkeypatch.setattr(sp.csr_array, "toarray", None)
    monkeypatch.setattr(sp.csr_matrix, "toarray", None)
    sparse = net.fit(sp.csr_array(wide), y)
    assert len(set(divisor(sparse))) > 8
    assert "Sub" not in numbers(sparse)
    found = sparse.predict(wide)
    monkeypatch.undo()
    if estimator is OrtGradientRegressor:  # the same divisors without centers
        np.testing.assert_allclose(found, sparse.predict(rows), rtol=1e-4, atol=1.0)  # y is up to 1e5
    else:
        np.testing.assert_array_equal(found, sparse.predict(rows))


def test_coefficients_are_those_of_the_columns():
    columns = X * [1, 10, 3000, 0.4] + [0, 40, 2000, 2006]
    net = OrtGradientRegressor(Linear(), max_iter=20, tol=1e-9, random_state=0).fit(columns, Y)
    expected = columns @ np.ravel(net.coef_).astype(np.float64) + net.intercept_
    np.testing.assert_allclose(net.predict(columns), expected, rtol=1e-6)
    two = OrtGradientClassifier(Linear(), max_iter=20, random_state=0).fit(columns, np.mean(Y) < Y)
    expected = columns @ two.coef_[0].astype(np.float64) + two.intercept_
    np.testing.assert_allclose(two.decision_function(columns), expected, atol=5e-3)


def test_a_penalty_on_a_linear_model_keeps_its_unit():
    columns = 32 * X.astype(np.float64)  # float32 resolves the minimum of such a penalty
    net = OrtGradientRegressor(Linear(), alpha=2e5, optimizer="lbfgs", tol=1e-9, max_iter=500, random_state=0)
    ridge = Ridge(alpha=1e5).fit(columns, Y)
    assert numbers(net.fit(columns, Y)) == {}
    np.testing.assert_allclose(np.ravel(net.coef_), ridge.coef_, rtol=1e-2)  # where float32 ends the search
    rows, y = load_iris(return_X_y=True)
    classifier = OrtGradientClassifier(Linear(), alpha=1.0, optimizer="lbfgs", tol=1e-9, max_iter=500).fit(rows, y)
    assert numbers(classifier) == {}
    expected = LogisticRegression(max_iter=2000).fit(rows, y).predict_proba(rows)
    np.testing.assert_allclose(classifier.predict_proba(rows), expected, atol=5e-3)


def test_a_model_without_intercept_is_zero_for_rows_of_zeros():
    net = OrtGradientRegressor(Linear(fit_intercept=False), max_iter=5, random_state=0).fit(X + 5000, Y)
    np.testing.assert_array_equal(divisor(net), np.full(4, 4096))
    assert net.predict(np.zeros((1, 4))) == 0.0


def test_weights_of_rows_decide_the_size_of_the_numbers():
    rows, y = np.vstack([X, 1e6 * X]), np.append(Y, Y)
    weights = np.repeat([1.0, 0.0], len(X))
    assert numbers(OrtGradientRegressor(max_iter=2, random_state=0).fit(rows, y, weights)) == {}


PHOTOS = np.stack(load_sample_images().images)
PATCHES = PHOTOS[:, :416, :640].reshape(2, 26, 16, 40, 16, 3).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 3, 16, 16)
"""Squares of two photos, in the bytes of their pixels."""


@pytest.mark.long
def test_images_of_bytes_are_scaled_by_channel():
    y = np.repeat(["temple", "flower"], len(PATCHES) // 2)
    net = OrtGradientClassifier(ConvNet(8), max_iter=8, random_state=0).fit(PATCHES[::2], y[::2])
    assert {name: array.shape for name, array in numbers(net).items()} == {"Sub": (3, 1, 1), "Mul": (3, 1, 1)}
    assert net.score(PATCHES[1::2], y[1::2]) > 0.9


@pytest.mark.long
def test_images_of_bytes_are_regressed_on():
    """The brightness of the square in the middle; as they are, bytes give a network that is far worse than the mean."""
    y = PATCHES[:, :, 6:10, 6:10].mean(axis=(1, 2, 3))
    rows = PATCHES.copy()
    rows[:, :, 4:12, 4:12] = 0
    net = OrtGradientRegressor(ConvNet(8), max_iter=15, random_state=0).fit(rows[::2], y[::2])
    assert net.score(rows[1::2], y[1::2]) > 0.7


def test_gray_images_and_signals_are_scaled_as_a_whole():
    images, y = load_digits(return_X_y=True)
    for rows in (images.reshape(-1, 8, 8) * 16, images * 16):
        net = OrtGradientClassifier(ConvNet(4), max_iter=1, random_state=0).fit(rows, y)
        assert (numbers(net)["Sub"].size, divisor(net).item()) == (1, 64.0)


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
def test_rows_are_unscaled_without_target_or_row_scaling(parameters):
    net = OrtGradientRegressor(**parameters, max_iter=1, tol=1e9, random_state=0).fit(1024 * X, Y)
    assert 1024 not in divisor(net)


def test_rows_of_given_graphs_are_unscaled():
    rows, y = load_iris(return_X_y=True)
    graph = MLP((4,)).build(n_features=4, n_outputs=3, random_state=0)
    assert numbers(OrtGradientClassifier(graph, max_iter=1, random_state=0).fit(1000 * rows, y)) == {}


def test_later_calls_and_copies_scale_as_the_first_call_does():
    net = OrtGradientRegressor(MLP((8,)), random_state=0).partial_fit(1024 * X, Y)
    net.partial_fit(X, Y)
    np.testing.assert_array_equal(divisor(net), np.full(4, 1024))
    copy = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(copy.predict(1024 * X), net.predict(1024 * X))
    np.testing.assert_array_equal(copy.partial_fit(X, Y).predict(X), net.partial_fit(X, Y).predict(X))
