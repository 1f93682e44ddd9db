"""Parameters of the estimators: each is checked, and those of objects within them are set by their names."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import (
    MLP,
    SGD,
    Adam,
    GraphModel,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
    Runtime,
    TabMClassifier,
    TabMRegressor,
    losses,
    schedules,
)
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.models import MODELS
from onnxtrain_sklearn.optimizers import OPTIMIZERS
from onnxtrain_sklearn.schedules import SCHEDULES
from tests.helpers.estimators import is_declared

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)

NESTED = {
    "model": (MLP, None, "hidden_layer_sizes", (3,)),
    "loss": (losses.Huber, "huber", "delta", 0.5),
    "optimizer": (SGD, "sgd", "momentum", 0.9),
    "learning_rate": (schedules.StepDecay, "step", "step_size", 3),
    "runtime": (Runtime, None, "session_options", {"intra_op_num_threads": 1}),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_parameter_of_a_name_makes_the_object(name):
    kind, given, parameter, value = NESTED[name]
    estimator = OrtGradientRegressor(**{name: given}, max_iter=2, random_state=0)
    estimator.set_params(**{f"{name}__{parameter}": value})
    made = getattr(estimator, name)
    assert isinstance(made, kind)
    assert estimator.get_params()[f"{name}__{parameter}"] == getattr(made, parameter) == value
    assert f"{parameter}={value}" in repr(estimator)
    twin = clone(estimator)
    assert getattr(getattr(twin, name), parameter) == value
    straight = OrtGradientRegressor(**{name: kind(**{parameter: value})}, max_iter=2, random_state=0)
    assert_array_equal(twin.fit(X, y).predict(X), straight.fit(X, y).predict(X))


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_the_parameters_does_not_matter(turned):
    names = {"optimizer__momentum": 0.9, "optimizer": "sgd", "loss__delta": 2.0, "loss": "huber"}
    params = dict(reversed(names.items())) if turned else names
    estimator = OrtGradientRegressor(optimizer=Adam()).set_params(**params)
    assert (estimator.optimizer.momentum, estimator.loss.delta) == (0.9, 2.0)


def test_an_object_that_was_given_is_kept():
    given = SGD(nesterov=True, momentum=0.1)
    estimator = OrtGradientRegressor(optimizer=given).set_params(optimizer__momentum=0.9)
    assert estimator.optimizer is given
    assert given.nesterov


@pytest.mark.slow
def test_a_search_over_names():
    grid = {
        "model__hidden_layer_sizes": [(2,), (3, 2)],
        "optimizer__momentum": [0.5],
        "learning_rate__step_size": [2, 4],
        "runtime__checkpoint_activations": [True],
    }
    estimator = OrtGradientClassifier(optimizer="sgd", learning_rate="step", max_iter=2, random_state=0)
    search = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_estimator_.optimizer.momentum == 0.5
    assert search.best_estimator_.runtime.checkpoint_activations
    assert (estimator.model, estimator.optimizer, estimator.learning_rate) == (None, "sgd", "step")
    pipeline = make_pipeline(StandardScaler(), OrtGradientRegressor(max_iter=2))
    grid = {"ortgradientregressor__loss": ["huber"], "ortgradientregressor__loss__delta": [0.5, 1.0]}
    found = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y).best_estimator_
    assert found[-1].loss.delta in (0.5, 1.0)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"optimizer__momentm": 0.9}, r"Invalid parameter 'momentm' for estimator SGD\(\).*'momentum'"),
        ({"optimizer": "sdg", "optimizer__momentum": 0.9}, r"Unknown optimizer 'sdg'. Did you mean 'sgd'"),
        ({"optimizer": SGD, "optimizer__momentum": 0.9}, r"got the class SGD; give an instance: SGD\(\)"),
        (
            {"model": "net.onnx", "model__hidden_layer_sizes": 3},
            "Invalid parameter 'hidden_layer_sizes' for estimator GraphModel",
        ),
        ({"optimiser__momentum": 0.9}, "Invalid parameter 'optimiser'"),
        ({"max_grad_norm": 1.0}, r"of its optimizer: set optimizer__max_grad_norm, or give .*SGD\(max_grad_norm=...\)"),
        ({"beta_1": 0.5, "optimizer": "adam"}, "of its optimizer: set optimizer__beta_1"),
        ({"providers": ["CPUExecutionProvider"]}, "of its runtime: set runtime__providers"),
        ({"hidden_layer_sizes": (3,)}, "of its model: set model__hidden_layer_sizes"),
        ({"beta_1": 0.5}, "Invalid parameter 'beta_1'"),
    ],
)
def test_wrong_nested_name_is_refused_and_changes_nothing(params, match):
    estimator = OrtGradientClassifier(optimizer="sgd")
    with pytest.raises(ValueError, match=match):
        estimator.set_params(**params)
    assert estimator.optimizer == "sgd"


WRONG = [
    ({"model": MLP}, r"model must be .*got the class MLP; give an instance: MLP\(\)"),
    ({"model": 3}, "model must be .*, got int"),
    ({"optimizer": SGD}, r"optimizer must be .*got the class SGD; give an instance: SGD\(\)"),
    ({"loss": losses.Huber}, r"loss must be .*got the class Huber; give an instance: Huber\(\)"),
    (
        {"learning_rate": schedules.Cosine},
        r"learning_rate must .*got the class Cosine; give an instance: Cosine\(\)",
    ),
    ({"learning_rate": 0.01}, "learning_rate must be a name or a Schedule object, got float.*learning_rate_init=0.01"),
    ({"learning_rate": None}, "learning_rate must be .*, got NoneType"),
    ({"model": GraphModel(output="scores")}, r"output='scores' names an output .* model is None \(MLP\(\)\)"),
    ({"model": GraphModel(MLP(), "scores")}, "output='scores' names an output .* model is MLP"),
    (
        {"runtime": Runtime(session_options={1: 2})},
        "The keys of session_options must be names of options .strings., got 1",
    ),
    (
        {"runtime": Runtime(provider_options=[{1: 2}])},
        "The keys of provider_options must be names of options .strings., got 1",
    ),
    (
        {"runtime": Runtime(provider_options=[{"device_id": 1}])},
        "provider_options=.* has no effect without providers: the CPU takes no options",
    ),
    ({"class_weight": {0: "a"}}, "class_weight must contain non-negative numbers, got 'a'"),
    ({"class_weight": {0: -1.0, 1: 1.0}}, "class_weight must contain non-negative numbers, got -1.0"),
]


@pytest.mark.parametrize(("params", "match"), WRONG, ids=[f"{next(iter(p))}-{i}" for i, (p, _) in enumerate(WRONG)])
def test_every_parameter_is_checked(params, match):
    estimator = OrtGradientClassifier(max_iter=1).set_params(**params)
    with pytest.raises((TypeError, ValueError), match=match):
        estimator.fit(X, y)
    assert not hasattr(estimator, "classes_")


RECIPES = [RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor]
ESTIMATORS = [OrtGradientClassifier, OrtGradientRegressor, *RECIPES]
DECLARED = [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind in ESTIMATORS for name in kind.declared]
WRONG_VALUES = [
    "no", "", 0, 1, -1, 2.5, 7, 0.0, -0.1, 1.0, 1.5, np.nan, np.inf, -np.inf, None, [], {}, object(), MLP, b"auto",
    np.array([1, 2]), 1j,
]  # fmt: skip


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_parameter_is_declared_once(kind):
    assert set(inspect.signature(kind).parameters) == set(kind.declared)


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_values_that_the_declaration_excludes_are_refused(kind, name):
    rules = kind.declared[name].rules
    assert not rules or is_declared(rules, getattr(kind(), name))
    for value in WRONG_VALUES:
        if rules and not is_declared(rules, value):
            with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter of {kind.__name__} must be") as e:
                kind(**{name: value}).fit(X, y)
            assert repr(value) in str(e.value)
            assert isinstance(e.value, ValueError)
            assert isinstance(e.value, TypeError)


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_the_documentation_shows_kind_and_default(kind, name):
    default = inspect.signature(kind).parameters[name].default
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    assert f"\n{name} : {kind.declared[name].kind}, default={shown}\n    " in inspect.getdoc(kind)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_documentation_is_filled_in(kind):
    text = inspect.getdoc(kind)
    assert not re.search(r"\{[a-z]+\}", text)
    assert ("classes_ :" in text) == is_classifier(kind())


@pytest.mark.parametrize("kind", [OrtGradientClassifier, OrtGradientRegressor])
def test_the_documentation_lists_the_names(kind):
    text = inspect.getdoc(kind)
    assert all(f'"{name}"' in text for registry in (MODELS, OPTIMIZERS, SCHEDULES) for name in registry)


def test_a_misspelt_value_gets_the_nearest_one():
    with pytest.raises(InvalidParameterError, match=r"Got 'probability' instead\. Did you mean 'probabilities'"):
        OrtGradientClassifier(GraphModel("net.onnx", output_kind="probability")).fit(X, y)


def test_numbers_of_numpy_are_taken():
    parameters = {"shuffle": np.False_, "early_stopping": np.True_, "warm_start": np.bool_(0), "verbose": np.int64(0)}
    OrtGradientClassifier(MLP((2,)), max_iter=1, **parameters).fit(X, y)
