"""Final activations: the scores behind one, and the operators that compute scores where a graph has none.

An :class:`Activation` holds for every value of the weights: its link, applied to the scores, is the output of the
graph, up to bounds that only keep probabilities off 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from .builder import GraphBuilder

LOG_EPSILON = 1e-7
"""Added to probabilities and means before their logarithm."""


@dataclass(frozen=True)
class Activation:
    """A final activation.

    Attributes
    ----------
    link : {"softmax", "sigmoid", "exp"}
    base : onnx_ir.Value
        Its input.
    form : str
        How the scores are computed from ``base``: a key of ``SCORE_FORMS``.
    log : bool
        Whether the output is the logarithm of the link's result.
    paired : bool
        Whether the output has two columns, 1 - p and p, from one score.
    """

    link: str
    base: ir.Value
    form: str = "same"
    log: bool = False
    paired: bool = False

    def scores(self, graph: ir.Graph, final: ir.Value) -> ir.Value:
        """Return the scores, with the nodes that they need emitted at the end of ``graph``; ``final`` is its output."""
        scores = self.base
        op = GraphBuilder(graph, dtype=scores.dtype or ir.DataType.FLOAT, prefix="scores", constant_nodes=True)
        scores = as_rows(op, SCORE_FORMS[self.form](op, scores))
        if None not in (scores.dtype, final.dtype) and scores.dtype != final.dtype:
            scores = op.Cast(scores, to=final.dtype)
        return scores


def as_rows(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return a value of more than two axes as a matrix with one row per row of the batch.

    It is left as it is where more than two axes have sizes other than one.
    """
    long = [] if value.shape is None else [size for size in value.shape if size != 1]
    if value.shape is None or len(value.shape) < 3 or len(long) > 2:
        return value
    width = long[1] if len(long) == 2 else 1
    return op.Reshape(value, [-1, width]) if isinstance(width, int) else op.Flatten(value, axis=1)


def scores_of(op: GraphBuilder, output: ir.Value, link: str, *, log: bool) -> ir.Value:
    """Emit scores whose ``link`` is the output of the graph: logarithms of its probabilities, or their log-odds.

    An epsilon keeps the logarithm finite at zero; negative numbers have no gradient.
    """
    output = as_rows(op, output)
    numbers = op.Exp(output) if log else output
    logs = _log_of_probability(op, numbers)
    return op.Sub(logs, _log_of_probability(op, op.Sub(1.0, numbers))) if link == "sigmoid" else logs


def _log_of_probability(op: GraphBuilder, numbers: ir.Value) -> ir.Value:
    return op.Log(op.Add(op.Relu(numbers), LOG_EPSILON))


def _score_difference(op: GraphBuilder, scores: ir.Value, first: int) -> ir.Value:
    one, other = (op.Gather(scores, [i], axis=1) for i in (first, 1 - first))
    return op.Sub(one, other)


SCORE_FORMS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "same": lambda op, s: s,
    "negative": lambda op, s: op.Neg(s),
    "first": lambda op, s: _score_difference(op, s, 0),
    "second": lambda op, s: _score_difference(op, s, 1),
    "log_sigmoid": lambda op, s: op.Neg(op.Softplus(op.Neg(s))),
}
"""Scores computed from the input of an activation: for 1 - p, one of two columns, sigmoids over their sum."""


OPPOSITE = {"same": "negative", "negative": "same", "first": "second", "second": "first"}
