"""Shape inference: ONNX's own, over a whole model, with or without what the model declares.

All functions but :func:`with_batch` change the model that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError
from .inferred_types import infer_types
from .queries import constant, every_node, int_attribute

_NO_TENSORS = frozenset(
    "Optional SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceMap SplitToSequence".split()
)
_TREES = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_LISTS = ("nodes_", "class_", "target_")


def infer_shapes(model: ir.Model) -> ir.Model:
    """Fill in the types and shapes of the values of ``model``, in place, as far as ONNX infers them."""
    with _without_nodes_of_trees(model.graph), _without_groups(model.graph):
        infer_types(model)
    for node in every_node(model.graph):
        if node.op_type in _NO_TENSORS and not node.domain:
            for value in node.outputs:  # the pass declares them as tensors
                value.type = value.shape = None
    return model


def infer_anew(model: ir.Model) -> ir.Model:
    """Infer all shapes from those of the inputs, in place; declared shapes of computed values are dropped."""
    forget_shapes(model.graph)
    return infer_shapes(model)


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


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """Return a clone whose inputs have ``batch`` rows, with its shapes inferred again."""
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])
    return infer_anew(fixed)


def forget_shapes(graph: ir.Graph) -> dict[ir.Value, ir.Shape]:
    """Remove the shapes of all computed values, in place, also in subgraphs; return the shapes."""
    declared = {v: v.shape for node in every_node(graph) for v in node.outputs if v.shape is not None}
    for value in declared:
        value.shape = None
    return declared


def has_fixed_batch(value: ir.Value) -> bool:
    """Whether the first axis of an input has a fixed size."""
    return value.shape is not None and bool(len(value.shape)) and isinstance(value.shape[0], int)


def free_batch_axis(model: ir.Model) -> None:
    """Make the first axis of every input dynamic: exporters often fix it to the batch that they traced.

    Shapes of Reshape in the graph that begin with that number are freed too. That the result is right is to be proven
    on rows.
    """
    fixed = [v for v in model.graph.inputs if has_fixed_batch(v)]
    if not fixed:
        return
    _free_reshapes(model, {int(str(v.shape[0])) for v in fixed if v.shape is not None})
    for value in fixed:
        assert value.shape is not None
        _require_batch_first(value)
        value.shape = ir.Shape([ir.SymbolicDim("N"), *list(value.shape)[1:]])
    infer_anew(model)


def _require_batch_first(value: ir.Value) -> None:
    assert value.shape is not None
    first, *others = value.shape
    free = [d.value for d in others if isinstance(d, ir.SymbolicDim) and d.value and not d.value.startswith("unk__")]
    if free and first != 1:
        raise ModelError(
            f"Graph input {value.name!r} has shape {value.shape}: its first axis is fixed to {first}, and another one "
            f"is free ({free[0]!r}). The first axis must be that of the rows; export the graph with that axis free, "
            f"and transpose within the graph if it takes the rows elsewhere (in PyTorch: batch_first=True)."
        )


def _free_reshapes(model: ir.Model, batches: set[int]) -> None:
    """Let Reshape keep the first axis of its data where its shape is constant and begins with the batch."""
    infer_shapes(model)
    for node in [n for n in model.graph if n.op_type == "Reshape" and not n.domain]:
        data, wanted = node.inputs[0], None if node.inputs[1] is None else constant(node.inputs[1])
        sizes = None if data is None or constant(data) is not None else data.shape
        if wanted is None or not wanted.size or not sizes or int(wanted[0]) not in batches or sizes[0] != wanted[0]:
            continue
        if int_attribute(node, "allowzero", 0):  # as PyTorch writes it: a zero would be a size, not the data's own
            if 0 in wanted:
                continue
            del node.attributes["allowzero"]
        freed = np.concatenate([[0], wanted[1:]]).astype(np.int64)
        name = f"{node.outputs[0].name}/rows"
        own = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(freed.shape))
        own.const_value = ir.tensor(freed, name=name)
        model.graph.initializers.add(own)
        node.replace_input_with(1, own)
