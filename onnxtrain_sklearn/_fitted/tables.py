"""Tables with text: the columns that a fitted model takes, and conversion of data to these columns.

Missing text becomes a string, "nan" or "None", or another one where the model knows that string as text. A column in
which it may also be a value is refused. So is unknown text where the encoder refuses it, as in scikit-learn's
``predict``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_array

from .._support.typing import MatrixLike


@dataclass(frozen=True)
class TableColumn:
    """One column that a fitted model takes.

    Attributes
    ----------
    name : str
    kind : {"text", "number", "unused"}
    gaps : bool
        Whether values may be missing.
    known : frozenset or None
        The texts that it may hold, those that stand for missing ones included, or the numbers; None: any.
    literal, missing : frozenset
        What the model knows: as such, and the texts that stand for missing text.
    gap : str or None
        The text that a graph takes for missing text; None: the text that Python writes for the missing value.
    marks : dict of str
        What missing text is written as, by its usual form, where it is not that.
    width : int
        Texts in a row of documents.
    """

    name: str
    kind: Literal["text", "number", "unused"]
    gaps: bool = True
    known: frozenset[Any] | None = None
    literal: frozenset[Any] = frozenset()
    missing: frozenset[str] = frozenset()
    gap: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    width: int = 1

    def texts(self, values: np.ndarray) -> np.ndarray:
        """Return the values of a column as text, validated; shape (n_samples, 1)."""
        where, listed = f"column {self.name!r} of X", values.tolist()
        written = {value: str(value) for value in set(listed)}
        for value in filter(is_gap, set(listed)):
            written[value] = self.marks.get(str(value), str(value)) if self.gap is None else self.gap
        absent = {text for value, text in written.items() if is_gap(value)}
        given = {value for value in written if not is_gap(value)}
        if not listed:
            raise ValueError(f"There is no text in {where}: it has no rows, and at least one is required.")
        if odd := {type(value).__name__ for value in given if not isinstance(value, str)}:
            raise ValueError(f"The fitted model takes text in {where}, got {', '.join(sorted(odd))}.")
        if absent and not self.gaps:
            raise ValueError(f"Text is missing in {where}, which the fitted model has no number for.")
        if unsure := (absent - self.missing) & self.literal:
            raise ValueError(
                f"The text {min(unsure)!r} in {where} cannot be told from missing text, which is written as the same. "
                f"Write it otherwise, and fit the model on that."
            )
        alike = given & self.missing  # unknown text that looks like missing text: other unknown text does as well
        self._require_known(given - alike | absent)
        if alike and self.known is not None:
            raise ValueError(self._says_unknown(alike))
        written |= {value: self._unknown_text(value) for value in alike}
        return np.array([written[value] for value in listed], object).reshape(-1, self.width)

    def _unknown_text(self, text: str) -> str:
        while text in self.missing | self.literal:
            text = f"<{text}>"
        return text

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Return numbers, validated against the known categories; shape (n_samples, 1)."""
        if self.known is not None:
            self._require_known(set(values[~np.isnan(values)].tolist()))
        return values.reshape(-1, 1)

    def _require_known(self, values: set[str] | set[float]) -> None:
        if unknown := set() if self.known is None else values - self.known:
            raise ValueError(self._says_unknown(unknown))

    def _says_unknown(self, values: set[Any]) -> str:
        return f"Found unknown categories {sorted(values)} in column {self.name!r} of X."


def is_gap(value: object) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


@dataclass(frozen=True)
class Table:
    """The columns that a fitted model takes, in their order in the data.

    Attributes
    ----------
    columns : tuple of TableColumn
    documents : bool
        Whether the data are one sequence of texts, as vectorizers take it, and no table.
    """

    columns: tuple[TableColumn, ...]
    documents: bool = False

    @property
    def marks(self) -> Mapping[str, str]:
        """What missing text is written as, by its usual form, where it is not that in some column."""
        return next((column.marks for column in self.columns if column.marks), {})

    @property
    def texts(self) -> dict[str, bool]:
        """Whether each column is text, by name; unused columns count as numbers."""
        return {column.name: column.kind == "text" for column in self.columns}

    @property
    def features(self) -> dict[str, Any]:
        """The attributes that scikit-learn checks the data with, of a table that is known by its columns alone."""
        names = [column.name for column in self.columns]
        if names == [f"x{i}" for i in range(len(names))]:  # those of an array
            return {"n_features_in_": len(names)}
        return {"n_features_in_": len(names), "feature_names_in_": np.array(names, object)}

    @property
    def splits_words(self) -> bool:
        """Whether a column is split into words, so that any text is valid."""
        return any(column.kind == "text" and not column.literal for column in self.columns)

    def arrays(self, X: MatrixLike) -> dict[str, np.ndarray]:
        """Return the used columns as validated arrays of shape (n_samples, 1), by name.

        Raises
        ------
        ValueError, TypeError
            A column holds what the fitted model does not take.
        """
        if self.documents:
            return {column.name: column.texts(_text_documents(X, column.width)) for column in self.columns}
        arrays = self._numbers(X)
        for i, column in enumerate(self.columns):
            if column.kind == "text":
                arrays[column.name] = column.texts(_table_values(X, [i])[:, 0])
        return arrays

    def _numbers(self, X: MatrixLike) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for gaps in (False, True):
            group = [i for i, c in enumerate(self.columns) if c.kind == "number" and c.gaps is gaps]
            if group:
                part = X.iloc[:, group] if hasattr(X, "iloc") else _table_values(X, group)
                finite = "allow-nan" if gaps else True
                matrix = check_array(part, ensure_all_finite=finite, input_name="X")
                taken = [(self.columns[i], matrix[:, j]) for j, i in enumerate(group)]
                arrays |= {column.name: column.numbers(values) for column, values in taken}
        return arrays


def holds_text(X: MatrixLike) -> bool:
    """Whether a data frame has columns that are not numeric."""
    dtypes = X.dtypes if hasattr(X, "columns") and hasattr(X, "dtypes") else ()
    return any(getattr(dtype, "kind", "O") not in "biuf" for dtype in dtypes)


def _table_values(X: MatrixLike, columns: Sequence[int]) -> np.ndarray:
    if hasattr(X, "iloc"):
        return np.asarray(X.iloc[:, columns], dtype=object)
    array = np.asarray(X, dtype=object)
    if array.ndim != 2:
        raise ValueError(f"The fitted model takes a data frame, or an array of two axes, got a {type(X).__name__}.")
    return array[:, columns]


def _text_documents(X: MatrixLike, width: int) -> np.ndarray:
    """Return the texts of all rows in one sequence; rows of one text may be a column."""
    values = np.asarray(X, dtype=object)
    if isinstance(X, str) or (values.shape[1:] != (width,) and not (width == 1 and values.ndim == 1)):
        what = "a sequence of texts" if width == 1 else f"{width} texts a row"
        raise ValueError(f"The fitted model takes {what}, got {type(X).__name__} of shape {values.shape}.")
    return values.ravel()
