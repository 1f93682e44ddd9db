"""On-device training: exports files for onnxruntime-training, and loads the checkpoints that it saves.

The device trains the same graph, loss, parameters and optimizer as the estimator. Settings that these files cannot
express are refused by name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from .._data.target_scale import TargetScale
from .._ir.edits import keep_outputs, swap_initializers
from .._ir.protobuf import to_proto
from .._ir.shapes import infer_shapes
from .._model.score_axes import repeated_rows
from .._training.loss_graph import as_float32, ir_type, one_hot
from .._training.machine_code import differentiating_engine
from .._training.step_interface import OptimizerState
from .._utils.errors import refusing
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..losses import Loss
from ..optimizers import SGD, Adam, AdamW, resolve_optimizer
from .fitted_state import FittedState
from .heads import loss_of

if TYPE_CHECKING:
    pass

SLOTS = ("first_moment", "second_moment")
"""The names of Adam's vectors in this package, in the order of onnxruntime-training."""


def write_artifacts(estimator: Any, state: FittedState, folder: str | os.PathLike[str], prefix: str) -> None:
    from ..classic.artifacts import generate_artifacts  # imported late: few users need it

    optimizer = _block_of_optimizer(estimator)
    _require_expressible(estimator, state)
    loss = loss_of(estimator._task(), state.fitted, state.source)
    names = {value.name for value in state.model.model.graph.initializers.values()}
    generate_artifacts(
        to_proto(_with_loss(state, loss)),
        requires_grad=state.parameters.names,
        frozen_params=[name for name in state.frozen if name in names],
        optimizer=optimizer,
        artifact_directory=folder,
        prefix=prefix,
        engine=differentiating_engine(estimator.engine),
    )


def _require_expressible(estimator: Any, state: FittedState) -> None:
    if estimator.alpha:
        raise ModelError(f"The files for devices have no penalty on weights, but alpha={estimator.alpha!r}: set it 0.")
    if state.model.running_statistics:
        raise ModelError("The files for devices update no running statistics: freeze the scale and bias of BatchNorm.")
    if state.head.groups or state.head.positions or state.model.link == "votes":
        raise ModelError(
            "The files for devices take one label a row, or indicators, and no scores of pairs of classes."
        )


def _block_of_optimizer(estimator: Any) -> Any:
    """Return the block that is equivalent to the optimizer."""
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
        decay, mode = float(optimizer.weight_decay), int(type(optimizer) is OrtAdamW)
        return optim.AdamW(True, betas, float(optimizer.epsilon), decay, clip_grad=clip, adam_mode=mode)
    raise ModelError(
        f"Devices have SGD without momentum and weight decay, Adam without weight decay, AdamW and OrtAdamW; not "
        f"{optimizer!r}. "
        "Set another optimizer before the export."
    )


def _with_loss(state: FittedState, loss: Loss) -> ir.Model:
    """Return the graph with the current weights, whose outputs are the loss of a batch and the scores."""
    single = state.model if state.model.dtype == np.float32 else as_float32(state.model)
    model = single.model.clone()
    graph, head = model.graph, state.head
    weights = {n: a.astype(np.float32) for n, a in state.trained_weights().items() if n in graph.initializers}
    swap_initializers(graph, weights)
    scores = next(v for v in graph.outputs if v.name == single.scores)
    op = GraphBuilder(graph, dtype=ir_type(single.dtype), prefix="device", constant_nodes=True)
    labelled = head.task == "multiclass"
    shape: list[str | int] = ["N"] if labelled else ["N", *(head.row_shape or (head.n_outputs,))]
    y = ir.val("labels" if labelled else "target", ir.DataType.INT64 if labelled else op.dtype, shape)
    graph.inputs.append(y)
    y = op.Reshape(y, [-1, head.n_outputs]) if head.row_shape else y
    columns = op.Reshape(scores, [-1, head.n_outputs])
    target = one_hot(op, y, head.n_outputs, op.dtype) if labelled else _scaled_outputs(op, y, head.target_scale)
    if single.members is not None:
        target = repeated_rows(op, target, single.members, head.n_outputs)
    with refusing(
        f"The files for devices take any number of rows, for which {type(loss).__name__} emits no loss. Let it compute "
        f"sizes in the graph, as by op.Shape, or export files for a number of rows by export_training"
    ):
        losses = loss(op, columns, target, head.link)
    value = op.ReduceMean(losses, keepdims=False)
    value.name, value.dtype, value.shape = "loss", op.dtype, ir.Shape([])
    keep_outputs(model, [value, scores])
    return infer_shapes(model)


def _scaled_outputs(op: GraphBuilder, y: ir.Value, scale: TargetScale | None) -> ir.Value:
    """Return the scaled target; on the device the target is given in its own units."""
    if scale is None:
        return y
    return op.Div(op.Sub(y, np.asarray(scale.center, op.dtype.numpy())), np.asarray(scale.scale, op.dtype.numpy()))


def read_checkpoint(state: FittedState, path: str | os.PathLike[str]) -> None:
    from ..classic.onnxblock import checkpoint as files

    checkpoint, parameters, current = files.read_checkpoint(path), state.parameters, state.trained_weights()
    for name, array in checkpoint.items():
        if name not in current or array.shape != current[name].shape:
            known = f"{list(current[name].shape)}" if name in current else "none of that name"
            raise ModelError(
                f"The checkpoint holds {name!r} of shape {list(array.shape)}, the estimator {known}: it is a "
                "checkpoint of another model."
            )
    if missing := [name for name in parameters.names if name not in checkpoint]:
        raise ModelError(f"The checkpoint lacks {missing[0]!r}, which is trained: it is a checkpoint of another model.")
    optimizer_state = OptimizerState(draws=state.optimizer.draws)
    for group in checkpoint.optimizer[:1]:
        optimizer_state.t = group.step
        optimizer_state.slots = _slots(state, group.moments)
    for name, array in checkpoint.items():
        if name in parameters.views():
            parameters.view(name)[...] = array
        else:
            state.frozen[name] = array.astype(state.frozen[name].dtype)
    state.parameters = parameters.with_averages(parameters.averages)
    state.optimizer, state.live.step, state.history.last_finite = optimizer_state, None, None
    state.live.predictors.clear()


def _slots(state: FittedState, moments: Any) -> dict[str, np.ndarray]:
    """Return the vectors of the optimizer; the file for SGD has an extra vector of zeros."""
    if any(len(moments.get(name, ())) != len(SLOTS) for name in state.parameters.names):
        return {}
    slots = {slot: np.zeros_like(state.parameters.vector) for slot in SLOTS}
    for name in state.parameters.names:
        for slot, array in zip(SLOTS, moments[name].values(), strict=True):
            slots[slot][state.parameters.span(name)] = array.ravel()
    return slots
