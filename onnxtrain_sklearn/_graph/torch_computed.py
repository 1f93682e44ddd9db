"""What PyTorch's exporter computed in advance from a parameter that the graph reads too: computed in the graph again.

A tied autoencoder reads a matrix and its transposition, a factorization machine a matrix and its squares. The exporter
folds the second into a constant: trained apart, or not at all, it would leave the first. The constant is called after
the function, and newer exporters record what it comes from; where they do not, numbers that were drawn tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import permutations
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ..exceptions import warn
from .builder import GraphBuilder
from .edits import replace_value
from .torch_program import TorchProgram, folded_from, sources_of
from .weights import array_of

Computation: TypeAlias = Callable[[GraphBuilder, ir.Value], ir.Value]

_OF_ONE_OPERAND: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "abs": ("Abs", np.abs),
    "exp": ("Exp", np.exp),
    "log": ("Log", np.log),
    "neg": ("Neg", np.negative),
    "reciprocal": ("Reciprocal", np.reciprocal),
    "relu": ("Relu", lambda x: np.maximum(x, 0)),
    "sigmoid": ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "softplus": ("Softplus", lambda x: np.logaddexp(x, 0)),
    "sqrt": ("Sqrt", np.sqrt),
    "tanh": ("Tanh", np.tanh),
}
"""Functions of PyTorch: the operator, and what it computes."""

_MOVES = frozenset({"numpy_T", "permute", "t", "transpose"})
_OTHER_SHAPES = frozenset({"flatten", "reshape", "squeeze", "unsqueeze", "view"})
_PARTS = frozenset(
    "add alias cat chunk clone detach getitem narrow select slice split split_with_sizes stack sub unbind".split()
)
_POWERS = (2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0)
_WITH_NUMBERS = frozenset({"add", "div", "mul", "rsub", "sub"})
_FUNCTION = re.compile(r"(?:.*/)?(\w+?)(?:_\d+)?")


def recompute_folded(graph: ir.Graph, program: TorchProgram) -> None:
    """Compute each such constant from its parameter, in place; warn of those that are trained otherwise than there."""
    parameters = [v for v in graph.initializers.values() if program.status(v) == "parameter" and v.uses()]
    read = {v.name or "" for v in parameters}
    folded = [v for v in graph.initializers.values() if v not in parameters and _is_folded(v, program, read)]
    op, others = GraphBuilder(graph, prefix="computed"), dict[str, list[str]]()
    for value in folded:
        sources = sources_of(value, program)
        recorded = [v for v in parameters if v.name in sources]
        found = _form_of(value, recorded, parameters) if len(sources) < 2 else None
        if found is not None:
            source, emit = found
            op.dtype = value.dtype or op.dtype
            graph.initializers.pop(value.name or "")
            replace_value(op, value, emit(op, source))
        elif sources and (recorded or not _trains_as_its_sources(value, program)):
            others[value.name or ""] = sources
    if folded:
        graph.sort()
    if others:
        _warn_of_others(others)


def _is_folded(value: ir.Value, program: TorchProgram, parameters: AbstractSet[str]) -> bool:
    """Whether the exporter made a constant of floats, which no input of the graph names and no output returns.

    The calls behind it name it. Where it is a result within a call, the file says that a parameter is its source.
    """
    floats = value.dtype is not None and value.dtype.is_floating_point() and value.const_value is not None
    free = not value.is_graph_output() and not value.is_graph_input()
    named = any(value.name in program.folded_names(node) for node, _ in value.uses())
    within = not parameters.isdisjoint(sources_of(value, program)) and not _trains_as_its_sources(value, program)
    return floats and free and (named or within)


def _form_of(
    value: ir.Value, recorded: Sequence[ir.Value], parameters: Sequence[ir.Value]
) -> tuple[ir.Value, Computation] | None:
    """Return the parameter that a constant is computed from, and what computes it."""
    result, function = array_of(value), _FUNCTION.fullmatch(value.name or "")
    if function is None:
        return None
    for source in recorded or parameters:
        if _may_give(source, value) and (recorded or _is_varied(array_of(source))):
            with np.errstate(all="ignore"):
                for computed, emit in _forms_of(function[1], _widened(array_of(source)), _widened(result)):
                    if _are_equal(computed, result):
                        return source, emit
    return None


def _may_give(source: ir.Value, value: ir.Value) -> bool:
    a, b = source.const_value, value.const_value
    return a is not None and b is not None and (a.size, a.dtype) == (b.size, b.dtype)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _is_varied(array: np.ndarray) -> bool:
    """Whether the numbers of an array are as many as those of a random initialization or training."""
    return np.unique(array).size > max(2, array.size // 2)


def _are_equal(computed: np.ndarray, result: np.ndarray) -> bool:
    if computed.shape != result.shape or not np.isfinite(computed).all():
        return False
    return np.allclose(computed, result, rtol=1e-5, atol=1e-6 * float(np.abs(computed).max(initial=0)))


def _operator(kind: str, *further: float | np.ndarray) -> Computation:
    return lambda op, value: op.emit(kind, value, *further)[0]


def _transposition(order: tuple[int, ...]) -> Computation:
    return lambda op, value: op.Transpose(value, perm=order)


def _shares_along(kind: str, axis: int) -> Computation:
    return lambda op, value: op.emit(kind, value, axis=axis)[0]


def _forms_of(function: str, x: np.ndarray, result: np.ndarray) -> Iterator[tuple[np.ndarray, Computation]]:
    """Yield what a function of PyTorch may compute from numbers, and its operators."""
    if function in _OF_ONE_OPERAND:
        kind, compute = _OF_ONE_OPERAND[function]
        yield compute(x), _operator(kind)
    elif function == "pow":
        yield from ((x**power, _operator("Pow", power)) for power in _POWERS)
    elif function in _MOVES and x.ndim <= 4:
        orders = list(permutations(range(x.ndim)))[1:]
        yield from ((x.transpose(order), _transposition(order)) for order in orders)
    elif function in _OTHER_SHAPES:
        yield x.reshape(result.shape), _operator("Reshape", np.array(result.shape, np.int64))
    elif function in ("softmax", "log_softmax"):
        yield from _softmaxes_of(function, x)
    elif function in _WITH_NUMBERS and x.shape == result.shape and _is_varied(x) and _is_varied(result):
        yield from _products_and_sums_of(function, x, result)


def _softmaxes_of(function: str, x: np.ndarray) -> Iterator[tuple[np.ndarray, Computation]]:
    for axis in range(x.ndim):
        shares = np.exp(x - x.max(axis, keepdims=True))
        shares = shares / shares.sum(axis, keepdims=True)
        is_plain = function == "softmax"
        yield shares if is_plain else np.log(shares), _shares_along("Softmax" if is_plain else "LogSoftmax", axis)


def _products_and_sums_of(function: str, x: np.ndarray, result: np.ndarray) -> Iterator[tuple[np.ndarray, Computation]]:
    """Yield the square, and the product and sum with numbers, which the largest and smallest tell."""
    if function == "mul":
        yield x * x, lambda op, value: op.Mul(value, value)
    high, low = int(np.argmax(x)), int(np.argmin(x))
    factor = float((result.flat[high] - result.flat[low]) / (x.flat[high] - x.flat[low]))
    summand = float(result.flat[high] - factor * x.flat[high])
    yield x * factor + summand, lambda op, value: op.Add(op.Mul(value, factor), summand)


def _trains_as_its_sources(value: ir.Value, program: TorchProgram) -> bool:
    """Whether a step changes a result as steps of its parameters would: a part, a sum, another order of numbers."""
    results = {value.name or "", *folded_from(value)}.difference(program.targets.values())
    calls = {name.rpartition("/")[2] for name in results}
    found = {match[1] for name in calls if (match := _FUNCTION.fullmatch(name)) is not None}
    is_lookup = "embedding" in found and _has_distinct_rows(array_of(value))
    return found <= _MOVES | _OTHER_SHAPES | _PARTS | {"val"} | ({"arange", "embedding"} if is_lookup else set[str]())


def _has_distinct_rows(array: np.ndarray) -> bool:
    """Whether an embedding of constant positions reads each row of its table once at most."""
    rows = array.reshape(-1, array.shape[-1])
    return len(np.unique(rows, axis=0)) == len(rows)


def _warn_of_others(others: Mapping[str, Sequence[str]]) -> None:
    several = ", ".join(f"{name!r} (from {', '.join(map(repr, sources))})" for name, sources in others.items())
    warn(
        f"PyTorch's exporter computed results of parameters in advance: {several}. The results are trained in place of "
        f"the parameters, which PyTorch would train. To train these, export with "
        f"torch.onnx.export(..., optimize=False)."
    )
