"""Optimizers as ONNX graphs over flat vectors, L-BFGS over SciPy, and their registry.

One minibatch step maps (parameters, gradients, state) to new ones, elementwise: every operand is one flat vector or
a scalar, so the same graph serves a vector of any length, or a piece of it. Scalars that change from step to step
(learning rate, bias corrections) are computed in float64 by :meth:`Optimizer.coefficients` and are inputs of the graph.
"""

from __future__ import annotations

from ._optimizers.adaptive import Adagrad, Adam, AdamW, RMSprop
from ._optimizers.base import Optimizer
from ._optimizers.lbfgs import LBFGS, BaseOptimizer, MinimizeResult
from ._optimizers.momentum import SGD, Lion
from ._optimizers.update_graph import PIECE, UpdateGraph, clip_graph, update_graph
from ._support.components import resolve

__all__ = [
    "LBFGS", "OPTIMIZERS", "PIECE", "SGD", "Adagrad", "Adam", "AdamW", "BaseOptimizer", "Lion", "MinimizeResult",
    "Optimizer", "RMSprop", "UpdateGraph", "clip_graph", "resolve_optimizer", "update_graph",
]  # fmt: skip

OPTIMIZERS: dict[str, type[BaseOptimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "lion": Lion,
    "lbfgs": LBFGS,
}

for _optimizer in OPTIMIZERS.values():
    _optimizer.__module__ = __name__  # the path by which pickles name it


def resolve_optimizer(optimizer: str | BaseOptimizer) -> BaseOptimizer:
    """Return the optimizer that a name or an object stands for, its parameters validated."""
    return resolve("optimizer", optimizer, OPTIMIZERS, BaseOptimizer, kind="Optimizer")
