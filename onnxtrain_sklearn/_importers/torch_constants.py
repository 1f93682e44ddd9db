"""Recover parameters from constants that PyTorch's exporter computed in advance.

:func:`recompute_folded` computes in the graph again what the exporter folded, :func:`separate_folded` gives equal
results initializers of their own, and :func:`restore_bounds` makes bounds parameters again.

A tied autoencoder reads a matrix and its transposition, a factorization machine a matrix and its squares. The exporter
folds the second into a constant: trained apart, or not at all, it would leave the first. The constant is called after
the function, and newer exporters record what it comes from; where they do not, numbers that were drawn tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import permutations
from typing import TypeAlias

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
    clip_bound,
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
"""Functions of PyTorch: the operator, and its computation."""

_MOVES = frozenset({"numpy_T", "permute", "t", "transpose"})
_OTHER_SHAPES = frozenset({"flatten", "reshape", "squeeze", "unsqueeze", "view"})
_PARTS = frozenset(
    "add alias cat chunk clone detach getitem narrow select slice split split_with_sizes stack sub unbind".split()
)
_POWERS = (2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0)
_WITH_NUMBERS = frozenset({"add", "div", "mul", "rsub", "sub"})
_FUNCTION = re.compile(r"(?:.*/)?(\w+?)(?:_\d+)?")


def recompute_folded(graph: ir.Graph, program: TorchProgram) -> bool:
    """Compute each folded constant from its parameter, in place; warn if training would differ from PyTorch."""
    parameters = [v for v in graph.initializers.values() if program.status(v) == "parameter" and v.uses()]
    read = {v.name or "" for v in parameters}
    folded = [v for v in graph.initializers.values() if v not in parameters and _is_folded(v, program, read)]
    op, others = GraphBuilder(graph, prefix="computed"), dict[str, list[str]]()
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
        _warn_of_others(others)
    return recomputed


def _is_folded(value: ir.Value, program: TorchProgram, parameters: AbstractSet[str]) -> bool:
    """Return True if the exporter made a constant of floats, which no graph input names and no output returns.

    The calls that read it name it. If it is a result within a call, the file says that a parameter is its source.
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
    """Return True if an array has as many distinct numbers as random initialization or training gives."""
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
    """Yield results that a function of PyTorch may compute from numbers, and its operators."""
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
    """Return True if a step changes a result as steps of its parameters would: a part, a sum, a reordering."""
    results = {value.name or "", *folded_from(value)}.difference(program.targets.values())
    calls = {name.rpartition("/")[2] for name in results}
    found = {match[1] for name in calls if (match := _FUNCTION.fullmatch(name)) is not None}
    is_lookup = "embedding" in found and _has_distinct_rows(array_of(value))
    return found <= _MOVES | _OTHER_SHAPES | _PARTS | {"val"} | ({"arange", "embedding"} if is_lookup else set[str]())


def _has_distinct_rows(array: np.ndarray) -> bool:
    """Return True if an embedding of constant positions reads each row of its table once at most."""
    rows = array.reshape(-1, array.shape[-1])
    return len(np.unique(rows, axis=0)) == len(rows)


def _warn_of_others(others: Mapping[str, Sequence[str]]) -> None:
    several = ", ".join(f"{name!r} (from {', '.join(map(repr, sources))})" for name, sources in others.items())
    warn(
        f"PyTorch's exporter computed results of parameters in advance: {several}. The results are trained in place of "
        f"the parameters, which PyTorch would train. To train these, export with "
        f"torch.onnx.export(..., optimize=False)."
    )


# Folded results: each one its own initializer, also where numbers are equal.
#
# The exporter folds ``1 + weight`` of a normalization or the reshaped factor of a layer scale into a constant, and
# makes one initializer of all that are equal. Those of a fresh network are: trained so, they would stay equal. The
# calls that read them still name the folded results. Two names are two parameters where they are read in different
# modules, and within one module where it has as many parameters as names: a module that is called twice folds one
# parameter twice. A module under two paths has its parameters twice in the signature, but all calls read those of one
# path.


Use = tuple[ir.Node, int]
Key = tuple[str, str]
"""The module that reads a folded result, and the name of the result; "" for all results of the module."""


def separate_folded(graph: ir.Graph, program: TorchProgram) -> bool:
    """Give each folded result an initializer of its own, in place; indistinguishable results keep one."""
    folded = [v for v in graph.initializers.values() if program.status(v) == "folded" and _holds_floats(v)]
    aliases = _aliases(graph, program) if folded else {}
    uses = {value: list(_known_uses(value, program, aliases)) for value in folded}
    ambiguous = _ambiguous_modules((key for found in uses.values() for key, _ in found), program)
    separated = False
    for value, found in uses.items():
        readers: dict[Key, list[Use]] = {}
        for (module, name), use in found:
            readers.setdefault((module, "" if module in ambiguous else name), []).append(use)
        for (module, name), own in list(readers.items())[1:] if _may_be_merged(value) else ():
            _let_read_copy(graph, value, f"{module}/{name or value.name}" if module else name, own)
            separated = True
    return separated


def _holds_floats(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _may_be_merged(value: ir.Value) -> bool:
    """Return True if several parameters may begin with the numbers of a weight; equal drawn ones are shared."""
    if value.const_value is None or value.is_graph_output():
        return False
    array = array_of(value)
    return array.size == 1 or np.unique(array).size < array.size


def _known_uses(value: ir.Value, program: TorchProgram, aliases: Mapping[str, str]) -> Iterator[tuple[Key, Use]]:
    """Return the readers that name one folded result of a module that has an unread parameter."""
    for node, index in value.uses():
        module, names = _canonical(called_module(node), aliases), program.folded_names(node)
        if len(names) == 1 and program.unseen_within(module) and not _may_be_literal(node, value):
            yield (module, names[0]), (node, index)


def called_module(node: ir.Node) -> str:
    """Return the path of the module that made the call; the marks of its second and later calls are left out."""
    return ".".join(part.partition("@")[0] for part in scope_of(node).split("."))


def _aliases(graph: ir.Graph, program: TorchProgram) -> dict[str, str]:
    """Return the paths of modules that are other modules too: all calls read the parameters of the other path."""
    unseen = set(program.unseen)
    read = set(program.targets.values()) - unseen
    found: dict[str, str] = {}
    for node in graph:
        module = called_module(node)
        for name in names_read(node):
            owner, _, leaf = program.targets.get(name, "").rpartition(".")
            if owner and owner != module and f"{module}.{leaf}" in unseen:
                found |= dict(_outer_pairs(module, owner, read))
    return found


def _outer_pairs(module: str, owner: str, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return two paths of a module, and those of the modules around it that are then one: no call reads the first."""
    while module and owner and not any(name.startswith(f"{module}.") for name in read):
        yield module, owner
        (module, _, inner), (owner, _, part) = module.rpartition("."), owner.rpartition(".")
        if inner != part:
            break


def _canonical(module: str, aliases: Mapping[str, str]) -> str:
    """Return the path under which the parameters of a module are read."""
    outer, inner = module, ""
    while outer:
        if outer in aliases:
            return aliases[outer] + inner
        outer, _, last = outer.rpartition(".")
        inner = f".{last}{inner}"
    return module


def _may_be_literal(node: ir.Node, value: ir.Value) -> bool:
    """Return True if a single number may be one that the call names itself."""
    call = call_of(node)
    is_single = value.const_value is not None and value.const_value.size == 1
    return is_single and call is not None and any(not argument.startswith("%") for argument in call.arguments)


def _ambiguous_modules(keys: Iterable[Key], program: TorchProgram) -> set[str]:
    """Return the modules whose folded results are not as many as their unread parameters."""
    names: dict[str, set[str]] = {}
    for module, name in keys:
        names.setdefault(module, set()).add(name)
    return {
        module
        for module, own in names.items()
        if len(own) not in _numbers_of_parameters(program.unseen_within(module), module)
    }


def _numbers_of_parameters(parameters: list[str], module: str) -> set[int]:
    """Return the numbers of parameters: with those of inner modules, and without them."""
    depth = module.count(".") + 1 if module else 0
    return {len(parameters), sum(name.count(".") == depth for name in parameters)}


def _let_read_copy(graph: ir.Graph, value: ir.Value, name: str, readers: list[Use]) -> None:
    own = copy_initializer(graph, value, names_of(graph).free(name))
    for node, index in readers:
        node.replace_input_with(index, own)


# Bounds that are parameters of a PyTorch module: ``torch.clamp(x, self.low, self.high)`` and the like.
#
# The newer exporter folds them into constants of a Clip, a Max or a Min, whose call still names them: they are
# parameters again, and a Clip becomes the Max and the Min, which have their gradient. Where the record does not tell
# what a bound is computed from, it stays as it is, with a warning. So do bounds in files of the older exporter, which
# records nothing.


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
"""Functions of PyTorch: where each bound may stand among the arguments."""

_CLASSIC_FOLDED = re.compile(r"onnx::(?:Clip|Max|Min)_\d+")
_OF_ACTIVATIONS = frozenset({RELU6, (-1.0, 1.0), (0.0, 1.0), (0.0, None)})


def restore_bounds(graph: ir.Graph, program: TorchProgram) -> bool:
    """Restore bounds that are parameters of the module, in place; warn of bounds that may be parameters."""
    unclear: list[str] = []
    restored = False
    for node in _bounding_nodes(graph):
        for index, side in _bounds_of(node):
            target = _bound_parameter(node, side, program)
            if target is not None:
                restored = _read_parameter(graph, node, index, target) or restored
            elif _is_kept_bound(node, index) and _may_be_folded(node, side, program):
                unclear.append(node.inputs[index].name or "")  # type: ignore[union-attr]
        if node.op_type == "Clip" and any(program.status(x) == "parameter" for x in node.inputs[1:] if x is not None):
            _use_max_and_min(graph, node)
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

    With ``classic``, only those of the older exporter that may be parameters: others are Constant nodes there.
    """
    is_clip, side = node.op_type == "Clip", _LOW if node.op_type == "Max" else _HIGH
    if classic and is_clip and tuple(clip_bound(node, index) for index in (_LOW, _HIGH)) in _OF_ACTIVATIONS:
        return
    for index in (_LOW, _HIGH) if is_clip else range(len(node.inputs)):
        value = _uncast(operand(node, index)) if classic else operand(node, index)
        if (
            value is not None
            and _is_float_constant(value)
            and (not classic or _is_classic_parameter(node, index, value))
        ):
            yield index, index if is_clip else side


def _is_float_constant(value: ir.Value) -> bool:
    is_constant = value.is_initializer() and value.const_value is not None and not value.is_graph_input()
    return is_constant and value.dtype is not None and value.dtype.is_floating_point()


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """Return the value before its casts, which the older exporter writes where it folds nothing."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value


def _is_classic_parameter(node: ir.Node, index: int, value: ir.Value) -> bool:
    is_named = _CLASSIC_FOLDED.fullmatch(value.name or "") is not None or not is_made_up(value)
    return is_named and is_setting(array_of(value), node, index)


def _is_kept_bound(node: ir.Node, index: int) -> bool:
    value = node.inputs[index]
    assert value is not None
    return is_setting(array_of(value), node, index)


def _arguments(node: ir.Node, side: int) -> list[str] | None:
    """Return the names that the call of a node has for a bound; None where the call has another function."""
    call = call_of(node)
    places = None if call is None else _ARGUMENTS.get(call.function.rstrip("_"), {}).get(side)
    if call is None or places is None:
        return None
    given = [call.arguments[i] for i in places if i < len(call.arguments)]
    return [argument[1:] for argument in given if argument.startswith("%")]


def _bound_parameter(node: ir.Node, side: int, program: TorchProgram) -> str | None:
    """Return the name, in the module, of the parameter that a bound is."""
    named = [name for name in _arguments(node, side) or () if program.kinds.get(name) == "PARAMETER"]
    return program.targets.get(named[0]) if len(named) == 1 else None


def _may_be_folded(node: ir.Node, side: int, program: TorchProgram) -> bool:
    """Return True if a bound may be a parameter or computed from one: the call that named it is part of another."""
    names, folded = _arguments(node, side), program.folded_names(node)
    if not program.unseen_within(scope_of(node)):
        return False
    return bool(folded) if names is None else any(name in folded for name in names)


def _read_parameter(graph: ir.Graph, node: ir.Node, index: int, target: str) -> bool:
    """Make a parameter the bound of a node; the initializer of the bound gets its name where there is none.

    Return False where the node reads it already, or where the two hold other numbers.
    """
    value, known = node.inputs[index], graph.initializers.get(target)
    assert value is not None
    if known is None and target not in names_of(graph):
        known = copy_initializer(graph, value, target)
    if known is None or known is value or not np.array_equal(array_of(known), array_of(value)):
        return False
    node.replace_input_with(index, known)
    if not value.uses() and not value.is_graph_output():
        graph.initializers.pop(value.name or "")
    return True


def _use_max_and_min(graph: ir.Graph, node: ir.Node) -> None:
    op, value = GraphBuilder(graph, prefix="bounded"), node.inputs[0]
    assert value is not None
    op.dtype = value.dtype or op.dtype
    for kind, bound in (("Max", operand(node, _LOW)), ("Min", operand(node, _HIGH))):
        if bound is not None:
            value = op.emit(kind, value, bound)[0]
            value.producer().metadata_props.update(node.metadata_props)  # type: ignore[union-attr]
    replace_node(op, node, [value])
    graph.sort()


def _warn_of_bounds(names: Sequence[str], further: str) -> None:
    warn(
        f"Bounds that clip values may be parameters of the PyTorch module, or computed from them, and the file does "
        f"not tell: {', '.join(map(repr, names))}. They stay as they are. To train those that are parameters, export "
        f"with torch.onnx.export(..., {further})."
    )
