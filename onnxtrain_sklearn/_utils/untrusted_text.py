"""Handle text from files: escape it for terminals and spreadsheets, and parse it as strict JSON.

Names in a graph or a table may hold escape sequences, which move the cursor, rename the window or imitate another line,
and marks that reverse the direction of writing: :func:`printable` and :func:`json_escaped` escape them. A spreadsheet
runs a cell that begins like a formula: :func:`cell` prevents that. :func:`json_object` reads JSON.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from ..exceptions import ModelError

_FORMULA = "=+-@\t\r\n"
"""Characters that begin a formula in a spreadsheet, and characters that it skips before them."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)


def printable(text: str, keep: str = "") -> str:
    """Return a text with control characters and marks of direction as escapes of Python; ``keep`` stay."""
    if text.isascii() and text.isprintable():
        return text

    def escaped(character: str) -> str:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return "".join(one if one in keep or not _is_control(one) else escaped(one) for one in text)


def _is_control(character: str) -> bool:
    """Return True for a control (Cc), a mark of direction (Cf), half a character (Cs) and the end of a line (Zl, Zp).

    The joiners of letters (U+200C, U+200D), which some languages need, are none.
    """
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") and character not in "\u200c\u200d"


def json_escaped(text: str) -> str:
    """Return JSON with the characters that :func:`printable` replaces as escapes of JSON; line ends between stay."""

    def escaped(character: str) -> str:
        units = character.encode("utf-16-be", "surrogatepass")  # as JSON writes characters beyond 16 bits
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(one if one == "\n" or not _is_control(one) else escaped(one) for one in text)


def cell(value: Any) -> Any:
    """Return a value for a cell of a CSV file: a text that a spreadsheet would run is marked by an apostrophe.

    Texts that are numbers, such as ``-1``, stay.
    """
    if isinstance(value, str) and value[:1] and value[0] in _FORMULA and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


# JSON that comes from files: nothing in it may raise an error of another class, or be read in two ways.


def json_object(text: bytes | str, what: str) -> dict[str, Any]:
    """Return the object of JSON in a text; raise ModelError, which begins with ``what``, if it is none."""

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} comes twice")
        return found

    def refuse_constant(name: str) -> Any:  # NaN, Infinity
        raise ValueError(f"{name} is no number of JSON")

    try:
        found = json.loads(text, object_pairs_hook=without_repetition, parse_constant=refuse_constant)
    except RecursionError:
        raise ModelError(f"{what} is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ModelError(f"{what} is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{what} must be an object of JSON, got {type(found).__name__}.")
    return found
