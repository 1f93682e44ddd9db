"""Blocks: subgraphs that are composed by the names of their outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from ..._graph.links import Link, Task
from ...exceptions import ModelError, nearest
from .accessor import current_accessor
from .block_loss import BlockLoss

_DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 3}
"""Additional operator domains, and the imported version of each."""


class UnknownValueError(ModelError, LookupError):
    """The graph has no value of this name, or not one whose type is known."""


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
    """Whether a node of the model reads or computes ``name``."""
    return any(name in node.input or name in node.output for node in current_accessor().model.graph.node)


def declared(name: str) -> onnx.ValueInfoProto:
    """Return a copy of the graph input or output ``name``."""
    graph = current_accessor().model.graph
    values = {value.name: value for value in (*graph.output, *graph.input)}
    if name not in values:
        raise UnknownValueError(f"The graph has no input or output {name!r}.{nearest(name, values)}")
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(values[name])
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
        names, domain = [label_encoder_input_name], "ai.onnx.ml"
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
