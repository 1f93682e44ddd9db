"""Gradients of single nodes by the library onnx-ad, for the operators in :data:`RULES` and no others.

onnx-ad finds its rules by operator type alone, whatever the domain, and some of them are wrong: the table names what
cases have proven right and what no rule of ours covers. A node is differentiated on its own, in a model of one node.
The library carries an axis of seeds behind all others; a slope gets one of size 1 on its way in, and the gradient loses
it on its way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx_ad
import onnx_ir as ir
import onnx_ir.passes.common

from .known import Known
from .nodes import constant, describe
from .reverse import Reverse, Rule, Thunk

PREFIX = "slope_"


def _rule(r: Reverse) -> Sequence[Thunk | None]:
    @cache
    def gradients() -> dict[int, ir.Value]:
        return _spliced(r, _reversed(r, sorted(r.wanted)), sorted(r.wanted))

    return [lambda i=i: gradients()[i] for i in range(len(r.node.inputs))]  # type: ignore[misc]


def _reversed(r: Reverse, wanted: Sequence[int]) -> ir.Model:
    """Return the model that onnx-ad makes of the node: from its inputs and slopes to the gradients."""
    outputs = [f"y{i}" for i, slope in enumerate(r.slopes) if slope is not None]
    try:
        proto = onnx_ad.reverse(
            ir.to_proto(_alone(r)), [f"x{i}" for i in wanted], outputs, prefix=PREFIX, dim="seeds", layout="onnx"
        )
    except onnx_ad.UnsupportedOperator as error:
        r.refuse(f"onnx-ad has no gradient for it ({error})")
    model = ir.from_proto(proto)
    kept = {f"{PREFIX}x{i}" for i in wanted}
    for value in [v for v in model.graph.outputs if v.name not in kept]:
        model.graph.outputs.remove(value)
    ir.passes.common.RemoveUnusedNodesPass()(model)
    return model


def _alone(r: Reverse) -> ir.Model:
    """Return a model of the node; what is constant is an initializer of it."""
    copies: dict[int, ir.Value] = {}
    for i, x in enumerate(r.node.inputs):
        if x is None:
            continue
        if x.shape is None or x.dtype is None:
            r.refuse(f"the shape of its input {i} is not known")
        array = None if i in r.wanted else constant(x)
        tensor = None if array is None else ir.tensor(array, name=f"x{i}")
        copies[i] = ir.Value(name=f"x{i}", type=x.type, shape=x.shape, const_value=tensor)
    inputs = [copies.get(i) for i in range(len(r.node.inputs))]
    node = ir.Node("", r.node.op_type, inputs, r.node.attributes.values(), num_outputs=len(r.node.outputs), name="node")
    for i, (y, own) in enumerate(zip(r.node.outputs, node.outputs, strict=True)):
        own.name, own.type, own.shape = f"y{i}", y.type, y.shape
    graph = ir.Graph(
        [v for v in copies.values() if v.const_value is None],
        [node.outputs[i] for i, slope in enumerate(r.slopes) if slope is not None],
        nodes=[node],
        initializers=[v for v in copies.values() if v.const_value is not None],
        opset_imports={"": r.opset},
        name=describe(r.node),
    )
    return ir.Model(graph, ir_version=10)


def _spliced(r: Reverse, model: ir.Model, wanted: Sequence[int]) -> dict[int, ir.Value]:
    """Emit the nodes of ``model`` into the graph; return the gradients of the inputs."""
    op, known = r.op, {}
    for value in model.graph.inputs:
        name = value.name or ""
        if name.startswith(PREFIX):
            slope = r.slopes[int(name.removeprefix(f"{PREFIX}y"))]
            assert slope is not None
            known[value] = op.Unsqueeze(slope, axes=[-1])
        else:
            known[value] = r.x(int(name.removeprefix("x")))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        known[value] = op.constant(value.const_value.numpy())
    for node in model.graph:
        attributes = {name: a.value for name, a in node.attributes.items()}
        inputs = [None if x is None else known[x] for x in node.inputs]
        results = op.emit(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        known.update(zip(node.outputs, results, strict=True))
    ends = {v.name: known[v] for v in model.graph.outputs}
    return {i: op.Squeeze(ends[f"{PREFIX}x{i}"], axes=[-1]) for i in wanted}


RULES: dict[str, Rule] = {"TensorScatter": Known(_rule, "axis mode=circular|linear", inputs=3)}
