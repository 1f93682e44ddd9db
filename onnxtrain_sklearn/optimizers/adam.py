"""Adam and AdamW: steps scaled by running averages of the gradient and of its square."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, NOT_NEGATIVE, Rules
from ..graph import GraphBuilder
from .base import WEIGHT_DECAY, Named, Optimizer, Parameter, Slot, Step, StepOptions, running_average, with_decay
from .scalars import Number, sqrt

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    {options}

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
        self,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"first_moment": Slot(p.shape), "second_moment": Slot(p.shape)}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        root = sqrt(1.0 - self.beta_2**t)  # sqrt(v / root²) + ε = (sqrt(v) + ε root) / root
        rate = learning_rate * root / (1.0 - self.beta_1**t)
        return {"learning_rate": rate, "epsilon": self.epsilon * root}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        step, moments = adam_step(op, with_decay(op, g, p, self, k), state, k, self)
        return op.Sub(p, step), moments

    def fused(self) -> Optimizer | None:
        return None if self.weight_decay else _FusedAdamW(self.beta_1, self.beta_2, self.epsilon)


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
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import AdamW
    >>> AdamW(weight_decay=0.1)
    AdamW(weight_decay=0.1)
    """

    name = "adamw"

    def __init__(
        self,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(beta_1, beta_2, epsilon, weight_decay, **options)

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        decay = learning_rate * self.weight_decay
        return {**super().scalars(learning_rate, t), "decay": decay}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        step, moments = adam_step(op, g, state, k, self)
        if self.weight_decay:  # not p·(1 - ηλ): in float32, 1 - 1e-5 decays by 0.14 % too much, 1 - 1e-8 not at all
            step = op.Add(step, op.Mul(p, k["decay"]))
        return op.Sub(p, step), moments

    def fused(self) -> Optimizer | None:
        return _FusedAdamW(self.beta_1, self.beta_2, self.epsilon, self.weight_decay)


def adam_step(op: GraphBuilder, g: Value, state: Named, k: Named, optimizer: Adam) -> Step:
    """Emit the step of Adam, which is subtracted from the parameters, and the new moments."""
    # Together with `scalars` and `update`, this is the only statement of the formula. The kernel that `fused` returns
    # must compute the same. After a change here, tests/optimizers/test_fused_kernels.py fails, until `fused` is made to
    # return None.
    first = running_average(op, state["first_moment"], g, optimizer.beta_1)
    second = running_average(op, state["second_moment"], op.Mul(g, g), optimizer.beta_2)
    direction = op.Div(first, op.Add(op.Sqrt(second), k["epsilon"]))
    return op.Mul(direction, k["learning_rate"]), {"first_moment": first, "second_moment": second}


class _FusedAdamW(Adam):
    """AdamW in one kernel, which computes the bias corrections in float64 and counts the steps."""

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        return {"learning_rate": learning_rate, "steps_before": t - 1}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        t = op.Add(k["steps_before"], 1)  # a new tensor, because the kernel overwrites it by t + 1
        inputs = k["learning_rate"], t, p, g, state["first_moment"], state["second_moment"]
        settings = {"alpha": self.beta_1, "beta": self.beta_2, "epsilon": self.epsilon, "lambda": self.weight_decay}
        decay = k.get(WEIGHT_DECAY)
        attributes: dict[str, float] = {name: float(x) for name, x in settings.items()}
        attributes |= {"lambda": 0.0} if decay is not None else {}
        results = op.emit("AdamOptimizer", *inputs, domain="com.microsoft", outputs=4, **attributes)
        moved = results[3]
        if decay is not None:  # the kernel takes only a constant weight decay
            moved = op.Sub(moved, op.Mul(p, op.Mul(k["learning_rate"], decay)))
        return moved, {"first_moment": results[1], "second_moment": results[2]}
