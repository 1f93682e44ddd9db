"""Gradients of an ONNX graph as another ONNX graph, as in onnxcustom and experimental_experiment.

:func:`onnx_derivative` differentiates all outputs of a graph at once, or some; the gradient of each output is an input
of the new graph, or one. If the graph computes a loss, :func:`onnxtrain_sklearn.gradient_graph` is more direct.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from enum import IntFlag
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._gradient.engine import choose_engine
from .._graph.protobuf import checked, load, to_proto
from .._graph.queries import is_float
from .._graph.survival import require_result_loads
from .._runtime import objects as runtime
from ..exceptions import ModelError, OnnxTrainError
from .vjp import float_names, gradients_from, require_names, vjp_graph, with_yield


class DerivativeOptions(IntFlag):
    """Options of :func:`onnx_derivative`; they combine with ``|``.

    Attributes
    ----------
    Zero
        The gradients; the gradient of each output is an input ``OUTPUT_grad``.
    KeepYieldOp
        The graph that onnxruntime-training's agent runs: its operator YieldOp takes the outputs and returns their
        gradients. It excludes all other options; only onnxruntime-training runs the graph.
    KeepOutputs
        Also the outputs of the graph, before the gradients.
    FillGrad
        The gradient of each output is one in every element instead of an input. It needs KeepOutputs or Loss.
    Loss
        The outputs, then gradients that start from the outputs named ``label``.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 8


class DerivativeError(OnnxTrainError, AssertionError, ValueError):
    """The arguments of :func:`onnx_derivative` do not fit its options."""


class OptionsTypeError(OnnxTrainError, AssertionError, TypeError):
    """The options of :func:`onnx_derivative` are not DerivativeOptions."""


def onnx_derivative(
    onx: onnx.ModelProto | bytes | str | os.PathLike[str],
    weights: Sequence[str] | None = None,
    inputs: str | Collection[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | Collection[str] | None = None,
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
        Initializers with respect to which gradients are computed; None: all of floating-point type. The option Loss
        takes none: name them in ``inputs``.
    inputs : str or list of str, default=None
        Inputs with respect to which gradients are computed, with the option Loss also weights; None: all inputs of
        floating-point type.
    options : DerivativeOptions, default=DerivativeOptions.Zero
    loss : str, default=None
        With the option Loss, the output whose gradient is one in every element, if ``label`` names it.
    label : str or list of str, default=None
        With the option Loss, the outputs from which the gradient starts, usually the loss. The gradient of another
        output than ``loss`` is an input ``OUTPUT_grad``, unless ``loss`` is computed from that output.
    path_name : str or path, default=None
        With the option Loss, the file to which the result is written too.
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
        An argument is invalid. If it does not fit the options, the error is an AssertionError too.
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
    _check_options(options, weights, loss, label, path_name)
    proto = checked(onx)
    model = load(proto)
    starts = _names(label)
    wrt = _differentiated(model.graph, weights, inputs, starts, by_loss=DerivativeOptions.Loss in options)
    if verbose:
        print(f"[onnx_derivative] {options!r} of {len(model.graph)} nodes with respect to {', '.join(wrt)}")
    chosen = choose_engine(engine)
    if loss is not None and starts:
        made = gradients_from(model, starts, wrt, loss, chosen, fill=DerivativeOptions.FillGrad in options)
    else:
        made = _derivative(model, wrt, options, chosen)
    graph = made.graph
    graph.inputs.extend(graph.initializers[name] for name in wrt if name in graph.initializers)
    result = to_proto(made)
    if options != DerivativeOptions.KeepYieldOp or runtime.has_training_agent():
        require_result_loads(result, proto)
    if path_name is not None:
        onnx.save(result, path_name)
    return result


def _check_options(options: object, weights: object, loss: object, label: object, path_name: object) -> None:
    """Raise if an argument does not fit the options."""
    if not isinstance(options, DerivativeOptions):
        raise OptionsTypeError(f"options must be DerivativeOptions, got {type(options).__name__} ({options!r}).")
    if DerivativeOptions.KeepYieldOp in options and options != DerivativeOptions.KeepYieldOp:
        raise DerivativeError(f"KeepYieldOp combines with no other option, got {options!r}.")
    given = {"loss": loss, "label": label, "path_name": path_name}
    if DerivativeOptions.Loss not in options:
        for name, value in given.items():
            if value is not None:
                raise DerivativeError(f"{name}={value!r} has a meaning with the option Loss only, got {options!r}.")
        if DerivativeOptions.FillGrad in options and DerivativeOptions.KeepOutputs not in options:
            raise DerivativeError("FillGrad needs KeepOutputs: set options=KeepOutputs | FillGrad.")
        return
    if DerivativeOptions.KeepOutputs in options:
        raise DerivativeError(f"Loss keeps the outputs: leave KeepOutputs out, got {options!r}.")
    if missing := [name for name, value in given.items() if value is None]:
        raise DerivativeError(
            "The option Loss needs loss and label, the output whose gradient is one and the outputs to start from, "
            f"and path_name, the file to write; {missing} missing."
        )
    if not isinstance(loss, str):
        raise DerivativeError(f"loss must be the name of an output, got {type(loss).__name__} ({loss!r}).")
    if weights is not None:
        raise DerivativeError("The option Loss takes no weights: name them in inputs.")


def _names(given: str | Collection[str] | None) -> list[str]:
    """Return one name, or several without an order in a fixed one, as a list."""
    if given is None:
        return []
    if isinstance(given, str):
        return [given]
    return sorted(given) if isinstance(given, Set) else list(given)


def _differentiated(
    graph: ir.Graph,
    weights: Sequence[str] | None,
    inputs: str | Collection[str] | None,
    starts: Sequence[str],
    *,
    by_loss: bool,
) -> list[str]:
    """Return the names of the inputs and weights with respect to which gradients are computed."""
    floats, names = (float_names(list(values)) for values in (graph.initializers.values(), graph.inputs))
    if by_loss:
        weights = []
        wrt = names if inputs is None else require_names(_names(inputs), [*names, *floats], "inputs")
        wrt = [name for name in wrt if name not in starts]
    else:
        wrt = names if inputs is None else require_names(_names(inputs), names, "inputs")
    wrt = [*wrt, *(floats if weights is None else require_names(weights, floats, "weights"))]
    if not wrt:
        raise ModelError("Neither inputs nor weights are left to differentiate with respect to.")
    return wrt


def _derivative(model: ir.Model, wrt: Sequence[str], options: DerivativeOptions, engine: str) -> ir.Model:
    names = [v.name or "" for v in model.graph.outputs]
    if DerivativeOptions.FillGrad in options:
        floats = [v.name or "" for v in model.graph.outputs if is_float(v)]
        return vjp_graph(model, names, wrt, engine, seeded=(), ones=floats)
    result = vjp_graph(model, names, wrt, engine)
    if DerivativeOptions.KeepYieldOp in options:
        return with_yield(result, names)
    if DerivativeOptions.KeepOutputs not in options:
        result.graph.outputs[:] = [v for v in result.graph.outputs if v.name not in names]
    return result


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
