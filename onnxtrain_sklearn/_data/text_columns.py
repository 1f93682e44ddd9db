"""Warnings of columns of text that are no categories: dates, and names of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..exceptions import warn

MANY_CATEGORIES = 20
"""Different texts from which on a column that has one for every other row is suspicious."""

DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{1,2}/\d{1,2}/\d{2})([T ]\d{1,2}:\d{2}.*)?"
)


def warn_of_texts(name: str, texts: Iterable[str], n_rows: int, remedy: str = "leave the column out") -> None:
    """Warn if the texts of a column are dates, or if there are so many different ones that they seem to name the rows.

    Parameters
    ----------
    name : str
        Name of the column.
    texts : iterable of str
        Those that are not missing.
    n_rows : int
    remedy : str
        How a column is left out.
    """
    different = set(texts)
    if different and all(DATE.fullmatch(text) for text in different):
        warn(
            f"Column {name!r} holds dates, which are trained on as texts: make numbers of them, such as days since a "
            f"date, or {remedy}."
        )
    elif len(different) > max(MANY_CATEGORIES, n_rows // 2):
        warn(
            f"Column {name!r} has {len(different)} different texts in {n_rows} rows; if they identify the rows, "
            f"{remedy}."
        )
