"""A graph with other weights, which is copied only when it is first read.

:func:`reweighted` returns the model, :func:`form_of` and :func:`initial_value` read its structure and its weights
without a copy. Before its first step, a fit of a known structure reads no more than these; copying the graph would cost
more than all other parts of that time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from .._ir.edits import swap_initializers
from .._ir.queries import share_structure
from .weights import array_of

COPIED_AT_ONCE = 2**23
"""Bytes of weights from which on a graph is copied at once; a late copy keeps the template's weights in memory too."""


def reweighted(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a model with other values of some initializers, in their types; ``model`` must not change afterwards."""
    template = form_of(model)
    # always one step from a template: a chain of models would keep all earlier weights in memory
    values = {**(model.arrays if isinstance(model, ReweightedModel) else {}), **arrays}
    if sum(array.nbytes for array in values.values()) < COPIED_AT_ONCE:
        result: ir.Model = ReweightedModel(template, values)
    else:
        result = template.clone()
        swap_initializers(result.graph, values)
    share_structure(result, template)
    return result


def form_of(model: ir.Model) -> ir.Model:
    """Return a model of the same structure, perhaps with other weights, without copying a graph; read only."""
    return model.template if isinstance(model, ReweightedModel) else model


def initial_value(model: ir.Model, name: str) -> np.ndarray:
    """Return the value of an initializer."""
    own = model.arrays.get(name) if isinstance(model, ReweightedModel) else None
    return array_of(form_of(model).graph.initializers[name]) if own is None else own


class ReweightedModel(ir.Model):
    """A model like ``template``, which must not change afterwards, with the values ``arrays`` of some initializers.

    The attribute ``graph`` is missing until it is first read; then ``__getattr__`` makes the copy.
    """

    __slots__ = ("_copies", "arrays", "template")

    def __init__(self, template: ir.Model, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(
            template.graph,
            ir_version=template.ir_version,
            producer_name=template.producer_name,
            producer_version=template.producer_version,
            domain=template.domain,
            model_version=template.model_version,
            doc_string=template.doc_string,
            functions=tuple(template.functions.values()),
            metadata_props=dict(template.metadata_props),
        )
        self.template, self.arrays = template, arrays
        self._copies: dict[str, ir.Graph] = {}
        del self.graph  # the first read then reaches __getattr__

    def __getattr__(self, name: str) -> ir.Graph:
        """Make and return the graph; the other attributes exist, so that only errors reach the first branch."""
        if name != "graph":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        graph = self.template.graph.clone()
        swap_initializers(graph, self.arrays)
        self.graph = self._copies.setdefault(name, graph)  # setdefault is atomic: all threads get one graph
        return self.graph
