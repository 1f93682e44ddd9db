"""Optimizers as ONNX graphs over flat vectors, L-BFGS over SciPy, and their registry.

One minibatch step maps (parameters, gradients, state) to new ones, elementwise: every operand is one flat vector or
a scalar, so the same graph serves a vector of any length, or a piece of it. Scalars that change from step to step
(learning rate, bias corrections) are computed in float64 by :meth:`Optimizer.coefficients` and are inputs of the graph.

The graph is run in place: a new vector is written over the old one. That is right only while nothing reads
the old vector after its successor is written; :func:`update_graph` proves it for every graph it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from numbers import Integral, Real
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir
import scipy.optimize
from onnx_ir import Value
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

from ._graph.builder import GraphBuilder
from .exceptions import ModelError, instead_of, nearest

__all__ = [
    "LBFGS",
    "OPTIMIZERS",
    "PIECE",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "BaseOptimizer",
    "MinimizeResult",
    "Optimizer",
    "RMSprop",
    "UpdateGraph",
    "clip_graph",
    "resolve_optimizer",
    "update_graph",
]

Callback: TypeAlias = "Callable[[np.ndarray, float], bool | None]"
Coefficients: TypeAlias = "dict[str, float | int]"
Objective: TypeAlias = "Callable[[np.ndarray], tuple[float, np.ndarray]]"
Ranges: TypeAlias = "Mapping[str, tuple[Any, ...]]"
Step: TypeAlias = "tuple[Value, dict[str, Value]]"
Named: TypeAlias = "Mapping[str, Value]"

PIECE = 131072
"""Elements per run of an elementwise graph over vectors longer than two of these. Temporaries then stay in the cache:
AdamW over 10M parameters takes 31 ms instead of 61 (64k to 256k are equal within noise)."""

_RANGES: Ranges = {
    **dict.fromkeys(("momentum", "beta_1", "beta_2", "alpha"), (Interval(Real, 0, 1, closed="left"),)),
    **dict.fromkeys(("epsilon", "weight_decay"), (Interval(Real, 0, None, closed="left"),)),
    **dict.fromkeys(("lr_decay", "initial_accumulator_value"), (Interval(Real, 0, None, closed="left"),)),
    **dict.fromkeys(("history_size", "max_line_searches", "max_fun"), (Interval(Integral, 1, None, closed="left"),)),
    **dict.fromkeys(("nesterov", "centered"), ("boolean",)),
    "dampening": (Interval(Real, 0, 1, closed="both"),),
}


class BaseOptimizer(BaseEstimator):
    """What :class:`Optimizer` and :class:`LBFGS` share: parameters stored as given, checked by :meth:`validate`."""

    _parameter_constraints: ClassVar[Ranges] = {}

    def validate(self) -> None:
        """Raise ``ValueError``, naming parameter, valid range and value, where a parameter is out of range."""
        self._validate_params()


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

    def state(self) -> dict[str, float]:
        """Return the optimizer's vectors: name -> the value that fills them before the first step."""
        return {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        """Return the scalars of step ``t`` (the first step is 1); floats take the parameters' type, ints are int64."""
        return {"learning_rate": float(learning_rate)}

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
            The scalars that :meth:`coefficients` returns.
        """

    elementwise: bool = True
    """Whether element i of the result depends on elements i alone, so that long vectors may be updated in pieces."""

    def fused(self) -> Optimizer | None:
        """Return an equal optimizer that uses onnxruntime-training's float32 kernels, where those are faster."""
        return None


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

    _parameter_constraints: ClassVar[Ranges] = _RANGES

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

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        if not (self.momentum and self.dampening):
            return super().coefficients(learning_rate, t)
        return {"learning_rate": float(learning_rate), "weight": 1.0 if t == 1 else 1.0 - float(self.dampening)}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g, mu = _with_penalty(op, gradients, parameters, self.weight_decay), float(self.momentum)
        if not mu:
            return op.Sub(parameters, op.Mul(g, coefficients["learning_rate"])), {}
        weighted = op.Mul(g, coefficients["weight"]) if self.dampening else g
        momentum = op.Add(op.Mul(state["momentum"], mu), weighted)
        direction = op.Add(g, op.Mul(momentum, mu)) if self.nesterov else momentum
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}

    def fused(self) -> Optimizer | None:
        return None if self.momentum or self.weight_decay else _FusedSGD()


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

    _parameter_constraints: ClassVar[Ranges] = _RANGES

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

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        step, moments = self._step(op, _with_penalty(op, gradients, parameters, self.weight_decay), state, coefficients)
        return op.Sub(parameters, step), moments

    def fused(self) -> Optimizer | None:
        return None if self.weight_decay else _FusedAdam(self.beta_1, self.beta_2, self.epsilon)

    def _step(self, op: GraphBuilder, g: Value, state: Named, coefficients: Named) -> Step:
        first = _average(op, state["first_moment"], g, self.beta_1)
        second = _average(op, state["second_moment"], op.Mul(g, g), self.beta_2)
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

    def __init__(
        self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(beta_1, beta_2, epsilon, weight_decay)

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        return super().coefficients(learning_rate, t) | {"decay": float(learning_rate) * float(self.weight_decay)}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        step, moments = self._step(op, gradients, state, coefficients)
        if self.weight_decay:  # not p·(1 - ηλ): in float32, 1 - 1e-5 misses 0.2 % of the decay, 1 - 1e-8 all of it
            step = op.Add(step, op.Mul(parameters, coefficients["decay"]))
        return op.Sub(parameters, step), moments

    def fused(self) -> Optimizer:
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

    _parameter_constraints: ClassVar[Ranges] = _RANGES

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
        g = _with_penalty(op, gradients, parameters, self.weight_decay)
        square, new = self._square(op, g, state)
        direction = op.Div(g, op.Add(op.Sqrt(square), float(self.epsilon)))
        if self.momentum:
            direction = new["momentum"] = op.Add(op.Mul(state["momentum"], float(self.momentum)), direction)
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), new

    def _square(self, op: GraphBuilder, g: Value, state: Named) -> Step:
        if not self.centered:
            moment = _average(op, state["second_moment"], op.Mul(g, g), self.alpha)
            return moment, {"second_moment": moment}
        # In float32 v - a² may fall below zero (in PyTorch too, and the step is NaN): update the variance itself.
        alpha, deviation = float(self.alpha), op.Sub(g, state["average"])
        average = _average(op, state["average"], g, alpha, deviation)
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

    _parameter_constraints: ClassVar[Ranges] = _RANGES

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

    def state(self) -> dict[str, float]:
        return {"sum_of_squares": float(self.initial_accumulator_value)}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        return {"learning_rate": float(learning_rate) / (1.0 + (t - 1) * float(self.lr_decay))}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g = _with_penalty(op, gradients, parameters, self.weight_decay)
        total = op.Add(state["sum_of_squares"], op.Mul(g, g))
        direction = op.Div(g, op.Add(op.Sqrt(total), float(self.epsilon)))
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"sum_of_squares": total}


class _FusedSGD(Optimizer):
    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        inputs = coefficients["learning_rate"], parameters, gradients
        return op.emit("SGDOptimizer", *inputs, domain="com.microsoft")[0], {}


class _FusedAdam(Adam):
    """AdamW in one kernel, which computes its bias corrections in float64; its first step is 1."""

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        return {"learning_rate": float(learning_rate), "steps_before": t - 1}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        t = op.Add(coefficients["steps_before"], 1)  # a tensor of its own: the kernel writes t + 1 over it
        inputs = coefficients["learning_rate"], t, parameters, gradients, state["first_moment"], state["second_moment"]
        settings = {"alpha": self.beta_1, "beta": self.beta_2, "epsilon": self.epsilon, "lambda": self.weight_decay}
        attributes: dict[str, float] = {name: float(x) for name, x in settings.items()}
        results = op.emit("AdamOptimizer", *inputs, domain="com.microsoft", outputs=4, **attributes)
        return results[3], {"first_moment": results[1], "second_moment": results[2]}


def _with_penalty(op: GraphBuilder, gradients: Value, parameters: Value, weight_decay: float) -> Value:
    return op.Add(gradients, op.Mul(parameters, float(weight_decay))) if weight_decay else gradients


def _average(op: GraphBuilder, old: Value, x: Value, decay: float, gap: Value | None = None) -> Value:
    # Three passes, as β a + (1 - β) x takes, but rounded to float32 that one's 0.999 and 0.001 do not add up to one.
    gap = op.Sub(x, old) if gap is None else gap
    return op.Add(old, op.Mul(gap, 1.0 - float(decay))) if decay >= 0.5 else op.Sub(x, op.Mul(gap, float(decay)))


@dataclass(frozen=True, eq=False)
class MinimizeResult:
    """Where :meth:`LBFGS.minimize` ended: the last iterate, of shape (P,), and the objective there.

    ``converged``: a tolerance was met; ``limited``: a limit was, else a line search failed. ``message`` is SciPy's.
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

    with H an inverse Hessian estimated from the last iterations and η from a line search: learning rate, schedule and
    batch size play no role. Run by ``scipy.optimize.minimize(method="L-BFGS-B")``, as in scikit-learn's MLP. Liu and
    Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 45, 1989.

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

    _parameter_constraints: ClassVar[Ranges] = _RANGES

    def __init__(self, history_size: int = 10, max_line_searches: int = 20, max_fun: int = 15000) -> None:
        self.history_size = history_size
        self.max_line_searches = max_line_searches
        self.max_fun = max_fun

    def minimize(
        self, objective: Objective, start: np.ndarray, *, max_iter: int, tol: float, callback: Callback | None = None
    ) -> MinimizeResult:
        """Minimize ``objective`` from ``start``; the vectors, of shape (P,), are float64.

        Parameters
        ----------
        objective : callable (vector) -> (loss, gradient)
            It must not keep or change the vector.
        start : ndarray of shape (P,)
        max_iter, tol : int, float
            Most iterations; before, the gradient with no element above ``tol``, or a loss that falls no more, end it.
        callback : callable (vector, loss) -> bool or None, optional
            Called after each iteration; True ends the search there.
        """
        limits = {"maxls": self.max_line_searches, "maxfun": self.max_fun, "maxiter": max_iter}
        options: Any = {"maxcor": self.history_size, "gtol": tol, **limits}

        def report(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if callback is not None and callback(intermediate_result.x, float(intermediate_result.fun)):
                raise StopIteration

        x0: Any = np.asarray(start, np.float64)
        end = scipy.optimize.minimize(objective, x0, jac=True, method="L-BFGS-B", callback=report, options=options)
        return MinimizeResult(end.x, float(end.fun), int(end.nit), bool(end.success), end.status == 1, str(end.message))


OPTIMIZERS: dict[str, type[BaseOptimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "lbfgs": LBFGS,
}


def resolve_optimizer(optimizer: str | BaseOptimizer) -> BaseOptimizer:
    """Return the optimizer that a name or an object stands for; an object's parameters are validated."""
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"Unknown optimizer {optimizer!r}.{nearest(optimizer, OPTIMIZERS)}")
        return OPTIMIZERS[optimizer]()
    if not isinstance(optimizer, BaseOptimizer):
        raise TypeError(f"optimizer must be a name or an Optimizer object, {instead_of(optimizer)}.")
    optimizer.validate()
    return optimizer


@dataclass(frozen=True)
class UpdateGraph:
    """One optimizer step as a graph.

    Inputs of ``model`` are ``parameters``, ``gradients``, the slots and the coefficients by their names, outputs are
    ``new_parameters`` and ``new_SLOT``, each of which may be written over its predecessor. ``slots`` are the state
    vectors and their initial values, ``coefficients(learning_rate, t)`` the scalars of a step. An ``elementwise`` graph
    may be run on pieces of the vectors.
    """

    model: ir.Model
    slots: Mapping[str, float]
    coefficients: Callable[[float, int], Coefficients]
    elementwise: bool


def update_graph(optimizer: Optimizer, dtype: ir.DataType, *, fused: bool = False) -> UpdateGraph:
    """Return the update graph of ``optimizer`` for vectors of type ``dtype``, proven safe to run in place.

    With ``fused`` it uses onnxruntime-training's kernels where they do the same.
    """
    owner = next(c for c in type(optimizer).__mro__ if {"fused", "update", "state", "coefficients"} & vars(c).keys())
    fused = fused and dtype == ir.DataType.FLOAT and "fused" in vars(owner)  # else a subclass has another rule
    rule = (optimizer.fused() if fused else None) or optimizer
    slots, author = rule.state(), f"{type(rule).__name__}.update"
    vectors = {name: ir.val(name, dtype, ("P",)) for name in ("parameters", "gradients", *slots)}
    coefficients = rule.coefficients(0.001, 1).items()
    scalars = {k: ir.val(k, ir.DataType.INT64 if isinstance(x, int) else dtype, ()) for k, x in coefficients}
    op = _builder([*vectors.values(), *scalars.values()], dtype, "update")
    state = {name: vectors[name] for name in slots}
    parameters, new_state = rule.update(op, vectors["parameters"], vectors["gradients"], state, scalars)
    if new_state.keys() != slots.keys():
        raise ModelError(f"{author} must return new values of the state {sorted(slots)}, got {sorted(new_state)}.")
    for name, value in _separate(op, {"parameters": parameters, **new_state}).items():
        _check_in_place(author, vectors[name], value)
        _add_output(op, f"new_{name}", value, vectors[name])
    elementwise = rule.elementwise and all(node.op_type in _ELEMENTWISE for node in op.graph)
    return UpdateGraph(ir.Model(op.graph, ir_version=8), slots, rule.coefficients, elementwise)


def clip_graph(dtype: ir.DataType) -> ir.Model:
    r"""Return the graph that limits the Euclidean norm of all gradients, safe to run in place.

    .. math:: g ← g \min(1, c / (‖g‖ + 10^{-6}))

    Inputs ``gradients`` (P,) and ``max_norm`` c; outputs ``new_gradients`` (P,) and ``norm``, the norm before. As
    ``torch.nn.utils.clip_grad_norm_``, but squares are summed in float64: in float32 the norm of 10M gradients is up to
    0.8 % off, and one of 1e20 makes it infinite and all gradients zero. A norm that is not finite gives NaN throughout.
    """
    gradients, max_norm = ir.val("gradients", dtype, ("P",)), ir.val("max_norm", dtype, ())
    op = _builder([gradients, max_norm], ir.DataType.DOUBLE, "clip")
    norm = op.Sqrt(op.ReduceSumSquare(op.Cast(gradients, to=ir.DataType.DOUBLE), keepdims=False))
    ratio = op.Div(op.Cast(max_norm, to=ir.DataType.DOUBLE), op.Add(norm, 1e-6))
    scale = op.Add(op.Min(ratio, 1.0), op.Sub(norm, norm))  # inf - inf is NaN
    clipped = op.Mul(gradients, op.Cast(scale, to=dtype))
    _check_in_place("clip_graph", gradients, clipped)
    _add_output(op, "new_gradients", clipped, gradients)
    _add_output(op, "norm", op.Cast(norm, to=dtype), max_norm)
    return ir.Model(op.graph, ir_version=8)


def _builder(inputs: list[Value], dtype: ir.DataType, name: str) -> GraphBuilder:
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 18}, name=name)
    return GraphBuilder(graph, dtype=dtype, prefix=name)


def _add_output(op: GraphBuilder, name: str, value: Value, like: Value) -> None:
    value.name, value.type, value.shape = name, like.type, like.shape
    op.graph.outputs.append(value)


def _separate(op: GraphBuilder, results: Named) -> dict[str, Value]:
    """Return ``results`` with copies of the values that are inputs of the graph or that stand there twice."""
    values = list(results.values())
    return {name: v if v.producer() and values.count(v) == 1 else op.Identity(v) for name, v in results.items()}


_ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Clip Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min "
    "Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Softplus Sqrt Sub Sum Tanh Where "
    "AdamOptimizer SGDOptimizer".split()
)


def _check_in_place(author: str, old: Value, new: Value) -> None:
    """Raise unless every reader of ``old`` must run before ``new`` is written, or writes it element by element."""
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
