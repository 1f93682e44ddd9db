"""Warnings of columns of text that are no categories: dates, numbers, and names of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..exceptions import warn

MANY_CATEGORIES = 20
"""Different texts from which on a column of numbers, or one that has a text for every other row, is suspicious."""

MOSTLY = 0.8
"""Share of numbers among different texts from which on the others are taken for missing ones."""

WARNINGS = r"Column .* (holds dates|holds numbers as texts|has \d+ different texts)"
"""How the warnings begin, for whoever has given them already."""

CODE = re.compile(r"\d+")
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?(\d{1,3}(,\d{3})+(\.\d*)?|\d*[.,]?\d+|\d+\.)([eE][-+]?\d+)?\s?[%$€£]?")

DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{1,2}/\d{1,2}/\d{2})([T ]\d{1,2}:\d{2}.*)?"
)


def warn_of_texts(
    name: str, texts: Iterable[str], n_rows: int, remedy: str = "leave the column out", *, has_codes: bool = False
) -> None:
    """Warn if the texts of a column are dates or numbers, or so many different ones that they seem to name the rows.

    Parameters
    ----------
    name : str
        Name of the column.
    texts : iterable of str
        Those that are not missing.
    n_rows : int
    remedy : str
        How a column is left out.
    has_codes : bool
        Whether the column has a type of categories: numbers among them are codes then.
    """
    different = set(texts)
    if different and all(DATE.fullmatch(text) for text in different):
        warn(
            f"Column {name!r} holds dates, which are trained on as texts: make numbers of them, such as days since a "
            f"date, or {remedy}."
        )
    elif not has_codes and (examples := _numbers_among(different)):
        warn(
            f"Column {name!r} holds numbers as texts, which are trained on as categories: {examples}. Make numbers of "
            f"them, missing ones of texts that are none, or {remedy}, unless they are codes."
        )
    elif len(different) > max(MANY_CATEGORIES, n_rows // 2):
        warn(
            f"Column {name!r} has {len(different)} different texts in {n_rows} rows; if they identify the rows, "
            f"{remedy}."
        )


def _numbers_among(texts: set[str]) -> str | None:
    """Return examples where most texts are numbers; None for others, and for codes such as 00501."""
    if len(texts) <= MANY_CATEGORIES:
        return None
    numbers = {text for text in texts if NUMBER.fullmatch(text.strip())}
    others = sorted(texts - numbers)
    if len(numbers) < MOSTLY * len(texts) or any(CODE.fullmatch(text) and text[0] == "0" != text for text in numbers):
        return None
    written = min(numbers, key=lambda text: (bool(CODE.fullmatch(text)), text))
    if others:
        return f"{written!r} is one, {others[0]!r} is none"
    return None if CODE.fullmatch(written) else f"such as {written!r}"
