"""What a converter of our own is, and what all of them emit with.

A converter emits what one estimator computes, in operators that are trained or that have a rewriting rule. Its fitted
numbers are parameters, under the names of their attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder


@dataclass(frozen=True)
class Converter:
    """How one class of estimators is converted.

    Attributes
    ----------
    emit : callable
        ``(op, x, estimator)`` to what it predicts or transforms rows into; of a detector of outliers the scores.
    columns : callable
        The number of columns of that, from the estimator.
    takes : callable
        Whether these settings of the estimator are converted here.
    """

    emit: Callable[[GraphBuilder, ir.Value, Any], ir.Value]
    columns: Callable[[Any], int]
    takes: Callable[[Any], bool] = lambda estimator: True


def parameter(op: GraphBuilder, name: str, numbers: Any) -> ir.Value:
    """Return an initializer that is trained; the name of the attribute is in its name."""
    return op.parameter(op.name(name), np.ascontiguousarray(numbers, np.float32))
