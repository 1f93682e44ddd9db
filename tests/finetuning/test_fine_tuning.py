"""Fine-tuning: its loss against NumPy, the weights it may move, and what it is better than."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, QuantileRegressor, Ridge
from sklearn.metrics import mean_pinball_loss, mean_squared_error, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from onnxtrain_sklearn import FineTuner, Linear, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.environment import each_engine
from tests.helpers.fine_tuning import prepared_trainer, weights_of_output

X, Y = load_diabetes(return_X_y=True)
X = (X / X.std(axis=0)).astype(np.float32)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OLD, NEW, TEST = slice(0, 250), slice(250, 320), slice(320, None)


def ridge():
    return make_pipeline(StandardScaler(), Ridge()).fit(X[OLD], Y[OLD])


def trainer_of(model, y=Y[NEW], **settings):
    estimator = OrtGradientRegressor(model, random_state=0, **settings)
    return prepared_trainer(estimator, X[NEW], y)


@each_engine
def test_weighted_loss_and_gradient_equal_numpy(engine):
    objective = trainer_of(Ridge().fit(X[OLD], Y[OLD]), engine=engine)._objective
    order, weights = objective.rows, np.random.RandomState(0).rand(70)
    vector = np.random.RandomState(1).randn(11)
    loss, gradient = objective(vector, weights)
    names = objective.parameters.names
    coefficients, bias = (vector[objective.parameters.span(name)] for name in names)
    rows, y = X[NEW][order].astype(np.float64), Y[NEW][order]
    residuals = rows @ coefficients + bias - y
    assert names == ("ridge.coef", "ridge.intercept")
    assert_allclose(loss, weights @ residuals**2 / weights.sum(), rtol=1e-5)
    expected = 2 * np.append(rows.T @ (weights * residuals), weights @ residuals) / weights.sum()
    assert_allclose(gradient, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "scaled", "shift", "linear"),
    [
        (Ridge(), {"ridge.coef", "ridge.intercept"}, "ridge.intercept", True),
        (
            GradientBoostingRegressor(n_estimators=3),
            {"gradientboostingregressor.init.constant", "gradientboostingregressor.leaf_values"},
            "gradientboostingregressor.init.constant",
            True,
        ),
        (
            RandomForestRegressor(n_estimators=3, random_state=0),
            {"randomforestregressor.leaf_values"},
            "randomforestregressor.leaf_values",
            True,
        ),
        (
            MLPRegressor(hidden_layer_sizes=(4,), max_iter=30),
            {"mlpregressor.coefs.1", "mlpregressor.intercepts.1"},
            "mlpregressor.intercepts.1",
            False,
        ),
    ],
    ids=["linear", "boosting", "forest", "network"],
)
def test_the_weights_that_scale_and_shift_the_scores_are_found(model, scaled, shift, linear):
    trainer = trainer_of(model.fit(X[OLD], Y[OLD]))
    output, parameters = weights_of_output(trainer), trainer._objective.parameters
    found = {name for name in parameters.names if output.scaled[parameters.span(name)].all()}
    assert found == scaled
    assert_array_equal(output.shifts.ravel(), np.arange(len(output.scaled))[parameters.span(shift)])
    assert output.linear is linear


@each_engine
def test_default_beats_old_model_and_refit_on_few_rows(engine):
    y = 0.6 * Y + 80
    old = ridge()
    tuned = OrtGradientRegressor(old, random_state=0, engine=engine).fit(X[NEW], y[NEW])
    refitted = clone(old).fit(X[NEW], y[NEW])
    assert tuned.score(X[TEST], y[TEST]) > 0.35
    assert tuned.score(X[TEST], y[TEST]) > max(refitted.score(X[TEST], y[TEST]), old.score(X[TEST], y[TEST]))
    assert tuned.to_sklearn()[-1].coef_.shape == old[-1].coef_.shape
    assert len(tuned.loss_curve_) == tuned.n_iter_ == 2
    assert tuned.loss_curve_[1] < tuned.loss_curve_[0]


@pytest.mark.long
def test_transformers_keep_their_numbers_unless_asked_for():
    old = make_pipeline(StandardScaler(), PCA(4), Ridge()).fit(X[OLD], Y[OLD])
    before = OrtGradientRegressor(old, learning_rate_init=0.0, max_iter=1).fit(X[NEW], Y[NEW]).weights_
    kept = OrtGradientRegressor(old, random_state=0).fit(X[NEW], Y[NEW] + 50).weights_
    free = FineTuner(0.001, recalibrate=False, freeze_preprocessing=False)
    moved = OrtGradientRegressor(old, random_state=0, finetune=free).fit(X[NEW], 3 * Y[NEW]).weights_
    changed = {name for name in before if not np.array_equal(before[name], kept[name])}
    assert changed == {"ridge.coef", "ridge.intercept"}
    assert not np.array_equal(before["pca.components"], moved["pca.components"])


def test_trainable_selects_tuned_weights():
    old = ridge()
    tuned = OrtGradientRegressor(old, trainable=["ridge.intercept"], random_state=0).fit(X[NEW], Y[NEW] + 50)
    before = OrtGradientRegressor(old, learning_rate_init=0.0, max_iter=1).fit(X[NEW], Y[NEW]).weights_
    changed = {name for name, now in tuned.weights_.items() if not np.array_equal(before[name], now)}
    assert changed == {"ridge.intercept"}


@pytest.mark.parametrize("y", [np.full(70, 3.0), np.full(70, 0.0)])
def test_single_target_value_leaves_model_unchanged(y):
    old = ridge()
    with pytest.warns(UserWarning, match="a single value"):
        tuned = OrtGradientRegressor(old, random_state=0).fit(X[NEW], y)
    assert_allclose(tuned.predict(X[TEST]), old.predict(X[TEST]), rtol=1e-4)


def test_single_class_leaves_model_unchanged():
    rows, labels = load_iris(return_X_y=True)
    old = LogisticRegression(max_iter=1000).fit(rows, labels)
    with pytest.warns(UserWarning, match="a single value"):
        tuned = OrtGradientClassifier(old, random_state=0).fit(rows[:9], labels[:9])
    assert_allclose(tuned.predict_proba(rows), old.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_rows_are_enough(n):
    tuned = OrtGradientRegressor(ridge(), random_state=0).fit(X[NEW][:n], Y[NEW][:n])
    assert np.isfinite(tuned.predict(X[TEST])).all()


@pytest.mark.slow
def test_rows_of_weight_zero_have_no_effect():
    weights = np.random.RandomState(0).rand(70) + 0.5
    weights[40:] = 0
    some = OrtGradientRegressor(ridge(), random_state=0).fit(X[NEW], Y[NEW] + 30, weights)
    kept = OrtGradientRegressor(ridge(), random_state=0).fit(X[NEW][:40], Y[NEW][:40] + 30, weights[:40])
    assert_allclose(some.predict(X[TEST]), kept.predict(X[TEST]), rtol=1e-3)


def test_validation_data_replace_the_cross_validation():
    old, y = ridge(), 0.5 * Y + 100
    wrong = OrtGradientRegressor(old, random_state=0).fit(X[NEW], y[NEW], X_val=X[TEST], y_val=old.predict(X[TEST]))
    assert_allclose(wrong.predict(X[TEST]), old.predict(X[TEST]), rtol=1e-4)
    right = OrtGradientRegressor(old, random_state=0).fit(X[NEW], y[NEW], X_val=X[TEST], y_val=y[TEST])
    assert right.score(X[TEST], y[TEST]) > 0.3


@pytest.mark.filterwarnings("ignore:learning_rate_init=0.01 turns off")
@pytest.mark.parametrize(
    "setting",
    [{"optimizer": "sgd"}, {"learning_rate_init": 0.01}, {"max_iter": 3}, {"alpha": 0.1}, {"early_stopping": True}],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_of_plain_training_is_followed(setting):
    plain = OrtGradientRegressor(ridge(), finetune=None, random_state=0, **setting).fit(X[NEW], Y[NEW])
    auto = OrtGradientRegressor(ridge(), random_state=0, **setting).fit(X[NEW], Y[NEW])
    assert_array_equal(plain.predict(X[TEST]), auto.predict(X[TEST]))
    with pytest.raises(ValueError, match=f"{next(iter(setting))}=.* has no effect on fine-tuning"):
        OrtGradientRegressor(ridge(), finetune=FineTuner(), **setting).fit(X[NEW], Y[NEW])


def test_finetune_of_a_built_graph_is_refused():
    with pytest.raises(ValueError, match="finetune is for a trained model"):
        OrtGradientRegressor(Linear(), finetune=FineTuner()).fit(X[NEW], Y[NEW])


def test_an_exported_file_is_fine_tuned_as_the_model_is():
    old, y = ridge(), 0.6 * Y + 80
    file = OrtGradientRegressor(old, learning_rate_init=0.0, max_iter=1).fit(X[NEW], Y[NEW]).to_onnx()
    tuned = OrtGradientRegressor(file, finetune=FineTuner(), random_state=0).fit(X[NEW], y[NEW])
    assert tuned.score(X[TEST], y[TEST]) > 0.3


@pytest.mark.slow
def test_a_search_over_settings_and_copies_work():
    search = GridSearchCV(
        OrtGradientRegressor(ridge(), random_state=0), {"finetune__anchor": ["auto", 0.1], "finetune__cv": [3]}, cv=2
    )
    search.fit(X[NEW], Y[NEW])
    assert isinstance(search.best_params_["finetune__cv"], int)
    best = search.best_estimator_
    assert_array_equal(pickle.loads(pickle.dumps(best)).predict(X[TEST]), best.predict(X[TEST]))
    assert clone(best).fit(X[NEW], Y[NEW]).predict(X[TEST]).tolist() == best.predict(X[TEST]).tolist()


def test_partial_fit_goes_on_with_plain_steps():
    tuned = OrtGradientRegressor(ridge(), random_state=0).fit(X[NEW], Y[NEW])
    before = tuned.predict(X[TEST])
    tuned.partial_fit(X[NEW], Y[NEW])
    assert 0 < np.abs(tuned.predict(X[TEST]) - before).max() < 5
    assert tuned.n_iter_ == 3


@pytest.mark.parametrize("setting", [{"anchor": -1.0}, {"anchor": "none"}, {"cv": 1}, {"max_iter": 0}])
def test_invalid_settings_are_named(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        OrtGradientRegressor(ridge(), finetune=FineTuner(**setting)).fit(X[NEW], Y[NEW])


@pytest.mark.long
@each_engine
def test_validation_data_choose_the_candidate_of_the_least_quantile_loss(engine):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2)).astype(np.float32)
    y = X[:, 0] + (1 + 2 * (X[:, 1] > 0)) * rng.exponential(size=600)
    y[300:] += 2 * X[300:, 1]
    old = QuantileRegressor(quantile=0.1, alpha=0).fit(X[:300], y[:300])
    tuned = OrtGradientRegressor(old, engine=engine, random_state=0)
    tuned.fit(X[300:450], y[300:450], X_val=X[450:], y_val=y[450:])
    score, share = tuned.fine_tuning_["score"], tuned.fine_tuning_["share"]
    p = tuned.predict(X[450:])
    assert_allclose(-mean_pinball_loss(y[450:], p, alpha=0.1), score.max(), rtol=1e-5)
    assert share[np.argmax(score)] == 1
    assert_allclose(mean_pinball_loss(y[450:], old.predict(X[450:]), alpha=0.1), -score[0], rtol=1e-5)
    by_r2 = OrtGradientRegressor(old, scoring="r2", engine=engine, random_state=0)
    by_r2.fit(X[300:450], y[300:450], X_val=X[450:], y_val=y[450:])
    assert_allclose(by_r2.fine_tuning_["score"].max(), r2_score(y[450:], by_r2.predict(X[450:])), rtol=1e-5)


# Transformed targets: the output is recalibrated before the inverse.

TRANSFORMS = {
    "log": {"func": np.log, "inverse_func": np.exp},
    "log1p": {"func": np.log1p, "inverse_func": np.expm1},
    "square root": {"func": np.sqrt, "inverse_func": np.square},
    "Yeo-Johnson": {"transformer": PowerTransformer()},
    "Box-Cox": {"transformer": PowerTransformer("box-cox")},
}
RNG = np.random.default_rng(0)
AMOUNTS_X = RNG.normal(size=(800, 4)).astype(np.float32)
AMOUNTS = 100 * np.exp(AMOUNTS_X @ [0.8, 0.5, -0.3, 0.2] + 0.3 * RNG.normal(size=800))
TRIPLED = slice(400, 440), slice(440, None)


@each_engine
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("inner", [Ridge(), GradientBoostingRegressor(n_estimators=5, random_state=0)], ids=repr)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transformed_targets_are_recalibrated_before_the_inverse(transform, inner, engine):
    old = TransformedTargetRegressor(inner, **transform).fit(AMOUNTS_X[:400], AMOUNTS[:400])
    new, test = ((AMOUNTS_X[part], 3 * AMOUNTS[part]) for part in TRIPLED)
    tuned = OrtGradientRegressor(old, random_state=0, engine=engine).fit(*new, X_val=test[0], y_val=test[1])

    def shifted(by, X):
        z = old.transformer_.transform(old.predict(X)[:, None]) + by
        return old.transformer_.inverse_transform(z).ravel()

    best = minimize_scalar(lambda by: mean_squared_error(new[1], shifted(by, new[0])), bounds=(0, 20)).x
    found = dict(zip(tuned.fine_tuning_["candidate"][::-1], tuned.fine_tuning_["score"][::-1], strict=True))
    assert_allclose(found["shifted"], r2_score(test[1], shifted(best, test[0])), atol=2e-3)
    assert_allclose(found["old"], old.score(*test), atol=1e-4)
    assert found["shifted"] > found["old"] + 0.3
    chosen = OrtGradientRegressor(old, random_state=0, engine=engine).fit(*new)
    assert chosen.score(*test) > found["shifted"] - 0.05
