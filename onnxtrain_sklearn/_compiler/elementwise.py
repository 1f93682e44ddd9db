"""Operators that compute each element on its own, as LLVM instructions on vectors of any width.

:data:`EMIT` holds the function of each ONNX operator. Truth values are numbers, 0 and 1, in registers and in memory.

Operators with a formula of their own are in :data:`FUNCTIONS`: elementary functions of float32 without library calls.
Each adds its lines to a :class:`.Text` and returns the name of its result, which has the same bits alone and in a
vector of any width. Errors are below 1.5 units in the last place, and below 2 for tanh and
softplus, on the whole range, including subnormal results. Zeros keep their sign where the function is odd. The formulas
need the instruction fma (:func:`supported`).

The polynomials are minimax polynomials, fitted by Lawson's iteration to the forms that their docstrings name. Their
coefficients were rounded to float32 one after the other, and the remaining ones fitted again each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, Generic, ParamSpec, TypeAlias

import numpy as np

from .llvm_text import Floats, Text, Words, at_least, at_most, in_precision, literal, polynomial, vector_type

Keywords = ParamSpec("Keywords")

LOG2_E = 1 / math.log(2)
LN_2 = float(np.float32(math.log(2)))
LN_2_REST = math.log(2) - LN_2
SHIFT = 1.5 * 2**23
"""Adding this rounds a number to an integer, which is then in the last bits of the sum."""
SHIFT_BITS = 0x4B400000  # those of SHIFT
LEAST_NORMAL = 2.0**-126
THREE_FOURTHS_BITS, FOUR_BITS = 0x3F400000, 0x40800000  # of 0.75 and 4.0
NEGLIGIBLE_SQUARE = 1e-30
"""For a number below this, expm1 and log1p return the number itself."""

EXPONENTIAL = (0.5, 0.16666666, 0.041666493, 0.008333546, 0.0013932321, 0.00019761725)
"""(exp(r) - 1 - r) / r² for r to ±log(2) / 2."""
LOGARITHM = (
    *(-0.5, 0.3333345, -0.250001, 0.19990812, -0.16647111),
    *(0.14478678, -0.13163081, 0.104649596, -0.0450755),
)
"""(log(1 + f) - f) / f² for f from -1/4 to 1/2."""
ERF_NEAR_ZERO = (0.12837917, -0.3761259, 0.11282865, -0.026807288, 0.0050577037, -0.00063485187)
"""erf(x) / x - 1 in x² for x to 0.85."""
ERF_BEYOND = (-0.12861335, -0.63529646, -0.10599301, 0.023548923, -0.003540322, 0.0002973717, -8.661371e-06)
"""log(1 - erf(x)) / x + 1 for x from 0.85 to 4."""

SINE = (-0.16666667, 0.008333379, -0.0001985307, 2.83269e-06)
"""(sin(r) / r - 1) / r² in r² for r to pi/4."""
COSINE = (-0.5, 0.041666646, -0.0013887311, 2.4432564e-05)
"""(cos(r) - 1) / r² in r² for r to pi/4."""
# the rest is what float64 cannot hold of pi / 2
HALF_PI = math.pi / 2
HALF_PI_REST = 6.123233995736766e-17
DOUBLE_SHIFT = 1.5 * 2**52
QUARTERS = (
    (2.0**45, 2.0**-45, 7195080.5, 0.010333986254408956, -1.9119835564607365e-11),
    (2.0**75, 2.0**-75, 11096033.25, -0.02052976709092036, -2.2801221247422887e-11),
    (2.0**105, 2.0**-105, 11510762.4375, -0.024482624896336347, 4.700940620270747e-12),
)
"""For each range of large angles: its start, the inverse of that, and ``start * 2 / pi`` without multiples of 2**25, in
three parts."""


@dataclass(frozen=True)
class ElementFunction(Generic[Keywords]):
    """An elementary function, called with the name of a value.

    Attributes
    ----------
    formula : callable
        The same function of :class:`~.llvm_text.Floats`, for formulas that use it.
    """

    formula: Callable[Concatenate[Floats, Keywords], Floats]

    def __call__(self, text: Text, x: str, width: int, *args: Keywords.args, **kwargs: Keywords.kwargs) -> str:
        """Add the lines; return the name of the result."""
        return self.formula(Floats(text, width, x), *args, **kwargs).name


def supported(features: str, machine: str) -> bool:
    """Return True if a processor has the instruction fma; without it, LLVM calls a library for each number.

    Parameters
    ----------
    features : str
        The processor's features as LLVM lists them, such as ``"+avx2,-avx512f"``.
    machine : str
        The name from ``platform.machine()``: 64-bit ARM processors always have the instruction.
    """
    return machine.lower() in {"arm64", "aarch64"} or "+fma" in features.split(",")


@dataclass(frozen=True)
class _Exponential:
    """The parts of ``exp(x) = 2**power * (1 + rest)``, with an integer power."""

    power: Words
    rest: Floats

    def scales(self) -> tuple[Floats, Floats]:
        """Return two factors of ``2**power``, which may exceed float32; a product with both is rounded only once."""
        half = self.power >> 1
        return _power_of_two(half), _power_of_two(self.power - half)


def _power_of_two(exponent: Words) -> Floats:
    return ((exponent + 127) << 23).numbers()  # a float32 holds its exponent, plus 127, above 23 bits of mantissa


def _exponential(x: Floats) -> _Exponential:
    """Return the parts of exp(x) for x from -105 to 105, with Cephes' split of log(2) in two constants."""
    shifted = x.times_plus(LOG2_E, SHIFT)
    power = shifted - SHIFT
    r = power.times_plus(-LN_2_REST, power.times_plus(-LN_2, x))
    rest = polynomial(EXPONENTIAL, r).times_plus(r * r, r)
    return _Exponential(shifted.bits() - SHIFT_BITS, rest)


@ElementFunction
def exp(x: Floats) -> Floats:
    """The exponential; subnormal results are rounded once, too."""
    # Beyond these bounds the result rounds to 0, or overflows to infinity.
    parts = _exponential(at_least(-105.0, at_most(89.5, x)))
    first, second = parts.scales()
    return (parts.rest + 1.0) * first * second


@ElementFunction
def expm1(x: Floats) -> Floats:
    """exp(x) - 1, computed as ``2 * (scale * rest + (scale - 1/2))``, so that the scale does not overflow first."""
    parts = _exponential(at_least(-18.0, at_most(88.75, x)))  # beyond: -1, infinity
    scale = _power_of_two(parts.power - 1)
    return abs(x).where("olt", NEGLIGIBLE_SQUARE, x, parts.rest.times_plus(scale, scale - 0.5) * 2.0)


@ElementFunction
def log(x: Floats) -> Floats:
    """The natural logarithm; subnormal numbers are scaled first."""
    # The bits of a subnormal number do not hold its exponent: scale it by 2**23, and take 23 from the logarithm.
    normal = x.where("olt", LEAST_NORMAL, x * 2.0**23, x)
    exponent = _exponent(normal)
    f = (normal.bits() - exponent).numbers() - 1.0
    return _with_poles(_logarithm(f, exponent, x.where("olt", LEAST_NORMAL, -23.0, 0.0)), x, x)


@ElementFunction
def log1p(x: Floats) -> Floats:
    """log(1 + x)."""
    return x.where("oeq", 0.0, x, _with_poles(_log1p_of_finite(x), x + 1.0, x))


def _exponent(x: Floats) -> Words:
    """Return the exponent of x for a mantissa from 3/4 to 3/2, in the bits of a float32's exponent."""
    return (x.bits() - THREE_FOURTHS_BITS) & -(2**23)


def _logarithm(f: Floats, exponent: Words, more: Floats | float) -> Floats:
    """Return log((1 + f) * 2**(exponent + more))."""
    power = exponent.as_numbers().times_plus(2.0**-23, more)
    return power.times_plus(LN_2, polynomial(LOGARITHM, f).times_plus(f * f, f))


def _log1p_of_finite(x: Floats) -> Floats:
    """Return log(1 + x) for x above -1: 1 + f is 1 + x scaled, and f is rounded once, as in N. Juffa's log1pf."""
    exponent = _exponent(x + 1.0)
    four = (-exponent + FOUR_BITS).numbers()  # a fourth of it may be subnormal
    f = (x.bits() - exponent).numbers() + four.times_plus(0.25, -1.0)
    return _logarithm(f, exponent, 0.0)


def _with_poles(result: Floats, u: Floats, x: Floats) -> Floats:
    """Return log(u): ``result`` where u is positive and finite, else the limits; x is infinite or NaN where u is."""
    positive = u.where("olt", math.inf, result, x)
    return u.where("ule", 0.0, u.where("oeq", 0.0, -math.inf, math.nan), positive)


@dataclass(frozen=True)
class _Sum:
    """A rounded sum, and its rounding error, exactly."""

    rounded: Floats
    lost: Floats

    @classmethod
    def of(cls, larger: Floats, smaller: Floats) -> _Sum:
        """Return the sum of two numbers, of which the first is zero or not smaller (Dekker's Fast2Sum)."""
        rounded = larger + smaller
        return cls(rounded, smaller - (rounded - larger))

    def plus(self, smaller: Floats) -> _Sum:
        """Add a number."""
        following = _Sum.of(self.rounded, smaller)
        return _Sum(following.rounded, following.lost + self.lost)

    def over(self, other: _Sum) -> Floats:
        """Return the quotient, corrected by its remainder and the rounding errors of both sums."""
        inverse = 1.0 / other.rounded
        first = self.rounded * inverse
        remainder = first.times_plus(-other.rounded, self.rounded) + self.lost
        return first.times_plus(-other.lost, remainder).times_plus(inverse, first)


@ElementFunction
def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), computed from e = exp(-abs(x)), which cannot overflow, as e / (1 + e) or one minus that."""
    parts = _exponential(at_least(-105.0, -abs(x)))
    first, second = parts.scales()
    scale = first * second
    one = x.like(x.of(1.0))
    below = _Sum.of(one, parts.rest).over(_Sum.of(one, scale).plus(scale * parts.rest))
    return x.where("olt", 0.0, below * first * second, below.times_plus(-scale, 1.0))


@ElementFunction
def tanh(x: Floats) -> Floats:
    """(1 - e) / (1 + e) with e = exp(-2 * abs(x)); near zero, 1 - e comes from ``rest``, without cancellation."""
    parts = _exponential(at_least(-40.0, abs(x) * -2.0))  # beyond, tanh rounds to 1
    scale = _power_of_two(parts.power)
    above, below = (parts.rest.times_plus(factor, factor + 1.0) for factor in (-scale, scale))
    return (above / below).call("copysign", x)


@ElementFunction
def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-abs(x)))."""
    small = exp.formula(-abs(x))
    return at_least(0.0, x) + small.where("olt", NEGLIGIBLE_SQUARE, small, _log1p_of_finite(small))


@ElementFunction
def erf(x: Floats) -> Floats:
    """The error function, in two parts as in N. Juffa's erff."""
    near = polynomial(ERF_NEAR_ZERO, x * x).times_plus(x, x)
    size = at_most(4.0, abs(x))  # beyond, erf rounds to 1
    parts = _exponential(polynomial(ERF_BEYOND, size).times_plus(size, -size))
    scale = _power_of_two(parts.power)
    beyond = parts.rest.times_plus(-scale, 1.0 - scale)
    return size.where("olt", 0.85, near, beyond.call("copysign", x))


def _quarters_nearby(x: Floats) -> tuple[Floats, Floats]:
    """Return the number of quarter turns in x, shifted, and the angle left, in float64, for x below 2**45."""
    shifted = x.times_plus(1 / HALF_PI, DOUBLE_SHIFT)
    quarters = shifted - DOUBLE_SHIFT
    return shifted, quarters.times_plus(-HALF_PI_REST, quarters.times_plus(-HALF_PI, x))


def _quarters_far(x: Floats) -> tuple[Floats, Floats]:
    """Return the same for x from 2**45 on by Payne and Hanek's reduction: leave out whole turns in x * 2 / pi.

    A float32 from ``2**k`` on is a multiple of ``2**(k - 23)``, so multiples of ``2**25`` in ``2**k * 2 / pi`` are
    whole turns. Products with the first two parts of the rest are exact.
    """
    parts: Sequence[Floats | float] = QUARTERS[0][1:]
    for start, *others in QUARTERS[1:]:
        parts = [abs(x).where("olt", start, *pair) for pair in zip(parts, others, strict=True)]
    scaled = x * parts[0]
    high, middle = _within_a_turn(scaled * parts[1]), _within_a_turn(scaled * parts[2])
    shifted = (high + middle) + DOUBLE_SHIFT
    beyond = (high - (shifted - DOUBLE_SHIFT)) + middle
    return shifted, (scaled * parts[3] + beyond) * HALF_PI


def _within_a_turn(quarters: Floats) -> Floats:
    return quarters - (quarters * 0.25).call("roundeven") * 4.0


def _wave(x: Floats, phase: int) -> Floats:
    """Return sin(x + phase * pi / 2)."""
    double = in_precision(x, "double")
    pairs = zip(_quarters_nearby(double), _quarters_far(double), strict=True)
    shifted, angle = (abs(double).where("olt", QUARTERS[0][0], *pair) for pair in pairs)
    r = in_precision(angle, "float")
    lost = in_precision(angle - in_precision(r, "double"), "float")
    square = r * r
    sine = polynomial(SINE, square).times_plus(square * r, lost) + r
    cosine = polynomial(COSINE, square).times_plus(square, 1.0)
    quarters = shifted.bits() + phase
    result = (quarters & 1).as_numbers().where("oeq", 0.0, sine, cosine)
    return (result.bits() + ((quarters & 2) << 30)).numbers()  # changes the sign in the second half of a turn


@ElementFunction
def sin(x: Floats) -> Floats:
    """The sine, also of large angles."""
    return x.where("oeq", 0.0, x, _wave(x, 0))


@ElementFunction
def cos(x: Floats) -> Floats:
    """The cosine, also of large angles."""
    return _wave(x, 1)


@ElementFunction
def absolute(x: Floats) -> Floats:
    """The absolute value."""
    return abs(x)


@ElementFunction
def negative(x: Floats) -> Floats:
    """The opposite number."""
    return -x


@ElementFunction
def reciprocal(x: Floats) -> Floats:
    """1 / x."""
    return 1.0 / x


@ElementFunction
def sign(x: Floats) -> Floats:
    """-1, 0 or 1, and NaN for NaN."""
    return x.where("ogt", 0.0, 1.0, x.where("olt", 0.0, -1.0, x.where("oeq", 0.0, 0.0, x)))


@ElementFunction
def relu(x: Floats) -> Floats:
    """The larger of x and 0; NaN and -0 stay, as in onnxruntime."""
    return at_least(0.0, x)


@ElementFunction
def softsign(x: Floats) -> Floats:
    """Return x / (1 + abs(x))."""
    return x / (abs(x) + 1.0)


@ElementFunction
def leaky_relu(x: Floats, *, alpha: float = 0.01) -> Floats:
    """x, or alpha * x below zero."""
    return x.where("olt", 0.0, x * alpha, x)


@ElementFunction
def elu(x: Floats, *, alpha: float = 1.0) -> Floats:
    """x, or alpha * (exp(x) - 1) below zero."""
    return x.where("olt", 0.0, expm1.formula(x) * alpha, x)


@ElementFunction
def selu(x: Floats, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Floats:
    """Return gamma * elu(x, alpha)."""
    return elu.formula(x, alpha=alpha) * gamma


@ElementFunction
def mish(x: Floats) -> Floats:
    """Return x * tanh(softplus(x))."""
    return x * tanh.formula(softplus.formula(x))


@ElementFunction
def gaussian_unit(x: Floats, *, approximate: str = "none") -> Floats:
    """Return x times the normal distribution function, or times its approximation by tanh."""
    if approximate == "tanh":
        return x * 0.5 * (tanh.formula((x * x * x).times_plus(0.044715, x) * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (erf.formula(x * math.sqrt(0.5)) + 1.0)


@ElementFunction
def hard_sigmoid(x: Floats, *, alpha: float = 0.2, beta: float = 0.5) -> Floats:
    """Return alpha * x + beta, from 0 to 1."""
    return at_most(1.0, at_least(0.0, x * alpha + beta))


@ElementFunction
def hard_swish(x: Floats) -> Floats:
    """Return x * hard_sigmoid(x, 1/6, 1/2)."""
    return x * hard_sigmoid.formula(x, alpha=1 / 6)


def _called(name: str) -> ElementFunction[[]]:
    """Return LLVM's function of this name, a single instruction."""
    return ElementFunction(lambda x: x.call(name))


FUNCTIONS: dict[str, ElementFunction[...]] = {
    "Abs": absolute,
    "Ceil": _called("ceil"),
    "Cos": cos,
    "Elu": elu,
    "Erf": erf,
    "Exp": exp,
    "Floor": _called("floor"),
    "Gelu": gaussian_unit,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LeakyRelu": leaky_relu,
    "Log": log,
    "Mish": mish,
    "Neg": negative,
    "Reciprocal": reciprocal,
    "Relu": relu,
    "Round": _called("roundeven"),
    "Selu": selu,
    "Sigmoid": sigmoid,
    "Sign": sign,
    "Sin": sin,
    "Softplus": softplus,
    "Softsign": softsign,
    "Sqrt": _called("sqrt"),
    "Tanh": tanh,
}
"""The function of each ONNX operator; attributes are keyword arguments with the names and defaults of ONNX."""


# Operators of several operands, and of truth values.


EmitElements: TypeAlias = Callable[..., str]
"""Called with a text, the names of the operands, and their width; adds the result and returns its name."""


def instruction(name: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add the result of an instruction; more than two operands are joined from left to right."""
    result = operands[0]
    for one in operands[1:]:
        result = text.value(f"{name} {vector_type(width)} {result}, {one}")
    return result


def extreme(name: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add the greatest or the least operand; NaN if one is NaN."""
    result = operands[0]
    for one in operands[1:]:
        result = text.call(name, [result, one], width)
    return result


def comparison(test: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the comparison holds, 0 elsewhere."""
    truth = _compared(text, test, operands, width)
    return text.value(f"uitofp {_truths(width)} {truth} to {vector_type(width)}")


def _compared(text: Text, test: str, operands: Sequence[str], width: int) -> str:
    return text.value(f"fcmp {test} {vector_type(width)} {operands[0]}, {operands[1]}")


def _truths(width: int) -> str:
    return "i1" if width == 1 else f"<{width} x i1>"


def is_nonzero(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is not 0, and for NaN, as a conversion to bool does."""
    return comparison("une", text, [operands[0], literal(0.0, width)], width)


def second_or_third(text: Text, operands: Sequence[str], width: int) -> str:
    """Add the second operand where the first one is true, the third elsewhere."""
    condition = _compared(text, "une", [operands[0], literal(0.0, width)], width)
    second, third = (f"{vector_type(width)} {one}" for one in operands[1:])
    return text.value(f"select {_truths(width)} {condition}, {second}, {third}")


def differs(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where one of two truth values is true, but not both."""
    return comparison("une", text, operands, width)


def is_nan(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is NaN."""
    return comparison("uno", text, [operands[0]] * 2, width)


def is_infinite(
    text: Text, operands: Sequence[str], width: int, *, detect_negative: int = 1, detect_positive: int = 1
) -> str:
    """Add 1 where the operand is infinite, with a sign that is to be detected."""
    bounds = [math.inf] * bool(detect_positive) + [-math.inf] * bool(detect_negative)
    found = [comparison("oeq", text, [operands[0], literal(bound, width)], width) for bound in bounds]
    return extreme("maximum", text, found, width) if found else literal(0.0, width)


def opposite(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is 0."""
    return text.value(f"fsub {vector_type(width)} {literal(1.0, width)}, {operands[0]}")


def clipped(text: Text, operands: Sequence[str], width: int) -> str:
    """Add the first operand, at least the second and at most the third."""
    # In this order the upper bound holds where the bounds cross, as in ONNX.
    return extreme("minimum", text, [extreme("maximum", text, operands[:2], width), operands[2]], width)


def unchanged(text: Text, operands: Sequence[str], width: int) -> str:
    """Return the operand."""
    return operands[0]


def of_first(function: Callable[..., str], text: Text, operands: Sequence[str], width: int, **settings: float) -> str:
    """Add a function of the only operand, with the node's attributes as settings."""
    return function(text, operands[0], width, **settings)


TESTS = {"Equal": "oeq", "Greater": "ogt", "GreaterOrEqual": "oge", "Less": "olt", "LessOrEqual": "ole"}

EMIT: Mapping[str, EmitElements] = {
    **{name: partial(of_first, function) for name, function in FUNCTIONS.items()},
    **{name: partial(comparison, test) for name, test in TESTS.items()},
    "Add": partial(instruction, "fadd"),
    "And": partial(instruction, "fmul"),  # of 0 and 1
    "Clip": clipped,
    "Div": partial(instruction, "fdiv"),
    "Identity": unchanged,
    "IsInf": is_infinite,
    "IsNaN": is_nan,
    "Max": partial(extreme, "maximum"),
    "Min": partial(extreme, "minimum"),
    "Mul": partial(instruction, "fmul"),
    "Not": opposite,
    "Or": partial(extreme, "maximum"),
    "Sub": partial(instruction, "fsub"),
    "Sum": partial(instruction, "fadd"),
    "Where": second_or_third,
    "Xor": differs,
}
"""Operators of numbers and truth values, by their names in ONNX."""
