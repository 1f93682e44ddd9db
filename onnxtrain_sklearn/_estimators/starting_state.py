"""Make the state that a call trains: a new one, or an earlier one with the current parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .._fitted.fitted_model import FittedModel
from .._inference.graph import Head
from .._model.trainable import TrainableModel
from .._training.parameters import FlatParameters, Trainable, selected, warn_of_doubtful
from .._training.settings import StepSettings
from .._training.state import OptimizerState
from .._training.step import in_trainable_type
from ..losses import Loss
from ..optimizers import LBFGS
from .adaptation import adapted
from .examples import Examples
from .finetuning_setup import tuned_names
from .fitted_state import Columns, FittedState, LiveSessions, Start, sparse_inputs, trained_form
from .heads import HeadChoice, Plan


def starting_state(plan: Plan, chosen: HeadChoice, examples: Examples) -> tuple[FittedState, StepSettings]:
    """Return a new state with this head, or the old one with the current parameters, and the settings of its step."""
    estimator, old, columns = plan.estimator, plan.old, examples.columns
    seen = chosen.seen if old is not None else adapted(estimator, chosen.seen, plan.rng)
    settings = plan.config.with_graph(chosen.settings, seen)
    if plan.config.drop_last and not settings.optimizer.takes_minibatches:
        kind = type(settings.optimizer).__name__
        raise ValueError(f"drop_last has no effect with {kind}, which takes no minibatch steps. Set it to False.")
    trainable = plan.config.trainable
    if plan.tuner is not None:
        settings = replace(settings, optimizer=LBFGS())  # the gradients of all rows, without an update graph
        fitted = plan.fitted if plan.body is None else plan.body.fitted
        trainable = tuned_names(estimator, plan.tuner, seen, fitted, plan.head_names)
    if isinstance(settings.loss, Loss):
        plan.rows.require_same_units(settings.loss)
    head = chosen.head if plan.rows.scale is None else replace(chosen.head, target_scale=plan.rows.scale)
    if old is not None:
        return _resumed_state(old, seen, head, settings, trainable, columns), settings
    state = _new_state(chosen.source, seen, head, settings, trainable, columns, plan.rng, plan.fitted)
    state.began = Start.by(estimator)
    warn_of_doubtful(state.source, state.parameters.names, plan.config.trainable)
    return state, settings


def _new_state(
    given: TrainableModel,
    source: TrainableModel,
    head: Head,
    settings: StepSettings,
    trainable: Trainable,
    columns: Columns,
    rng: np.random.RandomState,
    fitted: FittedModel | None,
) -> FittedState:
    """Return a new state from the weights of ``source``, the form of ``given`` with the loss placed."""
    source, names = selected(source if source.reference is None else replace(source, reference=None), trainable)
    weights, shapes = source.weights(), _shapes(source, columns)
    sparse = sparse_inputs(columns, every=settings.lazy_rows)
    model = in_trainable_type(trained_form(source, shapes, names), settings, names, sparse)
    parameters, frozen = _divided(model, names, weights, settings)
    return FittedState(
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
        live=LiveSessions(form=model),
    )


def _resumed_state(
    old: FittedState, source: TrainableModel, head: Head, settings: StepSettings, trainable: Trainable, columns: Columns
) -> FittedState:
    """Return the state that continues from the weights of ``old`` with the current settings."""
    source, names = selected(source, trainable)
    shapes, others = _shapes(source, columns), set(names) != set(old.parameters.names)
    same = not others and shapes == old.shapes and source == old.source
    form = old.live.form if same else trained_form(source, shapes, names, old.parameters.buffer.dtype)
    state = replace(
        old,
        source=source,
        shapes=shapes,
        head=head,
        device=settings.device,
        session_options=settings.session_options,
        engine=old.engine if settings.engine == "auto" else settings.engine,
        snapshots=(),
        live=replace(old.live, form=form, predictors={}),
    )
    averages = settings.ema_decay is not None
    if others:
        weights = {**source.weights(), **old.trained_weights()}
        state.parameters, state.frozen = _divided(state.model, names, weights, settings)
        state.optimizer = OptimizerState(draws=state.optimizer.draws)
        state.live.step = state.history.last_finite = None
    elif averages != old.parameters.averages:
        state.parameters, state.optimizer = old.parameters.with_averages(averages), replace(old.optimizer, averaged=0)
        state.live.step = None
    return state


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
