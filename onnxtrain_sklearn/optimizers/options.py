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
    Upper limit of the Euclidean norm of all gradients together; None: no limit.
ema_decay : float or None, default=None
    Decay of an exponential moving average of the weights, in [0, 1), such as 0.999. Predictions, validation scores,
    ``weights_`` and ``to_onnx()`` take the average, training goes on from the weights themselves. The average is
    corrected for its start: the initial weights are not part of it. Running statistics are not averaged. None: no
    average.
accumulate : int, default=1
    Minibatches whose gradients are added up for one step: the same step as by one minibatch of ``accumulate`` times
    ``batch_size`` rows, in the memory of one. Only batch statistics, losses in which rows meet and dropout masks are
    those of each minibatch.
lazy_rows : bool, default=False
    Whether a step leaves weights as they are that its minibatch does not read: the rows of an embedding that no index
    names (of a trained matrix that only Gather reads, along its first axis), and, where ``X`` is a sparse matrix, the
    rows of the matrix that it is multiplied by whose column of ``X`` is zero throughout the minibatch. The state of the
    optimizer for them stays too, as with ``torch.optim.SparseAdam``: weight decay, ``alpha`` and momentum act on the
    rows that occur alone. That takes less time where the matrix is large, and it is another optimizer where rows are
    rare. A matrix that is read otherwise too, such as one that is the output layer as well, has a gradient in all rows,
    and is updated as usual, and so is one that dense data are multiplied by. On the CPU alone. False: such rows are
    updated as all other parameters; they are skipped where that changes nothing, as with
    :class:`~onnxtrain_sklearn.SGD` without momentum, weight decay and ``alpha``.
learning_rate_factors : dict or None, default=None
    Factors of the learning rate, by parameter: glob patterns and numbers >= 0, such as
    ``{"*": 0.1, "layers.2.*": 1.0}``. The last pattern that matches a name counts, so that general patterns come first;
    parameters that none matches have a factor of 1. A graph builder may bring patterns of its own, as an attribute of
    this name: those given here come after them. ``describe()`` of the estimator lists the names.
weight_decay_factors : dict or None, default=None
    Factors of ``weight_decay``, by parameter, in the same form.
weight_decay_schedule : str or Schedule, default="constant"
    The schedule that ``weight_decay`` follows, step by step; the names of the estimators' ``learning_rate``.
"""
"""Their entries in the docstring of an optimizer, in place of ``{options}``."""
