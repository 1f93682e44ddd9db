"""Docstrings are numpydoc's, as the site, editors and the tables of scikit-learn in notebooks read them.

Every parameter of a signature has a header "name : type", and no header is of another name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import onnxtrain_sklearn
from onnxtrain_sklearn import adapters, callbacks, displays, finetuning, losses, models, optimizers, schedules

docscrape = pytest.importorskip("sklearn.externals._numpydoc.docscrape", reason="scikit-learn has it from 1.7 on")

REGISTRIES = (losses.LOSSES, optimizers.OPTIMIZERS, schedules.SCHEDULES, callbacks.CALLBACKS, models.MODELS)


def is_method(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)


def documented() -> Iterator[tuple[str, Any]]:
    """Public classes and functions, and the public methods that have parameters, by name."""
    named = {name: getattr(onnxtrain_sklearn, name) for name in onnxtrain_sklearn.__all__}
    for registry in REGISTRIES:
        named |= {kind.__name__: kind for kind in registry.values()}
    for module in (displays, finetuning, adapters):
        named |= {
            name: value
            for name, value in vars(module).items()
            if name in getattr(module, "__all__", [name])
            and not name.startswith("_")
            and getattr(value, "__module__", "").startswith(module.__name__)
        }
    for name, value in named.items():
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value
        for method, function in inspect.getmembers(value, is_method) if inspect.isclass(value) else ():
            own = function.__module__.startswith("onnxtrain_sklearn") and not method.startswith("_")
            if own and "Parameters\n" in (function.__doc__ or ""):
                yield f"{name}.{method}", function


CASES = dict(documented())


def headers(function: Any) -> list[tuple[str, str]]:
    """The names and the types in the section on parameters."""
    entries = docscrape.NumpyDocString(inspect.getdoc(function) or "")["Parameters"]
    return [(name.strip().lstrip("*"), entry.type) for entry in entries for name in entry.name.split(",")]


def test_cases_include_estimators_components_and_methods():
    assert {"OrtGradientClassifier", "RealMLPRegressor", "Checkpoint", "Huber", "OrtGradientRegressor.fit"} < set(CASES)
    assert {"GradientDisplay.from_history", "plot_graph", "OrtGradientMultiOutput.score"} < set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_a_header_with_its_type(name):
    found = headers(CASES[name])
    assert [one for one, kind in found if not kind] == []
    signature = inspect.signature(CASES[name]).parameters
    wanted = sorted(one for one in signature if one not in ("self", "cls", "args"))
    if found or wanted:
        assert sorted(one for one, _ in found) == wanted
