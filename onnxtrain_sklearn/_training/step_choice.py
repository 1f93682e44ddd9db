"""Choose the kind of a step: who runs its passes, who updates the parameters, and why. No other module decides this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from .._data.batches import Batches
from ..exceptions import UnsupportedOperatorError
from ..optimizers import LBFGS
from .device_step import DeviceStep
from .full_batch import FullBatchTrainer
from .history import History
from .machine_code import COMPILED, auto_compiles, pays
from .step import HostStep
from .step_interface import Choice, StepParts, TrainingStep
from .trainer import Trainer, TrainerSettings

DEVICE, SESSION, CODE = "a session on the device", "a session", "machine code"
"""Who runs a pass."""

ON_DEVICE, ON_HOST, FULL_BATCH = "on the device", "on the host", "by SciPy"
"""Who updates the parameters; on the host :mod:`.host_updates` chooses for each segment."""


@dataclass(frozen=True, eq=False)
class Situation:
    """What the choice depends on.

    Attributes
    ----------
    parts : StepParts
    steps : int
        Those that a new training plans; 0 for calls that go on.
    began_compiled : bool
        Whether the training that goes on began with compiled passes: it keeps its bits.
    """

    parts: StepParts
    steps: int
    began_compiled: bool

    @property
    def is_full_batch(self) -> bool:
        """True if the optimizer takes all rows at once."""
        return not self.parts.settings.optimizer.takes_minibatches

    @cached_property
    def session_step(self) -> HostStep:
        """The step whose passes a session runs; its graph says how much compiling would save."""
        return HostStep(self.parts)

    @property
    def is_too_short(self) -> bool:
        """True if compiling takes longer than it saves."""
        return not self.began_compiled and not pays(self.session_step.program.size, self.steps)


Row: TypeAlias = "tuple[Callable[[Situation], object], str, str, str]"

# The first row whose condition holds decides. The order matters twice: the compiler is loaded, which takes a tenth of a
# second, only where it pays, and whether it pays is known once the graph is differentiated.
CHOICES: Sequence[Row] = (
    (lambda s: s.is_full_batch and s.parts.settings.engine == COMPILED, CODE, FULL_BATCH, "engine='compiled'"),
    (lambda s: s.is_full_batch, SESSION, FULL_BATCH, "L-BFGS keeps its vectors on the host"),
    (lambda s: s.parts.settings.device.memory, DEVICE, ON_DEVICE, "the device has memory of its own"),
    (lambda s: s.parts.settings.engine == COMPILED, CODE, ON_HOST, "engine='compiled'"),
    (lambda s: s.parts.settings.checkpoint_activations, SESSION, ON_HOST, "checkpoint_activations is set"),
    (lambda s: s.parts.settings.engine != "auto", SESSION, ON_HOST, "the engine is given"),
    (lambda s: s.is_too_short, SESSION, ON_HOST, "compiling would take longer than it saves"),
    (lambda s: s.parts.settings.session_options, SESSION, ON_HOST, "session_options are given"),
    (lambda s: s.parts.settings.device.providers != ("CPUExecutionProvider",), SESSION, ON_HOST, "a provider is given"),
    (lambda s: s.parts.sparse, SESSION, ON_HOST, "the rows are sparse"),
    (lambda s: s.parts.parameters.vector.dtype != np.float32, SESSION, ON_HOST, "float64 is not compiled"),
    # minibatches in which rows meet are not padded: those of another size would be compiled in the midst of training
    (lambda s: s.parts.meeting is not None, SESSION, ON_HOST, "rows of a minibatch meet"),
    (lambda s: not auto_compiles(), SESSION, ON_HOST, "llvmlite is not installed, or not measured on this processor"),
    (lambda s: s.began_compiled, CODE, ON_HOST, "the training began with it"),
    (lambda s: True, CODE, ON_HOST, "the planned steps save more time than compiling takes"),
)


def choose(situation: Situation) -> Choice:
    """Return the kind of the step."""
    return next(Choice(*row[1:]) for row in CHOICES if row[0](situation))


def new_step(parts: StepParts, steps: int = 0, *, compiled: bool = False) -> TrainingStep:
    """Return the step that :data:`CHOICES` says; a graph that "auto" cannot compile is run by a session.

    Parameters
    ----------
    parts : StepParts
    steps : int, default=0
        Steps that are planned; 0 for calls that go on.
    compiled : bool, default=False
        Whether the training that goes on began with compiled passes.
    """
    situation = Situation(parts, steps, compiled)
    choice = choose(situation)
    step: HostStep | DeviceStep
    if choice.passes == DEVICE:
        step = DeviceStep(parts)
    elif choice.passes == CODE:
        try:
            step = HostStep(replace(parts, settings=replace(parts.settings, engine=COMPILED)))
        except (UnsupportedOperatorError, ImportError, OSError, RuntimeError):  # of the graph, or of a broken llvmlite
            if parts.settings.engine == COMPILED:
                raise
            step, choice = situation.session_step, Choice(SESSION, ON_HOST, "the graph cannot be compiled")
    else:
        step = situation.session_step
    step.choice = choice
    return step


def new_trainer(
    settings: TrainerSettings,
    step: TrainingStep,
    batches: Batches,
    history: History,
    validate: Callable[[], float] | None = None,
) -> Trainer:
    """Return the trainer for ``step``: L-BFGS on all rows at once, or epochs of minibatches."""
    if isinstance(step, HostStep) and isinstance(step.settings.optimizer, LBFGS):
        return FullBatchTrainer(step.settings.optimizer, settings, step, batches, history, validate)
    return Trainer(settings, step, batches, history, validate)
