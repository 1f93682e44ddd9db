"""Blocks that build a forward model, or one with gradients in the form that onnxruntime-training's Module runs.

Trained and frozen parameters are inputs of both models, so that a module shares them between training and evaluation.
The training model accumulates its gradients in buffers, ``NAME_grad.accumulation.buffer``; the input
``lazy_reset_grad`` resets them first. Its outputs are those of the block, then a flag ``NAME_grad.accumulation.out``
for each gradient. If nothing requires a gradient, it is the forward model with ``lazy_reset_grad`` as one more input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

import onnx
import onnx.helper
import onnx_ir as ir

from ..._gradient.engine import available_engines, checked_engine, differentiate
from ..._gradient.ort_training import differentiate_as_built
from ..._gradient.path import path
from ..._ir.edits import multiply_by_columns
from ..._ir.queries import attribute, dims
from ..._ir.shapes import infer_shapes
from ..._ort.gradient_builder import optimized_for_training
from ..._utils.errors import refusing
from ...exceptions import ModelError, UnsupportedOperatorError, nearest
from ...graph import GraphBuilder
from . import blocks
from .blocks import IR_VERSION

RESET = "lazy_reset_grad"


class TrainingBlock(blocks.Block):
    """Base class of blocks that build a training model: gradients of the first name that ``build`` returns.

    Attributes
    ----------
    engine : {"auto", "ort-training", "portable"}
        The gradient engine. "auto": the nodes of onnxruntime-training's builder, if it is installed and proven right
        for the graph; otherwise the engine that :func:`~onnxtrain_sklearn.gradient_graph` chooses.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> class WithLoss(onnxblock.TrainingBlock):
    ...     def build(self, name):
    ...         return onnxblock.loss.MSELoss()(name)
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> block = WithLoss()
    >>> block.requires_grad("W")
    >>> with onnxblock.base(model):
    ...     loss = block("Y")
    >>> training, evaluation = block.to_model_proto()
    >>> [value.name for value in training.graph.input]
    ['X', 'target', 'W', 'W_grad.accumulation.buffer', 'lazy_reset_grad']
    >>> [value.name for value in training.graph.output] == [loss, "W_grad.accumulation.out"]
    True
    """

    engine = "auto"
    _models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None
    _parameters: tuple[list[onnx.TensorProto], list[onnx.TensorProto]] | None = None

    @property
    def _choices(self) -> dict[str, bool]:
        """Flags by parameter name, True if it requires a gradient; subclasses need not call the constructor."""
        found: dict[str, bool] = vars(self).setdefault("_requires_grad", {})
        return found

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Set whether a parameter is trained or frozen; without this call it stays a constant of the graph.

        An input of the graph can require a gradient too: the training model accumulates it as that of a parameter.
        """
        self._choices[argument_name] = bool(value)

    def parameters(self) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
        """Return trained and frozen parameters; raise RuntimeError if the block has not been called."""
        if self._parameters is None:
            raise RuntimeError("The parameters are not known: call the block within `with onnxblock.base(model)`.")
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the models for training and evaluation; raise RuntimeError if the block has not been called."""
        if self._models is None:
            raise RuntimeError("The models have not been built: call the block within `with onnxblock.base(model)`.")
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block and the gradients of its first output to the model."""
        output = self.build(*args, **kwargs)
        model = self.infer_shapes_on_base()
        names = set_outputs(model, output)
        wanted, frozen = ({n for n, trained in self._choices.items() if trained is kind} for kind in (True, False))
        held = list(model.graph.initializer)
        types = {v.name: v.type.tensor_type.elem_type for v in model.graph.input} | {t.name: t.data_type for t in held}
        if unknown := (wanted | frozen) - types.keys():
            hint = nearest(min(unknown), types)
            raise ModelError(
                f"The graph has no initializer or input {min(unknown)!r}, which requires_grad names.{hint}"
            )
        for name in sorted(wanted):
            if not ir.DataType(types[name]).is_floating_point():
                raise ModelError(f"{name!r} is of type {ir.DataType(types[name])}; only floats have a gradient.")
        self._parameters = [t for t in held if t.name in wanted], [t for t in held if t.name in frozen]

        # Trained and frozen parameters become inputs of both models.
        graph = model.graph
        declared = {value.name for value in graph.input}
        for tensor in held:
            if tensor.name in wanted | frozen and tensor.name not in declared:
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        constants = [tensor for tensor in held if tensor.name not in wanted | frozen]
        del graph.initializer[:]
        graph.initializer.extend(constants)

        # The evaluation model runs Dropout and BatchNormalization in inference mode.
        evaluation = deepcopy(model)
        for node in evaluation.graph.node:
            if node.op_type == "Dropout" and len(node.input) > 2:
                node.input[2] = ""  # without the input for its mode, it is in inference mode
            if node.op_type == "BatchNormalization":
                for one in node.attribute:
                    one.i = 0 if one.name == "training_mode" else one.i
                del node.output[1:]  # the running statistics, which inference mode does not update
        training = gradient_model(model, wanted, names, self.engine) if wanted else model
        accumulate(training, wanted)
        for proto in (training, evaluation):
            proto.ir_version = min(proto.ir_version, IR_VERSION)
        self._models = training, evaluation
        self.base.CopyFrom(training)
        return output


def gradient_model(
    model: onnx.ModelProto, wanted: Collection[str], outputs: Sequence[str], engine: str
) -> onnx.ModelProto:
    """Return the model with additional outputs ``NAME_grad``: gradients of its first output for each wanted input."""
    with refusing("The gradients of the graph cannot be built"):
        source = infer_shapes(ir.from_proto(model))
        loss = next(v for v in source.graph.outputs if v.name == outputs[0])
        if any(size != 1 for size in dims(loss) or ()):
            raise ModelError(
                f"The first output {outputs[0]!r} is differentiated, so it must have one element, but it has shape "
                f"{loss.shape}. Make it a loss: the first name that build() returns, or loss= of generate_artifacts."
            )
        wrt = [v.name or "" for v in source.graph.inputs if v.name in wanted]
        result = _as_built(source, wrt, outputs[0], checked_engine(engine))
        if result is None:
            if dims(loss) != []:  # blocks may return a vector of one element; engines differentiate a scalar
                scalar = GraphBuilder(source.graph, prefix="loss").ReduceSum(loss, keepdims=False)
                scalar.type, scalar.shape = loss.type, ir.Shape([])
                source.graph.outputs.append(scalar)
                loss = scalar
            result = differentiate(source, wrt, loss.name or "", engine).model
        named = {v.name: v for v in result.graph.outputs}
        result.graph.outputs[:] = [named[name] for name in (*outputs, *(f"{name}_grad" for name in wrt))]
        return ir.to_proto(result)


def _as_built(source: ir.Model, wrt: Sequence[str], loss: str, engine: str) -> ir.Model | None:
    """Return the graph with the nodes of onnxruntime-training's builder; None if these are not proven right."""
    if engine == "portable" or "ort-training" not in available_engines():
        return None
    # onnxruntime-training's transformers take a BatchNormalization for one in training mode
    if any(n.op_type == "BatchNormalization" and not attribute(n, "training_mode", 0) for n in source.graph):
        return None
    try:
        prepared = multiply_by_columns(source.clone())
        with refusing(
            "onnxruntime-training cannot load the graph", UnsupportedOperatorError
        ):  # as for custom operators
            proto = optimized_for_training(ir.to_proto(prepared).SerializeToString(), wrt=wrt)
        optimized = infer_shapes(ir.from_proto(onnx.load_model_from_string(proto)))
        output = next(v for v in optimized.graph.outputs if v.name == loss)
        read = {v for passage in path(optimized.graph, wrt, output) for v in passage.node.inputs if v is not None}
        if {v.name for v in read}.issuperset(wrt):
            return differentiate_as_built(optimized, wrt, loss)
    except UnsupportedOperatorError:
        pass
    return None


def accumulate(model: onnx.ModelProto, wanted: Collection[str]) -> None:
    """Accumulate the gradients in buffers, in place; flags replace the gradients among the outputs."""
    graph = model.graph
    gradients = {f"{name}_grad" for name in wanted}
    outputs = []
    for i, output in enumerate(graph.output):
        if output.name not in gradients:
            outputs.append(output)
            continue
        buffer, flag = (f"{output.name}.accumulation.{end}" for end in ("buffer", "out"))
        inputs = [buffer, output.name, RESET]
        domain = "com.microsoft"
        node = onnx.helper.make_node(
            "InPlaceAccumulatorV2", inputs, [flag], name=f"GradientAccumulator{i}", domain=domain
        )
        graph.node.append(node)
        value = graph.input.add()
        value.CopyFrom(output)
        value.name = buffer
        outputs.append(onnx.helper.make_tensor_value_info(flag, onnx.TensorProto.BOOL, [1]))
    graph.input.append(onnx.helper.make_tensor_value_info(RESET, onnx.TensorProto.BOOL, [1]))
    # Copies: the messages of a protobuf list end with the list.
    kept = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in outputs]
    del graph.output[:]
    graph.output.extend(kept)
    if not any(one.domain == "com.microsoft" for one in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


# Blocks that build a complete model.


class ForwardBlock(blocks.Block):
    """Base class of blocks that build a model to run: the names that ``build`` returns become its outputs.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> class Squared(onnxblock.ForwardBlock):
    ...     def build(self, name):
    ...         return onnxblock.blocks.Pow(2.0)(name)
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> block = Squared()
    >>> with onnxblock.base(model):
    ...     name = block("Y")
    >>> [output.name for output in block.to_model_proto().graph.output] == [name]
    True
    """

    _model: onnx.ModelProto | None = None

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model; raise RuntimeError if the block has not been called."""
        if self._model is None:
            raise RuntimeError("The model has not been built: call the block within `with onnxblock.base(model)`.")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model; the names that ``build`` returns become the outputs."""
        output = self.build(*args, **kwargs)
        self._model = self.infer_shapes_on_base()
        set_outputs(self._model, output)
        self.base.CopyFrom(self._model)
        return output


def set_outputs(model: onnx.ModelProto, names: str | Sequence[str]) -> list[str]:
    """Make the values of these names the outputs of the model, in place; raise UnknownValueError for another name."""
    chosen = [names] if isinstance(names, str) else list(names)
    graph = model.graph
    known = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    outputs = []
    for name in chosen:
        if name not in known:
            raise blocks.UnknownValueError(
                f"The graph has no value {name!r}, or its type is not known.{nearest(str(name), known)}"
            )
        outputs.append(deepcopy(known[name]))
    del graph.output[:]
    graph.output.extend(outputs)
    return chosen
