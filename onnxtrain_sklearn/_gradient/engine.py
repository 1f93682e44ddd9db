"""Choose a gradient engine and differentiate a graph with it.

:mod:`.derivatives` has the public functions on ONNX models; training calls :func:`differentiate` on graphs that are
validated already, or :func:`differentiate_own`, which changes the given graph, on graphs that it does not need any
more. All of these functions lower fused operators, find the path of the gradient, try the engines in turn and add zero
gradients of names that do not affect the output.

An engine is a function ``(model, wrt, of) -> model``. It returns a new graph with the inputs, initializers and outputs
of the given one and an output ``NAME_grad`` for each name in ``wrt``. It returns correct gradients or raises
:class:`UnsupportedOperatorError`. It is called only for names on which the output depends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir
import onnx_ir.passes.common

from .._importers.ort_fusions import lower
from .._ir.control_flow import fold, unroll
from .._ir.edits import multiply_by_columns
from .._ir.queries import dims, every_node, graphs_in, is_in_file, node_label, reads
from .._model.few_bits import dequantize_products
from .._ort import gradient_builder, packages, sessions
from .._utils.errors import refusing
from ..exceptions import (
    InvalidParameterError,
    ModelError,
    RuntimeNotFoundError,
    UnsupportedOperatorError,
    nearest,
)
from ..graph import GraphBuilder, copy_type
from . import ort_training, portable
from .path import forbids_derivative, mark_selected, path

Engine: TypeAlias = Callable[[ir.Model, Sequence[str], str], ir.Model]

ENGINES: dict[str, tuple[Engine, Callable[[], bool]]] = {
    "ort-training": (ort_training.differentiate, gradient_builder.has_gradient_builder),
    "portable": (portable.differentiate, lambda: True),
}
"""The engines, each with a function that tells whether the installed onnxruntime can run it."""


def available_engines() -> tuple[str, ...]:
    """Return the names of the engines that run on the installed onnxruntime."""
    return tuple(name for name, (_, available) in ENGINES.items() if available())


def checked_engine(engine: str, others: Sequence[str] = ()) -> str:
    """Return ``engine``, a name or "auto"; raise if it cannot run here.

    ``others`` are further names that the caller accepts, for the suggestion in the error.
    """
    if engine != "auto" and engine not in ENGINES:
        raise InvalidParameterError(f"Unknown engine {engine!r}.{nearest(engine, ['auto', *ENGINES, *others])}")
    if engine not in ("auto", *available_engines()):
        raise RuntimeNotFoundError(
            f"engine={engine!r} cannot run on the installed onnxruntime {packages.version()}: it has no gradient "
            "builder. Install onnxruntime-training-cpu==1.19.2 in its place (Linux, Python 3.10-3.12; the extra "
            "onnxtrain-sklearn[ort-training]), or use engine='portable'."
        )
    return engine


@dataclass(frozen=True)
class GradientGraph:
    """A graph with gradients among its outputs, and the name of the engine that made it."""

    model: ir.Model
    engine: str


def differentiate(model: ir.Model, wrt: Sequence[str], of: str, engine: str) -> GradientGraph:
    """Return ``model`` with an output ``NAME_grad`` for each name in ``wrt``; the given model is unchanged."""
    return differentiate_own(model.clone(), wrt, of, engine)


def differentiate_own(model: ir.Model, wrt: Sequence[str], of: str, engine: str) -> GradientGraph:
    """Differentiate like :func:`differentiate`, but change the given model, which saves a copy of the graph."""
    return differentiate_lowered(multiply_by_columns(fold(lower(model))), wrt, of, engine)


def differentiate_lowered(model: ir.Model, wrt: Sequence[str], of: str, engine: str) -> GradientGraph:
    """Differentiate a model without fused operators with the first engine that supports every node on the path."""
    graph = model.graph
    model.ir_version = min(model.ir_version, sessions.versions_for(ir_version=model.ir_version).ir_version)
    if engine == "ort-training":  # it cannot differentiate subgraphs; with "auto" the portable engine does
        unroll(model)

    # The names of the gradients must be free, also in subgraphs.
    every = every_node(graph)
    graphs = [graph, *(inner for node in every for inner in graphs_in(node))]
    taken = {v.name for inner in graphs for v in (*inner.inputs, *inner.initializers.values())}
    taken |= {v.name for node in every for v in node.outputs}
    for one in wrt:
        if f"{one}_grad" in taken:
            raise ModelError(
                f"The graph already has a value named '{one}_grad', as the gradient of {one!r} is; rename it."
            )

    # Pass to the engines only names that affect the output. Leave out empty values, whose gradient is empty: a kernel
    # may return something else.
    output = next(v for v in graph.outputs if v.name == of)
    nodes = [step.node for step in path(graph, wrt, output)]
    if dequantize_products(model, nodes):
        output = next(v for v in graph.outputs if v.name == of)
        nodes = [step.node for step in path(graph, wrt, output)]
    within = (inner for node in nodes for body in graphs_in(node) for inner in every_node(body))
    for node in filter(forbids_derivative, (*nodes, *within)):
        raise UnsupportedOperatorError(
            f"{node_label(node)} cannot be differentiated: it belongs to the gradient of a product (ReduceProd, "
            f"CumProd or a Scatter that multiplies). That gradient is right, but where a factor is zero its own "
            f"derivative is not known. Write the product with Mul."
        )
    empty = {v.name for v in [*graph.inputs, *graph.initializers.values()] if v.name and 0 in (dims(v) or [])}
    reached = {of} | {v.name for node in nodes for v in reads(node) if v.name} - empty

    errors = dict[str, UnsupportedOperatorError]()
    for name in _engines_to_try(model, nodes, engine):
        try:
            with refusing(f"The engine {name!r} cannot differentiate the graph", UnsupportedOperatorError):
                result = ENGINES[name][0](model, [one for one in wrt if one in reached], of)
            break
        except UnsupportedOperatorError as error:
            errors[name] = error
    else:
        # Raise the error of "portable": it supports the most operators, so its reason is the most useful.
        raise errors.get("portable") or next(iter(errors.values()))

    # Names that do not affect the output, and empty values, get gradients of zeros.
    op = GraphBuilder(result.graph, prefix="zero")
    values = {v.name: v for v in result.graph.inputs} | dict(result.graph.initializers)
    for one in wrt:
        if one not in reached:
            source = values[one]
            zero = op.ConstantOfShape(op.Shape(source), value=ir.tensor([0], dtype=source.dtype))
            copy_type(zero, source).name = f"{one}_grad"
            result.graph.outputs.append(zero)

    # Outputs in the order of the contract: those of the graph, then the gradients.
    outputs = {v.name: v for v in result.graph.outputs}
    result.graph.outputs.clear()
    result.graph.outputs.extend(outputs[v.name] for v in graph.outputs)
    result.graph.outputs.extend(outputs[f"{one}_grad"] for one in wrt)
    return GradientGraph(result, name)


def _engines_to_try(model: ir.Model, nodes: Sequence[ir.Node], engine: str) -> Sequence[str]:
    """Return the engines to try in turn; ``nodes`` are the nodes on the path.

    With "auto", onnxruntime-training comes first unless the portable engine is clearly faster. The former is left out
    for float64, for which it lacks most gradient kernels, and for graphs in which a Where selects away an infinite
    derivative: its gradient is NaN there.
    """
    in_files = [value.name for value in model.graph.initializers.values() if is_in_file(value)]
    if checked_engine(engine) != "auto":
        if in_files and engine == "ort-training":
            raise UnsupportedOperatorError(
                f"engine='ort-training' takes a graph with all weights, and {in_files[0]!r} stays in its file, as the "
                f"model has more than 2 GiB. Leave engine='auto'."
            )
        return [engine]
    if in_files:
        return ["portable"]
    double = any(v.dtype is ir.DataType.DOUBLE for v in [*model.graph.inputs, *model.graph.initializers.values()])
    steep = mark_selected(model.graph)
    able = [name for name in available_engines() if not ((double or steep) and name == "ort-training")]
    return able[::-1] if len(able) > 1 and portable_is_faster(nodes) else able


def portable_is_faster(nodes: Iterable[ir.Node]) -> bool:
    """Return True if the portable engine is clearly faster for a graph whose gradient passes through ``nodes``."""
    operators = {node.op_type for node in nodes if not node.domain}
    ratios = (ratio for ratio, names in FAMILIES.values() if operators.intersection(names.split()))
    return next(ratios, 1.0) < CLEARLY_FASTER


CLEARLY_FASTER = 0.9
"""Ratio of step times below which the portable engine is taken: two runs of ``python benchmarks/engine_families.py``
differ by a tenth."""

FAMILIES: dict[str, tuple[float, str]] = {
    "convolution": (1.03, "Conv"),
    "attention": (1.06, "Softmax"),
    "leaky rectifiers": (0.48, "LeakyRelu"),
    "lookups": (0.76, "Gather"),
    "pooling": (1.15, "MaxPool AveragePool"),
    "normalization": (1.05, "LayerNormalization"),
    "sigmoids": (1.16, "Tanh Sigmoid"),
    "rectifiers": (0.99, "Relu Exp Erf"),
    "shapes": (0.96, "Transpose Split Concat"),
    "reductions": (0.90, "ReduceMean ReduceSum"),
    "products": (0.94, "MatMul Gemm"),
}
"""For each family of operators: the time of a training step of the portable engine divided by that of ort-training,
and the operators.

Measured by ``python benchmarks/engine_families.py`` with onnxruntime-training 1.19.2, in CPU time on one thread. The
families are ordered by the time that their operators take: the first one that occurs in a graph decides.
"""
