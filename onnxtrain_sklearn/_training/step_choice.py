"""Choose step and trainer by device, optimizer and, with ``engine="auto"``, planned steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._data.batches import Batches
from ..exceptions import UnsupportedOperatorError
from ..optimizers import LBFGS, Optimizer
from .device_step import DeviceStep
from .history import History
from .programs import COMPILED, auto_compiles, pays
from .state import TrainingStep
from .step import HostStep, StepParts
from .trainer import FullBatchTrainer, Trainer, TrainerSettings


def new_step(parts: StepParts, steps: int = 0, *, compiled: bool = False) -> TrainingStep:
    """Return the step on the device, or in the host's memory; L-BFGS keeps its vectors on the host.

    With ``engine="auto"`` its passes are compiled if that pays for so many ``steps``, or anyway with ``compiled``.
    """
    memory, optimizer = parts.settings.device.memory, parts.settings.optimizer
    if memory is not None and isinstance(optimizer, Optimizer):
        return DeviceStep(parts, optimizer, memory)
    if compiled and (known := _compiled_step(parts)) is not None:
        return known
    step = HostStep(parts)
    return (_compiled_step(parts) if not compiled and pays(step.size, steps) else None) or step


def _compiled_step(parts: StepParts) -> HostStep | None:
    """Return the step of compiled passes where "auto" may take them, else None."""
    if not (_is_for_compiler(parts) and auto_compiles()):
        return None
    try:
        return HostStep(replace(parts, settings=replace(parts.settings, engine=COMPILED)))
    except (UnsupportedOperatorError, ImportError, OSError, RuntimeError):  # of the graph, or of a broken llvmlite
        return None


def _is_for_compiler(parts: StepParts) -> bool:
    """Return True if nothing that was given requires a session.

    Minibatches that are not padded, because rows meet in them, would be compiled in the midst of training.
    """
    settings, parameters = parts.settings, parts.parameters
    asks = settings.session_options or settings.checkpoint_activations or settings.engine != "auto"
    on_cpu = settings.device.providers == ("CPUExecutionProvider",)
    by_minibatch = isinstance(settings.optimizer, Optimizer) and not parts.sparse
    is_float = parameters.vector.dtype == np.float32
    return not asks and on_cpu and by_minibatch and is_float and parts.meeting is None


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
