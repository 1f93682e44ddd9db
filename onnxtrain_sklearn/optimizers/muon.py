"""Muon: momentum whose steps are orthogonal matrices, with AdamW for all other parameters."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, COUNT, NOT_NEGATIVE, OneOf, Rules
from ..graph import GraphBuilder
from .adam import AdamW
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions, running_average
from .scalars import Number

if TYPE_CHECKING:
    from typing_extensions import Unpack

NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315
"""The polynomial of Jordan et al., 2024: its slope at zero lifts small singular values fast. After five steps they are
between about 0.7 and 1.2, and no closer with more: the steps do not converge to one."""


class Muon(Optimizer):
    r"""Muon: the momentum of each matrix, its singular values replaced by about one.

    .. math:: m_t = μ m_{t-1} + (1 - μ) g_t, \quad O = \operatorname{NS}((1 - μ) g_t + μ m_t), \quad
        p ← p - η λ p - η s\, O

    where NS takes X to X / ‖X‖ and then, ``steps`` times, to :math:`a X + b X X^T X + c X X^T X X^T X`, about the
    nearest orthogonal matrix. Parameters that are no matrices are updated by :class:`AdamW` with the same learning rate
    and weight decay. The definition of ``torch.optim.Muon``, which computes the products in bfloat16, and these here in
    the parameters' type. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; for the scale:
    Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982.

    Parameters
    ----------
    momentum : float, default=0.95
        μ, in [0, 1).
    nesterov : bool, default=True
        False: NS is taken of :math:`m_t`.
    weight_decay : float, default=0.1
        λ, in [0, inf), relative to the learning rate.
    steps : int, default=5
        Steps of Newton and Schulz, at least 1.
    scale : {"match_rms_adamw", "original"}, default="match_rms_adamw"
        s for a matrix of m rows and n columns, as it is stored. The default, :math:`0.2 \sqrt{\max(m, n)}`, makes steps
        about as long as AdamW's, whose learning rates are a start; small networks take larger ones, such as 0.01.
        "original" is :math:`\sqrt{\max(1, m / n)}`.
    epsilon : float, default=1e-7
        The least norm that X is divided by, in [0, inf).
    beta_1, beta_2 : float, default=0.9 and 0.999
        Parameters of :class:`AdamW`, in [0, 1).
    {options}

    Notes
    -----
    Embeddings and the last layer are often better trained by AdamW. Override :meth:`for_parameter`, which is told the
    name of each parameter, to choose by name.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Muon
    >>> Muon(momentum=0.9)
    Muon(momentum=0.9)
    """

    name = "muon"
    elementwise = False
    valid: ClassVar[Rules] = {
        "momentum": (BELOW_ONE,),
        "nesterov": (bool,),
        "weight_decay": (NOT_NEGATIVE,),
        "steps": (COUNT,),
        "scale": (OneOf(("match_rms_adamw", "original")),),
        "epsilon": (NOT_NEGATIVE,),
        "beta_1": (BELOW_ONE,),
        "beta_2": (BELOW_ONE,),
    }

    def __init__(
        self,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        steps: int = 5,
        scale: str = "match_rms_adamw",
        epsilon: float = 1e-7,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.steps = steps
        self.scale = scale
        self.epsilon = epsilon
        self.beta_1 = beta_1
        self.beta_2 = beta_2

    def for_parameter(self, p: Parameter) -> Optimizer:
        return self if len(p.shape) == 2 else AdamW(self.beta_1, self.beta_2, weight_decay=self.weight_decay)

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"momentum": Slot(p.shape)}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        return {"learning_rate": learning_rate, "decay": learning_rate * self.weight_decay}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        momentum = running_average(op, state["momentum"], g, self.momentum)
        x = op.Add(g, op.Mul(op.Sub(momentum, g), self.momentum)) if self.nesterov else momentum
        rows, columns = (int(str(size)) for size in op.shape(p) or ())
        scale = 0.2 * sqrt(max(rows, columns)) if self.scale == "match_rms_adamw" else sqrt(max(1.0, rows / columns))
        step = op.Mul(self._orthogonal(op, x, transposed=rows > columns), op.Mul(k["learning_rate"], scale))
        if self.weight_decay:
            step = op.Add(step, op.Mul(p, k["decay"]))
        return op.Sub(p, step), {"momentum": momentum}

    def _orthogonal(self, op: GraphBuilder, x: Value, *, transposed: bool) -> Value:
        """Emit the Newton-Schulz iterations of ``x``; the Gram matrices have the size of the shorter side."""
        a, b, c = NEWTON_SCHULZ
        norm = op.Sqrt(op.ReduceSumSquare(x, keepdims=False))
        x = op.Div(x, op.Max(norm, float(self.epsilon)))
        x = op.Transpose(x, perm=[1, 0]) if transposed else x
        for _ in range(self.steps):
            # Use Gemm, because onnxruntime fuses a Transpose before a MatMul into an operator without float64 kernel.
            gram = op.Gemm(x, x, transB=1)
            polynomial = op.Add(op.Mul(gram, b), op.Mul(op.MatMul(gram, gram), c))
            x = op.Add(op.Mul(x, a), op.Gemm(polynomial, x))
        return op.Transpose(x, perm=[1, 0]) if transposed else x
