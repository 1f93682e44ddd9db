"""Optimizers as ONNX graphs over flat vectors, L-BFGS over SciPy, and their registry.

One minibatch step maps (parameters, gradients, state) to new ones, elementwise: every operand is one flat vector or
a scalar, so the same graph serves a vector of any length, or a piece of it. Scalars that change from step to step
(learning rate, bias corrections) are computed in float64 by :meth:`Optimizer.coefficients` and are inputs of the graph.
"""

from __future__ import annotations

from ._optimizers.adaptive import Adagrad as Adagrad
from ._optimizers.adaptive import Adam as Adam
from ._optimizers.adaptive import AdamW as AdamW
from ._optimizers.adaptive import RMSprop as RMSprop
from ._optimizers.base import Optimizer as Optimizer
from ._optimizers.lbfgs import LBFGS as LBFGS
from ._optimizers.lbfgs import BaseOptimizer as BaseOptimizer
from ._optimizers.lbfgs import MinimizeResult as MinimizeResult
from ._optimizers.momentum import SGD as SGD
from ._optimizers.momentum import Lion as Lion
from ._optimizers.update_graph import PIECE as PIECE
from ._optimizers.update_graph import UpdateGraph as UpdateGraph
from ._optimizers.update_graph import clip_graph as clip_graph
from ._optimizers.update_graph import update_graph as update_graph
from ._support.components import registered, resolve

OPTIMIZERS: dict[str, type[BaseOptimizer]] = registered(BaseOptimizer, vars())
"""The optimizers imported above, by name."""


def resolve_optimizer(optimizer: str | BaseOptimizer) -> BaseOptimizer:
    """Return the optimizer that a name or an object stands for, its parameters validated."""
    return resolve("optimizer", optimizer, OPTIMIZERS, BaseOptimizer, kind="Optimizer")
