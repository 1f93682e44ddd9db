"""Optimizers with options of a step, for tests in which both are parameters."""

from __future__ import annotations

from typing import Any, TypeVar

from sklearn.base import clone

from onnxtrain_sklearn.optimizers import BaseOptimizer, resolve_optimizer

E = TypeVar("E", bound=Any)


def with_options(optimizer: str | BaseOptimizer, **options: Any) -> BaseOptimizer:
    """Return a copy of an optimizer, or the one of a name, with these options."""
    return clone(resolve_optimizer(optimizer)).set_params(**options)


def configured(estimator: E, **settings: Any) -> E:
    """Return an estimator with these parameters; those of its optimizer are set on a copy, which no other test has."""
    given = {name: clone(value, safe=False) if name == "optimizer" else value for name, value in settings.items()}
    return estimator.set_params(**given)
