"""What a graph ends in: the final activation that losses look behind, and the scores behind it.

The graph is read backwards from its output. Operators that only change the shape, or nothing, are seen through; so are
bounds that keep probabilities off 0 and 1. What is returned holds for every value of the weights: the link, applied to
the scores, is the output, up to those bounds. Nothing here looks at numbers that a graph computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from .builder import GraphBuilder
from .queries import int_attribute

NARROW = 1e-4
"""Bounds as near as this to 0 and 1 are there to keep logarithms finite: they are no part of the model."""

EPSILON = 1e-7
"""What is added to probabilities and means of which the logarithm is taken."""

_DEEP = 32
"""Most operators that are read: real endings are shorter."""


@dataclass(frozen=True)
class Activation:
    """A final activation.

    Attributes
    ----------
    link : {"softmax", "sigmoid", "exp"}
    base : onnx_ir.Value
        What goes into it.
    form : str
        How the scores come from ``base``, a name in ``FORMS``.
    log : bool
        Whether the output is the logarithm of what the link gives.
    paired : bool
        Whether the output has two columns, 1 - p and p, of one score.
    """

    link: str
    base: ir.Value
    form: str = "same"
    log: bool = False
    paired: bool = False

    def scores(self, graph: ir.Graph, final: ir.Value) -> ir.Value:
        """Return the scores, emitting at the end of ``graph`` what is not there; ``final`` is the graph's output."""
        scores = self.base
        op = GraphBuilder(graph, dtype=scores.dtype or ir.DataType.FLOAT, prefix="scores", constant_nodes=True)
        scores = as_rows(op, FORMS[self.form](op, scores))
        if None not in (scores.dtype, final.dtype) and scores.dtype != final.dtype:
            scores = op.Cast(scores, to=final.dtype)
        return scores


def as_rows(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return a value of more than two axes with a row for each row of the batch; all others are of size one."""
    long = [] if value.shape is None else [size for size in value.shape if size != 1]
    if value.shape is None or len(value.shape) < 3 or len(long) > 2:
        return value
    width = long[1] if len(long) == 2 else 1
    return op.Reshape(value, [-1, width]) if isinstance(width, int) else op.Flatten(value, axis=1)


def scores_of(op: GraphBuilder, output: ir.Value, link: str, *, log: bool) -> ir.Value:
    """Emit scores whose ``link`` is what the graph gives: the logarithms, or log-odds, of its numbers.

    Numbers are kept off zero, where a logarithm is infinite; below it they have no gradient.
    """
    output = as_rows(op, output)
    numbers = op.Exp(output) if log else output
    logs = _log_of(op, numbers)
    return op.Sub(logs, _log_of(op, op.Sub(1.0, numbers))) if link == "sigmoid" else logs


def _log_of(op: GraphBuilder, numbers: ir.Value) -> ir.Value:
    return op.Log(op.Add(op.Relu(numbers), EPSILON))


def _difference(op: GraphBuilder, scores: ir.Value, first: int) -> ir.Value:
    one, other = (op.Gather(scores, [i], axis=1) for i in (first, 1 - first))
    return op.Sub(one, other)


FORMS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "same": lambda op, s: s,
    "negative": lambda op, s: op.Neg(s),
    "first": lambda op, s: _difference(op, s, 0),
    "second": lambda op, s: _difference(op, s, 1),
    "log_sigmoid": lambda op, s: op.Neg(op.Softplus(op.Neg(s))),
}
"""Scores that are not the input of an operator: those of 1 - p, of one of two columns, of sigmoids over their sum."""

_OPPOSITE = {"same": "negative", "negative": "same", "first": "second", "second": "first"}


def activation_of(final: ir.Value) -> Activation | None:
    """Return the activation that ``final`` is the output of; None: there is none, or none that is known."""
    found = _read(final, _DEEP)
    return found if found is None or found.link != "exp" or not found.log else None


def _read(value: ir.Value | None, depth: int) -> Activation | None:
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth or value is not node.outputs[0]:
        return None
    if node.op_type in _SAME_NUMBERS and _keeps_layout(node):
        return _read(node.inputs[0], depth - 1)
    through = neutral(node)
    if through is not None:
        return _read(through, depth - 1)
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, depth - 1)


# What is seen through

_SAME_NUMBERS = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})

_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}
"""The number that an operator gives its other input back with."""


def _keeps_layout(node: ir.Node) -> bool:
    """Whether a node of ``_SAME_NUMBERS`` gives the same floats, in the same order and rows."""
    x = node.inputs[0]
    if x is None or node.op_type == "Identity":
        return x is not None
    if node.op_type == "Cast":
        return bool(x.dtype and x.dtype.is_floating_point() and node.outputs[0].dtype in _FLOATS)
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 or node.inputs[2] is None or _number(node.inputs[2]) == 0.0
    if node.op_type == "Transpose":
        return _keeps_order(node, x)
    return True


_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _keeps_order(node: ir.Node, x: ir.Value) -> bool:
    """Whether a Transpose moves axes of size one alone."""
    if x.shape is None:
        return False
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(x.shape))[::-1]
    long = [axis for axis in order if x.shape[axis] != 1]
    return long == sorted(long)


def neutral(node: ir.Node) -> ir.Value | None:
    """Return the input that a sum or product with a neutral number gives back."""
    number = _NEUTRAL.get(node.op_type)
    if number is None or node.domain:
        return None
    sides = (0, 1) if node.op_type in ("Mul", "Add") else (0,)
    return next((node.inputs[i] for i in sides if _number(node.inputs[1 - i]) == number), None)


def _number(value: ir.Value | None) -> float | None:
    """Return the number that a constant of one element holds."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().ravel()[0]) if tensor is not None and tensor.size == 1 else None


def _same(one: ir.Value | None, other: ir.Value | None, depth: int = 4) -> bool:
    """Whether two values are computed alike: some exporters write an expression twice."""
    if one is other or one is None or other is None:
        return one is other
    a, b = one.producer(), other.producer()
    if a is None or b is None or not depth or (a.op_type, a.domain) != (b.op_type, b.domain):
        number = _number(one)
        return number is not None and number == _number(other)
    alike = len(a.inputs) == len(b.inputs) and {k: str(v) for k, v in a.attributes.items()} == {
        k: str(v) for k, v in b.attributes.items()
    }
    return alike and all(_same(x, y, depth - 1) for x, y in zip(a.inputs, b.inputs, strict=True))


def _per_row(x: ir.Value | None, axes: Sequence[int], *, flattens: bool = False) -> bool:
    """Whether to go over ``axes`` is to go over all numbers of each row; ``flattens``: over those behind, too."""
    if x is None or x.shape is None or len(axes) != 1:
        return False
    rank = len(x.shape)
    axis = axes[0] + rank if axes[0] < 0 else axes[0]
    long = [i for i in range(rank) if x.shape[i] != 1]
    rest = [i for i in long if i < axis] if flattens else [i for i in long if i != axis]
    return rank > 1 and len(rest) == 1 and rest[0] < axis


def _axes(node: ir.Node) -> Sequence[int]:
    if "axes" in node.attributes:
        return node.attributes["axes"].as_ints()
    tensor = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return () if tensor is None else [int(axis) for axis in tensor.numpy().ravel()]


# The operators that probabilities and means are made by


def _sigmoid(node: ir.Node, depth: int) -> Activation | None:
    x, form = node.inputs[0], "same"
    while x is not None and (negated := _negated(x)) is not None:
        x, form = negated, _OPPOSITE[form]
    return None if x is None else Activation("sigmoid", x, form)


def _negated(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Mul" and -1.0 in (numbers := [_number(x) for x in node.inputs]):
        return node.inputs[1 - numbers.index(-1.0)]
    zero = node.op_type == "Sub" and _number(node.inputs[0]) == 0.0
    return node.inputs[0] if node.op_type == "Neg" else node.inputs[1] if zero else None


def _softmax(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    flattens = node.graph is not None and node.graph.opset_imports.get("", 0) < 13
    axis = int_attribute(node, "axis", 1 if flattens else -1)
    if x is None or not _per_row(x if x.shape is not None else node.outputs[0], [axis], flattens=flattens):
        return None
    return Activation("softmax", x, log=node.op_type == "LogSoftmax")


def _exp(node: ir.Node, depth: int) -> Activation | None:
    x = node.inputs[0]
    inner = _read(x, depth)
    if inner is not None and inner.log:
        return replace(inner, log=False)
    return None if x is None else Activation("exp", x)


def _log(node: ir.Node, depth: int) -> Activation | None:
    inner = _read(_behind_epsilon(node.inputs[0]), depth)
    return None if inner is None or inner.log or inner.link == "exp" else replace(inner, log=True)


def _behind_epsilon(value: ir.Value | None) -> ir.Value | None:
    """Return what a tiny number was added to, to keep it off zero; or the value as it is."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type != "Add":
        return value
    tiny = [x is not None and 0 < (_number(x) or 0) <= NARROW for x in node.inputs]
    return node.inputs[1 - tiny.index(True)] if any(tiny) else value


def _bounded(node: ir.Node, depth: int) -> Activation | None:
    """Read through bounds of probabilities that are hardly any."""
    at = next((i for i, x in enumerate(node.inputs) if x is not None and _number(x) is None), 0)
    if node.op_type == "Clip":
        low, high = _bound(node, "min", 1), _bound(node, "max", 2)
        at = 0
    else:
        others = [_number(x) for i, x in enumerate(node.inputs) if i != at]
        known = None if len(others) != 1 else others[0]
        low, high = (known, None) if node.op_type == "Max" else (None, known)
        if known is None:
            return None
    inner = _read(node.inputs[at], depth)
    if inner is None or inner.log or inner.link == "exp":
        return None
    wide = (low is None or low <= NARROW) and (high is None or high >= 1 - NARROW)
    return inner if wide else None


def _bound(node: ir.Node, name: str, position: int) -> float | None:
    if name in node.attributes:
        return node.attributes[name].as_float()
    if len(node.inputs) <= position or node.inputs[position] is None:
        return None
    number = _number(node.inputs[position])
    return (float("inf") if name == "min" else -float("inf")) if number is None else number


def _sub(node: ir.Node, depth: int) -> Activation | None:
    """1 - p, or the logarithm of a softmax, s - log(sum(exp(s)))."""
    first, second = node.inputs
    if _number(first) == 1.0:
        return _complement(_read(second, depth))
    total = None if second is None else _behind_shape(second).producer()
    if first is None or total is None or total.domain:
        return None
    if total.op_type == "ReduceLogSumExp" and _same(total.inputs[0], first) and _per_row(first, _axes(total)):
        return Activation("softmax", first, log=True)
    exponents = total.inputs[0].producer() if total.op_type == "Log" and total.inputs[0] is not None else None
    if exponents is None or not is_row_sum(exponents.outputs[0], of=None):
        return None
    exp = None if exponents.inputs[0] is None else exponents.inputs[0].producer()
    own = exp is not None and exp.op_type == "Exp" and not exp.domain and _same(exp.inputs[0], first)
    return Activation("softmax", _without_maximum(first), log=True) if own else None


def _add(node: ir.Node, depth: int) -> Activation | None:
    """1 - p, as a sum."""
    for one, p in (node.inputs, node.inputs[::-1]):
        negated = None if p is None else _negated(p)
        if _number(one) == 1.0 and negated is not None:
            return _complement(_read(negated, depth))
    return None


def _complement(inner: Activation | None) -> Activation | None:
    if inner is None or inner.link != "sigmoid" or inner.log or inner.paired or inner.form not in _OPPOSITE:
        return None
    return replace(inner, form=_OPPOSITE[inner.form])


def _div(node: ir.Node, depth: int) -> Activation | None:
    above, below = node.inputs
    if above is not None and below is not None and is_row_sum(below, of=above):
        return _normalised(above, depth)
    return _hand_written_sigmoid(above, below)


def _mul(node: ir.Node, depth: int) -> Activation | None:
    """A quotient, as a product with a reciprocal."""
    for above, factor in (node.inputs, node.inputs[::-1]):
        maker = None if factor is None else _behind_shape(factor).producer()
        if maker is not None and maker.op_type == "Reciprocal" and not maker.domain and above is not None:
            below = maker.inputs[0]
            if below is not None and is_row_sum(below, of=above):
                return _normalised(above, depth)
    return None


def _reciprocal(node: ir.Node, depth: int) -> Activation | None:
    return _hand_written_sigmoid(None, node.inputs[0])


def _norm(node: ir.Node, depth: int) -> Activation | None:
    """Probabilities over the sum of their sizes."""
    x, axis = node.inputs[0], int_attribute(node, "axis", -1)
    if x is None or int_attribute(node, "p", 2) != 1 or not _per_row(x, [axis]):
        return None
    return _normalised(x, depth)


def _normalised(above: ir.Value, depth: int) -> Activation | None:
    """Return the softmax that numbers over their sum are: of exponents, of sigmoids; a softmax stays one."""
    maker, inner = _behind_shape(above).producer(), _read(above, depth)
    if maker is not None and maker.op_type == "Exp" and not maker.domain and inner is not None and inner.link == "exp":
        return Activation("softmax", _without_maximum(inner.base))
    if inner is None or inner.log or inner.paired:
        return inner if inner is not None and inner.paired else None
    if inner.link == "softmax":
        return inner
    plain = inner.link == "sigmoid" and inner.form == "same"
    return replace(inner, link="softmax", form="log_sigmoid") if plain else None


def _without_maximum(exponent: ir.Value) -> ir.Value:
    """Return the scores that a row's largest was taken from: a softmax does not change by it."""
    node = exponent.producer()
    if node is None or node.domain or node.op_type != "Sub" or node.inputs[1] is None:
        return exponent
    largest = _behind_shape(node.inputs[1]).producer()
    own = largest is not None and largest.op_type == "ReduceMax" and _same(largest.inputs[0], node.inputs[0])
    return node.inputs[0] if own and node.inputs[0] is not None else exponent


def is_row_sum(value: ir.Value, *, of: ir.Value | None) -> bool:
    """Whether ``value`` is the sum over the row of what cannot be negative, of ``of`` where that is given."""
    node = _behind_shape(value).producer()
    if node is None or node.domain or node.op_type not in ("ReduceL1", "ReduceSum"):
        return False
    x = node.inputs[0]
    return _per_row(x, _axes(node)) and (of is None or _same(_behind_shape(x), _behind_shape(of)))  # type: ignore[arg-type]


def _behind_shape(value: ir.Value) -> ir.Value:
    """Return what was given another shape, or kept off zero by a tiny number."""
    for _ in range(_DEEP):
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return value
        tiny = node.op_type in ("Clip", "Max", "Add") and _is_tiny_bound(node)
        if node.op_type != "Expand" and not tiny and not (node.op_type in _SAME_NUMBERS and _keeps_layout(node)):
            return value
        value = node.inputs[0]
    return value


def _is_tiny_bound(node: ir.Node) -> bool:
    if node.op_type == "Clip":
        return (_bound(node, "min", 1) or 0) <= NARROW and _bound(node, "max", 2) is None
    return len(node.inputs) == 2 and 0 <= (_number(node.inputs[1]) or -1) <= NARROW


def _hand_written_sigmoid(above: ir.Value | None, below: ir.Value | None) -> Activation | None:
    """1 / (1 + exp(-s)), or exp(s) / (1 + exp(s))."""
    node = None if below is None else below.producer()
    if node is None or node.domain or node.op_type != "Add":
        return None
    numbers = [_number(x) for x in node.inputs]
    exponential = node.inputs[1 - numbers.index(1.0)] if 1.0 in numbers else None
    maker = None if exponential is None else exponential.producer()
    if maker is None or maker.domain or maker.op_type != "Exp" or maker.inputs[0] is None:
        return None
    x = maker.inputs[0]
    if above is not None and _number(above) != 1.0:
        return Activation("sigmoid", x) if _same(above, exponential) else None
    negated = _negated(x)
    return Activation("sigmoid", x, "negative") if negated is None else Activation("sigmoid", negated)


def _neg(node: ir.Node, depth: int) -> Activation | None:
    """The logarithm of a sigmoid, -softplus(-s)."""
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    if maker is None or maker.domain or maker.op_type != "Softplus" or maker.inputs[0] is None:
        return None
    negated = _negated(maker.inputs[0])
    found = Activation("sigmoid", maker.inputs[0], "negative") if negated is None else Activation("sigmoid", negated)
    return replace(found, log=True)


def _concat(node: ir.Node, depth: int) -> Activation | None:
    """The columns 1 - p and p, in this order or the other, or their logarithms."""
    if len(node.inputs) != 2 or not _per_row(node.outputs[0], [int_attribute(node, "axis", 0)]):
        return None
    if any(x is None or x.shape is None or x.shape[int_attribute(node, "axis", 0)] != 1 for x in node.inputs):
        return None
    first, second = (_read(x, depth) for x in node.inputs)
    if first is None or second is None or second.form not in _OPPOSITE or second.link != "sigmoid":
        return None
    opposite = replace(second, form=_OPPOSITE[second.form])
    return replace(second, paired=True) if first == opposite and not second.paired else None


def _column(node: ir.Node, depth: int) -> Activation | None:
    """One of the two columns of a softmax, or of 1 - p and p."""
    x, index = node.inputs[0], _index(node)
    if x is None or x.shape is None or list(x.shape[1:]) != [2] or index not in (0, 1):
        return None
    inner = _read(x, depth)
    if inner is None or inner.log:
        return None
    if inner.paired:
        return replace(inner, paired=False, form=inner.form if index else _OPPOSITE[inner.form])
    plain = inner.link == "softmax" and inner.form == "same" and inner.base.shape is not None
    if not plain or len(inner.base.shape) != 2:  # type: ignore[arg-type]
        return None
    return Activation("sigmoid", inner.base, "second" if index else "first")


def _index(node: ir.Node) -> int | None:
    """Return the column that a Gather or Slice takes of two."""
    if node.op_type == "Gather":
        number = _number(node.inputs[1]) if int_attribute(node, "axis", 0) in (1, -1) else None
        return None if number is None else int(number) % 2
    if "starts" in node.attributes:
        starts, ends = (list(node.attributes[k].as_ints()) for k in ("starts", "ends"))
        axes = list(node.attributes["axes"].as_ints()) if "axes" in node.attributes else [0]
        steps = [1]
    else:
        given = [None if len(node.inputs) <= i else _number(node.inputs[i]) for i in range(1, 5)]
        starts, ends, axes = ([-9 if n is None else int(n)] for n in given[:3])
        steps = [1 if len(node.inputs) < 5 else int(given[3] or 0)]
    if len(starts) != 1 or axes not in ([1], [-1]) or steps != [1]:
        return None
    columns = range(2)[starts[0] : ends[0]]
    return columns[0] if len(columns) == 1 else None


_RULES: dict[str, Callable[[ir.Node, int], Activation | None]] = {
    "Add": _add,
    "Clip": _bounded,
    "Concat": _concat,
    "Div": _div,
    "Exp": _exp,
    "Gather": _column,
    "Log": _log,
    "LogSoftmax": _softmax,
    "LpNormalization": _norm,
    "Max": _bounded,
    "Min": _bounded,
    "Mul": _mul,
    "Neg": _neg,
    "Reciprocal": _reciprocal,
    "Sigmoid": _sigmoid,
    "Slice": _column,
    "Softmax": _softmax,
    "Sub": _sub,
}
