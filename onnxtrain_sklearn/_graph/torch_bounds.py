"""Bounds that are parameters of a PyTorch module: ``torch.clamp(x, self.low, self.high)`` and the like.

The newer exporter folds them into constants of a Clip, a Max or a Min, whose call still names them: they are parameters
again, and a Clip becomes the Max and the Min, which have their gradient. Where the record does not tell what a bound
is computed from, it stays as it is, with a warning. So do bounds in files of the older exporter, which records nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ..exceptions import warn
from .builder import GraphBuilder
from .edits import copy_initializer, replace_node
from .exporter_names import is_made_up
from .names import names_of
from .open_clip import RELU6, bound_of
from .queries import operand
from .roles import EXPORTER
from .torch_program import PRODUCER, TorchProgram, call_of, scope_of
from .weights import array_of, is_setting

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


def restore_bounds(graph: ir.Graph, program: TorchProgram) -> None:
    """Make the bounds that are parameters of the module such again, in place; warn of those that may be."""
    unclear: list[str] = []
    for node in _bounding_nodes(graph):
        for index, side in _bounds_of(node):
            target = _bound_parameter(node, side, program)
            if target is not None:
                _read_parameter(graph, node, index, target)
            elif _is_kept_bound(node, index) and _may_be_folded(node, side, program):
                unclear.append(node.inputs[index].name or "")  # type: ignore[union-attr]
        if node.op_type == "Clip" and any(program.status(x) == "parameter" for x in node.inputs[1:] if x is not None):
            _use_max_and_min(graph, node)
    if unclear:
        _warn_of_bounds(unclear, "optimize=False")


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
    if classic and is_clip and tuple(bound_of(node, index) for index in (_LOW, _HIGH)) in _OF_ACTIVATIONS:
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
    """Return what conversions of the type stand behind: the older exporter writes them where it folds nothing."""
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
    """Whether a bound may be computed from a parameter, or be one: the call that named it is part of another."""
    names, folded = _arguments(node, side), program.folded_names(node)
    if not program.unseen_within(scope_of(node)):
        return False
    return bool(folded) if names is None else any(name in folded for name in names)


def _read_parameter(graph: ir.Graph, node: ir.Node, index: int, target: str) -> None:
    """Let a node read a parameter as its bound; the initializer of the bound gets its name where there is none."""
    value, known = node.inputs[index], graph.initializers.get(target)
    assert value is not None
    if known is None and target not in names_of(graph):
        known = copy_initializer(graph, value, target)
    if known is None or known is value or not np.array_equal(array_of(known), array_of(value)):
        return
    node.replace_input_with(index, known)
    if not value.uses() and not value.is_graph_output():
        graph.initializers.pop(value.name or "")


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
