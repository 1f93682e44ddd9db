"""Values that are constants to the gradient: a node that returns its operand, and ends the path behind it.

The node is a Sum of one operand, which no pass removes as it does an Identity, and is known by its name.
"""

from __future__ import annotations

import onnx_ir as ir

from .builder import GraphBuilder
from .edits import copy_type

MARK_OF_STOP = "onnxtrain/stop_gradient"


def stop_gradient(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return ``x`` as a constant to the gradient.

    Parameters
    ----------
    op : GraphBuilder
        The builder that emits into the graph of ``x``.
    x : onnx_ir.Value
        A value of floats.

    Returns
    -------
    onnx_ir.Value
        A value equal to ``x``; what is computed from it has no gradient through it. A graph with it is differentiated
        by the portable engine.

    Examples
    --------
    The straight-through estimate: rounded numbers, with the gradient of those before the rounding.

    >>> import onnx_ir as ir
    >>> from onnxtrain_sklearn import gradient_graph
    >>> from onnxtrain_sklearn.graph import GraphBuilder, stop_gradient
    >>> x = ir.val("x", ir.DataType.FLOAT, (3,))
    >>> op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g"))
    >>> rounded = op.Add(x, stop_gradient(op, op.Sub(op.Round(x), x)))
    >>> loss = op.ReduceSum(op.Mul(rounded, rounded), keepdims=False)
    >>> loss.name, loss.dtype, loss.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    >>> op.graph.outputs.append(loss)
    >>> model = ir.to_proto(ir.Model(op.graph, ir_version=8))
    >>> import numpy as np, onnxruntime
    >>> gradients = gradient_graph(model, wrt=["x"], engine="portable").SerializeToString()
    >>> session = onnxruntime.InferenceSession(gradients)
    >>> session.run(["x_grad"], {"x": np.array([0.4, 0.6, 1.2], np.float32)})[0].tolist()
    [0.0, 2.0, 2.0]
    """
    found = op.emit("Sum", x)[0]
    node = found.producer()
    assert node is not None
    node.name = op.taken.free(MARK_OF_STOP)
    return copy_type(found, x)


def stops_gradient(node: ir.Node | None) -> bool:
    """Whether a node ends the path of the gradient."""
    return node is not None and node.op_type == "Sum" and (node.name or "").startswith(MARK_OF_STOP)
