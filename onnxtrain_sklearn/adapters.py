"""Low-rank adapters of trained models: the settings of what ``adapters`` names.

The matrices of a large model stay as they are. Beside each, a product of two thin matrices is trained, which is all
that the optimizer keeps state for, and all that has to be stored for each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ._support.components import Component
from ._support.rules import COUNT, POSITIVE, Rules
from .exceptions import InvalidParameterError


class LoRA(Component):
    r"""Train low-rank factors beside frozen matrices.

    .. math:: W + \frac{α}{r} B A

    B has as many rows as W has outputs and r columns, A has r rows and as many columns as W has inputs. A begins
    random, uniform within :math:`\pm 1/\sqrt{n}` for n inputs (Kaiming's distribution with a slope of √5), drawn by
    the estimator's ``random_state``. B begins at zero, so that training begins from the given model. These are the
    initial values and the scale of the peft library.

    Matrices are the weights of Gemm, of MatMul on either side, and of Conv, whose factors are a convolution with r
    channels and one of single points. The factors of ``NAME`` are called ``NAME.lora_A`` and ``NAME.lora_B`` and have
    the layout of the graph: where it stores W transposed, (inputs, outputs), A is (inputs, r) and B is (r, outputs).
    A matrix that several nodes read is changed for all of them. For convolutions in groups, W is flattened to
    (out_channels, in_channels / groups * points).

    Hu et al., "LoRA: Low-rank adaptation of large language models", 2021.

    Parameters
    ----------
    rank : int, default=8
        The rank r of the changes.
    targets : "all", str, or list of str, default="all"
        Names or glob patterns (``"*query*"``) of the matrices to adapt; "all": every one. A pattern counts for the
        matrices that it matches; one that matches none is refused.
    alpha : float, default=8.0
        The changes are multiplied by ``alpha / rank``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import MLP, LoRA, OrtGradientClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> given = MLP((32,)).build(n_features=64, n_outputs=10, random_state=0)
    >>> adapted = OrtGradientClassifier(given, adapters=LoRA(rank=2, targets=["layers.0.*"]), max_iter=1, tol=1)
    >>> [(entry.name, entry.shape) for entry in adapted.describe().of("trained")]
    [('layers.0.weight.lora_A', (64, 2)), ('layers.0.weight.lora_B', (2, 32))]
    """

    valid: ClassVar[Rules] = {"rank": (COUNT,), "alpha": (POSITIVE,)}

    def __init__(self, rank: int = 8, targets: str | Sequence[str] = "all", *, alpha: float = 8.0) -> None:
        self.rank = rank
        self.targets = targets
        self.alpha = alpha

    def validate(self) -> None:
        """Raise InvalidParameterError, naming parameter, valid values and value, where a parameter breaks its rules."""
        super().validate()
        given = self.targets
        known = isinstance(given, Iterable) and not isinstance(given, bytes | type) and len(self.patterns) > 0
        if not known or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise InvalidParameterError(
                f"The 'targets' parameter of LoRA must be 'all', a name or glob pattern, or a list of them. Got "
                f"{given!r} instead."
            )

    @property
    def patterns(self) -> list[str]:
        """The patterns of the matrices, as a list."""
        return [self.targets] if isinstance(self.targets, str) else list(self.targets)
