"""Write the four files for on-device training with onnxruntime-training, and read its checkpoints.

If onnxruntime-training's gradient builder is installed and proven right for the graph, the graphs equal those of
``onnxruntime.training.artifacts`` node for node. Otherwise the gradients consist of standard operators, which a device
runs as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from .._importers.load import load
from .._ir.protobuf import to_proto
from .._model.weights import parameters_of
from .._ort.objects import require_ort_format, to_ort_format
from .._ort.sessions import SupportedVersions
from .._utils.atomic_files import whole_files
from ..exceptions import ModelError, OnnxTrainError, nearest
from .onnxblock.blocks import IR_VERSION, OPSET, Block, PassThrough, base, empty_base
from .onnxblock.blocks import custom_op_library as known_operators
from .onnxblock.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from .onnxblock.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from .onnxblock.optim import SGD, AdamW
from .onnxblock.training import ForwardBlock, TrainingBlock

__all__ = ["Checkpoint", "LossType", "OptimType", "UnknownBlockError", "generate_artifacts", "read_checkpoint"]

PathLike: TypeAlias = "str | bytes | os.PathLike[Any]"

DEVICE = SupportedVersions("onnxruntime-training 1.19", OPSET, 5, IR_VERSION)
"""The versions that the last onnxruntime-training reads, whatever is installed here."""


class LossType(Enum):
    """Losses that :func:`generate_artifacts` knows by name; the target is the input "labels" or "target"."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Optimizers that :func:`generate_artifacts` knows by name, with their default settings."""

    AdamW = 1
    SGD = 2


class UnknownBlockError(OnnxTrainError, RuntimeError, TypeError):
    """The argument ``loss`` is no loss, or ``optimizer`` no optimizer."""


LOSS_BLOCKS: dict[LossType, type[Block]] = {
    LossType.MSELoss: MSELoss,
    LossType.CrossEntropyLoss: CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: BCEWithLogitsLoss,
    LossType.L1Loss: L1Loss,
}
OPTIMIZER_BLOCKS: dict[OptimType, type[ForwardBlock]] = {OptimType.AdamW: AdamW, OptimType.SGD: SGD}


class _WithLoss(TrainingBlock):
    """The training block made of a loss and additional outputs."""

    def __init__(self, loss: Block, names: Sequence[str] | None, further: Sequence[str], engine: str) -> None:
        super().__init__()
        self._loss = loss
        self._names = names
        self._further = tuple(further)
        self.engine = engine

    def build(self, *outputs: str) -> Any:
        found = self._loss(*(self._names or outputs))
        losses = found if isinstance(found, tuple) else (found,)
        return (*losses, *self._further)


def generate_artifacts(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Block | None = None,
    optimizer: OptimType | Block | None = None,
    artifact_directory: PathLike | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: PathLike | None = None,
    additional_output_names: list[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    *,
    engine: str = "auto",
) -> None:
    """Write training model, evaluation model, checkpoint and optimizer model for on-device training.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        The graph that computes the outputs.
    requires_grad : list of str, default=None
        Parameters to train, and inputs whose gradients the training model accumulates; None: all weights except
        ``frozen_params``. It may be empty: the files are written, without an optimizer.
    frozen_params : list of str, default=None
        Parameters that are in the checkpoint and are not trained. Weights that are neither trained nor frozen are
        constants of the graphs.
    loss : LossType or Block, default=None
        None: the first output of the graph is the loss.
    optimizer : OptimType or Block, default=None
        None: no optimizer model is written.
    artifact_directory : str or path, default=None
        Folder of the files, created if it is missing; None: the working directory.
    prefix : str, default=""
        Prefix of the file names.
    ort_format : bool, default=False
        Whether to write the graphs also in onnxruntime's own format; needs onnxruntime-training.
    custom_op_library : str or path, default=None
        Library of the graph's custom operators. They have no gradient. If operators that read their outputs are
        differentiated, the graph must declare the shapes of these outputs in its value_info.
    additional_output_names : list of str, default=None
        Values that the training and the evaluation model return after the loss.
    nominal_checkpoint : bool, default=False
        Whether to write a second checkpoint without values.
    loss_input_names : list of str, default=None
        Outputs from which the loss is computed; None: all.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine.

    Raises
    ------
    RuntimeError, TypeError
        The loss or the optimizer is neither a member of its enumeration nor a block.
    ValueError
        A name is not in the graph, a trained parameter is not float32, or an operator has no proven gradient.

    Examples
    --------
    >>> import tempfile, os
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import artifacts
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     artifacts.generate_artifacts(
    ...         model, ["W"], loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.AdamW,
    ...         artifact_directory=folder)
    ...     sorted(os.listdir(folder)), artifacts.read_checkpoint(os.path.join(folder, "checkpoint"))["W"].tolist()
    (['checkpoint', 'eval_model.onnx', 'optimizer_model.onnx', 'training_model.onnx'], [[1.0], [-2.0]])
    """
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise RuntimeError(f"model must be an onnx.ModelProto, bytes or a path, got {type(model).__name__}.")
    if ort_format:
        require_ort_format()
    further: Any = additional_output_names
    if not (further is None or isinstance(further, list)):
        raise RuntimeError(f"additional_output_names must be a list of names, got {type(further).__name__}.")

    # The blocks of the loss and of the optimizer.
    if loss is None:
        loss = PassThrough()
    elif isinstance(loss, LossType):
        loss = LOSS_BLOCKS[loss]()
    elif not isinstance(loss, Block):
        raise UnknownBlockError(f"loss must be a LossType or an onnxblock.Block, got {type(loss).__name__} ({loss!r}).")
    block = _WithLoss(loss, loss_input_names, further or (), engine)
    if isinstance(optimizer, OptimType):
        optimizer = OPTIMIZER_BLOCKS[optimizer]()
    elif not (optimizer is None or isinstance(optimizer, ForwardBlock)):
        raise UnknownBlockError(
            f"optimizer must be an OptimType or a block of onnxblock.optim, got {type(optimizer).__name__} "
            f"({optimizer!r})."
        )

    # The models.
    source = load(model, DEVICE)
    proto = to_proto(source)
    trained, frozen = _required_parameters(source, requires_grad, frozen_params)
    for name in (*trained, *frozen):
        block.requires_grad(name, name in trained)
    library = nullcontext() if custom_op_library is None else known_operators(os.fsdecode(custom_op_library))
    with library, base(proto):
        block(*[output.name for output in proto.graph.output])
    training, evaluation = block.to_model_proto()
    models = {"training_model": training, "eval_model": evaluation}
    if optimizer is not None:
        models["optimizer_model"] = optimizer_model(optimizer, block, proto)

    # The files, written together.
    start = Path(os.fsdecode(artifact_directory or "."), f"{prefix}_")  # a prefix may hold folders
    prefix = start.name[:-1]
    with whole_files(start.parent) as folder:
        for name, one in models.items():
            onnx.save(one, folder / f"{prefix}{name}.onnx")
            if ort_format:
                to_ort_format(folder / f"{prefix}{name}.onnx", custom_op_library)
        save_checkpoint(block.parameters(), folder / f"{prefix}checkpoint")
        if nominal_checkpoint:
            save_checkpoint(block.parameters(), folder / f"{prefix}nominal_checkpoint", True)


def optimizer_model(optimizer: ForwardBlock, block: TrainingBlock, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the update graph of the trained parameters of a block, in the opset of ``model``."""
    opset = next(one.version for one in model.opset_import if not one.domain)
    with empty_base(opset):
        optimizer(block.parameters())
    return optimizer.to_model_proto()


def _required_parameters(
    model: ir.Model, requires_grad: Sequence[str] | None, frozen_params: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the names of the trained and of the frozen parameters."""
    held = model.graph.initializers
    frozen = list(frozen_params or ())
    if requires_grad is None:
        weights = (name for output in model.graph.outputs for name in parameters_of(model.graph, output))
        requires_grad = [name for name in dict.fromkeys(weights) if name not in frozen]
    values = {**{v.name or "": v for v in model.graph.inputs}, **held}
    for name in (*requires_grad, *frozen):
        if name not in values:
            raise ModelError(f"The graph has no parameter or input {name!r}.{nearest(name, values)}")
    for name in requires_grad:
        if (kind := values[name].dtype) is not ir.DataType.FLOAT:
            found = "of an unknown type" if kind is None else kind.numpy().name
            raise ModelError(
                f"Devices train float32 parameters, but {name!r} is {found}. Convert the model to float32."
            )
    if both := set(requires_grad) & set(frozen):
        raise RuntimeError(f"A parameter is trained or frozen, not both: {sorted(both)}.")
    return list(requires_grad), frozen
