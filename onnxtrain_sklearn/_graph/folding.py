"""Shapes that a graph computes itself, by Shape, Gather, Concat and the like, followed through the whole graph.

ONNX's inference stops where a shape comes from such a chain, and knows no rank behind it. Here the integers of a chain
are evaluated as far as they are known, the outputs behind them get their shapes, and :func:`fold` replaces integers
that are known in full by constants.
"""

from __future__ import annotations

import onnx_ir as ir

from .bodies import infer_bodies
from .branches import take_known_branches
from .builder import GraphBuilder
from .edits import remove_unread, replace_by_constant
from .integers import WHOLE_TYPES, Integers, evaluate, is_complete, note_constant
from .node_shapes import infer_node
from .queries import every_node, graphs_in
from .shapes import infer_shapes


def complete_shapes(model: ir.Model) -> ir.Model:
    """Infer types and shapes, in place, including those behind computed shapes."""
    infer_shapes(model)
    if _computes_shapes(model.graph):
        _follow_integers(model)
    return model


def complete_bodies(model: ir.Model) -> None:
    """Infer the shapes in bodies, in place, and give bodies the opsets of the model."""
    if any(graphs_in(node) for node in model.graph):
        complete_shapes(model)


def fold(model: ir.Model) -> ir.Model:
    """As :func:`complete_shapes`; also replace computed integers that are always the same by constants.

    An If whose condition is known becomes the nodes of its branch: the older exporter of PyTorch writes one where an
    axis is removed if its size is one. CastLike becomes Cast, for which both engines have a gradient.
    """
    infer_shapes(model)
    _name_types_of_casts(model.graph)
    if _computes_shapes(model.graph):
        while _simplify(model) and any(node.op_type == "If" for node in model.graph):
            pass  # a branch that was taken gives the shapes that further conditions depend on
    return model


def _simplify(model: ir.Model) -> bool:
    """Take known branches and put constants for known integers, in place; return whether anything changed."""
    known = _follow_integers(model)
    taken = take_known_branches(model.graph, known)
    changed = _put_constants(model.graph, known) or taken
    if changed:
        infer_shapes(model)
    return changed


def _computes_shapes(graph: ir.Graph) -> bool:
    """Whether a node reads sizes, computes integers from constants alone, has a body, or is unknown to ONNX."""
    return any(
        node.domain == "com.microsoft" if node.domain else _tells_sizes(node) or graphs_in(node) for node in graph
    )


def _tells_sizes(node: ir.Node) -> bool:
    return node.op_type in ("Shape", "Size") or _is_of_constants(node)


def _is_of_constants(node: ir.Node) -> bool:
    whole = len(node.outputs) == 1 and node.outputs[0].dtype in WHOLE_TYPES
    return whole and bool(node.inputs) and all(x is None or _is_known_value(x) for x in node.inputs)


def _is_known_value(value: ir.Value) -> bool:
    node = value.producer()
    return value.is_initializer() if node is None else node.op_type == "Constant" and not node.domain


def _name_types_of_casts(graph: ir.Graph) -> None:
    """Make CastLike a Cast, in place, also in subgraphs, where the type is known."""
    for node in every_node(graph):
        like = node.inputs[1] if node.op_type == "CastLike" and not node.domain else None
        if like is not None and like.dtype is not None:
            node.op_type = "Cast"
            node.replace_input_with(1, None)
            node.resize_inputs(1)
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))


def _follow_integers(model: ir.Model) -> Integers:
    """Visit the nodes in order, complete their shapes, also in bodies, and return the known integers."""
    tracker = IntegerTracker(model)
    for node in model.graph:
        tracker.visit(node)
        if graphs_in(node):
            infer_bodies(node, tracker.visit_body, tracker.forget)
    return tracker.known


class IntegerTracker:
    """The known integers of a model, collected node by node in their order."""

    def __init__(self, model: ir.Model) -> None:
        self.known: Integers = {}
        self._model = model
        self._note_initializers(model.graph)

    def _note_initializers(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            whole = value.const_value is not None and value.const_value.dtype in WHOLE_TYPES  # floats may be trained
            if whole and value.const_value is not None and not value.is_graph_input():
                note_constant(self.known, value, value.const_value)

    def visit(self, node: ir.Node) -> None:
        """Infer missing shapes and types of a node's outputs, and evaluate its integers."""
        if any(v.shape is None or v.dtype is None for v in node.outputs if v.name):
            infer_node(self._model, node, self.known)
        if not node.domain and len(node.outputs) == 1:
            evaluate(node, self.known)

    def visit_body(self, graph: ir.Graph) -> None:
        """Visit the nodes of a body, and of those inside it."""
        graph.opset_imports.update(self._model.graph.opset_imports)
        self._note_initializers(graph)
        for node in graph:
            self.visit(node)
            if graphs_in(node):
                infer_bodies(node, self.visit_body, self.forget)

    def forget(self, graph: ir.Graph) -> None:
        """Forget the shapes and integers that a body computes."""
        for value in (value for node in every_node(graph) for value in node.outputs):
            value.shape = None
            self.known.pop(value, None)


def _put_constants(graph: ir.Graph, known: Integers, outer: GraphBuilder | None = None) -> bool:
    """Replace values that are known in full where other nodes read them; remove nodes that nothing reads then."""
    op = GraphBuilder(graph, prefix="folded", constant_nodes=True)
    if outer is not None:
        op.taken = outer.taken
    inside = [_put_constants(inner, known, op) for node in list(graph) for inner in graphs_in(node)]
    made = {v: known[v] for node in graph if node.op_type != "Constant" and (v := node.outputs[0]) in known}
    whole = {v: array for v, array in made.items() if is_complete(array) and not v.is_graph_output()}
    ends = [v for v in whole if any(not whole.keys() >= set(user.outputs) for user, _ in v.uses())]
    for value in ends:
        assert value.dtype is not None
        replace_by_constant(op, value, whole[value].astype(value.dtype.numpy()))
    if ends:
        graph.sort()
        remove_unread(graph, [node for node in graph if node.outputs[0] in known])
    return bool(ends) or any(inside)
