"""The engine "portable": reverse-mode differentiation into standard ONNX operators, for any onnxruntime.

The nodes between the wanted names and the output are visited in reverse order. The rule of each operator, in
:data:`RULES`, emits the cotangents of its inputs from those of its outputs: the gradients of the scalar with respect to
these values. The cotangents of a value that several nodes read are summed. A cotangent always has the shape and type of
its value, so that a rule knows all shapes without inference. An operator without a rule, or with a setting that its
rule does not support, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .._importers.ort_fusions import refusal
from .._ir.control_flow import complete_bodies
from .._ir.edits import bypass, remove_unread, remove_unread_initializers, replace_node
from .._ir.opsets import MAX_OPSET, MIN_OPSET, in_opset
from .._ir.queries import Dims, constant, describe, dims, fixed, is_float, kind
from .._ir.shapes import infer_shapes
from .._ort import sessions
from .._utils.errors import refusing
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder, copy_type
from . import control_flow
from .context import (
    Cotangents,
    GradientRule,
    NewerOpsetNeeded,
    Passage,
    Reverse,
    mark_selected,
    path,
    require,
    require_types,
    unsupported,
    zeros_like,
)
from .lowering import expand
from .rules import convolution, elementwise, indexing, interpolation, matmul, normalization, reductions, shapes

RULES: dict[str, GradientRule] = {
    **convolution.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **matmul.RULES,
    **normalization.RULES,
    **reductions.RULES,
    **interpolation.RULES,
    **shapes.RULES,
}


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract.

    If the gradient of a node needs operators that the graph's opset lacks, the result has the first opset with them.
    """
    try:
        return _reverse_pass(model, wrt, of)
    except NewerOpsetNeeded as error:
        return differentiate(_in_newer_opset(model, error), wrt, of)


def _in_newer_opset(model: ir.Model, error: NewerOpsetNeeded) -> ir.Model:
    """Return the model in the opset that a gradient needs; raise ``error`` if it cannot be converted."""
    if error.opset > sessions.limits().opset:
        raise error
    try:
        return in_opset(model, error.opset)
    except ModelError:
        raise error from None


def _reverse_pass(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    result = model.clone()
    graph = result.graph
    _require_supported_opset(graph)
    output = next(v for v in graph.outputs if v.name == of)
    complete_bodies(result)
    wanted = [v for v in [*graph.inputs, *graph.initializers.values()] if v.name in wrt]
    expand(result, wanted, output, RULES.keys() | control_flow.RULES.keys())
    forward = set(graph)
    mark_selected(graph)
    op = GraphBuilder(graph, prefix="gradient", shared=True)
    one = op.constant(np.ones((), (output.dtype or op.dtype).numpy()))
    steps = path(graph, wrt, output)
    cotangents = _backward(op, steps, {output: [one]})
    sources = {v.name or "": v for v in [*graph.inputs, *graph.initializers.values()]}
    results = [_add_cotangents(op, cotangents.get(sources[name], [])) for name in wrt]
    _rewrite_forward(op, steps)
    apart = GraphBuilder(graph, prefix="gradient")  # each output needs its own name: no shared nodes
    for name, cotangent in zip(wrt, results, strict=True):
        _append_gradient(apart, sources[name], cotangent)
    infer_shapes(result)
    tidy(graph, [node for node in graph if node not in forward], wanted)
    factor_out_columns(graph, [node for node in graph if node not in forward])
    remove_unread_initializers(graph, kept=model.graph.initializers)
    return result


def _rewrite_forward(op: GraphBuilder, steps: Sequence[Passage]) -> None:
    """Put faster forms in the place of nodes of the forward pass: matrix products for convolutions, shared statistics.

    Convolutions with constant kernels are left: onnxruntime gives them layouts of its own.
    """
    faster = {
        "Conv": convolution.multiply_convolution,
        "BatchNormalization": normalization.normalize_by_moments,
    }
    found = [step for step in steps if kind(step.node) in faster]
    nodes = [step.node for step in found if kind(step.node) != "Conv" or 1 in step.inputs]
    for node in nodes:
        op.dtype = node.outputs[0].dtype or op.dtype
        faster[kind(node)](op, node)
    if any(node.graph is None for node in nodes):
        op.graph.sort()


def _require_supported_opset(graph: ir.Graph) -> None:
    version = graph.opset_imports.get("", 0)
    if not MIN_OPSET <= version <= MAX_OPSET:
        raise UnsupportedOperatorError(
            f"The portable engine differentiates opset {MIN_OPSET} to {MAX_OPSET}; this graph is of opset {version}. "
            "Convert it: onnx.version_converter.convert_version(model, 18)."
        )


def _backward(op: GraphBuilder, steps: Sequence[Passage], cotangents: Cotangents) -> Cotangents:
    """Differentiate ``steps`` in reverse order; return the cotangents of the values before them."""
    for step in reversed(steps):
        totals = tuple(_add_cotangents(op, cotangents.pop(v, [])) for v in step.node.outputs)
        if any(total is not None for total in totals):
            with refusing(f"{describe(step.node)} cannot be differentiated", UnsupportedOperatorError):
                found = _gradients(op, step, totals)
            for x, cotangent in found:
                cotangents.setdefault(x, []).append(cotangent)
    return cotangents


def _gradients(
    op: GraphBuilder, passage: Passage, totals: tuple[ir.Value | None, ...]
) -> list[tuple[ir.Value, ir.Value]]:
    """Return the values that a node reads, with their cotangents, if they have one."""
    node = passage.node
    require_types(passage)
    if kind(node) in control_flow.RULES:
        flow = control_flow.RULES[kind(node)]
        require(flow, node)
        return flow.rule(control_flow.Flow(op, node, totals, passage.sources, _backward))
    if kind(node) not in RULES:
        raise unsupported(node, refusal(node) or "the portable engine has no gradient for it")
    known = RULES[kind(node)]
    require(known, node, through=[i for i, total in enumerate(totals) if total is not None])
    op.dtype = next((v.dtype for v in node.outputs if v.dtype is not None and is_float(v)), op.dtype)
    thunks = known.rule(Reverse(op, node, totals, passage.inputs))
    pairs = []
    for i in sorted(passage.inputs):
        x, thunk = node.inputs[i], thunks[i] if i < len(thunks) else None
        if thunk is None:
            raise unsupported(node, f"the gradient of its input {i} is missing")
        cotangent = thunk()
        if x is not None and cotangent is not None:
            pairs.append((x, _typed(cotangent, x)))
    return pairs


def _typed(cotangent: ir.Value, x: ir.Value) -> ir.Value:
    if cotangent.producer() is not None and cotangent.shape is None:
        copy_type(cotangent, x)
    return cotangent


def _add_cotangents(op: GraphBuilder, cotangents: Sequence[ir.Value]) -> ir.Value | None:
    if len(cotangents) < 2:
        return cotangents[0] if cotangents else None
    total = op.Add(*cotangents) if len(cotangents) == 2 else op.Sum(*cotangents)
    return _typed(total, cotangents[0])


def _append_gradient(op: GraphBuilder, source: ir.Value, cotangent: ir.Value | None) -> None:
    """Name the gradient; add an Identity node where it is a constant or also another value of the graph."""
    if cotangent is None:
        cotangent = zeros_like(op, source)
    if cotangent.producer() is None or cotangent.is_graph_output():
        cotangent = op.Identity(cotangent)
    copy_type(cotangent, source).name = f"{source.name}_grad"
    op.graph.outputs.append(cotangent)


# Simplifies the gradient graph: removes redundant Expand and Reshape nodes, multiplications by one, and unused nodes.
#
# Only nodes of the gradient are simplified; the user's graph is unchanged.


BROADCASTING = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Sum Where".split())


def tidy(graph: ir.Graph, own: Collection[ir.Node], trained: Collection[ir.Value]) -> None:
    """Simplify the nodes ``own`` of ``graph``, in place; shapes must be inferred before.

    The numbers in ``trained`` change from step to step, so a factor that begins as one stays.
    """
    for node in own:
        if node.op_type in BROADCASTING and not node.domain:
            for i, x in enumerate(node.inputs):
                if x is not None and _needless(node, i, x):
                    node.replace_input_with(i, x.producer().inputs[0])  # type: ignore[union-attr]
        if node.op_type == "Mul":
            _drop_one(node, trained)
        if node.op_type == "Reshape":
            _skip_reshape(node)
    remove_unread(graph, [node for node in own if node.graph is graph])


def _needless(node: ir.Node, index: int, x: ir.Value) -> bool:
    """Return True if ``x`` is an Expand whose operand ``node`` would broadcast to the same result.

    A Sum broadcasts one operand at most: of three, onnxruntime's kernel for CUDA adds two that are broadcast along
    different axes wrongly.
    """
    producer, whole = x.producer(), dims(node.outputs[0])
    if producer is None or producer.op_type != "Expand" or not fixed(whole):
        return False
    shapes = [dims(producer.inputs[0] if i == index else v) for i, v in enumerate(node.inputs)]
    if node.op_type == "Sum" and any(shape != whole for i, shape in enumerate(shapes) if i != index):
        return False
    return _broadcast_shape(shapes) == whole


def _broadcast_shape(shapes: list[Dims | None]) -> Dims | None:
    known = [shape for shape in shapes if shape is not None and fixed(shape)]
    if len(known) < len(shapes):
        return None
    return list(np.broadcast_shapes(*[tuple(int(str(d)) for d in shape) for shape in known]))


def _drop_one(node: ir.Node, trained: Collection[ir.Value]) -> None:
    """Replace a product with the constant 1 by the other factor."""
    for one, other in (node.inputs, node.inputs[::-1]):
        array = None if one is None or one in trained else constant(one)
        product = node.outputs[0]
        if array is not None and array.size == 1 and array.item() == 1 and other is not None:
            same = dims(other) == dims(product) and fixed(dims(other)) and other.dtype is product.dtype
            if same and not product.is_graph_output():
                bypass(node, other)
                return


def _skip_reshape(node: ir.Node) -> None:
    """Let a Reshape read what a Reshape before it reads; onnxruntime 1.21 does not load some such pairs."""
    x, shape = node.inputs[0], None if node.inputs[1] is None else constant(node.inputs[1])
    producer = None if x is None else x.producer()
    copies_sizes = shape is None or not shape.all()
    if producer is not None and (producer.domain, producer.op_type) == ("", "Reshape") and not copies_sizes:
        node.replace_input_with(0, producer.inputs[0])


# Factors out the column in sums of two products with it: ``c a ± c b`` becomes ``c (a ± b)``.
#
# The gradients of losses by the scores are such sums, with the weights of the rows as the column.


class _Term(NamedTuple):
    """The product of a column, or of its negative, with rows."""

    negative: bool
    column: ir.Value
    rows: ir.Value


def factor_out_columns(graph: ir.Graph, own: Collection[ir.Node]) -> None:
    """Rewrite the sums among the nodes ``own``, in place; shapes must be inferred before."""
    op, members = GraphBuilder(graph, prefix="gradient"), set(own)
    sums = [node for node in own if (node.domain, node.op_type) in (("", "Add"), ("", "Sub"))]
    if sum(_factor_out(op, node, members) for node in sums):
        graph.sort()
        remove_unread(graph, [node for node in own if node.graph is graph])


def _factor_out(op: GraphBuilder, node: ir.Node, own: Collection[ir.Node]) -> bool:
    """Replace a sum or difference of two products with the same column; return whether it is one."""
    first, second = (_terms(value, own, node) for value in node.inputs)
    for one, other in product(first, second):
        minus, minus_other = one.negative, other.negative != (node.op_type == "Sub")
        if one.column is other.column and not (minus and minus_other):
            rows = (other.rows, one.rows) if minus else (one.rows, other.rows)
            inner = op.Sub(*rows) if minus or minus_other else op.Add(*rows)
            replace_node(op, node, [op.Mul(copy_type(inner, node.outputs[0]), one.column)])
            return True
    return False


def _terms(value: ir.Value | None, own: Collection[ir.Node], reader: ir.Node) -> list[_Term]:
    """Return a product that only ``reader`` reads, once for each factor that is a column; none if it has no column."""
    node, size = None if value is None else value.producer(), dims(reader.outputs[0])
    if node is None or node not in own or (node.domain, node.op_type) != ("", "Mul") or not fixed(size) or not size:
        return []
    if len(node.outputs[0].uses()) != 1 or node.outputs[0].is_graph_output():
        return []
    pairs, shapes = (node.inputs, node.inputs[::-1]), (size, [*size[:-1], 1])
    found = [(column, rows) for column, rows in pairs if (dims(rows), dims(column)) == shapes]
    return [_Term(*_without_sign(column, own), rows) for column, rows in found if column is not None and rows]


def _without_sign(value: ir.Value, own: Collection[ir.Node]) -> tuple[bool, ir.Value]:
    """Return whether ``value`` is the negative of another value, and that or the value."""
    made = value.producer()
    negated = made.inputs[0] if made is not None and made in own and made.op_type == "Neg" else None
    return negated is not None, negated or value
