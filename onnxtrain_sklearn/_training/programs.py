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
from .._model.weights import template_of
from .._ort.devices import Device
from .._ort.llvm import features, is_installed
from .._utils.cache import Cache, content, is_plain
from ..exceptions import InvalidParameterError, ModelError, RuntimeNotFoundError, UnsupportedOperatorError
from .loss_graph import LOSS, TARGET, WEIGHT, training_graph
from .parameters import FlatParameters
from .pass_rewrites import (
    WEIGHT_MATRIX,
    WEIGHTS_AT_LABELS,
    compute_last_layer_first,
    gather_rows,
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
"""Multiply-adds of a forward pass from which on several threads pay off; below, a second thread would only spin."""


class PassSize(NamedTuple):
    """Size of a pass: multiply-adds forward, nodes with their gradients, elements of all values."""

    work: float
    nodes: int
    elements: float


@dataclass(frozen=True, eq=False)
class PassProgram:
    """The gradient graph for a fixed number of rows, as serialized ONNX.

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
    recomputed : int
        Number of segments of the forward pass that the backward pass recomputes.
    weight_columns : int
        Columns of the matrix of normalized weights that the graph reads; 0 if it reads none.
    weights_at_labels : bool
        Whether the graph reads, instead of the labels, a matrix: each row has minus its normalized weight in the column
        of its label, and zeros.
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
    recomputed: int = 0
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
class PassParts:
    """Everything that a pass is compiled from.

    Attributes
    ----------
    resident : bool
        Whether the graph itself gathers the minibatch from all data.
    sparse : collection of str
        Names of the inputs that are given as sparse matrices.
    adds_rows : bool
        Whether the caller sums the gradients of rows that Gather reads from large matrices.
    any_shape : bool
        Whether the caller accepts gradients in the shapes in which they are computed.
    on_host : bool
        Whether a step in the host's memory runs the pass. Then the caller passes normalized row weights, as a column or
        as a matrix, and products take the forms that are fastest on a CPU.
    """

    graph: TrainableModel
    settings: StepSettings
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    batch_size: int
    resident: bool = False
    sparse: Collection[str] = ()
    adds_rows: bool = False
    any_shape: bool = False
    on_host: bool = False

    @property
    def least_lookup(self) -> int:
        """Smallest size, in elements, of a matrix whose lookups are taken out of the graph."""
        return 1 if self.settings.lazy_rows else LARGE


LARGEST_FROZEN = 2**24
"""Largest frozen weights, in bytes, of a program that is cached."""

_programs: Cache[PassProgram] = Cache(128, 2**26, lambda program: program.nbytes)


def pass_program(parts: PassParts) -> PassProgram:
    """Return the program of a pass, from the cache or newly compiled."""
    if sum(array.nbytes for array in parts.frozen.values()) > LARGEST_FROZEN:
        return _gradient_program(parts, _forward_graph(parts))
    if is_plain(parts.settings.loss):
        return _programs.get(_key(parts), lambda: _gradient_program(parts, _forward_graph(parts)))
    # With a user's loss, which may depend on anything, the forward graph itself, which contains the loss, is the key.
    forward = _forward_graph(parts)
    outside = content([*forward.products, *forward.lookups])
    key = ("user's loss", structure(forward.model, ()), outside, *_key_of_gradient(parts))
    return _programs.get(key, lambda: _gradient_program(parts, forward))


def _key(parts: PassParts) -> Hashable:
    """Return the key of everything that :func:`_forward_graph` and :func:`_gradient_program` read."""
    graph, settings, parameters = parts.graph, parts.settings, parts.parameters
    erased = {*parameters.names, *parameters.running_statistics, *parts.frozen}
    of_loss = (
        (
            content(settings.loss),
            settings.task,
            settings.link,
            settings.n_scores,
            settings.n_targets,
            settings.soft,
            settings.groups,
        ),
        (settings.positions, settings.ignores, settings.n_shares, settings.scheduled.dropout),
    )
    origin = is_from_torch(template_of(graph.model))  # PyTorch averages running variances in its own way
    form = (
        structure(graph.model, erased),
        origin,
        graph.scores,
        graph.link,
        graph.members,
        graph.forms,
        graph.dtype.str,
    )
    return form, values_digest(parts.frozen), of_loss, *_key_of_gradient(parts)


def _key_of_gradient(parts: PassParts) -> tuple[Hashable, ...]:
    parameters = parts.parameters
    statistics = tuple(parts.graph.running_statistics.items())
    return (
        (parameters.names, parameters.running_statistics, statistics),
        (parts.settings.engine, parts.settings.checkpoint_activations),
        parts.batch_size,
        (parts.resident, parts.on_host, parts.any_shape),
        (parts.adds_rows, parts.least_lookup),
        tuple(parts.sparse),
    )


class _ForwardGraph(NamedTuple):
    """The forward graph with the loss, its inputs for random numbers, and the products and lookups computed outside."""

    model: ir.Model
    random: Sequence[ir.Value]
    products: Sequence[FirstProduct]
    lookups: Sequence[Lookup]


def _forward_graph(parts: PassParts) -> _ForwardGraph:
    """Return the forward graph with the loss, whose parameters are inputs."""
    settings, parameters = parts.settings, parts.parameters
    model = training_graph(parts.graph, settings, parts.frozen, parts.batch_size, normalized=parts.on_host)
    random = [*expose_random(model), *expose_dropout(model, scheduled=settings.scheduled.dropout)]
    products = take_first_products(model, parts.sparse)
    lookups = take_lookups(model, parameters.names, parts.least_lookup) if parts.adds_rows else []
    outside = {product.weight for product in products} | {lookup.weight for lookup in lookups}
    inputs = [name for name in (*parameters.names, *parameters.running_statistics) if name not in outside]
    if unused := [name for name in inputs if name not in model.graph.initializers]:
        raise ModelError(
            f"The loss does not depend on the parameter {unused[0]!r}. Compute it from the scores, its first argument."
        )
    initializers_to_inputs(model.graph, inputs)
    return _ForwardGraph(model, random, products, lookups)


def _gradient_program(parts: PassParts, forward: _ForwardGraph) -> PassProgram:
    """Differentiate the forward graph, rewrite the gradient graph to faster equal forms, and compile it."""
    settings, parameters = parts.settings, parts.parameters
    weights = [*parameters.names, *parameters.running_statistics]
    forward_work = work(forward.model.graph)  # measured now, as differentiate_own changes this graph

    # If the product or the lookups of a matrix are taken out of the graph, the host computes the matrix's gradient,
    # from the gradient of the product or of the rows.
    products = {product.weight: product.name for product in forward.products}
    taken = {*products, *(lookup.weight for lookup in forward.lookups)}
    wrt = [name for name in parameters.names if name not in taken]
    returned = list(wrt)
    wrt += [products[name] for name in parameters.names if name in products]
    wrt += [lookup.rows for lookup in forward.lookups]
    gradient = differentiate_own(forward.model, wrt, LOSS, differentiating_engine(settings.engine))
    model = gradient.model
    put_back_lookups(model, forward.lookups)

    recomputed = 0
    if settings.checkpoint_activations:
        data = [value.name or "" for value in model.graph.inputs if value.name not in weights]
        recomputed = recompute_activations(model, data)
    if parts.resident:
        gather_rows(model.graph, [*(spec.name for spec in parts.graph.inputs), TARGET], parts.batch_size)
    if parts.any_shape:
        return_before_reshapes(model.graph, returned)
    weight_columns = read_weight_matrix(model.graph) if parts.on_host else 0
    at_labels = read_weights_at_labels(model.graph) if weight_columns else False

    code = None
    if settings.engine == COMPILED:
        data = [*(spec.name for spec in parts.graph.inputs), TARGET, *(value.name or "" for value in forward.random)]
        row_weights = WEIGHT, WEIGHT_MATRIX, WEIGHTS_AT_LABELS
        code = compiled_code(model, RowInputs(parts.batch_size, data, row_weights, [*weights, FACTOR]))
    elif parts.on_host:
        transpose_operands(model.graph)
        if not settings.checkpoint_activations:  # checkpointing fixes the order of the nodes
            compute_last_layer_first(model.graph)

    # Copy the inputs for random numbers, so that the program does not keep the whole graph alive.
    random = []
    for value in forward.random:
        random.append(ir.Value(name=value.name, type=value.type, shape=value.shape))
        random[-1].meta.update(value.meta)
    return PassProgram(
        graph=to_proto(model).SerializeToString() if code is None else b"",
        engine=gradient.engine if code is None else COMPILED,
        work=forward_work,
        memory=memory_of(model.graph),
        nodes=len(model.graph),
        random=tuple(random),
        stateless=is_stateless(model.graph),
        products=forward.products,
        lookups=forward.lookups,
        recomputed=recomputed,
        weight_columns=weight_columns,
        weights_at_labels=at_labels,
        code=code,
    )


def memory_of(graph: ir.Graph) -> float:
    """Return the bytes of all values of known size that a run computes."""
    total = 0.0
    for value in (value for node in graph for value in node.outputs):
        sizes: Any = dims(value)
        if sizes is not None and value.dtype is not None and all(isinstance(d, int) for d in sizes):
            total += float(math.prod(sizes)) * bytes_per_element(value.dtype)
    return total


def work(graph: ir.Graph) -> float:
    """Return the multiply-adds of matrix products and convolutions in one pass, infinite if shapes are unknown."""
    total = 0.0
    for node in graph:
        if node.op_type in ("Gemm", "MatMul", "Conv") and not node.domain:
            # The work is the number of output elements times the size of the contracted axes.
            sizes = dims(operand(node, 1 if node.op_type == "Conv" else 0)) or [None]
            if node.op_type == "Conv":
                contracted = sizes[1:]
            elif node.op_type == "Gemm" and attribute(node, "transA", 0):
                contracted = sizes[:1]
            else:
                contracted = sizes[-1:]
            total += _known_product(dims(node.outputs[0])) * _known_product(contracted)
    return total


def _known_product(sizes: Dims | None) -> float:
    """Return the product of ``sizes``, or infinity if a size or the rank is unknown."""
    return math.prod(float(d) if isinstance(d, int) else math.inf for d in ([None] if sizes is None else sizes))


# Machine code: whether this environment can compile a pass, and the code of a graph.


def can_compile() -> bool:
    """Return True if llvmlite is installed and the processor has the instructions that compiled functions use."""
    return is_installed() and is_supported()


@cache
def is_supported() -> bool:
    """Return True if the processor has the instructions that compiled functions need (FMA)."""
    return supported(features(), platform.machine())


def is_usable(engine: str) -> bool:
    """Return True if ``engine`` can train an estimator here; llvmlite is loaded only to check "compiled"."""
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
    """Compile a gradient graph, in which computed shapes are first replaced by constants, in place."""
    try:
        return graph_code(fold(model).graph, tile_of(features()), rows)
    except NotCompiledError as error:
        raise UnsupportedOperatorError(
            f"engine='compiled' cannot run the graph: {error}. Use engine='auto' or 'portable'."
        ) from None
