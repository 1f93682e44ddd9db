"""The base class of the optimizers that take a step per minibatch."""

from __future__ import annotations

from abc import ABC, abstractmethod

from onnx_ir import Value

from .._graph.builder import GraphBuilder
from .lbfgs import BaseOptimizer
from .update_graph import Coefficients, Named, Step


class Optimizer(BaseOptimizer, ABC):
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

    __module__ = "onnxtrain_sklearn.optimizers"  # the path by which pickles name it

    def state(self) -> dict[str, float]:
        """Return the optimizer's vectors: name -> the value that fills them before the first step."""
        return {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        """Return the scalars of step ``t`` (the first step is 1); floats take the parameters' type, ints are int64."""
        return {"learning_rate": float(learning_rate)}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        """Emit the scalars of :meth:`coefficients` in float64, for training graphs that run without Python.

        An optimizer that overrides :meth:`coefficients` overrides this method too.

        Parameters
        ----------
        op : GraphBuilder
            Its constants are float64.
        learning_rate, t : scalar values of float64
            The learning rate and the number of the step, from 1.
        """
        return {"learning_rate": learning_rate}

    @abstractmethod
    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        """Emit one step; return the new parameters and the new state.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators: ``op.Mul(x, y)``.
        parameters, gradients : value of shape (P,)
        state : mapping of str to value of shape (P,)
            The vectors that :meth:`state` declares.
        coefficients : mapping of str to scalar value
            The scalars that :meth:`coefficients` returns. Where a schedule changes the weight decay, "weight_decay" is
            one of them too: an optimizer that uses the parameter of that name takes this scalar instead, unless its
            own coefficients depend on the parameter.
        """

    elementwise: bool = True
    """Whether element i of the result depends on elements i alone, so that long vectors may be updated in pieces."""

    @property
    def moves_without_gradient(self) -> bool:
        """Whether an element may change in a step in which its gradient is zero.

        Where it is False, rows of an embedding that do not occur in a minibatch are not updated, which saves time.
        """
        return True

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's float32 kernels, where those are faster."""
        return None
