"""LAMB: Adam whose step is scaled, parameter by parameter, to the norm of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, NOT_NEGATIVE, Rules
from ..graph import GraphBuilder
from .adam import AdamW
from .base import WEIGHT_DECAY, Named, Optimizer, Parameter, Slot, Step, StepOptions, running_average
from .scalars import Number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LAMB(Optimizer):
    r"""LAMB: Adam's direction with a step as long, relative to the weights, in every matrix.

    .. math:: m_t = β_1 m_{t-1} + (1 - β_1) g_t, \quad v_t = β_2 v_{t-1} + (1 - β_2) g_t^2, \quad
        u = \frac{m_t / (1 - β_1^t)}{\sqrt{v_t / (1 - β_2^t)} + ε} + λ p, \quad p ← p - η \frac{‖p‖}{‖u‖} u

    for each parameter by itself; where a norm is zero, their ratio is one. It trains on large minibatches with few
    changes of the learning rate. Biases and the scales of normalizations, of rank below two, have no such ratio, as in
    the authors' experiments: :class:`AdamW` updates them. You et al., "Large batch optimization for deep learning:
    training BERT in 76 minutes", ICLR 2020, algorithm 2.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9 and 0.999
        Decay of the averages of the gradient and of its square, in [0, 1).
    epsilon : float, default=1e-6
        ε, in [0, inf), outside the square root.
    weight_decay : float, default=0.01
        λ, in [0, inf), part of the step.
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import LAMB
    >>> LAMB(weight_decay=0.1)
    LAMB(weight_decay=0.1)
    """

    name = "lamb"
    elementwise = False
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
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def for_parameter(self, p: Parameter) -> Optimizer:
        return self if len(p.shape) >= 2 else AdamW(self.beta_1, self.beta_2, self.epsilon, self.weight_decay)

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"first_moment": Slot(p.shape), "second_moment": Slot(p.shape)}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        corrections = {"first": 1.0 - self.beta_1**t, "second": 1.0 - self.beta_2**t}
        return {"learning_rate": learning_rate, **corrections}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        first = running_average(op, state["first_moment"], g, self.beta_1)
        second = running_average(op, state["second_moment"], op.Mul(g, g), self.beta_2)
        root = op.Add(op.Sqrt(op.Div(second, k["second"])), self.epsilon)
        u = op.Div(op.Div(first, k["first"]), root)
        if self.weight_decay:
            u = op.Add(u, op.Mul(p, k.get(WEIGHT_DECAY, self.weight_decay)))
        norms = [op.Sqrt(op.ReduceSumSquare(x, keepdims=False)) for x in (p, u)]
        # The inner Where divides by one if a norm is zero, so that no NaN or infinity arises.
        both = op.Greater(op.Min(*norms), 0.0)
        ratio = op.Where(both, op.Div(norms[0], op.Where(both, norms[1], 1.0)), 1.0)
        new = op.Sub(p, op.Mul(u, op.Mul(ratio, k["learning_rate"])))
        return new, {"first_moment": first, "second_moment": second}
