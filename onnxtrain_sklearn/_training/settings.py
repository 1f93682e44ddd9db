"""Settings of a training step: plain data that the estimator resolves once.

The other modules of this room read them: :mod:`.loss_graph` the loss and what it is on, :mod:`.programs` engine and
device, :mod:`.host_updates` and :mod:`.device_step` the optimizer and its options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .._model.links import Link, Task
from .._model.score_axes import Positions
from .._ort.devices import Device
from ..losses import Loss
from ..optimizers import BaseOptimizer
from .parameters import Factors


class Scheduled(NamedTuple):
    """Flags for weight decay and dropout: True if schedules change them."""

    decay: bool = False
    dropout: bool = False


class TrainedPositions(NamedTuple):
    """The axes of scores at each position of a row, the shape of the positions, and the weights of labels by class."""

    axes: Positions
    shape: tuple[int, ...]
    label_weights: tuple[float, ...]


@dataclass(frozen=True)
class StepSettings:
    """The settings of a training step, beside the model and its parameters.

    With a loss on several outputs, ``n_outputs`` are the columns of all targets, which are numbers. ``ignores`` says
    that some of several labels a row do not count: their targets are -1.
    """

    loss: Loss | TotalLoss
    task: Task
    link: Link
    n_outputs: int
    optimizer: BaseOptimizer
    alpha: float
    l1_ratio: float
    max_grad_norm: float | None
    engine: str
    device: Device
    session_options: Mapping[str, Any] | None
    seed: int
    groups: tuple[int, ...] = ()
    factors: Mapping[str, Factors] = field(default_factory=dict)
    scheduled: Scheduled = field(default_factory=Scheduled)
    accumulate: int = 1
    ema_decay: float | None = None
    positions: TrainedPositions | None = None
    ignores: bool = False
    checkpoint_activations: bool = False
    lazy_rows: bool = False


@dataclass(frozen=True)
class TotalLoss:
    """The sum of the losses on several outputs.

    Attributes
    ----------
    outputs : tuple of OutputLoss
    has_factors : bool
        Whether the targets are followed by a factor of the weight of the row for each output.
    """

    outputs: tuple[OutputLoss, ...]
    has_factors: bool = False

    @property
    def width(self) -> int:
        """Columns of the matrix of targets."""
        return sum(one.width for one in self.outputs) + (len(self.outputs) if self.has_factors else 0)


@dataclass(frozen=True)
class OutputLoss:
    """The loss on one of several outputs.

    Attributes
    ----------
    name : str
        Name of the output, for messages.
    loss : Loss
    task, link, n_outputs, groups
        As in :class:`StepSettings`.
    weight : float
        What the loss is multiplied by in the sum.
    positions : Positions or None
        The axes of scores at each position of a row.
    places : tuple of int
        The shape of the positions.
    label_weights : tuple of float
        The weights of labels at positions, by class.
    ignores : bool
        Whether some of several labels a row do not count: their targets are -1.
    """

    name: str
    loss: Loss
    task: Task
    link: Link
    n_outputs: int
    groups: tuple[int, ...] = ()
    weight: float = 1.0
    positions: Positions | None = None
    places: tuple[int, ...] = ()
    label_weights: tuple[float, ...] = ()
    ignores: bool = False

    @property
    def width(self) -> int:
        """Columns of its targets: class indices, or numbers."""
        if self.positions is not None:
            return math.prod(self.places)
        return 1 if self.task == "multiclass" else self.n_outputs


def settings_of_output(settings: StepSettings, one: OutputLoss) -> StepSettings:
    """Return the settings of a step on one of several outputs alone."""
    positions = None
    if one.positions is not None:
        positions = TrainedPositions(one.positions, one.places, one.label_weights)
    return replace(
        settings,
        loss=one.loss,
        task=one.task,
        link=one.link,
        n_outputs=one.n_outputs,
        groups=one.groups,
        positions=positions,
        ignores=one.ignores,
    )
