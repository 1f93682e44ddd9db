"""skops stores fitted estimators without pickle: what is loaded predicts the same and goes on training."""

from __future__ import annotations

import importlib

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import onnxtrain_sklearn
from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    FineTuner,
    Linear,
    LoRA,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    TabMClassifier,
    TabMRegressor,
    losses,
    models,
    optimizers,
    schedules,
)
from onnxtrain_sklearn.callbacks import (
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    GradientStatistics,
    LearningRateFinder,
    WeightAveraging,
)
from onnxtrain_sklearn.skops_types import TRUSTED_TYPES
from tests.helpers.several_outputs import data, graph

skops_io = pytest.importorskip("skops.io")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(word=np.array(["red", "blue"])[Y])
OBJECTS = {"optimizer": SGD(momentum=0.9), "learning_rate": schedules.InverseScaling(), "loss": losses.Focal()}
GIVEN = Linear().build(4, 2, random_state=0)


def stored_net(model=None, **parameters):
    return OrtGradientClassifier(model, **{"max_iter": 2, "random_state": 0} | parameters)


def linear_net():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)


def skops_table():
    columns = make_column_transformer((StandardScaler(), list("abcd")), (OneHotEncoder(), ["word"]))
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)


CASES = {
    "builder": (lambda: stored_net(MLP((3,))), X, Y),
    "default": (lambda: stored_net(random_state=None), X, Y),
    "objects": (lambda: stored_net(**OBJECTS), X, Y),
    "generator": (lambda: stored_net(random_state=np.random.RandomState(0)), X, Y),
    "given": (lambda: stored_net(GIVEN), X, Y),
    "bytes": (lambda: stored_net(GIVEN.SerializeToString()), X, Y),
    "scaled in a pipeline": (lambda: make_pipeline(StandardScaler(), stored_net()), X, Y),
    "strings": (lambda: stored_net(), X, np.array(["no", "yes"])[Y]),
    "labels": (lambda: stored_net(), X, np.c_[Y, 1 - Y]),
    "several labels": (lambda: stored_net(), X, np.array(["no", "yes"])[np.c_[Y, 1 - Y]]),
    "early stopping": (lambda: stored_net(early_stopping=True, validation_split=0.3), X, Y),
    "fitted": (lambda: stored_net(linear_net()), X, Y),
    "trees": (lambda: stored_net(GradientBoostingClassifier(n_estimators=2).fit(X, Y)), X, Y),
    "table": (lambda: stored_net(skops_table()), FRAME, Y),
    "declared targets": (
        lambda: OrtGradientRegressor(loss="cox", max_iter=2, random_state=0),
        X,
        {"time": np.arange(60.0), "event": Y == 1},
    ),
    "quantiles": (lambda: OrtGradientRegressor(loss="quantiles", max_iter=2, random_state=0), X, X[:, 0]),
    "lbfgs": (lambda: OrtGradientRegressor(Linear(), optimizer=LBFGS(), max_iter=2, random_state=0), X, X[:, 0]),
}


FURTHER = {"trees": ["sklearn.tree._tree.Tree"], "table": ["sklearn.compose._column_transformer._RemainderColsList"]}
"""Types of other packages, in the fitted model that is given."""


def loaded(estimator, further=()):
    return skops_io.loads(skops_io.dumps(estimator), trusted=[*TRUSTED_TYPES, *further])


@pytest.mark.parametrize("case", CASES)
def test_loaded_estimator_predicts_and_resumes(case):
    make, data, target = CASES[case]
    fitted = make().fit(data, target)
    twin = loaded(fitted, FURTHER.get(case, ()))
    assert_array_equal(twin.predict(data), fitted.predict(data))
    last, own = (e[-1] if hasattr(e, "steps") else e for e in (twin, fitted))
    assert last.loss_curve_ == own.loss_curve_
    assert last.to_onnx() == own.to_onnx()
    if hasattr(own, "partial_fit") and not own.early_stopping:
        for estimator in (last, own):
            estimator.partial_fit(data, target)
        for name, array in own.weights_.items():
            assert_array_equal(last.weights_[name], array)


def test_calls_of_several_sizes_go_on_exactly():
    straight = stored_net(MLP((6, 5), dropout=0.4))
    twin = clone(straight)
    for size in (7, 3, 12, 1, 9):
        straight.partial_fit(X[:size], Y[:size], classes=[0, 1])
        twin = loaded(twin).partial_fit(X[:size], Y[:size], classes=[0, 1])
        for name, array in straight.weights_.items():
            assert_array_equal(twin.weights_[name], array)


WITH_GAPS = FRAME.assign(kind=pd.Categorical(np.array(["u", "v", "w"])[np.arange(60) % 3]), a=FRAME["a"].where(Y == 0))
WITH_DATES = FRAME.assign(at=pd.Timestamp("2024-01-31") + pd.to_timedelta(np.arange(60), "D"))
RECIPES = [RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor]


@pytest.mark.slow
@pytest.mark.parametrize("table", [X, WITH_GAPS, WITH_DATES], ids=["numbers", "mixed", "dates"])
@pytest.mark.parametrize("kind", RECIPES)
def test_recipes_predict_the_same_and_keep_their_history(kind, table):
    settings = {"hidden_layer_sizes": (4,), "max_iter": 2, "n_ensembles": 2, "callbacks": [EpochScoring("loss")]}
    fitted = kind(random_state=0, **settings).fit(table, Y)
    twin = loaded(fitted)
    assert_array_equal(twin.predict(table), fitted.predict(table))
    assert twin.history_ == fitted.history_
    assert twin.to_onnx() == fitted.to_onnx()
    assert_array_equal(clone(twin).fit(table, Y).predict(table), fitted.predict(table))


def test_several_outputs_predict_the_same_and_go_on():
    rows, targets = data(30)
    losses_of = {"class": "log_loss", "number": "squared_error"}
    y = {name: targets[name] for name in losses_of}
    fitted = OrtGradientMultiOutput(graph(list(losses_of)), loss=losses_of, max_iter=2, random_state=0).fit(rows, y)
    twin = loaded(fitted)
    for name, values in fitted.predict(rows).items():
        assert_array_equal(twin.predict(rows)[name], values)
    for size in (7, 3, 12, 30):
        some = {name: values[:size] for name, values in y.items()}
        fitted.partial_fit(rows[:size], some)
        twin = loaded(twin).partial_fit(rows[:size], some)
        for name, array in fitted.weights_.items():
            assert_array_equal(twin.weights_[name], array)


def trained_callbacks(folder):
    watching = [EpochScoring("accuracy", "train"), EarlyStopping("train_accuracy", 50), GradientStatistics()]
    return [*watching, LearningRateFinder(steps=10), WeightAveraging(0.5), Checkpoint(str(folder))]


@pytest.mark.filterwarnings("ignore:Training ended before epoch")
def test_callbacks_and_their_state_are_stored(tmp_path):
    fitted = stored_net(callbacks=trained_callbacks(tmp_path), max_iter=3).fit(X, Y)
    twin = loaded(fitted)
    assert twin.history_ == fitted.history_
    assert twin.callbacks_.keys() == fitted.callbacks_.keys()
    assert [repr(one) for one in twin.callbacks] == [repr(one) for one in fitted.callbacks]


COMPONENTS = {
    kind: kind
    for registry in (losses.LOSSES, optimizers.OPTIMIZERS, schedules.SCHEDULES, models.MODELS)
    for kind in registry.values()
}
GIVEN_FIRST = {"Warmup": (2,)}
FOR_FITTED = [FineTuner(), LoRA(1)]


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_components_are_trusted(kind):
    one = kind(*GIVEN_FIRST.get(kind.__name__, ()))
    assert repr(loaded(one)) == repr(one)


@pytest.mark.parametrize("one", FOR_FITTED, ids=lambda one: type(one).__name__)
def test_settings_are_trusted(one):
    assert repr(loaded(one)) == repr(one)


def test_every_trusted_type_is_there():
    for name in TRUSTED_TYPES:
        module, _, attribute = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), attribute), type), name
    estimators = {name for name in onnxtrain_sklearn.__all__ if hasattr(getattr(onnxtrain_sklearn, name), "fit")}
    assert {f"onnxtrain_sklearn.{name}" for name in estimators} < set(TRUSTED_TYPES)


def test_functions_of_the_package_are_not_trusted(monkeypatch):
    with pytest.raises(skops_io.exceptions.UntrustedTypesFoundException, match="clear_cache"):
        loaded(stored_net(scoring=onnxtrain_sklearn.clear_cache))


def test_fitted_model_is_restored_from_skops():
    fitted = stored_net(linear_net(), learning_rate_init=0.1).fit(X, Y)
    assert_array_equal(loaded(fitted).to_sklearn(X)[-1].coef_, fitted.to_sklearn()[-1].coef_)


def test_nothing_is_loaded_without_trust():
    with pytest.raises(skops_io.exceptions.UntrustedTypesFoundException):
        skops_io.loads(skops_io.dumps(stored_net().fit(X, Y)))
