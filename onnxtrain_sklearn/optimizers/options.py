"""Options of the step that all optimizers share, documented and checked once; each optimizer adds its own rule.

An estimator reads them; no rule sees them. Clipping and accumulation precede the update, the average follows it, and
factors and schedules scale its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from .._utils.params import BELOW_ONE, COUNT, FACTORS, POSITIVE, Rules
from ..schedules import Schedule


class StepOptions(TypedDict, total=False):
    """The options that the constructor of an optimizer takes, and passes on to :class:`Optimizer`."""

    max_grad_norm: float | None
    ema_decay: float | None
    accumulate: int
    lazy_rows: bool
    learning_rate_factors: Mapping[str, float] | None
    weight_decay_factors: Mapping[str, float] | None
    weight_decay_schedule: str | Schedule


OPTIONS = tuple(StepOptions.__annotations__)
"""Their names."""

VALID: Rules = {
    "max_grad_norm": (POSITIVE, None),
    "ema_decay": (BELOW_ONE, None),
    "accumulate": (COUNT,),
    "lazy_rows": (bool,),
    "learning_rate_factors": (FACTORS, None),
    "weight_decay_factors": (FACTORS, None),
}
"""Their valid values; the schedule is checked where its name is looked up."""

DOCUMENTED = """\
max_grad_norm : float or None, default=None
    Upper limit of the Euclidean norm of all gradients together. None: no limit.
ema_decay : float or None, default=None
    Decay of an exponential moving average of the weights, in [0, 1), such as 0.999. Predictions, validation scores,
    ``weights_`` and ``to_onnx()`` use the average; training continues from the weights themselves. The initial weights
    are not part of the average, and running statistics are not averaged. None: no average.
accumulate : int, default=1
    Number of minibatches whose gradients are summed for one step. The step equals one on a minibatch of ``accumulate``
    times ``batch_size`` rows, but needs only the memory of a small one. Batch statistics, dropout masks and losses in
    which rows meet are computed for each minibatch.
lazy_rows : bool, default=False
    Whether a step updates only the rows of a matrix that its minibatch reads, as ``torch.optim.SparseAdam`` does. All
    other rows and their optimizer state stay as they are: weight decay, ``alpha`` and momentum do not act on them. This
    saves time if the matrix is large; if rows are rare, it also trains differently. It concerns embeddings (trained
    matrices that only Gather reads, along the first axis) and, if ``X`` is a sparse matrix, the matrix that ``X`` is
    multiplied by, whose rows belong to the columns of ``X``. All rows are updated of a matrix that is also read in
    another way, such as by the output layer, or multiplied by dense data. Only on the CPU. False: all rows are updated;
    rows are skipped only if that changes nothing, as with :class:`~onnxtrain_sklearn.SGD` without momentum, weight
    decay and ``alpha``.
learning_rate_factors : dict or None, default=None
    Dict from glob patterns to factors >= 0 of the learning rate, such as ``{"*": 0.1, "layers.2.*": 1.0}``. The last
    pattern that matches a parameter counts, so put general ones first; without a match the factor is 1. Patterns of a
    graph builder, an attribute of the same name, come before these. ``describe()`` of the estimator lists the names.
weight_decay_factors : dict or None, default=None
    Dict from glob patterns to factors of ``weight_decay``, in the same form.
weight_decay_schedule : str or Schedule, default="constant"
    The schedule that ``weight_decay`` follows, step by step; the names of the estimators' ``learning_rate``.
"""
"""Their entries in the docstring of an optimizer, in place of ``{options}``."""
