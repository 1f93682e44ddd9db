"""Tell weights from settings and statistics among the constants of a user's file.

Exporters store more than weights as initializers: fillers of initial states, scales of attention scores, masks,
statistics of the data. :class:`Roles` gives each float constant a :class:`Verdict`. It follows the constant through
nodes that only change its shape, to the nodes that compute with it.

Operands of products and normalizations, biases after them and lookup tables are weights. Settings, masks and tabulated
sines are constants. In elementwise arithmetic, names and numbers decide. An operand is a weight unless an exporter
generated its name. Fillers, roots that scale attention scores, and the mean or scale of the data are constants. A
single number that occurs in formulas is a doubtful weight. The record that an exporter left (parameters and buffers of
a PyTorch module) tells which names are generated, and finally overrules the verdict.

``_of_use`` and ``_of_arithmetic`` ask the questions in order: the first one with an answer decides. Functions below the
class answer questions about single nodes, arrays, names and numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import onnx_ir as ir

from .._importers.quantization import is_fake, is_held_as_integers
from .._importers.tf2onnx import TF2ONNX
from .._importers.torch_program import (
    PRODUCER,
    TorchProgram,
    is_buffer,
    is_made_up,
    is_paddle_parameter,
    is_tensorflow_constant,
    is_tensorflow_variable,
)
from .._ir.queries import constant, dims, graphs_in
from .weights import NOT_WEIGHTS, is_setting

PRODUCTS: dict[str, frozenset[int]] = {
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "DeformConv": frozenset({1, 3}),
    "Einsum": frozenset(range(8)),
    "GRU": frozenset({1, 2, 3}),
    "Gemm": frozenset({0, 1, 2}),
    "LSTM": frozenset({1, 2, 3, 7}),
    "MatMul": frozenset({0, 1}),
    "PRelu": frozenset({1}),
    "RNN": frozenset({1, 2, 3}),
}
"""Inputs at which a constant is a weight, regardless of its name: operator -> positions."""

SCALE_AND_BIAS: dict[str, tuple[int, int]] = {
    "BatchNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1, -1),
}
"""Positions of scale and bias. They are weights, unless the layer has none and the exporter filled in ones or zeros."""

_WITHOUT_BIAS = {"Conv": 2, "ConvTranspose": 2, "Einsum": 2, "Gemm": 2, "MatMul": 2}
"""Products that may have a bias: operator -> number of inputs without a bias."""

LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that read entries of a table, their first input."""

FILLED = frozenset({"ConstantOfShape", "Expand", "Pad", "ScatterElements", "ScatterND", "Tile"})
"""Operators for which a single 0 or 1 is a filler."""

MOVES = frozenset({"Cast", "CastLike", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that return the numbers of their first input in another shape, order or type."""

COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"})
"""Operators without a gradient: their operands are not weights."""

PARTS = frozenset({"Slice", "Split"})
"""Operators that return a part of their first input."""

CONSTANT_INPUT = "onnxtrain/constant_input"
"""Key in the metadata of an initializer that replaced an input of the file, constant in all calls."""

REPEATS = "onnxtrain/repeats"
"""Key in the ``meta`` of a node that repeats a constant for each row, in a file of a fixed batch."""

EXPORTER = "exporter"
"""Key in the metadata of a graph for the name of the program that wrote the file."""

_NAME_IN_MODULE = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
"""Names that may be paths of parameters or buffers, unlike those of computed values, such as ``onnx::Div_12``."""

QUANTIZED = re.compile(r"Quantize|Integer|^Q(Linear|Gemm|Attention|MoE)|NBits|Bnb4|FpQ4")
"""Operators of ONNX and onnxruntime that compute with integers instead of floats."""


@dataclass(frozen=True)
class Verdict:
    """Whether a constant is a weight, the reason, and whether the weight may instead be a number of a formula."""

    is_weight: bool
    reason: str
    is_doubtful: bool = False


class Roles:
    """Decides which float constants of a graph are weights.

    Parameters
    ----------
    graph : onnx_ir.Graph
        It must not change while this object is used.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph

    def verdict(self, value: ir.Value, array: np.ndarray) -> Verdict:
        """Return whether the constant ``value``, with the content ``array``, is a weight."""
        if CONSTANT_INPUT in value.metadata_props:
            return Verdict(False, "a constant input")
        uses = list(dict.fromkeys(self._uses(value)))
        verdicts = [self._of_use(*use, value, array) for use in uses]
        # exporters merge equal constants, so a single use as a weight makes the constant a weight
        found = next((v for v in verdicts if v.is_weight), next(iter(verdicts), Verdict(False, "nothing reads it")))
        found = self._as_recorded(value, found, uses)
        reason = found.reason + (", held as integers" if is_held_as_integers(value) else "")
        return replace(found, reason=f"{reason}, shared by {len(uses)} nodes" if len(uses) > 1 else reason)

    def _uses(self, value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
        """Yield each node that computes with a constant, and the position of the constant among its inputs.

        The search passes through nodes that reorder or slice the numbers, or join them with other constants.
        """
        for node, index in value.uses():
            joined = node.op_type == "Concat" and not any(x in self._varying for x in node.inputs)
            passes = node.op_type in MOVES | PARTS or is_fake(node) or REPEATS in node.meta
            if node.domain == "" and ((passes and index == 0) or joined):
                for output in node.outputs:
                    yield from self._uses(output)
            else:
                yield node, index

    def _of_use(self, node: ir.Node, index: int, value: ir.Value, array: np.ndarray) -> Verdict:
        """Return the verdict on a constant from its use by ``node``; the first question with an answer decides."""
        kind = node.op_type
        # Settings, whatever the name of the constant is.
        sources = [_computing_node(x) for x in node.inputs if x is not None] if kind == "Mul" else []
        if is_fake(node):
            return Verdict(False, "a scale of integers")
        if QUANTIZED.search(kind) or any(n is not None and n.op_type == "DynamicQuantizeLinear" for n in sources):
            return Verdict(False, f"a scale of integers, in {kind}")
        if not node.domain and is_setting(array, node, index):
            return Verdict(False, f"a setting of {kind}")
        if not node.domain and kind in COMPARISONS:
            return Verdict(False, f"a bound in {kind}")
        if kind == "Gemm" and index == 2 and not array.ndim and not array.any():
            return Verdict(False, "filled in for a Gemm without a bias")
        if _is_of_code(value, self._graph):
            return Verdict(False, "a constant of the code: TensorFlow gives variables other names")
        # Products, then scales, biases and tables of layers.
        if not node.domain and index in PRODUCTS.get(kind, ()):
            return Verdict(True, "slope of PRelu" if kind == "PRelu" else f"weight of {kind}")
        if array.size == 1 and says_its_number(value.name or "", float(array.ravel()[0])):
            return Verdict(False, f"a constant in {kind}: its name says its number")
        if not np.isfinite(array).all():
            return Verdict(False, "a mask: it holds values that are not finite")
        if node.domain and array.size > 1:
            return Verdict(True, f"operand of {node.domain}.{kind}")
        if not node.domain and index in SCALE_AND_BIAS.get(kind, ()):
            scale, _ = SCALE_AND_BIAS[kind]
            role, neutral = ("scale", 1.0) if index == scale else ("bias", 0.0)
            if self._is_made_up(value) and (array == neutral).all():
                return Verdict(False, f"filled in for a {kind} without a {role}")
            return Verdict(True, f"{role} of {kind}")
        if self._is_made_up(value) and role_in_affine(node, index, array) == "mean":
            return Verdict(False, "the stored mean of a normalization")
        if not node.domain and self._is_affine(node, index, value):
            return Verdict(True, f"{'scale' if kind == 'Mul' else 'bias'} after a product or normalization")
        # Masks and encodings come after biases, because a new network also has biases that hold only zeros or ones.
        if _is_mask(array, value.name or ""):
            return Verdict(False, "a mask: it holds two values, and one of them is zero")
        if _is_sinusoidal(array):
            return Verdict(False, "a tabulated sine and cosine, as of a positional encoding")
        if kind in LOOKUPS and index == 0 and array.size > 1:
            return Verdict(True, f"table of {kind}")
        return self._of_arithmetic(node, index, value, array)

    def _is_affine(self, node: ir.Node, index: int, value: ir.Value) -> bool:
        """Return True if a constant is added to a product with weights, or scales or shifts a normalized value."""
        other = node.inputs[1 - index] if len(node.inputs) == 2 else None
        # a single number with a generated name is an epsilon or a constant of the code
        number = value.shape is not None and not len(value.shape)
        if other is None or (number and self._is_made_up(value)) or (node.op_type == "Sub" and index == 0):
            return False
        if node.op_type == "Mul":
            return _is_normalization(_computing_node(other))
        return node.op_type in ("Add", "Sub") and self._wants_bias(_computing_node(other, MOVES | PARTS))

    def _wants_bias(self, node: ir.Node | None, depth: int = 3) -> bool:
        """Return True if a constant added to the result of ``node`` is a bias.

        That is a product with weights that has no bias yet, or a normalized and scaled value.
        """
        if node is None or node.domain or not depth:
            return False
        sources = [_computing_node(x) for x in node.inputs if x is not None]
        if node.op_type == "Mul":
            return any(_is_normalization(source) for source in sources)
        if node.op_type == "Add":  # a sum of products, which share one bias
            varying = all(x in self._varying for x in node.inputs)
            return varying and all(self._wants_bias(source, depth - 1) for source in sources)
        constant = any(x is not None and x not in self._varying for x in node.inputs)
        return constant and len(node.inputs) <= _WITHOUT_BIAS.get(node.op_type, 0)

    def _of_arithmetic(self, node: ir.Node, index: int, value: ir.Value, array: np.ndarray) -> Verdict:
        """Return the verdict on an operand of elementwise arithmetic from its name and its numbers."""
        kind, made_up = node.op_type, self._is_made_up(value)
        other = node.inputs[1 - index] if len(node.inputs) == 2 else None
        role = role_in_affine(node, index, array) if made_up and not self._is_raw(other) else None
        if role is not None:
            return Verdict(True, f"{role} of a normalization with stored statistics")
        if kind in ("Sub", "Div") and index == 1 and self._is_raw(node.inputs[0]) and _keeps_row_shape(node):
            return Verdict(False, f"the {'mean' if kind == 'Sub' else 'scale'} of the data: it standardizes an input")
        if array.size == 1:
            number = float(array.ravel()[0])
            if kind in FILLED and number in (0.0, 1.0):
                return Verdict(False, f"filler: a single number that goes into {kind}")
            divisor = number if kind == "Div" else 1 / (number or 1.0)
            if kind in ("Mul", "Div") and self._scales_scores(node) and is_root(divisor):
                return Verdict(False, "scale of attention scores: a root of a dimension")
            if made_up or (value.producer() is not None and not is_paddle_parameter(value)):
                return Verdict(False, f"a single number in {kind}, under a name that an exporter generated")
        elif made_up and not (str(value.name).startswith("onnx::") and value.producer() is None and np.ptp(array)):
            return Verdict(False, f"an array in {kind}, under a name that an exporter generated")
        if array.size == 1 and is_of_formulas(float(array.ravel()[0])) and not self._is_known_to_be_learned(value):
            return Verdict(True, f"operand of {kind}, if it is no constant: a single number", is_doubtful=True)
        return Verdict(True, f"operand of {kind}")

    def _scales_scores(self, node: ir.Node) -> bool:
        """Return True if a product of two activations is directly before or after ``node``, as in attention."""
        before = [_computing_node(x) for x in node.inputs if x is not None]
        return any(
            n is not None and n.op_type in ("MatMul", "Einsum") and all(x in self._varying for x in n.inputs)
            for n in [*before, *_readers(node.outputs[0])]
        )

    def _is_raw(self, value: ir.Value | None) -> bool:
        """Return True if a value is a graph input, possibly reshaped, cast, or shifted and scaled by constants."""
        while value is not None and value not in self._graph.inputs:
            node = value.producer()
            if node is None or node.domain or node.op_type not in MOVES | {"Add", "Div", "Mul", "Sub"}:
                return False
            varying = [x for x in node.inputs if x in self._varying]
            value = varying[0] if len(varying) == 1 else None
        return value is not None

    def _is_known_to_be_learned(self, value: ir.Value) -> bool:
        """Return True if the name of a constant, or the record of the exporter, says that it is trained."""
        name = value.name or ""
        status = self._program.status(value)
        by_name = says_it_is_a_weight(name) or is_paddle_parameter(value) or is_tensorflow_variable(name)
        return by_name or status in ("parameter", "folded") or _is_of_module(value, self._graph, self._program)

    def _is_made_up(self, value: ir.Value) -> bool:
        """Return True if an exporter generated the name of a constant, and nothing says that it is a parameter.

        Return False for arrays of jax2onnx, which generates the names of parameters as well.
        """
        held = value.const_value
        is_number = value.const_value is not None and value.const_value.size == 1
        of_jax = self._graph.meta.get(EXPORTER) == "jax2onnx" and value.producer() is None
        if of_jax and held is not None and held.size > 1:
            return False
        if is_number and _is_of_module(value, self._graph, self._program):
            return False
        return is_made_up(value) and self._program.status(value) not in ("parameter", "folded")

    def _as_recorded(self, value: ir.Value, found: Verdict, uses: list[tuple[ir.Node, int]]) -> Verdict:
        """Return the verdict from the record of PyTorch's exporter, or ``found`` if it does not record the constant."""
        status = self._program.status(value)
        if found.is_weight and (status == "constant" or (status is None and is_buffer(value))):
            return Verdict(False, "a constant or buffer of the PyTorch module")
        if status == "parameter" and found.is_doubtful:
            return replace(found, is_doubtful=False)
        if status == "parameter" and not found.is_weight:
            trained = [node.op_type for node, index in uses if _differentiates(node, index)]
            return Verdict(True, f"parameter of the PyTorch module, in {trained[0]}") if trained else found
        exponent = any((node.op_type, index, node.domain) == ("Pow", 1, "") for node, index in uses)
        if not found.is_weight and exponent and _is_of_module(value, self._graph, self._program):
            return Verdict(True, "parameter of the PyTorch module, an exponent")
        return found

    @cached_property
    def _program(self) -> TorchProgram:
        return TorchProgram(self._graph)

    @cached_property
    def _varying(self) -> set[ir.Value]:
        """The values that depend on an input of the graph, or that a node in a subgraph computes."""
        found = set(self._graph.inputs)
        for node in self._graph.all_nodes():
            inner = node.graph is not self._graph or graphs_in(node)
            if inner or node.op_type.startswith("Random") or any(x in found for x in node.inputs):
                found.update(node.outputs)
        return found


def _is_of_module(value: ir.Value, graph: ir.Graph, program: TorchProgram) -> bool:
    """Return True if an initializer is a parameter or buffer of a PyTorch module and has its name in the module.

    PyTorch's older exporter keeps these names, and names nodes after the paths of the modules that call them.
    """
    if not value.is_initializer() or graph.meta.get(EXPORTER) != PRODUCER or program.kinds:
        return False
    is_path = _NAME_IN_MODULE.fullmatch(value.name or "") is not None
    return is_path and any((node.name or "").startswith("/") for node in graph)


def _is_of_code(value: ir.Value, graph: ir.Graph) -> bool:
    """Return True if a constant comes from TensorFlow code: the file names variables in another way."""
    name = value.name or ""
    is_number = value.shape is not None and not len(value.shape)
    if graph.meta.get(EXPORTER) != TF2ONNX or not (is_number or is_tensorflow_constant(name)):
        return False
    return not is_tensorflow_variable(name) and any(map(is_tensorflow_variable, graph.initializers))


def _keeps_row_shape(node: ir.Node) -> bool:
    """Return True if a row of the result has the shape of a row of the first operand, unlike with distances."""
    before, after = (None if x is None else dims(x) for x in (node.inputs[0], node.outputs[0]))
    return before is None or after is None or before[1:] == after[1:]


def _differentiates(node: ir.Node, index: int) -> bool:
    """Return True if the operator of a node has a gradient for its operand ``index``."""
    if node.domain or node.op_type in COMPARISONS:
        return False
    return node.op_type == "Pow" or index not in NOT_WEIGHTS.get(node.op_type, ())


def _computing_node(value: ir.Value, skipped: frozenset[str] = MOVES) -> ir.Node | None:
    """Return the node that computes a value, skipping nodes that only reorder numbers."""
    node = value.producer()
    while node is not None and _only_moves(node, skipped) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _only_moves(node: ir.Node, moves: frozenset[str] = MOVES) -> bool:
    """Return True if a node only reorders numbers, or rounds them to quantized values."""
    return not node.domain and (node.op_type in moves or is_fake(node))


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that compute with a value, skipping nodes that only reorder numbers."""
    for node, index in value.uses():
        if _only_moves(node) and index == 0:
            yield from _readers(node.outputs[0])
        else:
            yield node


def _is_normalization(node: ir.Node | None) -> bool:
    return node is not None and not node.domain and node.op_type in SCALE_AND_BIAS


def _is_mask(array: np.ndarray, name: str) -> bool:
    """Return True if an array holds zeros and one other value: one, or a large negative number that disables a score.

    Biases also start from zeros and ones, so a vector is a mask only if its name says so.
    """
    if len(np.unique(array.ravel()[:4096])) > 2:  # the first numbers suffice for large tables
        return False
    others = array[array != 0]
    if not 0 < others.size < array.size:
        return False
    filler = float(others.flat[0])
    is_vector = np.count_nonzero(np.array(array.shape) > 1) < 2
    return bool((others == filler).all()) and ((filler == 1 and (not is_vector or "mask" in name)) or filler <= -50)


def _is_sinusoidal(array: np.ndarray) -> bool:
    """Return True if the columns of a table are pairs of a sine and a cosine, interleaved or in two halves."""
    width = array.shape[-1] if array.ndim else 1
    if width % 2 or width < 4:
        return False
    rows = array.reshape(-1, width)
    return _are_pairs(rows[:1]) and _are_pairs(rows)  # test one row first, for speed


def _are_pairs(rows: np.ndarray) -> bool:
    half = rows.shape[1] // 2
    squares = rows.astype(np.float64) ** 2
    pairs = (squares[:, ::2] + squares[:, 1::2], squares[:, :half] + squares[:, half:])
    return any(np.allclose(pair, 1, rtol=0, atol=1e-4) for pair in pairs)


# Find the roles of constants in a BatchNormalization that is written as arithmetic with its stored statistics.
#
# Files from Keras subtract the mean, multiply by a factor and add the bias, or only multiply and add. The names of the
# constants are generated, because the exporter computed them in advance.


ENDS = frozenset({"Cast", "Clip", "Flatten", "Identity", "Reshape", "Squeeze"})
"""Operators between the scaled predictions and the output of a graph."""


def role_in_affine(node: ir.Node, index: int, array: np.ndarray) -> Literal["mean", "scale", "bias"] | None:
    """Return the role of a constant in ``(x - mean) * scale + bias``, if it has one number per channel."""
    if node.domain or len(node.inputs) != 2 or not _is_per_channel(array):
        return None
    if node.op_type == "Mul":
        return "scale" if _is_shifted(node, array.size) else None
    if node.op_type == "Add":
        other = node.inputs[1 - index]
        product = None if other is None or _is_in_units_of_targets(node.outputs[0]) else other.producer()
        return "bias" if product is not None and _combines(product, "Mul", array.size) else None
    scales = [n for n in _users(node) if _combines(n, "Mul", array.size)] if node.op_type == "Sub" and index else []
    return "mean" if any(_is_shifted(scale, array.size) for scale in scales) else None


def _is_shifted(scale: ir.Node, size: int) -> bool:
    """Return True if a bias with one number per channel is added to the result of a node, within the network."""
    biases = [n for n in _users(scale) if _combines(n, "Add", size)]
    return any(not _is_in_units_of_targets(n.outputs[0]) for n in biases)


def _is_in_units_of_targets(value: ir.Value) -> bool:
    """Return True if only reshapes, casts or clips lie between a value and an output.

    The node that computes such a value is not a layer: it scales predictions back to the units of the targets.
    """
    if value.is_graph_output():
        return True
    users = [node for node, _ in value.uses()]
    return len(users) == 1 and users[0].op_type in ENDS and _is_in_units_of_targets(users[0].outputs[0])


def _is_per_channel(array: np.ndarray) -> bool:
    return array.size > 1 and sum(length > 1 for length in array.shape) == 1


def _users(node: ir.Node) -> Iterator[ir.Node]:
    return (user for user, _ in node.outputs[0].uses())


def _combines(node: ir.Node, kind: str, size: int) -> bool:
    """Return True if a node combines a value with a constant that has ``size`` numbers, one for each channel."""
    arrays = [constant(x) for x in node.inputs if x is not None] if node.op_type == kind and not node.domain else []
    return any(array is not None and array.size == size and _is_per_channel(array) for array in arrays)


# Tell numbers of formulas from numbers that result from training.


LARGEST_DIMENSION = 16384
"""Largest dimension whose root counts as the scale of attention scores."""

MOST_DIGITS = 5
"""Most significant digits of a number that counts as written by hand; a trained float32 has seven."""

_WORDS = {
    "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0, "four": 4.0, "five": 5.0, "six": 6.0, "eight": 8.0, "ten": 10.0,
    "hundred": 100.0, "thousand": 1000.0, "half": 0.5, "third": 1 / 3, "quarter": 0.25, "pi": math.pi,
}  # fmt: skip
_NAMED = re.compile(
    rf"(?:.*[./])?(?:const(?:ant)?_)?(?P<sign>minus_?|neg(?:ative)?_?)?(?P<word>{'|'.join(_WORDS)}|eps(?:ilon)?)"
    r"(?:_*\d+)?(?::\d+)?",
    re.IGNORECASE,
)
"""Names that exporters and PyTorch's code give to a number: ``one``, ``const_minus_half``, ``eps_1``."""

_OF_WEIGHTS = re.compile(r"(?:.*[._/])?(?:[wb]|weight|bias|kernel|slope|logit_(?:scale|bias))\d*(?::0)?", re.IGNORECASE)
_LARGEST_EPSILON = 1e-2
_CONSTANTS = (math.pi, math.e, math.log(2), math.log(10), math.sqrt(2 / math.pi), math.sqrt(math.pi), math.sqrt(2))


def says_its_number(name: str, number: float) -> bool:
    """Return True if the name of a constant is a word for its number (``one``, ``half``), or ``eps`` if it is small."""
    found = _NAMED.fullmatch(name)
    if found is None:
        return False
    word = found["word"].lower()
    if word.startswith("eps"):
        return 0 < number <= _LARGEST_EPSILON and not found["sign"]
    return _equal(number, -_WORDS[word] if found["sign"] else _WORDS[word])


def says_it_is_a_weight(name: str) -> bool:
    """Return True if a name is typical of weights: ``weight``, ``bias``, ``kernel``, ..."""
    return _OF_WEIGHTS.fullmatch(name) is not None


def is_of_formulas(number: float) -> bool:
    """Return True if a number has few digits, or is a root, a fraction or a known constant, as in formulas."""
    if not math.isfinite(number):
        return True
    size = abs(number)
    if size == 0 or _equal(size, float(f"{size:.{MOST_DIGITS}g}")):
        return True
    known = any(_equal(size * factor, one) for one in _CONSTANTS for factor in (0.5, 1.0, 2.0))
    whole = 1 < 1 / size <= 1000 and _equal(1 / size, round(1 / size))
    return known or whole or is_root(size) or is_root(1 / size)


def is_root(number: float) -> bool:
    """Return True if a number is the second or fourth root of a dimension, up to the rounding of float32.

    The dimension is limited, because large powers of any number are close to an integer.
    """
    powers = (number**2, number**4) if 1 < number < LARGEST_DIMENSION else ()
    return any(x <= LARGEST_DIMENSION and abs(x - round(x)) <= 2e-6 * x for x in powers)


def _equal(number: float, other: float) -> bool:
    """Return True if two numbers are equal up to the precision of float32, 1.2e-7."""
    return bool(np.isclose(number, other, rtol=1.2e-7, atol=0.0))
