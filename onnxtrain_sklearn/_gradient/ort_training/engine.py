"""The engine "ort-training": onnxruntime-training's gradient graph builder, restricted to verified gradients.

The builder returns wrong gradients for some operators without an error, and fails on others with internal errors. So
every node between a wanted name and the output is looked up in :data:`PROVEN` first. An operator is listed only if its
gradient was checked against finite differences; the entry excludes the settings for which it is wrong or fails.
``tests/contracts/ort_training_cases.py`` holds the cases. Nodes that the builder needs in another form are converted
first, on a clone of the graph (:mod:`onnxtrain_sklearn._gradient.ort_training.preparation`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ..._graph.contrib.lowering import refusal
from ..._graph.edits import copy_type, remove_unread_initializers
from ..._graph.fake_quantization import is_fake
from ..._graph.open_clip import is_open
from ..._graph.queries import (
    Dims,
    attribute,
    constant,
    describe,
    dims,
    fixed,
    graphs_in,
    is_float,
    kind,
    operand,
    opset,
    reads,
)
from ..._graph.stopped import stops_gradient
from ..._graph.supported import ANY, PADDING, Supported
from ..._graph.torch_program import padding_row
from ..._runtime import gradient_builder
from ..._support.refusal import refusing
from ...exceptions import UnsupportedOperatorError
from ..path import Passage, path
from .peephole import use_faster_forms
from .preparation import prepare, training_mode

OPSETS = range(11, 22)
TYPES = (ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16)

Objection: TypeAlias = Callable[[Passage], "str | None"]
Proven: TypeAlias = Supported[tuple[Objection, ...]]


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract."""
    return _differentiate(model, wrt, of, PROVEN, finish=lambda built: use_faster_forms(_without_fused_sums(built)))


def differentiate_as_built(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """As :func:`differentiate`, but keep the nodes that the builder emits, so that they can be compared.

    The graph may have the operators of :data:`FUSED`, which onnxruntime-training's transformers put into it.
    """
    return _differentiate(model, wrt, of, {**PROVEN, **FUSED}, finish=lambda built: built)


def _differentiate(
    model: ir.Model,
    wrt: Sequence[str],
    of: str,
    table: Mapping[str, Proven],
    finish: Callable[[ir.Model], ir.Model],
) -> ir.Model:
    prepared = model.clone()
    if not wrt:
        return prepared
    _require_opset(model.graph)
    if (node := next(filter(stops_gradient, model.graph.all_nodes()), None)) is not None:
        raise UnsupportedOperatorError(f"Node {node.name!r} stops the gradient: engine='portable' does so.")
    _require_no_reads_from_bodies(model.graph)
    for passage in path(model.graph, wrt, next(v for v in model.graph.outputs if v.name == of)):
        _refuse(passage, _unknown(passage, table))
    seed = prepare(prepared, wrt, of)
    for passage in path(prepared.graph, wrt, seed):
        with refusing(_refusal(passage), UnsupportedOperatorError):
            for reason in _objections(passage, table):
                _refuse(passage, reason)
    return _restore(finish(_build(prepared, wrt, seed.name or of)), model, wrt)


def _require_opset(graph: ir.Graph) -> None:
    version = graph.opset_imports.get("", 0)
    if version not in OPSETS:
        raise UnsupportedOperatorError(
            f"onnxruntime-training differentiates opset {OPSETS[0]} to {OPSETS[-1]}; this graph is of opset {version}. "
            "Convert it: onnx.version_converter.convert_version(model, 18)."
        )


def _require_no_reads_from_bodies(graph: ir.Graph) -> None:
    """Raise where a body reads what a node of the graph computes: the builder ends the process, also off the path."""
    for node in graph:
        for x in reads(node) if graphs_in(node) else ():
            producer = x.producer()
            if x not in node.inputs and producer is not None and producer.graph is graph:
                raise UnsupportedOperatorError(
                    f"{describe(node)} reads {x.name!r} from outside its body, where onnxruntime-training's builder "
                    f"cannot follow. Use engine='portable'."
                )


def _refuse(passage: Passage, reason: str | None) -> None:
    if reason:
        raise UnsupportedOperatorError(f"{_refusal(passage)}: {reason}. {_REMEDY}")


def _refusal(passage: Passage) -> str:
    return f"{describe(passage.node)} cannot be differentiated"


def _unknown(passage: Passage, table: Mapping[str, Proven]) -> str | None:
    """Return why a node is not supported, checked on the given graph: preparation may drop settings of a node."""
    known = table.get(kind(passage.node))
    strange = passage.other_type(TYPES)
    missing = refusal(passage.node) or "onnxruntime-training has no gradient for it that is proven right"
    return strange or (missing if known is None else known.unknown(passage.node))


def _objections(passage: Passage, table: Mapping[str, Proven]) -> Iterator[str | None]:
    """Yield reasons why a node of the prepared graph cannot be differentiated, or None."""
    known = table[kind(passage.node)]
    yield known.missing(passage.node, passage.outputs)
    if any(
        0 in (dims(value) or [])
        for value in (*passage.node.inputs, *passage.node.outputs)
        if value in passage.sources or value in passage.node.outputs
    ):
        yield "the kernels of its gradient fail on values without elements"
    yield from (rule(passage) for rule in known.rule)


_REMEDY = "Freeze the parameters before it, or put other operators in its place."


def _wrong(reason: str, when: Callable[[Passage], object]) -> Objection:
    return lambda passage: reason if when(passage) else None


def _only_input(others: str) -> Objection:
    return _wrong(f"the gradient of {others} is missing", lambda p: not p.inputs <= {0})


def _since(version: int) -> Objection:
    return _wrong(f"its gradient needs opset {version} or newer", lambda p: opset(p.node) < version)


def _keeps_padding(passage: Passage) -> str | None:
    row = padding_row(passage.node)
    return (
        None if row is None else f"PyTorch does not train row {row} of its table (padding_idx), which this engine would"
    )


def _operands(passage: Passage) -> str | None:
    a, b = (dims(x) for x in passage.node.inputs)
    return _broadcast(passage, a, b)


def _into_output(passage: Passage) -> str | None:
    target = dims(passage.node.outputs[0])
    floats = [x for x in passage.node.inputs if x is not None and is_float(x)]
    return next((reason for x in floats if (reason := _broadcast(passage, dims(x), target))), None)


def _matrices(passage: Passage) -> str | None:
    a, b = (dims(x) for x in passage.node.inputs)
    if a is None or b is None:
        return "the rank of an operand is not known, and the gradient of a vector would be wrong"
    return _broadcast(passage, a[:-2], b[:-2]) if len(a) > 2 or len(b) > 2 else None


def _bias(passage: Passage) -> str | None:
    if 2 not in passage.inputs:
        return None
    shape = dims(passage.node.inputs[2])
    return _broadcast(passage, shape, dims(passage.node.outputs[0])) if shape else "the rank of its bias is not known"


def _broadcast(passage: Passage, a: Dims | None, b: Dims | None) -> str | None:
    """Refuse dimensions of different names: the builder assumes them equal. Unknown ones it resolves at run time."""
    if a is None or b is None or None in a or None in b:
        return None if opset(passage.node) >= 13 else "its shapes are not known, which needs opset 13 or newer"
    for m, n in zip(reversed(a), reversed(b), strict=False):
        if m != n and 1 not in (m, n) and not fixed([m, n]):
            return f"the dimensions {m} and {n} may be equal or broadcast: give them one name, or fix their sizes"
    return None


def _steps_may_be_negative(passage: Passage) -> bool:
    steps = operand(passage.node, 4)
    values = None if steps is None else constant(steps)
    return steps is not None and (values is None or bool((values < 0).any()))


def _sizes_along_axis(passage: Passage) -> Dims:
    axis = attribute(passage.node, "axis", 0)
    return [shape[axis] if shape else None for shape in map(dims, passage.node.inputs)]


def _input_dims(passage: Passage) -> Dims | None:
    return dims(passage.node.inputs[0])


def _normalized_dims(passage: Passage) -> Dims:
    return (_input_dims(passage) or [])[attribute(passage.node, "axis", -1) :]


def _has_groups_beyond_images(passage: Passage) -> bool:
    """Whether a convolution with groups is of series or volumes: its kernel depends on what lies in memory beside."""
    return attribute(passage.node, "group", 1) > 1 and len(dims(passage.node.inputs[1]) or ()) != 4


_ALWAYS = "Abs Ceil Exp Floor GlobalAveragePool Identity Log Neg Reciprocal Relu Sigmoid Sign Sin Softplus Tanh"
_SCALAR = _wrong(
    "its rank is not known, and the gradient of a scalar would be wrong", lambda p: dims(p.node.outputs[0]) is None
)
_SINGLE_ELEMENT = _wrong(
    "the kernel of its gradient fails on a single element", lambda p: set(_normalized_dims(p)) == {1}
)
_REDUCED = "axes keepdims noop_with_empty_axes"
_WINDOW = f"{PADDING} dilations kernel_shape pads strides"

PROVEN: dict[str, Proven] = {
    **dict.fromkeys(_ALWAYS.split(), Supported(())),
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), Supported((_operands,), inputs=2)),
    **dict.fromkeys(("Cos", "Erf", "Sqrt"), Supported((_SCALAR,))),
    **dict.fromkeys(("Flatten", "LogSoftmax", "Softmax"), Supported((), "axis")),
    "Gather": Supported((_keeps_padding,), "axis", inputs=2),
    "GatherElements": Supported((), "axis", inputs=2),
    **dict.fromkeys(("Max", "Min"), Supported((_into_output,), inputs=ANY)),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMean", "ReduceSum"), Supported((), _REDUCED, inputs=2)),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), Supported((), "axes", inputs=2)),
    "AveragePool": Supported(
        (
            _wrong("the sizes of its input, the batch too, must be fixed", lambda p: not fixed(_input_dims(p))),
            _wrong("its gradient is wrong in three dimensions", lambda p: len(_input_dims(p) or ()) > 4),
            _wrong("its gradient is wrong with dilations", lambda p: set(attribute(p.node, "dilations", ())) - {1}),
            _wrong(
                "its gradient is wrong for ceil_mode with count_include_pad",
                lambda p: attribute(p.node, "ceil_mode", 0) and attribute(p.node, "count_include_pad", 0),
            ),
        ),
        f"ceil_mode count_include_pad {_WINDOW}",
    ),
    "Cast": Supported((), "to"),
    "Clip": Supported(
        (
            _only_input("its bounds"),
            _since(12),
            _wrong(
                "PyTorch's hardtanh has no derivative at its bounds, this engine's has",
                lambda p: is_open(p.node) and operand(p.node, 1) is not None,
            ),
        ),
        inputs=3,
    ),
    "Concat": Supported(
        (
            _wrong(
                "its sizes must be fixed, or the opset 13 or newer",
                lambda p: opset(p.node) < 13 and not fixed(_sizes_along_axis(p)),
            ),
        ),
        "axis",
        inputs=ANY,
    ),
    "Conv": Supported(
        (
            _wrong("its auto_pad needs fixed sizes", lambda p: attribute(p.node, "auto_pad", "")[:4] == "SAME"),
            _wrong("with groups, its gradient is wrong in other than two dimensions", _has_groups_beyond_images),
        ),
        f"group {_WINDOW}",
        inputs=3,
    ),
    "Dropout": Supported(
        (
            _only_input("its ratio"),
            _wrong("its training_mode must be constant", lambda p: training_mode(p.node) is None),
        ),
        "ratio seed",
        inputs=3,
        outputs=2,
    ),
    "Expand": Supported((_into_output,), inputs=2),
    "GatherND": Supported((_since(12),), "batch_dims", inputs=2),
    "Gelu": Supported((), "approximate=none"),
    "Gemm": Supported(
        (
            _wrong("its alpha is zero", lambda p: attribute(p.node, "alpha", 1) == 0),
            _wrong("its beta is zero", lambda p: 2 in p.inputs and attribute(p.node, "beta", 1) == 0),
            _bias,
        ),
        "alpha beta transA transB",
        inputs=3,
    ),
    "LayerNormalization": Supported(
        (_SINGLE_ELEMENT,),
        "axis epsilon",
        inputs=3,
        outputs=3,
    ),
    "LeakyRelu": Supported(
        (_wrong("its gradient is wrong for a negative alpha", lambda p: attribute(p.node, "alpha", 0.01) < 0),),
        "alpha",
    ),
    "MatMul": Supported((_matrices,), inputs=2),
    "MaxPool": Supported(
        (
            # The kernel takes the sizes from the graph; with unknown ones it writes out of bounds.
            _wrong(
                "the sizes of its input, but for the batch, must be fixed",
                lambda p: not fixed((_input_dims(p) or [None, None])[1:]),
            ),
        ),
        f"ceil_mode {_WINDOW}",
        outputs=2,
    ),
    "Pad": Supported((_only_input("its constant value"),), "mode=constant", inputs=3),
    "Round": Supported((_wrong("its gradient is to pass straight through", lambda p: is_fake(p.node)),)),
    "Pow": Supported((_only_input("its exponent"), _SCALAR), inputs=2),
    "ReduceL2": Supported(
        (_wrong("its input is a scalar, or of unknown rank", lambda p: not _input_dims(p)),),
        _REDUCED,
        inputs=2,
    ),
    "Reshape": Supported((), "allowzero", inputs=2),
    "ScatterElements": Supported((), "axis reduction=none", inputs=3),
    "ScatterND": Supported((), "reduction=none", inputs=3),
    "Slice": Supported((_wrong("its steps must be positive constants", _steps_may_be_negative),), inputs=5),
    "SoftmaxCrossEntropyLoss": Supported(
        (_only_input("its class weights"),), "ignore_index reduction=mean|none|sum", inputs=3, outputs=2
    ),
    "Split": Supported(
        (
            _wrong(
                "some of its outputs do not reach the loss, and their sizes are not known",
                lambda p: len(p.outputs) < len(p.node.outputs),
            ),
        ),
        "axis num_outputs split",
        inputs=2,
        outputs=ANY,
        cotangents=ANY,
    ),
    "Tile": Supported((), inputs=2),
    "TopK": Supported((), "axis largest sorted", inputs=2, outputs=2),
    "Transpose": Supported((), "perm"),
    "Trilu": Supported((), "upper", inputs=2),
    "Where": Supported((_SCALAR,), inputs=3),
}

FUSED: dict[str, Proven] = {
    "SimplifiedLayerNormalization": Supported(
        (_SINGLE_ELEMENT,),
        "axis epsilon stash_type",
        inputs=2,
        outputs=2,
    ),
    "com.microsoft.BatchNormInternal": Supported(
        (_wrong("its running statistics have no gradient", lambda p: not p.inputs <= {0, 1, 2}),),
        "epsilon momentum training_mode",
        inputs=5,
        outputs=5,
    ),
    "com.microsoft.ConcatTraining": Supported((), "axis", inputs=ANY, outputs=2),
    "com.microsoft.FastGelu": Supported(()),
    "com.microsoft.Gelu": Supported(()),
    "com.microsoft.QuickGelu": Supported((), "alpha"),
}
"""Operators into which onnxruntime-training's transformers fuse several, and their proven gradients."""


def _build(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    try:
        result = gradient_builder.build_gradient_graph(ir.to_proto(model).SerializeToString(), wrt=wrt, of=of)
    except Exception as error:
        text = _without_source(str(error))
        node = next((n for n in model.graph if n.name and n.name in text), None)
        subject = "The graph" if node is None else describe(node)
        raise UnsupportedOperatorError(f"{subject} cannot be differentiated: {text}. {_REMEDY}") from error
    return ir.from_proto(onnx.load_model_from_string(result))


def _without_fused_sums(model: ir.Model) -> ir.Model:
    """Replace a Sum of two gradients by Add: onnxruntime fuses Gemm and Sum, and fails for some operands."""
    for node in model.graph:
        if (node.name or "").startswith("AccumulateGrad_") and len(node.inputs) == 2:
            node.op_type = "Add"
    return model


def _without_source(text: str) -> str:
    """Return an error message of onnxruntime without source locations."""
    text = re.sub(r"\S+\.(?:cc|h):\d+ (?:.*\) (?:const )?)?", "", text.rsplit("[ONNXRuntimeError] :", 1)[-1])
    return " ".join(text.split()).rstrip(".")


def _restore(model: ir.Model, source: ir.Model, wrt: Sequence[str]) -> ir.Model:
    """Restore the initializers and the types and shapes of outputs of ``source``; drop what the builder left unused."""
    graph, kept = model.graph, source.graph.initializers
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(graph)} | {""}
    for domain in set(model.opset_imports) - used:
        del model.opset_imports[domain]
    remove_unread_initializers(graph, kept)
    for name in kept.keys() - graph.initializers.keys():
        value = kept[name]
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(copy)
    known = {v.name: v for v in source.graph.outputs}
    known |= {f"{v.name}_grad": v for v in [*source.graph.inputs, *kept.values()] if v.name in wrt}
    for output in graph.outputs:
        copy_type(output, known[output.name])
    return model
