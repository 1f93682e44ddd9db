"""Files of training: training graphs, the states trained by them, and artifacts for onnxruntime-training.

Training graphs (``export_training``, ``to_training_onnx``) train in any onnxruntime; ``load_state`` brings back what
they trained. ``export_artifacts`` writes files for onnxruntime-training on a device, and ``load_checkpoint`` reads its
checkpoints. Both train the same graph, loss, parameters and optimizer as the estimator, and refuse by name a setting
that they cannot express.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .._data.row_weights import weights_of_classes
from .._export.exported import AVERAGE, PARAMETERS, STATISTICS, STEP, ExportedOutput, ExportedTraining
from .._export.folder import read_folder, training_folder, write_folder
from .._export.graphs import require_known_form
from .._export.manifest import component_fact, json_value
from .._export.state_files import StateArrays, read_state_file
from .._export.training_info import training_model
from .._fitted.text_encoder import encoding_graph
from .._inference.graph import Decoding, OutputOptions
from .._ir.edits import keep_outputs, swap_initializers
from .._ir.files import require_whole
from .._ir.protobuf import to_proto
from .._ir.shapes import infer_shapes
from .._model.links import repeated_rows
from .._ort.objects import read_adapter
from .._training.loss_graph import ir_type, one_hot
from .._training.parameters import FlatParameters, state_slots
from .._training.programs import differentiating_engine
from .._training.randomness import draws_numbers
from .._training.rows_meet import outputs_where_rows_meet, where_rows_meet
from .._training.step import as_float32
from .._training.step_parts import OptimizerState, StepParts, StepSettings, TotalLoss
from .._utils.errors import refusing
from .._utils.typing import MatrixLike
from ..exceptions import ModelError, instead_of, nearest
from ..graph import GraphBuilder
from ..losses import Loss
from ..optimizers import SGD, Adam, AdamW, BaseOptimizer, Slot, resolve_optimizer
from ..optimizers.base import OPTIONS
from ..schedules import resolve_schedule
from .call import Call
from .config import TrainingConfig
from .fit import prepare
from .fitted_state import FittedState
from .outputs import OutputSpec, loss_of
from .training_state import constants_of, require_same_constants

SCHEDULE_PARAMETERS = ("learning_rate", "weight_decay_schedule", "dropout_schedule")
"""Schedules of the estimator and of its optimizer."""

FACTS = ("learning_rate_init", "shuffle", "drop_last", "accumulate", "max_iter", "random_state")
"""Parameters of the estimator and of its optimizer that the graphs lack, recorded for the loop that runs the graphs."""


def exported_training(
    estimator: Any,
    state: FittedState,
    batch_size: int | None,
    target: str = "any",
) -> ExportedTraining:
    """Return the content of training graphs that continue training as ``partial_fit`` would."""
    outputs: tuple[ExportedOutput, ...] = estimator._preparation().exported(estimator, state)
    config = TrainingConfig.of(estimator)
    if state.graph.batch is not None:
        why = f"the graph runs only on {state.graph.batch} of them"
        why = "X was a list of examples of different sizes" if state.graph.takes_examples else why
        raise ModelError(
            f"A training graph takes minibatches of rows, and {why}: train it in Python. to_onnx() gives the graph "
            f"that predicts."
        )
    if state.graph.is_whole:
        raise ModelError(
            "A training graph takes minibatches of rows, and with batch_size=None the data are one thing: train it in "
            "Python. to_onnx() gives the graph that predicts."
        )
    if batch_size is None and estimator.batch_size is None:
        raise ValueError("A training graph has a fixed number of rows: give export batch_size=, a number.")
    if state.decoding.declared is not None:
        raise ModelError(
            "Training graphs take labels or numbers as targets, not those that a loss declares by name: train with "
            "them in Python. to_onnx() exports the trained graph."
        )
    if state.decoding.soft:
        raise ModelError("Training graphs take one label a row, not soft labels: train with them in Python.")
    loss: Loss | TotalLoss = (
        loss_of(estimator._output_spec(), state.fitted, state.graph)
        if not outputs
        else TotalLoss(tuple(one.loss for one in outputs), has_factors=True)
    )
    positions = None if state.decoding.positions is None else settings_of_step(state).positions
    settings = config.for_export(loss, state.decoding, state.seed, positions, state.device)
    settings = replace(settings, n_scores=loss.width) if isinstance(loss, TotalLoss) else settings
    settings = config.with_graph(settings, state.graph)
    parameters = state.parameters
    if parameters.averages != (settings.ema_decay is not None):  # ema_decay was changed after the last call
        parameters = parameters.with_averages(settings.ema_decay is not None)
    rows = config.loop.accumulate * config.batch_size if batch_size is None else batch_size
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
        raise ValueError(f"batch_size must be an int of at least 1, or None, {instead_of(rows)}.")
    rows = int(rows)
    held = {
        name: getattr(config.optimizer if name in OPTIONS else estimator, name)
        for name in (*SCHEDULE_PARAMETERS, *FACTS)
    }
    facts = {
        "generator": "onnxtrain-sklearn",
        "estimator": type(estimator).__name__,
        **{name: component_fact(resolve_schedule(held[name], name)) for name in SCHEDULE_PARAMETERS},
        "progress": dict(vars(state.history.progress)),
        "hyperparameters": {name: json_value(held[name]) for name in FACTS},
        "constants": constants_of(state),
    }
    parts = StepParts(state.trained_form, settings, parameters, state.frozen, state.optimizer_state, rows, state.sparse)
    if found := outputs_where_rows_meet(state.trained_form, settings):
        raise ModelError(
            f"Output {found[0]!r}: rows meet in its loss. In training graphs of several outputs, rows without a label "
            f"for this output would affect its loss: train in Python, or set a loss that treats rows separately."
        )
    minibatches = _separate_minibatches(parts, config.loop.accumulate)
    ignored = None if state.decoding.positions is None or outputs else estimator._output_spec().ignore_label
    weights = None if outputs else exported_class_weights(estimator._output_spec(), state.decoding, state.balanced)
    table = None if state.fitted is None else state.fitted.parts
    front = None if table is None else encoding_graph(table)
    return ExportedTraining(parts, state.decoding, facts, weights, ignored, target, outputs, front, minibatches)


def _separate_minibatches(parts: StepParts, accumulate: int) -> int:
    """Return how many passes a step takes: one, or one per minibatch if rows meet or minibatches draw random numbers.

    A number of rows that is not a multiple of ``accumulate`` is one minibatch.
    """
    rows = parts.batch_size
    where = where_rows_meet(parts.graph, parts.settings)
    if where is not None:
        if rows % accumulate:
            raise ValueError(
                f"batch_size must be a multiple of {accumulate}, got {rows}: a step takes the rows of all accumulate="
                f"{accumulate} minibatches, and results of rows depend on other rows of their minibatch ({where})."
            )
        return accumulate
    return accumulate if draws_numbers(parts.graph.model) and not rows % accumulate else 1


def exported_class_weights(
    output_spec: OutputSpec, decoding: Decoding, balanced: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Return the class weights for the graphs to multiply in; None if the loss holds them, or if there are none."""
    given, classes = output_spec.class_weight, decoding.classes
    if given is None or decoding.positions is not None:
        return None
    if decoding.task not in ("binary", "multiclass") or isinstance(classes, list):
        raise ModelError(
            "Training graphs weigh rows by one label, and these have several: set class_weight=None, and multiply the "
            "weights into sample_weight (sklearn.utils.class_weight.compute_sample_weight)."
        )
    if isinstance(given, str):
        if balanced is None:
            raise ModelError(
                "Training graphs hold the weight of each class, and class_weight='balanced' takes them from the rows "
                "of a fit, which this estimator was not fitted with: call fit again, or give a dict, such as "
                "sklearn.utils.class_weight.compute_class_weight makes."
            )
        return balanced
    return tuple(weights_of_classes(given, classes, np.zeros(0, np.int64), np.ones(0)).tolist())


def settings_of_step(state: FittedState) -> StepSettings:
    """Return the settings of the last call's step; raise if they are missing, because they hold the labels per row."""
    settings: StepSettings | None = getattr(state.live.step, "settings", None)
    if settings is None:
        raise ModelError(
            "The number of labels in a row is not known after loading a pickle. Call partial_fit on some rows first."
        )
    return settings


def untrained_state(estimator: Any, X: MatrixLike, y: MatrixLike) -> FittedState:
    """Return the state that a fit of a copy of ``estimator`` would begin from."""
    twin = clone(estimator)
    return prepare(twin, Call(X, cast("ArrayLike", y)))[0]


# Load weights by name, or the vectors of training graphs, that were trained elsewhere.


Arrays = Mapping[str, np.ndarray]


def load_state(state: FittedState, given: object, optimizer: str | BaseOptimizer) -> None:
    """Set the weights from a folder, a file or a dict, and the optimizer's state if it is included."""
    arrays = read_arrays(given, state)
    if isinstance(arrays, StateArrays) and arrays.constants is not None:
        require_same_constants(state, arrays.constants, "; dict(state), of arrays by name, loads the weights alone")
    load_arrays(state, arrays, resolve_optimizer(optimizer))


def read_arrays(given: object, state: FittedState) -> dict[str, np.ndarray]:
    """Return the arrays of a mapping, a folder of training graphs, a file of safetensors, or an adapter file."""
    if isinstance(given, StateArrays):
        return given
    if isinstance(given, Mapping):
        return {str(name): np.asarray(array) for name, array in given.items()}
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"The state must be a path or a dict of arrays by name, {instead_of(given)}.")
    path = Path(given)
    if path.is_dir():
        folder = read_folder(path)
        return StateArrays(folder.state, folder.manifest.get("constants"))
    if not path.is_file():
        raise FileNotFoundError(f"There is no file or folder {path}.")
    if path.suffix == ".onnx_adapter":
        arrays = read_adapter(path)
        for one in state.graph.low_rank:  # the file holds the factors with the scale multiplied into them
            last = one.factors[1]
            if last in arrays:
                arrays[last] = (arrays[last].astype(np.float64) / one.scale).astype(arrays[last].dtype)
        return arrays
    return read_state_file(path)


def load_arrays(state: FittedState, arrays: Arrays, optimizer: BaseOptimizer) -> None:
    """Set the weights, and the optimizer's state if the arrays include it; an error leaves the state unchanged."""
    slots = state_slots(optimizer, state.parameters)
    if not arrays:
        raise ModelError("The state is empty: give the trained arrays by name.")
    # Two forms: arrays by the names of the graph, or the vectors of training graphs, which hold the optimizer's state.
    arrays = _as_vectors(state, arrays)
    vectors = PARAMETERS in arrays and PARAMETERS not in state.trained_weights()
    parameters, frozen, optimizer_state = _of_vectors(state, arrays, slots) if vectors else _of_names(state, arrays)
    _set_trained(state, parameters, frozen, optimizer_state, knows_step=vectors and STEP in arrays)


def _set_trained(
    state: FittedState,
    parameters: FlatParameters,
    frozen: dict[str, np.ndarray],
    optimizer_state: OptimizerState,
    *,
    knows_step: bool,
) -> None:
    """Set what was loaded, all at once; if it ``knows_step``, schedules resume at the optimizer's step."""
    if knows_step:
        progress = state.history.progress
        step = max(0, progress.step + optimizer_state.t - state.optimizer_state.t)
        samples = round(progress.samples * step / max(1, progress.step))
        state.history.change(progress=replace(progress, step=step, samples=samples))
    state.history.last_finite = None
    live = replace(state.live, step=None, predictors={})
    # in one update, because other threads may be predicting
    vars(state).update(parameters=parameters, frozen=frozen, optimizer_state=optimizer_state, snapshots=(), live=live)


def _as_vectors(state: FittedState, arrays: Arrays) -> Arrays:
    """Convert a state of ``to_training_onnx``, which holds the weights by name, to the vectors of training graphs.

    Any other state is returned unchanged.
    """
    known = {*state.parameters.names, *state.parameters.running_statistics}
    named = {name: array for name, array in arrays.items() if name in known}
    rest = {name: array for name, array in arrays.items() if name not in known}
    if STEP not in rest or named.keys() != known:
        return arrays
    parameters = state.parameters.with_averages(False)
    for name, array in named.items():
        _require_fitting_array(name, array, parameters.view(name).shape, parameters.buffer.dtype)
        parameters.view(name)[...] = array
    weights = AVERAGE if PARAMETERS in rest else PARAMETERS  # the inference graph holds the averaged weights
    statistics = {STATISTICS: parameters.statistics} if parameters.statistics.size else {}
    return {**rest, **statistics, weights: parameters.vector}


def _of_names(state: FittedState, arrays: Arrays) -> tuple[FlatParameters, dict[str, np.ndarray], OptimizerState]:
    """Return parameters, frozen weights and a new optimizer state from arrays by the names of the graph."""
    current = state.trained_weights()
    arrays = _with_unchanged_factors(arrays, state)
    for name, array in arrays.items():
        if name not in current:
            raise ModelError(f"The state holds {name!r}, which the graph lacks.{nearest(name, current)}")
        _require_fitting_array(name, array, current[name].shape, state.parameters.buffer.dtype)
    if missing := [name for name in state.parameters.names if name not in arrays]:
        raise ModelError(f"The state lacks {missing[0]!r}, which is trained: it belongs to another model.")
    parameters = state.parameters.with_averages(state.parameters.averages)
    frozen = dict(state.frozen)
    for name, array in arrays.items():
        if name in parameters.views():
            parameters.view(name)[...] = array
        else:
            frozen[name] = array.astype(frozen[name].dtype)
    parameters = parameters.with_averages(parameters.averages)  # the average begins from these weights
    return parameters, frozen, OptimizerState(draws=state.optimizer_state.draws)


def _with_unchanged_factors(arrays: Arrays, state: FittedState) -> Arrays:
    """Return the arrays; if adapters are merged into the matrices, add low-rank factors whose change is zero."""
    changes = [one for one in state.graph.low_rank if one.is_merged]
    held = state.parameters.views()
    if not changes or any(name in arrays for one in changes for name in one.factors):
        return arrays
    if missing := [one.matrix for one in changes if one.matrix not in arrays]:
        raise ModelError(f"The state lacks {missing[0]!r}, which low-rank factors change: it belongs to another model.")
    return {**arrays, **{f: held[f] * (f == one.first) for one in changes for f in one.factors}}


def _of_vectors(
    state: FittedState, arrays: Arrays, slots: Mapping[str, Slot]
) -> tuple[FlatParameters, dict[str, np.ndarray], OptimizerState]:
    """Return parameters, frozen weights and optimizer state from the vectors of training graphs."""
    old = state.parameters
    size = state.parameters.vector.shape
    known = {PARAMETERS: size, AVERAGE: size, STATISTICS: (old.statistics.size,), STEP: ()}
    moments = {name: array for name, array in arrays.items() if name not in known}
    shapes = known | {name: slot.shape for name, slot in slots.items()}
    for name, array in arrays.items():
        if name in shapes:
            _require_fitting_array(name, array, shapes[name], old.vector.dtype)
        elif array.shape != size and name.partition("/")[2] not in old.names:  # not of another optimizer either
            raise ModelError(
                f"The state holds {name!r} of shape {[*array.shape]}, which is neither a parameter of the graph nor a "
                f"vector of an optimizer.{nearest(name, [*old.views(), *shapes])}"
            )
    steps = arrays.get(STEP, np.array(0))
    if not 0 <= steps < 2**63 or steps != np.floor(steps):
        raise ModelError(f"The state holds {STEP!r} = {steps}, which must be a number of steps: an integer >= 0.")
    t = int(steps)
    if moments.keys() != set(slots) and (moments or t):
        raise ModelError(
            f"The state holds the vectors {sorted(moments)} of an optimizer, and that of the estimator has "
            f"{sorted(slots)}: set the optimizer that the state was trained with, or leave its vectors and "
            f"the step out."
        )
    if old.statistics.size and STATISTICS not in arrays:
        raise ModelError(f"The state lacks {STATISTICS!r}, the running statistics of the graph.")
    parameters = old.with_averages(AVERAGE in arrays)
    parameters.vector[...] = arrays[PARAMETERS]
    if old.statistics.size:
        parameters.statistics[...] = arrays[STATISTICS]
    if parameters.average is not None:
        parameters.average[...] = arrays[AVERAGE]
    typed = {name: array.astype(old.vector.dtype) for name, array in moments.items()}
    averaged = state.optimizer_state.averaged + t - state.optimizer_state.t if AVERAGE in arrays else 0
    optimizer_state = replace(state.optimizer_state, t=t, slots=typed, averaged=max(0, averaged))
    return parameters, state.frozen, optimizer_state


def _require_fitting_array(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if array.dtype.kind not in "fiu":
        raise ModelError(f"The state holds {name!r} of type {array.dtype}; weights are numbers.")
    if array.shape != shape:
        raise ModelError(
            f"The state holds {name!r} of shape {list(array.shape)}, and the estimator has {list(shape)}: it belongs "
            f"to another model."
        )
    if not np.isfinite(array).all():
        raise ModelError(f"The state holds {name!r} with values that are NaN or infinite: that training diverged.")
    if np.abs(array).max(initial=0) > np.finfo(dtype).max:
        raise ModelError(
            f"The state holds {name!r} with values that are too large for {dtype}, in which it is trained."
        )


# Training graphs of an estimator as files, and as the ``training_info`` of its inference graph.


def export_folder(
    estimator: Any,
    folder: str | os.PathLike[str],
    X: MatrixLike | None,
    y: MatrixLike | None,
    *,
    batch_size: int | None,
    form: str,
    target: str,
) -> None:
    """Write the training graphs of a fitted estimator or, with ``X`` and ``y``, of an untrained one for these data."""
    require_known_form(form, target)
    if X is None or y is None:
        check_is_fitted(estimator)
        state = estimator._state
    else:
        state = untrained_state(estimator, X, y)
    with refusing("The training graphs cannot be made"):
        content = training_folder(exported_training(estimator, state, batch_size, target), form)
    write_folder(content, folder)


@refusing("The training step cannot be made")
def training_onnx(estimator: Any, batch_size: int | None) -> onnx.ModelProto:
    """Return the inference graph of a fitted estimator with a training step in ``training_info``."""
    # The step reads the inputs of the inference graph, with the rows first.
    inference = require_whole(estimator._state.to_onnx(OutputOptions(), rows_first=True), "A ModelProto")
    return training_model(exported_training(estimator, estimator._state, batch_size, "any"), inference)


# Files for onnxruntime-training on a device, and its checkpoints.


SLOTS = ("first_moment", "second_moment")
"""The names of Adam's vectors in this package, in the order of onnxruntime-training."""


def write_artifacts(estimator: Any, state: FittedState, folder: str | os.PathLike[str], prefix: str) -> None:
    from ..classic.artifacts import generate_artifacts  # imported late: few users need it

    optimizer = _block_of_optimizer(estimator)
    if not isinstance(estimator.alpha, str) and estimator.alpha:
        raise ModelError(f"The files for devices have no penalty on weights, but alpha={estimator.alpha!r}: set it 0.")
    if state.trained_form.running_statistics:
        raise ModelError("The files for devices update no running statistics: freeze the scale and bias of BatchNorm.")
    if state.decoding.declared is not None:
        raise ModelError("The files for devices take labels or numbers, not targets that a loss declares by name.")
    if state.decoding.soft or state.decoding.groups or state.decoding.positions or state.trained_form.link == "votes":
        raise ModelError(
            "The files for devices take one label a row, or indicators: no soft labels, no scores of pairs of classes."
        )
    loss = loss_of(estimator._output_spec(), state.fitted, state.graph)
    names = {value.name for value in state.trained_form.model.graph.initializers.values()}
    generate_artifacts(
        require_whole(to_proto(_with_loss(state, loss)), "A file for devices"),
        requires_grad=state.parameters.names,
        frozen_params=[name for name in state.frozen if name in names],
        optimizer=optimizer,
        artifact_directory=folder,
        prefix=prefix,
        engine=differentiating_engine(estimator.engine),
    )


def _block_of_optimizer(estimator: Any) -> Any:
    """Return the onnxblock optimizer that is equivalent to the estimator's optimizer."""
    from ..classic.onnxblock import optim
    from ..classic.optimizers import OrtAdamW

    optimizer = resolve_optimizer(estimator.optimizer)
    limit = optimizer.max_grad_norm
    clip = None if limit is None else optim.ClipGradNorm(float(limit))
    if type(optimizer) is SGD and not optimizer.momentum and not optimizer.weight_decay:
        return optim.SGD(clip_grad=clip)
    exact = type(optimizer) in (AdamW, OrtAdamW) or (type(optimizer) is Adam and not optimizer.weight_decay)
    if isinstance(optimizer, Adam) and exact:
        betas = float(optimizer.beta_1), float(optimizer.beta_2)
        decay = float(optimizer.weight_decay)
        mode = int(type(optimizer) is OrtAdamW)
        return optim.AdamW(True, betas, float(optimizer.epsilon), decay, clip_grad=clip, adam_mode=mode)
    raise ModelError(
        f"Devices have SGD without momentum and weight decay, Adam without weight decay, AdamW and OrtAdamW; not "
        f"{optimizer!r}. "
        "Set another optimizer before the export."
    )


def _with_loss(state: FittedState, loss: Loss) -> ir.Model:
    """Return the graph with the current weights, whose outputs are the loss of a minibatch and the scores."""
    single = state.trained_form if state.trained_form.dtype == np.float32 else as_float32(state.trained_form)
    model = single.model.clone()
    ir_graph, decoding = model.graph, state.decoding
    weights = {n: a.astype(np.float32) for n, a in state.trained_weights().items() if n in ir_graph.initializers}
    swap_initializers(ir_graph, weights)
    scores = next(v for v in ir_graph.outputs if v.name == single.scores)
    op = GraphBuilder(ir_graph, dtype=ir_type(single.dtype), prefix="device", constant_nodes=True)
    labelled = decoding.task == "multiclass"
    shape: list[str | int] = ["N"] if labelled else ["N", *(decoding.row_shape or (decoding.n_columns,))]
    y = ir.val("labels" if labelled else "target", ir.DataType.INT64 if labelled else op.dtype, shape)
    ir_graph.inputs.append(y)
    y = op.Reshape(y, [-1, decoding.n_scores]) if decoding.row_shape else y
    columns = op.Reshape(scores, [-1, decoding.n_scores])
    if labelled:
        target = one_hot(op, y, decoding.n_columns, op.dtype)
    elif (scale := decoding.target_scale) is not None:  # the file takes targets in the units of y
        number = op.dtype.numpy()
        target = op.Div(op.Sub(y, np.asarray(scale.center, number)), np.asarray(scale.scale, number))
    else:
        target = y
    if single.members is not None:
        target = repeated_rows(op, target, single.members, decoding.n_columns)
    with refusing(
        f"The files for devices take any number of rows, for which {type(loss).__name__} emits no loss. Let it compute "
        f"sizes in the graph, as by op.Shape, or export files for a number of rows by export_training"
    ):
        losses = loss(op, columns, target, decoding.link)
    value = op.ReduceMean(losses, keepdims=False)
    value.name, value.dtype, value.shape = "loss", op.dtype, ir.Shape([])
    keep_outputs(model, [value, scores])
    return infer_shapes(model)


def read_checkpoint(state: FittedState, path: str | os.PathLike[str]) -> None:
    from ..classic.onnxblock import checkpoint as files

    checkpoint = files.read_checkpoint(path)
    parameters = state.parameters
    current = state.trained_weights()
    for name, array in checkpoint.items():
        if name not in current or array.shape != current[name].shape:
            known = f"{list(current[name].shape)}" if name in current else "none of that name"
            raise ModelError(
                f"The checkpoint holds {name!r} of shape {list(array.shape)}, the estimator {known}: it is a "
                "checkpoint of another model."
            )
    if missing := [name for name in parameters.names if name not in checkpoint]:
        raise ModelError(f"The checkpoint lacks {missing[0]!r}, which is trained: it is a checkpoint of another model.")
    loaded, frozen, optimizer_state = _of_names(state, dict(checkpoint.items()))
    groups = checkpoint.optimizer[:1]
    for group in groups:
        optimizer_state.t = group.step
        optimizer_state.slots = _slots(state, group.moments)
    _set_trained(state, loaded, frozen, optimizer_state, knows_step=bool(groups))


def _slots(state: FittedState, moments: Any) -> dict[str, np.ndarray]:
    """Return Adam's vectors from a checkpoint; an empty dict for SGD, whose checkpoint holds one vector of zeros."""
    if any(len(moments.get(name, ())) != len(SLOTS) for name in state.parameters.names):
        return {}
    slots = {slot: np.zeros_like(state.parameters.vector) for slot in SLOTS}
    for name in state.parameters.names:
        for slot, array in zip(SLOTS, moments[name].values(), strict=True):
            slots[slot][state.parameters.span(name)] = array.ravel()
    return slots
