"""Optimizers that scale the step of each element by its past gradients: Adam, AdamW, RMSprop, Adagrad."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

from onnx_ir import Value

from .._graph.builder import GraphBuilder
from .._support.rules import BELOW_ONE, NOT_NEGATIVE, Rules
from .base import Optimizer
from .scheduled_decay import WEIGHT_DECAY
from .terms import running_average, scalar_operand, with_penalty
from .update_graph import Coefficients, Named, Step


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
