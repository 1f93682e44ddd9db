"""Training goes on with the loss and the class weights that a model was fitted with, beside scikit-learn's metrics."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import (
    HuberRegressor,
    LogisticRegression,
    QuantileRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.metrics import (
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    mean_squared_error,
    mean_tweedie_deviance,
    recall_score,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import FineTuner, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import SquaredError
from tests.helpers.environment import each_engine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3)).astype(np.float32)
NUMBER = np.exp(X[:, 0] / 2 + 0.4 * RNG.normal(size=600))
OLD, NEW = slice(0, 400), slice(400, None)
SHORT = FineTuner(anchor=1.0, cv=2, max_iter=1)
"""A search of few steps: what is compared is the loss that it starts from."""


def huber(y, p, delta):
    size = np.abs(y - p)
    return np.mean(np.where(size <= delta, size**2 / 2, delta * (size - delta / 2)))


def insensitive(y, p, epsilon):
    return np.mean(np.maximum(np.abs(y - p) - epsilon, 0))


def deviance(y, p, power):
    """Half the deviance without its term of ``y`` alone."""
    saturated = y ** (2 - power) / ((1 - power) * (2 - power))
    return mean_tweedie_deviance(y, p, power=power) / 2 - np.mean(saturated)


LOG = {"func": np.log, "inverse_func": np.exp}
LOW, HUBER = QuantileRegressor(quantile=0.2, alpha=0), HuberRegressor(epsilon=1.2)
REGRESSORS = {
    "Ridge": (Ridge(), lambda model: mean_squared_error),
    "quantile": (LOW, lambda model: partial(mean_pinball_loss, alpha=0.2)),
    "Huber": (HUBER, lambda model: partial(huber, delta=1.2 * model.scale_)),
    "SGD, Huber": (SGDRegressor(loss="huber", epsilon=0.3), lambda model: partial(huber, delta=0.3)),
    "SGD, insensitive": (
        SGDRegressor(loss="epsilon_insensitive", epsilon=0.2),
        lambda model: partial(insensitive, epsilon=0.2),
    ),
    "SVR": (SVR(epsilon=0.3), lambda model: partial(insensitive, epsilon=0.3)),
    "linear SVR": (LinearSVR(), lambda model: mean_absolute_error),
    "linear SVR, squared": (
        LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.2),
        lambda model: lambda y, p: np.mean(np.maximum(np.abs(y - p) - 0.2, 0) ** 2),
    ),
    "tree": (DecisionTreeRegressor(criterion="absolute_error", max_depth=3), lambda model: mean_absolute_error),
    "forest": (RandomForestRegressor(3, criterion="absolute_error", max_depth=3), lambda model: mean_absolute_error),
    "boosting, quantile": (
        GradientBoostingRegressor(loss="quantile", alpha=0.3, n_estimators=5),
        lambda model: partial(mean_pinball_loss, alpha=0.3),
    ),
    "histograms, quantile": (
        HistGradientBoostingRegressor(loss="quantile", quantile=0.7, max_iter=5),
        lambda model: partial(mean_pinball_loss, alpha=0.7),
    ),
    "histograms, median": (
        HistGradientBoostingRegressor(loss="absolute_error", max_iter=5),
        lambda model: mean_absolute_error,
    ),
    "Tweedie": (TweedieRegressor(power=1.5), lambda model: partial(deviance, power=1.5)),
    "bagging": (BaggingRegressor(LOW, 3, random_state=0), lambda model: partial(mean_pinball_loss, alpha=0.2)),
    "stacking": (
        StackingRegressor([("a", Ridge())], final_estimator=LOW),
        lambda model: partial(mean_pinball_loss, alpha=0.2),
    ),
    "vote of different losses": (VotingRegressor([("a", Ridge()), ("b", LOW)]), lambda model: mean_squared_error),
    "search": (
        GridSearchCV(LOW, {"alpha": [0.0, 0.01]}),
        lambda model: partial(mean_pinball_loss, alpha=0.2),
    ),
    "logarithms, quantile": (
        TransformedTargetRegressor(LOW, **LOG),
        lambda model: partial(mean_pinball_loss, alpha=0.2),
    ),
    "scaled targets, Huber": (
        TransformedTargetRegressor(HUBER, transformer=make_pipeline(StandardScaler(), MinMaxScaler())),
        lambda model: partial(huber, delta=1.2 * model.regressor_.scale_ / step_of(model)),
    ),
    "logarithms, Huber": (TransformedTargetRegressor(HUBER, **LOG), lambda model: mean_squared_error),
}


def step_of(model):
    """What one unit of the target is after the transformer."""
    low, high = model.transformer_.transform([[0.0], [1.0]]).ravel()
    return high - low


@each_engine
@pytest.mark.parametrize(("model", "measure"), REGRESSORS.values(), ids=REGRESSORS)
def test_the_loss_of_a_regressor_is_taken_over(model, measure, engine):
    old = model.fit(X[OLD], NUMBER[OLD])
    last = getattr(old, "regressor_", None) is None and getattr(old, "best_estimator_", old)
    tuned = OrtGradientRegressor(old, finetune=SHORT, engine=engine, random_state=0).fit(X[NEW], NUMBER[NEW])
    expected = measure(last or old)(NUMBER[NEW], old.predict(X[NEW]))
    assert_allclose(tuned.loss_curve_[0], expected, rtol=2e-4)
    other = OrtGradientRegressor(old, loss=SquaredError(), finetune=SHORT, engine=engine, random_state=0)
    if not isinstance(old, TweedieRegressor):
        other.fit(X[NEW], NUMBER[NEW])
        assert_allclose(other.loss_curve_[0], mean_squared_error(NUMBER[NEW], old.predict(X[NEW])), rtol=2e-4)


@pytest.mark.long
def test_low_quantile_of_negated_targets_is_a_high_one_of_the_targets():
    old = TransformedTargetRegressor(LOW, func=np.negative, inverse_func=np.negative).fit(X[OLD], NUMBER[OLD])
    tuned = OrtGradientRegressor(old, random_state=0).fit(X[NEW], NUMBER[NEW])
    assert_allclose(tuned.loss_curve_[0], mean_pinball_loss(NUMBER[NEW], old.predict(X[NEW]), alpha=0.8), rtol=2e-4)


def test_losses_of_several_numbers_are_taken_over():
    Y = np.column_stack([NUMBER, 2 * NUMBER + X[:, 1]])
    old = MultiOutputRegressor(LOW).fit(X[OLD], Y[OLD])
    tuned = OrtGradientRegressor(old, random_state=0).fit(X[NEW], Y[NEW])
    assert_allclose(tuned.loss_curve_[0], mean_pinball_loss(Y[NEW], old.predict(X[NEW]), alpha=0.2), rtol=1e-4)


# Classifiers: a rare class, which the model was fitted to find.


RARE = np.where(X[:, 0] + RNG.normal(size=600) > 1.6, "rare", "usual")
WEIGHTS = {"rare": 6.0, "usual": 1.0}
WEIGHTED = LogisticRegression(class_weight=WEIGHTS)
MEMBER = LogisticRegression(class_weight={0: 6.0, 1: 1.0})  # ensembles name the classes of their members by positions


def margins(model, y):
    return np.where(y == model.classes_[1], 1, -1) * model.decision_function(X[NEW])


def weighted_log_loss(model, y, w):
    p = model.predict_proba(X[NEW]).astype(float)
    return log_loss(y, p / p.sum(axis=1, keepdims=True), sample_weight=w)


def weighted_hinge(model, y, w):
    return np.average(np.maximum(1 - margins(model, y), 0), weights=w)


def weighted_squared_hinge(model, y, w):
    return np.average(np.maximum(1 - margins(model, y), 0) ** 2, weights=w)


CLASSIFIERS = {
    "logistic regression": (WEIGHTED, WEIGHTS, weighted_log_loss),
    "balanced": (LogisticRegression(class_weight="balanced"), "balanced", weighted_log_loss),
    "descent": (SGDClassifier(loss="log_loss", class_weight=WEIGHTS, random_state=0), WEIGHTS, weighted_log_loss),
    "descent, hinge": (SGDClassifier(class_weight="balanced", random_state=0), "balanced", weighted_hinge),
    "ridge": (RidgeClassifier(class_weight="balanced"), "balanced", weighted_squared_hinge),
    "linear machine": (LinearSVC(class_weight=WEIGHTS, random_state=0), WEIGHTS, weighted_squared_hinge),
    "linear machine, hinge": (
        LinearSVC(loss="hinge", class_weight=WEIGHTS, max_iter=10_000, random_state=0),
        WEIGHTS,
        weighted_hinge,
    ),
    "machine": (SVC(class_weight="balanced"), "balanced", weighted_hinge),
    "tree": (
        DecisionTreeClassifier(class_weight=WEIGHTS, max_depth=2, min_samples_leaf=50),
        WEIGHTS,
        weighted_log_loss,
    ),
    "forest": (
        RandomForestClassifier(5, class_weight="balanced_subsample", max_depth=3, random_state=0),
        "balanced",
        weighted_log_loss,
    ),
    "histograms": (  # it knows the classes by their positions, too
        HistGradientBoostingClassifier(class_weight={0: 6.0, 1: 1.0}, max_iter=5),
        WEIGHTS,
        weighted_log_loss,
    ),
    "bagging": (BaggingClassifier(MEMBER, 2, random_state=0), WEIGHTS, weighted_log_loss),
    "stacking": (StackingClassifier([("a", LogisticRegression())], MEMBER), WEIGHTS, weighted_log_loss),
    "vote": (VotingClassifier([("a", MEMBER), ("b", MEMBER)], voting="soft"), WEIGHTS, weighted_log_loss),
    "pipeline": (make_pipeline(StandardScaler(), WEIGHTED), WEIGHTS, weighted_log_loss),
    "search": (GridSearchCV(WEIGHTED, {"C": [1.0, 2.0]}), WEIGHTS, weighted_log_loss),
    "calibrated": (CalibratedClassifierCV(WEIGHTED), None, weighted_log_loss),
}


@each_engine
@pytest.mark.parametrize(("model", "weights", "measure"), CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_the_class_weights_of_a_classifier_are_taken_over(model, weights, measure, engine):
    old, y = model.fit(X[OLD], RARE[OLD]), RARE[NEW]
    tuned = OrtGradientClassifier(old, finetune=SHORT, engine=engine, random_state=0).fit(X[NEW], y)
    expected = measure(old, y, compute_sample_weight(weights, y))
    assert_allclose(tuned.loss_curve_[0], expected, rtol=5e-4)
    for given in ({}, {"usual": 3.0}):
        other = OrtGradientClassifier(old, class_weight=given, finetune=SHORT, engine=engine, random_state=0).fit(
            X[NEW], y
        )
        assert_allclose(other.loss_curve_[0], measure(old, y, compute_sample_weight(given or None, y)), rtol=5e-4)


@each_engine
def test_plain_training_goes_on_with_the_class_weights(engine):
    old = WEIGHTED.fit(X[OLD], RARE[OLD])
    net = OrtGradientClassifier(old, finetune=None, learning_rate_init=0.0, engine=engine, max_iter=1, random_state=0)
    expected = weighted_log_loss(old, RARE[NEW], compute_sample_weight(WEIGHTS, RARE[NEW]))
    with pytest.warns(match="not converged"):
        assert_allclose(net.fit(X[NEW], RARE[NEW]).loss_, expected, rtol=1e-5)
    net.partial_fit(X[NEW], RARE[NEW])
    assert_allclose(net.loss_, expected, rtol=1e-5)


@pytest.mark.long
def test_a_rare_class_is_still_found_after_fine_tuning():
    recalls = []
    for weight in (None, {}):
        old = LogisticRegression(class_weight="balanced").fit(X[OLD], RARE[OLD])
        tuned = OrtGradientClassifier(old, class_weight=weight, random_state=0).fit(X[400:520], RARE[400:520])
        recalls.append(recall_score(RARE[520:], tuned.predict(X[520:]), pos_label="rare"))
    assert recalls[0] > 0.7 > 0.5 > recalls[1]


@pytest.mark.long
def test_several_labels_keep_the_weights_of_a_forest():
    Y = np.column_stack([RARE == "rare", X[:, 1] > 0]).astype(int)
    old = RandomForestClassifier(5, class_weight="balanced", max_depth=3, random_state=0).fit(X[OLD], Y[OLD])
    tuned = OrtGradientClassifier(old, random_state=0).fit(X[NEW], Y[NEW])
    weights = compute_sample_weight("balanced", Y[NEW])
    expected = [log_loss(y, p, sample_weight=weights) for y, p in zip(Y[NEW].T, old.predict_proba(X[NEW]), strict=True)]
    assert_allclose(tuned.loss_curve_[0], np.mean(expected), rtol=1e-3)


LOST = {
    "one against the rest": OneVsRestClassifier(LogisticRegression(class_weight="balanced")),
    "AdaBoost": AdaBoostClassifier(LogisticRegression(class_weight={"rare": 2}), n_estimators=5),
    "different members": VotingClassifier([("a", MEMBER), ("b", LogisticRegression())], voting="soft"),
}


@pytest.mark.long
@pytest.mark.parametrize("model", LOST.values(), ids=LOST)
def test_weights_that_cannot_be_taken_over_are_named(model, recwarn):
    old = model.fit(X[OLD], RARE[OLD])
    recwarn.clear()
    estimator = OrtGradientClassifier(old, random_state=0).fit(X[NEW], RARE[NEW])
    found = [str(one.message) for one in recwarn if "class weights" in str(one.message)]
    assert len(found) == 1
    assert f"class weights of LogisticRegression within this {type(old).__name__}" in found[0]
    recwarn.clear()
    estimator.set_params(class_weight={}).fit(X[NEW], RARE[NEW])
    assert not [one for one in recwarn if "class weights" in str(one.message)]


@pytest.mark.long
def test_weights_of_single_labels_are_named():
    Y = np.column_stack([RARE == "rare", X[:, 1] > 0]).astype(int)
    old = MultiOutputClassifier(LogisticRegression(class_weight="balanced")).fit(X[OLD], Y[OLD])
    with pytest.warns(UserWarning, match="LogisticRegression within this MultiOutputClassifier are not taken over"):
        OrtGradientClassifier(old, random_state=0).fit(X[NEW], Y[NEW])


def test_partial_fit_refuses_balanced_weights_of_a_model():
    old = LogisticRegression(class_weight="balanced").fit(X[OLD], RARE[OLD])
    with pytest.raises(ValueError, match="fitted model weighs its classes by class_weight='balanced'"):
        OrtGradientClassifier(old).partial_fit(X[NEW], RARE[NEW])
    for weights in ({}, WEIGHTS):
        net = OrtGradientClassifier(old, class_weight=weights, learning_rate_init=0.0).partial_fit(X[NEW], RARE[NEW])
        expected = weighted_log_loss(old, RARE[NEW], compute_sample_weight(weights or None, RARE[NEW]))
        assert_allclose(net.loss_, expected, rtol=1e-5)


def test_a_new_head_weighs_its_classes_by_its_own_setting():
    old = make_pipeline(StandardScaler(), WEIGHTED).fit(X[OLD], RARE[OLD])
    tuned = OrtGradientClassifier(old, finetune=FineTuner(new_head=True, cv=2), random_state=0)
    kinds = np.where(X[NEW, 1] > 0.5, "a", np.where(X[NEW, 1] < -0.5, "b", "c"))
    assert tuned.fit(X[NEW], kinds).score(X[NEW], kinds) > 0.5
