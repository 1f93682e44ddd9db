"""Parameters of the estimators: each is checked, and those of objects within them are set by their names."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, SGD, Adam, OrtGradientClassifier, OrtGradientRegressor, losses, schedules

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)

NESTED = {
    "model": (MLP, None, "hidden_layer_sizes", (3,)),
    "loss": (losses.Huber, "huber", "delta", 0.5),
    "optimizer": (SGD, "sgd", "momentum", 0.9),
    "learning_rate": (schedules.StepDecay, "step", "step_size", 3),
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


def test_a_search_over_names():
    grid = {
        "model__hidden_layer_sizes": [(2,), (3, 2)],
        "optimizer__momentum": [0.5],
        "learning_rate__step_size": [2, 4],
    }
    estimator = OrtGradientClassifier(optimizer="sgd", learning_rate="step", max_iter=2, random_state=0)
    search = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_estimator_.optimizer.momentum == 0.5
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
        ({"optimizer": SGD, "optimizer__momentum": 0.9}, r"give an instance: SGD\(\)"),
        ({"model": "net.onnx", "model__hidden_layer_sizes": 3}, r"model__hidden_layer_sizes .*got str .'net.onnx'"),
        ({"optimiser__momentum": 0.9}, "Invalid parameter 'optimiser'"),
    ],
)
def test_a_wrong_nested_name_is_told_and_changes_nothing(params, match):
    estimator = OrtGradientClassifier(optimizer="sgd")
    with pytest.raises(ValueError, match=match):
        estimator.set_params(**params)
    assert estimator.optimizer in ("sgd", SGD)


WRONG = [
    ({"model": MLP}, r"model must be .*give an instance: MLP\(\)"),
    ({"model": 3}, "model must be .*, got int"),
    ({"optimizer": SGD}, r"optimizer must be .*give an instance: SGD\(\)"),
    ({"loss": losses.Huber}, r"loss must be .*give an instance: Huber\(\)"),
    ({"learning_rate": schedules.Cosine}, r"learning_rate must be .*give an instance: Cosine\(\)"),
    ({"learning_rate": 0.01}, "learning_rate must be a name or a Schedule object, got float.*learning_rate_init=0.01"),
    ({"learning_rate": None}, "learning_rate must be .*, got NoneType"),
    ({"early_stopping": "no"}, "early_stopping must be True or False, got str .'no'"),
    ({"early_stopping": 1}, "early_stopping must be True or False, got int"),
    ({"shuffle": None}, "shuffle must be True or False, got NoneType"),
    ({"warm_start": "no"}, "warm_start must be True or False, got str .'no'"),
    ({"verbose": -1}, "verbose == -1, must be >= 0"),
    ({"verbose": "yes"}, "verbose must be an instance of int, not str"),
    ({"verbose": None}, "verbose must be an instance of int, not NoneType"),
    ({"output": "scores"}, r"output='scores' names an output .* model is None \(MLP\(\)\)"),
    ({"output": "scores", "model": MLP()}, "output='scores' names an output .* model is MLP"),
    ({"output": 0}, "output must be the name of an output .*, got int .0"),
    ({"validation_fraction": 7}, "validation_fraction == 7, must be < 1"),
    ({"session_options": {1: 2}}, "The keys of session_options must be names of options .strings., got 1"),
    ({"provider_options": [{1: 2}]}, "The keys of provider_options must be names of options .strings., got 1"),
    ({"session_options": 3}, "session_options must be a dict or None, got int"),
    ({"class_weight": "auto"}, "class_weight must be a dict .*, got str"),
    ({"class_weight": 3}, "class_weight must be a dict .*, got int"),
    ({"class_weight": {0: "a"}}, "class_weight must not hold .*, got 'a'"),
    ({"class_weight": {0: -1.0, 1: 1.0}}, "class_weight must not hold negative weights .*got -1.0"),
]


@pytest.mark.parametrize(("params", "match"), WRONG, ids=[f"{next(iter(p))}-{i}" for i, (p, _) in enumerate(WRONG)])
def test_every_parameter_is_checked(params, match):
    estimator = OrtGradientClassifier(max_iter=1).set_params(**params)
    with pytest.raises((TypeError, ValueError), match=match):
        estimator.fit(X, y)
    assert not hasattr(estimator, "classes_")


def test_numbers_of_numpy_are_taken():
    parameters = {"shuffle": np.False_, "early_stopping": np.True_, "warm_start": np.bool_(0), "verbose": np.int64(0)}
    OrtGradientClassifier(MLP((2,)), max_iter=1, **parameters).fit(X, y)
