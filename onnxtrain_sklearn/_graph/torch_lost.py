"""Parameters of a PyTorch module of which the exported file does not tell where the module reads them: a warning.

PyTorch's exporter leaves out calls that change nothing: a product with a scale that begins as one, a sum with a shift
that begins as zero. It makes one of calls whose parameters begin equal. The signature still lists the parameters, and
the calls behind name results that nothing computes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from ..exceptions import warn
from .torch_program import TorchProgram, call_of, sources_of
from .weights import array_of

_MAY_CHANGE_NOTHING = re.compile(r"(?:add|addcmul|addmm|div|lerp|mul|pow|rsub|sub)(?:_\d+)?")
"""Results of functions that return their operand for a parameter of ones or zeros."""


def warn_of_lost(graph: ir.Graph, program: TorchProgram) -> None:
    """Warn of parameters that are not trained, or not as in PyTorch, for all that the file tells."""
    unclear = any(program.status(v) == "folded" and not sources_of(v, program) for v in graph.initializers.values())
    removed = set[str]() if unclear else {*_removed_calls(graph, program)}  # else these may come from the parameters
    held = {name.removesuffix(".T") for name in graph.initializers}
    held = held.union(*(sources_of(value, program) for value in graph.initializers.values()))
    unread = [name for name in program.unseen if name not in held and not _is_of_statistics(name, program)]
    merged = any(_merges_values(node, program) for node in graph)
    lost = [name for name in unread if merged or (removed and not _is_of_unused_layer(name, unread))]
    doubtful = [value.name or "" for value in graph.initializers.values() if _stands_for(value, removed, program)]
    if lost or doubtful:
        warn(
            f"PyTorch's exporter left out calls that do not change the numbers of this file, or merged calls that "
            f"begin equal, and the file does not tell which parameters they read. In PyTorch these parameters may be "
            f"trained, or otherwise than here: {', '.join(map(repr, dict.fromkeys([*lost, *doubtful])))}. Export with "
            f"torch.onnx.export(..., optimize=False), which leaves nothing out."
        )


def _removed_calls(graph: ir.Graph, program: TorchProgram) -> Iterator[str]:
    """Yield the results of calls of arithmetic that are named, and that no node computes."""
    held = {name.rpartition("/")[2] for name in graph.initializers}
    for node in graph:
        call = call_of(node)
        yield from (
            name for name in program.folded_names(node) if name not in held and _MAY_CHANGE_NOTHING.fullmatch(name)
        )
        for value in node.outputs if call is not None else ():
            own = value.name or ""
            if value.is_graph_output() and own != call.name and _MAY_CHANGE_NOTHING.fullmatch(own):  # type: ignore[union-attr]
                yield own


def _is_of_statistics(parameter: str, program: TorchProgram) -> bool:
    """Whether a parameter belongs to a BatchNormalization, which the exporter makes part of the convolution before."""
    return f"{parameter.rpartition('.')[0]}.running_var".lstrip(".") in program.targets.values()


def _is_of_unused_layer(parameter: str, unread: Collection[str]) -> bool:
    """Whether a parameter is one of the weight and the bias of a layer that the module does not call."""
    layer = parameter.rpartition(".")[0]
    return {f"{layer}.weight", f"{layer}.bias"} <= {*unread}


def _merges_values(node: ir.Node, program: TorchProgram) -> bool:
    """Whether a node reads one value at two positions, where its call names two results that are not in the file."""
    call = call_of(node)
    values = [value for value in node.inputs if value is not None and not value.is_initializer()]
    repeated = {value.name for value in values if values.count(value) > 1}
    return call is not None and not repeated <= {*call.names} and len({*program.folded_names(node)}) > 1


def _stands_for(value: ir.Value, removed: set[str], program: TorchProgram) -> bool:
    """Whether a call that reads a parameter of equal numbers does not name it, but a result that was left out."""
    if program.status(value) != "parameter" or np.ptp(array_of(value)):
        return False
    calls = [call for node, _ in value.uses() if (call := call_of(node)) is not None]
    own = {name for name, target in program.targets.items() if target == value.name}
    return any(own.isdisjoint(call.names) and not removed.isdisjoint(call.names) for call in calls)
