"""Compile the gradient graph once for each structure, for onnxruntime or as machine code.

A pass is compiled from the structure of the graph, the loss and the batch size. Trained parameters become inputs of the
graph before it is differentiated, so that no weight is baked into the program and other fits can use it.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .._compiler.code import GraphCode, graph_code
from .._compiler.elementwise import supported
from .._compiler.kernels import tile_of
from .._compiler.plan import NotCompiledError
from .._compiler.rows import RowInputs
from .._gradient.engine import available_engines, differentiate_own
from .._gradient.recomputation import recompute_activations
from .._importers.torch_program import is_from_torch
from .._ir.control_flow import fold
from .._ir.edits import initializers_to_inputs
from .._ir.limits import bytes_per_element
from .._ir.protobuf import to_proto
from .._ir.queries import Dims, attribute, dims, operand, structure, values_digest
from .._model.modes import is_stateless
from .._model.row_reads import LARGE, FirstProduct, Lookup, put_back_lookups, take_first_products, take_lookups
from .._model.trainable import TrainableModel
from .._model.weights import form_of
from .._ort.devices import Device
from .._ort.llvm import features, is_installed
from .._utils.cache import Cache, content, is_plain
from ..exceptions import InvalidParameterError, ModelError, RuntimeNotFoundError, UnsupportedOperatorError
from .loss_graph import LOSS, TARGET, WEIGHT, training_graph
from .parameters import FlatParameters
from .pass_rewrites import (
    WEIGHT_MATRIX,
    WEIGHTS_AT_LABELS,
    gather_rows,
    last_layer_last,
    read_weight_matrix,
    read_weights_at_labels,
    return_before_reshapes,
    transpose_operands,
)
from .randomness import FACTOR, expose_dropout, expose_random
from .step_parts import StepSettings

COMPILED = "compiled"
"""Name of the engine that runs a pass as machine code."""

PARALLEL_WORK = 4_000_000
"""Multiply-adds of one forward pass above which more than one thread pays; below, a second core would only spin."""


class PassSize(NamedTuple):
    """Size of a pass: multiply-adds forward, nodes with their gradients, elements of all values."""

    work: float
    nodes: int
    elements: float


@dataclass(frozen=True, eq=False)
class PassProgram:
    """The gradient graph for a fixed number of rows, compiled to bytes.

    Attributes
    ----------
    graph : bytes
        The trained parameters and running statistics are among its inputs.
    engine : str
        ``"compiled"`` if machine code runs it, else the engine that differentiated it.
    work, memory : float
        Multiply-adds of the forward pass; bytes of all values of a run.
    nodes : int
        Nodes of the graph.
    random : sequence of onnx_ir.Value
        The inputs for random numbers, of Dropout and of random nodes.
    stateless : bool
        Whether runs do not depend on earlier ones.
    products : sequence of FirstProduct
        Products of sparse data with a matrix, computed on the host. The graph takes each product as an input, and
        returns its gradient in place of the gradient of the matrix.
    lookups : sequence of Lookup
        Reads of rows of matrices. The graph returns the gradients of these rows instead of that of the matrix.
    segments : int
        Number of segments of the forward pass that the backward pass recomputes.
    weight_columns : int
        Columns of the matrix of shares that the graph reads; 0 if it reads none.
    weights_at_labels : bool
        Whether the graph reads a matrix with each row's share at its label instead of the labels.
    code : GraphCode or None
        The graph as a function, which runs in place of a session; ``graph`` is empty then.
    """

    graph: bytes
    engine: str
    work: float
    memory: float
    nodes: int
    random: Sequence[ir.Value]
    stateless: bool
    products: Sequence[FirstProduct] = ()
    lookups: Sequence[Lookup] = ()
    segments: int = 0
    weight_columns: int = 0
    weights_at_labels: bool = False
    code: GraphCode | None = None

    @property
    def size(self) -> PassSize:
        """Amount of computation in a run."""
        return PassSize(self.work, self.nodes, self.memory / 4)

    @property
    def nbytes(self) -> int:
        """Approximate bytes that the program takes in the cache."""
        return len(self.graph) + 2**12 + (0 if self.code is None else self.code.nbytes)


@dataclass(frozen=True, eq=False)
class PassSource:
    """Everything that a pass is compiled from.

    Attributes
    ----------
    resident : bool
        Whether the graph itself gathers the minibatch from all data.
    sparse : collection of str
        Names of the inputs that are given as sparse matrices.
    adds_rows : bool
        Whether the caller sums the gradients of rows that Gather reads from large matrices.
    normalizes_weights : bool
        Whether the caller gives the shares of the rows (weights divided by their sum), as a column.
    any_shape : bool
        Whether the caller accepts gradients in the shapes in which they are computed.
    for_cpu : bool
        Whether products take the forms that are fastest on a CPU, including products with a matrix of shares.
    """

    model: TrainableModel
    settings: StepSettings
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    batch: int
    resident: bool = False
    sparse: Collection[str] = ()
    adds_rows: bool = False
    normalizes_weights: bool = False
    any_shape: bool = False
    for_cpu: bool = False

    @property
    def least_lookup(self) -> int:
        """Smallest size, in elements, of a matrix whose lookups are taken out of the graph."""
        return 1 if self.settings.lazy_rows else LARGE


LARGEST_FROZEN = 2**24
"""Largest frozen weights, in bytes, of a program that is cached."""

_programs: Cache[PassProgram] = Cache(128, 2**26, lambda program: program.nbytes)


def pass_program(source: PassSource) -> PassProgram:
    """Return the program of a pass, from the cache or newly compiled."""
    if sum(array.nbytes for array in source.frozen.values()) > LARGEST_FROZEN:
        return _compiled(source, _emitted(source))
    if is_plain(source.settings.loss):
        return _programs.get(_key(source), lambda: _compiled(source, _emitted(source)))
    emitted = _emitted(source)  # a user's loss may depend on anything, so the emitted graph is the key
    outside = content([*emitted.products, *emitted.lookups])
    key = ("emitted", structure(emitted.graph, ()), outside, *_key_of_gradient(source))
    return _programs.get(key, lambda: _compiled(source, emitted))


def _key(source: PassSource) -> Hashable:
    """Return the key of everything that :func:`_emitted` and :func:`_compiled` read."""
    model, settings, parameters = source.model, source.settings, source.parameters
    erased = {*parameters.names, *parameters.running_statistics, *source.frozen}
    head = (content(settings.loss), settings.task, settings.link, settings.n_outputs, settings.groups)
    origin = is_from_torch(form_of(model.model))  # decides how running variances are averaged
    form = (
        structure(model.model, erased),
        origin,
        model.scores,
        model.link,
        model.members,
        model.forms,
        model.dtype.str,
    )
    head_key = *head, settings.positions, settings.ignores, settings.scheduled.dropout
    return form, values_digest(source.frozen), head_key, *_key_of_gradient(source)


def _key_of_gradient(source: PassSource) -> tuple[Hashable, ...]:
    parameters = source.parameters
    statistics = tuple(source.model.running_statistics.items())
    names = parameters.names, parameters.running_statistics, statistics
    return (
        names,
        (source.settings.engine, source.settings.checkpoint_activations),
        source.batch,
        (
            source.resident,
            source.adds_rows,
            source.least_lookup,
            source.normalizes_weights,
            source.for_cpu,
            source.any_shape,
        ),
        tuple(source.sparse),
    )


class _Emitted(NamedTuple):
    """The forward graph with the loss, its inputs for random numbers, and the products and reads taken out of it."""

    graph: ir.Model
    random: Sequence[ir.Value]
    products: Sequence[FirstProduct]
    lookups: Sequence[Lookup]


def _emitted(source: PassSource) -> _Emitted:
    """Return the forward graph with the loss, whose parameters are inputs."""
    shares = source.normalizes_weights
    graph = training_graph(source.model, source.settings, source.frozen, source.batch, normalized=shares)
    random = [*expose_random(graph), *expose_dropout(graph, scheduled=source.settings.scheduled.dropout)]
    products = take_first_products(graph, source.sparse)
    lookups = take_lookups(graph, source.parameters.names, source.least_lookup) if source.adds_rows else []
    outside = {product.weight for product in products} | {lookup.weight for lookup in lookups}
    names = (*source.parameters.names, *source.parameters.running_statistics)
    inputs = [name for name in names if name not in outside]
    if unused := [name for name in inputs if name not in graph.graph.initializers]:
        raise ModelError(f"The loss does not depend on {unused[0]!r}: compute it from the scores, its first operand.")
    initializers_to_inputs(graph.graph, inputs)
    return _Emitted(graph, random, products, lookups)


def _compiled(source: PassSource, emitted: _Emitted) -> PassProgram:
    forward_work, names, engine = work(emitted.graph.graph), source.parameters.names, source.settings.engine
    outside = {product.weight: product.name for product in emitted.products}
    taken = {*outside, *(lookup.weight for lookup in emitted.lookups)}
    wrt = [name for name in names if name not in taken] + [outside[name] for name in names if name in outside]
    wrt += [lookup.rows for lookup in emitted.lookups]
    gradient = differentiate_own(emitted.graph, wrt, LOSS, differentiating_engine(engine))
    model = gradient.model
    put_back_lookups(model, emitted.lookups)
    again = 0
    if source.settings.checkpoint_activations:
        weights = {*source.parameters.names, *source.parameters.running_statistics}
        again = recompute_activations(model, [v.name or "" for v in model.graph.inputs if v.name not in weights])
    if source.resident:
        gather_rows(model.graph, [*(spec.name for spec in source.model.inputs), TARGET], source.batch)
    if source.any_shape:
        return_before_reshapes(model.graph, [name for name in names if name not in taken])
    repeated = read_weight_matrix(model.graph) if source.for_cpu and source.normalizes_weights else 0
    labeled = read_weights_at_labels(model.graph) if repeated else False
    code = compiled_code(model, _row_inputs(source, emitted)) if engine == COMPILED else None
    if source.for_cpu and code is None:
        transpose_operands(model.graph)
        if not source.settings.checkpoint_activations:  # which fixes the order of the nodes
            last_layer_last(model.graph)
    return PassProgram(
        to_proto(model).SerializeToString() if code is None else b"",
        gradient.engine if code is None else COMPILED,
        forward_work,
        memory_of(model.graph),
        len(model.graph),
        tuple(map(_alone, emitted.random)),
        is_stateless(model.graph),
        emitted.products,
        emitted.lookups,
        again,
        repeated,
        labeled,
        code,
    )


def _row_inputs(source: PassSource, emitted: _Emitted) -> RowInputs:
    """Return the inputs of a gradient graph by whether they have a row for each row of the minibatch."""
    data = [*(spec.name for spec in source.model.inputs), TARGET, *(value.name or "" for value in emitted.random)]
    parameters = [*source.parameters.names, *source.parameters.running_statistics]
    return RowInputs(source.batch, data, (WEIGHT, WEIGHT_MATRIX, WEIGHTS_AT_LABELS), [*parameters, FACTOR])


def _alone(value: ir.Value) -> ir.Value:
    """Return a copy of an input that belongs to no graph."""
    copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
    copy.meta.update(value.meta)
    return copy


def memory_of(graph: ir.Graph) -> float:
    """Return the bytes of all values of known size that a run computes."""
    return sum(_nbytes(value) for node in graph for value in node.outputs)


def _nbytes(value: ir.Value) -> float:
    sizes: Any = dims(value)
    if sizes is None or value.dtype is None or not all(isinstance(d, int) for d in sizes):
        return 0.0
    return float(math.prod(sizes)) * bytes_per_element(value.dtype)


def work(graph: ir.Graph) -> float:
    """Return the multiply-adds of matrix products and convolutions in one pass, infinite if shapes are unknown."""
    total = 0.0
    for node in graph:
        if node.op_type in ("Gemm", "MatMul", "Conv") and not node.domain:
            total += _known_product(dims(node.outputs[0])) * _contracted(node)
    return total


def _contracted(node: ir.Node) -> float:
    """Return the multiply-adds per element of the output."""
    sizes = dims(operand(node, 1 if node.op_type == "Conv" else 0)) or [None]
    if node.op_type == "Conv":
        return _known_product(sizes[1:])
    return _known_product(sizes[:1] if node.op_type == "Gemm" and attribute(node, "transA", 0) else sizes[-1:])


def _known_product(sizes: Dims | None) -> float:
    """Return the product of the sizes, infinite if one is unknown."""
    return math.prod(float(d) if isinstance(d, int) else math.inf for d in ([None] if sizes is None else sizes))


# Machine code: whether this environment can compile a pass, and the code of a graph.


def can_compile() -> bool:
    """Return True if llvmlite is installed and the processor has the instructions that compiled functions use."""
    return is_installed() and is_supported()


@cache
def is_supported() -> bool:
    """Return True if the processor has the instructions that the functions need."""
    return supported(features(), platform.machine())


def is_usable(engine: str) -> bool:
    """Return True if an estimator can be trained with an engine; llvmlite is loaded for the compiled one alone."""
    return can_compile() if engine == COMPILED else engine in ("auto", *available_engines())


def require_compiler(device: Device) -> None:
    """Raise if nothing can be compiled in this environment, or for this device."""
    if device.providers != ("CPUExecutionProvider",):
        raise InvalidParameterError(
            f"engine='compiled' computes on the CPU, got device={device.name!r}. Set device='cpu'."
        )
    if not is_installed():
        raise RuntimeNotFoundError(
            "engine='compiled' needs llvmlite, which is not installed. Install the extra onnxtrain-sklearn[compiled], "
            "or use engine='auto'."
        )
    if not is_supported():
        raise RuntimeNotFoundError("engine='compiled' needs a processor with FMA. Use engine='auto'.")


def differentiating_engine(engine: str) -> str:
    """Return the engine that differentiates: "compiled" runs gradient graphs of the portable engine."""
    return "portable" if engine == COMPILED else engine


def compiled_code(model: ir.Model, rows: RowInputs | None = None) -> GraphCode:
    """Return the code of a gradient graph; shapes that it computes are put into it as constants, in place."""
    try:
        return graph_code(fold(model).graph, tile_of(features()), rows)
    except NotCompiledError as error:
        raise UnsupportedOperatorError(
            f"engine='compiled' cannot run the graph: {error}. Use engine='auto' or 'portable'."
        ) from None
