"""The interface of optimizers: the base classes, what an optimizer is told of a parameter, and terms that they share.

A step maps parameters, gradients and state to new ones. An elementwise optimizer states it for one element: it is given
vectors of any length, so that one graph updates all parameters at once, or a piece of them. Any other is given each
parameter by itself, in its shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from onnx_ir import Value

from .._utils.params import Component
from ..graph import GraphBuilder
from .scalars import Number

Named: TypeAlias = "Mapping[str, Value]"
Step: TypeAlias = "tuple[Value, dict[str, Value]]"


class BaseOptimizer(Component):
    """Base class of :class:`Optimizer` and :class:`LBFGS`."""


@dataclass(frozen=True)
class Parameter:
    """A trained parameter, or the vector of several that an elementwise optimizer updates at once.

    Attributes
    ----------
    name : str
    shape : tuple of int
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """An array of an optimizer's state.

    Attributes
    ----------
    shape : tuple of int
    fill : float, default=0.0
        The value of its elements before the first step.
    """

    shape: tuple[int, ...]
    fill: float = 0.0


class Optimizer(BaseOptimizer, ABC):
    """Base class of the optimizers that take one step per minibatch; derive from it to write your own.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Optimizer
    >>> class SignSGD(Optimizer):
    ...     def update(self, op, p, g, state, k):
    ...         return op.Sub(p, op.Mul(op.Sign(g), k["learning_rate"])), {}
    >>> SignSGD()
    SignSGD()
    """

    elementwise: ClassVar[bool] = True
    """True if element i of the result depends on elements i alone. Then :meth:`update` is given vectors that hold many
    parameters, or a piece of one; otherwise each parameter in its shape."""

    def slots(self, p: Parameter) -> dict[str, Slot]:
        """Return the arrays of the state for a parameter, by name.

        Those of an elementwise optimizer have the shape of the parameter, and equal fills for all parameters.
        """
        return {}

    def scalars(self, learning_rate: Number, t: Number) -> Mapping[str, Number]:
        """Return the scalars of step ``t`` (the first step is 1): bias corrections and the like.

        Floats are computed in double precision and take the parameters' type; integers are int64. Exported training
        graphs compute the same arithmetic by operators: take :func:`sqrt`, :func:`minimum`, :func:`maximum` and
        :func:`where` of this package instead of functions of ``math`` and ``if``, and no ``float()``.
        """
        return {"learning_rate": learning_rate}

    @abstractmethod
    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        """Emit one step; return the new parameters and the new state.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators: ``op.Mul(x, y)``.
        p, g : value
            Parameters and gradients: vectors, or of the parameter's shape if the optimizer is not elementwise.
        state : mapping of str to value
            The arrays that :meth:`slots` declares.
        k : mapping of str to scalar value
            The scalars that :meth:`scalars` returns. Where a schedule changes the weight decay, "weight_decay" is
            one of them too: an optimizer that uses the parameter of that name takes this scalar instead, unless its
            own scalars depend on the parameter.
        """

    def for_parameter(self, p: Parameter) -> Optimizer:
        """Return the optimizer of a parameter: this one, or another for parameters that this one does not fit."""
        return self

    @property
    def moves_without_gradient(self) -> bool:
        """True if an element may change in a step in which its gradient is zero.

        Where it is False, rows of an embedding that do not occur in a minibatch are not updated, which saves time.
        """
        return True

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's float32 kernels, where those are faster."""
        return None


# Terms that optimizers share: the penalty of weight decay, running averages.


WEIGHT_DECAY = "weight_decay"
"""The parameter of an optimizer, and the scalar that stands for it where a schedule changes it."""


class Decaying(Protocol):
    """An optimizer with weight decay."""

    weight_decay: float


def with_penalty(op: GraphBuilder, gradients: Value, parameters: Value, optimizer: Decaying, k: Named) -> Value:
    """Emit the gradients plus the weight decay times the parameters."""
    if not optimizer.weight_decay:
        return gradients
    return op.Add(gradients, op.Mul(parameters, k.get(WEIGHT_DECAY, optimizer.weight_decay)))


def running_average(op: GraphBuilder, old: Value, x: Value, decay: float, gap: Any = None) -> Value:
    """Emit the new average ``decay * old + (1 - decay) * x``; ``gap`` is ``x - old`` where it is known."""
    # Not β a + (1 - β) x, which costs the same: in float32, 0.999 and 0.001 do not add up to one.
    gap = op.Sub(x, old) if gap is None else gap
    return op.Add(old, op.Mul(gap, 1.0 - decay)) if decay >= 0.5 else op.Sub(x, op.Mul(gap, decay))
