"""The engine "ort-training": onnxruntime-training's gradient builder, restricted to proven gradients.

The builder returns wrong gradients for some operators without an error, and fails on others with internal errors. So
every node on the path is looked up in :data:`PROVEN` first. An operator is listed only if its gradient was checked
against finite differences (the cases are in ``tests/contracts/ort_training_cases.py``); the entry excludes the settings
for which it is wrong or fails.

:func:`differentiate` checks the graph as given, rewrites nodes that the builder needs in another form
(:func:`prepare`), checks the rewritten nodes, calls the builder, replaces slow nodes that it emits
(:func:`use_faster_forms`) and restores the initializers and outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from .._importers.ort_fusions import refusal
from .._importers.quantization import is_fake
from .._importers.torch_program import clip_bounds, is_open_clip, padding_row
from .._ir.edits import insert_after, read_through_identity, remove_unread_initializers, replace_node, replace_value
from .._ir.queries import (
    Dims,
    attribute,
    constant,
    dims,
    fixed,
    graphs_in,
    is_float,
    kind,
    node_label,
    operand,
    opset,
    reads,
)
from .._ir.shapes import infer_shapes
from .._ir.supported import ANY, WINDOW, Supported
from .._ort import gradient_builder
from .._utils.errors import refusing
from ..exceptions import UnsupportedOperatorError
from ..graph import GraphBuilder, copy_type, stops_gradient
from .path import PathNode, is_norm, path
from .reverse import DIFFERENTIATED_TYPES, REMEDY, unsupported
from .rules.windows import Windows

OPSETS = range(11, 22)

Objection: TypeAlias = Callable[[PathNode], "str | None"]
"""Returns the reason why the gradient of a node is not proven, or None."""

Proven: TypeAlias = Supported[tuple[Objection, ...]]


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract."""
    return _differentiate(model, wrt, of, PROVEN, finish=use_faster_forms)


def differentiate_as_built(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Differentiate like :func:`differentiate`, but keep the nodes that the builder emits, to compare them.

    The graph may hold the fused operators of :data:`FUSED`, which onnxruntime-training's graph transformers emit.
    """
    return _differentiate(model, wrt, of, {**PROVEN, **FUSED}, finish=lambda built: built)


def _differentiate(
    model: ir.Model,
    wrt: Sequence[str],
    of: str,
    proven: Mapping[str, Proven],
    finish: Callable[[ir.Model], ir.Model],
) -> ir.Model:
    prepared = model.clone()
    if not wrt:
        return prepared
    version = model.graph.opset_imports.get("", 0)
    if version not in OPSETS:
        raise UnsupportedOperatorError(
            f"onnxruntime-training differentiates opset {OPSETS[0]} to {OPSETS[-1]}; this graph is of opset {version}. "
            "Convert it: onnx.version_converter.convert_version(model, 18)."
        )
    if (stop := next(filter(stops_gradient, model.graph.all_nodes()), None)) is not None:
        raise UnsupportedOperatorError(
            f"Node {stop.name!r} stops the gradient, which ort-training does not support. Use engine='portable'."
        )

    # If a subgraph reads a computed value of the graph, the builder ends the process, even off the path.
    for node in model.graph:
        for x in reads(node) if graphs_in(node) else ():
            producer = x.producer()
            if x not in node.inputs and producer is not None and producer.graph is model.graph:
                raise UnsupportedOperatorError(
                    f"{node_label(node)} reads {x.name!r} from outside its body, where onnxruntime-training's builder "
                    f"cannot follow. Use engine='portable'."
                )

    # Settings are checked on the given graph, as preparation may drop some; shapes and outputs on the prepared one.
    for step in path(model.graph, wrt, next(v for v in model.graph.outputs if v.name == of)):
        known = proven.get(kind(step.node))
        missing = refusal(step.node) or "onnxruntime-training has no gradient for it that is proven right"
        reason = step.unsupported_type(DIFFERENTIATED_TYPES)
        if reason := reason or (missing if known is None else known.unknown(step.node)):
            raise unsupported(step.node, reason)
    seed = prepare(prepared, wrt, of)
    for step in path(prepared.graph, wrt, seed):
        with refusing(f"{node_label(step.node)} cannot be differentiated", UnsupportedOperatorError):
            known = proven[kind(step.node)]
            reason = known.missing(step.node, step.outputs)
            on_path = (
                v for v in (*step.node.inputs, *step.node.outputs) if v in step.sources or v in step.node.outputs
            )
            if not reason and any(0 in (dims(value) or []) for value in on_path):
                reason = "the kernels of its gradient fail on values without elements"
            if reason := reason or next(filter(None, (objection(step) for objection in known.rule)), None):
                raise unsupported(step.node, reason)

    # Build the gradients.
    try:
        serialized = ir.to_proto(prepared).SerializeToString()
        result = gradient_builder.build_gradient_graph(serialized, wrt=wrt, of=seed.name or of)
    except Exception as error:
        # Keep the message, without the source locations of onnxruntime.
        text = str(error).rsplit("[ONNXRuntimeError] :", 1)[-1]
        text = " ".join(re.sub(r"\S+\.(?:cc|h):\d+ (?:.*\) (?:const )?)?", "", text).split()).rstrip(".")
        failed = next((n for n in prepared.graph if n.name and n.name in text), None)
        subject = "The graph" if failed is None else node_label(failed)
        raise UnsupportedOperatorError(f"{subject} cannot be differentiated: {text}. {REMEDY}") from error
    return _restore(finish(ir.from_proto(onnx.load_model_from_string(result))), model, wrt)


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


# Proven gradients.


def _wrong(reason: str, when: Callable[[PathNode], object]) -> Objection:
    return lambda step: reason if when(step) else None


def _only_input(others: str) -> Objection:
    return _wrong(f"the gradient of {others} is missing", lambda p: not p.inputs <= {0})


def _since(version: int) -> Objection:
    return _wrong(f"its gradient needs opset {version} or newer", lambda p: opset(p.node) < version)


def _keeps_padding(step: PathNode) -> str | None:
    row = padding_row(step.node)
    trained = f"PyTorch does not train row {row} of its table (padding_idx), which this engine would"
    return None if row is None else trained


def _into_output(step: PathNode) -> str | None:
    target = dims(step.node.outputs[0])
    floats = [x for x in step.node.inputs if x is not None and is_float(x)]
    return next((reason for x in floats if (reason := _broadcast(step, dims(x), target))), None)


def _matrices(step: PathNode) -> str | None:
    a, b = (dims(x) for x in step.node.inputs)
    if a is None or b is None:
        return "the rank of an operand is not known, and the gradient of a vector would be wrong"
    return _broadcast(step, a[:-2], b[:-2]) if len(a) > 2 or len(b) > 2 else None


def _bias(step: PathNode) -> str | None:
    if 2 not in step.inputs:
        return None
    shape = dims(step.node.inputs[2])
    return _broadcast(step, shape, dims(step.node.outputs[0])) if shape else "the rank of its bias is not known"


def _broadcast(step: PathNode, a: Dims | None, b: Dims | None) -> str | None:
    """Refuse to broadcast dimensions of different names, which the builder assumes equal; it resolves unnamed ones."""
    if a is None or b is None or None in a or None in b:
        return None if opset(step.node) >= 13 else "its shapes are not known, which needs opset 13 or newer"
    for m, n in zip(reversed(a), reversed(b), strict=False):
        if m != n and 1 not in (m, n) and not fixed([m, n]):
            return f"the dimensions {m} and {n} may be equal or broadcast: give them one name, or fix their sizes"
    return None


def _steps_may_be_negative(step: PathNode) -> bool:
    steps = operand(step.node, 4)
    values = None if steps is None else constant(steps)
    return steps is not None and (values is None or bool((values < 0).any()))


def _sizes_along(step: PathNode, axis: int) -> Dims:
    return [shape[axis] if shape else None for shape in map(dims, step.node.inputs)]


def _input_dims(step: PathNode) -> Dims | None:
    return dims(step.node.inputs[0])


_ALWAYS = "Abs Ceil Exp Floor GlobalAveragePool Identity Log Neg Reciprocal Relu Sigmoid Sign Sin Softplus Tanh"
_SCALAR = _wrong(
    "its rank is not known, and the gradient of a scalar would be wrong", lambda p: dims(p.node.outputs[0]) is None
)
_SINGLE_ELEMENT = _wrong(
    "the kernel of its gradient fails on a single element",
    lambda p: set((_input_dims(p) or [])[attribute(p.node, "axis", -1) :]) == {1},
)
_REDUCED = "axes keepdims noop_with_empty_axes"

PROVEN: dict[str, Proven] = {
    **dict.fromkeys(_ALWAYS.split(), Supported(())),
    **dict.fromkeys(
        ("Add", "Div", "Mul", "Sub"), Supported((lambda p: _broadcast(p, *map(dims, p.node.inputs)),), inputs=2)
    ),
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
        f"ceil_mode count_include_pad {WINDOW}",
    ),
    "Cast": Supported((), "to"),
    "Clip": Supported(
        (
            _only_input("its bounds"),
            _since(12),
            _wrong(
                "PyTorch's hardtanh has no derivative at its bounds, this engine's has",
                lambda p: is_open_clip(p.node) and operand(p.node, 1) is not None,
            ),
        ),
        inputs=3,
    ),
    "Concat": Supported(
        (
            _wrong(
                "its sizes must be fixed, or the opset 13 or newer",
                lambda p: opset(p.node) < 13 and not fixed(_sizes_along(p, attribute(p.node, "axis", 0))),
            ),
        ),
        "axis",
        inputs=ANY,
    ),
    "Conv": Supported(
        (
            _wrong("its auto_pad needs fixed sizes", lambda p: attribute(p.node, "auto_pad", "")[:4] == "SAME"),
            _wrong(  # with such settings the kernel reads memory beside the tensor
                "with groups, its gradient is wrong in other than two dimensions",
                lambda p: attribute(p.node, "group", 1) > 1 and len(dims(p.node.inputs[1]) or ()) != 4,
            ),
        ),
        f"group {WINDOW}",
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
        f"ceil_mode {WINDOW}",
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


# Faster forms, equal in value, of nodes that onnxruntime-training's builder emits.
#
# Times are for layers [64,128,10] at batch size 200 on one thread, onnxruntime 1.19.2.


Form = Callable[[GraphBuilder, ir.Node], "ir.Value | None"]


def _relu_gradient(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """ReluGrad branches on every element (104 µs); a mask does not (24 µs). At 0 the gradient is 0 in both."""
    cotangent, x = node.inputs
    assert cotangent is not None
    assert x is not None
    dtype = x.dtype or cotangent.dtype or op.dtype
    return op.Mul(cotangent, op.Cast(op.Greater(x, np.zeros((), dtype.numpy())), to=dtype))


def _column_sums(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Sum over the rows of a matrix, as for a bias, by a product with ones (6 µs) instead of ReduceSum (34 µs)."""
    matrix, axes = node.inputs[0], operand(node, 1)
    shape = dims(matrix)
    if matrix is None or matrix.dtype is None or axes is None or shape is None or len(shape) != 2:
        return None
    reduced = constant(axes)
    if reduced is None or reduced.tolist() != [0] or not isinstance(shape[0], int):
        return None
    total = op.MatMul(np.ones((1, shape[0]), matrix.dtype.numpy()), matrix)
    return total if attribute(node, "keepdims", 1) else op.Squeeze(total, axes=[0])


FASTER_FORMS: dict[str, Form] = {"com.microsoft.ReluGrad": _relu_gradient, "ReduceSum": _column_sums}
"""For each operator, the function that emits its faster form; it returns None where there is no gain."""


def use_faster_forms(model: ir.Model) -> ir.Model:
    """Replace nodes of ``model`` by their faster forms, in place."""
    for node in model.graph:
        if (node.name or "").startswith("AccumulateGrad_") and len(node.inputs) == 2:
            node.op_type = "Add"  # for two gradients: onnxruntime fuses Gemm and Sum, and fails for some operands
    op = GraphBuilder(model.graph, prefix="fast")
    for operator, form in FASTER_FORMS.items():
        nodes = [n for n in model.graph if kind(n) == operator]
        for node in nodes:
            faster = form(op, node)
            if faster is not None:
                replace_node(op, node, [faster])
        if nodes and "." in operator:  # the replaced nodes of another domain had blocked shape inference
            infer_shapes(model)
    model.graph.sort()
    return model


# Forms that onnxruntime-training's gradient builder differentiates correctly.
#
# Each function of :data:`PREPARE` rewrites nodes of one operator to an equivalent form; its docstring describes the
# problem. Nodes that it cannot rewrite stay unchanged, and the engine refuses them.


Prepare = Callable[[GraphBuilder, PathNode], None]

_NO_AXES = np.zeros(0, np.int64)


def prepare(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Value:
    """Rewrite the nodes on the path to ``of``, in place; return the value to differentiate."""
    graph = model.graph
    op = GraphBuilder(model.graph, prefix="prepared", constant_nodes=True)
    known = len(op.taken)
    output = next(v for v in graph.outputs if v.name == of)
    for step in path(graph, wrt, output):
        node = step.node
        for value in node.outputs:
            if f"{value.name}_grad" in op.taken:  # the builder would give its gradient this name
                if value.is_graph_output():
                    raise UnsupportedOperatorError(
                        f"The graph already has a value named '{value.name}_grad', as onnxruntime-training calls the "
                        f"gradient of the output {value.name!r}; rename it, or use engine='portable'."
                    )
                value.name = op.name("value")
        seen: set[ir.Value] = set()
        for i, x in enumerate(node.inputs):  # the builder defines the gradient of a name twice if a node reads it twice
            if x is not None and x.name in wrt:
                if x in seen:
                    read_through_identity(op, node, i)
                seen.add(x)
        if kind(node) in PREPARE:
            PREPARE[kind(node)](op, step)
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)

    # A node must compute the differentiated value, in float32: the builder seeds with a float32 1.0.
    seed = next(v for v in graph.outputs if v.name == of)
    if seed.dtype is not ir.DataType.FLOAT or seed.producer() is None:
        seed = op.Cast(seed, to=int(ir.DataType.FLOAT))
    if len(op.taken) > known:
        graph.sort()
        infer_shapes(model)
    # The builder assumes that the names that shape inference invents for unknown dimensions equal any size.
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        if None in (sizes := dims(value) or []):
            value.shape = ir.Shape(sizes)
    return seed


def _own_reads(op: GraphBuilder, step: PathNode) -> None:
    """Read inputs without a gradient through Identity: the builder defines a shared input's gradient twice."""
    for i, x in enumerate(step.node.inputs):
        if x is not None and i not in step.inputs:
            read_through_identity(op, step.node, i)


def _distinct_reads(op: GraphBuilder, step: PathNode) -> None:
    """Read a repeated operand through Identity: with unknown shapes the builder would give two nodes the same name."""
    node = step.node
    for i, x in enumerate(node.inputs):
        if x is not None and x in node.inputs[:i]:
            read_through_identity(op, node, i)


def _prepare_where(op: GraphBuilder, step: PathNode) -> None:
    """Expand the operands: the builder does not reduce broadcast gradients, and returns a vector for a scalar."""
    _expand_operands(op, step.node, (1, 2))
    _lift(op, step)


def _prepare_power(op: GraphBuilder, step: PathNode) -> None:
    """Expand the base, as for Where, and cast the exponent to the type of the base."""
    base, exponent = step.node.inputs
    if base is not None and base.dtype is not None and exponent is not None and exponent.dtype is not base.dtype:
        step.node.replace_input_with(1, op.Cast(exponent, to=int(base.dtype)))
    _expand_operands(op, step.node, (0,))
    _flatten_norm(op, step)
    _lift(op, step)


def _prepare_sqrt(op: GraphBuilder, step: PathNode) -> None:
    _flatten_norm(op, step)
    _lift(op, step)


def _flatten_norm(op: GraphBuilder, step: PathNode) -> None:
    """Compute a norm of zero as zero times the root of one: the derivative of the root of zero is infinite."""
    node = step.node
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.dtype is None or not is_norm(node, step.inputs):
        return
    dtype = x.dtype.numpy()
    is_zero = copy_type(op.Cast(op.Equal(x, op.constant(np.zeros((), dtype))), to=int(x.dtype)), x)
    apart = copy_type(op.Sub(op.constant(np.ones((), dtype)), is_zero), x)
    insert_after(op, y, lambda root: op.Mul(root, apart))
    node.replace_input_with(0, copy_type(op.Add(x, is_zero), x))


def _expand_operands(op: GraphBuilder, node: ir.Node, positions: Sequence[int]) -> None:
    """Expand these operands to the shape of the output; if it is unknown, a copy of the node computes it."""
    target = dims(node.outputs[0])
    smaller = [
        (i, x)
        for i in positions
        if (x := node.inputs[i]) is not None and (dims(x) is None or dims(x) != target or None in (dims(x) or []))
    ]
    if smaller:
        shape = np.array(target, np.int64) if fixed(target) else op.Shape(_emit_like(op, node, *node.inputs))
        for i, x in smaller:
            node.replace_input_with(i, op.Expand(x, shape))


def _lift(op: GraphBuilder, step: PathNode) -> None:
    """Reshape a scalar to a vector and back: the builder's constants have one axis, so its gradient would too."""
    node = step.node
    if dims(node.outputs[0]) == []:
        vectors = [op.Reshape(x, [1]) if x is not None and is_float(x) else x for x in node.inputs]
        replace_value(op, node.outputs[0], op.Reshape(_emit_like(op, node, *vectors), _NO_AXES))


def _prepare_matmul(op: GraphBuilder, step: PathNode) -> None:
    """Reshape vector operands to matrices: with a vector, both gradients are wrong."""
    a, b = step.node.inputs
    shapes = dims(a), dims(b)
    if None in shapes or all(len(s) != 1 for s in shapes if s is not None):
        return
    rows, columns = (len(s or []) == 1 for s in shapes)
    product = op.MatMul(op.Unsqueeze(a, axes=[0]) if rows else a, op.Unsqueeze(b, axes=[1]) if columns else b)
    rank = max(2, *(len(s or []) for s in shapes))
    replace_value(op, step.node.outputs[0], op.Squeeze(product, axes=[rank - 2] * rows + [rank - 1] * columns))


def _prepare_gemm(op: GraphBuilder, step: PathNode) -> None:
    """Reshape a scalar bias, whose gradient would be a vector."""
    bias = operand(step.node, 2)
    if bias is not None and dims(bias) == []:
        step.node.replace_input_with(2, op.Reshape(bias, [1]))


def _keep_axes(op: GraphBuilder, step: PathNode) -> None:
    """Set keepdims=1 and squeeze afterwards: with keepdims=0 the builder's graph is invalid in some opsets."""
    node = step.node
    if not attribute(node, "keepdims", 1):
        kept = _emit_like(op, node, *node.inputs, keepdims=1)
        axes = operand(node, 1) or attribute(node, "axes", None)
        replace_value(op, node.outputs[0], op.Reshape(kept, _NO_AXES) if axes is None else op.Squeeze(kept, axes=axes))


def _prepare_split(op: GraphBuilder, step: PathNode) -> None:
    """Replace Split by slices if an output is unused: the builder's gradient contains only the used parts."""
    node = step.node
    shapes = [dims(v) for v in step.node.outputs]
    axis = attribute(node, "axis", 0)
    ends = np.cumsum([s[axis] for s in shapes if s is not None and fixed([s[axis]])])
    if len(step.outputs) < len(ends) == len(shapes):
        starts = [0, *ends]
        for i in step.outputs:
            part = op.Slice(node.inputs[0], [int(starts[i])], [int(ends[i])], [axis])
            replace_value(op, node.outputs[i], part)


def _prepare_dropout(op: GraphBuilder, step: PathNode) -> None:
    """Remove Dropout in inference mode, whose gradient would be masked; add the mask output in training mode."""
    training = training_mode(step.node)
    if training is False:
        replace_value(op, step.node.outputs[0], op.Identity(step.node.inputs[0]))
    elif training is True:
        _declare_outputs(op, step.node, 2)


def _prepare_layer_normalization(op: GraphBuilder, step: PathNode) -> None:
    """Add optional inputs and outputs: the builder needs all three, and defines the gradients of all inputs."""
    node, scale = step.node, step.node.inputs[1]
    _own_reads(op, step)
    if operand(node, 2) is None and scale is not None:
        node.resize_inputs(3)
        node.replace_input_with(2, op.ConstantOfShape(op.Shape(scale), value=ir.tensor([0], dtype=scale.dtype)))
    _declare_outputs(op, node, 3)


def _prepare_clip(op: GraphBuilder, step: PathNode) -> None:
    """Replace a lower bound of zero by Relu if the derivative at the bound is to be 0: the Clip kernel gives 1."""
    node, x = step.node, operand(step.node, 0)
    if x is not None and is_open_clip(node) and clip_bounds(node)[0] == 0.0:
        node.replace_input_with(0, op.Relu(x))
        node.replace_input_with(1, None)


def _explicit_pads(op: GraphBuilder, step: PathNode) -> None:
    """Replace auto_pad, which the gradient ignores, by explicit pads if the shapes are known."""
    node = step.node
    mode = attribute(step.node, "auto_pad", "NOTSET")
    sizes = (dims(node.inputs[0]) or [])[2:]
    kernel = list(attribute(node, "kernel_shape", None) or (dims(operand(node, 1)) or [])[2:])
    if mode.startswith("SAME") and kernel and sizes and fixed(sizes) and fixed(kernel):
        ones, zeros = [1] * len(kernel), [0] * len(kernel)
        strides, dilations = (list(attribute(node, name, ones)) for name in ("strides", "dilations"))
        windows = Windows(kernel, strides, dilations, zeros, zeros).padded_to_same(sizes, upper=mode == "SAME_UPPER")
        node.attributes["auto_pad"] = ir.AttrString("auto_pad", "NOTSET")
        node.attributes["pads"] = ir.AttrInt64s("pads", windows.begin + windows.end)


PREPARE: dict[str, Prepare] = {
    "AveragePool": _explicit_pads,
    "Clip": _prepare_clip,
    "Concat": _own_reads,
    "Conv": _explicit_pads,
    "Cos": _lift,
    "Dropout": _prepare_dropout,
    "Erf": _lift,
    "Gemm": _prepare_gemm,
    "LayerNormalization": _prepare_layer_normalization,
    "MatMul": _prepare_matmul,
    **dict.fromkeys(("Max", "Min"), _distinct_reads),
    "Pow": _prepare_power,
    "ReduceL2": _keep_axes,
    "ReduceLogSumExp": _keep_axes,
    # The builder needs the second output, the log probabilities.
    "SoftmaxCrossEntropyLoss": lambda op, step: _declare_outputs(op, step.node, 2),
    "Split": _prepare_split,
    "Sqrt": _prepare_sqrt,
    "Where": _prepare_where,
}


def training_mode(node: ir.Node) -> bool | None:
    """Return the mode of a Dropout, None if it is not constant."""
    mode = operand(node, 2)
    array = np.array(False) if mode is None else constant(mode)
    return None if array is None else bool(array)


def _declare_outputs(op: GraphBuilder, node: ir.Node, count: int) -> None:
    node.resize_outputs(max(count, len(node.outputs)))
    for value in node.outputs:
        value.name = value.name or op.name(node.op_type)


def _emit_like(op: GraphBuilder, node: ir.Node, *inputs: ir.Value | None, **changes: object) -> ir.Value:
    attributes = {name: a.value for name, a in node.attributes.items()} | changes
    return op.emit(node.op_type, *inputs, **attributes)[0]
