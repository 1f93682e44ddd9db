"""Generates the docstring sections on parameters and attributes of the estimators from the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from .parameters import Parameters

E = TypeVar("E", bound=type[Parameters])


def documented(*, score: str, classes: str = "") -> Callable[[E], E]:
    """Return a decorator that fills ``{parameters}`` and ``{attributes}`` in the docstring of an estimator.

    Parameters
    ----------
    score : str
        Description of the validation scores.
    classes : str
        The entry of ``classes_``, for a classifier.
    """

    def fill(cls: E) -> E:
        if cls.__doc__ is not None:  # python -OO
            attributes = ATTRIBUTE_SECTION.replace("{classes}\n", classes).replace("{score}", score)
            text = inspect.cleandoc(cls.__doc__).replace("{parameters}\n", _parameter_section(cls))
            cls.__doc__ = text.replace("{attributes}", attributes)
        return cls

    return fill


def _parameter_section(cls: type[Parameters]) -> str:
    """Return the section on parameters, in the order and with the defaults of the constructor."""
    signature = inspect.signature(cls).parameters
    entries = (cls.declared[name].documented(name, given.default) for name, given in signature.items())
    return f"Parameters\n----------\n{''.join(entries)}\n"


ATTRIBUTE_SECTION = """\
Attributes
----------
{classes}
n_features_in_ : int
    Columns of ``X`` (not for a dict of inputs).
feature_names_in_ : ndarray of str
    Names of the columns, where ``X`` has them.
n_outputs_ : int
    Scores a row.
n_iter_ : int
    Epochs trained, over all calls with ``warm_start`` and ``partial_fit``; an interrupted epoch does not count.
t_ : int
    Rows seen in them.
loss_ : float
    Mean loss of the last epoch, the penalty included.
loss_curve_ : list of float
    Mean loss of each epoch, of the latest 100,000.
best_loss_ : float or None
    Least loss of an epoch; None with early stopping.
validation_scores_ : list of float or None
    {score}, or the score that ``scoring`` names, on the validation data after each epoch, of the latest 100,000.
best_validation_score_ : float or None
    Best of these scores.
engine_, device_ : str
    The gradient engine and the device that were used.
model_ : onnx.ModelProto
    The trained inference graph.
coef_, intercept_ : ndarray, or a number
    Of graphs that are one linear layer of ``X``, a fitted linear model among them; others have none. Shapes are
    those of scikit-learn's linear models.
weights_ : dict of str to ndarray
    Every float parameter by its name in the graph, trained or frozen, and running statistics."""
