"""The choice of step and trainer by device and optimizer."""

from __future__ import annotations

from collections.abc import Callable

from .._data.batches import Batches
from .._optimizers.lbfgs import LBFGS
from ..optimizers import Optimizer
from .base_step import StepParts
from .device_step import DeviceStep
from .full_batch import FullBatchTrainer
from .history import History
from .host_step import HostStep
from .loop import Trainer, TrainerSettings
from .step import TrainingStep


def new_step(parts: StepParts) -> TrainingStep:
    """Return the step on the device, or in the host's memory; L-BFGS keeps its vectors on the host."""
    memory, optimizer = parts.settings.device.memory, parts.settings.optimizer
    if memory is not None and isinstance(optimizer, Optimizer):
        return DeviceStep(parts, optimizer, memory)
    return HostStep(parts)


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
