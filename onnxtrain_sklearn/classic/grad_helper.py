"""Gradients of an ONNX graph as another ONNX graph, as in onnxcustom and experimental_experiment.

:func:`onnx_derivative` differentiates all outputs of a graph at once, or some of them. The gradient of each output is
an input of the new graph, or one. If the graph computes a loss, :func:`onnxtrain_sklearn.gradient_graph` is simpler.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence, Set
from enum import IntFlag
from functools import reduce
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._gradient.engine import checked_engine, differentiate
from .._importers.load import checked, load
from .._ir.edits import keep_outputs, read_as_input, replace_value
from .._ir.limits import require_result_loads
from .._ir.protobuf import to_proto
from .._ir.queries import dims, is_float, reaching, reads
from .._ir.shapes import infer_shapes
from .._ort import objects as runtime
from ..exceptions import ModelError, OnnxTrainError, nearest
from ..graph import GraphBuilder, copy_type

__all__ = [
    "DerivativeError",
    "DerivativeOptions",
    "OptionsTypeError",
    "onnx_derivative",
    "random_feed",
]


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
    _check_options(options, weights, loss, label, path_name)  # before the model is read, which may take long
    proto = checked(onx)
    model = load(proto)
    starts = _names(label)
    wrt = _differentiated(model.graph, weights, inputs, starts, by_loss=DerivativeOptions.Loss in options)
    if verbose:
        print(f"[onnx_derivative] {options!r} of {len(model.graph)} nodes with respect to {', '.join(wrt)}")
    chosen = checked_engine(engine)
    names = [v.name or "" for v in model.graph.outputs]
    if loss is not None and starts:
        made = gradients_from(model, starts, wrt, loss, chosen, fill=DerivativeOptions.FillGrad in options)
    elif DerivativeOptions.FillGrad in options:
        floats = [v.name or "" for v in model.graph.outputs if is_float(v)]
        made = vjp_graph(model, names, wrt, chosen, seeded=(), ones=floats)
    else:
        made = vjp_graph(model, names, wrt, chosen)
        if DerivativeOptions.KeepYieldOp in options:
            made = with_yield(made, names)
        elif DerivativeOptions.KeepOutputs not in options:
            made.graph.outputs[:] = [v for v in made.graph.outputs if v.name not in names]
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
                raise DerivativeError(f"{name}={value!r} needs the option Loss, got options={options!r}.")
        if DerivativeOptions.FillGrad in options and DerivativeOptions.KeepOutputs not in options:
            raise DerivativeError("FillGrad needs KeepOutputs: set options=KeepOutputs | FillGrad.")
        return
    if DerivativeOptions.KeepOutputs in options:
        raise DerivativeError(f"Loss keeps the outputs: leave KeepOutputs out, got {options!r}.")
    if missing := [name for name, value in given.items() if value is None]:
        raise DerivativeError(
            "The option Loss needs loss (the output whose gradient is one), label (the outputs from which gradients "
            f"start) and path_name (the file to write); missing: {missing}."
        )
    if not isinstance(loss, str):
        raise DerivativeError(f"loss must be the name of an output, got {type(loss).__name__} ({loss!r}).")
    if weights is not None:
        raise DerivativeError("The option Loss takes no weights: name them in inputs.")


def _names(given: str | Collection[str] | None) -> list[str]:
    """Return one or several names as a list; a set is sorted, to get a fixed order."""
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
    specs = list[tuple[str, np.dtype[np.generic], list[Any]]]()
    for value in inputs:
        if isinstance(value, onnx.ValueInfoProto):
            tensor = value.type.tensor_type
            shape = [d.dim_value or d.dim_param or None for d in tensor.shape.dim]
            specs.append((value.name, ir.DataType(tensor.elem_type).numpy(), shape))
        else:
            specs.append((value.name, runtime.dtype_of(value.type), list(value.shape)))
    # a name of the batch axis means the batch in other axes too
    named = {shape[0]: batch for _, _, shape in specs if shape and isinstance(shape[0], str)}
    rng, found = check_random_state(None), {}
    for name, dtype, shape in specs:
        sizes = [
            size if isinstance(size, int) and size > 0 else named.get(size, empty_dimension if i else batch)
            for i, size in enumerate(shape)
        ]
        if dtype.kind == "f":
            found[name] = np.asarray(rng.standard_normal(sizes), dtype)
        elif dtype.kind in "iub":
            found[name] = np.asarray(rng.randint(0, 2, sizes)).astype(dtype)
        else:
            raise TypeError(f"Input {name!r} is of type {dtype}; random_feed makes floats, integers and booleans.")
    return found


# Graphs of vector-Jacobian products: gradients of any number of outputs, from given gradients of these outputs.
#
# The engines differentiate a scalar. The scalar here is :math:`\sum_k \langle y_k, \bar y_k \rangle` over the outputs
# :math:`y_k`, whose gradients :math:`\bar y_k` are inputs of the graph named ``OUTPUT_grad``.


_TOTAL, _SEED = "onnxtrain/total", "onnxtrain/seed/"


def float_names(values: Sequence[ir.Value]) -> list[str]:
    """Return the names of the values that have a gradient."""
    return [v.name or "" for v in values if v.dtype is not None and v.dtype.is_floating_point()]


def require_names(names: Sequence[str], valid: Sequence[str], role: str) -> list[str]:
    """Return the unique names; raise ValueError for an invalid name, TypeError for other types."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{role} must be a list of names, got {names!r}.")
    for name in names:
        if name not in valid:
            raise ModelError(f"Unknown name {name!r} in {role}.{nearest(name, valid)}")
    if len(set(names)) < len(names):
        raise ModelError(f"{role} contains a name twice: {list(names)}.")
    return list(names)


def vjp_graph(
    model: ir.Model,
    outputs: Sequence[str],
    wrt: Sequence[str],
    engine: str,
    *,
    seeded: Sequence[str] | None = None,
    ones: Sequence[str] = (),
) -> ir.Model:
    """Return a graph of ``outputs``, then a ``NAME_grad`` for each name in ``wrt``; ``model`` is not modified.

    The gradient of each value in ``seeded``, by default each float output, is an input ``VALUE_grad``; that of each
    value in ``ones`` is one in every element. Both may name values that are not outputs.
    """
    source = model.clone()
    graph = source.graph
    named = _computed(graph)
    kept = [named[name] for name in outputs]
    given = [named[name] for name in (outputs if seeded is None else seeded)]
    differentiated = [v for v in given if is_float(v)]
    total = _total(graph, differentiated, _seeds(graph, differentiated), [named[name] for name in ones])
    graph.outputs[:] = [*kept, total]
    result = differentiate(infer_shapes(source), list(wrt), _TOTAL, engine).model
    by_name = {v.name: v for v in result.graph.outputs}
    keep_outputs(result, [by_name[name] for name in (*outputs, *(f"{name}_grad" for name in wrt))])
    # Give the seeds their final names; inner values of these names are renamed.
    graph = result.graph
    seeds = {f"{(v.name or '').removeprefix(_SEED)}_grad": v for v in graph.inputs if (v.name or "").startswith(_SEED)}
    known = {v.name for v in [*graph.inputs, *graph.initializers.values(), *graph.outputs]}
    if clash := seeds.keys() & known:
        raise ModelError(
            f"The graph has a value {min(clash)!r}, the name of the gradient of an output. Rename the value."
        )
    op = GraphBuilder(graph, prefix="vjp")
    for value in [v for node in graph.all_nodes() for v in node.outputs if v.name in seeds]:
        value.name = op.name("inner")
    for name, seed in seeds.items():
        seed.name = name
    return result


def gradients_from(
    model: ir.Model, starts: Sequence[str], wrt: Sequence[str], one: str, engine: str, *, fill: bool = False
) -> ir.Model:
    """Return the graph with the gradients of ``wrt`` after its outputs, as onnxruntime's GradientGraphBuilder does.

    The derivative starts from the computed values ``starts``. The gradient of ``one`` among them is one in every
    element. If ``one`` depends on another start, the gradient of that start comes from ``one``. Otherwise it is an
    input ``START_grad``, or, with ``fill``, one in every element.
    """
    named = _computed(model.graph)
    for name in starts:
        if name not in named:
            raise ModelError(f"The graph computes no value {name!r} to start from.{nearest(name, named)}")
        if not is_float(named[name]):
            raise ModelError(f"{name!r} is of type {named[name].dtype}; only floats have a gradient.")
    within = reaching(named[one]) if one in starts else set()
    free = [name for name in starts if name not in within]
    free = [name for name in free if not reaching(named[name]).isdisjoint(wrt)]
    ones = [name for name in starts if name == one]
    if not (free or ones):  # nothing depends on wrt: the gradients are zero
        free = [starts[0]]
    outputs = [v.name or "" for v in model.graph.outputs]
    if fill:
        return vjp_graph(model, outputs, wrt, engine, seeded=(), ones=[*ones, *free])
    return vjp_graph(model, outputs, wrt, engine, seeded=free, ones=ones)


def _computed(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the outputs of the graph and of its nodes by name."""
    return {v.name or "": v for v in [*graph.outputs, *(v for node in graph for v in node.outputs)]}


def _seeds(graph: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Add an input for the gradient of each value, under a temporary name: engines may use the final one inside."""
    seeds = [copy_type(ir.Value(name=f"{_SEED}{v.name}"), v) for v in values]
    graph.inputs.extend(seeds)
    return seeds


def _total(
    graph: ir.Graph, values: Sequence[ir.Value], seeds: Sequence[ir.Value], ones: Sequence[ir.Value]
) -> ir.Value:
    """Emit the sum of the inner products of values and seeds, and of all elements of ``ones``."""
    if not values and not ones:
        raise ModelError("No output of the graph is a float tensor, so there is nothing to differentiate.")
    op = GraphBuilder(graph, prefix="vjp")
    # Outputs of other float types are cast: their gradients have their own types again.
    dtype = next(iter([*values, *ones])).dtype or ir.DataType.FLOAT
    products = [(op.Mul(value, seed), value) for value, seed in zip(values, seeds, strict=True)]
    terms = []
    for term, value in [*products, *((value, value) for value in ones)]:
        total = term if dims(value) == [] else op.ReduceSum(term, keepdims=False)
        terms.append(total if value.dtype == dtype else op.Cast(total, to=dtype))
    total = reduce(op.Add, terms)
    # A lone scalar output is the total itself: it keeps its own name, so a node has to compute the total.
    total = total if op.emitted(total) else op.Identity(total)
    total.name, total.dtype, total.shape = _TOTAL, dtype, ir.Shape([])
    return total


def with_yield(model: ir.Model, outputs: Sequence[str]) -> ir.Model:
    """Return the graph of gradients in which a YieldOp takes the outputs and returns their gradients.

    onnxruntime-training's agent runs such a graph up to the YieldOp, returns the outputs, and continues with the
    gradients that it is given for them.
    """
    result = model.clone()
    graph = result.graph
    named = {v.name: v for v in graph.outputs}
    seeds = {v.name: v for v in graph.inputs}
    yielded = [named[name] for name in outputs]
    exact = [i for i, name in enumerate(outputs) if f"{name}_grad" not in seeds]
    replaced = [seeds[f"{name}_grad"] for name in outputs if f"{name}_grad" in seeds]
    settings = {"full_shape_outputs": [i for i in range(len(outputs)) if i not in exact]}
    if exact:
        settings["non_differentiable_outputs"] = exact
    op = GraphBuilder(graph, prefix="yield")
    given = op.emit("YieldOp", *yielded, domain="com.microsoft", outputs=len(replaced), **settings)
    for old, new in zip(replaced, given, strict=True):
        graph.inputs.remove(old)
        replace_value(op, old, new)
    graph.outputs[:] = [v for v in graph.outputs if v.name not in outputs]
    graph.sort()
    return result


def split(model: ir.Model, outputs: Sequence[str]) -> tuple[ir.Model, ir.Model, list[str]]:
    """Divide a graph of :func:`vjp_graph` into its forward and backward pass.

    Return the forward graph, the backward graph, and the names of the activations, which the forward graph returns
    after its outputs and the backward graph reads. Nothing is computed twice, so random numbers are drawn once.
    """
    backward, forward = model.clone(), model.clone()
    seeds = {f"{name}_grad" for name in outputs}
    gradients = [v for v in backward.graph.outputs if v.name not in outputs]
    border = _border(backward.graph, seeds, gradients)
    names = [v.name or "" for v in border]
    backward.graph.outputs[:] = gradients
    for value in border:
        read_as_input(backward.graph, value)
    keep_outputs(backward, gradients, inputs=True)
    computed = {v.name: v for node in forward.graph for v in node.outputs}
    named = {**computed, **{v.name: v for v in forward.graph.outputs}}
    # The forward graph is run before its caller has gradients of the outputs.
    forward.graph.inputs[:] = [v for v in forward.graph.inputs if v.name not in seeds]
    keep_outputs(forward, [named[name] for name in dict.fromkeys([*outputs, *names])])
    return forward, backward, names


def _border(graph: ir.Graph, seeds: Collection[str], gradients: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the activations: values of known type, independent of the seeds, that the backward pass reads."""
    dependent = {v for v in graph.inputs if v.name in seeds}
    backward = [node for v in gradients if (node := v.producer()) is not None]
    for node in graph:
        if not dependent.isdisjoint(reads(node)):
            dependent.update(node.outputs)
            backward.append(node)
    own = {v for node in graph for v in node.outputs} - dependent
    front = [v for node in backward for v in reads(node)]
    border: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    while front:
        value = front.pop()
        if value in seen or value not in own:
            continue
        seen.add(value)
        producer = value.producer()
        if value.type is None and producer is not None:  # an input needs a type: recompute the node
            front += reads(producer)
        else:
            border[value] = None
    return list(border)
