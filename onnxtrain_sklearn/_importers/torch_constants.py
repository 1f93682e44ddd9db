"""Recover parameters from constants that PyTorch's exporter computed in advance.

:func:`recompute_folded` computes folded constants from their parameters again, :func:`separate_folded` gives equal
results initializers of their own, and :func:`restore_bounds` makes bounds parameters again.

For example, a tied autoencoder reads a matrix and its transpose, and a factorization machine a matrix and its squares.
The exporter folds the transpose or the squares into a constant, which would be trained separately from the matrix, or
not at all. The constant is named after the function, and newer exporters record the parameters that it comes from. In
other files, a parameter of random numbers is searched that gives the constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._ir.edits import copy_initializer, replace_node, replace_value
from .._ir.queries import operand
from .._model.roles import EXPORTER
from .._model.weights import array_of, is_setting
from ..exceptions import warn
from ..graph import GraphBuilder, names_of
from .torch_program import (
    PRODUCER,
    RELU6,
    TorchProgram,
    call_of,
    clip_bounds,
    folded_from,
    is_made_up,
    names_read,
    scope_of,
    sources_of,
)

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
"""For each function of PyTorch, the ONNX operator and the NumPy function."""

_MOVES = frozenset({"numpy_T", "permute", "t", "transpose"})
_OTHER_SHAPES = frozenset({"flatten", "reshape", "squeeze", "unsqueeze", "view"})
_PARTS = frozenset(
    "add alias cat chunk clone detach getitem narrow select slice split split_with_sizes stack sub unbind".split()
)
_POWERS = (2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0)
_WITH_NUMBERS = frozenset({"add", "div", "mul", "rsub", "sub"})
_FUNCTION = re.compile(r"(?:.*/)?(\w+?)(?:_\d+)?")


def recompute_folded(graph: ir.Graph, program: TorchProgram) -> bool:
    """Compute each folded constant from its parameter, in place; warn if training would differ from PyTorch.

    A folded constant holds floats, and the recorded calls that read it name it. If it is an intermediate result of a
    call, it counts as folded only if the file records a parameter as its source.
    """
    parameters = [v for v in graph.initializers.values() if program.status(v) == "parameter" and v.uses()]
    read = {v.name or "" for v in parameters}
    folded = []
    for value in graph.initializers.values():
        if value in parameters or not _holds_floats(value) or value.const_value is None:
            continue
        if value.is_graph_output() or value.is_graph_input():
            continue
        named = any(value.name in program.folded_names(node) for node, _ in value.uses())
        if named or (not read.isdisjoint(sources_of(value, program)) and not _trains_as_its_sources(value, program)):
            folded.append(value)
    op = GraphBuilder(graph, prefix="computed")
    others = dict[str, list[str]]()
    recomputed = False
    for value in folded:
        sources = sources_of(value, program)
        recorded = [v for v in parameters if v.name in sources]
        found = _form_of(value, recorded, parameters) if len(sources) < 2 else None
        if found is not None:
            source, emit = found
            op.dtype = value.dtype or op.dtype
            graph.initializers.pop(value.name or "")
            replace_value(op, value, emit(op, source))
            recomputed = True
        elif sources and (recorded or not _trains_as_its_sources(value, program)):
            others[value.name or ""] = sources
    if folded:
        graph.sort()
    if others:
        several = ", ".join(f"{name!r} (from {', '.join(map(repr, sources))})" for name, sources in others.items())
        warn(
            f"PyTorch's exporter computed results of parameters in advance: {several}. The results are trained in "
            f"place of the parameters, which PyTorch would train. To train these, export with "
            f"torch.onnx.export(..., optimize=False)."
        )
    return recomputed


def _form_of(
    value: ir.Value, recorded: Sequence[ir.Value], parameters: Sequence[ir.Value]
) -> tuple[ir.Value, Computation] | None:
    """Return the parameter that a constant is computed from, and the function that emits the computation.

    Without recorded sources, only ``parameters`` with random or trained numbers are tried: others match by chance.
    """
    result = array_of(value)
    function = _FUNCTION.fullmatch(value.name or "")
    own = value.const_value
    if function is None or own is None:
        return None
    for source in recorded or parameters:
        held = source.const_value
        if held is None or (held.size, held.dtype) != (own.size, own.dtype):
            continue
        if recorded or _is_varied(array_of(source)):
            with np.errstate(all="ignore"):
                for computed, emit in _forms_of(function[1], _widened(array_of(source)), _widened(result)):
                    if _are_equal(computed, result):
                        return source, emit
    return None


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _is_varied(array: np.ndarray) -> bool:
    """Return True if an array has as many distinct numbers as random initialization or training gives."""
    return np.unique(array).size > max(2, array.size // 2)


def _are_equal(computed: np.ndarray, result: np.ndarray) -> bool:
    if computed.shape != result.shape or not np.isfinite(computed).all():
        return False
    return np.allclose(computed, result, rtol=1e-5, atol=1e-6 * float(np.abs(computed).max(initial=0)))


def _operator(kind: str, *further: float | np.ndarray, **attributes: Any) -> Computation:
    return lambda op, value: op.emit(kind, value, *further, **attributes)[0]


def _forms_of(function: str, x: np.ndarray, result: np.ndarray) -> Iterator[tuple[np.ndarray, Computation]]:
    """Yield arrays that ``function`` may compute from ``x`` to give ``result``, with functions that emit operators."""
    if function in _OF_ONE_OPERAND:
        kind, compute = _OF_ONE_OPERAND[function]
        yield compute(x), _operator(kind)
    elif function == "pow":
        yield from ((x**power, _operator("Pow", power)) for power in _POWERS)
    elif function in _MOVES and x.ndim <= 4:
        for order in list(permutations(range(x.ndim)))[1:]:
            yield x.transpose(order), _operator("Transpose", perm=order)
    elif function in _OTHER_SHAPES:
        yield x.reshape(result.shape), _operator("Reshape", np.array(result.shape, np.int64))
    elif function in ("softmax", "log_softmax"):
        is_plain = function == "softmax"
        for axis in range(x.ndim):
            shares = np.exp(x - x.max(axis, keepdims=True))
            shares = shares / shares.sum(axis, keepdims=True)
            kind = "Softmax" if is_plain else "LogSoftmax"
            yield shares if is_plain else np.log(shares), _operator(kind, axis=axis)
    elif function in _WITH_NUMBERS and x.shape == result.shape and _is_varied(x) and _is_varied(result):
        if function == "mul":
            yield x * x, lambda op, value: op.Mul(value, value)
        # Try ``factor * x + shift``: the largest and the smallest element determine factor and shift.
        high, low = int(np.argmax(x)), int(np.argmin(x))
        factor = float((result.flat[high] - result.flat[low]) / (x.flat[high] - x.flat[low]))
        summand = float(result.flat[high] - factor * x.flat[high])
        yield x * factor + summand, lambda op, value: op.Add(op.Mul(value, factor), summand)


def _trains_as_its_sources(value: ir.Value, program: TorchProgram) -> bool:
    """Return True if training a folded result equals training its parameters: a part, a sum or a reordering of them."""
    results = {value.name or "", *folded_from(value)}.difference(program.targets.values())
    calls = {name.rpartition("/")[2] for name in results}
    found = {match[1] for name in calls if (match := _FUNCTION.fullmatch(name)) is not None}
    is_lookup = False
    if "embedding" in found:  # folded lookups of constant indices: a row that is read twice would be trained twice
        rows = array_of(value).reshape(-1, array_of(value).shape[-1])
        is_lookup = len(np.unique(rows, axis=0)) == len(rows)
    return found <= _MOVES | _OTHER_SHAPES | _PARTS | {"val"} | ({"arange", "embedding"} if is_lookup else set[str]())


# Folded results get an initializer each, even if their numbers are equal.
#
# The exporter folds ``1 + weight`` of a normalization, or the reshaped factor of a layer scale, into a constant, and
# merges equal constants into one initializer. In a freshly initialized network they are equal, and would stay equal in
# training. The calls that read them still name the folded results. Two names are two parameters if different modules
# read them, or if one module has as many parameters as names. (A module that is called twice folds one parameter
# twice.) The signature lists the parameters of a module with two paths twice, but all calls read those of one path.


Use = tuple[ir.Node, int]
Key = tuple[str, str]
"""The module that reads a folded result, and the name of the result; "" for all results of the module."""


def separate_folded(graph: ir.Graph, program: TorchProgram) -> bool:
    """Give each folded result an initializer of its own, in place; indistinguishable results keep one."""
    folded = [v for v in graph.initializers.values() if program.status(v) == "folded" and _holds_floats(v)]
    aliases = _aliases(graph, program) if folded else {}
    uses = {value: list(_known_uses(value, program, aliases)) for value in folded}

    # A module keeps one initializer if the number of its folded results is not that of its unread parameters, counted
    # with or without those of inner modules.
    names: dict[str, set[str]] = {}
    for module, name in (key for found in uses.values() for key, _ in found):
        names.setdefault(module, set()).add(name)
    ambiguous = set()
    for module, own in names.items():
        unread = program.unseen_within(module)
        depth = module.count(".") + 1 if module else 0
        if len(own) not in (len(unread), sum(name.count(".") == depth for name in unread)):
            ambiguous.add(module)

    separated = False
    for value, found in uses.items():
        readers: dict[Key, list[Use]] = {}
        for (module, name), use in found:
            readers.setdefault((module, "" if module in ambiguous else name), []).append(use)
        if value.const_value is None or value.is_graph_output():
            continue
        array = array_of(value)
        if array.size != 1 and np.unique(array).size == array.size:
            continue  # random numbers are equal only if the modules share the parameter
        for (module, name), own_uses in list(readers.items())[1:]:
            wanted = f"{module}/{name or value.name}" if module else name
            copy = copy_initializer(graph, value, names_of(graph).free(wanted))
            for node, index in own_uses:
                node.replace_input_with(index, copy)
            separated = True
    return separated


def _holds_floats(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _known_uses(value: ir.Value, program: TorchProgram, aliases: Mapping[str, str]) -> Iterator[tuple[Key, Use]]:
    """Yield the readers that name one folded result of a module that has an unread parameter."""
    is_number = value.const_value is not None and value.const_value.size == 1
    for node, index in value.uses():
        # Find the path under which the parameters of the module, or of an outer module, are read.
        module = outer = called_module(node)
        inner = ""
        while outer:
            if outer in aliases:
                module = aliases[outer] + inner
                break
            outer, _, last = outer.rpartition(".")
            inner = f".{last}{inner}"
        call, names = call_of(node), program.folded_names(node)
        # A single number may be a literal argument of the call.
        is_literal = is_number and call is not None and any(not a.startswith("%") for a in call.arguments)
        if len(names) == 1 and program.unseen_within(module) and not is_literal:
            yield (module, names[0]), (node, index)


def called_module(node: ir.Node) -> str:
    """Return the path of the module that made the call of ``node``, without the suffixes of repeated calls."""
    return ".".join(part.partition("@")[0] for part in scope_of(node).split("."))


def _aliases(graph: ir.Graph, program: TorchProgram) -> dict[str, str]:
    """Map second paths of a module to the path under which all calls read its parameters.

    If this shows that the outer modules of the two paths are the same too, their paths are included, unless a call
    reads a parameter under the second path.
    """
    unseen = set(program.unseen)
    read = set(program.targets.values()) - unseen
    found: dict[str, str] = {}
    for node in graph:
        called = called_module(node)
        for name in names_read(node):
            owner, _, leaf = program.targets.get(name, "").rpartition(".")
            if not owner or owner == called or f"{called}.{leaf}" not in unseen:
                continue
            module = called
            while module and owner and not any(other.startswith(f"{module}.") for other in read):
                found[module] = owner
                (module, _, inner), (owner, _, part) = module.rpartition("."), owner.rpartition(".")
                if inner != part:
                    break
    return found


# Bounds that are parameters of a PyTorch module: ``torch.clamp(x, self.low, self.high)`` and the like.
#
# The newer exporter folds such bounds into constants of a Clip, a Max or a Min, whose recorded call still names the
# parameters. They become parameters again, and a Clip becomes a Max and a Min, which have gradients with respect to the
# bounds. A bound whose source is not recorded stays constant, with a warning. So do all bounds in files of the older
# exporter, which records nothing.


_BOUNDING = frozenset({"Clip", "Max", "Min"})
_LOW, _HIGH = 1, 2
"""The positions of the bounds of a Clip."""

_ARGUMENTS: dict[str, dict[int, tuple[int, ...]]] = {
    "clamp": {_LOW: (1,), _HIGH: (2,)},
    "clamp_max": {_HIGH: (1,)},
    "clamp_min": {_LOW: (1,)},
    "maximum": {_LOW: (0, 1)},
    "minimum": {_HIGH: (0, 1)},
}
"""For each function of PyTorch, the possible positions of the lower and the upper bound among its arguments."""

_CLASSIC_FOLDED = re.compile(r"onnx::(?:Clip|Max|Min)_\d+")
_OF_ACTIVATIONS = frozenset({RELU6, (-1.0, 1.0), (0.0, 1.0), (0.0, None)})


def restore_bounds(graph: ir.Graph, program: TorchProgram) -> bool:
    """Restore bounds that are parameters of the module, in place; warn of bounds that may be parameters."""
    unclear: list[str] = []
    restored = False
    for node in _bounding_nodes(graph):
        for index, side in _bounds_of(node):
            value = node.inputs[index]
            named = _arguments(node, side)
            folded = program.folded_names(node)
            assert value is not None
            parameters = [name for name in named or () if program.kinds.get(name) == "PARAMETER"]
            target = program.targets.get(parameters[0]) if len(parameters) == 1 else None
            if target is not None:
                restored = _read_parameter(graph, node, index, target) or restored
                continue
            # The bound may come from a parameter that no call reads. ``named`` is None inside another call.
            possible = bool(folded) if named is None else any(name in folded for name in named)
            if possible and is_setting(array_of(value), node, index) and program.unseen_within(scope_of(node)):
                unclear.append(value.name or "")
        if node.op_type == "Clip" and any(program.status(x) == "parameter" for x in node.inputs[1:] if x is not None):
            op = GraphBuilder(graph, prefix="bounded")
            result = node.inputs[0]
            assert result is not None
            op.dtype = result.dtype or op.dtype
            for kind, bound in (("Max", operand(node, _LOW)), ("Min", operand(node, _HIGH))):
                if bound is not None:
                    result = op.emit(kind, result, bound)[0]
                    result.producer().metadata_props.update(node.metadata_props)  # type: ignore[union-attr]
            replace_node(op, node, [result])
            graph.sort()
            restored = True
    if unclear:
        _warn_of_bounds(unclear, "optimize=False")
    return restored


def warn_of_unrecorded_bounds(graph: ir.Graph) -> None:
    """Warn of bounds that may be parameters, in a file of PyTorch that records none."""
    if graph.meta.get(EXPORTER) == PRODUCER:
        uses = [(node, index) for node in _bounding_nodes(graph) for index, _ in _bounds_of(node, classic=True)]
        names = dict.fromkeys(value.name or "" for node, i in uses if (value := _uncast(node.inputs[i])) is not None)
        if names:
            _warn_of_bounds(list(names), "dynamo=True, optimize=False")


def _bounding_nodes(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type in _BOUNDING and not node.domain]


def _bounds_of(node: ir.Node, *, classic: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the positions of constant bounds, and whether each is the lower or the upper one.

    With ``classic``, for files of the older exporter, leave out Constant nodes, which are no parameters there.
    """
    is_clip = node.op_type == "Clip"
    side = _LOW if node.op_type == "Max" else _HIGH
    if classic and is_clip and clip_bounds(node) in _OF_ACTIVATIONS:
        return
    for index in (_LOW, _HIGH) if is_clip else range(len(node.inputs)):
        value = _uncast(operand(node, index)) if classic else operand(node, index)
        if value is None or not value.is_initializer() or value.const_value is None or value.is_graph_input():
            continue
        is_named = _CLASSIC_FOLDED.fullmatch(value.name or "") is not None or not is_made_up(value)
        if _holds_floats(value) and (not classic or (is_named and is_setting(array_of(value), node, index))):
            yield index, index if is_clip else side


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """Return the value before any Casts, which the older exporter writes if it does not fold constants."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value


def _arguments(node: ir.Node, side: int) -> list[str] | None:
    """Return the arguments that the node's call passes as a bound; None if it does not call a bounding function."""
    call = call_of(node)
    places = None if call is None else _ARGUMENTS.get(call.function.rstrip("_"), {}).get(side)
    if call is None or places is None:
        return None
    given = [call.arguments[i] for i in places if i < len(call.arguments)]
    return [argument[1:] for argument in given if argument.startswith("%")]


def _read_parameter(graph: ir.Graph, node: ir.Node, index: int, target: str) -> bool:
    """Make a parameter the bound of a node; a parameter without an initializer gets a copy of the bound.

    Return False if the node reads the parameter already, or if the two hold different numbers.
    """
    value = node.inputs[index]
    known = graph.initializers.get(target)
    assert value is not None
    if known is None and target not in names_of(graph):
        known = copy_initializer(graph, value, target)
    if known is None or known is value or not np.array_equal(array_of(known), array_of(value)):
        return False
    node.replace_input_with(index, known)
    if not value.uses() and not value.is_graph_output():
        graph.initializers.pop(value.name or "")
    return True


def _warn_of_bounds(names: Sequence[str], further: str) -> None:
    warn(
        f"Bounds that clip values may be parameters of the PyTorch module, or computed from them, and the file does "
        f"not tell: {', '.join(map(repr, names))}. They stay as they are. To train those that are parameters, export "
        f"with torch.onnx.export(..., {further})."
    )
