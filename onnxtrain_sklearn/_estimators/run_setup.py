"""Sets up runs, new or resumed with the current parameters: selects trained and frozen numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .._fitted.model import FittedModel
from .._graph.trainable import TrainableModel
from .._inference.head import Head
from .._optimizers.lbfgs import LBFGS
from .._training.host_step import in_trainable_type
from .._training.loss_graph import LAZY, StepSettings
from .._training.parameters import FlatParameters, Trainable
from .._training.selection import selected, warn_of_doubtful
from .._training.step import OptimizerState
from ..losses import Loss
from .adaptation import adapted
from .examples import Examples
from .factors import require_steps
from .fine_tuning import tuned_names
from .head_choice import HeadChoice
from .plan import Plan
from .run import Columns, Run, sparse_inputs, trained_form
from .start import Start
from .step_settings import settings_with_graph


def run_for(plan: Plan, chosen: HeadChoice, examples: Examples) -> tuple[Run, StepSettings]:
    """Return a new run with this head, or the old one with the current parameters, and the settings of its step."""
    estimator, old, columns = plan.estimator, plan.old, examples.columns
    seen = chosen.seen if old is not None else adapted(estimator, chosen.seen, plan.rng)
    settings = settings_with_graph(estimator, chosen.settings, seen, plan.loop.scheduled)
    require_steps(estimator, settings.optimizer)
    trainable = estimator.trainable
    if plan.tuner is not None:
        settings = replace(settings, optimizer=LBFGS())  # the gradients of all rows, without an update graph
        fitted = plan.fitted if plan.body is None else plan.body.fitted
        trainable = tuned_names(estimator, plan.tuner, seen, fitted, plan.head_names)
    if isinstance(settings.loss, Loss):
        plan.rows.require_same_units(settings.loss)
    head = chosen.head if plan.rows.scale is None else replace(chosen.head, target_scale=plan.rows.scale)
    if old is not None:
        return _resumed_run(old, seen, head, settings, trainable, columns), settings
    run = _new_run(chosen.source, seen, head, settings, trainable, columns, plan.rng, plan.fitted)
    run.began = Start.by(estimator)
    warn_of_doubtful(run.source, run.parameters.names, estimator.trainable)
    return run, settings


def _new_run(
    given: TrainableModel,
    source: TrainableModel,
    head: Head,
    settings: StepSettings,
    trainable: Trainable,
    columns: Columns,
    rng: np.random.RandomState,
    fitted: FittedModel | None,
) -> Run:
    """Return a new run from the weights of ``source``, the form of ``given`` with the loss placed."""
    source, names = selected(source if source.reference is None else replace(source, reference=None), trainable)
    weights, shapes = source.weights(), _shapes(source, columns)
    sparse = sparse_inputs(columns, every=settings.sparse_updates == LAZY)
    model = in_trainable_type(trained_form(source, shapes, names), settings, names, sparse)
    parameters, frozen = _divided(model, names, weights, settings)
    return Run(
        source=source,
        activation=given.activation,
        shapes=shapes,
        frozen=frozen,
        parameters=parameters,
        head=head,
        rng=rng,
        device=settings.device,
        session_options=settings.session_options,
        engine=settings.engine,
        seed=settings.seed,
        fitted=fitted,
        form=model,
    )


def _resumed_run(
    old: Run, source: TrainableModel, head: Head, settings: StepSettings, trainable: Trainable, columns: Columns
) -> Run:
    """Return the run that continues from the weights of ``old`` with the current settings."""
    source, names = selected(source, trainable)
    shapes, others = _shapes(source, columns), set(names) != set(old.parameters.names)
    same = not others and shapes == old.shapes and source == old.source
    run = replace(
        old,
        source=source,
        shapes=shapes,
        form=old.form if same else trained_form(source, shapes, names, old.parameters.buffer.dtype),
        head=head,
        device=settings.device,
        session_options=settings.session_options,
        engine=old.engine if settings.engine == "auto" else settings.engine,
        snapshots=(),
        predictors={},
    )
    averages = settings.ema_decay is not None
    if others:
        weights = {**source.weights(), **old.trained_weights()}
        run.parameters, run.frozen = _divided(run.model, names, weights, settings)
        run.step, run.state, run.history.last_finite = None, OptimizerState(draws=run.state.draws), None
    elif averages != old.parameters.averages:
        run.parameters, run.state = old.parameters.with_averages(averages), replace(old.state, averaged=0)
        run.step = None
    return run


def _divided(
    model: TrainableModel, names: Sequence[str], weights: Mapping[str, np.ndarray], settings: StepSettings
) -> tuple[FlatParameters, dict[str, np.ndarray]]:
    """Return the numbers that training moves and the others; ``names`` are those of the trained parameters."""
    trained, moved = ({name: weights[name] for name in group} for group in (names, model.running_statistics))
    averages = settings.ema_decay is not None
    parameters = FlatParameters(trained, model.dtype, moved, settings.factors, averages=averages)
    others = {n: array for n, array in weights.items() if n not in trained and n not in moved}
    return parameters, {name: array.astype(model.dtype) for name, array in others.items()}


def _shapes(source: TrainableModel, columns: Columns) -> dict[str, tuple[int, ...]]:
    return {spec.name: columns[spec.name].shape[1:] for spec in source.inputs}
