"""Random numbers of Dropout and of random nodes, drawn on the host.

onnxruntime's own kernels keep their random state in the session. So an unpickled estimator would continue with other
masks than the original, and each engine would draw different ones. Instead, :func:`expose_dropout` replaces each
Dropout in training mode by a product with a mask, and :func:`expose_random` computes the results of random nodes such
as RandomNormalLike, both from uniform numbers that are inputs of the graph. :class:`UniformNumbers` fills these inputs
before each pass. The numbers depend only on the seed and on the number of earlier draws, which pickles hold; a ``seed``
attribute in the graph is ignored. If a schedule changes the dropout ratios, the factor of the step is an input too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._ir.edits import replace_node
from .._ir.queries import attribute, constant, dims, every_node, fixed, node_label, operand
from .._ir.shapes import infer_shapes
from .._model.modes import NORMAL, UNIFORM, is_random
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder

STEM, FACTOR = "onnxtrain/uniform", "onnxtrain/dropout_factor"

LARGEST = "largest ratio"
"""Metadata key of the input for the scheduled factor; it holds the largest constant dropout ratio of the graph."""


class UniformNumbers:
    """The random numbers that one graph takes as inputs.

    Parameters
    ----------
    inputs : sequence of onnx_ir.Value
        The inputs that :func:`expose_dropout` and :func:`expose_random` returned.
    seed : int

    Attributes
    ----------
    buffers : dict of str to ndarray
        Float32 numbers in [0, 1), by input name.
    arrays : dict of str to ndarray
        All inputs: the buffers, and the factor of scheduled ratios.
    """

    def __init__(self, inputs: Sequence[ir.Value], seed: int) -> None:
        self._seed = seed
        self.buffers = {
            v.name or "": np.zeros([d for d in dims(v) or [] if isinstance(d, int)], np.float32)
            for v in inputs
            if v.name != FACTOR
        }
        scheduled = [v for v in inputs if v.name == FACTOR]
        self._factor = np.ones((), np.float32) if scheduled else None
        self._largest = max((v.meta[LARGEST] for v in scheduled), default=0.0)
        self.arrays = self.buffers if self._factor is None else {**self.buffers, FACTOR: self._factor}

    def draw(self, count: int, factor: float = 1.0) -> None:
        """Fill the buffers with the random numbers of draw number ``count``; set the factor of scheduled ratios."""
        if self._factor is not None:
            if factor * self._largest >= 1:
                raise ValueError(
                    f"dropout_schedule gives the factor {factor}, so that a ratio of {self._largest} becomes "
                    f"{factor * self._largest}; it must stay below 1."
                )
            self._factor[()] = factor
        random = np.random.SFC64([self._seed, count])
        for buffer in self.buffers.values():
            # A number has 24 bits: 16 random bits of its own, then 8 random bits that the whole buffer shares. So it is
            # uniform among the multiples of 2**-24, which is enough for a mask. Drawing 24 independent bits would take
            # four times as long; for large layers, that is a tenth of a step.
            words = random.random_raw(1 + -(-buffer.size // 4))
            bits = words[1:].view(np.uint16)[: buffer.size].reshape(buffer.shape)
            np.add(bits, np.float32((int(words[0]) & 0xFF) / 256), out=buffer)
            np.multiply(buffer, np.float32(2**-16), out=buffer)


def expose_dropout(model: ir.Model, *, scheduled: bool = False) -> list[ir.Value]:
    """Replace Dropout in training mode by products with masks, in place; return the new inputs of the graph.

    With ``scheduled``, the last input is a factor that multiplies all dropout ratios.
    """
    if model.graph.opset_imports[""] < 12:  # Dropout has no training mode there
        return []
    dropouts = [node for node in every_node(model.graph) if _drops(node)]
    op = GraphBuilder(model.graph, prefix="onnxtrain/dropout")
    factor = ir.val(FACTOR, ir.DataType.FLOAT, ()) if scheduled and dropouts else None
    inputs: list[ir.Value] = []
    for i, node in enumerate(dropouts):
        x, mode = node.inputs[0], operand(node, 2)
        assert x is not None
        is_inside = node.graph is not op.graph
        if is_inside or not fixed(dims(x)):
            reason = "it is in a subgraph" if is_inside else "the shape of its input cannot be inferred"
            raise UnsupportedOperatorError(
                f"{node_label(node)} cannot be trained: {reason}, so its mask cannot be drawn. Take it out, or export "
                f"the model in evaluation mode."
            )
        uniform = ir.val(f"{STEM}_{i}", ir.DataType.FLOAT, x.shape)
        inputs.append(uniform)
        op.dtype = x.dtype or ir.DataType.FLOAT

        # The default ratio is 0.5. Computed ratios are not checked; draw() checks the largest constant one.
        ratio = operand(node, 1) or op.constant(np.array(0.5, op.dtype.numpy()))
        known = constant(ratio)
        if known is not None and not 0 <= known.item() < 1:
            raise ModelError(f"{node_label(node)} drops a share of {known.item()}; it must be at least 0 and below 1.")
        if factor is not None:
            factor.meta[LARGEST] = max(factor.meta.get(LARGEST, 0.0), 0.0 if known is None else float(known.item()))
            ratio = op.Mul(op.Cast(ratio, to=ir.DataType.FLOAT), factor)

        kept = op.GreaterOrEqual(uniform, op.Cast(ratio, to=ir.DataType.FLOAT))
        scale = op.Div(op.Cast(kept, to=op.dtype), op.Sub(1.0, op.Cast(ratio, to=op.dtype)))
        if mode is not None and constant(mode) is None:  # the graph computes the mode, so select mask or input
            scale = op.Where(mode, scale, 1.0)
            kept = op.Or(kept, op.Not(mode))
        replace_node(op, node, [op.Mul(x, scale), kept])
    return _added_inputs(model, inputs if factor is None else [*inputs, factor])


def expose_random(model: ir.Model) -> list[ir.Value]:
    """Compute the results of random nodes from uniform numbers, in place; return the new inputs of the graph."""
    inputs: list[ir.Value] = []
    op = GraphBuilder(model.graph, prefix="onnxtrain/random")
    for node in [n for n in every_node(model.graph) if is_random(n) and n.op_type != "Multinomial"]:
        drawn = node.outputs[0]
        sizes = dims(drawn)
        is_inside = node.graph is not op.graph
        if is_inside or not fixed(sizes):
            reason = "it is in a subgraph" if is_inside else "the shape of its numbers cannot be inferred"
            raise UnsupportedOperatorError(
                f"{node_label(node)} cannot be trained: {reason}, so its numbers cannot be drawn by random_state. Take "
                f"it out, or export the model in evaluation mode."
            )
        op.dtype = ir.DataType.FLOAT
        for _ in range(2 if node.op_type in NORMAL else 1):
            inputs.append(ir.val(f"{STEM}_number_{len(inputs)}", ir.DataType.FLOAT, sizes))
        if node.op_type in UNIFORM:
            low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
            found = op.Add(op.Mul(inputs[-1], high - low), low)
        elif node.op_type in NORMAL:  # the Box-Muller transform
            radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, inputs[-2])), -2.0))
            standard = op.Mul(radius, op.Cos(op.Mul(inputs[-1], 2 * np.pi)))
            found = op.Add(op.Mul(standard, attribute(node, "scale", 1.0)), attribute(node, "mean", 0.0))
        else:  # Bernoulli
            probability = op.Cast(node.inputs[0], to=ir.DataType.FLOAT)
            found = op.Cast(op.Less(inputs[-1], probability), to=ir.DataType.FLOAT)
        replace_node(op, node, [op.Cast(found, to=drawn.dtype or ir.DataType.FLOAT)])
    return _added_inputs(model, inputs)


def _added_inputs(model: ir.Model, inputs: list[ir.Value]) -> list[ir.Value]:
    """Add ``inputs``, which new nodes read, to the inputs of the graph, in place; return them."""
    if inputs:
        model.graph.inputs.extend(inputs)
        model.graph.sort()
        infer_shapes(model)
    return inputs


def draws_numbers(model: ir.Model) -> bool:
    """Return True if training a graph needs random numbers: for Dropout in training mode, or random nodes."""
    return any(is_random(node) or _drops(node) for node in every_node(model.graph))


def _drops(node: ir.Node) -> bool:
    """Return True if a node is a Dropout in training mode, or one whose mode is computed."""
    mode = operand(node, 2)
    if node.op_type != "Dropout" or node.domain or mode is None:
        return False
    known = constant(mode)
    return known is None or bool(known)
