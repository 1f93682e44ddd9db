"""Regression whatever the unit of the targets: scaled inside training, in their own units outside."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from onnxtrain_sklearn.losses import LOSSES, Huber, Loss
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_diabetes(return_X_y=True)
X = scale(X)
NAMES = [name for name, kind in LOSSES.items() if "regression" in kind.tasks and kind.target_scaling]


def scaled_regressor(model=None, **settings) -> OrtGradientRegressor:
    return OrtGradientRegressor(model, **{"random_state": 0, "max_iter": 30, "batch_size": 64, **settings})


def run_graph(model: onnx.ModelProto, rows: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows.astype(np.float32)})[0]


@pytest.mark.parametrize("loss", NAMES)
def test_the_unit_of_the_targets_does_not_matter(loss):
    scores = [scaled_regressor(loss=loss).fit(X, Y * unit).score(X, Y * unit) for unit in (1e-6, 1.0, 1e6)]
    assert min(scores) > 0.4
    assert_allclose(scores, scores[1], atol=1e-4)


@pytest.mark.parametrize("loss", ["squared_error", "huber", "quantile"])
def test_origin_of_the_targets_does_not_matter(loss):
    scores = [scaled_regressor(loss=loss).fit(X, Y + origin).score(X, Y + origin) for origin in (-1e4, 0.0, 1e4)]
    assert_allclose(scores, scores[1], atol=1e-3)


def test_targets_that_float32_does_not_tell_apart_give_a_warning():
    near = np.column_stack([Y, 1e9 + Y / 100 + 0.25])
    for y in (near[:, 1], near):
        with pytest.warns(
            OnnxTrainWarning, match=r"^y holds numbers near 1e.09 that are about 0.77 apart, and float32, "
        ):
            scaled_regressor(Linear(), max_iter=1).fit(X, y)
    scaled_regressor(Linear(), max_iter=1).fit(X, np.column_stack([np.full(len(Y), 1e9 + 0.25), 1e5 + Y]))


@pytest.mark.parametrize("engine", available_engines())
def test_target_scaling_trains_as_standardized_targets_do(engine):
    by_hand = scaled_regressor(target_scaling=None, alpha=2.0, engine=engine).fit(X, scale(Y))
    ours = scaled_regressor(alpha=2.0, engine=engine).fit(X, Y)
    assert_array_equal(ours.loss_curve_, by_hand.loss_curve_)
    expected = by_hand.predict(X).astype(np.float64) * Y.std() + Y.mean()
    assert_allclose(ours.predict(X), expected, rtol=1e-5)


def test_losses_with_a_log_link_are_trained_on_targets_of_mean_one():
    by_hand = scaled_regressor(loss="gamma", target_scaling=None).fit(X, Y / Y.mean())
    ours = scaled_regressor(loss="gamma").fit(X, Y)
    assert_array_equal(ours.loss_curve_, by_hand.loss_curve_)
    assert_allclose(ours.predict(X), by_hand.predict(X) * Y.mean(), rtol=1e-5)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_an_untrained_network_predicts_about_the_mean(loss):
    start = scaled_regressor(MLP(initialization="zeros"), loss=loss, learning_rate_init=0.0, max_iter=1).fit(X, Y)
    assert_allclose(start.predict(X), Y.mean(), rtol=1e-6)


def test_each_output_has_own_scale():
    several = np.stack([Y, 1e5 * Y - 7, np.full(len(Y), 3.5)], axis=1)
    fitted = scaled_regressor().fit(X, several)
    assert fitted.score(X, several) > 0.35
    predicted = fitted.predict(X)
    assert_allclose(predicted[:, 2], 3.5, atol=0.5)
    assert np.corrcoef(predicted[:, 1], several[:, 1])[0, 1] > 0.6


@pytest.mark.parametrize("loss", ["squared_error", "tweedie"])
@pytest.mark.parametrize("in_files", [False, True])
def test_the_exported_graph_predicts_in_units(loss, in_files):
    fitted = scaled_regressor(loss=loss).fit(X, Y)
    graph = fitted.to_onnx()
    assert graph.graph.output[0].name == "variable"
    assert_allclose(run_graph(graph, X)[:, 0], fitted.predict(X), rtol=1e-6)
    tuned = scaled_regressor(graph if not in_files else graph.SerializeToString(), learning_rate_init=0.0, max_iter=1)
    assert_allclose(tuned.fit(X, Y).predict(X), fitted.predict(X), rtol=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_coefficients_are_in_units(loss):
    fitted = scaled_regressor(Linear(), loss=loss, optimizer="lbfgs", max_iter=500).fit(X, Y)
    predicted = X @ fitted.coef_ + fitted.intercept_
    assert_allclose(np.exp(predicted) if loss == "poisson" else predicted, fitted.predict(X), rtol=1e-4)


def test_least_squares():
    fitted = scaled_regressor(Linear(), optimizer="lbfgs", max_iter=1000, tol=0).fit(X, Y)
    expected = np.linalg.lstsq(np.c_[X, np.ones(len(X))], Y, rcond=None)[0]
    assert_allclose(fitted.predict(X), np.c_[X, np.ones(len(X))] @ expected, rtol=2e-2)
    assert_allclose(fitted.intercept_, Y.mean(), rtol=1e-4)


@pytest.mark.parametrize("loss", ["squared_error", "gamma"])
def test_a_model_without_intercept_has_none(loss):
    fitted = scaled_regressor(Linear(fit_intercept=False), loss=loss).fit(X, Y)
    assert fitted.intercept_ == 0.0
    assert_allclose(fitted.predict(np.zeros((1, 10))), 1.0 if loss == "gamma" else 0.0)


def test_rows_of_weight_count_as_often():
    repeats = np.random.RandomState(0).randint(0, 3, len(Y))
    settings = {"batch_size": 2000, "shuffle": False, "alpha": 2.0}
    weighted = scaled_regressor(**settings).fit(X, Y, sample_weight=repeats)
    repeated = scaled_regressor(**settings).fit(np.repeat(X, repeats, axis=0), np.repeat(Y, repeats))
    assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-4)


def test_rows_held_out_do_not_count():
    outlier = np.where(np.arange(len(Y)) == 0, 1e9, Y)
    ours = scaled_regressor(max_iter=1).fit(X[1:], Y[1:], X_val=X, y_val=outlier)
    assert ours.predict(X).max() < 1e4


def test_validation_scores_are_in_units():
    fitted = scaled_regressor(max_iter=5).fit(X, Y, X_val=X, y_val=Y)
    assert_allclose(fitted.validation_scores_[-1], fitted.score(X, Y), rtol=1e-6)
    assert scaled_regressor(early_stopping=True, max_iter=100).fit(X, Y).best_validation_score_ > 0.3


def test_later_calls_keep_the_scale_of_the_first():
    stream = scaled_regressor().partial_fit(X[:100], Y[:100])
    first = stream.predict(X)
    stream.set_params(learning_rate_init=0.0).partial_fit(X[100:], 1e6 * Y[100:])
    assert_array_equal(stream.predict(X), first)
    warm = scaled_regressor(warm_start=True, max_iter=3).fit(X, Y)
    before = warm.predict(X)
    assert_array_equal(warm.set_params(learning_rate_init=0.0, max_iter=1).fit(X, Y + 5).predict(X), before)


def test_one_row_and_a_constant_target():
    assert_allclose(scaled_regressor(max_iter=300).partial_fit(X[:1], [1234.5]).predict(X[:1]), 1234.5, atol=2)
    assert_allclose(scaled_regressor().fit(X, np.full(len(X), 1e7)).predict(X), 1e7, rtol=1e-5)
    assert_allclose(scaled_regressor(loss="poisson").fit(X, np.zeros(len(X))).predict(X), 0, atol=1.0)


def test_copies_predict_the_same():
    fitted = scaled_regressor(max_iter=3).fit(X, Y)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict(X), fitted.predict(X))
    assert_array_equal(copy.partial_fit(X, Y).predict(X), fitted.partial_fit(X, Y).predict(X))
    assert clone(fitted).get_params()["target_scaling"] == "auto"
    search = GridSearchCV(scaled_regressor(max_iter=2), {"target_scaling": ["auto", None]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"target_scaling": "auto"}


def test_another_loss_that_takes_other_units_is_refused():
    fitted = scaled_regressor(warm_start=True, max_iter=2).fit(X, Y)
    before = fitted.predict(X)
    with pytest.raises(ModelError, match=r"Poisson cannot take them.*target_scaling=None"):
        fitted.set_params(loss="poisson").fit(X, Y)
    assert_array_equal(fitted.predict(X), before)
    fitted.set_params(loss=Huber(0.5)).fit(X, Y)


class Fourth(Loss):
    """A loss of a user, which says nothing of scales."""

    def __call__(self, op, scores, y, link):
        squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
        return op.Mul(squared, squared)


class ScaledFourth(Fourth):
    target_scaling = "standard"


def test_losses_of_users_say_whether_they_scale():
    own, plain, scaled = (
        scaled_regressor(loss=loss, target_scaling=how).fit(X, Y)
        for loss, how in ((Fourth(), "auto"), (Fourth(), None), (ScaledFourth(), "auto"))
    )
    assert_array_equal(own.predict(X), plain.predict(X))
    assert scaled.score(X, Y) > 0.3 > own.score(X, Y)


def test_a_given_graph_keeps_its_units():
    graph = Linear().build(n_features=10, n_outputs=1, random_state=0)
    auto, plain = (scaled_regressor(graph, target_scaling=how).fit(X, Y) for how in ("auto", None))
    assert_array_equal(auto.predict(X), plain.predict(X))
    assert [v.name for v in auto.to_onnx().graph.output] == ["scores"]


class Watching(Linear):
    """A builder that looks at the targets."""

    def build(self, n_features, n_outputs, random_state=None, *, y):
        Watching.seen = y
        return super().build(n_features, n_outputs, random_state)


def test_builders_receive_scaled_targets():
    scaled_regressor(Watching(), max_iter=1).fit(X, Y)
    assert_allclose([Watching.seen.mean(), Watching.seen.std()], [0, 1], atol=1e-12)


@pytest.mark.parametrize("wrong", ["standard", True, 1.0, "none"])
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValueError, match=r"target_scaling"):
        scaled_regressor(target_scaling=wrong).fit(X, Y)


@pytest.mark.parametrize("loss", ["squared_error", "gamma"])
@pytest.mark.parametrize(
    ("unit", "match"), [(1e35, None), (1e38, "too large"), (1e300, "too large"), (1e-45, "too small")]
)
def test_targets_that_the_type_of_the_graph_cannot_hold_are_refused(loss, unit, match):
    estimator = scaled_regressor(loss=loss)
    if match is None:
        assert estimator.fit(X, Y * unit).score(X, Y * unit) > 0.4
        return
    with pytest.raises(ValueError, match=f"{match} for float32"):
        estimator.fit(X, Y * unit)
    assert not hasattr(estimator, "n_iter_")
