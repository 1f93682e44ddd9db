"""Choose a gradient engine and differentiate a graph with it.

:func:`gradient_graph` is the public function on ONNX models; training calls :func:`differentiate` on graphs that are
validated already, or :func:`differentiate_own`, which changes the given graph, on graphs that it does not need any
more. All lower fused operators, find the path of
the gradient, try the engines in turn and add zero gradients of names that do not affect the output.

An engine is a function ``(model, wrt, of) -> model``. It returns a new graph with the inputs, initializers and outputs
of the given one and an output ``NAME_grad`` for each name in ``wrt``. It returns correct gradients or raises
:class:`UnsupportedOperatorError`. It is called only for names on which the output depends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from .._importers.load import checked
from .._importers.ort_fusions import lower
from .._ir.control_flow import fold, unroll
from .._ir.edits import multiply_by_columns, remove_identity_transposes
from .._ir.files import read
from .._ir.limits import require_loadable, require_result_loads, require_values_within_limits
from .._ir.protobuf import from_proto
from .._ir.queries import dims, every_node, graphs_in, is_float, reads
from .._ir.shapes import infer_declared
from .._model.activation import use_stable_forms
from .._model.graph_comparison import PlainSession, compare_outputs, draws, plain_session, random_feeds
from .._ort import gradient_builder, packages, sessions
from .._utils.errors import refusing
from ..exceptions import (
    InvalidParameterError,
    ModelError,
    RuntimeNotFoundError,
    UnsupportedOperatorError,
    instead_of,
    nearest,
)
from ..graph import GraphBuilder, copy_type
from . import ort_training, portable
from .path import mark_selected, path

Engine: TypeAlias = Callable[[ir.Model, Sequence[str], str], ir.Model]

ENGINES: dict[str, tuple[Engine, Callable[[], bool]]] = {
    "ort-training": (ort_training.differentiate, gradient_builder.has_gradient_builder),
    "portable": (portable.differentiate, lambda: True),
}
"""The engines, each with a function that tells whether the installed onnxruntime can run it."""


def available_engines() -> tuple[str, ...]:
    """Return the names of the engines that run on the installed onnxruntime."""
    return tuple(name for name, (_, available) in ENGINES.items() if available())


def choose_engine(engine: str, others: Sequence[str] = ()) -> str:
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


def gradient_graph(
    model: onnx.ModelProto, *, wrt: str | Sequence[str], of: str | None = None, engine: str = "auto"
) -> onnx.ModelProto:
    """Return a model that computes the outputs of ``model`` and the gradient of one of them.

    Parameters
    ----------
    model : onnx.ModelProto
        A float graph. It is not modified.
    wrt : str or sequence of str
        Names of floating-point initializers or inputs with respect to which the gradient is computed.
    of : str, default=None
        Name of the output that is differentiated, a scalar; None: the first output.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine. "auto" considers the installed engines that are verified for every operator between the
        names and the output. It takes ort-training unless a measured table of operators finds the portable engine
        clearly faster.

    Returns
    -------
    onnx.ModelProto
        The inputs, initializers and outputs of ``model``, and for each name in ``wrt`` an output ``NAME_grad`` of its
        shape and type. Its opset is that of ``model``, or on the portable engine the first newer one with the
        operators that the gradient needs (an embedding needs 16). Any onnxruntime that supports the opset loads it.

    Raises
    ------
    ModelError
        A name is not in the graph or not of floating-point type, ``of`` is not a scalar, or an output is not what
        onnxruntime computes of ``model`` as given, on random inputs.
    UnsupportedOperatorError
        An operator between the names and the output has no verified gradient in the engine, or the engine does not
        support the opset: "ort-training" supports 11 to 21, "portable" 11 to 26.

    Notes
    -----
    The outputs are compared once. Inputs are random floats (positive ones if others give NaN) and the integers 0 and 1,
    free sizes are 3. They are not compared where the model draws random numbers, has inputs of text or
    bfloat16 or of unknown rank, takes more than a million numbers, is larger than 2 GB, or where onnxruntime does not
    run it on such inputs, as with operators of your own domain or sizes that must fit each other. The gradients are
    not compared here: the tests of the package check those of each operator.

    Examples
    --------
    >>> import onnx
    >>> from onnxtrain_sklearn import gradient_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     squares (float[3] x) => (float y) { z = Mul(x, x) y = ReduceSum <keepdims = 0> (z) }''')
    >>> [output.name for output in gradient_graph(model, wrt="x").graph.output]
    ['y', 'x_grad']
    """
    proto = checked(model)
    if not isinstance(wrt, Iterable):
        raise TypeError(f"wrt must be the name of an input or initializer, or a list of them, {instead_of(wrt)}.")
    names = [wrt] if isinstance(wrt, str) else list(dict.fromkeys(wrt))
    if not names:
        raise ValueError("wrt is an empty list: name at least one input or initializer.")
    with refusing("The gradients of the graph cannot be built"):
        # Read the graph: standard operators, known shapes, forms whose gradients do not overflow. Free axes of inputs
        # get names if there is a Loop: equal names show that its states keep their sizes.
        source = from_proto(proto)
        onnx_ir.passes.common.RemoveInitializersFromInputsPass()(source)
        remove_identity_transposes(source)
        if any(node.op_type == "Loop" and not node.domain for node in every_node(source.graph)):
            for value in source.graph.inputs:
                sizes = list(value.shape or ())
                free = [isinstance(size, ir.SymbolicDim) and size.value is None for size in sizes]
                if any(free):
                    named = [f"{value.name}/{i}" if free[i] else size for i, size in enumerate(sizes)]
                    value.shape = ir.Shape(named)
        infer_declared(lower(source), fold)
        use_stable_forms(source)
        require_values_within_limits(source)
        require_loadable(source)

        # Check the names that are asked for.
        values = {v.name: v for v in source.graph.inputs if v.name} | dict(source.graph.initializers)
        for name in names:
            if name not in values:
                hint = nearest(name, [str(v) for v in values])
                raise ModelError(f"wrt names {name!r}, which is no input or initializer.{hint}")
            if not is_float(values[name]):
                raise ModelError(f"wrt names {name!r} of type {values[name].dtype}; only floats have a gradient.")
        output = _scalar_output(source.graph, of)

        result = ir.to_proto(_differentiate_lowered(multiply_by_columns(source), names, output, engine).model)

        # The rewritten graph must compute the outputs of the given model; the tests of the package check the gradients.
        session = plain_session(result)
        if session is None:
            require_result_loads(result, proto)
        else:
            _require_values_as_given(read(model), session)
    return result


def _scalar_output(graph: ir.Graph, of: str | None) -> str:
    outputs = {v.name or "": v for v in graph.outputs}
    name = next(iter(outputs), "") if of is None else of
    if name not in outputs:
        raise ModelError(f"of={of!r} is no output of the graph.{nearest(str(of), outputs)}")
    if not is_float(outputs[name]):
        raise ModelError(f"Output {name!r} is of type {outputs[name].dtype}; only floats have a gradient.")
    shape = dims(outputs[name])
    if shape != []:
        found = "a shape that could not be inferred" if shape is None else f"shape {tuple(shape)}"
        raise ModelError(f"The gradient is taken of a scalar, but output {name!r} has {found}. Reduce it first.")
    return name


def _require_values_as_given(given: onnx.ModelProto, made: PlainSession) -> None:
    """Raise ModelError if, on random inputs, a gradient graph does not compute the outputs of the model as given."""
    if draws(given) or random_feeds(given, 0) is None or (session := plain_session(given)) is None:
        return
    names = [value.name for value in given.graph.output]
    for trial in range(2):
        feeds = random_feeds(given, trial)
        assert feeds is not None
        found = made.run(names, feeds)
        outcome = compare_outputs(session, names, feeds, "random inputs", found, lambda: made.proto)
        if outcome.different:
            raise ModelError(
                f"The gradient graph does not compute what onnxruntime computes of the model as given: "
                f"{outcome.different} Export the model with another opset (18 is a good choice) or without that "
                f"operator, and please report it."
            )
        if not outcome.reason:
            return


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
    return _differentiate_lowered(multiply_by_columns(fold(lower(model))), wrt, of, engine)


def _differentiate_lowered(model: ir.Model, wrt: Sequence[str], of: str, engine: str) -> GradientGraph:
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

    # The engines get only names that affect the output. The gradient of an empty value is empty, whatever a kernel
    # would return.
    nodes = [step.node for step in path(graph, wrt, next(v for v in graph.outputs if v.name == of))]
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
        # "portable" supports the most operators, so its reason tells the most.
        raise errors.get("portable") or next(iter(errors.values()))

    # Other names have zero gradients.
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

    With "auto", onnxruntime-training comes first unless the portable engine is clearly faster. It is left out for
    float64, for which it lacks most gradient kernels, and for graphs in which a Where hides an infinite derivative: its
    gradient is NaN there.
    """
    if choose_engine(engine) != "auto":
        return [engine]
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
