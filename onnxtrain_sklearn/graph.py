"""The graph builder, through which losses, optimizers and graph builders emit ONNX operators.

Losses and optimizers receive a :class:`GraphBuilder` as ``op``. A graph builder, an object with a method ``build``,
makes one for its own graph. Values are :class:`onnx_ir.Value`; :data:`Operand` is whatever an operator accepts.
"""

from __future__ import annotations

from ._graph.builder import GraphBuilder, Operand
from ._graph.stopped import stop_gradient

__all__ = ["GraphBuilder", "Operand", "stop_gradient"]
