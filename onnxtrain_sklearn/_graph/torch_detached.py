"""Values that a PyTorch module detaches: constants to the gradient here too.

ONNX has no such operator. The newer exporter writes an Identity with the call ``detach``, or leaves it out; then the
calls behind it still name its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from .builder import GraphBuilder
from .queries import reaching
from .stopped import stop_gradient
from .torch_program import TorchProgram, call_of

_DETACHED = re.compile(r"detach(?:_default)?_?(?:_\d+)?")


def stop_at_detached(graph: ir.Graph, program: TorchProgram) -> None:
    """End the path of the gradient at each detached value that depends on a parameter, in place."""
    parameters = {
        name for name, value in graph.initializers.items() if program.status(value) in ("parameter", "folded")
    }
    op, stopped = GraphBuilder(graph, prefix="detached"), dict[ir.Value, ir.Value]()
    for node in list(graph):
        for index in _detached_inputs(node, program):
            value = node.inputs[index]
            assert value is not None
            if reaching(value) & parameters:
                stopped[value] = stopped[value] if value in stopped else stop_gradient(op, value)
                node.replace_input_with(index, stopped[value])
    if stopped:
        graph.sort()


def _detached_inputs(node: ir.Node, program: TorchProgram) -> Iterator[int]:
    """Yield the positions at which a node reads detached values."""
    call = call_of(node)
    if call is None:
        return
    if call.function.rstrip("_") == "detach":
        yield 0
        return
    missing = {*program.folded_names(node)}
    if not any(map(_DETACHED.fullmatch, missing)):
        return
    others = [
        i for i, value in enumerate(node.inputs) if value is not None and _is_unnamed(value, call.name, call.names)
    ]
    if others and all(map(_DETACHED.fullmatch, missing)):
        yield from others
    elif len(call.names) == len(node.inputs):
        yield from (i for i, name in enumerate(call.names) if name in missing and _DETACHED.fullmatch(name))


def _is_unnamed(value: ir.Value, call: str, names: list[str]) -> bool:
    """Whether a node of a call reads the result of another, which the call does not name."""
    producer = value.producer()
    other = None if producer is None else call_of(producer)
    return other is not None and other.name != call and value.name not in names
