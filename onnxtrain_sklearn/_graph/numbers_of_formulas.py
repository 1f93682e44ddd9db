"""Single numbers that formulas are made of, told from those that training leaves behind."""

from __future__ import annotations

import math
import re

import numpy as np

LARGEST_DIMENSION = 16384
"""Of the vectors whose products are divided by its root."""

MOST_DIGITS = 5
"""Of numbers that somebody wrote down; a float32 that was trained has seven."""

_WORDS = {
    "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0, "four": 4.0, "five": 5.0, "six": 6.0, "eight": 8.0, "ten": 10.0,
    "hundred": 100.0, "thousand": 1000.0, "half": 0.5, "third": 1 / 3, "quarter": 0.25, "pi": math.pi,
}  # fmt: skip
_NAMED = re.compile(
    rf"(?:.*[./])?(?:const(?:ant)?_)?(?P<sign>minus_?|neg(?:ative)?_?)?(?P<word>{'|'.join(_WORDS)}|eps(?:ilon)?)"
    r"(?:_*\d+)?(?::\d+)?",
    re.IGNORECASE,
)
_OF_WEIGHTS = re.compile(r"(?:.*[._/])?(?:[wb]|weight|bias|kernel|slope|logit_(?:scale|bias))\d*(?::0)?", re.IGNORECASE)
_LARGEST_EPSILON = 1e-2
_CONSTANTS = (math.pi, math.e, math.log(2), math.log(10), math.sqrt(2 / math.pi), math.sqrt(math.pi), math.sqrt(2))


def says_its_number(name: str, number: float) -> bool:
    """Whether a name is the word for its number, such as ``one`` and ``half``, or that of a small epsilon."""
    found = _NAMED.fullmatch(name)
    if found is None:
        return False
    word = found["word"].lower()
    if word.startswith("eps"):
        return 0 < number <= _LARGEST_EPSILON and not found["sign"]
    return _equal(number, -_WORDS[word] if found["sign"] else _WORDS[word])


def says_it_is_a_weight(name: str) -> bool:
    """Whether a name is one of those that weights have and constants do not."""
    return _OF_WEIGHTS.fullmatch(name) is not None


def is_of_formulas(number: float) -> bool:
    """Whether a number has few digits, or is a root, a fraction or a known constant: as in formulas, and at a start."""
    if not math.isfinite(number):
        return True
    size = abs(number)
    if size == 0 or _equal(size, float(f"{size:.{MOST_DIGITS}g}")):
        return True
    known = any(_equal(size * factor, one) for one in _CONSTANTS for factor in (0.5, 1.0, 2.0))
    whole = 1 < 1 / size <= 1000 and _equal(1 / size, round(1 / size))
    return known or whole or is_root(size) or is_root(1 / size)


def is_root(number: float) -> bool:
    """Whether a number is the second or fourth root of a dimension, as float32 gives it.

    Powers of other numbers, such as trained factors, are near an integer as well where they are large.
    """
    powers = (number**2, number**4) if 1 < number < LARGEST_DIMENSION else ()
    return any(x <= LARGEST_DIMENSION and abs(x - round(x)) <= 2e-6 * x for x in powers)


def _equal(number: float, other: float) -> bool:
    """Whether numbers are the same in float32."""
    return bool(np.isclose(number, other, rtol=1.2e-7, atol=0.0))
