"""Columns of a table as a training takes them: numbers and text, the target, and warnings of useless columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .._data.columns import warn_of_rounding
from .._data.inputs import warn_of_texts
from ..exceptions import warn
from .console import UsageError
from .table_files import pandas_module, require_columns

if TYPE_CHECKING:
    import pandas


TableTask: TypeAlias = Literal["classification", "regression"]

MOST_CLASSES = 20
"""Most different whole numbers in a target that is taken for classes."""


@dataclass(frozen=True)
class Target:
    """The column to predict: its values, whether they are classes, and why."""

    name: str
    values: np.ndarray
    task: TableTask
    reason: str


def target_of(frame: pandas.DataFrame, name: str, task: TableTask | None) -> Target:
    """Return the target column as classes or numbers; without a ``task``, its values decide."""
    require_columns(frame, [name], "--target")
    series = frame[name]
    if missing := int(series.isna().sum()):
        raise ValueError(f"The target {name!r} is missing in {missing} of {len(series)} rows: remove these rows.")
    found, reason = _task_of(series) if task is None else (task, "--task or the model says")
    if found == "regression" and series.dtype.kind not in "iufb":
        raise UsageError(f"The target {name!r} holds text ({series.iloc[0]!r}), which is no number to regress on.")
    values = series.to_numpy(np.float64) if found == "regression" else _onnx_labels(series)
    return Target(name, values, found, reason)


def _task_of(series: pandas.Series) -> tuple[TableTask, str]:
    different = series.nunique()
    if series.dtype.kind not in "iuf":
        return "classification", "it holds text or truth values"
    # whole numbers in floats are read like integers: pandas makes floats of a column with a missing value
    if series.dtype.kind == "f" and not _are_whole(series):
        return "regression", "it holds fractions"
    what = f"it holds {different} different whole numbers"
    if different <= MOST_CLASSES:
        return "classification", f"{what}; --task regression predicts them as numbers"
    return "regression", f"{what}; --task classification predicts them as classes"


def _are_whole(series: pandas.Series) -> bool:
    numbers = series.to_numpy(np.float64)
    return bool((numbers == np.rint(numbers)).all())


def _onnx_labels(series: pandas.Series) -> np.ndarray:
    """Return labels as integers or strings, the types that ONNX has for them."""
    values = series.to_numpy()
    if series.dtype.kind in "iuf" and _are_whole(series):
        return np.asarray(values, np.int64)
    return np.array([str(value) for value in values])


NESTED = (list, tuple, dict, np.ndarray, bytes)
"""Types that a cell may not hold: they would be turned into text."""

MISSING_TEXT = ""
"""The text that stands for a missing one, in training and in the files that are written."""


def as_numbers_and_text(frame: pandas.DataFrame) -> Any:
    """Return the table with float32 columns and columns of strings, in which missing text is empty."""
    columns = {name: _as_number_or_text(name, frame[name]) for name in frame.columns}
    return pandas_module().DataFrame(columns, index=frame.index)


def _as_number_or_text(name: str, series: pandas.Series) -> np.ndarray:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "mMc":
        raise ValueError(f"Column {name!r} holds times or complex numbers: make numbers of it, or --drop {name!r}.")
    if is_number(series):
        if kind in "iu":
            warn_of_rounding(series.dropna().to_numpy(), np.dtype(np.float32), f"Column {name!r}")
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan), np.float32)
    missing = series.isna().to_numpy()
    values = series.tolist()
    if kinds := {type(value) for value in values if isinstance(value, NESTED)}:
        what = next(iter(kinds)).__name__
        raise ValueError(f"Column {name!r} holds a {what} in a cell: make columns of it, or --drop {name!r}.")
    texts = [MISSING_TEXT if gone else str(value) for value, gone in zip(values, missing, strict=True)]
    return np.array([*texts, None], object)[:-1]


def is_number(series: pandas.Series) -> bool:
    """Return True if a column holds numbers or truth values, missing ones among them."""
    return getattr(series.dtype, "kind", "O") in "iufb"


def text_columns(frame: pandas.DataFrame) -> list[str]:
    """Return the names of the columns that hold text."""
    return [name for name in frame.columns if not is_number(frame[name])]


def warn_of_row_numbers(frame: pandas.DataFrame) -> None:
    """Warn of columns that number the rows: files are often sorted by the target, which such a column gives away."""
    for name in frame.columns:
        if (
            len(frame) > 2
            and getattr(frame[name].dtype, "kind", "O") in "iu"
            and (frame[name].diff().iloc[1:] == 1).all()
        ):
            warn(f"Column {name!r} counts the rows; if it says nothing about them, leave it out by --drop {name!r}.")


def warn_of_row_names(frame: pandas.DataFrame) -> None:
    """Warn of columns of text that hold dates, or seem to name the rows rather than to group them."""
    for name in text_columns(frame):
        texts = (str(text) for text in frame[name].unique())
        known = [text for text in texts if text not in (MISSING_TEXT, "nan", "None")]
        warn_of_texts(name, known, len(frame), f"leave the column out by --drop {name!r}")
