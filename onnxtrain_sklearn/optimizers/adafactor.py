"""Adafactor: steps scaled by the root of averaged squares; a matrix keeps one vector of them for each side."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from onnx_ir import Value

from .._utils.params import FRACTION, NOT_NEGATIVE, POSITIVE, Rules
from ..graph import GraphBuilder
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions
from .scalars import Number, minimum, sqrt

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adafactor(Optimizer):
    r"""Adafactor: squared gradients are averaged by rows and columns, so the state is far smaller than the weights.

    .. math:: \hat β_t = 1 - t^{-γ}, \quad
        R_t = \hat β_t R_{t-1} + (1 - \hat β_t) \operatorname{mean}_j g_{ij}^2, \quad
        C_t = \hat β_t C_{t-1} + (1 - \hat β_t) \operatorname{mean}_i g_{ij}^2,

    .. math:: \hat v = \frac{R_t C_t}{\max(\operatorname{mean} R_t, ε_1)}, \quad
        u = \frac{g}{\sqrt{\max(\hat v, ε_1^2)}}, \quad
        p ← p - η λ p - \max(ε_2, \operatorname{RMS}(p)) \min(η, 1 / \sqrt t)
        \frac{u}{\max(1, \operatorname{RMS}(u) / d)}

    Vectors keep the average of all squares. Tensors of higher rank are stacks of matrices. The learning rate is
    relative to the size of the weights: 0.01 is usual. Weights that begin at zero, as those of
    :class:`~onnxtrain_sklearn.Linear`, take far smaller steps: set a rate of 0.05 or more. The definition of
    ``torch.optim.Adafactor``. Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
    ICML 2018.

    Parameters
    ----------
    decay_rate : float, default=0.8
        γ, in [0, 1].
    epsilon_1 : float, default=None
        ε₁, in [0, inf); None: the precision of the parameters' type, 1.2e-7 for float32.
    epsilon_2 : float, default=1e-3
        ε₂, in [0, inf), the least size that a weight is taken to have.
    clip_threshold : float, default=1.0
        d, above 0, the largest root mean square of a step before it is scaled.
    weight_decay : float, default=0.0
        λ, in [0, inf), relative to the learning rate.
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.optimizers import Adafactor
    >>> OrtGradientClassifier(optimizer=Adafactor(), learning_rate_init=0.01)
    OrtGradientClassifier(learning_rate_init=0.01, optimizer=Adafactor())
    """

    name = "adafactor"
    elementwise = False
    valid: ClassVar[Rules] = {
        "decay_rate": (FRACTION,),
        "epsilon_1": (NOT_NEGATIVE, None),
        "epsilon_2": (NOT_NEGATIVE,),
        "clip_threshold": (POSITIVE,),
        "weight_decay": (NOT_NEGATIVE,),
    }

    def __init__(
        self,
        decay_rate: float = 0.8,
        epsilon_1: float | None = None,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        weight_decay: float = 0.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.decay_rate = decay_rate
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.clip_threshold = clip_threshold
        self.weight_decay = weight_decay

    def slots(self, p: Parameter) -> dict[str, Slot]:
        if len(p.shape) < 2:
            return {"squares": Slot(p.shape)}
        *stack, rows, columns = p.shape
        return {"row_squares": Slot((*stack, rows, 1)), "column_squares": Slot((*stack, 1, columns))}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        # The scalar ``fresh`` is 1 - β̂, the share of the new squares in the average.
        found = {"fresh": 1.0 / t**self.decay_rate, "rate": minimum(learning_rate, 1.0 / sqrt(t))}
        return {**found, "decay": learning_rate * self.weight_decay}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        least = float(np.finfo(op.dtype.numpy()).eps if self.epsilon_1 is None else self.epsilon_1)
        squares = op.Mul(g, g)

        def averaged(name: str, x: Value) -> Value:
            return op.Add(state[name], op.Mul(op.Sub(x, state[name]), k["fresh"]))

        if "squares" in state:
            new = {"squares": averaged("squares", squares)}
            variance = new["squares"]
        else:
            rows = averaged("row_squares", op.ReduceMean(squares, axes=[-1], keepdims=True))
            columns = averaged("column_squares", op.ReduceMean(squares, axes=[-2], keepdims=True))
            mean = op.Max(op.ReduceMean(rows, axes=[-2], keepdims=True), least)
            new = {"row_squares": rows, "column_squares": columns}
            variance = op.Div(op.Mul(rows, columns), mean)
        # the square of a tiny ε₁ is zero in float32, and the step of a gradient of zero would be 0 / 0
        least_variance = max(least * least, float(np.finfo(op.dtype.numpy()).tiny))
        u = op.Div(g, op.Sqrt(op.Max(variance, least_variance)))
        size = op.Max(self._rms(op, p), float(self.epsilon_2))
        length = op.Max(op.Div(self._rms(op, u), float(self.clip_threshold)), 1.0)
        step = op.Mul(u, op.Div(op.Mul(size, k["rate"]), length))
        if self.weight_decay:
            step = op.Add(step, op.Mul(p, k["decay"]))
        return op.Sub(p, step), new

    @staticmethod
    def _rms(op: GraphBuilder, x: Value) -> Value:
        return op.Sqrt(op.ReduceMean(op.Mul(x, x), keepdims=False))
