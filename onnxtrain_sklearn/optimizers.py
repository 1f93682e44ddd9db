"""Optimizers as ONNX graphs over flat vectors, and their registry.

One step maps (parameters, gradients, state) to new ones, elementwise: every operand is one flat vector or a scalar, so
the same graph serves a vector of any length, or a piece of it. Scalars that change from step to step (learning rate,
bias corrections) are computed in float64 by :meth:`Optimizer.coefficients` and are inputs of the graph.

The graph is run in place: a new vector is written over the old one. That is right only while nothing reads
the old vector after its successor is written; :func:`update_graph` proves it for every graph it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator

from ._graph.builder import GraphBuilder
from .exceptions import ModelError, nearest

Coefficients: TypeAlias = "dict[str, float | int]"
Update: TypeAlias = "tuple[ir.Value, dict[str, ir.Value]]"


class Optimizer(BaseEstimator, ABC):
    """Base class of the optimizers that take one step per minibatch; derive from it to write your own.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Optimizer
    >>> class SignSGD(Optimizer):
    ...     def update(self, op, parameters, gradients, state, coefficients):
    ...         return op.Sub(parameters, op.Mul(op.Sign(gradients), coefficients["learning_rate"])), {}
    >>> SignSGD()
    SignSGD()
    """

    def state(self) -> dict[str, float]:
        """Return the optimizer's vectors: name -> the value that fills them before the first step."""
        return {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        """Return the scalars of step ``t`` (the first step is 1); floats take the parameters' type, ints are int64."""
        return {"learning_rate": learning_rate}

    @abstractmethod
    def update(
        self,
        op: GraphBuilder,
        parameters: ir.Value,
        gradients: ir.Value,
        state: Mapping[str, ir.Value],
        coefficients: Mapping[str, ir.Value],
    ) -> Update:
        """Emit one step.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators.
        parameters, gradients : value of shape (P,)
            All trained parameters and their gradients.
        state : mapping of str to value of shape (P,)
            The vectors that :meth:`state` declares.
        coefficients : mapping of str to scalar value
            The scalars that :meth:`coefficients` returns.

        Returns
        -------
        parameters : value of shape (P,)
        state : dict of str to value of shape (P,)
        """

    elementwise: bool = True
    """Whether element i of the result depends on elements i alone, so that long vectors may be updated in pieces."""

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's own kernels, where those are faster."""
        return None


class SGD(Optimizer):
    r"""Stochastic gradient descent.

    .. math:: g_t ← g_t + λ p, \quad m_t = μ m_{t-1} + (1 - τ) g_t, \quad p ← p - η m_t

    or, with Nesterov's momentum, :math:`p ← p - η (g_t + μ m_t)`. The definition of ``torch.optim.SGD``.

    Parameters
    ----------
    momentum : float, default=0.0
        μ, in [0, 1).
    nesterov : bool, default=False
        Nesterov's momentum; needs ``momentum > 0`` and ``dampening == 0``.
    dampening : float, default=0.0
        τ, applied from the second step on, as PyTorch does.
    weight_decay : float, default=0.0
        λ, added to the gradient.

    References
    ----------
    Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    Examples
    --------
    >>> from onnxtrain_sklearn import SGD, OrtGradientClassifier
    >>> OrtGradientClassifier(optimizer=SGD(momentum=0.9), learning_rate_init=0.05)
    OrtGradientClassifier(learning_rate_init=0.05, optimizer=SGD(momentum=0.9))
    """

    def __init__(
        self, momentum: float = 0.0, nesterov: bool = False, dampening: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.momentum = momentum
        self.nesterov = nesterov
        self.dampening = dampening
        self.weight_decay = weight_decay

    def state(self) -> dict[str, float]:
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError("SGD(nesterov=True) needs momentum > 0 and dampening == 0.")
        return {"momentum": 0.0} if self.momentum else {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        if not (self.momentum and self.dampening):
            return {"learning_rate": learning_rate}
        return {"learning_rate": learning_rate, "weight": 1.0 if t == 1 else 1.0 - self.dampening}

    def update(
        self,
        op: GraphBuilder,
        parameters: ir.Value,
        gradients: ir.Value,
        state: Mapping[str, ir.Value],
        coefficients: Mapping[str, ir.Value],
    ) -> Update:
        g = op.Add(gradients, op.Mul(parameters, self.weight_decay)) if self.weight_decay else gradients
        if not self.momentum:
            return op.Sub(parameters, op.Mul(g, coefficients["learning_rate"])), {}
        weighted = op.Mul(g, coefficients["weight"]) if self.dampening else g
        momentum = op.Add(op.Mul(state["momentum"], self.momentum), weighted)
        direction = op.Add(g, op.Mul(momentum, self.momentum)) if self.nesterov else momentum
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
}


def resolve_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return the optimizer object that a name or an object stands for."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if not isinstance(optimizer, str):
        raise TypeError(f"optimizer must be a name or an Optimizer object, got {type(optimizer).__name__}.")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"Unknown optimizer {optimizer!r}.{nearest(optimizer, OPTIMIZERS)}")
    return OPTIMIZERS[optimizer]()


@dataclass(frozen=True)
class UpdateGraph:
    """One optimizer step as a graph.

    Attributes
    ----------
    model : onnx_ir.Model
        Inputs ``parameters``, ``gradients``, the slots and the coefficients by their names; outputs
        ``new_parameters`` and ``new_SLOT``, each of which may be written over its predecessor.
    slots : dict of str to float
        The state vectors and their initial values.
    coefficients : callable (learning_rate, t) -> dict of str to number
        The scalars of a step.
    elementwise : bool
        Whether it may be run on pieces of the vectors.
    """

    model: ir.Model
    slots: Mapping[str, float]
    coefficients: Callable[[float, int], Coefficients]
    elementwise: bool


def update_graph(optimizer: Optimizer, dtype: ir.DataType, *, fused: bool = False) -> UpdateGraph:
    """Return the update graph of ``optimizer`` for vectors of type ``dtype``, proven safe to run in place."""
    rule = (optimizer.fused() if fused else None) or optimizer
    vectors = {name: ir.val(name, dtype, ("P",)) for name in ("parameters", "gradients", *rule.state())}
    scalars = {
        name: ir.val(name, ir.DataType.INT64 if isinstance(c, int) else dtype, ())
        for name, c in rule.coefficients(0.001, 1).items()
    }
    graph = ir.Graph([*vectors.values(), *scalars.values()], [], nodes=[], opset_imports={"": 18}, name="update")
    op = GraphBuilder(graph, dtype=dtype, prefix="update")
    state = {name: vectors[name] for name in rule.state()}
    parameters, new_state = rule.update(op, vectors["parameters"], vectors["gradients"], state, scalars)
    for name, value in {"parameters": parameters, **new_state}.items():
        _check_in_place(optimizer, vectors[name], value)
        result = op.Identity(value) if value.producer() is None else value
        result.name, result.dtype, result.shape = f"new_{name}", dtype, ir.Shape(("P",))
        graph.outputs.append(result)
    return UpdateGraph(ir.Model(graph, ir_version=8), rule.state(), rule.coefficients, rule.elementwise)


def _check_in_place(optimizer: Optimizer, old: ir.Value, new: ir.Value) -> None:
    """Raise unless every reader of ``old`` must run before ``new`` is written, or is the node that writes it."""
    if new is old:
        return
    before: set[ir.Node | None] = set()
    front = [new.producer()]
    while front:
        node = front.pop()
        if node is not None and node not in before:
            before.add(node)
            front += [x.producer() for x in node.inputs if x is not None]
    late = [node for node in old.consumers() if node not in before]
    if late:
        raise ModelError(
            f"{type(optimizer).__name__}.update reads {old.name!r} in node {late[0].name!r} that may run after its new value "
            f"is written over it. Compute everything that needs the old {old.name!r} on the way to its new value."
        )
