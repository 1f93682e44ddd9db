"""The training step of a run, on the host or on a device; it is reused while settings and shapes are equal."""

from __future__ import annotations

from collections.abc import Collection

from .._runtime import sessions
from .._support.content import content
from .._support.refusal import refusing
from .._training.base_step import StepParts
from .._training.choice import new_step
from .._training.compiled_pass import COMPILED
from .._training.loss_graph import StepSettings
from .._training.step import TrainingStep
from .run import Run


@refusing("The graph cannot be trained")
def prepare_step(
    run: Run, settings: StepSettings, batch: int, limit: int, sparse: Collection[str] = (), steps: int = 0
) -> TrainingStep:
    """Return the step of a run; make a new one only if the existing one does not fit.

    It fits if it has these settings and at least ``batch``, but at most ``limit`` rows: padding costs as much as other
    rows. A new step takes over the rows of the last one, which pickles lack: the padded shape decides rounding and the
    masks of dropout. Inputs named in ``sparse`` come sparse; steps on a device take dense rows. ``steps`` are
    those that a new run plans, by which "auto" chooses; a run goes on with the engine that it began with.
    """
    sparse = () if settings.device.memory is not None else tuple(sparse)
    shapes = tuple(spec.shape for spec in run.model.inputs)
    key = (
        sessions.forks(),
        _settings_key(settings),
        run.head.task,
        run.head.link,
        settings.positions,
        settings.ignores,
        run.parameters.names,
        shapes,
        sparse,
    )
    rows = batch if run.rows is None or not batch <= run.rows <= limit else run.rows
    if run.step is None or run.step_key != key or run.step.batch != rows:
        parts = StepParts(run.model, settings, run.parameters, run.frozen, run.state, rows, sparse)
        run.step = new_step(parts, steps, compiled=run.engine == COMPILED)
    run.step_key, run.engine, run.rows = key, run.step.engine, rows
    return run.step


def _settings_key(settings: StepSettings) -> tuple[object, ...]:
    """Return a key that is equal for settings of equal content."""
    objects = tuple(map(content, (settings.loss, settings.optimizer, settings.session_options)))
    numbers = (settings.alpha, settings.l1_ratio, settings.max_grad_norm, settings.accumulate, settings.ema_decay)
    return (
        objects,
        numbers,
        (*settings.factors.items(), settings.scheduled),
        settings.sparse_updates,
        settings.checkpoint_activations,
        settings.engine,
        settings.device,
    )
