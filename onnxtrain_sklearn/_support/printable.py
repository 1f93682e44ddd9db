"""Texts that come from files, as a terminal and a spreadsheet may be given them.

Names in a graph or a table may hold escape sequences, which move the cursor, rename the window or write what looks
like another line, and marks that turn the direction of writing. Cells of a spreadsheet that begin like a formula are
run as one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_FORMULA = "=+-@\t\r\n"
"""The first characters by which spreadsheets know a formula, and those that they skip before one."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)


def printable(text: str, keep: str = "") -> str:
    """Return a text with control characters and marks of direction as escapes of Python; ``keep`` stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in keep or not _is_control(one) else _escaped(one) for one in text)


def _is_control(character: str) -> bool:
    """Whether a character is a control (Cc), a mark of format such as of direction (Cf), or ends a line (Zl, Zp)."""
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") and character not in "\u200c\u200d"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_escaped(text: str) -> str:
    """Return JSON with the characters that :func:`printable` replaces as escapes of JSON; line ends between stay."""
    pieces = (one if one == "\n" or not _is_control(one) else _json_escape(one) for one in text)
    return text if text.isascii() and "\x7f" not in text else "".join(pieces)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def cell(value: Any) -> Any:
    """Return a value for a cell of a CSV file: a text that a spreadsheet would run is marked by an apostrophe.

    Texts that are numbers, such as ``-1``, stay.
    """
    if isinstance(value, str) and value[:1] and value[0] in _FORMULA and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
