"""Shape inference: ONNX's own, over a whole model, with or without what the model declares, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from .inferred_types import infer_types
from .queries import every_node

_NO_TENSORS = frozenset(
    "Optional SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceMap SplitToSequence".split()
)
_TREES = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_LISTS = ("nodes_", "class_", "target_")


def infer_shapes(model: ir.Model) -> ir.Model:
    """Fill in the types and shapes of the values of ``model``, in place, as far as ONNX infers them."""
    with _without_nodes_of_trees(model.graph), _without_groups(model.graph):
        infer_types(model)
    _forget_types_of_sequences(model.graph)
    return model


def _forget_types_of_sequences(graph: ir.Graph) -> None:
    """Remove the types of what is no tensor, in place: the pass declares sequences, and states that hold them, as one.

    The nodes of a body come after the node that has it.
    """
    others = set[ir.Value]()
    for node in every_node(graph):
        if node.op_type in _NO_TENSORS and not node.domain:
            others.update(node.outputs)
        elif node.op_type == "Loop" and not node.domain:
            states = list(node.attributes["body"].as_graph().inputs)[2:]
            for start, *held in zip(list(node.inputs)[2:], states, node.outputs, strict=False):
                others.update(held if start in others else ())
    for value in others:
        value.type = value.shape = None


@contextmanager
def _without_groups(graph: ir.Graph) -> Iterator[None]:
    """Let nodes without a shape inference of their own be ones that return the shape of their first input, too."""
    nodes = [node for node in every_node(graph) if node.op_type == "GroupNormalization" and not node.domain]
    for node in nodes:
        node.op_type = "InstanceNormalization"
    try:
        yield
    finally:
        for node in nodes:
            node.op_type = "GroupNormalization"


def infer_over_declared(model: ir.Model) -> ir.Model:
    """Infer all shapes, in place; a declared shape is used only where none can be inferred."""
    declared = forget_shapes(model.graph)
    infer_shapes(model)
    for value, shape in declared.items():
        value.shape = shape if value.shape is None else value.shape
    return model


@contextmanager
def _without_nodes_of_trees(graph: ir.Graph) -> Iterator[None]:
    """Remove the long attributes of tree ensembles temporarily: the pass copies them twice and needs none."""
    kept = [(node, list(node.attributes.items())) for node in graph if node.op_type in _TREES]
    for node, attributes in kept:
        for name, _ in attributes:
            if name.startswith(_LISTS) and not name.endswith("_as_tensor"):
                del node.attributes[name]
    try:
        yield
    finally:
        for node, attributes in kept:
            node.attributes.clear()
            node.attributes.update(attributes)


def infer_declared(model: ir.Model, infer: Callable[[ir.Model], ir.Model] = infer_shapes) -> ir.Model:
    """Infer all shapes, in place; sizes that are only declared stay, unless they contradict the inferred ones."""
    declared = forget_shapes(model.graph)
    infer(model)
    given = {d.value for v in model.graph.inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    for value, shape in declared.items():
        value.shape = shape if value.shape is None else _merged(value.shape, shape, given)
    return model


def _merged(inferred: ir.Shape, declared: ir.Shape, given: set[str]) -> ir.Shape:
    """Return the inferred shape, with declared sizes where none was inferred and the two do not contradict.

    A symbolic size in ``given``, a dimension of an input, counts as inferred.
    """
    pairs = list(zip(inferred, declared, strict=False))
    if len(inferred) != len(declared) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        return inferred
    return ir.Shape([a if isinstance(a, int) or a.value in given else b for a, b in pairs])


def forget_shapes(graph: ir.Graph) -> dict[ir.Value, ir.Shape]:
    """Remove the shapes of all computed values, in place, also in subgraphs; return the shapes.

    What custom operators give keeps the sizes behind its first axis: nothing could be inferred from nothing.
    """
    declared = {v: v.shape for node in every_node(graph) for v in node.outputs if v.shape is not None}
    for value, shape in declared.items():
        node = value.producer()
        is_custom = node is not None and is_custom_domain(node.domain)
        value.shape = ir.Shape([_freed(shape[0]), *shape[1:]]) if is_custom and len(shape) else None
    return declared


def _freed(size: int | ir.SymbolicDim) -> ir.SymbolicDim:
    return ir.SymbolicDim(None) if isinstance(size, int) else size


def is_custom_domain(domain: str) -> bool:
    """Whether neither ONNX nor onnxruntime has operators of this domain: only a library has them."""
    return domain not in _KNOWN_DOMAINS and not domain.startswith("com.microsoft")


_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
