"""The final activation of a graph: its link, and the scores before it.

:func:`activation_of` reads a graph backwards from its output, with one reader per operator, and returns the
:class:`Activation` that it recognizes. An activation holds for every value of the weights: its link, applied to the
scores, is the output of the graph, up to bounds that only keep probabilities off 0 and 1. Where the output is said to
hold probabilities and no activation is recognized, :func:`scores_of` computes scores from the output itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx_ir as ir

from .._ir.queries import int_attribute
from ..graph import GraphBuilder
from .expressions import (
    MAX_DEPTH,
    NARROW,
    SHAPE_ONLY,
    clip_bound,
    is_per_position,
    is_per_row,
    is_row_sum,
    keeps_layout,
    negation_operand,
    neutral_operand,
    number_of,
    reduced_axes,
    same_expression,
    without_bound,
    without_epsilon,
    without_maximum,
    without_reshaping,
)

LOG_EPSILON = 1e-7
"""Added to probabilities and means before their logarithm."""


@dataclass(frozen=True)
class Activation:
    """A final activation.

    Attributes
    ----------
    link : {"softmax", "sigmoid", "exp"}
        The function.
    base : onnx_ir.Value
        The value upstream of the activation.
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


def activation_of(final: ir.Value) -> Activation | None:
    """Return the final activation whose output is ``final``; None if there is none, or an unknown one."""
    found = _activation_of(final, MAX_DEPTH)
    # log(exp(s)) is s, which the loss reads as it is
    return found if found is None or found.link != "exp" or not found.log else None


def scores_of(op: GraphBuilder, output: ir.Value, link: str, *, log: bool) -> ir.Value:
    """Emit scores whose ``link`` is the output of the graph: logarithms of its probabilities, or their log-odds.

    An epsilon keeps the logarithm finite at zero; negative numbers count as zero and have no gradient.
    """
    output = as_rows(op, output)
    numbers = op.Exp(output) if log else output
    logs = _log_of_probability(op, numbers)
    return op.Sub(logs, _log_of_probability(op, op.Sub(1.0, numbers))) if link == "sigmoid" else logs


def _log_of_probability(op: GraphBuilder, numbers: ir.Value) -> ir.Value:
    return op.Log(op.Add(op.Relu(numbers), LOG_EPSILON))


def as_rows(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return a value of more than two axes as a matrix with one row per row of the minibatch.

    Only axes of size one are dropped: a value with three longer axes stays as it is.
    """
    long = [] if value.shape is None else [size for size in value.shape if size != 1]
    if value.shape is None or len(value.shape) < 3 or len(long) > 2:
        return value
    width = long[1] if len(long) == 2 else 1
    return op.Reshape(value, [-1, width]) if isinstance(width, int) else op.Flatten(value, axis=1)


SCORE_FORMS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "same": lambda op, s: s,
    "negative": lambda op, s: op.Neg(s),
    "first": lambda op, s: _score_difference(op, s, 0),
    "second": lambda op, s: _score_difference(op, s, 1),
    "log_sigmoid": lambda op, s: op.Neg(op.Softplus(op.Neg(s))),
}
"""Scores computed from the value upstream of an activation, by form: "negative" for 1 - p, "first" and "second" for one
of two columns of a softmax, "log_sigmoid" for sigmoids that are divided by their sum."""


def _score_difference(op: GraphBuilder, scores: ir.Value, first: int) -> ir.Value:
    one, other = (op.Gather(scores, [i], axis=1) for i in (first, 1 - first))
    return op.Sub(one, other)


OPPOSITE = {"same": "negative", "negative": "same", "first": "second", "second": "first"}
"""The form of 1 - p by that of p."""


# Readers: each returns the activation of a node's output, or None where it recognizes none. ``depth`` is the number of
# operators that may still be followed.


def _activation_of(value: ir.Value | None, depth: int) -> Activation | None:
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth or value is not node.outputs[0]:
        return None
    if node.op_type in SHAPE_ONLY and keeps_layout(node):
        return _activation_of(node.inputs[0], depth - 1)
    through = neutral_operand(node)
    if through is not None:
        return _activation_of(through, depth - 1)
    rule = _READERS.get(node.op_type)
    return None if rule is None else rule(node, depth - 1)


def _read_sigmoid(node: ir.Node, depth: int) -> Activation | None:
    x, form = node.inputs[0], "same"
    while x is not None and (operand := negation_operand(x)) is not None:
        x, form = operand, OPPOSITE[form]
    return None if x is None else Activation("sigmoid", x, form)


def _read_softmax(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    # before opset 13, a softmax runs over its axis and all later ones
    flattens = node.graph is not None and node.graph.opset_imports.get("", 0) < 13
    axis = int_attribute(node, "axis", 1 if flattens else -1)
    shaped = x if x is None or x.shape is not None else node.outputs[0]
    if x is None or not (is_per_row(shaped, [axis], flattens=flattens) or is_per_position(shaped, axis, flattens)):
        return None
    return Activation("softmax", x, log=node.op_type == "LogSoftmax")


def _read_exp(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    inner = _activation_of(x, depth)
    if inner is not None and inner.log:
        return replace(inner, log=False)
    return None if x is None else Activation("exp", x)


def _read_log(node: ir.Node, depth: int) -> Activation | None:
    inner = _activation_of(without_epsilon(node.inputs[0]), depth)
    return None if inner is None or inner.log or inner.link == "exp" else replace(inner, log=True)


def _read_bound(node: ir.Node, depth: int) -> Activation | None:
    """Look through bounds that leave all probabilities unchanged but those near 0 or 1."""
    at = next((i for i, x in enumerate(node.inputs) if x is not None and number_of(x) is None), 0)
    if node.op_type == "Clip":
        low, high = clip_bound(node, "min", 1), clip_bound(node, "max", 2)
        at = 0
    else:
        others = [number_of(x) for i, x in enumerate(node.inputs) if i != at]
        known = None if len(others) != 1 else others[0]
        low, high = (known, None) if node.op_type == "Max" else (None, known)
        if known is None:
            return None
    inner = _activation_of(node.inputs[at], depth)
    if inner is None or inner.log or inner.link == "exp":
        return None
    wide = (low is None or low <= NARROW) and (high is None or high >= 1 - NARROW)
    return inner if wide else None


def _read_sub(node: ir.Node, depth: int) -> Activation | None:
    """Match 1 - p, or the logarithm of a softmax, s - log(sum(exp(s)))."""
    first, second = node.inputs
    if number_of(first) == 1.0:
        return _complement(_activation_of(second, depth))
    total = None if second is None else without_reshaping(second).producer()
    if first is None or total is None or total.domain:
        return None
    if (
        total.op_type == "ReduceLogSumExp"
        and same_expression(total.inputs[0], first)
        and is_per_row(first, reduced_axes(total))
    ):
        return Activation("softmax", first, log=True)
    exponents = total.inputs[0].producer() if total.op_type == "Log" and total.inputs[0] is not None else None
    if exponents is None or not is_row_sum(exponents.outputs[0], of=None):
        return None
    exp = None if exponents.inputs[0] is None else exponents.inputs[0].producer()
    own = exp is not None and exp.op_type == "Exp" and not exp.domain and same_expression(exp.inputs[0], first)
    return Activation("softmax", without_maximum(first), log=True) if own else None


def _read_add(node: ir.Node, depth: int) -> Activation | None:
    """Match 1 - p written as Add."""
    for one, p in (node.inputs, node.inputs[::-1]):
        operand = None if p is None else negation_operand(p)
        if number_of(one) == 1.0 and operand is not None:
            return _complement(_activation_of(operand, depth))
    return None


def _complement(inner: Activation | None) -> Activation | None:
    if inner is None or inner.link != "sigmoid" or inner.log or inner.paired or inner.form not in OPPOSITE:
        return None
    return replace(inner, form=OPPOSITE[inner.form])


def _read_div(node: ir.Node, depth: int) -> Activation | None:
    above, below = node.inputs
    if above is not None and below is not None and is_row_sum(below, of=above):
        return _read_normalized(above, depth)
    p, total = _without_mask(above), _without_mask(below)
    if p is not None and total is not None and is_row_sum(total, of=p):
        # the mask changes rows whose sum is zero: sums of sigmoids are so by underflow alone
        inner = _activation_of(p, MAX_DEPTH)
        if inner is not None and inner.link == "sigmoid" and not inner.log:
            return _read_normalized(p, depth)
    return _hand_written_sigmoid(above, below)


def _without_mask(value: ir.Value | None) -> ir.Value | None:
    """Return x where ``value`` is x + m or x + n m, and m is 1 where a sum is zero, else 0, as skl2onnx writes it."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type != "Add":
        return None
    for x, mask in (node.inputs, node.inputs[::-1]):
        maker = None if mask is None else mask.producer()
        if maker is not None and maker.op_type == "Mul":
            factors = [v for v in maker.inputs if number_of(v) is None]
            maker = factors[0].producer() if len(factors) == 1 and factors[0] is not None else None
        flag = None if maker is None or maker.op_type != "Cast" else maker.inputs[0]
        inner = None if flag is None else flag.producer()
        if inner is not None and inner.op_type == "Not":
            return x
    return None


def _read_mul(node: ir.Node, depth: int) -> Activation | None:
    """Match a quotient written as a product with a reciprocal."""
    for above, factor in (node.inputs, node.inputs[::-1]):
        maker = None if factor is None else without_reshaping(factor).producer()
        if maker is not None and maker.op_type == "Reciprocal" and not maker.domain and above is not None:
            below = maker.inputs[0]
            if below is not None and is_row_sum(below, of=above):
                return _read_normalized(above, depth)
    return None


def _read_norm(node: ir.Node, depth: int) -> Activation | None:
    """Match a normalization by the L1 norm."""
    x, axis = node.inputs[0], int_attribute(node, "axis", -1)
    if x is None or int_attribute(node, "p", 2) != 1 or not is_per_row(x, [axis]):
        return None
    return _read_normalized(x, depth)


def _read_normalized(above: ir.Value, depth: int) -> Activation | None:
    """Return the softmax that results where ``above`` is divided by its row sum.

    ``above`` are exponentials, sigmoids, whose logarithms are the scores, or a softmax already.
    """
    maker, inner = without_reshaping(above).producer(), _activation_of(above, depth)
    if maker is not None and maker.op_type == "Exp" and not maker.domain and inner is not None and inner.link == "exp":
        return Activation("softmax", without_maximum(inner.base))
    if inner is None or inner.log or inner.paired:
        return inner if inner is not None and inner.paired else None
    if inner.link == "softmax":
        return inner
    plain = inner.link == "sigmoid" and inner.form == "same"
    return replace(inner, link="softmax", form="log_sigmoid") if plain else None


def _hand_written_sigmoid(above: ir.Value | None, below: ir.Value | None) -> Activation | None:
    """Match 1 / (1 + exp(-s)), or exp(s) / (1 + exp(s))."""
    node = None if below is None else below.producer()
    if node is None or node.domain or node.op_type != "Add":
        return None
    numbers = [number_of(x) for x in node.inputs]
    exponential = node.inputs[1 - numbers.index(1.0)] if 1.0 in numbers else None
    maker = None if exponential is None else exponential.producer()
    if maker is None or maker.domain or maker.op_type != "Exp" or maker.inputs[0] is None:
        return None
    x = maker.inputs[0]
    if above is not None and number_of(above) != 1.0:
        return Activation("sigmoid", x) if same_expression(above, exponential) else None
    return _sigmoid_of_negation(without_bound(x))


def _sigmoid_of_negation(x: ir.Value) -> Activation:
    """Return the sigmoid of -x."""
    operand = negation_operand(x)
    return Activation("sigmoid", x, "negative") if operand is None else Activation("sigmoid", operand)


def _read_neg(node: ir.Node, depth: int) -> Activation | None:
    """Match the logarithm of a sigmoid, -softplus(-s)."""
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    if maker is None or maker.domain or maker.op_type != "Softplus" or maker.inputs[0] is None:
        return None
    return replace(_sigmoid_of_negation(maker.inputs[0]), log=True)


def _read_concat(node: ir.Node, depth: int) -> Activation | None:
    """Match the columns 1 - p and p in either order, or their logarithms."""
    if len(node.inputs) != 2 or not is_per_row(node.outputs[0], [int_attribute(node, "axis", 0)]):
        return None
    if any(x is None or x.shape is None or x.shape[int_attribute(node, "axis", 0)] != 1 for x in node.inputs):
        return None
    first, second = (_activation_of(x, depth) for x in node.inputs)
    if first is None or second is None or second.form not in OPPOSITE or second.link != "sigmoid":
        return None
    opposite = replace(second, form=OPPOSITE[second.form])
    return replace(second, paired=True) if first == opposite and not second.paired else None


def _read_column(node: ir.Node, depth: int) -> Activation | None:
    """Match one of the two columns of a softmax, or of 1 - p and p."""
    x, index = node.inputs[0], _selected_column(node)
    if x is None or x.shape is None or list(x.shape[1:]) != [2] or index not in (0, 1):
        return None
    inner = _activation_of(x, depth)
    if inner is None or inner.log:
        return None
    if inner.paired:
        return replace(inner, paired=False, form=inner.form if index else OPPOSITE[inner.form])
    plain = inner.link == "softmax" and inner.form == "same" and inner.base.shape is not None
    if not plain or len(inner.base.shape) != 2:  # type: ignore[arg-type]
        return None
    return Activation("sigmoid", inner.base, "second" if index else "first")


def _selected_column(node: ir.Node) -> int | None:
    """Return the only column that a Gather or Slice selects from two, 0 or 1."""
    if node.op_type == "Gather":
        number = number_of(node.inputs[1]) if int_attribute(node, "axis", 0) in (1, -1) else None
        return None if number is None else int(number) % 2
    if "starts" in node.attributes:  # Slice before opset 10
        starts, ends = (list(node.attributes[k].as_ints()) for k in ("starts", "ends"))
        axes = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else [0]
        steps = [1]
    else:
        given = [None if len(node.inputs) <= i else number_of(node.inputs[i]) for i in range(1, 5)]
        starts, ends, axes = ([-9 if n is None else int(n)] for n in given[:3])
        steps = [1 if len(node.inputs) < 5 else int(given[3] or 0)]
    if len(starts) != 1 or axes not in ([1], [-1]) or steps != [1]:
        return None
    columns = range(2)[starts[0] : ends[0]]
    return columns[0] if len(columns) == 1 else None


_READERS: dict[str, Callable[[ir.Node, int], Activation | None]] = {
    "Add": _read_add,
    "Clip": _read_bound,
    "Concat": _read_concat,
    "Div": _read_div,
    "Exp": _read_exp,
    "Gather": _read_column,
    "Log": _read_log,
    "LogSoftmax": _read_softmax,
    "LpNormalization": _read_norm,
    "Max": _read_bound,
    "Min": _read_bound,
    "Mul": _read_mul,
    "Neg": _read_neg,
    "Reciprocal": lambda node, depth: _hand_written_sigmoid(None, node.inputs[0]),
    "Sigmoid": _read_sigmoid,
    "Slice": _read_column,
    "Softmax": _read_softmax,
    "Sub": _read_sub,
}
