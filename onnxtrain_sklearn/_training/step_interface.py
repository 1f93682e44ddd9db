"""The interface between the epoch loop and a training step: its state, the parts it is built from, its kind.

A step owns sessions or machine code, and the arrays bound to them; the loop depends on neither. There are two
implementations: :mod:`.step` for host memory, and :mod:`.device_step` for devices with memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from .._data.batches import BatchBuffers, Batches
from .._model.trainable import TrainableModel
from .._utils.typing import DType
from ..optimizers import Slot
from .parameters import FlatParameters, owned
from .row_dependence import meeting
from .settings import StepSettings


class Rates(NamedTuple):
    """The learning rate of a step, and the factors of weight decay and dropout by their schedules."""

    learning_rate: float
    decay: float = 1.0
    dropout: float = 1.0


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
        """Create these slots at their initial values, unless they exist already."""
        if not self.fits(slots):
            fresh = {name: np.full(slot.shape, slot.fill, dtype) for name, slot in slots.items()}
            vars(self).update(t=0, slots=fresh)  # atomic: after an interrupt the state is the old one or the new one

    def reset(self, slots: Mapping[str, Slot]) -> None:
        """Reset to the state before the first step: slots at their initial values."""
        self.t = self.averaged = 0
        for name, slot in slots.items():
            self.slots[name].fill(slot.fill)


@dataclass(frozen=True, eq=False)
class StepParts:
    """The arguments from which a step is built.

    Attributes
    ----------
    model : TrainableModel
    settings : StepSettings
    parameters : FlatParameters
        Updated in place.
    frozen : mapping of str to ndarray
        Values of the parameters that are not trained.
    state : OptimizerState
        Updated in place; slots that the optimizer needs are created where they are missing.
    batch : int
        Rows of a full minibatch.
    sparse : collection of str
        Inputs whose rows come sparse. Their products with weights are computed without making the rows dense.
    """

    model: TrainableModel
    settings: StepSettings
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    state: OptimizerState
    batch: int
    sparse: Collection[str] = ()

    @property
    def penalizes(self) -> bool:
        """True if the penalty has an effect."""
        return bool(self.settings.alpha and self.parameters.penalized.stop)

    @cached_property
    def meeting(self) -> str | None:
        """Place where the rows of a minibatch meet, in the graph or in the loss; None: nowhere."""
        return meeting(self.model, self.settings)


@dataclass(frozen=True)
class Choice:
    """The kind of a step.

    Attributes
    ----------
    passes, update : str
        Who runs the passes and who updates the parameters.
    reason : str
    """

    passes: str
    update: str
    reason: str

    def __str__(self) -> str:
        return f"passes by {self.passes}, updates {self.update}: {self.reason}"


class TrainingStep(Protocol):
    """The part of a training step that the loop uses.

    Attributes
    ----------
    parameters : FlatParameters
        The trained parameters: the host's copy.
    state : OptimizerState
        The host's copy.
    batch : int
        Rows of a full minibatch.
    engine : str
        ``"compiled"`` where machine code runs the graph, else the engine that differentiated it.
    choice : Choice or None
        Why it is of its kind.
    in_host_memory : bool
        Whether the host's arrays are trained in place. Then ``train`` yields a loss before the update of the weights
        that gave it, and ``parameters.gradient`` is the gradient of the last step.
    """

    parameters: FlatParameters
    state: OptimizerState
    batch: int
    engine: str
    choice: Choice | None
    in_host_memory: ClassVar[bool]

    def train(
        self, batches: Batches, next_rates: Callable[[], Rates], after: Callable[[float], bool] | None = None
    ) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; yield the sum of its weights and the loss before the update.

        ``after`` is called with the loss after each update, when the host's copies are up to date; it may change them,
        and ends the pass if it returns True.
        """

    def synchronize(self) -> None:
        """Bring the host's copies of parameters and optimizer state up to date."""

    def reload(self) -> None:
        """Go on from the host's copies, which were changed from outside."""

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""


class GradientStep(TrainingStep, Protocol):
    """A step that also gives the gradient of a minibatch without an update."""

    def buffers(self, rows: int) -> BatchBuffers:
        """Return the buffers that the next step reads, for a minibatch of ``rows`` rows."""

    def compute_gradients(self, weight: float) -> float:
        """Compute the gradients of the minibatch in the buffers; return its loss, the penalty included."""
