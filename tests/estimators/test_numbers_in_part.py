"""Missing numbers (NaN) in rows of several targets: what the losses, the scale and the scores make of the others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Linear,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPRegressor,
    RowBlocks,
    TabMRegressor,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss
from tests.helpers import several_outputs as heads
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
N, K = 40, 3
X = RNG.normal(size=(N, 4)).astype(np.float32)
WHOLE = np.abs(X @ RNG.normal(size=(4, K)) + 0.3 * RNG.normal(size=(N, K))) + 0.2
THERE = RNG.random((N, K)) < 0.7
THERE[:, 0] |= ~THERE.any(axis=1)  # each row has a number
Y = np.where(THERE, WHOLE, np.nan)
WEIGHTS = RNG.uniform(0.5, 2.0, N)
RATE = 0.01

# dl/ds of the loss l of a score s and a target y, in float64
SLOPES = {
    "squared_error": lambda s, y: 2 * (s - y),
    "absolute_error": lambda s, y: np.sign(s - y),
    "huber": lambda s, y: np.clip(s - y, -1.0, 1.0),
    "poisson": lambda s, y: np.exp(s) - y,
    "gamma": lambda s, y: 1 - y * np.exp(-s),
}


def first_step(loss, engine, **parameters):
    net = OrtGradientRegressor(
        Linear(), loss=loss, optimizer=SGD(), learning_rate_init=RATE, batch_size=N, max_iter=1, alpha=0.0,
        target_scaling=None, shuffle=False, random_state=0, engine=engine, **parameters,
    )  # fmt: skip
    return net


def gradient(net, X, y, weights=None):
    """The gradient of the first step, by the difference of the weights before and after."""
    start = net.initialize(X, y, weights).weights_
    start = {name: array.astype(np.float64) for name, array in start.items()}
    end = net.partial_fit(X, y, weights).weights_
    return start, {name: (start[name] - end[name]) / RATE for name in start}


@pytest.mark.parametrize("engine", [*available_engines(), "compiled"])
@pytest.mark.parametrize("loss", SLOPES)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_gradient_is_that_of_the_mean_over_numbers_that_are_there(loss, engine, weights):
    start, found = gradient(first_step(loss, engine), X, Y, weights)
    own = (np.ones(N) if weights is None else weights)[:, None] * THERE
    matrix = next(array for array in start.values() if array.ndim == 2)
    bias = next(array for array in start.values() if array.ndim == 1)
    wide = X.astype(np.float64)
    slopes = own / own.sum() * SLOPES[loss](wide @ matrix + bias, np.where(THERE, Y, 1.0))
    for name, array in found.items():
        expected = wide.T @ slopes if array.ndim == 2 else slopes.sum(axis=0)
        assert_allclose(array, expected, rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("engine", available_engines())
def test_each_output_is_fitted_to_its_own_rows(engine):
    net = OrtGradientRegressor(Linear(), optimizer="lbfgs", alpha=0.0, max_iter=500, tol=1e-9, engine=engine)
    predicted = net.fit(X, Y).predict(X)
    for j in range(K):
        rows = THERE[:, j]
        expected = LinearRegression().fit(X[rows], Y[rows, j]).predict(X)
        assert_allclose(predicted[:, j], expected, rtol=2e-3, atol=2e-3)


def test_scale_is_that_of_the_numbers_that_are_there():
    net = OrtGradientRegressor(MLP((4,)), max_iter=1, random_state=0).fit(X, Y, WEIGHTS)
    scale = net._state.decoding.target_scale
    for j in range(K):
        rows = THERE[:, j]
        mean = np.average(Y[rows, j], weights=WEIGHTS[rows])
        assert scale.center[j] == pytest.approx(mean)
        assert scale.scale[j] == pytest.approx(np.average((Y[rows, j] - mean) ** 2, weights=WEIGHTS[rows]) ** 0.5)


def expected_score(net, X, y, weights=None):
    predicted, scores = net.predict(X), []
    for j in range(y.shape[1]):
        rows = ~np.isnan(y[:, j])
        scores.append(
            r2_score(y[rows, j], predicted[rows, j], sample_weight=None if weights is None else weights[rows])
        )
    return np.mean(scores)


@pytest.mark.parametrize("kind", [pd.DataFrame, np.asarray, lambda y: y.tolist(), lambda y: y.astype(object)])
def test_scores_and_early_stopping_leave_missing_numbers_out(kind):
    net = OrtGradientRegressor(
        MLP((6,)), early_stopping="best_epoch", learning_rate_init=0.05, max_iter=20, random_state=0
    )
    net.fit(X[:28], kind(Y[:28]), WEIGHTS[:28], X_val=X[28:], y_val=kind(Y[28:]), sample_weight_val=WEIGHTS[28:])
    expected = expected_score(net, X[28:], Y[28:], WEIGHTS[28:])
    assert net.best_validation_score_ == pytest.approx(expected, rel=1e-4)
    assert net.score(X[28:], kind(Y[28:]), WEIGHTS[28:]) == pytest.approx(expected, rel=1e-4)
    loss = OrtGradientRegressor(MLP((6,)), loss="huber", early_stopping=True, max_iter=3, random_state=0)
    assert np.isfinite([row["validation_loss"] for row in loss.fit(X, kind(Y)).history_]).all()


@pytest.mark.parametrize("constant", [0.1, 0.7, 1e6 + 0.1])
def test_constant_output_is_predicted_as_its_number(constant):
    y = Y.copy()
    y[THERE[:, 1], 1] = constant
    net = OrtGradientRegressor(MLP((4,)), max_iter=2, random_state=0).fit(X, y)
    assert_array_equal(net.predict(X)[:, 1], np.full(N, constant, np.float32))


@pytest.mark.long
@pytest.mark.parametrize("recipe", [RealMLPRegressor("td-s", n_ensembles=8), TabMRegressor()])
def test_rows_held_out_may_lack_an_output(recipe):
    y = WHOLE.copy()
    y[2:, 1] = np.nan
    fitted = recipe.set_params(max_iter=2, batch_size=16, random_state=0).fit(X, y)
    assert np.isfinite(fitted.validation_scores_[0]).all()
    val = WHOLE[20:].copy()
    val[:, 2] = np.nan
    net = OrtGradientRegressor(MLP((4,)), loss="huber", early_stopping="best_epoch", max_iter=2, random_state=0)
    net.fit(X[:20], WHOLE[:20], X_val=X[20:], y_val=val)
    assert net.best_validation_score_ == pytest.approx(expected_score(net, X[20:], val[:, :2]), rel=1e-4)


@pytest.mark.parametrize("parameters", [{}, {"loss": "huber"}, {"target_scaling": None}])
def test_rows_to_train_on_need_each_output(parameters):
    held = np.flatnonzero(THERE[:, 1])
    net = OrtGradientRegressor(MLP((4,)), early_stopping=True, validation_split=held, **parameters)
    with pytest.raises(ValueError, match="column 1 of y has no number in the rows to train on"):
        net.fit(X, Y)
    assert not hasattr(net, "n_iter_")


def test_rows_without_any_number_are_left_out_with_a_warning():
    y = Y.copy()
    y[[3, 8]] = np.nan
    rest = np.setdiff1d(np.arange(N), [3, 8])
    settings = {"alpha": 0.0, "optimizer": "lbfgs", "max_iter": 30, "random_state": 0}
    with pytest.warns(UserWarning, match="2 of 40 rows of y have no number, and are left out"):
        found = OrtGradientRegressor(Linear(), **settings).fit(X, y)
    expected = OrtGradientRegressor(Linear(), **settings).fit(X[rest], y[rest])
    assert_allclose(found.predict(X), expected.predict(X), rtol=1e-4, atol=1e-5)
    assert found.score(X, y) == pytest.approx(expected.score(X[rest], y[rest]), rel=1e-4)


@pytest.mark.parametrize("recipe", [RealMLPRegressor("td-s", n_ensembles=1), TabMRegressor()])
def test_recipes_take_numbers_in_part(recipe):
    y = Y.copy()
    y[3] = np.nan
    recipe.set_params(max_iter=4, batch_size=16, random_state=0)
    with pytest.warns(UserWarning, match="1 of 40 rows of y have no number"):
        fitted = recipe.fit(X, y)
    assert np.isfinite(fitted.loss_curves_[0]).all()
    assert fitted.score(X, y) == pytest.approx(expected_score(fitted, X, y), rel=1e-5)


class RowSum(Loss):
    """One loss for all numbers of a row."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        return op.ReduceSum(op.Abs(op.Sub(scores, y)), axes=[1], keepdims=True)


class Mixed(Loss):
    """A loss of each number that depends on the others."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, y)
        return op.Abs(op.Sub(error, op.ReduceMean(error, axes=[1], keepdims=True)))


def test_losses_in_which_numbers_of_a_row_meet_are_refused():
    with pytest.raises(ModelError, match="one loss for all 3 labels or numbers of a row"):
        OrtGradientRegressor(Linear(), loss=RowSum()).fit(X, Y)
    with pytest.raises(ModelError, match="labels or numbers of a row meet"):
        OrtGradientRegressor(Linear(), loss=Mixed()).fit(X, Y)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("loss", ["gaussian_nll", "laplace_nll", "quantiles", "squared_error", "gamma"])
def test_loss_without_each_output_in_turn_has_the_mean_of_the_whole(loss, engine):
    weights = np.append(1e-9, WEIGHTS[1:])  # the first row has all numbers, so that no column is empty

    def loss_of(y):
        net = OrtGradientRegressor(Linear(), loss=loss, learning_rate_init=0.0, alpha=0.0, target_scaling=None)
        return net.set_params(engine=engine, max_iter=1, random_state=0).fit(X, y, weights).loss_

    parts = []
    for j in range(K):
        y = WHOLE.copy()
        y[1:, j] = np.nan
        parts.append(loss_of(y))
    assert np.mean(parts) == pytest.approx(loss_of(WHOLE), rel=1e-5)
    assert max(parts) > min(parts) + 1e-3


@pytest.mark.long
def test_old_rows_without_some_numbers_count_in_fine_tuning():
    rng = np.random.default_rng(3)
    rows, weights = rng.normal(size=(300, 3)), rng.normal(size=(3, 2))
    model = LinearRegression().fit(rows, rows @ (weights + 1))
    old = rows[40:] @ weights
    old[::2, 0], old[1::2, 1] = np.nan, np.nan
    net = OrtGradientRegressor(model, random_state=0)
    net.fit(rows[:40], rows[:40] @ weights, X_old=rows[40:], y_old=old)
    assert_allclose(net.predict(rows), rows @ weights, atol=0.05)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("hidden", [np.nan, None])
def test_outputs_of_a_graph_may_lack_numbers(engine, hidden):
    rows, targets = heads.data(N)
    losses = {"numbers": "squared_error", "number": "huber", "class": "log_loss"}
    net = OrtGradientMultiOutput(
        heads.graph(list(losses)), loss=losses, learning_rate_init=0.01, max_iter=4, batch_size=16, random_state=0
    )  # fmt: skip
    net.set_params(engine=engine)
    y = {name: targets[name] for name in losses}
    there, alone = RNG.random((N, 2)) < 0.7, RNG.random(N) < 0.7
    there[3] = alone[3] = False
    weights = {"numbers": there.astype(float), "number": alone.astype(float)}
    kind = float if hidden is np.nan else object
    own = np.reshape(y["number"], N).astype(kind)
    own[~alone] = hidden
    y_missing = y | {"numbers": np.where(there, y["numbers"], hidden).astype(kind), "number": own}
    found = net.fit(rows, y_missing)
    curve, scores = found.loss_curve_, found.output_scores(rows, y_missing)
    expected = net.fit(rows, y, weights)
    assert_allclose(curve, expected.loss_curve_, rtol=1e-6)
    assert scores == pytest.approx(expected.output_scores(rows, y, weights), rel=1e-6)
    halves = [{name: one[part] for name, one in y_missing.items()} for part in (slice(20), slice(20, N))]
    net.partial_fit(rows[:20], halves[0]).partial_fit(rows[20:], halves[1])
    assert np.isfinite(net.loss_)


def test_what_takes_no_missing_numbers_says_so(tmp_path):
    for y in (Y[:, 0], Y[:, :1]):
        with pytest.raises(ValueError, match="Input y contains NaN"):
            OrtGradientRegressor(Linear()).fit(X, y)
    empty = Y.copy()
    empty[:, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 of y has no number"):
        OrtGradientRegressor(Linear()).fit(X, empty)
    with pytest.raises(ValueError, match="infinity"):
        OrtGradientRegressor(Linear()).fit(X, np.where(THERE, np.inf, np.nan))
    with pytest.raises(ValueError, match="cannot leave out single labels"):
        OrtGradientRegressor(Linear(), scoring="r2").fit(X, Y, X_val=X, y_val=Y)
    rows, targets = heads.data(N)
    net = OrtGradientMultiOutput(heads.graph(["map"]), loss={"map": "huber"})
    some = targets["map"].copy()
    some[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        net.fit(rows, {"map": some})
    with pytest.raises(ValueError, match="NaN"):
        net.fit(rows, {"map": np.full_like(some, np.nan)})
    with pytest.raises(ValueError, match="An exported training takes no missing numbers"):
        RealMLPRegressor("td-s").export_training(tmp_path / "folder", X, Y)
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**{f"x{i}": X[:, i] for i in range(4)}, **{f"y{j}": Y[:, j] for j in range(K)}})
    for estimator in (OrtGradientRegressor(Linear()), RealMLPRegressor("td-s")):
        with pytest.raises(ValueError, match="has missing values"):
            estimator.fit(RowBlocks(table.to_reader, ["y0", "y1", "y2"], buffer_rows=16))
