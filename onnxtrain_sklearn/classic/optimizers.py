"""The optimizer of onnxruntime-training's files, for estimators that train as a device does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ..graph import GraphBuilder
from ..optimizers import AdamW

__all__ = ["OrtAdamW"]


class OrtAdamW(AdamW):
    r"""AdamW in the form of onnxruntime-training, which ``OptimType.AdamW`` writes into the files for devices.

    .. math:: \tilde p = p - η \frac{\sqrt{1 - β_2^t}}{1 - β_1^t} \frac{m_t}{\sqrt{v_t} + ε}, \quad
        p ← \tilde p - η λ \tilde p

    with the averages m and v of :class:`~onnxtrain_sklearn.optimizers.Adam`. ε is added before the bias correction and
    is 100 times larger: where gradients are small, the first steps are shorter than those of
    :class:`~onnxtrain_sklearn.optimizers.AdamW`. The weight decay follows the step. It is the AdamW of the
    "transformers" library before version 4, ``adam_mode=1`` of the operator AdamWOptimizer.

    Parameters
    ----------
    beta_1, beta_2, epsilon : float, default=0.9, 0.999 and 1e-6
        As for :class:`~onnxtrain_sklearn.optimizers.Adam`.
    weight_decay : float, default=0.0
        λ, in [0, inf), relative to the learning rate.

    Examples
    --------
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> from onnxtrain_sklearn.classic.optimizers import OrtAdamW
    >>> OrtGradientRegressor(Linear(), optimizer=OrtAdamW()).optimizer
    OrtAdamW()
    """

    def __init__(
        self, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(beta_1, beta_2, epsilon, weight_decay)

    def coefficients(self, learning_rate: float, t: int) -> dict[str, float]:
        return {**super().coefficients(learning_rate, t), "epsilon": float(self.epsilon)}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: ir.Value, t: ir.Value) -> dict[str, ir.Value]:
        epsilon = op.constant(np.float64(self.epsilon))
        return {**super().emit_coefficients(op, learning_rate, t), "epsilon": epsilon}

    def update(
        self,
        op: GraphBuilder,
        parameters: ir.Value,
        gradients: ir.Value,
        state: Mapping[str, ir.Value],
        coefficients: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, dict[str, ir.Value]]:
        step, moments = self._step(op, gradients, state, coefficients)
        new = op.Sub(parameters, step)
        return op.Sub(new, op.Mul(new, coefficients["decay"])) if self.weight_decay else new, moments

    def fused(self) -> None:
        return None
