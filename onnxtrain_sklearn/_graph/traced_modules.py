"""Modules in files of PyTorch's older exporter: paths in the names of nodes, and copies of equal parameters.

That exporter makes one initializer of equal parameters, and leaves an Identity for each of the others, whose output
has the lost name. The names of nodes hold the path of the module: ``/body/layers.1/linear1/MatMul``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import onnx_ir as ir

from .edits import bypass, copy_initializer
from .fake_quantization import is_fake
from .keras_layers import is_drawn
from .names import names_of
from .weights import array_of

_FOLDED = re.compile(r"onnx::\w+")
_LATER_CALL = re.compile(r"(.*?)_\d+")


def separate_identities(graph: ir.Graph) -> None:
    """Replace each Identity of an initializer by an initializer of its own, or by the one where a module shares it."""
    nodes = [node for node in graph if _is_copy(graph, node)]
    if not nodes:
        return
    modules = TracedModules(graph)
    for node in nodes:
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        folded = _FOLDED.fullmatch(output.name or "") is not None
        callers = modules.callers(output)
        unknown = callers == {""} and not is_drawn(array_of(source))
        if folded and not unknown and not callers.isdisjoint(modules.callers(source)):
            bypass(node, source)
            continue
        name, output.name = output.name or "", None
        bypass(node, copy_initializer(graph, source, names_of(graph).free(name)))


def _is_copy(graph: ir.Graph, node: ir.Node) -> bool:
    source = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
    return source is not None and source.name in graph.initializers and not node.outputs[0].is_graph_output()


class TracedModules:
    """The paths of the modules in the names of nodes.

    Parameters
    ----------
    graph : onnx_ir.Graph
        It must not change while this object is used.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    @cached_property
    def _known(self) -> set[str]:
        """The paths that begin the name of a parameter."""
        values = [*self._graph.initializers.values(), *(v for node in self._graph for v in node.outputs)]
        return {path for v in values if v.name and v.name[0] != "/" for path in _beginnings(v.name)}

    def readers(self, value: ir.Value) -> set[str]:
        """Return the modules that read a value."""
        return {self.module_of(node) for node, _ in value.uses()}

    def callers(self, value: ir.Value) -> set[str]:
        """As :meth:`readers`; ``linear_1`` is the second call of ``linear`` unless there is such a module."""
        return {self.module_of(node, again=True) for node, _ in value.uses()}

    def module_of(self, node: ir.Node, *, again: bool = False) -> str:
        """Return the path of the module that a node belongs to, "" if its name holds none.

        The second call of a module is numbered, ``linear_1``, which may be another module's name; with ``again`` that
        needs no parameter of the first.
        """
        path = ""
        if is_fake(node):
            return path
        for part in (node.name or "").split("/")[1:-1]:
            whole, numbered = f"{path}.{part}".lstrip("."), _LATER_CALL.fullmatch(part)
            first = f"{path}.{numbered[1]}".lstrip(".") if numbered else whole
            path = first if whole not in self._known and (again or first in self._known) else whole
        return path

    def name_of(self, value: ir.Value) -> str | None:
        """Return a name for a parameter that has a number in place of it, None if the file does not tell its module."""
        modules = self.readers(value) - {""}
        if not _FOLDED.fullmatch(value.name or "") or len(modules) != 1:
            return None
        bias = self._bias_behind(value)
        if bias is not None and all((node.op_type, i) == ("MatMul", 1) for node, i in value.uses()):
            return f"{bias.removesuffix('bias')}weight.T"
        return f"{modules.pop()}/{value.name}"

    def _bias_behind(self, value: ir.Value) -> str | None:
        """Return the name of the bias that is added to a product with a matrix in the same module."""
        for node, _ in value.uses():
            for user, _ in node.outputs[0].uses():
                names = [x.name or "" for x in user.inputs if x is not None and x.name in self._graph.initializers]
                if user.op_type == "Add" and self.module_of(user) == self.module_of(node):
                    own = [n for n in names if n.endswith("bias") and n.rpartition(".")[0] == self.module_of(node)]
                    return next(iter(own), None)
        return None


def _beginnings(name: str) -> Iterator[str]:
    parts = name.split(".")
    for i in range(1, len(parts)):
        yield ".".join(parts[:i])
