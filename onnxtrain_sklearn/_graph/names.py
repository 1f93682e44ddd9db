"""Unique names of nodes and values for GraphBuilder and the edits of graphs.

onnx-ir's NameFixPass does not suffice: it names omitted outputs, which declares them, and a node of a subgraph may then
have the name of a node of the main graph.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .queries import graphs_in


class Names(set[str]):
    """Names that are taken, with the last number of each, as there may be thousands of nodes of a kind."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._counts: dict[str, int] = {}

    def free(self, base: str, first: int = 1) -> str:
        """Take and return ``base`` if it is free, else the next of ``base_1``, ``base_2``, ... that is."""
        if base in self:
            return self.numbered(base, first)
        self.add(base)
        return base

    def numbered(self, base: str, first: int = 1) -> str:
        """Take and return the next free one of ``base_1``, ``base_2``, ...; ``first`` is the first number."""
        while True:
            count = self._counts.get(base, first)
            self._counts[base] = count + 1
            if f"{base}_{count}" not in self:
                self.add(f"{base}_{count}")
                return f"{base}_{count}"


def names_of(graph: ir.Graph) -> Names:
    """Return the names of all nodes and values of ``graph`` and its subgraphs."""
    found = Names(value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name)
    for node in graph:
        found.update(name for name in (node.name, *(value.name for value in node.outputs)) if name)
        for inner in graphs_in(node):
            found |= names_of(inner)
    return found
