"""Adagrad: steps scaled by the root of the sum of all squared gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import NOT_NEGATIVE, Rules
from ..graph import GraphBuilder
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions, with_decay
from .scalars import Number

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    {options}

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
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.lr_decay = lr_decay
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    @property
    def moves_without_gradient(self) -> bool:
        return bool(self.weight_decay) or not self.epsilon  # without ε, a gradient of zero gives 0 / 0

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"sum_of_squares": Slot(p.shape, self.initial_accumulator_value)}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        return {"learning_rate": learning_rate / (1.0 + (t - 1) * self.lr_decay)}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        g = with_decay(op, g, p, self, k)
        total = op.Add(state["sum_of_squares"], op.Mul(g, g))
        direction = op.Div(g, op.Add(op.Sqrt(total), self.epsilon))
        return op.Sub(p, op.Mul(direction, k["learning_rate"])), {"sum_of_squares": total}
