"""Join the outputs of a graph side by side, for one loss on all of them."""

from __future__ import annotations

import onnx_ir as ir

from .._ir.queries import dims, is_float
from .._ir.shapes import infer_shapes
from ..exceptions import ModelError
from ..graph import GraphBuilder, names_of


def join_outputs(model: ir.Model) -> tuple[ir.Model, tuple[int, ...]]:
    """Return the model with its float outputs joined along axis 1, and the columns of each; of one output, as it is."""
    outputs = [value for value in model.graph.outputs if is_float(value)]
    if len(outputs) < 2:
        return model, ()
    result = model.clone()
    result.meta.update(model.meta)
    graph = result.graph
    named = {value.name: value for value in graph.outputs}
    op = GraphBuilder(graph, prefix="joined", constant_nodes=True)
    parts, widths = [], []
    for value in (named[value.name] for value in outputs):
        sizes = dims(value)
        if sizes is None or not 1 <= len(sizes) <= 2 or not all(isinstance(n, int) for n in sizes[1:]):
            raise ModelError(
                f"A loss on several outputs needs each as a column or a matrix of a known number of columns, but "
                f"{value.name!r} has shape {value.shape}. Name the one to train: model=GraphModel(..., output=...)."
            )
        parts.append(value if len(sizes) == 2 else op.Unsqueeze(value, axes=[1]))
        widths.append(int(str(sizes[1])) if len(sizes) == 2 else 1)
    joined = op.Concat(*parts, axis=1)
    joined.name = names_of(graph).free("outputs")
    graph.outputs[:] = [joined]
    return infer_shapes(result), tuple(widths)
