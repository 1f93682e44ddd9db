"""Tables that were read: their columns as numbers and text, and the column of the target."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .._data.rounding import warn_of_rounding
from .._data.text_columns import warn_of_texts
from ..exceptions import nearest, warn
from .command import UsageError
from .table_files import pandas_module

if TYPE_CHECKING:
    import pandas

TableTask: TypeAlias = Literal["classification", "regression"]

MOST_CLASSES = 20
"""Different whole numbers in the target up to which they are taken for classes."""

NESTED = (list, tuple, dict, np.ndarray, bytes)
"""What a cell may not hold: text would be made of it."""

MISSING_TEXT = ""
"""What stands for missing text, in training and in the files that are written."""


@dataclass(frozen=True)
class Target:
    """The column to predict: its values, whether they are classes, and why."""

    name: str
    values: np.ndarray
    task: TableTask
    reason: str


def table_arguments(parser: argparse.ArgumentParser, data: str) -> None:
    """Add the arguments that say which file is read, and how."""
    parser.add_argument("data", type=Path, metavar="DATA", help=data)
    parser.add_argument("--separator", metavar="CHAR", help="of a CSV file; default: a comma, of .tsv files a tab")
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")


def require_columns(frame: pandas.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise UsageError if the table lacks one of the columns."""
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{what} {name!r} is no column of the table.{nearest(name, list(frame.columns))}")


def without_columns(frame: pandas.DataFrame, names: Sequence[str]) -> Any:
    """Return the table without some columns."""
    require_columns(frame, names, "--drop")
    return frame.drop(columns=list(names))


def target_of(frame: pandas.DataFrame, name: str, task: TableTask | None) -> Target:
    """Return the target column as classes or numbers; ``task`` None: as its values tell."""
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
    """Return labels that ONNX has: integers or strings."""
    values = series.to_numpy()
    if series.dtype.kind in "iuf" and _are_whole(series):
        return np.asarray(values, np.int64)
    return np.array([str(value) for value in values])


def is_number(series: pandas.Series) -> bool:
    """Whether a column holds numbers or truth values, missing ones among them."""
    return getattr(series.dtype, "kind", "O") in "iufb"


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


def text_columns(frame: pandas.DataFrame) -> list[str]:
    """Return the names of the columns that hold text."""
    return [name for name in frame.columns if not is_number(frame[name])]


def warn_of_row_numbers(frame: pandas.DataFrame) -> None:
    """Warn of columns that count the rows in the order of the file, which is often that of the target."""
    for name in frame.columns:
        if len(frame) > 2 and getattr(frame[name].dtype, "kind", "O") in "iu" and (frame[name].diff()[1:] == 1).all():
            warn(f"Column {name!r} counts the rows; if it says nothing about them, leave it out by --drop {name!r}.")


def warn_of_row_names(frame: pandas.DataFrame) -> None:
    """Warn of columns of text that hold dates, or seem to name the rows."""
    for name in text_columns(frame):
        texts = (str(text) for text in frame[name].unique())
        known = [text for text in texts if text not in (MISSING_TEXT, "nan", "None")]
        warn_of_texts(name, known, len(frame), f"leave the column out by --drop {name!r}")
