"""Invalid graphs that crash the process: ONNX's checker accepts them, and later steps read memory out of bounds.

ONNX's shape inference crashes on the nodes of :data:`CRASHES`. They were found by inferring every operator of opsets
13, 18 and 26 with settings out of range, in child processes. None of them is valid, and all are refused by rule.
onnxruntime crashes on further nodes with operands that do not fit, such as a convolution of another rank than its
kernel. Strict inference reports those, and few valid graphs: what it reports is first loaded in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx.shape_inference
import onnx_ir as ir

from .._runtime import distributions, loading
from .._support.refusal import reason
from ..exceptions import ModelError
from .inferred_types import knows_few_integers
from .limits import current_limits
from .operands import operand_error
from .queries import every_node


def require_survivable(proto: onnx.ModelProto) -> None:
    """Raise ModelError for the first node of a ModelProto, its subgraphs or functions, that breaks a rule."""
    for node in (node for graph in (proto.graph, *proto.functions) for node in nodes_of(graph)):
        settings = {a.name: a.i for a in node.attribute}
        for wrong in filter(
            None, (rule(node, settings) for rule in (_axis_out_of_range, *CRASHES.get(node.op_type, ())))
        ):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) is not valid: {wrong}.")


def require_loadable(model: ir.Model) -> None:
    """Raise ModelError if onnxruntime crashes when it loads a graph; the graph must have passed the rules."""
    for node in every_node(model.graph):
        if wrong := _weights_unlike_hidden_size(node) or _split_without_sizes(node) or operand_error(node):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) is not valid: {wrong}.")
    proto = ir.to_proto(model)
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=knows_few_integers(proto))
    except Exception as error:
        if not loading.survives_loading(proto.SerializeToString()):
            raise ModelError(
                f"onnxruntime {distributions.version()} does not survive loading the graph: {reason(error)}."
            ) from error


def require_result_loads(result: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Raise ModelError if onnxruntime loads the ModelProto ``source`` but not ``result``, its gradient graph.

    Inference knows more shapes of a gradient graph than of the given one: onnxruntime may then refuse an invalid node
    that it accepted while its shape was unknown.
    """
    if (error := loading.loading_error(result.SerializeToString())) is None:
        return
    if loading.loading_error(source.SerializeToString()) is None:
        raise ModelError(
            f"onnxruntime {distributions.version()} loads the graph, but not the one with its gradients, so a node "
            f"of it is not valid: {reason(error)}. Run onnx.shape_inference.infer_shapes(model, strict_mode=True, "
            "data_prop=True) to find what is wrong with it."
        ) from error


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a GraphProto or FunctionProto and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from nodes_of(subgraph)


def _axis_out_of_range(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    """LayerNormalization adds one to its axis, which overflows for the largest integer."""
    most, axis = current_limits().axes, settings.get("axis", 0)
    return None if -most <= axis <= most else f"its axis is {axis}, and tensors have at most {most} axes"


def _weights_unlike_hidden_size(node: ir.Node) -> str | None:
    """The kernel crashes on weights that do not have the hidden size, which inference does not check."""
    if node.domain or node.op_type not in GATES or "hidden_size" not in node.attributes:
        return None
    hidden = node.attributes["hidden_size"].as_int()
    rows = GATES[node.op_type] * hidden
    shapes = {"W": (None, rows, None), "R": (None, rows, hidden), "B": (None, 2 * rows)}
    for value, (name, wanted) in zip(node.inputs[1:4], shapes.items(), strict=False):
        if value is not None and value.shape is not None and not _matches_sizes(value.shape, wanted):
            told = ", ".join("?" if n is None else str(n) for n in wanted)
            return f"its input {name} has the shape {value.shape}, and hidden_size={hidden} needs ({told})"
    return None


def _split_without_sizes(node: ir.Node) -> str | None:
    """A runtime splits evenly if the shape is unknown when it loads the graph, and refuses if it is known."""
    version = 0 if node.graph is None else node.graph.opset_imports.get("", 0)
    given = "num_outputs" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)
    if node.domain or node.op_type != "Split" or version < 18 or given:
        return None
    return "it has neither the input split nor the attribute num_outputs, one of which opset 18 demands"


def _matches_sizes(shape: ir.Shape, wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(
        w is None or not isinstance(n, int) or n == w for n, w in zip(shape, wanted, strict=True)
    )


def _batch_dims(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    count = settings.get("batch_dims", 0)
    return f"batch_dims={count} must not be negative" if count < 0 else None


def _num_outputs(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    count = settings.get("num_outputs", len(node.output))
    return f"num_outputs={count}, but it has {len(node.output)} outputs" if count < len(node.output) else None


def _inconsistent_svm(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    """The kernel derives the lengths of lists from other lists, and does not check them."""
    lists = {a.name: list(a.ints) or list(a.floats) or list(a.strings) for a in node.attribute}
    size = {name: len(values) for name, values in lists.items()}
    counts = lists.get("vectors_per_class", [])
    if not counts:
        return None  # a linear one: a product, whose sizes the kernel checks
    classes = max(size.get("classlabels_ints", 0), size.get("classlabels_strings", 0))
    vectors, pairs = sum(counts), classes * (classes - 1) // 2
    wrong = [name for name in ("prob_a", "prob_b") if size.get(name, 0) not in (0, pairs)]
    wrong += ["vectors_per_class"] if len(counts) != classes or min(counts) < 0 or not vectors else []
    wrong += ["rho"] if size.get("rho", 0) != pairs else []
    wrong += ["coefficients"] if size.get("coefficients", 0) != vectors * (classes - 1) else []
    wrong += ["support_vectors"] if vectors and size.get("support_vectors", 0) % vectors else []
    wrong += ["prob_b"] if size.get("prob_a", 0) != size.get("prob_b", 0) else []
    return f"{wrong[0]} has {size.get(wrong[0], 0)} numbers, which does not fit the others" if wrong else None


def _too_few_labels(node: Any, settings: dict[str, int]) -> str | None:
    """The kernel reads a label for each score, and does not check how many there are."""
    size = {a.name: max(len(a.ints), len(a.floats), len(a.strings)) for a in node.attribute}
    labels = max((size.get(f"classlabels_{kind}", 0) for kind in ("ints", "strings", "int64s")), default=0)
    scores = size.get("intercepts", 0)
    return (
        f"its {labels} labels are too few, which does not fit {max(1, scores)} scores"
        if labels < max(1, scores)
        else None
    )


def _inconsistent_svm_regressor(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    size = {a.name: len(a.floats) for a in node.attribute}
    count, coefficients = settings.get("n_supports", 0), size.get("coefficients", 0)
    if not count:
        return None
    wrong = count < 0 or coefficients < count or size.get("support_vectors", 0) % count
    return f"n_supports={count} does not fit its coefficients and support vectors" if wrong else None


GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
"""Number of gates of a recurrent operator: the blocks of its weights."""

CRASHES: dict[str, tuple[Callable[[Any, dict[str, int]], str | None], ...]] = {
    "GatherND": (_batch_dims,),
    "LinearClassifier": (_too_few_labels,),
    "SVMClassifier": (_inconsistent_svm,),
    "SVMRegressor": (_inconsistent_svm_regressor,),
    "Split": (_num_outputs,),
    "TreeEnsembleClassifier": (_too_few_labels,),
}
