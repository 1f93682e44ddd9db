r"""Graphs of vector-Jacobian products: gradients of any number of outputs, from given gradients of these outputs.

The engines differentiate a scalar. The scalar here is :math:`\sum_k \langle y_k, \bar y_k \rangle` over the outputs
:math:`y_k`, whose gradients :math:`\bar y_k` are inputs of the graph named ``OUTPUT_grad``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import onnx_ir as ir

from .._gradient.engine import differentiate
from .._graph.builder import GraphBuilder
from .._graph.edits import copy_type, keep_outputs, read_as_input, replace_value
from .._graph.queries import dims, is_float, reaching, reads
from .._graph.shapes import infer_shapes
from ..exceptions import ModelError, nearest

_TOTAL, _SEED = "onnxtrain/total", "onnxtrain/seed/"


def float_names(values: Sequence[ir.Value]) -> list[str]:
    """Return the names of the values that have a gradient."""
    return [v.name or "" for v in values if v.dtype is not None and v.dtype.is_floating_point()]


def require_names(names: Sequence[str], valid: Sequence[str], role: str) -> list[str]:
    """Return the unique names; raise ValueError for an invalid name, TypeError for other types."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{role} must be a list of names, got {names!r}.")
    for name in names:
        if name not in valid:
            raise ModelError(f"Unknown name {name!r} in {role}.{nearest(name, valid)}")
    if len(set(names)) < len(names):
        raise ModelError(f"{role} contains a name twice: {list(names)}.")
    return list(names)


def vjp_graph(
    model: ir.Model,
    outputs: Sequence[str],
    wrt: Sequence[str],
    engine: str,
    *,
    seeded: Sequence[str] | None = None,
    ones: Sequence[str] = (),
) -> ir.Model:
    """Return a graph of ``outputs``, then a ``NAME_grad`` for each name in ``wrt``; ``model`` is not modified.

    The gradient of each value in ``seeded``, by default each float output, is an input ``VALUE_grad``; that of each
    value in ``ones`` is one in every element. Both may name values that are not outputs.
    """
    source = model.clone()
    graph = source.graph
    named = _computed(graph)
    kept = [named[name] for name in outputs]
    given = [named[name] for name in (outputs if seeded is None else seeded)]
    differentiated = [v for v in given if is_float(v)]
    total = _total(graph, differentiated, _seeds(graph, differentiated), [named[name] for name in ones])
    graph.outputs[:] = [*kept, total]
    result = differentiate(infer_shapes(source), list(wrt), _TOTAL, engine).model
    by_name = {v.name: v for v in result.graph.outputs}
    keep_outputs(result, [by_name[name] for name in (*outputs, *(f"{name}_grad" for name in wrt))])
    _name_seeds(result.graph)
    return result


def gradients_from(
    model: ir.Model, starts: Sequence[str], wrt: Sequence[str], one: str, engine: str, *, fill: bool = False
) -> ir.Model:
    """Return the graph with the gradients of ``wrt`` behind its outputs, as onnxruntime's GradientGraphBuilder does.

    The derivative starts from ``starts``, which are computed values. The gradient of the one named ``one`` is one in
    every element. That of another is what ``one`` gives it if ``one`` depends on it; else it is an input
    ``START_grad``, or with ``fill`` one in every element.
    """
    named = _computed(model.graph)
    for name in starts:
        if name not in named:
            raise ModelError(f"The graph computes no value {name!r} to start from.{nearest(name, named)}")
        if not is_float(named[name]):
            raise ModelError(f"{name!r} is of type {named[name].dtype}; only floats have a gradient.")
    within = reaching(named[one]) if one in starts else set()
    free = [name for name in starts if name not in within]
    free = [name for name in free if not reaching(named[name]).isdisjoint(wrt)]
    ones = [name for name in starts if name == one]
    if not (free or ones):  # nothing depends on wrt: the gradients are zero
        free = [starts[0]]
    outputs = [v.name or "" for v in model.graph.outputs]
    if fill:
        return vjp_graph(model, outputs, wrt, engine, seeded=(), ones=[*ones, *free])
    return vjp_graph(model, outputs, wrt, engine, seeded=free, ones=ones)


def _computed(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the outputs of the graph and of its nodes by name."""
    return {v.name or "": v for v in [*graph.outputs, *(v for node in graph for v in node.outputs)]}


def _seeds(graph: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Add an input for the gradient of each value, with a temporary name: the builder may use the final one."""
    seeds = [copy_type(ir.Value(name=f"{_SEED}{v.name}"), v) for v in values]
    graph.inputs.extend(seeds)
    return seeds


def _name_seeds(graph: ir.Graph) -> None:
    """Give the seeds their final names; rename inner values of these names, raise if inputs or outputs have them."""
    seeds = [v for v in graph.inputs if (v.name or "").startswith(_SEED)]
    names = {f"{(v.name or '').removeprefix(_SEED)}_grad": v for v in seeds}
    kept = {v.name for v in [*graph.inputs, *graph.initializers.values(), *graph.outputs]}
    if clash := names.keys() & kept:
        raise ModelError(f"The graph has a value {min(clash)!r}, as the gradient of an output is named; rename it.")
    op = GraphBuilder(graph, prefix="vjp")
    for value in [v for node in graph.all_nodes() for v in node.outputs if v.name in names]:
        value.name = op.name("inner")
    for name, seed in names.items():
        seed.name = name


def _total(
    graph: ir.Graph, values: Sequence[ir.Value], seeds: Sequence[ir.Value], ones: Sequence[ir.Value]
) -> ir.Value:
    """Emit the sum of the inner products of values and seeds, and of all elements of ``ones``."""
    if not values and not ones:
        raise ModelError("No output of the graph is a float tensor, so there is nothing to differentiate.")
    op = GraphBuilder(graph, prefix="vjp")
    dtype = next(iter([*values, *ones])).dtype or ir.DataType.FLOAT
    products = [(op.Mul(value, seed), value) for value, seed in zip(values, seeds, strict=True)]
    terms = []
    for term, value in [*products, *((value, value) for value in ones)]:
        total = term if dims(value) == [] else op.ReduceSum(term, keepdims=False)
        terms.append(total if value.dtype == dtype else op.Cast(total, to=dtype))
    total = reduce(op.Add, terms)
    total = total if op.emitted(total) else op.Identity(total)
    total.name, total.dtype, total.shape = _TOTAL, dtype, ir.Shape([])
    return total


def with_yield(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """Return the graph with a YieldOp that takes the outputs and returns their gradients; its outputs are gradients.

    onnxruntime-training's agent runs such a graph up to the YieldOp, returns the outputs, and continues from their
    gradients.
    """
    result = model.clone()
    graph = result.graph
    named = {v.name: v for v in graph.outputs}
    seeds = {v.name: v for v in graph.inputs}
    yielded = [named[name] for name in outputs]
    exact = [i for i, name in enumerate(outputs) if f"{name}_grad" not in seeds]
    replaced = [seeds[f"{name}_grad"] for name in outputs if f"{name}_grad" in seeds]
    settings = {"full_shape_outputs": [i for i in range(len(outputs)) if i not in exact]}
    if exact:
        settings["non_differentiable_outputs"] = exact
    op = GraphBuilder(graph, prefix="yield")
    given = op.emit("YieldOp", *yielded, domain="com.microsoft", outputs=len(replaced), **settings)
    for old, new in zip(replaced, given, strict=True):
        graph.inputs.remove(old)
        replace_value(op, old, new)
    graph.outputs[:] = [v for v in graph.outputs if v.name not in outputs]
    graph.sort()
    return result


def split(model: ir.Model, outputs: Sequence[str]) -> tuple[ir.Model, ir.Model, list[str]]:
    """Divide a graph of :func:`vjp_graph` into its forward and backward pass.

    Returns the forward graph, whose additional outputs are the activations that the backward pass reads; the backward
    graph, whose inputs are the inputs, seeds and activations that it reads; and the names of these activations. Nothing
    is computed twice, so random numbers are drawn once.
    """
    backward, forward = model.clone(), model.clone()
    seeds = {f"{name}_grad" for name in outputs}
    gradients = [v for v in backward.graph.outputs if v.name not in outputs]
    border = _border(backward.graph, seeds, gradients)
    names = [v.name or "" for v in border]
    backward.graph.outputs[:] = gradients
    for value in border:
        read_as_input(backward.graph, value)
    keep_outputs(backward, gradients, inputs=True)
    computed = {v.name: v for node in forward.graph for v in node.outputs}
    named = {**computed, **{v.name: v for v in forward.graph.outputs}}
    forward.graph.inputs[:] = [v for v in forward.graph.inputs if v.name not in seeds]
    keep_outputs(forward, [named[name] for name in dict.fromkeys([*outputs, *names])])
    return forward, backward, names


def _border(graph: ir.Graph, seeds: Collection[str], gradients: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the activations: values of known type, independent of the seeds, that the backward pass reads."""
    dependent = {v for v in graph.inputs if v.name in seeds}
    behind = [node for v in gradients if (node := v.producer()) is not None]
    for node in graph:
        if not dependent.isdisjoint(reads(node)):
            dependent.update(node.outputs)
            behind.append(node)
    own = {v for node in graph for v in node.outputs} - dependent
    front = [v for node in behind for v in reads(node)]
    border: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    while front:
        value = front.pop()
        if value in seen or value not in own:
            continue
        seen.add(value)
        producer = value.producer()
        if value.type is None and producer is not None:  # an input needs a type: recompute the node
            front += reads(producer)
        else:
            border[value] = None
    return list(border)
