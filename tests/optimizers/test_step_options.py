"""Options of the step that all optimizers share: their names, copies and checks, and optimizers of the user."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import SGD, AdamW, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer, StepOptions
from onnxtrain_sklearn.schedules import Linear as LinearSchedule

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OPTIONS = {
    "max_grad_norm": 0.5,
    "ema_decay": 0.9,
    "accumulate": 2,
    "lazy_rows": True,
    "learning_rate_factors": {"*": 0.5},
    "weight_decay_factors": {"*": 0.5},
    "weight_decay_schedule": "linear",
}
KINDS = sorted(name for name, kind in OPTIMIZERS.items() if issubclass(kind, Optimizer))
X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
y = X @ np.array([1.0, -2.0, 0.5])


class Plain(Optimizer):
    """Gradient descent without a constructor."""

    def update(self, op, p, g, state, k):
        return op.Sub(p, op.Mul(g, k["learning_rate"])), {}


class Scaled(Plain):
    """One whose constructor passes the options on."""

    def __init__(self, share=1.0, **options):
        super().__init__(**options)
        self.share = share


class Closed(Plain):
    """One whose constructor takes no options."""

    def __init__(self, share=1.0):
        self.share = share


def trained(optimizer, **settings):
    return OrtGradientRegressor(
        Linear(), optimizer=optimizer, learning_rate_init=0.1, batch_size=6, shuffle=False, max_iter=1,
        target_scaling=None, **settings,
    )  # fmt: skip


def test_options_are_those_that_are_typed():
    assert set(OPTIONS) == set(StepOptions.__annotations__)


@pytest.mark.parametrize("kind", [*(OPTIMIZERS[name] for name in KINDS), Plain, Scaled])
def test_every_optimizer_has_the_options(kind):
    made = kind(**OPTIONS)
    names = set(inspect.signature(kind).parameters)
    assert names >= set(OPTIONS)
    assert set(kind().get_params()) == names
    for twin in (made, clone(made), pickle.loads(pickle.dumps(made)), kind().set_params(**OPTIONS)):
        assert {name: twin.get_params()[name] for name in OPTIONS} == OPTIONS
    assert repr(kind()) == f"{kind.__name__}()"
    assert "max_grad_norm=0.5" in repr(made)


@pytest.mark.parametrize("name", KINDS)
def test_docstrings_describe_the_options(name):
    text = inspect.getdoc(OPTIMIZERS[name])
    assert all(f"\n{option} : " in text for option in OPTIONS)
    assert "{options}" not in text


WRONG = {
    "max_grad_norm": [0.0, "1"], "ema_decay": [1.0, -0.1], "accumulate": [0, 1.5], "lazy_rows": ["lazy", 1],
    "learning_rate_factors": [{"*": -1.0}, 0.5], "weight_decay_factors": [[], {1: 1.0}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_are_refused_before_training(name, value):
    estimator = trained(SGD(**{name: value}))
    with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter of SGD must be"):
        estimator.fit(X, y)
    assert not hasattr(estimator, "n_iter_")


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="max_norm"):
        SGD(max_norm=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'max_norm' for estimator AdamW"):
        trained("adamw").set_params(optimizer__max_norm=1.0)


def test_constructor_without_options_error_names_remedy():
    with pytest.raises(InvalidParameterError, match=r"constructor of Closed does not take it: let it take \*\*options"):
        trained(Closed()).set_params(optimizer__accumulate=2)
    assert trained(Closed()).fit(X, y).n_iter_ == 1


@pytest.mark.parametrize("optimizer", [SGD(max_grad_norm=0.5), Plain(max_grad_norm=0.5), Scaled(max_grad_norm=0.5)])
def test_clipped_steps_are_those_of_numpy(optimizer):
    w, b = np.zeros(3), 0.0
    for start in range(0, 24, 6):
        rows = X[start : start + 6].astype(np.float64)
        residual = rows @ w + b - y[start : start + 6]
        g, h = 2 * rows.T @ residual / 6, 2 * residual.mean()
        share = min(1.0, 0.5 / np.sqrt(g @ g + h * h))
        w, b = w - 0.1 * share * g, b - 0.1 * share * h
    fitted = trained(optimizer).fit(X, y)
    assert_allclose(fitted.coef_.ravel(), w, rtol=1e-5)
    assert_allclose(fitted.intercept_, b, rtol=1e-5)


def test_options_may_change_between_calls_and_keep_the_state():
    """A limit that nothing reaches changes no bit of a training with momentum."""
    changed, plain = (trained(SGD(0.9), warm_start=True).fit(X, y) for _ in range(2))
    changed.set_params(optimizer__max_grad_norm=1e9).fit(X, y)
    assert_allclose(changed.coef_, plain.fit(X, y).coef_, rtol=1e-6)


def test_search_and_nested_schedules_replace_names():
    grid = {"optimizer__max_grad_norm": [0.01, None]}
    search = GridSearchCV(trained("sgd", random_state=0), grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_ == {"optimizer__max_grad_norm": None}
    estimator = trained("adamw").set_params(
        optimizer__weight_decay_schedule="linear", optimizer__weight_decay_schedule__final=0.5
    )
    assert estimator.optimizer.weight_decay_schedule.final == 0.5
    given = AdamW(weight_decay_schedule=LinearSchedule(final=0.5))
    same = trained(given, random_state=0).fit(X, y)
    assert_array_equal(estimator.set_params(random_state=0).fit(X, y).coef_, same.coef_)
