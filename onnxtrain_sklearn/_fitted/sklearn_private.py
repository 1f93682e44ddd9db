"""Private names of scikit-learn, which may change in any release; each is imported on first use.

Nothing here is imported with the package: an estimator that trains a graph of its own never needs these names, and a
release of scikit-learn that renames one of them breaks only the fitted models that need it. No other module of the
package imports a private module of scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import Any

import sklearn

from .._utils.typing import Estimator
from ..exceptions import ModelError

NAMES = {
    "BaseSearchCV": "sklearn.model_selection._search",
    "COEFS": "sklearn.gaussian_process._gpc",
    "LAMBDAS": "sklearn.gaussian_process._gpc",
    "_ConstantPredictor": "sklearn.multiclass",
    "_average_path_length": "sklearn.ensemble._iforest",
    "_safe_indexing": "sklearn.utils",
}
"""For each private name, the module of scikit-learn that defines it."""


def __getattr__(name: str) -> Any:
    """Import a name of :data:`NAMES` and keep it."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(NAMES[name]), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"scikit-learn {sklearn.__version__} has no {NAMES[name]}.{name}, which fitted models are read by. Install "
            f"a version of scikit-learn that onnxtrain-sklearn is tested with, or a newer onnxtrain-sklearn."
        ) from error
    globals()[name] = found
    return found


def response_method(rule: Estimator) -> str:
    """Return the method (``predict_proba`` or ``decision_function``) whose result is compared with the threshold."""
    methods = rule._get_response_method()
    methods = [methods] if isinstance(methods, str) else methods
    return next(str(name) for name in methods if hasattr(rule, name))


def positive_label(tuned: Estimator) -> Any:
    """Return the label that is predicted if a tuned threshold is reached; None means the second class."""
    return tuned._curve_scorer._get_pos_label()


def huber_delta(booster: Estimator) -> float:
    """Return the Huber loss's delta of the last trees: the residual up to which errors are squared."""
    return float(booster._loss.closs.delta)
