"""The engine "portable": reverse-mode differentiation into standard ONNX operators, for any onnxruntime.

:func:`differentiate` lowers operators without a rule (:mod:`.lowering`), visits the nodes on the path in reverse order
and then simplifies what it emitted. The rule of each operator, in :data:`RULES`, emits the cotangents of the node's
inputs from those of its outputs: the gradients of the scalar with respect to these values. The cotangents of a value
that several nodes read are summed. A cotangent always has the shape and type of its value, so a rule knows all shapes
without inference. An operator without a rule, or with a setting that its rule does not support, is refused.
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
from .._ir.queries import constant, dims, fixed, is_float, kind, node_label, number_of
from .._ir.shapes import infer_shapes
from .._ort import sessions
from .._utils.errors import refusing
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder, copy_type
from . import subgraph_rules
from .lowering import expand
from .path import PathNode, mark_selected, path
from .reverse import (
    Cotangents,
    GradientRule,
    NewerOpsetNeeded,
    Reverse,
    require,
    require_types,
    unsupported,
    zeros_like,
)
from .rules import convolution, data_movement, elementwise, interpolation, matmul, normalization, reductions

RULES: dict[str, GradientRule] = {
    **convolution.RULES,
    **data_movement.RULES,
    **elementwise.RULES,
    **interpolation.RULES,
    **matmul.RULES,
    **normalization.RULES,
    **reductions.RULES,
}


def differentiate(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    """Return ``model`` with the gradients of ``of``; see :mod:`onnxtrain_sklearn._gradient.engine` for the contract.

    If the gradient of a node needs operators that the graph's opset lacks, the result has the first opset with them.
    """
    try:
        return _reverse_pass(model, wrt, of)
    except NewerOpsetNeeded as error:
        if error.opset > sessions.supported_versions().opset:
            raise
        try:
            newer = in_opset(model, error.opset)
        except ModelError:
            raise error from None
    return differentiate(newer, wrt, of)


def _reverse_pass(model: ir.Model, wrt: Sequence[str], of: str) -> ir.Model:
    result = model.clone()
    graph = result.graph
    version = graph.opset_imports.get("", 0)
    if not MIN_OPSET <= version <= MAX_OPSET:
        raise UnsupportedOperatorError(
            f"The portable engine differentiates opset {MIN_OPSET} to {MAX_OPSET}; this graph is of opset {version}. "
            "Convert it: onnx.version_converter.convert_version(model, 18)."
        )

    # Prepare the forward pass: every node on the path then has a rule, or is refused.
    output = next(v for v in graph.outputs if v.name == of)
    complete_bodies(result)
    wanted = [v for v in [*graph.inputs, *graph.initializers.values()] if v.name in wrt]
    expand(result, wanted, output, RULES.keys() | subgraph_rules.RULES.keys())
    forward = set(graph)
    mark_selected(graph)

    # Emit the backward pass. Equal nodes are emitted once; the cotangent of the output is one.
    op = GraphBuilder(graph, prefix="gradient", shared=True)
    one = op.constant(np.ones((), (output.dtype or op.dtype).numpy()))
    steps = path(graph, wrt, output)
    cotangents = _backward(op, steps, {output: [one]})
    sources = {v.name or "": v for v in [*graph.inputs, *graph.initializers.values()]}
    results = [_add_cotangents(op, cotangents.get(sources[name], [])) for name in wrt]

    # Replace forward nodes by faster forms, now that no rule reads the original nodes any more. Convolutions become
    # matrix products, except with constant kernels, for which onnxruntime has blocked layouts. Batch normalization
    # shares its statistics with its gradient.
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
        graph.sort()

    # Name the gradients. A constant, or a value with another name, gets an Identity, which is never shared.
    apart = GraphBuilder(graph, prefix="gradient")
    for name, gradient in zip(wrt, results, strict=True):
        source = sources[name]
        if gradient is None:
            gradient = zeros_like(apart, source)
        if gradient.producer() is None or gradient.is_graph_output():
            gradient = apart.Identity(gradient)
        copy_type(gradient, source).name = f"{name}_grad"
        graph.outputs.append(gradient)

    infer_shapes(result)
    simplify(graph, [node for node in graph if node not in forward], wanted)
    factor_out_columns(graph, [node for node in graph if node not in forward])
    remove_unread_initializers(graph, kept=model.graph.initializers)
    return result


def _backward(op: GraphBuilder, steps: Sequence[PathNode], cotangents: Cotangents) -> Cotangents:
    """Differentiate ``steps`` in reverse order; return the cotangents of the values before them."""
    for step in reversed(steps):
        totals = tuple(_add_cotangents(op, cotangents.pop(v, [])) for v in step.node.outputs)
        if any(total is not None for total in totals):
            with refusing(f"{node_label(step.node)} cannot be differentiated", UnsupportedOperatorError):
                found = _gradients(op, step, totals)
            for x, cotangent in found:
                cotangents.setdefault(x, []).append(cotangent)
    return cotangents


def _gradients(
    op: GraphBuilder, step: PathNode, totals: tuple[ir.Value | None, ...]
) -> list[tuple[ir.Value, ir.Value]]:
    """Return pairs of a value that the node reads and its nonzero cotangent, from the ``totals`` of the outputs."""
    node = step.node
    require_types(step)
    if kind(node) in subgraph_rules.RULES:
        flow = subgraph_rules.RULES[kind(node)]
        require(flow, node)
        return flow.rule(subgraph_rules.Flow(op, node, totals, step.sources, _backward))
    if kind(node) not in RULES:
        raise unsupported(node, refusal(node) or "the portable engine has no gradient for it")
    known = RULES[kind(node)]
    require(known, node, through=[i for i, total in enumerate(totals) if total is not None])
    op.dtype = next((v.dtype for v in node.outputs if v.dtype is not None and is_float(v)), op.dtype)
    thunks = known.rule(Reverse(op, node, totals, step.inputs))
    pairs = []
    for i in sorted(step.inputs):
        x = node.inputs[i]
        thunk = thunks[i] if i < len(thunks) else None
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


# Simplification of the backward pass; the nodes of the user's graph stay as they are.

_BROADCASTING = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Sum Where".split())


def simplify(graph: ir.Graph, own: Collection[ir.Node], trained: Collection[ir.Value]) -> None:
    """Remove, among the nodes ``own``, redundant Expand and Reshape nodes and multiplications by 1, in place.

    Shapes must have been inferred. A factor in ``trained`` stays even if it is 1 now, because it changes in each step.
    """
    for node in own:
        if node.op_type in _BROADCASTING and not node.domain:
            for i, x in enumerate(node.inputs):
                if x is not None and _broadcasts_without_expand(node, i, x):
                    node.replace_input_with(i, x.producer().inputs[0])  # type: ignore[union-attr]
        if node.op_type == "Mul":
            product = node.outputs[0]
            for one, other in (node.inputs, node.inputs[::-1]):
                if one not in trained and number_of(one) == 1 and other is not None:
                    # Keep the product if it broadcasts the other factor to more axes.
                    same = dims(other) == dims(product) and fixed(dims(other)) and other.dtype is product.dtype
                    if same and not product.is_graph_output():
                        bypass(node, other)
                        break
        if node.op_type == "Reshape":
            # Of two Reshapes in a row only the second is needed, unless it copies sizes from its operand. (onnxruntime
            # 1.21 fails to load some pairs.)
            x = node.inputs[0]
            shape = None if node.inputs[1] is None else constant(node.inputs[1])
            producer = None if x is None else x.producer()
            is_pair = producer is not None and (producer.domain, producer.op_type) == ("", "Reshape")
            if producer is not None and is_pair and shape is not None and shape.all():
                node.replace_input_with(0, producer.inputs[0])
    remove_unread(graph, [node for node in own if node.graph is graph])


def _broadcasts_without_expand(node: ir.Node, index: int, x: ir.Value) -> bool:
    """Return True if ``x`` is an Expand whose operand ``node`` would broadcast to the same result."""
    producer, whole = x.producer(), dims(node.outputs[0])
    if producer is None or producer.op_type != "Expand" or not fixed(whole):
        return False
    shapes = [dims(producer.inputs[0] if i == index else v) for i, v in enumerate(node.inputs)]
    # Let a Sum broadcast only one operand: onnxruntime's CUDA kernel is wrong if two of three are broadcast along
    # different axes.
    if node.op_type == "Sum" and any(shape != whole for i, shape in enumerate(shapes) if i != index):
        return False
    known = [tuple(shape) for shape in shapes if shape is not None and fixed(shape)]
    return len(known) == len(shapes) and list(np.broadcast_shapes(*known)) == whole


# Common factors: ``c a ± c b`` becomes ``c (a ± b)`` for a column c.
#
# The gradient of a loss with respect to the scores often has this form; the column holds the weights of the rows.


class _Term(NamedTuple):
    """A product ``column * rows``, or with ``-column``."""

    negative: bool
    column: ir.Value
    rows: ir.Value


def factor_out_columns(graph: ir.Graph, own: Collection[ir.Node]) -> None:
    """Factor columns out of the sums among the nodes ``own``, in place; shapes must have been inferred."""
    op = GraphBuilder(graph, prefix="gradient")
    members = set(own)
    sums = [node for node in own if (node.domain, node.op_type) in (("", "Add"), ("", "Sub"))]
    if sum(_factor_out(op, node, members) for node in sums):
        graph.sort()
        remove_unread(graph, [node for node in own if node.graph is graph])


def _factor_out(op: GraphBuilder, node: ir.Node, own: Collection[ir.Node]) -> bool:
    """Replace ``node`` if it is a sum or difference of two products that share a column; return True if it is."""
    first, second = (_terms(value, own, node) for value in node.inputs)
    for one, other in product(first, second):
        minus = one.negative
        minus_other = other.negative != (node.op_type == "Sub")
        if one.column is other.column and not (minus and minus_other):
            rows = (other.rows, one.rows) if minus else (one.rows, other.rows)
            inner = op.Sub(*rows) if minus or minus_other else op.Add(*rows)
            replace_node(op, node, [op.Mul(copy_type(inner, node.outputs[0]), one.column)])
            return True
    return False


def _terms(value: ir.Value | None, own: Collection[ir.Node], reader: ir.Node) -> list[_Term]:
    """Return the product ``value`` as a term, as two if both factors are columns, or [] if other nodes read it."""
    node = None if value is None else value.producer()
    size = dims(reader.outputs[0])
    if node is None or node not in own or (node.domain, node.op_type) != ("", "Mul") or not fixed(size) or not size:
        return []
    if len(node.outputs[0].uses()) != 1 or node.outputs[0].is_graph_output():
        return []
    pairs = (node.inputs, node.inputs[::-1])
    shapes = (size, [*size[:-1], 1])
    found = [(column, rows) for column, rows in pairs if (dims(rows), dims(column)) == shapes]
    terms = []
    for column, rows in found:
        if column is not None and rows:
            made = column.producer()
            negated = made.inputs[0] if made is not None and made in own and made.op_type == "Neg" else None
            terms.append(_Term(negated is not None, negated or column, rows))
    return terms
