"""The training step of a run: on the host or on a device, kept while settings and shapes are equal."""

from __future__ import annotations

from .. import _runtime
from .._refusal import refusing
from .._training.device_step import DeviceStep
from .._training.host_step import TrainingStep
from .._training.loss_graph import StepSettings
from ..optimizers import Optimizer
from .content import content
from .run import Run


@refusing("The graph cannot be trained")
def prepare_step(run: Run, settings: StepSettings, batch: int, limit: int) -> TrainingStep | DeviceStep:
    """Return the step of a run, a new one only where the one at hand does not fit.

    It fits for these settings and with room for ``batch`` rows, but not for more than ``limit``: rows that are there
    to fill up cost as much as others.
    """
    shapes = tuple(spec.shape for spec in run.model.inputs)
    key = (_runtime.forks(), _key(settings), run.head.task, run.head.link, run.parameters.names, shapes)
    if run.step is None or run.step_key != key or not batch <= run.step.batch <= limit:
        on_device = settings.device.memory is not None and isinstance(settings.optimizer, Optimizer)
        kind = DeviceStep if on_device else TrainingStep
        run.step = kind(run.model, settings, run.parameters, run.frozen, run.state, batch)
        run.step_key, run.engine = key, run.step.engine
    return run.step


def _key(settings: StepSettings) -> tuple[object, ...]:
    """Objects of one class and equal content stand for the same step."""
    objects = content([settings.loss, settings.optimizer, settings.session_options])
    return (objects, settings.alpha, settings.l1_ratio, settings.max_grad_norm, settings.engine, settings.device)
