"""Optimizers as ONNX graphs over flat vectors, L-BFGS over SciPy, their registry, and in-place update graphs.

Derive from :class:`Optimizer` to write your own; :data:`OPTIMIZERS` names the optimizers, :func:`resolve_optimizer`
finds one, and :func:`update_graph` makes the graph of its step.

One minibatch step maps (parameters, gradients, state) to new ones, elementwise: every operand is one flat vector or
a scalar, so the same graph serves a vector of any length, or a piece of it. Scalars that change from step to step
(learning rate, bias corrections) are computed in float64 by :meth:`Optimizer.coefficients` and are inputs of the graph.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir
import scipy.optimize
from onnx_ir import Value

from ._ir.edits import append_output
from ._utils.params import BELOW_ONE, COUNT, FRACTION, NOT_NEGATIVE, Component, Rules, registered, resolve
from .exceptions import ModelError, instead_of
from .graph import GraphBuilder, Operand, new_graph, operators_of

__all__ = [
    "LBFGS",
    "OPTIMIZERS",
    "PIECE",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "BaseOptimizer",
    "Lion",
    "MinimizeResult",
    "Optimizer",
    "RMSprop",
    "UpdateGraph",
    "clip_graph",
    "resolve_optimizer",
    "update_graph",
]

# L-BFGS by SciPy, the only optimizer that minimizes the loss of the whole data set.


IterationCallback: TypeAlias = "Callable[[np.ndarray, float], bool | None]"
Objective: TypeAlias = "Callable[[np.ndarray], tuple[float, np.ndarray]]"


class BaseOptimizer(Component):
    """Base class of :class:`Optimizer` and :class:`LBFGS`."""


@dataclass(frozen=True, eq=False)
class MinimizeResult:
    """Result of ``LBFGS.minimize``: the last iterate, of shape (P,), and its objective.

    ``converged``: a tolerance was met; ``limited``: a limit was reached; else a line search failed. ``message`` is
    SciPy's.
    """

    vector: np.ndarray
    loss: float
    n_iter: int
    converged: bool
    limited: bool
    message: str


class LBFGS(BaseOptimizer):
    r"""Limited-memory BFGS on the whole data set: a quasi-Newton method for smooth losses on small data.

    .. math:: p ← p - η_k H_k ∇f(p)

    with H an inverse Hessian estimated from the last iterations and η from a line search: learning rate, schedule,
    batch size and order of the rows play no role, nor does ``n_iter_no_change`` without early stopping. Run by
    ``scipy.optimize.minimize(method="L-BFGS-B")``, as in scikit-learn's MLP. Liu and Nocedal, "On the limited memory
    BFGS method for large scale optimization", Mathematical Programming 45, 1989.

    Parameters
    ----------
    history_size : int, default=10
        Iterations that H is estimated from, at least 1; each costs two vectors of float64.
    max_line_searches, max_fun : int, default=20 and 15000
        Evaluations of the objective in one line search and in all, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn.optimizers import LBFGS
    >>> LBFGS().minimize(lambda x: (float(x @ x), 2 * x), np.array([3.0, 4.0]), max_iter=20, tol=1e-6).converged
    True
    """

    name = "lbfgs"
    valid: ClassVar[Rules] = dict.fromkeys(("history_size", "max_line_searches", "max_fun"), (COUNT,))

    def __init__(self, history_size: int = 10, max_line_searches: int = 20, max_fun: int = 15000) -> None:
        self.history_size = history_size
        self.max_line_searches = max_line_searches
        self.max_fun = max_fun

    def minimize(
        self,
        objective: Objective,
        start: np.ndarray,
        *,
        max_iter: int,
        tol: float,
        callback: IterationCallback | None = None,
    ) -> MinimizeResult:
        """Minimize ``objective`` from ``start``; the vectors, of shape (P,), are float64.

        Parameters
        ----------
        objective : callable (vector) -> (loss, gradient)
            It must neither keep nor change the vector.
        start : ndarray of shape (P,)
        max_iter, tol : int, float
            Maximum number of iterations. The search ends earlier if no element of the gradient exceeds ``tol``, or if
            the loss stops falling.
        callback : callable (vector, loss) -> bool or None, optional
            Called after each iteration; True stops the search.
        """
        limits = {"maxls": self.max_line_searches, "maxfun": self.max_fun, "maxiter": max_iter}
        options: Any = {"maxcor": self.history_size, "gtol": tol, **limits}

        def report(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if callback is not None and callback(intermediate_result.x, float(intermediate_result.fun)):
                raise StopIteration

        x0: Any = np.asarray(start, np.float64)
        end = scipy.optimize.minimize(objective, x0, jac=True, method="L-BFGS-B", callback=report, options=options)
        return MinimizeResult(end.x, float(end.fun), int(end.nit), bool(end.success), end.status == 1, str(end.message))


# The base class of the optimizers that take a step per minibatch.


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
    """True if element i of the result depends on elements i alone, so that long vectors may be updated in pieces."""

    @property
    def moves_without_gradient(self) -> bool:
        """True if an element may change in a step in which its gradient is zero.

        Where it is False, rows of an embedding that do not occur in a minibatch are not updated, which saves time.
        """
        return True

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's float32 kernels, where those are faster."""
        return None


# Optimizers whose steps follow the gradient, or a running average of it: SGD and Lion.


class SGD(Optimizer):
    r"""Stochastic gradient descent.

    .. math:: g_t ← g_t + λ p, \quad m_t = μ m_{t-1} + (1 - τ) g_t, \quad p ← p - η m_t

    or, with Nesterov's momentum, :math:`p ← p - η (g_t + μ m_t)`. The definition of ``torch.optim.SGD``. Sutskever et
    al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    Parameters
    ----------
    momentum : float, default=0.0
        μ, in [0, 1).
    nesterov : bool, default=False
        Nesterov's momentum; needs ``momentum > 0`` and ``dampening == 0``.
    dampening : float, default=0.0
        τ, in [0, 1], applied from the second step on, as PyTorch does.
    weight_decay : float, default=0.0
        λ, in [0, inf), added to the gradient.

    Examples
    --------
    >>> from onnxtrain_sklearn import SGD, OrtGradientClassifier
    >>> OrtGradientClassifier(optimizer=SGD(momentum=0.9), learning_rate_init=0.05)
    OrtGradientClassifier(learning_rate_init=0.05, optimizer=SGD(momentum=0.9))
    """

    name = "sgd"
    valid: ClassVar[Rules] = {
        "momentum": (BELOW_ONE,),
        "nesterov": (bool,),
        "dampening": (FRACTION,),
        "weight_decay": (NOT_NEGATIVE,),
    }

    def __init__(
        self, momentum: float = 0.0, nesterov: bool = False, dampening: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.momentum = momentum
        self.nesterov = nesterov
        self.dampening = dampening
        self.weight_decay = weight_decay

    def validate(self) -> None:
        super().validate()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(f"SGD(nesterov=True) needs momentum in (0, 1) and dampening == 0, got {self!r}.")

    @property
    def moves_without_gradient(self) -> bool:
        return bool(self.momentum or self.weight_decay)

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        if not (self.momentum and self.dampening):
            return super().coefficients(learning_rate, t)
        return {"learning_rate": float(learning_rate), "weight": 1.0 if t == 1 else 1.0 - float(self.dampening)}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        found = super().emit_coefficients(op, learning_rate, t)
        if self.momentum and self.dampening:
            found["weight"] = op.Where(op.Equal(t, 1.0), 1.0, 1.0 - float(self.dampening))
        return found

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g, mu = with_penalty(op, gradients, parameters, self, coefficients), float(self.momentum)
        if not mu:
            return op.Sub(parameters, op.Mul(g, coefficients["learning_rate"])), {}
        weighted = op.Mul(g, coefficients["weight"]) if self.dampening else g
        momentum = op.Add(op.Mul(state["momentum"], mu), weighted)
        direction = op.Add(g, op.Mul(momentum, mu)) if self.nesterov else momentum
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}

    def fused(self) -> Optimizer | None:
        return None if self.momentum or self.weight_decay else _FusedSGD()


class Lion(Optimizer):
    r"""Lion: steps of one size, by the sign of a running average of the gradient.

    .. math:: p ← p - η (\operatorname{sign}(β_1 m_{t-1} + (1 - β_1) g_t) + λ p), \quad
        m_t = β_2 m_{t-1} + (1 - β_2) g_t

    Every element moves by η, so learning rates are three to ten times smaller than those of :class:`AdamW`. One vector
    of state instead of two. Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9 and 0.99
        Shares of the average in the step and in the next average, in [0, 1).
    weight_decay : float, default=0.0
        λ, in [0, inf), relative to the learning rate.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Lion
    >>> Lion(weight_decay=0.1)
    Lion(weight_decay=0.1)
    """

    name = "lion"
    valid: ClassVar[Rules] = {"beta_1": (BELOW_ONE,), "beta_2": (BELOW_ONE,), "weight_decay": (NOT_NEGATIVE,)}

    def __init__(self, beta_1: float = 0.9, beta_2: float = 0.99, weight_decay: float = 0.0) -> None:
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.weight_decay = weight_decay

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        ahead = op.Sub(state["momentum"], gradients)  # the only reader of the old momentum
        direction = op.Sign(op.Add(gradients, op.Mul(ahead, float(self.beta_1))))
        direction = with_penalty(op, direction, parameters, self, coefficients)
        momentum = op.Add(gradients, op.Mul(ahead, float(self.beta_2)))
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}


class _FusedSGD(Optimizer):
    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        inputs = coefficients["learning_rate"], parameters, gradients
        return op.emit("SGDOptimizer", *inputs, domain="com.microsoft")[0], {}


# Optimizers that scale the step of each element by its past gradients: Adam, AdamW, RMSprop, Adagrad.


class Adam(Optimizer):
    r"""Adam: steps scaled by running averages of the gradient and of its square.

    .. math:: g_t ← g_t + λ p, \quad m_t = β_1 m_{t-1} + (1 - β_1) g_t, \quad v_t = β_2 v_{t-1} + (1 - β_2) g_t^2, \quad
        p ← p - η \frac{m_t / (1 - β_1^t)}{\sqrt{v_t / (1 - β_2^t)} + ε}

    The definition of ``torch.optim.Adam``. Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9 and 0.999
        Decay of the averages of the gradient and of its square, in [0, 1).
    epsilon : float, default=1e-8
        ε, in [0, inf), outside the square root.
    weight_decay : float, default=0.0
        λ, in [0, inf), added to the gradient (an L2 penalty); :class:`AdamW` decouples it.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Adam
    >>> Adam(beta_2=0.99)
    Adam(beta_2=0.99)
    """

    name = "adam"
    valid: ClassVar[Rules] = {
        "beta_1": (BELOW_ONE,),
        "beta_2": (BELOW_ONE,),
        "epsilon": (NOT_NEGATIVE,),
        "weight_decay": (NOT_NEGATIVE,),
    }

    def __init__(
        self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def state(self) -> dict[str, float]:
        return {"first_moment": 0.0, "second_moment": 0.0}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        root = sqrt(1.0 - float(self.beta_2) ** t)  # sqrt(v / root²) + ε = (sqrt(v) + ε root) / root
        rate = float(learning_rate) * root / (1.0 - float(self.beta_1) ** t)
        return {"learning_rate": rate, "epsilon": float(self.epsilon) * root}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        root = op.Sqrt(op.Sub(1.0, op.Pow(float(self.beta_2), t)))
        rate = op.Div(op.Mul(learning_rate, root), op.Sub(1.0, op.Pow(float(self.beta_1), t)))
        return {"learning_rate": rate, "epsilon": op.Mul(root, float(self.epsilon))}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        step, moments = self._step(op, with_penalty(op, gradients, parameters, self, coefficients), state, coefficients)
        return op.Sub(parameters, step), moments

    def fused(self) -> Optimizer | None:
        return None if self.weight_decay else _FusedAdam(self.beta_1, self.beta_2, self.epsilon)

    def _step(self, op: GraphBuilder, g: Value, state: Named, coefficients: Named) -> Step:
        first = running_average(op, state["first_moment"], g, self.beta_1)
        second = running_average(op, state["second_moment"], op.Mul(g, g), self.beta_2)
        direction = op.Div(first, op.Add(op.Sqrt(second), coefficients["epsilon"]))
        return op.Mul(direction, coefficients["learning_rate"]), {"first_moment": first, "second_moment": second}


class AdamW(Adam):
    r"""Adam with decoupled weight decay.

    .. math:: p ← p - η λ p - η \frac{m_t / (1 - β_1^t)}{\sqrt{v_t / (1 - β_2^t)} + ε}

    with the averages m and v of :class:`Adam`. The definition of ``torch.optim.AdamW``. Loshchilov and Hutter,
    "Decoupled weight decay regularization", ICLR 2019.

    Parameters
    ----------
    beta_1, beta_2, epsilon : float, default=0.9, 0.999 and 1e-8
        As for :class:`Adam`.
    weight_decay : float, default=0.01
        λ, in [0, inf), relative to the learning rate.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import AdamW
    >>> AdamW(weight_decay=0.1)
    AdamW(weight_decay=0.1)
    """

    name = "adamw"

    def __init__(
        self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta_1, beta_2, epsilon, weight_decay)

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        rate, root = float(learning_rate), sqrt(1.0 - float(self.beta_2) ** t)
        scaled, decay = rate * root / (1.0 - float(self.beta_1) ** t), rate * float(self.weight_decay)
        return {"learning_rate": scaled, "epsilon": float(self.epsilon) * root, "decay": decay}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        decay = op.Mul(learning_rate, scalar_operand(self.weight_decay))
        return super().emit_coefficients(op, learning_rate, t) | {"decay": decay}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        step, moments = self._step(op, gradients, state, coefficients)
        if self.weight_decay:  # not p·(1 - ηλ): in float32, 1 - 1e-5 misses 0.2 % of the decay, 1 - 1e-8 all of it
            step = op.Add(step, op.Mul(parameters, coefficients["decay"]))
        return op.Sub(parameters, step), moments

    def fused(self) -> Optimizer | None:
        return _FusedAdam(self.beta_1, self.beta_2, self.epsilon, self.weight_decay)


class RMSprop(Optimizer):
    r"""RMSprop: steps scaled by a running average of the squared gradient.

    .. math:: g_t ← g_t + λ p, \quad v_t = α v_{t-1} + (1 - α) g_t^2, \quad p ← p - η g_t / (\sqrt{v_t} + ε)

    With ``centered`` the root is that of the variance, :math:`v_t - a_t^2` with :math:`a_t = α a_{t-1} + (1 - α) g_t`.
    With momentum μ the step is η :math:`b_t`, :math:`b_t = μ b_{t-1} + g_t / (\sqrt{v_t} + ε)`. The definition of
    ``torch.optim.RMSprop``. Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012; centered: Graves, arXiv:1308.0850.

    Parameters
    ----------
    alpha : float, default=0.99
        α, decay of the averages, in [0, 1).
    epsilon, weight_decay : float, default=1e-8 and 0.0
        ε and λ, in [0, inf); λ p is added to the gradient.
    momentum : float, default=0.0
        μ, in [0, 1).
    centered : bool, default=False
        Whether to divide by the standard deviation instead of the root mean square.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import RMSprop
    >>> RMSprop(momentum=0.9, centered=True)
    RMSprop(centered=True, momentum=0.9)
    """

    name = "rmsprop"
    valid: ClassVar[Rules] = {
        "alpha": (BELOW_ONE,),
        "epsilon": (NOT_NEGATIVE,),
        "momentum": (BELOW_ONE,),
        "centered": (bool,),
        "weight_decay": (NOT_NEGATIVE,),
    }

    def __init__(
        self,
        alpha: float = 0.99,
        epsilon: float = 1e-8,
        momentum: float = 0.0,
        centered: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        self.alpha = alpha
        self.epsilon = epsilon
        self.momentum = momentum
        self.centered = centered
        self.weight_decay = weight_decay

    def state(self) -> dict[str, float]:
        names = ["average", "variance"] if self.centered else ["second_moment"]
        return dict.fromkeys([*names, "momentum"] if self.momentum else names, 0.0)

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g = with_penalty(op, gradients, parameters, self, coefficients)
        square, new = self._square(op, g, state)
        direction = op.Div(g, op.Add(op.Sqrt(square), float(self.epsilon)))
        if self.momentum:
            direction = new["momentum"] = op.Add(op.Mul(state["momentum"], float(self.momentum)), direction)
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), new

    def _square(self, op: GraphBuilder, g: Value, state: Named) -> Step:
        if not self.centered:
            moment = running_average(op, state["second_moment"], op.Mul(g, g), self.alpha)
            return moment, {"second_moment": moment}
        # In float32 v - a² may fall below zero (in PyTorch too, and the step is NaN): update the variance itself.
        alpha, deviation = float(self.alpha), op.Sub(g, state["average"])
        average = running_average(op, state["average"], g, alpha, deviation)
        spread = op.Mul(op.Mul(deviation, deviation), alpha * (1.0 - alpha))
        variance = op.Add(op.Mul(state["variance"], alpha), spread)
        return variance, {"average": average, "variance": variance}


class Adagrad(Optimizer):
    r"""Adagrad: steps scaled by the root of the sum of all squared gradients.

    .. math:: g_t ← g_t + λ p, \quad s_t = s_{t-1} + g_t^2, \quad
        p ← p - \frac{η}{1 + (t - 1) δ} \frac{g_t}{\sqrt{s_t} + ε}

    The definition of ``torch.optim.Adagrad``. Duchi et al., "Adaptive subgradient methods", JMLR 12, 2011.

    Parameters
    ----------
    lr_decay, initial_accumulator_value : float, default=0.0
        δ and :math:`s_0`, in [0, inf).
    epsilon, weight_decay : float, default=1e-10 and 0.0
        ε and λ, in [0, inf); λ p is added to the gradient.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Adagrad
    >>> Adagrad(lr_decay=0.01)
    Adagrad(lr_decay=0.01)
    """

    name = "adagrad"
    valid: ClassVar[Rules] = dict.fromkeys(
        ("lr_decay", "initial_accumulator_value", "epsilon", "weight_decay"), (NOT_NEGATIVE,)
    )

    def __init__(
        self,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        self.lr_decay = lr_decay
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def moves_without_gradient(self) -> bool:
        return bool(self.weight_decay) or not self.epsilon  # 0 / 0

    def state(self) -> dict[str, float]:
        return {"sum_of_squares": float(self.initial_accumulator_value)}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        return {"learning_rate": float(learning_rate) / (1.0 + (t - 1) * float(self.lr_decay))}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        slower = op.Add(op.Mul(op.Sub(t, 1.0), float(self.lr_decay)), 1.0)
        return {"learning_rate": op.Div(learning_rate, slower)}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g = with_penalty(op, gradients, parameters, self, coefficients)
        total = op.Add(state["sum_of_squares"], op.Mul(g, g))
        direction = op.Div(g, op.Add(op.Sqrt(total), float(self.epsilon)))
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"sum_of_squares": total}


class _FusedAdam(Adam):
    """AdamW in one kernel, which computes its bias corrections in float64; its first step is 1."""

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        return {"learning_rate": float(learning_rate), "steps_before": t - 1}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        t = op.Add(coefficients["steps_before"], 1)  # a tensor of its own: the kernel writes t + 1 over it
        inputs = coefficients["learning_rate"], t, parameters, gradients, state["first_moment"], state["second_moment"]
        settings = {"alpha": self.beta_1, "beta": self.beta_2, "epsilon": self.epsilon, "lambda": self.weight_decay}
        decay = coefficients.get(WEIGHT_DECAY)
        attributes: dict[str, float] = {name: float(x) for name, x in settings.items()}
        attributes |= {"lambda": 0.0} if decay is not None else {}
        results = op.emit("AdamOptimizer", *inputs, domain="com.microsoft", outputs=4, **attributes)
        moved = results[3]
        if decay is not None:  # the kernel takes it as a constant alone
            moved = op.Sub(moved, op.Mul(parameters, op.Mul(coefficients["learning_rate"], decay)))
        return moved, {"first_moment": results[1], "second_moment": results[2]}


# The registry of optimizers.


OPTIMIZERS: dict[str, type[BaseOptimizer]] = registered(BaseOptimizer, vars())
"""The optimizers above, by name."""


def resolve_optimizer(optimizer: str | BaseOptimizer) -> BaseOptimizer:
    """Return the optimizer that a name or an object stands for, its parameters validated."""
    return resolve("optimizer", optimizer, OPTIMIZERS, BaseOptimizer, kind="Optimizer")


# Terms that optimizers share: the penalty of weight decay, running averages.


class Decaying(Protocol):
    """An optimizer with weight decay."""

    weight_decay: float


def scalar_operand(value: object) -> Operand:
    """Return a hyper-parameter as an operand: where a schedule changes it, it is a value of the graph already."""
    return value if isinstance(value, Value) else float(value)  # type: ignore[arg-type]


def with_penalty(
    op: GraphBuilder, gradients: Value, parameters: Value, optimizer: Decaying, coefficients: Named
) -> Value:
    """Emit the gradients plus the weight decay times the parameters."""
    if not optimizer.weight_decay:
        return gradients
    return op.Add(gradients, op.Mul(parameters, coefficients.get(WEIGHT_DECAY, float(optimizer.weight_decay))))


def running_average(op: GraphBuilder, old: Value, x: Value, decay: float, gap: Value | None = None) -> Value:
    """Emit the new average ``decay * old + (1 - decay) * x``; ``gap`` is ``x - old`` where it is known."""
    # Not β a + (1 - β) x, which costs the same: in float32, 0.999 and 0.001 do not add up to one.
    gap = op.Sub(x, old) if gap is None else gap
    return op.Add(old, op.Mul(gap, 1.0 - float(decay))) if decay >= 0.5 else op.Sub(x, op.Mul(gap, float(decay)))


# Scheduled weight decay: a coefficient of the update graph, as it changes from step to step.


WEIGHT_DECAY = "weight_decay"
"""The parameter of an optimizer, and the coefficient that stands for it where a schedule changes it."""


class ScheduledDecay:
    """An optimizer whose weight decay is multiplied by a factor at each step.

    :meth:`coefficients` are those of the optimizer with the weight decay of the step, and that number itself under the
    name "weight_decay". The optimizer uses either.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.weight_decay = copy.copy(optimizer), float(optimizer.weight_decay)
        self.elementwise: bool = optimizer.elementwise

    moves_without_gradient = True

    def state(self) -> dict[str, float]:
        """Return the vectors of the optimizer and their initial values."""
        return dict(self.optimizer.state())

    def coefficients(self, learning_rate: float, t: int, factor: float = 1.0) -> dict[str, float | int]:
        """Return the scalars of step ``t``."""
        now = vars(self.optimizer)[WEIGHT_DECAY] = self.weight_decay * factor
        return {**self.optimizer.coefficients(learning_rate, t), WEIGHT_DECAY: now}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value, factor: Value) -> dict[str, Value]:
        """Emit what :meth:`coefficients` returns; meanwhile the weight decay is a value of the graph."""
        now = vars(self.optimizer)[WEIGHT_DECAY] = op.Mul(factor, self.weight_decay)
        try:
            found: dict[str, Value] = self.optimizer.emit_coefficients(op, learning_rate, t)
        except TypeError as error:
            raise ModelError(
                f"{type(self.optimizer).__name__}.emit_coefficients does not take a weight decay that a schedule "
                f"changes: {error}. Hand self.weight_decay to the operators as it is, without float()."
            ) from error
        return {**found, WEIGHT_DECAY: now}

    def update(
        self,
        op: GraphBuilder,
        parameters: Value,
        gradients: Value,
        state: Mapping[str, Value],
        coefficients: Mapping[str, Value],
    ) -> tuple[Value, dict[str, Value]]:
        """Emit one step of the optimizer."""
        vars(self.optimizer)[WEIGHT_DECAY] = self.weight_decay
        emitted: tuple[Value, dict[str, Value]] = self.optimizer.update(op, parameters, gradients, state, coefficients)
        return emitted

    def fused(self) -> None:
        """Return None: the kernels are chosen before."""

    def changes(self, used: set[str]) -> bool:
        """Return True if the factor changes any of the coefficients that the graph uses."""
        one, half = self.coefficients(0.001, 1), self.coefficients(0.001, 1, 0.5)
        return any(one[name] != half[name] for name in used)


# Update graphs: one step of an optimizer over flat vectors, proven safe to run in place.
#
# A new vector overwrites the old one. This is correct only if nothing reads the old vector after the new one is
# written; :func:`update_graph` proves it for every graph that it returns.


Coefficients: TypeAlias = "dict[str, float | int]"
Step: TypeAlias = "tuple[Value, dict[str, Value]]"
Named: TypeAlias = "Mapping[str, Value]"

PIECE = 131072
"""Elements per run of an elementwise graph over vectors longer than two of these. Temporaries then fit the cache:
AdamW over 10M parameters takes 31 ms instead of 61 (64k to 256k are equal within noise)."""


class UpdateRule(Protocol):
    """The methods that :func:`update_graph` calls; :class:`onnxtrain_sklearn.optimizers.Optimizer` documents them."""

    elementwise: bool

    def state(self) -> dict[str, float]: ...

    def coefficients(self, learning_rate: float, t: int) -> Coefficients: ...

    def update(
        self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named
    ) -> Step: ...

    def fused(self) -> UpdateRule | None: ...

    @property
    def moves_without_gradient(self) -> bool: ...


@dataclass(frozen=True)
class UpdateGraph:
    """One optimizer step as a graph.

    Inputs of ``model`` are ``parameters``, ``gradients``, the slots and the coefficients by their names. Outputs are
    ``new_parameters`` and ``new_SLOT``, each of which may overwrite its predecessor. ``slots`` are the state vectors
    with their initial values, ``coefficients(learning_rate, t)`` the scalars of a step; where the weight decay is
    ``scheduled``, their third argument is its factor. An ``elementwise`` graph may be run on pieces of the vectors.
    """

    model: ir.Model
    slots: Mapping[str, float]
    coefficients: Callable[..., Coefficients]
    elementwise: bool
    scheduled: bool = False


def update_graph(
    optimizer: UpdateRule, dtype: ir.DataType, *, fused: bool = False, scheduled: bool = False
) -> UpdateGraph:
    """Return the update graph of ``optimizer`` for vectors of type ``dtype``, proven safe to run in place.

    With ``fused`` it uses equivalent kernels of onnxruntime-training, if there are any. With ``scheduled`` the weight
    decay is a coefficient of each step.
    """
    plain = update_rule(optimizer, dtype, fused=fused)
    slots, author = plain.state(), f"{type(plain).__name__}.update"
    decaying = ScheduledDecay(plain) if scheduled else None
    rule = plain if decaying is None else decaying
    vectors = {name: ir.val(name, dtype, ("P",)) for name in ("parameters", "gradients", *slots)}
    coefficients = rule.coefficients(0.001, 1).items()
    scalars = {k: ir.val(k, ir.DataType.INT64 if isinstance(x, int) else dtype, ()) for k, x in coefficients}
    op = new_graph([*vectors.values(), *scalars.values()], dtype, "update")
    state = {name: vectors[name] for name in slots}
    with operators_of(author):
        emitted: object = rule.update(op, vectors["parameters"], vectors["gradients"], state, scalars)
    parameters, new_state = _checked_step(emitted, author)
    if new_state.keys() != slots.keys():
        raise ModelError(f"{author} must return new values of the state {sorted(slots)}, got {sorted(new_state)}.")
    for name, value in _separate(op, {"parameters": parameters, **new_state}).items():
        _check_in_place(author, vectors[name], value)
        append_output(op.graph, value, f"new_{name}", vectors[name])
    if decaying is not None:
        _require_scheduled(author, decaying, scalars)
    numbers = [value.const_value for value in op.graph.initializers.values()]
    alike = all(number is None or number.size == 1 for number in numbers)  # else elements have constants of their own
    elementwise = rule.elementwise and alike and all(node.op_type in _ELEMENTWISE for node in op.graph)
    return UpdateGraph(ir.Model(op.graph, ir_version=8), slots, rule.coefficients, elementwise, scheduled)


def _checked_step(emitted: object, author: str) -> Step:
    if isinstance(emitted, tuple) and len(emitted) == 2 and isinstance(emitted[1], Mapping):
        values = emitted[0], *emitted[1].values()
        if all(isinstance(value, Value) for value in values):
            return emitted
    raise ModelError(
        f"{author} must return the new parameters and a dict of the new state, which are results of operators "
        f"(op.Sub(parameters, step), {{}}); {instead_of(emitted)}."
    )


def update_rule(
    optimizer: UpdateRule, dtype: ir.DataType, *, fused: bool = False, scheduled: bool = False
) -> UpdateRule:
    """Return the rule whose step the update graph computes, of :func:`update_graph`'s arguments."""
    fused = fused and dtype == ir.DataType.FLOAT and _belongs_to_rule(optimizer, "fused")
    rule = (optimizer.fused() if fused else None) or optimizer
    return ScheduledDecay(rule) if scheduled else rule


def moves_without_gradient(optimizer: UpdateRule) -> bool:
    """Return True if an element may change in a step in which its gradient is zero."""
    return not _belongs_to_rule(optimizer, "moves_without_gradient") or optimizer.moves_without_gradient


def _belongs_to_rule(optimizer: UpdateRule, name: str) -> bool:
    """Return True if the class that defines the update has the attribute: a subclass may override the rule alone."""
    rule = {"update", "state", "coefficients", name}
    return name in vars(next(c for c in type(optimizer).__mro__ if rule & vars(c).keys()))


def _require_scheduled(author: str, rule: ScheduledDecay, scalars: Named) -> None:
    """Raise unless the update depends on the weight decay of the step."""
    if not rule.changes({name for name, value in scalars.items() if value.consumers()}):
        raise ModelError(
            f"{author} does not follow weight_decay_schedule: its coefficients do not depend on weight_decay. Take "
            f"coefficients.get('weight_decay', self.weight_decay) in place of self.weight_decay in update."
        )


def clip_graph(dtype: ir.DataType) -> ir.Model:
    r"""Return the graph that limits the Euclidean norm of all gradients, safe to run in place.

    .. math:: g ← g \min(1, c / (‖g‖ + 10^{-6}))

    Inputs ``gradients`` (P,) and ``max_norm`` c; outputs ``new_gradients`` (P,) and ``norm``, the norm before. As
    ``torch.nn.utils.clip_grad_norm_``, but squares are summed in float64: in float32 the norm of 10M gradients is up to
    0.8 % off, and one of 1e20 makes it infinite and all gradients zero. A norm that is not finite gives NaN throughout.
    """
    gradients, max_norm = ir.val("gradients", dtype, ("P",)), ir.val("max_norm", dtype, ())
    op = new_graph([gradients, max_norm], ir.DataType.DOUBLE, "clip")
    clipped, norm = emit_clipped(op, gradients, op.Cast(max_norm, to=ir.DataType.DOUBLE), dtype)
    _check_in_place("clip_graph", gradients, clipped)
    append_output(op.graph, clipped, "new_gradients", gradients)
    append_output(op.graph, op.Cast(norm, to=dtype), "norm", max_norm)
    return ir.Model(op.graph, ir_version=8)


def emit_clipped(op: GraphBuilder, gradients: Value, max_norm: Operand, dtype: ir.DataType) -> tuple[Value, Value]:
    """Emit the clipped gradients, of type ``dtype``, and their norm in the type of the constants of ``op``."""
    norm = op.Sqrt(op.ReduceSumSquare(op.Cast(gradients, to=op.dtype), keepdims=False))
    ratio = op.Div(max_norm, op.Add(norm, 1e-6))
    scale = op.Add(op.Min(ratio, 1.0), op.Sub(norm, norm))  # inf - inf is NaN
    return op.Mul(gradients, op.Cast(scale, to=dtype)), norm


def _separate(op: GraphBuilder, results: Named) -> dict[str, Value]:
    """Return ``results`` with copies of values that are inputs of the graph or occur twice."""
    values = list(results.values())
    return {name: v if v.producer() and values.count(v) == 1 else op.Identity(v) for name, v in results.items()}


_ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Clip Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min "
    "Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Softplus Sqrt Sub Sum Tanh Where "
    "AdamOptimizer SGDOptimizer".split()
)


def _check_in_place(author: str, old: Value, new: Value) -> None:
    """Raise unless every reader of ``old`` runs before ``new`` is written, or writes it element by element."""
    writer = new.producer()
    before: set[ir.Node] = set()
    front = {writer} if writer else set()
    while front:
        before |= front
        front = {earlier for node in front for earlier in node.predecessors()} - before
    late = [n for n in old.consumers() if n not in before or (n is writer and n.op_type not in _ELEMENTWISE)]
    if late:
        raise ModelError(
            f"{author} reads {old.name!r} in node {late[0].name!r} that may run after its new value "
            f"is written over it. Compute everything that needs the old {old.name!r} on the way to its new value."
        )
