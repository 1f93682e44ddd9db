"""Recognize the final activation of a graph: its link, and the scores before it. Also rewrite overflowing sigmoids.

:func:`activation_of` reads a graph backwards from its output, with one reader per operator, and returns the
:class:`Activation` that it recognizes. An activation holds for every value of the weights: its link, applied to the
scores, is the output of the graph, up to bounds that only keep probabilities off 0 and 1. If the output is known to
hold probabilities but no activation is recognized, :func:`scores_of` computes scores from the output itself.

:func:`use_stable_forms` bounds exponents, so that gradients of sigmoids written with Exp stay finite. Both match the
same expressions with the functions at the end of the module, which look through operators that change only the shape of
a value, or nothing, and through tiny bounds and summands that keep a number off zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, replace_value
from .._ir.queries import number_of, operand
from ..graph import GraphBuilder
from .batch_axis import SIZES

LOG_EPSILON = 1e-7
"""Number added to probabilities and means before their logarithm, to keep it finite."""


@dataclass(frozen=True)
class Activation:
    """A final activation.

    Attributes
    ----------
    link : {"softmax", "sigmoid", "exp"}
        The function from scores to predictions.
    base : onnx_ir.Value
        The input of the activation.
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
    """Return the final activation whose output is ``final``; None if no activation is recognized."""
    found = _activation_of(final, MAX_DEPTH)
    # log(exp(s)) is s, which needs no activation
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

    Only axes of size one are dropped; a value with three longer axes is returned unchanged.
    """
    if value.shape is None or len(value.shape) < 3:
        return value
    # The rows are on the first axis that may be long. An axis of one row counts if no other one can be that of the
    # rows, because its size is fixed or given with an example: (1, k, 1) is then a row of k.
    sizes = list(value.shape)
    is_example = any(one.name == SIZES for one in op.graph.inputs)
    one_row = is_example or all(isinstance(size, int) for size in sizes)
    rows = 0 if one_row else next(i for i, size in enumerate(sizes) if size != 1)
    long = [size for size in sizes[rows + 1 :] if size != 1]
    if len(long) > 1:
        return value
    width = long[0] if long else 1
    return op.Reshape(value, [-1, width]) if isinstance(width, int) else op.Flatten(value, axis=1)


SCORE_FORMS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "same": lambda op, s: s,
    "negative": lambda op, s: op.Neg(s),
    "first": lambda op, s: _score_difference(op, s, 0),
    "second": lambda op, s: _score_difference(op, s, 1),
    "log_sigmoid": lambda op, s: op.Neg(op.Softplus(op.Neg(s))),
}
"""Functions that emit the scores from the input of an activation, by form: "negative" for 1 - p, "first" and "second"
for one of two columns of a softmax, "log_sigmoid" for sigmoids that are divided by their sum."""


def _score_difference(op: GraphBuilder, scores: ir.Value, first: int) -> ir.Value:
    one, other = (op.Gather(scores, [i], axis=1) for i in (first, 1 - first))
    return op.Sub(one, other)


OPPOSITE = {"same": "negative", "negative": "same", "first": "second", "second": "first"}
"""Maps the form of p to the form of 1 - p."""


# Readers: each returns the activation of a node's output, or None if it recognizes none. ``depth`` limits how many
# operators the search goes back.


def _activation_of(value: ir.Value | None, depth: int) -> Activation | None:
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth or value is not node.outputs[0]:
        return None
    if node.op_type in SHAPE_ONLY and _keeps_layout(node):
        return _activation_of(node.inputs[0], depth - 1)
    # skip an operation with a neutral constant, such as x + 0 or x * 1
    neutral = _NEUTRAL.get(node.op_type)
    for i in (0, 1) if node.op_type in ("Mul", "Add") else (0,):
        if neutral is not None and number_of(node.inputs[1 - i]) == neutral:
            return _activation_of(node.inputs[i], depth - 1)
    rule = _READERS.get(node.op_type)
    return None if rule is None else rule(node, depth - 1)


def _read_sigmoid(node: ir.Node, depth: int) -> Activation | None:
    x, form = node.inputs[0], "same"
    while x is not None and (operand := _negation_operand(x)) is not None:
        x, form = operand, OPPOSITE[form]
    return None if x is None else Activation("sigmoid", x, form)


def _read_softmax(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    # before opset 13, a softmax runs over its axis and all later ones
    flattens = node.graph is not None and node.graph.opset_imports.get("", 0) < 13
    axis = node.attributes.get_int("axis", 1 if flattens else -1)
    shaped = x if x is None or x.shape is not None else node.outputs[0]
    if x is None or not (_is_per_row(shaped, [axis], flattens=flattens) or _is_per_position(shaped, axis, flattens)):
        return None
    return Activation("softmax", x, log=node.op_type == "LogSoftmax")


def _read_exp(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    inner = _activation_of(x, depth)
    if inner is not None and inner.log:  # exp(log(p)) is p
        return replace(inner, log=False)
    return None if x is None else Activation("exp", x)


def _read_log(node: ir.Node, depth: int) -> Activation | None:
    inner = _activation_of(_without_epsilon(node.inputs[0]), depth)
    return None if inner is None or inner.log or inner.link == "exp" else replace(inner, log=True)


def _read_bound(node: ir.Node, depth: int) -> Activation | None:
    """Ignore bounds that change only probabilities near 0 or 1."""
    # ``at`` is the position of the bounded value; Max and Min may have it on either side.
    at = next((i for i, x in enumerate(node.inputs) if x is not None and number_of(x) is None), 0)
    if node.op_type == "Clip":
        low, high = _clip_bound(node, "min", 1), _clip_bound(node, "max", 2)
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
    total = None if second is None else _without_reshaping(second).producer()
    if first is None or total is None or total.domain:
        return None
    if (
        total.op_type == "ReduceLogSumExp"
        and _same_expression(total.inputs[0], first)
        and _is_per_row(first, _reduced_axes(total))
    ):
        return Activation("softmax", first, log=True)
    exponents = total.inputs[0].producer() if total.op_type == "Log" and total.inputs[0] is not None else None
    if exponents is None or not is_row_sum(exponents.outputs[0], of=None):
        return None
    exp = None if exponents.inputs[0] is None else exponents.inputs[0].producer()
    own = exp is not None and exp.op_type == "Exp" and not exp.domain and _same_expression(exp.inputs[0], first)
    return Activation("softmax", _without_maximum(first), log=True) if own else None


def _read_add(node: ir.Node, depth: int) -> Activation | None:
    """Match 1 - p written as an Add."""
    for one, p in (node.inputs, node.inputs[::-1]):
        operand = None if p is None else _negation_operand(p)
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
        # ignore the mask: it changes only rows whose sum is zero, and a sum of sigmoids is zero only by underflow
        inner = _activation_of(p, MAX_DEPTH)
        if inner is not None and inner.link == "sigmoid" and not inner.log:
            return _read_normalized(p, depth)
    return _hand_written_sigmoid(above, below)


def _without_mask(value: ir.Value | None) -> ir.Value | None:
    """Return x if ``value`` is x + m or x + n m, where m is 1 in rows whose sum is zero, else 0, as skl2onnx writes."""
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
        maker = None if factor is None else _without_reshaping(factor).producer()
        if maker is not None and maker.op_type == "Reciprocal" and not maker.domain and above is not None:
            below = maker.inputs[0]
            if below is not None and is_row_sum(below, of=above):
                return _read_normalized(above, depth)
    return None


def _read_norm(node: ir.Node, depth: int) -> Activation | None:
    """Match a normalization by the L1 norm."""
    x = node.inputs[0]
    axis = node.attributes.get_int("axis", -1)
    if x is None or node.attributes.get_int("p", 2) != 1 or not _is_per_row(x, [axis]):
        return None
    return _read_normalized(x, depth)


def _read_normalized(above: ir.Value, depth: int) -> Activation | None:
    """Return the softmax that results if ``above`` is divided by its row sum.

    ``above`` holds exponentials, sigmoids (the scores are then their logarithms), or a softmax already.
    """
    maker = _without_reshaping(above).producer()
    inner = _activation_of(above, depth)
    if maker is not None and maker.op_type == "Exp" and not maker.domain and inner is not None and inner.link == "exp":
        return Activation("softmax", _without_maximum(inner.base))
    if inner is None or inner.log or inner.paired:
        # The columns 1 - p and p add up to one already.
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
        return Activation("sigmoid", x) if _same_expression(above, exponential) else None
    return _sigmoid_of_negation(_without_bound(x))


def _sigmoid_of_negation(x: ir.Value) -> Activation:
    """Return the activation ``sigmoid(-x)``."""
    operand = _negation_operand(x)
    return Activation("sigmoid", x, "negative") if operand is None else Activation("sigmoid", operand)


def _read_neg(node: ir.Node, depth: int) -> Activation | None:
    """Match the logarithm of a sigmoid, -softplus(-s)."""
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    if maker is None or maker.domain or maker.op_type != "Softplus" or maker.inputs[0] is None:
        return None
    return replace(_sigmoid_of_negation(maker.inputs[0]), log=True)


def _read_concat(node: ir.Node, depth: int) -> Activation | None:
    """Match the columns 1 - p and p in either order, or their logarithms."""
    if len(node.inputs) != 2 or not _is_per_row(node.outputs[0], [node.attributes.get_int("axis", 0)]):
        return None
    if any(x is None or x.shape is None or x.shape[node.attributes.get_int("axis", 0)] != 1 for x in node.inputs):
        return None
    first, second = (_activation_of(x, depth) for x in node.inputs)
    if first is None or second is None or second.form not in OPPOSITE or second.link != "sigmoid":
        return None
    opposite = replace(second, form=OPPOSITE[second.form])
    return replace(second, paired=True) if first == opposite and not second.paired else None


def _read_column(node: ir.Node, depth: int) -> Activation | None:
    """Match one column of a softmax of two scores, or of the pair 1 - p and p."""
    x, index = node.inputs[0], _selected_column(node)
    if x is None or x.shape is None or list(x.shape[1:]) != [2] or index not in (0, 1):
        return None
    inner = _activation_of(x, depth)
    if inner is None or inner.log:
        return None
    if inner.paired:
        return replace(inner, paired=False, form=inner.form if index else OPPOSITE[inner.form])
    # A column of a softmax of two scores is the sigmoid of their difference: the loss then trains one score.
    plain = inner.link == "softmax" and inner.form == "same" and inner.base.shape is not None
    if not plain or len(inner.base.shape) != 2:  # type: ignore[arg-type]
        return None
    return Activation("sigmoid", inner.base, "second" if index else "first")


def _selected_column(node: ir.Node) -> int | None:
    """Return the index, 0 or 1, of the only column that a Gather or Slice selects from two; None for other nodes."""
    if node.op_type == "Gather":
        number = number_of(node.inputs[1]) if node.attributes.get_int("axis", 0) in (1, -1) else None
        return None if number is None else int(number) % 2
    if "starts" in node.attributes:  # Slice before opset 10
        starts, ends = (list(node.attributes[k].as_ints()) for k in ("starts", "ends"))
        axes = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else [0]
        steps = [1]
    else:
        given = [None if len(node.inputs) <= i else number_of(node.inputs[i]) for i in range(1, 5)]
        # -9 stands for an unknown number: as an end or an axis it matches nothing below; as a start it acts as 0, the
        # only possible start before an end of 1.
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


# Rewrite overflowing sigmoids. In float32, ``1 / (1 + exp(z))`` is 0 for z > 88.7, which is right. But its gradient,
# ``-exp(z) / (1 + exp(z))²``, is computed as infinity times zero: NaN. With z bounded by 88, the value changes by at
# most 6e-39, and the gradient is finite. The operator Sigmoid cannot replace it, because onnxruntime's result is never
# below 1.5e-8.


def use_stable_forms(model: ir.Model) -> bool:
    """Bound the exponents of sigmoids and softplus in the main graph, in place; return True if there were any."""
    graph = model.graph
    if graph.opset_imports.get("", 0) < 8 or not any(node.op_type == "Exp" for node in graph):
        return False  # before opset 8, Min does not broadcast
    op = GraphBuilder(graph, prefix="stable", constant_nodes=True)
    replaced = []
    for node in list(graph):
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is not None and (made := rule(op, node)) is not None:
            replace_value(op, node.outputs[0], made)
            replaced.append(node)
    if replaced:
        graph.sort()
        remove_unread(graph, list(graph))
    return bool(replaced)


def _reciprocal(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match 1 / (1 + exp(z))."""
    z = _exponent_of_sum(operand(node, 0))
    return None if z is None else _bounded(op, z)


def _quotient(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match 1 / (1 + exp(z)), or exp(z) / (1 + exp(z))."""
    above = operand(node, 0)
    z = _exponent_of_sum(operand(node, 1))
    if z is None or above is None:
        return None
    if number_of(above) == 1.0:
        return _bounded(op, z) if _keeps_rank(above, z) else None
    return _bounded(op, _negated(op, z)) if _is_exponential(above, z) else None


def _product(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match exp(z) * (1 / (1 + exp(z))), whose second factor has been replaced already."""
    for above, factor in ((operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))):
        maker = None if factor is None else factor.producer()  # _reciprocal has bounded its exponent
        if above is None or maker is None or maker.domain or maker.op_type != "Reciprocal":
            continue
        bounded = _exponent_of_sum(operand(maker, 0))
        z = None if bounded is None else _without_bound(bounded)
        if z is not None and _is_exponential(above, z):
            return _bounded(op, _negated(op, z))
    return None


def _power(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match (1 + exp(z)) ** -1."""
    exponent = operand(node, 1)
    if exponent is None or number_of(exponent) != -1.0:
        return None
    z = _exponent_of_sum(operand(node, 0))
    return _bounded(op, z) if z is not None and _keeps_rank(exponent, z) else None


def _logarithm(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match log(1 + exp(z)) in float32. onnxruntime has no float64 Softplus to replace it in float64."""
    z = _exponent_of_sum(operand(node, 0))
    return op.Softplus(z) if z is not None and z.dtype is ir.DataType.FLOAT else None


_RULES: dict[str, Callable[[GraphBuilder, ir.Node], ir.Value | None]] = {
    "Div": _quotient,
    "Log": _logarithm,
    "Mul": _product,
    "Pow": _power,
    "Reciprocal": _reciprocal,
}


def _exponent_of_sum(value: ir.Value | None) -> ir.Value | None:
    """Return z if ``value`` is 1 + exp(z) and has the shape of z."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Add", "Sum") or len(node.inputs) != 2:
        return None
    for one, exponential in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        maker = None if exponential is None else exponential.producer()
        if one is None or number_of(one) != 1.0 or maker is None or maker.domain or maker.op_type != "Exp":
            continue
        z = operand(maker, 0)
        if z is not None and _keeps_rank(one, z):
            return z
    return None


def _keeps_rank(number: ir.Value, z: ir.Value) -> bool:
    """Return True if a constant of one element has no more axes than z, so that broadcasting adds no axis to z."""
    tensor = ir.convenience.get_const_tensor(number)
    return tensor is not None and len(tensor.shape) <= (0 if z.shape is None else len(z.shape))


def _is_exponential(value: ir.Value, z: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and not maker.domain and maker.op_type == "Exp" and _same_expression(operand(maker, 0), z)


def _negated(op: GraphBuilder, z: ir.Value) -> ir.Value:
    positive = _negation_operand(z)
    return op.Neg(z) if positive is None else positive


def _bounded(op: GraphBuilder, z: ir.Value) -> ir.Value | None:
    """Return 1 / (1 + exp(min(z, b))), where b is the largest whole number whose exponential is finite."""
    if z.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or _without_bound(z) is not z:
        return None
    kind = z.dtype.numpy()
    bound = np.array(np.floor(np.log(np.finfo(kind).max)), kind)
    return op.Reciprocal(op.Add(op.Exp(op.Min(z, bound)), np.array(1, kind)))


# Match expressions that exporters write around sigmoids, softmaxes and exponentials, by nodes and constants alone.


NARROW = 1e-4
"""Bounds within this distance of 0 or 1 only keep logarithms finite, so they are ignored."""

MAX_DEPTH = 32
"""Most operators of a chain that is searched; final activations of real graphs have fewer."""

SHAPE_ONLY = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that may change only the shape of their first input; :func:`_keeps_layout` decides for a node."""

_FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}
"""The neutral constant of each operator: with this operand, it returns its other input."""


def _same_expression(one: ir.Value | None, other: ir.Value | None, depth: int = 4) -> bool:
    """Return True if two values are computed by the same expression, which some exporters write twice."""
    if one is other or one is None or other is None:
        return one is other
    a, b = one.producer(), other.producer()
    if a is None or b is None or not depth or (a.op_type, a.domain) != (b.op_type, b.domain):
        number = number_of(one)
        return number is not None and number == number_of(other)
    alike = len(a.inputs) == len(b.inputs) and {k: str(v) for k, v in a.attributes.items()} == {
        k: str(v) for k, v in b.attributes.items()
    }
    return alike and all(_same_expression(x, y, depth - 1) for x, y in zip(a.inputs, b.inputs, strict=True))


def _negation_operand(value: ir.Value) -> ir.Value | None:
    """Return x if ``value`` is -x, written as Neg, as a product with -1 or as 0 - x."""
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Mul" and -1.0 in (numbers := [number_of(x) for x in node.inputs]):
        return node.inputs[1 - numbers.index(-1.0)]
    zero = node.op_type == "Sub" and number_of(node.inputs[0]) == 0.0
    return node.inputs[0] if node.op_type == "Neg" else node.inputs[1] if zero else None


def _without_bound(value: ir.Value) -> ir.Value:
    """Return x if ``value`` is min(x, b), and b is the bound below which an exponential is finite.

    :func:`use_stable_forms` writes these bounds: 88 in float32, 709 in float64.
    """
    node = value.producer()
    if node is None or node.domain or node.op_type != "Min" or len(node.inputs) != 2 or node.inputs[0] is None:
        return value
    return node.inputs[0] if number_of(node.inputs[1]) in (88.0, 709.0) else value


def _without_epsilon(value: ir.Value | None) -> ir.Value | None:
    """Return x if ``value`` is x plus a tiny constant, else ``value``."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type != "Add":
        return value
    tiny = [x is not None and 0 < (number_of(x) or 0) <= NARROW for x in node.inputs]
    return node.inputs[1 - tiny.index(True)] if any(tiny) else value


def _without_reshaping(value: ir.Value) -> ir.Value:
    """Return the value upstream of nodes that only change its shape or keep it off zero by tiny bounds or summands."""
    for _ in range(MAX_DEPTH):
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return value
        tiny = False  # a bound or a summand that keeps the value off zero
        if node.op_type == "Clip":
            tiny = (_clip_bound(node, "min", 1) or 0) <= NARROW and _clip_bound(node, "max", 2) is None
        elif node.op_type in ("Max", "Add"):
            tiny = len(node.inputs) == 2 and 0 <= (number_of(node.inputs[1]) or -1) <= NARROW
        if node.op_type != "Expand" and not tiny and not (node.op_type in SHAPE_ONLY and _keeps_layout(node)):
            return value
        value = node.inputs[0]
    return value


def _keeps_layout(node: ir.Node) -> bool:
    """Return True if a node of ``SHAPE_ONLY`` returns the same floats, in the same order and rows."""
    x = node.inputs[0]
    if x is None or node.op_type == "Identity":
        return x is not None
    if node.op_type == "Cast":
        return bool(x.dtype and x.dtype.is_floating_point() and node.outputs[0].dtype in _FLOAT_TYPES)
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 or node.inputs[2] is None or number_of(node.inputs[2]) == 0.0
    if node.op_type == "Transpose":  # a Transpose may move axes of size one
        if x.shape is None:
            return False
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(x.shape))[::-1]
        long = [axis for axis in order if x.shape[axis] != 1]
        return long == sorted(long)
    return True


def _clip_bound(node: ir.Node, name: str, position: int) -> float | None:
    """Return the bound ``name`` of a Clip; None if it is left out. A computed bound counts as the tightest possible."""
    if name in node.attributes:
        return node.attributes[name].as_float()
    if len(node.inputs) <= position or node.inputs[position] is None:
        return None
    number = number_of(node.inputs[position])
    return (float("inf") if name == "min" else -float("inf")) if number is None else number


def is_row_sum(value: ir.Value, *, of: ir.Value | None) -> bool:
    """Return True if ``value`` is the sum (or L1 norm) of each row of ``of``, or of any value if ``of`` is None."""
    node = _without_reshaping(value).producer()
    if node is None or node.domain or node.op_type not in ("ReduceL1", "ReduceSum"):
        return False
    x = node.inputs[0]
    if x is None or not _is_per_row(x, _reduced_axes(node)):
        return False
    return of is None or _same_expression(_without_reshaping(x), _without_reshaping(of))


def _is_per_row(x: ir.Value | None, axes: Sequence[int], *, flattens: bool = False) -> bool:
    """Return True if a reduction over ``axes`` covers each whole row; with ``flattens``, over all later axes too."""
    if x is None or x.shape is None or len(axes) != 1:
        return False
    rank = len(x.shape)
    axis = axes[0] + rank if axes[0] < 0 else axes[0]
    long = [i for i in range(rank) if x.shape[i] != 1]
    rest = [i for i in long if i < axis] if flattens else [i for i in long if i != axis]
    return rank > 1 and len(rest) == 1 and rest[0] < axis


def _is_per_position(x: ir.Value | None, axis: int, flattens: bool) -> bool:
    """Return True if ``axis`` may hold the classes of each position of a row. The data decide later whether it does."""
    if x is None or x.shape is None or flattens:
        return False
    return len(x.shape) > 2 and axis % len(x.shape) in (1, len(x.shape) - 1)


def _reduced_axes(node: ir.Node) -> Sequence[int]:
    """Return the axes of a reduction; an empty sequence if they are not constant."""
    if "axes" in node.attributes:
        return node.attributes["axes"].as_ints()
    tensor = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return () if tensor is None else [int(axis) for axis in tensor.numpy().ravel()]


def _without_maximum(exponent: ir.Value) -> ir.Value:
    """Return the scores before their row maximum was subtracted, which does not change a softmax."""
    node = exponent.producer()
    if node is None or node.domain or node.op_type != "Sub" or node.inputs[1] is None:
        return exponent
    maximum = _without_reshaping(node.inputs[1])
    bounding = maximum.producer()
    if bounding is not None and not bounding.domain and bounding.op_type == "Max" and len(bounding.inputs) == 2:
        for bound, other in (bounding.inputs, bounding.inputs[::-1]):
            if other is not None and number_of(bound) == -math.inf:  # JAX starts a maximum from -inf
                maximum = other
                break
    largest = _without_reshaping(maximum).producer()
    own = largest is not None and largest.op_type == "ReduceMax" and _same_expression(largest.inputs[0], node.inputs[0])
    return node.inputs[0] if own and node.inputs[0] is not None else exponent
