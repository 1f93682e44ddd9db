"""Split off the part of a graph that no trained weight affects, which gives the same numbers in every step.

:func:`frozen_part` cuts the graph where trained weights begin: at the values that are computed from the data alone, and
read by nodes that depend on a trained weight. Fine-tuning computes these values once for all rows, and trains the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._ir.edits import keep_outputs, read_as_input, swap_initializers
from .._ir.queries import reads
from .modes import is_random

MOST_VALUES = 4
"""Values at which a graph is cut, at most; each is computed for all rows."""


@dataclass(frozen=True, eq=False)
class FrozenPart:
    """A graph in two parts.

    Attributes
    ----------
    first : onnx_ir.Model
        Computes the values at which the graph is cut, its outputs, from the inputs of the graph.
    second : onnx_ir.Model
        Computes the scores; these values are among its inputs.
    """

    first: ir.Model
    second: ir.Model


def frozen_part(
    model: ir.Model, scores: str, trained: Collection[str], weights: Mapping[str, np.ndarray]
) -> FrozenPart | None:
    """Return the graph in two parts, cut where the weights ``trained`` begin; None if there is nothing to compute once.

    ``weights`` are the current values of the others.
    """
    names = _cut(model.graph, trained)
    # random numbers differ from step to step
    if not 0 < len(names) <= MOST_VALUES or any(is_random(node) for node in model.graph.all_nodes()):
        return None
    first, second = model.clone(), model.clone()
    swap_initializers(first.graph, weights)
    keep_outputs(first, [_named(first.graph, name) for name in names], inputs=True)
    for name in names:
        read_as_input(second.graph, _named(second.graph, name))
    keep_outputs(second, [v for v in second.graph.outputs if v.name == scores], inputs=True)
    return FrozenPart(first, second)


def _cut(graph: ir.Graph, trained: Collection[str]) -> list[str]:
    """Return the names of the values that are computed from the data alone and meet trained weights."""
    of_data, of_weights = set(graph.inputs), {v for v in graph.initializers.values() if v.name in trained}
    cut = dict[str, None]()
    for node in graph:
        read = list(reads(node))
        if not of_weights.isdisjoint(read):
            of_weights.update(node.outputs)
            cut |= {v.name or "": None for v in read if v.producer() is not None and v in of_data - of_weights}
        elif not of_data.isdisjoint(read):
            of_data.update(node.outputs)
    return list(cut)


def _named(graph: ir.Graph, name: str) -> ir.Value:
    return next(v for node in graph for v in node.outputs if v.name == name)
