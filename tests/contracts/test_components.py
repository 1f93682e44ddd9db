"""What every builder, loss, optimizer and schedule must do: clone, pickle, take parameters, print, alone and inside."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

import onnxtrain_sklearn
from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, losses, models, optimizers, schedules
from onnxtrain_sklearn.callbacks import CALLBACKS
from onnxtrain_sklearn.callbacks.base import Callback
from onnxtrain_sklearn.losses import LOSSES, Loss, resolve_loss
from onnxtrain_sklearn.models import MODELS
from onnxtrain_sklearn.models.base import BaseBuilder
from onnxtrain_sklearn.optimizers import OPTIMIZERS, BaseOptimizer, base, resolve_optimizer
from onnxtrain_sklearn.schedules import SCHEDULES, Schedule, resolve_schedule
from tests.helpers.estimators import is_declared

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROLES: dict[str, dict[str, type[BaseEstimator]]] = {
    "model": MODELS, "loss": LOSSES, "optimizer": OPTIMIZERS, "learning_rate": SCHEDULES,
}  # fmt: skip
"""The estimators' parameter that takes a kind of component, and the components by name."""

MODULES = {"model": models, "loss": losses, "optimizer": optimizers, "learning_rate": schedules}
RESOLVE = {"loss": resolve_loss, "optimizer": resolve_optimizer, "learning_rate": resolve_schedule}

UNDECLARED: dict[str, Any] = {
    "schedule": "cosine",
    "categories": {1: 4},
    "quantiles": [0.2, 0.5],
    "monotonic_cst": [1, 0, -1, 0, 0],
    "weight_decay_schedule": "cosine",
    "learning_rate_factors": {"*": 0.5},
    "weight_decay_factors": {"*": 0.5},
}
"""A valid value, not the default, of every parameter whose values no component declares."""

VALUES = (0.8, 0.3, 3.0, 7, 50, False, True)
"""Values that are tried for a parameter by its rules, beside those that a rule lists."""


def other(kind: type[BaseEstimator], name: str) -> Any:
    """Return a valid value of a parameter that is not its default, by the values that the component declares."""
    if name in UNDECLARED:
        return UNDECLARED[name]
    rules = base.VALID | kind.valid if issubclass(kind, optimizers.Optimizer) else kind.valid
    rule, default = rules[name][0], kind().get_params()[name]
    return next(v for v in (*getattr(rule, "values", ()), *VALUES) if is_declared([rule], v) and v != default)


COMPONENTS = [
    pytest.param(role, kind, id=f"{role}-{name}") for role, known in ROLES.items() for name, kind in known.items()
]

X, y = make_classification(60, 5, n_informative=5, n_redundant=0, random_state=0)
X = scale(X).astype(np.float32)


def changed_value(kind: type[BaseEstimator]) -> dict[str, Any]:
    """Return other values of all parameters that go together."""
    alone = {("SGD", "dampening"), ("MLP", "monotonic_cst")}
    names = [name for name in kind().get_params(deep=False) if (kind.__name__, name) not in alone]
    return {name: other(kind, name) for name in names}


def estimator_with(role: str, component: Any, **parameters: Any) -> OrtGradientClassifier | OrtGradientRegressor:
    regression = role == "loss" and "regression" in component.tasks
    kind = OrtGradientRegressor if regression else OrtGradientClassifier
    settings = {"max_iter": 2, "batch_size": 16, "random_state": 0, "model": models.MLP((3,)), role: component}
    return kind(**settings | parameters)


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_parameters_are_stored_as_they_were_given(role, kind):
    names = list(inspect.signature(kind).parameters)
    marks = {name: object() for name in names}
    component = kind(**marks)
    assert {name: getattr(component, name) for name in names} == marks
    assert component.get_params(deep=False) == marks
    assert vars(component) == marks


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
@pytest.mark.parametrize(
    "make", [clone, copy.copy, copy.deepcopy, lambda component: pickle.loads(pickle.dumps(component))]
)
def test_copies_are_of_the_kind_and_have_the_parameters(role, kind, make):
    for component in (kind(), kind(**changed_value(kind))):
        twin = make(component)
        assert type(twin) is kind
        assert twin is not component
        assert twin.get_params() == component.get_params()


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_parameters_can_be_set(role, kind):
    component, other = kind(), changed_value(kind)
    assert all(component.get_params()[name] != value for name, value in other.items())
    assert component.set_params(**other) is component
    assert component.get_params() | other == component.get_params()
    if role in RESOLVE:
        assert RESOLVE[role](component) is component
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        component.set_params(nonsense=1)


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_repr_evaluates_to_an_equal_component(role, kind):
    names = vars(MODULES[role]) | {"inf": np.inf}
    assert repr(kind()) == f"{kind.__name__}()"
    for component in (kind(), kind(**changed_value(kind))):
        assert repr(eval(repr(component), names)) == repr(component)


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_every_component_has_documentation_with_its_parameters(role, kind):
    text = inspect.getdoc(kind)
    assert text
    assert all(name in text for name in inspect.signature(kind).parameters)


@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_nested_parameters_of_an_estimator(role, kind):
    outer = estimator_with(role, kind())
    for name, value in changed_value(kind).items():
        outer.set_params(**{f"{role}__{name}": value})
        assert outer.get_params()[f"{role}__{name}"] == getattr(getattr(outer, role), name) == value
    twin = clone(outer)
    assert getattr(twin, role) is not getattr(outer, role)
    assert getattr(twin, role).get_params() == getattr(outer, role).get_params()


def takes_targets_by_name(component):
    return isinstance(getattr(component, "targets", None), Mapping)


@pytest.mark.filterwarnings("ignore:lazy_rows=True has no effect")
@pytest.mark.parametrize(("role", "kind"), COMPONENTS)
def test_training_leaves_component_and_pickle_unchanged(role, kind):
    component = kind(**changed_value(kind))
    before, attributes = component.get_params(), dict(vars(component))
    if takes_targets_by_name(component):
        pytest.skip("tests/losses/test_declared_targets.py trains it, on its own targets")
    labels = np.eye(2)[y] if getattr(component, "targets", "labels") != "labels" else y + 1
    fitted = estimator_with(role, component).fit(X, labels)
    assert component.get_params() == before
    assert vars(component) == attributes
    twin = pickle.loads(pickle.dumps(estimator_with(role, component))).fit(X, labels)
    assert_array_equal(fitted.predict(X), twin.predict(X))
    for name, array in fitted.weights_.items():
        assert_array_equal(array, twin.weights_[name])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["loss", "optimizer", "learning_rate"])
def test_a_name_stands_for_the_object_with_its_defaults(role):
    for name, kind in ROLES[role].items():
        if takes_targets_by_name(kind()):
            continue
        by_name, by_object = (
            estimator_with(role, kind()).set_params(**{role: name}).fit(X, y + 1),
            estimator_with(role, kind()),
        )
        assert_array_equal(by_name.predict(X), by_object.fit(X, y + 1).predict(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid",
    [
        {"optimizer__momentum": [0.0, 0.9]},
        {"optimizer__nesterov": [True], "optimizer__momentum": [0.5, 0.9]},
        {"model__hidden_layer_sizes": [(2,), (4, 3)]},
        {"model__activation": ["relu", "tanh"], "loss__gamma": [0.0, 2.0]},
        {"learning_rate__final": [0.0, 1.0]},
        {"optimizer": [optimizers.SGD(), optimizers.Adam()], "model": [models.Linear(), models.MLP()]},
    ],
)
def test_grids_over_components(grid):
    search = GridSearchCV(
        OrtGradientClassifier(
            models.MLP((3,)), optimizer=optimizers.SGD(momentum=0.5), loss=losses.Focal(),
            learning_rate=schedules.Cosine(), max_iter=2, random_state=0,
        ),
        grid, cv=2, error_score="raise",
    ).fit(X, y)  # fmt: skip
    for name, value in search.best_params_.items():
        assert repr(search.best_estimator_.get_params()[name]) == repr(value)


def subclasses(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        yield derived
        yield from subclasses(derived)


def test_every_component_that_declares_a_name_is_registered():
    package = onnxtrain_sklearn.__name__
    bases = (Loss, BaseBuilder, BaseOptimizer, Schedule, Callback)
    known = {kind for role in bases for kind in subclasses(role) if kind.__module__.partition(".")[0] == package}
    named = {kind for kind in known if "name" in vars(kind)}
    registries = (*ROLES.values(), CALLBACKS)
    assert named == {kind for known in registries for kind in known.values()}
    for known in registries:
        assert list(known) == sorted({kind.name for kind in known.values()})


def test_components_are_exported_publicly():
    for role, known in ROLES.items():
        for kind in known.values():
            assert getattr(MODULES[role], kind.__name__) is kind
            assert kind.__module__ == MODULES[role].__name__
    for kind in MODELS.values():
        assert getattr(onnxtrain_sklearn, kind.__name__) is kind


def test_clones_share_nothing_that_can_change():
    sizes = [3, 4]
    model = models.MLP(sizes)
    twin = clone(model)
    sizes.append(5)
    assert twin.hidden_layer_sizes == [3, 4]
    assert type(twin) is models.MLP
    assert clone(models.Embedded(model=model)).model is not model


def test_clones_of_components_of_others_are_checked():
    class Doubled(losses.Huber):
        def __init__(self, delta=1.0):
            super().__init__(2 * delta)

    with pytest.raises(RuntimeError, match="constructor either does not set or modifies parameter delta"):
        clone(Doubled(1.5))
