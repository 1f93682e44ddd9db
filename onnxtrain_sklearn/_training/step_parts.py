"""The data from which a training step is built: the order of its stages, settings, rates, optimizer state, parts.

The estimator resolves the settings once. :mod:`.loss_graph` reads the loss and the layout of its targets,
:mod:`.programs` reads the engine and the device, :mod:`.updates` and :mod:`.device_step` the optimizer and its options.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from .._model.declared_targets import DeclaredTargets
from .._model.links import Link, Positions, Task
from .._model.trainable import TrainableModel
from .._ort.devices import Device
from .._utils.typing import DType
from ..losses import Loss
from ..optimizers import BaseOptimizer, Optimizer, Slot
from .parameters import Factors, FlatParameters, owned

Stage: TypeAlias = Literal["penalty", "clipping", "update", "average"]

STAGES: tuple[Stage, ...] = ("penalty", "clipping", "update", "average")
"""What follows the pass of a step, or the last pass if it accumulates several, in this order.

This is the only statement of the order: the steps on the host and on devices and the exported graphs walk through
:attr:`StepParts.stages`. The stages before "update" change the gradients, and the penalty adds to the loss. ``alpha``
takes part in the norm that ``max_grad_norm`` limits, since the penalty comes before the clipping.
"""


class Scheduled(NamedTuple):
    """Flags for weight decay and dropout: True if schedules change them."""

    decay: bool = False
    dropout: bool = False


class TrainedPositions(NamedTuple):
    """Labels at positions: the axes of the scores, the shape of the positions, and the weight of each class."""

    axes: Positions
    shape: tuple[int, ...]
    label_weights: tuple[float, ...]


@dataclass(frozen=True)
class StepSettings:
    """The settings of a training step, besides the model and its parameters.

    Attributes
    ----------
    n_scores : int
        Number of scores per row; if several outputs are trained, number of columns of all their targets.
    groups : tuple of int
        For several labels per row, each with its own classes: the number of classes of each label. The scores of a
        label are neighboring columns.
    ignores : bool
        Whether a row may have several labels, some of which are ignored (target -1).
    n_shares : int
        The number of labels or numbers of a row whose shares in its weight follow the targets as columns; else 0.
    soft : bool
        Whether the targets of a classifier are the shares of the classes in each row.
    n_targets : int or None
        Columns of the targets, or classes, where the loss takes another number of scores; else None. GaussianNLL takes
        two scores for one column.
    declared : DeclaredTargets or None
        The targets that the loss declares by name; None if it takes labels or numbers.
    """

    loss: Loss | TotalLoss
    task: Task
    link: Link
    n_scores: int
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
    n_shares: int = 0
    checkpoint_activations: bool = False
    lazy_rows: bool = False
    soft: bool = False
    n_targets: int | None = None
    declared: DeclaredTargets | None = None

    @property
    def n_columns(self) -> int:
        """Columns of the targets, or classes."""
        return self.n_scores if self.n_targets is None else self.n_targets


@dataclass(frozen=True)
class TotalLoss:
    """The sum of the losses on several outputs.

    Attributes
    ----------
    outputs : tuple of OutputLoss
    has_factors : bool
        Whether the targets end with a column for each output: the factor by which that output multiplies the weight of
        a row.
    """

    outputs: tuple[OutputLoss, ...]
    has_factors: bool = False

    @property
    def width(self) -> int:
        """Number of columns of the matrix that holds the targets of all outputs."""
        return sum(one.width for one in self.outputs) + (len(self.outputs) if self.has_factors else 0)


@dataclass(frozen=True)
class OutputLoss:
    """The loss on one of several outputs.

    Attributes
    ----------
    name : str
        Name of the output, for messages.
    loss : Loss
    task, link, n_scores, groups
        As in :class:`StepSettings`.
    weight : float
        The factor of the loss in the sum.
    positions : Positions or None
        For labels at positions: the axes of the scores.
    places : tuple of int
        For labels at positions: the shape of the positions.
    label_weights : tuple of float
        For labels at positions: the weight of each class.
    ignores : bool
        Whether a row may have several labels, some of which are ignored (target -1).
    n_shares : int
        The number of labels or numbers of a row whose shares in its weight follow the targets as columns; else 0.
    """

    name: str
    loss: Loss
    task: Task
    link: Link
    n_scores: int
    groups: tuple[int, ...] = ()
    weight: float = 1.0
    positions: Positions | None = None
    places: tuple[int, ...] = ()
    label_weights: tuple[float, ...] = ()
    ignores: bool = False
    n_shares: int = 0
    soft: ClassVar[bool] = False
    declared: ClassVar[None] = None

    @property
    def n_columns(self) -> int:
        """Columns of the targets, or classes: losses that take another number of scores are refused."""
        return self.n_scores

    @property
    def width(self) -> int:
        """Number of columns of the output's targets, which are class indices or numbers."""
        if self.positions is not None:
            return math.prod(self.places)
        return 1 if self.task == "multiclass" else self.n_scores + self.n_shares


def settings_of_output(settings: StepSettings, one: OutputLoss) -> StepSettings:
    """Return the settings of a step that trains only one of several outputs."""
    positions = None
    if one.positions is not None:
        positions = TrainedPositions(one.positions, one.places, one.label_weights)
    return replace(
        settings,
        loss=one.loss,
        task=one.task,
        link=one.link,
        n_scores=one.n_scores,
        groups=one.groups,
        positions=positions,
        ignores=one.ignores,
        n_shares=one.n_shares,
        soft=False,
        n_targets=None,
        declared=None,
    )


class Rates(NamedTuple):
    """The learning rate of a step, and the factors of weight decay and dropout by their schedules."""

    learning_rate: float
    decay_factor: float = 1.0
    dropout_factor: float = 1.0


@dataclass
class OptimizerState:
    """The number of steps, the optimizer's arrays by name, and the number of draws of dropout masks.

    ``averaged`` is the number of steps in the moving average of the weights.
    """

    t: int = 0
    slots: dict[str, np.ndarray] = field(default_factory=dict)
    draws: int = 0
    averaged: int = 0

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.slots = {name: owned(slot) for name, slot in self.slots.items()}

    def fits(self, slots: Mapping[str, Slot]) -> bool:
        """Return True if the arrays are those of ``slots``."""
        return {name: array.shape for name, array in self.slots.items()} == {n: s.shape for n, s in slots.items()}

    def prepare(self, slots: Mapping[str, Slot], dtype: DType) -> None:
        """Create ``slots`` with their initial values, unless the state already has them."""
        if not self.fits(slots):
            fresh = {name: np.full(slot.shape, slot.fill, dtype) for name, slot in slots.items()}
            vars(self).update(t=0, slots=fresh)  # atomic: after an interrupt the state is the old one or the new one

    def reset(self, slots: Mapping[str, Slot]) -> None:
        """Reset to the state before the first step, with the initial values of ``slots``."""
        self.t = self.averaged = 0
        for name, slot in slots.items():
            self.slots[name].fill(slot.fill)


@dataclass(frozen=True, eq=False)
class StepParts:
    """The arguments from which a step is built.

    Attributes
    ----------
    graph : TrainableModel
    settings : StepSettings
    parameters : FlatParameters
        Updated in place.
    frozen : mapping of str to ndarray
        Values of the parameters that are not trained.
    optimizer_state : OptimizerState
        Updated in place; slots that the optimizer needs are created where they are missing.
    batch_size : int
        Rows of a full minibatch.
    sparse : collection of str
        Inputs whose rows come sparse. Their products with weights are computed without making the rows dense.
    """

    graph: TrainableModel
    settings: StepSettings
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    optimizer_state: OptimizerState
    batch_size: int
    sparse: Collection[str] = ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of :data:`STAGES` that this step runs."""
        settings = self.settings
        has: dict[Stage, object] = {
            "penalty": settings.alpha and self.parameters.penalized.stop,
            "clipping": settings.max_grad_norm is not None,
            "update": isinstance(settings.optimizer, Optimizer),  # L-BFGS updates by itself
            "average": settings.ema_decay is not None,
        }
        return tuple(stage for stage in STAGES if has[stage])
