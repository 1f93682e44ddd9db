"""Switch a graph between training and inference: BatchNormalization, Dropout and random nodes.

:func:`in_training_mode` and :func:`inference_form` return the two forms. A BatchNormalization that the exporter folded
into another node cannot be restored: :func:`folded_normalizations` reports it.

A BatchNormalization in training mode updates its running statistics. No other node may read these initializers:
:func:`separate_running_statistics` and :func:`separate_stored_statistics` separate them when a graph is read.
:func:`follow_torch` changes the update to PyTorch's. Random nodes draw numbers in training; in the inference form,
:func:`replace_random` replaces the numbers by their mean, or raises if that is not exact.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from .._importers.tf2onnx import NODES as KERAS_NODES
from .._importers.tf2onnx import TF2ONNX
from .._importers.torch_program import PRODUCER, TorchProgram, call_of, is_from_torch, scope_of
from .._ir.edits import bypass, copy_initializer, keep_outputs, replace_by_initializer, replace_node
from .._ir.opsets import RENEWED_OPSET, in_opset
from .._ir.queries import attribute, constant, dims, every_node, is_read, node_label, operand
from ..exceptions import ModelError, UnsupportedOperatorError, warn
from ..graph import GraphBuilder, copy_type, names_of
from .constants import tensor_of
from .fixed_batch import free_batch_axis

_FIRST_OPSETS = {"BatchNormalization": 14, "Dropout": 12}
"""The first opsets in which these operators have a training mode."""


_FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators of products into which exporters fold a BatchNormalization."""


def in_training_mode(model: ir.Model) -> ir.Model:
    """Return a model whose BatchNormalization and Dropout nodes are in training mode.

    Raises ModelError if there are no such nodes, and warns if the exporter folded some of them into other nodes.
    """
    # A clone, in a newer opset if the operators have no training mode in the opset of the model.
    folded = folded_normalizations(model)
    opset = model.graph.opset_imports[""]
    kinds = {n.op_type for n in every_node(model.graph) if not n.domain}
    if all(opset >= first for kind, first in _FIRST_OPSETS.items() if kind in kinds):
        result = model.clone()
    else:
        result = in_opset(model, RENEWED_OPSET)
        result.producer_name = model.producer_name
    result.meta.update(model.meta)

    graph, nodes = result.graph, list[ir.Node]()
    for node in every_node(graph):
        if not node.domain and node.op_type in _FIRST_OPSETS and not _trains(node):
            mode = operand(node, 2)  # a mode that the graph computes does not change
            if node.op_type == "BatchNormalization" or mode is None or constant(mode) is not None:
                nodes.append(node)
    if not nodes and not any(_trains(node) for node in every_node(graph)):
        raise ModelError(
            f"training_mode=True: the graph has no BatchNormalization and no Dropout to switch over."
            f"{_folded_away(folded)} {_KERAS_ADVICE if model.producer_name == TF2ONNX else _ADVICE}, or leave "
            f"training_mode=False: the graph is then trained as it is."
        )
    names = names_of(graph)
    for node in nodes:
        if node.graph is not graph:
            raise ModelError(f"{node_label(node)} cannot be switched to training mode: it is in a subgraph.")
        if node.op_type == "Dropout":
            ratio = operand(node, 1)
            if ratio is not None and constant(ratio) is None:
                raise ModelError(
                    f"{node_label(node)} cannot be switched to training mode: its ratio is not a constant."
                )
            on = GraphBuilder(graph, prefix="training_mode", constant_nodes=True).constant(np.array(True))
            node.resize_inputs(3)
            node.replace_input_with(2, on)
            graph.sort()
        else:
            for value in node.inputs[3:5]:  # the statistics must be initializers
                tensor = None if value is None or value.name in graph.initializers else tensor_of(value)
                if value is not None and tensor is not None:
                    name = names_of(graph).free(f"{value.name}/statistic")
                    replace_by_initializer(graph, value, tensor.numpy(), name)
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.resize_outputs(3)
            # Name the updated running statistics, which the training step reads.
            for value, kind in zip(node.outputs[1:], ("mean", "variance"), strict=True):
                value.type, value.name = node.outputs[0].type, names.free(f"{node.name}/{kind}")
    if folded:
        warn(f"training_mode=True switches over {len(nodes)} node(s).{_folded_away(folded)} {_ADVICE} to train it too.")
    return result


def folded_normalizations(model: ir.Model) -> list[str]:
    """Return the names of the nodes, or of their PyTorch modules, into which a BatchNormalization was folded."""
    found = []
    for node in (n for n in every_node(model.graph) if n.op_type in _FOLDING and not n.domain):
        call = call_of(node)
        if call is not None and "batch_norm" in call.function:
            found.append(scope_of(node) or node.name or "")
        elif call is None and model.producer_name == PRODUCER:
            # PyTorch's older exporter names weight and bias after the operator if it computed both by folding a
            # BatchNormalization into a convolution.
            operands = [value.name or "" for value in node.inputs[1:3] if value is not None]
            if len(operands) == 2 and all(name.startswith("onnx::Conv") for name in operands):
                found.append(node.name or "")
    return found


def _trains(node: ir.Node) -> bool:
    """Return True if a node is in training mode."""
    if node.op_type != "Dropout" or node.domain:
        return normalizes_by_batch(node)
    mode = operand(node, 2)
    known = None if mode is None else constant(mode)
    return known is not None and bool(known)


def _folded_away(folded: list[str]) -> str:
    if not folded:
        return ""
    more = f" and {len(folded) - 3} more" if len(folded) > 3 else ""
    return (
        f" The exporter folded the BatchNormalization of {', '.join(map(repr, folded[:3]))}{more} into the products "
        f"before it: it is gone."
    )


_ADVICE = (
    "Export the model without folding (in PyTorch: torch.onnx.export(..., dynamo=True, optimize=False), or "
    "dynamo=False with training=TrainingMode.TRAINING and do_constant_folding=False, which keeps Dropout too)"
)


_KERAS_ADVICE = (
    "tf2onnx makes a factor and a summand of the four arrays of a BatchNormalization, which cannot be told apart "
    "again. Export from Keras on PyTorch (torch.onnx.export(model, (example,), path, dynamo=False, "
    "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False))"
)


# Inference form: Dropout and BatchNormalization in inference mode, no random numbers.


def inference_form(model: ir.Model) -> ir.Model:
    """Return a clone for inference: no Dropout, BatchNormalization in inference mode, means for random numbers."""
    clone = model.clone()
    graph = clone.graph
    for node in list(graph.all_nodes()):
        if normalizes_by_batch(node):
            use_running_statistics(node)
        elif node.op_type == "Dropout" and not node.domain:
            source = node.inputs[0]
            dropped = node.outputs[0]
            own = node.graph
            assert source is not None
            assert own is not None
            if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1] in own.outputs):
                raise ModelError(f"The mask of Dropout node {node.name!r} is used: the graph has no inference form.")
            if dropped in own.outputs:  # an output of the graph keeps its name
                identity = ir.node("Identity", [source], name=f"{node.name}/identity")
                own.insert_before(node, identity)
                identity.outputs[0].name, source = dropped.name, identity.outputs[0]
                own.outputs[own.outputs.index(dropped)] = source
                copy_type(source, dropped)
                dropped.name = None
            bypass(node, source)
    replace_random(graph)
    return clone


def inference_form_of(source: ir.Model, output: str, *, fixed: bool = False) -> ir.Model:
    """Return the inference form of ``source``, pruned to one output; ``fixed`` leaves all sizes of the file."""
    model = inference_form(source)
    if not fixed:
        free_batch_axis(model)
    keep_outputs(model, [v for v in model.graph.outputs if v.name == output], inputs=True)
    return model


# BatchNormalization in training mode: batch statistics and running statistics.


def normalizes_by_batch(node: ir.Node) -> bool:
    """Return True if a node is a BatchNormalization in training mode, which before opset 14 has further outputs."""
    is_batch_norm = node.op_type == "BatchNormalization" and not node.domain
    return is_batch_norm and bool(node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1)


def use_running_statistics(node: ir.Node) -> None:
    """Switch a BatchNormalization to inference mode."""
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def separate_running_statistics(graph: ir.Graph) -> None:
    """Give each BatchNormalization in training mode statistics that no other node reads, in place.

    Exporters merge equal initializers. In a new PyTorch network, running mean and bias are both zeros, and running
    variance and scale are both ones. If they shared an initializer, training one would change the other.
    """
    nodes = [n for n in every_node(graph) if normalizes_by_batch(n)]
    program = TorchProgram(graph) if nodes else None
    seen = set[ir.Value]()
    for node in nodes:
        # The training step must be able to read the updated statistics.
        assert program is not None
        statistics, updated = node.inputs[3:5], node.outputs[1:]
        reason = ""
        if node.graph is not graph:
            reason = "it is in a subgraph"
        elif graph.opset_imports[""] < 14:
            reason = "before opset 14 its training mode is not supported"
        elif any(x is None or x.name not in graph.initializers for x in statistics):
            reason = "its running statistics are not initializers"
        elif len(updated) != 2 or any(not v.name or v.uses() or v.is_graph_output() for v in updated):
            reason = "it must have three outputs, of which nothing reads the last two"
        if reason:
            raise UnsupportedOperatorError(
                f"Node {node.name!r} (BatchNormalization) is in training mode and cannot be trained: {reason}. Export "
                f"the model in evaluation mode (in PyTorch: model.eval())."
            )

        # This node keeps the initializer, and other readers get a copy. But if the initializer is named after another
        # operand of the PyTorch module, or if an earlier node has kept it, this node gets the copy.
        for i in (3, 4):
            x, own = node.inputs[i], program.buffer_at(node, i)
            assert x is not None
            others = [use for use in x.uses() if not (use.idx in (3, 4) and normalizes_by_batch(use.node))]
            if x not in seen and not (others and x.name != own):
                seen.add(x)
                moved = copy_initializer(graph, x, names_of(graph).free(f"{x.name}/constant")) if others else x
                for use in others:
                    use.node.replace_input_with(use.idx, moved)
            else:
                name = names_of(graph).free(own or f"{x.name}/{node.name}")
                node.replace_input_with(i, copy_initializer(graph, x, name))


def separate_stored_statistics(graph: ir.Graph) -> None:
    """Give each BatchNormalization in inference mode statistics that no other node reads, in place.

    Exporters merge these too. A bias could not be trained if it shared its initializer with a statistic.
    """
    merged = []
    for node in every_node(graph):
        if node.op_type == "BatchNormalization" and not node.domain and not normalizes_by_batch(node):
            for i, x in enumerate(node.inputs[3:5], 3):
                if x is None or x.const_value is None or x.name not in graph.initializers:
                    continue
                if any(use.idx not in (3, 4) or use.node.op_type != "BatchNormalization" for use in x.uses()):
                    merged.append((node, i, x))
    program = TorchProgram(graph) if merged else None
    for node, i, x in merged:
        own = None if program is None else program.buffer_at(node, i)
        name = names_of(graph).free(own or f"{x.name}/constant")
        node.replace_input_with(i, copy_initializer(graph, x, name))


def follow_torch(model: ir.Model, prefix: str) -> None:
    """Change a graph from PyTorch, in place, so that it averages unbiased variances of minibatches, as PyTorch does.

    ONNX's BatchNormalization averages biased variances, which are divided by n instead of n - 1.
    """
    found = [n for n in model.graph if normalizes_by_batch(n)] if is_from_torch(model) else []
    nodes = [n for n in found if not (n.name or "").startswith(KERAS_NODES)]
    op = GraphBuilder(model.graph, prefix=prefix)
    for node in nodes:
        # Divide the old average by n / (n - 1) and multiply the new one by it. Computing the new average after the node
        # from the old one would be simpler, but kernels may overwrite the old one.
        old, new, x = node.inputs[4], node.outputs[2], node.inputs[0]
        assert old is not None
        op.dtype = old.dtype or op.dtype
        # n / (n - 1) for n numbers per channel; 1 for a single number, whose variance is 0 anyway
        sizes = dims(x)
        factor: ir.Value | float
        if sizes is not None and all(isinstance(d, int) for d in sizes):
            count = math.prod(int(d or 1) for i, d in enumerate(sizes) if i != 1)
            factor = count / max(count - 1, 1)
        else:
            total = op.Cast(op.Div(op.Size(x), op.Size(node.inputs[1])), to=op.dtype)  # the scale has one per channel
            factor = op.Div(total, op.Max(op.Sub(total, 1.0), 1.0))
        node.replace_input_with(4, op.Div(old, factor))
        name, new.name = new.name, op.name("population")
        copy_type(op.Mul(new, factor), new).name = name
    if nodes:
        model.graph.sort()


# Replace random numbers by their means in the inference form.
#
# Layers such as stochastic depth and Gaussian noise draw numbers in training; in evaluation they return their input,
# which is the mean. Replacing numbers by their mean is exact if they only scale, shift or select other values.


UNIFORM, NORMAL = frozenset({"RandomUniform", "RandomUniformLike"}), frozenset({"RandomNormal", "RandomNormalLike"})


DRAWING = UNIFORM | NORMAL | {"Bernoulli", "Multinomial"}


_WITH_GENERATOR = DRAWING | set("Dropout BiasDropout BitmaskDropout BitmaskBiasDropout Sampling".split())
"""Operators that draw from the random generator of a session."""


_LESS = frozenset({("Less", 0), ("LessOrEqual", 0), ("Greater", 1), ("GreaterOrEqual", 1)})
"""Comparisons, by operator and position of the uniform number, that are true if it is the smaller operand."""


_MORE = frozenset({("Less", 1), ("LessOrEqual", 1), ("Greater", 0), ("GreaterOrEqual", 0)})
"""Comparisons, by operator and position of the uniform number, that are true if it is the larger operand."""


_LINEAR = frozenset("Add Cast Div Expand Identity Mul Neg Reshape Sub Sum Unsqueeze".split())


def is_random(node: ir.Node) -> bool:
    """Return True if a node draws random numbers also in inference."""
    return node.op_type in DRAWING and not node.domain


def is_stateless(graph: ir.Graph) -> bool:
    """Return True if a run of the graph does not depend on earlier runs of its session."""
    return all(node.op_type not in _WITH_GENERATOR for node in every_node(graph))


def replace_random(graph: ir.Graph) -> None:
    """Replace random numbers by their means, in place; raise UnsupportedOperatorError if that is not exact."""
    nodes = [node for node in every_node(graph) if is_random(node)]
    for node in nodes:
        if node.graph is not graph:
            raise _refused(node, "it is in a subgraph")
        op = GraphBuilder(graph, dtype=node.outputs[0].dtype or ir.DataType.FLOAT, prefix="mean", constant_nodes=True)
        if node.op_type == "Bernoulli":
            p = node.inputs[0]
            assert p is not None
            replace_node(op, node, [op.Cast(p, to=op.dtype)])
        elif node.op_type in NORMAL and _is_linear(node.outputs[0]):
            replace_node(op, node, [_of_drawn_shape(op, node, attribute(node, "mean", 0.0))])
        elif node.op_type in UNIFORM:
            _replace_uniform(op, node)
        else:
            raise _refused(node, "its numbers do not only scale or shift others")
    if nodes:
        graph.sort()


def _is_linear(value: ir.Value, depth: int = 8) -> bool:
    """Return True if all nodes downstream of ``value`` are linear in it, up to additions of other values."""
    if not depth or value.is_graph_output():
        return not value.is_graph_output()
    for node, index in value.uses():
        if node.domain or node.op_type not in _LINEAR or (node.op_type == "Div" and index):
            return False
        if node.op_type not in ("Add", "Sub", "Sum") and not _is_linear(node.outputs[0], depth - 1):
            return False
    return True


def _of_drawn_shape(op: GraphBuilder, node: ir.Node, number: float) -> ir.Value:
    """Emit a value that is filled with ``number``, in the shape that ``node`` draws."""
    if "shape" in node.attributes:
        return op.Expand(number, np.array(node.attributes["shape"].as_ints(), np.int64))
    return op.Expand(number, op.Shape(node.inputs[0]))


def _replace_uniform(op: GraphBuilder, node: ir.Node) -> None:
    """Replace comparisons with uniform numbers u, and floors of p + u for u in [0, 1), by their probabilities."""
    low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
    for user, index in list(node.outputs[0].uses()):
        other = operand(user, 1 - index) if len(user.inputs) == 2 else None
        if other is None or user.domain:
            raise _refused(node, f"{node_label(user)} reads its numbers")
        if (user.op_type, index) in _LESS | _MORE:
            share = op.Clip(op.Div(op.Sub(other, low), high - low), 0.0, 1.0)
            share = share if (user.op_type, index) in _LESS else op.Sub(1.0, share)
            _replace_decision(op, node, user, op.Mul(share, _of_drawn_shape(op, node, 1.0)))
        elif user.op_type == "Add" and (low, high) == (0.0, 1.0):
            floors = [n for n, _ in user.outputs[0].uses()]
            if not floors or any(n.op_type != "Floor" for n in floors):
                raise _refused(node, f"{node_label(user)} reads its numbers")
            for floor in floors:  # floor(p + u) is 1 with probability p
                replace_node(op, floor, [op.Mul(other, _of_drawn_shape(op, node, 1.0))])
        else:
            raise _refused(node, f"{node_label(user)} reads its numbers")
    if not is_read(node.outputs[0]):
        op.graph.remove(node, safe=True)


def _replace_decision(op: GraphBuilder, source: ir.Node, decision: ir.Node, share: ir.Value) -> None:
    """Replace what a random condition selects by its mean; ``share`` is the probability that the condition is true."""
    for user, index in list(decision.outputs[0].uses()):
        if user.op_type == "Cast" and (user.outputs[0].dtype or op.dtype).is_floating_point():
            replace_node(op, user, [op.Cast(share, to=user.attributes["to"].as_int())])
        elif user.op_type == "Where" and index == 0:
            yes, no = user.inputs[1], user.inputs[2]
            assert yes is not None
            assert no is not None
            replace_node(op, user, [op.Add(op.Mul(share, yes), op.Mul(op.Sub(1.0, share), no))])
        else:
            raise _refused(source, f"{node_label(user)} reads what they decide")
    if not is_read(decision.outputs[0]):
        op.graph.remove(decision, safe=True)


def _refused(node: ir.Node, reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{node_label(node)} draws random numbers, also in predictions, and cannot be replaced by their mean: "
        f"{reason}. Export the model in evaluation mode (in PyTorch: model.eval()), or take the node out."
    )
