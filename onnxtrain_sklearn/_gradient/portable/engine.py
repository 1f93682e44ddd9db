"""The engine "portable": reverse-mode differentiation into standard ONNX operators, for any onnxruntime.

The nodes between the wanted names and the output are visited in reverse order. The rule of each operator, in
:data:`RULES`, emits the cotangents of its inputs from those of its outputs: the gradients of the scalar with respect to
these values. The cotangents of a value that several nodes read are summed. A cotangent always has the shape and type of
its value, so that a rule knows all shapes without inference. An operator without a rule, or with a setting that its
rule does not support, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.contrib.lowering import refusal
from ..._graph.edits import copy_type, remove_unread_initializers
from ..._graph.folding import complete_bodies
from ..._graph.queries import describe, is_float, kind
from ..._graph.shapes import infer_shapes
from ..._graph.versions import MAX_OPSET, MIN_OPSET, in_opset
from ..._runtime import capabilities
from ..._support.refusal import refusing
from ...exceptions import ModelError, UnsupportedOperatorError
from ..path import Passage, path
from ..selection import mark_selected
from . import control_flow
from .context import (
    Cotangents,
    GradientRule,
    NewerOpsetNeeded,
    Reverse,
    require,
    require_types,
    unsupported,
    zeros_like,
)
from .lowering.registry import expand
from .row_factors import factor_out_columns
from .rules import (
    batch_normalization,
    convolution,
    cross_entropy,
    elementwise,
    fourier,
    indexing,
    interpolation,
    matmul,
    normalization,
    quantization,
    reductions,
    resize,
    shapes,
)
from .simplify import tidy

RULES: dict[str, GradientRule] = {
    **convolution.RULES,
    **elementwise.RULES,
    **indexing.RULES,
    **cross_entropy.RULES,
    **normalization.RULES,
    **batch_normalization.RULES,
    **matmul.RULES,
    **reductions.RULES,
    **resize.RULES,
    **interpolation.RULES,
    **shapes.RULES,
    **quantization.RULES,
    **fourier.RULES,
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
    if error.opset > capabilities.limits().opset:
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
        "BatchNormalization": batch_normalization.normalize_by_moments,
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
