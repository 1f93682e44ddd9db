"""Blocks: subgraphs that are composed by the names of their outputs, the model that they extend, losses of blocks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference
import onnx_ir as ir

from ..._ir.files import read
from ..._model.links import Link, Task
from ..._ort import devices, sessions
from ..._ort.gradient_builder import CUSTOM_OPERATORS, require_library
from ..._utils.errors import refusing
from ...exceptions import ModelError, nearest
from ...graph import GraphBuilder
from ...losses import Loss

__all__ = [
    "Abs",
    "Add",
    "Cast",
    "Clip",
    "Constant",
    "Div",
    "InputLike",
    "LabelEncoder",
    "Linear",
    "Log",
    "Mul",
    "Neg",
    "PassThrough",
    "Pow",
    "ReduceAllL2",
    "ReduceMean",
    "ReduceSum",
    "SequenceConstruct",
    "Sigmoid",
    "Sub",
    "UnknownValueError",
]

_DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 3}
"""Additional operator domains, and the imported version of each."""


class UnknownValueError(ModelError, LookupError):
    """The graph has no value of this name, or the type of the value is unknown."""


class Block(ABC):
    """Base class of blocks; subclasses add nodes to the model, by other blocks or directly.

    A block is called with the names of values within ``with base(model)``; it adds nodes to :attr:`base` and returns
    the name of its output, or a tuple of names.

    Examples
    --------
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> class RootMeanSquare(onnxblock.Block):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self._square, self._mean = onnxblock.blocks.Pow(2.0), onnxblock.blocks.ReduceMean()
    ...         self._root = onnxblock.blocks.Pow(0.5)
    ...
    ...     def build(self, name):
    ...         return self._root(self._mean(self._square(name)))
    """

    @property
    def base(self) -> onnx.ModelProto:
        """The model to which the block adds nodes."""
        return current_accessor().model

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes to :attr:`base`; return the name of the output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model; the outermost block checks that the result is valid."""
        accessor = current_accessor()
        accessor.depth += 1
        try:
            output = self.build(*args, **kwargs)
        finally:
            accessor.depth -= 1
        if not accessor.depth:
            onnx.checker.check_model(accessor.model, full_check=True)
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Return a copy of the model with inferred shapes."""
        return onnx.shape_inference.infer_shapes(self.base)

    def as_loss(self, widths: tuple[int, ...] = ()) -> BlockLoss:
        """Return this block as a loss of an estimator, which calls this for its parameter ``loss``.

        Parameters
        ----------
        widths : tuple of int
            Columns of each output of the graph, if it has several.
        """
        return BlockLoss(self, widths)

    def loss_link(self, task: Task) -> Link:
        """Return the link of the outputs where this block is the loss of an estimator."""
        return "identity"


def emit(
    op_type: str,
    inputs: Sequence[str],
    token: str = "",
    *,
    domain: str = "",
    outputs: Sequence[str] = (),
    **attributes: Any,
) -> str:
    """Append a node to the model; return the name of its first output."""
    accessor = current_accessor()
    if domain and not any(one.domain == domain for one in accessor.model.opset_import):
        accessor.model.opset_import.append(onnx.helper.make_opsetid(domain, _DOMAINS[domain]))
    names = list(outputs) or [accessor.name(token or f"{op_type.lower()}_output")]
    name = accessor.name(op_type)
    accessor.model.graph.node.append(
        onnx.helper.make_node(op_type, list(inputs), names, name=name, domain=domain, **attributes)
    )
    return names[0]


def initializer(array: np.ndarray, token: str) -> str:
    """Add an initializer to the model; return its name."""
    accessor = current_accessor()
    name = accessor.name(token)
    accessor.model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return name


def single(value: float, token: str) -> str:
    """Add a float32 initializer of one element."""
    return initializer(np.array([value], np.float32), token)


def has_value(name: str) -> bool:
    """Return True if a node of the model reads or computes ``name``."""
    return any(name in node.input or name in node.output for node in current_accessor().model.graph.node)


def declared(name: str) -> onnx.ValueInfoProto:
    """Return a copy of the graph input or output ``name``."""
    graph = current_accessor().model.graph
    values = {value.name: value for value in (*graph.output, *graph.input)}
    if name not in values:
        raise UnknownValueError(f"The graph has no input or output {name!r}.{nearest(name, values)}")
    copy: onnx.ValueInfoProto = deepcopy(values[name])
    return copy


class _Unary(Block):
    """A node of an operator with one input."""

    op_type: str

    def build(self, input_name: str) -> str:
        return emit(self.op_type, [input_name])


class _Binary(Block):
    """A node of an operator with two inputs."""

    op_type: str

    def build(self, input_name1: str, input_name2: str) -> str:
        return emit(self.op_type, [input_name1, input_name2])


class Add(_Binary):
    """The sum of two values."""

    op_type = "Add"


class Sub(_Binary):
    """The difference of two values."""

    op_type = "Sub"


class Mul(_Binary):
    """The product of two values."""

    op_type = "Mul"


class Div(_Binary):
    """The quotient of two values."""

    op_type = "Div"


class Pow(Block):
    """A value to the power of a constant.

    Parameters
    ----------
    exponent : float
    """

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        return emit("Pow", [pow_input_name, single(self._exponent, "pow_exponent")])


class _Reduction(Block):
    """A reduction over all axes.

    Parameters
    ----------
    keepdims : bool, default=True
    """

    op_type: str

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, input_name: str) -> str:
        if current_accessor().by_rows:
            return self._of_rows(input_name)
        return emit(self.op_type, [input_name], keepdims=int(self._keepdims))

    def _of_rows(self, name: str) -> str:
        """Reduce within each row, because an estimator weights the rows."""
        rows = emit("Flatten", [name], axis=1)
        # The axes moved from an attribute to an input, of ReduceSum five opsets earlier than of the others.
        opset = next(o.version for o in self.base.opset_import if not o.domain)
        if opset < (18 if self.op_type == "ReduceMean" else 13):
            return emit(self.op_type, [rows], keepdims=1, axes=[1])
        return emit(self.op_type, [rows, initializer(np.array([1], np.int64), "axes")], keepdims=1)


class ReduceMean(_Reduction):
    """The mean of all elements."""

    op_type = "ReduceMean"


class ReduceSum(_Reduction):
    """The sum of all elements."""

    op_type = "ReduceSum"


class Sigmoid(_Unary):
    """The logistic function."""

    op_type = "Sigmoid"


class Log(_Unary):
    """The natural logarithm."""

    op_type = "Log"


class Neg(_Unary):
    """The negative."""

    op_type = "Neg"


class Abs(_Unary):
    """The absolute value."""

    op_type = "Abs"


class Constant(Block):
    """A float constant.

    Parameters
    ----------
    value_float : float
    """

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        return single(self._value, "initializer")


class SequenceConstruct(Block):
    """A sequence of values."""

    def build(self, *sequence_input_names: str) -> str:
        return emit("SequenceConstruct", sequence_input_names)


class ReduceAllL2(Block):
    """The Euclidean norm of all elements of several values, an operator of onnxruntime-training."""

    def build(self, *reduce_node_input_names: str) -> str:
        output = emit("ReduceAllL2", reduce_node_input_names, domain="com.microsoft")
        # ONNX's inference does not know the operator.
        info = onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [1])
        self.base.graph.value_info.append(info)
        return output


class Clip(Block):
    """A value clipped to two bounds.

    Parameters
    ----------
    clip_min, clip_max : float, default=None
        None: no bound.
    """

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = {"clip_min": clip_min, "clip_max": clip_max}

    def build(self, clip_input_name: str) -> str:
        bounds = [
            "" if bound is None else initializer(np.array(bound, np.float32), token)
            for token, bound in self._bounds.items()
        ]
        return emit("Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """The given values, unchanged."""

    def build(self, *input_names: str) -> Any:
        return input_names


class InputLike(Block):
    """A new input of the graph, of the type and shape of one of its inputs or outputs.

    Parameters
    ----------
    like : str
        Name of that input or output.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        value = declared(self._like)
        value.name = input_name or current_accessor().name("input")
        self.base.graph.input.append(value)
        return value.name


class LabelEncoder(Block):
    """The operator LabelEncoder of ai.onnx.ml, which maps keys to values."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        settings: dict[str, Any] = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self._settings = {name: value for name, value in settings.items() if value is not None}

    def build(self, label_encoder_input_name: str) -> str:
        names = [label_encoder_input_name]
        domain = "ai.onnx.ml"
        return emit("LabelEncoder", names, "label_encoder.output", domain=domain, **self._settings)


class Cast(Block):
    """A value in another element type.

    Parameters
    ----------
    to : onnx.TensorProto.DataType
    """

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        return emit("Cast", [cast_input_name], "cast.output", to=self._to)


class Linear(Block):
    """A linear layer with new, normally distributed weights; ``numpy.random.seed`` seeds them.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool, default=True
    alpha, beta : float, default=1.0
        Factors of the product and of the bias.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0
    ) -> None:
        super().__init__()
        self._shapes = [(in_features, out_features), *([(out_features,)] if bias else [])]
        self._factors: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, linear_input_name: str) -> str:
        # The interface has no seed: the global generator is the one that a user can seed.
        arrays = [np.random.randn(*shape).astype(np.float32) for shape in self._shapes]  # noqa: NPY002
        tokens = ("linear.weight", "linear.bias")
        weights = [initializer(array, token) for array, token in zip(arrays, tokens, strict=False)]
        return emit("Gemm", [linear_input_name, *weights], "linear.output", **self._factors)


def require_reduction(reduction: str) -> str:
    """Return the reduction; raise RuntimeError for an unknown one."""
    if reduction not in ("mean", "sum", "none"):
        raise RuntimeError(f"Unknown reduction {reduction!r}.{nearest(reduction, ['mean', 'sum', 'none'])}")
    return reduction


def reducing(reduction: str) -> Block:
    """Return the block that reduces a loss to a scalar, or returns it unchanged."""
    if require_reduction(reduction) == "none":
        return _Unchanged()
    return ReduceMean(keepdims=False) if reduction == "mean" else ReduceSum(keepdims=False)


class _Unchanged(Block):
    """The given value, unchanged: returns its name."""

    def build(self, input_name: str) -> str:
        return input_name


# Blocks as losses of the estimators, which weight rows and pad minibatches.
#
# A loss of an estimator returns one number per row; the estimator computes the weighted mean. Therefore a block is
# built with reductions that keep the rows. A trial on random numbers checks that their mean equals the result of the
# block as it is; a block that is not a mean over rows is refused.


_ROWS = 5
"""Number of rows in the trial of a block."""


class LossBlock(Protocol):
    """A block of ``onnxblock`` that computes a loss."""

    def __call__(self, *outputs: str) -> Any:
        """Add the loss of these outputs to the model; return its name, or a tuple that begins with it."""

    def loss_link(self, task: Task) -> Link:
        """Return the link of the outputs."""


class BlockLoss(Loss):
    """The loss that a block computes from the outputs of a graph.

    Parameters
    ----------
    block : Block
        Its ``build`` takes the names of the outputs and returns the name of a scalar that is a mean over rows.
    widths : tuple of int
        Columns of each output, if the scores are several concatenated outputs; empty: one output.
    """

    def __init__(self, block: LossBlock, widths: tuple[int, ...] = ()) -> None:
        self.block = block
        self.widths = widths

    def link(self, task: Task) -> Link:
        return self.block.loss_link(task)

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        shape = op.shape(scores)
        width = shape[1] if shape is not None and len(shape) == 2 else None
        if not isinstance(width, int):
            raise ModelError(f"A block needs outputs of a known number of columns, got shape {shape}.")
        widths = self.widths or (width,)
        rows, result = self._built(op.opset, widths, by_rows=True)
        # No rule tells from the graph whether it is a mean over rows: try it on random numbers.
        self._require_mean(op.opset, widths)
        starts = np.cumsum([0, *widths])
        parts = [_block_columns(op, scores, a, b, width) for a, b in pairwise(starts)]
        names = [value.name for value in rows.graph.input]
        values = dict(zip(names, parts, strict=False))
        values |= _block_targets(op, rows.graph.input[len(parts) :], y, widths)
        return _inlined_block(op, rows, values, result)

    def _built(self, opset: int, widths: Sequence[int], *, by_rows: bool) -> tuple[onnx.ModelProto, str]:
        """Return the graph of the block on outputs of these widths, and the name of its result."""
        values = [
            onnx.helper.make_tensor_value_info(f"output_{i}", onnx.TensorProto.FLOAT, ["N", n])
            for i, n in enumerate(widths)
        ]
        model = onnx.helper.make_model(
            onnx.helper.make_graph([], "loss", values, values),
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=IR_VERSION,
        )
        with entered(ModelAccessor(model, by_rows=by_rows)):
            found = self.block(*(value.name for value in values))
        name = found[0] if isinstance(found, tuple) else found
        # The softmax of a single score is 1: its loss is zero for all weights.
        for node in model.graph.node:
            if node.op_type == "SoftmaxCrossEntropyLoss" and len(widths) == 1 == widths[0]:
                raise ModelError("CrossEntropyLoss needs a score for each class; for one score take BCEWithLogitsLoss.")
        return model, name

    def _require_mean(self, opset: int, widths: Sequence[int]) -> None:
        """Raise if the block is not a mean over rows."""
        found = []
        for by_rows in (True, False):
            model, name = self._built(opset, widths, by_rows=by_rows)
            del model.graph.output[:]
            model.graph.output.append(onnx.ValueInfoProto(name=name))
            session = sessions.create_session(model.SerializeToString(), devices.resolve_device())
            feeds = {value.name: _random_block_inputs(value, widths) for value in model.graph.input}
            found.append(np.asarray(sessions.run_session(session, [name], feeds)[0], np.float64))
        rows, whole = found
        right = rows.shape[:1] == (_ROWS,) and rows.size == _ROWS and whole.size == 1
        if not right or not np.isclose(rows.mean(), whole.item(), rtol=1e-3):
            raise ModelError(
                f"{type(self.block).__name__} is not a mean over rows of losses of single rows, so rows cannot be "
                "weighted. As loss= of an estimator, use reductions of onnxblock with 'mean' (not 'sum'), followed "
                "only by sums and by products with constants. Give class weights as the estimator's class_weight."
            )


def _random_block_inputs(value: onnx.ValueInfoProto, widths: Sequence[int]) -> np.ndarray:
    """Return numbers for an input of the trial: labels, or probabilities, which are valid scores and targets."""
    # Both graphs of the trial get the same numbers.
    rng = np.random.default_rng(len(value.name))
    tensor = value.type.tensor_type
    shape = [_ROWS, *(d.dim_value or 1 for d in tensor.shape.dim[1:])]
    if tensor.elem_type == onnx.TensorProto.FLOAT:
        return rng.uniform(size=shape).astype(np.float32)
    return rng.integers(0, min(widths), shape).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _block_columns(op: GraphBuilder, value: ir.Value, start: int, end: int, width: int) -> ir.Value:
    if (start, end) == (0, width):
        return value
    return op.Slice(value, [int(start)], [int(end)], [1])


def _block_targets(
    op: GraphBuilder, inputs: Sequence[onnx.ValueInfoProto], y: ir.Value, widths: Sequence[int]
) -> dict[str, ir.Value]:
    """Return the targets by name: the columns of ``y`` in the order in which the block declared them."""
    shape = op.shape(y)
    total = int(str(shape[1])) if shape is not None else 0
    floats = [value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in inputs]
    # Labels are a column of indices, or one-hot rows if y has as many columns as the outputs.
    sizes = [
        n if is_float or total == sum(widths) else 1
        for n, is_float in zip([*widths, *[1] * len(inputs)], floats, strict=False)
    ]
    if sum(sizes) != total:
        raise ModelError(f"The block takes targets of {' + '.join(map(str, sizes))} columns, but y has {total}.")
    ends = np.cumsum([0, *sizes])
    found = {}
    for value, is_float, start, end in zip(inputs, floats, ends, ends[1:], strict=False):
        part = _block_columns(op, y, start, end, total)
        found[value.name] = part if is_float else _block_labels(op, part, int(end - start))
    return found


def _block_labels(op: GraphBuilder, part: ir.Value, width: int) -> ir.Value:
    """Return class indices, from one-hot rows or from a column of indices."""
    if width > 1:
        return op.ArgMax(part, axis=1, keepdims=False)
    return op.Squeeze(op.Cast(part, to=ir.DataType.INT64), axes=[1])


def _inlined_block(op: GraphBuilder, model: onnx.ModelProto, values: Mapping[str, ir.Value], result: str) -> ir.Value:
    """Emit the nodes of the block; its float constants are cast to the type of the estimator's weights."""
    graph = ir.from_proto(model).graph
    known: dict[str | None, ir.Value] = dict(values.items())
    for name, value in graph.initializers.items():
        array = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
        known[name] = op.constant(array.astype(op.dtype.numpy()) if array.dtype == np.float32 else array)
    for node in graph:
        inputs = [None if x is None else known[x.name] for x in node.inputs]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        outputs = op.emit(node.op_type, *inputs, domain=node.domain, outputs=len(node.outputs), **attributes)
        known |= {old.name: new for old, new in zip(node.outputs, outputs, strict=True)}
    return op.Reshape(known[result], [-1, 1])


# The model that blocks extend: one per ``with base(...)``, visible only to the thread that entered it.
#
# The original keeps one model for the whole process. Here it is a context variable, so that threads and tasks can build
# concurrently and share blocks.


IR_VERSION, OPSET = 10, 21
"""The newest IR version and opset that onnxruntime-training reads; its last version is 1.19."""


@dataclass
class ModelAccessor:
    """The model under construction.

    Attributes
    ----------
    model : onnx.ModelProto
        The model to which blocks add their nodes.
    path : str or None
        The file from which it was read.
    by_rows : bool
        Whether reductions keep the rows, because an estimator weights them.
    """

    model: onnx.ModelProto
    path: str | None = None
    by_rows: bool = False
    depth: int = 0
    _count: int = field(default=0, repr=False)

    @property
    def has_path(self) -> bool:
        """True if the model was read from a file."""
        return self.path is not None

    def name(self, token: str) -> str:
        """Return an unused name."""
        graph = self.model.graph
        taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        taken |= {value.name for value in (*graph.input, *graph.initializer)}
        while True:
            # The form of the names in the original's files: "onnx::loss::1".
            self._count += 1
            if (found := f"onnx::{token}::{self._count}") not in taken:
                return found


_CURRENT: ContextVar[ModelAccessor | None] = ContextVar("onnxblock model", default=None)


def current_accessor() -> ModelAccessor:
    """Return the accessor of the innermost ``with base(...)``."""
    accessor = _CURRENT.get()
    if accessor is None:
        raise RuntimeError(
            "There is no model to extend: call blocks within `with onnxblock.base(model)` or `empty_base()`."
        )
    return accessor


@contextmanager
def entered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend the model of ``accessor``."""
    token = _CURRENT.set(accessor)
    try:
        yield accessor
    finally:
        _CURRENT.reset(token)


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend a copy of ``model``.

    Parameters
    ----------
    model : onnx.ModelProto
    model_path : str or path, default=None
        The file of the model, if it has external data: the weights are read from its folder.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the copy.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic import onnxblock
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     linear (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] W = {1, -2}> { Y = MatMul(X, W) }''')
    >>> with onnxblock.base(model) as accessor:
    ...     loss = onnxblock.loss.MSELoss()("Y")
    >>> [node.op_type for node in accessor.model.graph.node]
    ['MatMul', 'Sub', 'Pow', 'ReduceMean']
    """
    if not isinstance(model, onnx.ModelProto):
        raise ModelError(
            f"base needs an onnx.ModelProto to build on, got {type(model).__name__}; empty_base() starts from nothing."
        )
    path = None if model_path is None else os.fspath(model_path)
    outside = path is not None and any(tensor.external_data for tensor in model.graph.initializer)
    copy: onnx.ModelProto = read(path) if path is not None and outside else deepcopy(model)
    with entered(ModelAccessor(copy, path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks called in this context extend an empty model.

    Parameters
    ----------
    opset_version : int, default=None
        None: 21, the newest that onnxruntime-training reads.

    Yields
    ------
    ModelAccessor
        Its ``model`` is the result.
    """
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="onnxtrain_sklearn")
    model.graph.name = "graph"
    imports = {"com.microsoft": 1, "": OPSET if opset_version is None else opset_version}
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in imports.items())
    with entered(ModelAccessor(model)) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str]:
    """Make the operators of a library known to gradients that are built in this context.

    Parameters
    ----------
    custom_op_library_path : str or path
        A file that this onnxruntime loads.
    """
    path = os.fspath(custom_op_library_path)
    if not os.path.exists(path):
        raise RuntimeError(f"The library of custom operators {path!r} does not exist.")
    with refusing(f"The library of custom operators {path!r} cannot be loaded"):
        require_library(path)
    token = CUSTOM_OPERATORS.set(path)
    try:
        yield path
    finally:
        CUSTOM_OPERATORS.reset(token)
