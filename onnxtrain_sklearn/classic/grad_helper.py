"""Gradients of an ONNX graph as another ONNX graph, as in onnxcustom and experimental_experiment.

:func:`onnx_derivative` differentiates all outputs of a graph at once; the gradient of each output is an input of the
new graph, or one. If the graph computes a loss, :func:`onnxtrain_sklearn.gradient_graph` is more direct.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntFlag
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._gradient.engine import choose_engine
from .._graph.protobuf import checked, load, to_proto
from .._graph.survival import require_result_loads
from .._runtime import objects as runtime
from .._runtime.distributions import version
from ..exceptions import ModelError, RuntimeNotFoundError
from .vjp import float_names, require_names, vjp_graph, with_yield


class DerivativeOptions(IntFlag):
    """Options of :func:`onnx_derivative`; they combine with ``|``.

    Attributes
    ----------
    Zero
        The gradients; the gradient of each output is an input ``OUTPUT_grad``.
    KeepYieldOp
        The graph that onnxruntime-training's agent runs: its operator YieldOp takes the outputs and returns their
        gradients. It excludes all other options and needs onnxruntime-training.
    KeepOutputs
        Also the outputs of the graph, before the gradients.
    FillGrad
        The gradient of each output is one in every element instead of an input.
    Loss
        Gradients of a loss, which is an output of the graph and the first output of the result.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 8


def onnx_derivative(
    onx: onnx.ModelProto | bytes | str | os.PathLike[str],
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | Sequence[str] | None = None,
    path_name: str | os.PathLike[str] | None = None,
    verbose: int = 0,
    *,
    engine: str = "auto",
) -> onnx.ModelProto:
    """Return a graph that computes the gradients with respect to weights and inputs.

    Parameters
    ----------
    onx : onnx.ModelProto, bytes or path
    weights : list of str, default=None
        Initializers with respect to which gradients are computed; None: all of floating-point type.
    inputs : list of str, default=None
        Inputs with respect to which gradients are computed; None: all of floating-point type except ``label``.
    options : DerivativeOptions, default=DerivativeOptions.Zero
    loss : str, default=None
        With the option Loss, the name of the loss, a scalar output.
    label : str or list of str, default=None
        With the option Loss, the inputs that hold the targets.
    path_name : str or path, default=None
        With the option Loss, a file to which the result is written too.
    verbose : int, default=0
        Whether to print what is differentiated.
    engine : {"auto", "ort-training", "portable"}, default="auto"
        The gradient engine.

    Returns
    -------
    onnx.ModelProto
        Its outputs are ``NAME_grad`` for each input, then for each weight. The weights are inputs too, with the
        initializers as their defaults.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid, or does not apply to these options.
    UnsupportedOperatorError
        An operator on the path has no proven gradient.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic.grad_helper import DerivativeOptions, onnx_derivative
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     product (float[N, 2] X) => (float[N, 2] Y) <float[2] W = {1, -2}> { Y = Mul(X, W) }''')
    >>> result = onnx_derivative(model)
    >>> [i.name for i in result.graph.input], [o.name for o in result.graph.output]
    (['X', 'Y_grad', 'W'], ['X_grad', 'W_grad'])
    >>> both = DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad
    >>> result = onnx_derivative(model, inputs=[], options=both)
    >>> [i.name for i in result.graph.input], [o.name for o in result.graph.output]
    (['X', 'W'], ['Y', 'W_grad'])
    """
    _check_options(options, loss, label, path_name)
    proto = checked(onx)
    model = load(proto)
    labels = _labels(model.graph, label)
    floats = float_names(list(model.graph.initializers.values()))
    names = [n for n in float_names(model.graph.inputs) if n not in labels]
    chosen_inputs = names if inputs is None else require_names(inputs, names, "inputs")
    chosen_weights = floats if weights is None else require_names(weights, floats, "weights")
    wrt = [*chosen_inputs, *chosen_weights]
    if not wrt:
        raise ModelError("Neither inputs nor weights are left to differentiate with respect to.")
    if verbose:
        print(f"[onnx_derivative] {options!r} of {len(model.graph)} nodes with respect to {', '.join(wrt)}")
    result = to_proto(_derivative(model, wrt, options, loss, choose_engine(engine)))
    require_result_loads(result, proto)
    if path_name is not None:
        onnx.save(result, path_name)
    return result


def _check_options(options: object, loss: object, label: object, path_name: object) -> None:
    """Raise if an argument is invalid, or does not apply to these options."""
    if not isinstance(options, DerivativeOptions):
        raise TypeError(f"options must be DerivativeOptions, got {type(options).__name__} ({options!r}).")
    if DerivativeOptions.KeepYieldOp in options and options != DerivativeOptions.KeepYieldOp:
        raise ValueError(f"KeepYieldOp combines with no other option, got {options!r}.")
    if options == DerivativeOptions.KeepYieldOp and not runtime.has_training_agent():
        raise RuntimeNotFoundError(
            f"KeepYieldOp needs the operator YieldOp of onnxruntime-training, which onnxruntime {version()} lacks. "
            "Install onnxtrain-sklearn[ort-training], or use another option: all others run on any onnxruntime."
        )
    given = {"loss": loss, "label": label, "path_name": path_name}
    if DerivativeOptions.Loss in options:
        missing = [name for name in ("loss", "label") if given[name] is None]
        if missing:
            raise ValueError(f"The option Loss needs loss and label: the output and the targets; {missing} missing.")
        return
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r} has a meaning with the option Loss only, got {options!r}.")


def _labels(graph: ir.Graph, label: str | Sequence[str] | None) -> list[str]:
    if label is None:
        return []
    return require_names([label] if isinstance(label, str) else label, [v.name or "" for v in graph.inputs], "label")


def _derivative(
    model: ir.Model, wrt: Sequence[str], options: DerivativeOptions, loss: str | None, engine: str
) -> ir.Model:
    names = [v.name or "" for v in model.graph.outputs]
    differentiated = names if loss is None else require_names([loss], names, "loss")
    if loss is not None:
        _require_scalar(next(v for v in model.graph.outputs if v.name == loss))
    keep_all = DerivativeOptions.KeepOutputs in options
    outputs = list(dict.fromkeys([*differentiated, *(names if keep_all else ())]))
    ones = bool(options & (DerivativeOptions.FillGrad | DerivativeOptions.Loss))
    result = vjp_graph(model, outputs, wrt, engine, ones=ones, of=differentiated)
    if options == DerivativeOptions.KeepYieldOp:
        result = with_yield(result, outputs)
    elif loss is None and not keep_all:
        result.graph.outputs[:] = [v for v in result.graph.outputs if v.name not in names]
    graph = result.graph
    graph.inputs.extend(graph.initializers[name] for name in wrt if name in graph.initializers)
    return result


def _require_scalar(value: ir.Value) -> None:
    if value.shape is None or len(value.shape):
        raise ModelError(f"loss must be a scalar, but {value.name!r} has shape {value.shape}. Reduce it first.")


def random_feed(inputs: Iterable[Any], batch: int = 10, empty_dimension: int = 1) -> dict[str, np.ndarray]:
    """Return random arrays for the inputs of a graph.

    Parameters
    ----------
    inputs : list
        The inputs as ``session.get_inputs()`` or ``model.graph.input`` return them.
    batch : int, default=10
        Size of a first axis that is not fixed.
    empty_dimension : int, default=1
        Size of other axes that are not fixed.

    Returns
    -------
    dict of str to ndarray
        Normally distributed floats, integers 0 and 1, booleans; seeded by ``numpy.random.seed``.

    Examples
    --------
    >>> import onnx.parser
    >>> from onnxtrain_sklearn.classic.grad_helper import random_feed
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     f (float[N, 2] X) => (float[N, 2] Y) { Y = Relu(X) }''')
    >>> random_feed(model.graph.input, batch=3)["X"].shape
    (3, 2)
    """
    specs = [_spec(value) for value in inputs]
    sizes = {shape[0]: batch for _, _, shape in specs if shape and isinstance(shape[0], str)}
    rng = check_random_state(None)
    return {
        name: _random(rng, dtype, _chosen_shape(shape, sizes, batch, empty_dimension)) for name, dtype, shape in specs
    }


def _spec(value: Any) -> tuple[str, np.dtype[np.generic], list[int | str | None]]:
    """Return name, type and dimensions of an input of a session or of a ModelProto."""
    if not isinstance(value, onnx.ValueInfoProto):
        return value.name, runtime.dtype_of(value.type), list(value.shape)
    tensor = value.type.tensor_type
    return (
        value.name,
        ir.DataType(tensor.elem_type).numpy(),
        [d.dim_value or d.dim_param or None for d in tensor.shape.dim],
    )


def _chosen_shape(
    shape: Sequence[int | str | None], named: Mapping[Any, int], batch: int, empty_dimension: int
) -> tuple[int, ...]:
    found = []
    for i, size in enumerate(shape):
        known = size if isinstance(size, int) and size > 0 else None
        found.append(known or named.get(size, batch if i == 0 else empty_dimension))
    return tuple(found)


def _random(rng: np.random.RandomState, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape), dtype)
    if dtype.kind in "iub":
        return np.asarray(rng.randint(0, 2, shape)).astype(dtype)
    raise TypeError(f"There are no random values of type {dtype}.")
