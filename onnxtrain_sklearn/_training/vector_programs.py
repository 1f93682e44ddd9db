"""Small graphs over whole vectors as bytes, shared by the fits of a process: updates, penalty, clipping, averages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from .._graph.protobuf import to_proto
from .._optimizers.update_graph import Coefficients, moves_without_gradient, update_graph, update_rule
from .._support.cache import Cache
from .._support.content import content, is_plain
from ..optimizers import Optimizer
from .numpy_update import Formula, formula_of

_graphs: Cache[tuple[bytes, bool, Formula | None]] = Cache(128, 2**24, lambda entry: len(entry[0]))


def graph_bytes(emit: Callable[..., ir.Model], *arguments: Hashable, **keywords: Hashable) -> bytes:
    """Return what ``emit``, a function of this package, makes of these arguments, as bytes."""

    def made() -> tuple[bytes, bool, Formula | None]:
        return to_proto(emit(*arguments, **keywords)).SerializeToString(), False, None

    return _graphs.get((emit, arguments, tuple(keywords.items())), made)[0]


@dataclass(frozen=True)
class UpdateProgram:
    """An update graph as bytes; the other attributes are those of :class:`~.._optimizers.update_graph.UpdateGraph`.

    ``formula`` is the same update for NumPy; None if NumPy cannot run it. ``moves_without_gradient``: whether an
    element may change in a step in which its gradient is zero.
    """

    graph: bytes
    slots: Mapping[str, float]
    coefficients: Callable[..., Coefficients]
    elementwise: bool
    scheduled: bool
    formula: Formula | None = None
    moves_without_gradient: bool = True


def update_program(optimizer: Optimizer, kind: ir.DataType, *, fused: bool, scheduled: bool) -> UpdateProgram:
    """Return the update of ``optimizer``; its scalars are those of the object itself, never of an equal one."""

    def made() -> tuple[bytes, bool, Formula | None]:
        found = update_graph(optimizer, kind, fused=fused, scheduled=scheduled)
        return to_proto(found.model).SerializeToString(), found.elementwise, formula_of(found)

    key = ("update", content(optimizer), kind, fused, scheduled)
    graph, elementwise, formula = _graphs.get(key, made) if is_plain(optimizer) else made()
    rule = update_rule(optimizer, kind, fused=fused, scheduled=scheduled)
    moves = moves_without_gradient(optimizer)
    return UpdateProgram(graph, rule.state(), rule.coefficients, elementwise, scheduled, formula, moves)
