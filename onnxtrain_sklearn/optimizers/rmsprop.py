"""RMSprop: steps scaled by a running average of the squared gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, NOT_NEGATIVE, Rules
from ..graph import GraphBuilder
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions, running_average, with_decay

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    {options}

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
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.alpha = alpha
        self.epsilon = epsilon
        self.momentum = momentum
        self.centered = centered
        self.weight_decay = weight_decay

    def slots(self, p: Parameter) -> dict[str, Slot]:
        names = ["average", "variance"] if self.centered else ["second_moment"]
        return dict.fromkeys([*names, "momentum"] if self.momentum else names, Slot(p.shape))

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        g = with_decay(op, g, p, self, k)
        if self.centered:
            # Update the variance itself: in float32 v - a² may fall below zero, where PyTorch's step is NaN.
            deviation = op.Sub(g, state["average"])
            average = running_average(op, state["average"], g, self.alpha, deviation)
            spread = op.Mul(op.Mul(deviation, deviation), self.alpha * (1.0 - self.alpha))
            square = op.Add(op.Mul(state["variance"], self.alpha), spread)
            new = {"average": average, "variance": square}
        else:
            square = running_average(op, state["second_moment"], op.Mul(g, g), self.alpha)
            new = {"second_moment": square}
        direction = op.Div(g, op.Add(op.Sqrt(square), self.epsilon))
        if self.momentum:
            direction = new["momentum"] = op.Add(op.Mul(state["momentum"], self.momentum), direction)
        return op.Sub(p, op.Mul(direction, k["learning_rate"])), new
