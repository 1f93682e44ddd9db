"""What is decided about the training of a call before its run exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._fitted.model import FittedModel
from .._training.loop import TrainerSettings
from ..finetuning import FineTuner
from .examples import Call
from .new_head import Body
from .run import Run
from .training_rows import TrainingRows


@dataclass(frozen=True, eq=False)
class Plan:
    """The decisions about a call of ``fit`` or ``partial_fit``.

    Attributes
    ----------
    estimator : BaseOrtGradient
    call : Call
    loop : TrainerSettings
    old : Run or None
        The run that the call continues.
    rng : numpy.random.RandomState
    rows : TrainingRows
    fitted : FittedModel or None
        Description of the fitted model that is trained with its own head.
    tuner : FineTuner or None
        The settings of fine-tuning; None: plain training.
    body : Body or None
        The part of the given model that gets a new head.
    head_names : tuple of str
        The weights of the new head.
    """

    estimator: Any
    call: Call
    loop: TrainerSettings
    old: Run | None
    rng: np.random.RandomState
    rows: TrainingRows
    fitted: FittedModel | None
    tuner: FineTuner | None
    body: Body | None
    head_names: tuple[str, ...]
