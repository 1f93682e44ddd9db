"""``predict``: run an ONNX file on a table and write its outputs as CSV.

``runner_of`` opens any ONNX file; the ``Runner`` gives it the columns of a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from .._ir.files import read
from .._ir.limits import require_survivable
from .._ort import devices, sessions
from .._pretrained.ml_files import TABLE_KEY
from .._utils.untrusted_text import cell, printable
from ..exceptions import nearest
from .console import Command, Console, Outcome, UsageError, require_writable
from .tables import (
    MISSING_TEXT,
    as_numbers_and_text,
    is_number,
    read_table_file,
    require_columns,
    table_arguments,
    text_array,
    text_columns,
    without_columns,
)

if TYPE_CHECKING:
    import pandas


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="ONNX file")
    table_arguments(parser)
    add = parser.add_argument
    taken = "columns that the model takes, in order; default: as the file says, or all"
    add("--columns", nargs="+", metavar="COLUMN", help=taken)
    add("--keep", nargs="+", default=[], metavar="COLUMN", help="columns to copy before the predictions")
    add("--output", type=Path, metavar="FILE", help="CSV file; default: stdout")


def _predict(options: argparse.Namespace, console: Console) -> Outcome:
    require_writable([options.output], [options.data])
    table = read_table_file(options.data, options.separator)
    require_columns(table, options.keep, "--keep")
    require_columns(table, options.columns or [], "--columns")
    frame = without_columns(table, options.drop)
    runner = runner_of(options.model, {"columns": options.columns} if options.columns else None)
    console.progress(f"{options.data}: {len(table)} rows")
    columns = output_columns(runner.run(frame), runner.table.get("classes"))
    if clash := [name for name in options.keep if name in columns]:
        raise UsageError(f"--keep {clash[0]!r}: the model has an output of that name.")
    result = table[options.keep].assign(**columns)
    record = {"rows": len(result), "columns": list(result.columns), "output": None}
    cells = _each(result, cell)  # escape texts and column names that a spreadsheet would run as formulas
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        cells.to_csv(options.output, index=False)
        return Outcome(record | {"output": str(options.output)}, [f"{options.output}: {len(result)} rows"])
    if not console.as_json:
        if sys.stdout.isatty():
            cells = _each(cells, lambda value: printable(value) if isinstance(value, str) else value)
        cells.to_csv(sys.stdout, index=False, lineterminator="\n")
    return Outcome(record | {"predictions": {name: result[name].tolist() for name in result.columns}}, [])


def output_columns(outputs: Mapping[str, Output], classes: Sequence[object] | None) -> dict[str, np.ndarray]:
    """Return the outputs of a model as columns: NAME, or NAME_CLASS or NAME_INDEX for several numbers a row."""
    columns: dict[str, np.ndarray] = {}
    for name, values in outputs.items():
        if isinstance(values, list):
            columns |= {f"{name}_{key}": np.array([row[key] for row in values]) for key in values[0]}
            continue
        flat = values.reshape(len(values), -1)
        if flat.shape[1] == 1:
            columns[name] = flat[:, 0]
            continue
        labels = classes if classes is not None and len(classes) == flat.shape[1] else range(flat.shape[1])
        columns |= {f"{name}_{label}": flat[:, i] for i, label in enumerate(labels)}
    return columns


def _each(frame: pandas.DataFrame, change: Callable[[Any], Any]) -> pandas.DataFrame:
    """Apply a function to each text of a table and to the names of its columns."""
    texts = [i for i in range(len(frame.columns)) if frame.iloc[:, i].dtype.kind not in "biufc"]
    columns = [
        [change(value) for value in frame.iloc[:, i].tolist()] if i in texts else frame.iloc[:, i]
        for i in range(len(frame.columns))
    ]
    found = type(frame)(dict(enumerate(columns)), index=frame.index)
    return found.set_axis([change(name) for name in frame.columns], axis=1)


# ONNX files in sessions.


def runner_of(path: Path, table: Mapping[str, object] | None = None) -> Runner:
    """Return a session for an ONNX file; ``table``, if given, replaces the metadata of the file.

    The file may come from anywhere: its size is limited, and a graph that would end the process is refused.
    """
    if not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}.")
    model = read(path)
    require_survivable(model)
    content, threads = model.SerializeToString(), devices.available_threads()
    session = sessions.create_session(content, devices.resolve_device(), threads=threads)
    own = session.get_modelmeta().custom_metadata_map.get(TABLE_KEY, "{}")
    return Runner(session, json.loads(own) if table is None else table)


ROWS = 8192
"""Rows that are predicted at a time."""

_ELEMENT_TYPES: dict[str, type] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}

Output: TypeAlias = "np.ndarray | list[dict[Any, float]]"
"""An output of a model: an array, or, from some classifiers, a dictionary of scores for each row."""


class InputSpec(Protocol):
    """Name, type and shape of an input of a session."""

    name: str
    type: str
    shape: Sequence[int | str | None] | None


@dataclass(frozen=True)
class Runner:
    """An ONNX file in a session.

    Attributes
    ----------
    session : onnxruntime.InferenceSession
    table : mapping
        The file's metadata about its table; empty for a file of another origin.
    """

    session: Any
    table: Mapping[str, Any]

    @property
    def inputs(self) -> list[InputSpec]:
        """Name, type and shape of each input."""
        return list(self.session.get_inputs())

    def run(self, frame: pandas.DataFrame) -> dict[str, Output]:
        """Return the outputs for the rows of a table, by name."""
        names, feeds = [output.name for output in self.session.get_outputs()], self.feeds(frame)
        fixed = {one.shape[0] for one in self.inputs if one.shape and isinstance(one.shape[0], int)}
        size = min(fixed, default=ROWS)
        if fixed and len(frame) % size:
            raise ValueError(
                f"The model takes {size} rows at a time, and the table has {len(frame)}: export it for any number."
            )
        parts = [
            sessions.run_session(self.session, names, {name: array[i : i + size] for name, array in feeds.items()})
            for i in range(0, len(frame), size)
        ]
        joined: dict[str, Output] = {}
        for name, pieces in zip(names, zip(*parts, strict=True), strict=True):
            # some classifiers return dictionaries of scores
            as_dicts = isinstance(pieces[0], list)
            joined[name] = [row for piece in pieces for row in piece] if as_dicts else np.concatenate(pieces)
        return joined

    def feeds(self, frame: pandas.DataFrame) -> dict[str, np.ndarray]:
        """Return the rows as the model's inputs: a column for each, or all columns as one matrix."""
        columns = self.table.get("columns")
        if columns is not None:
            if missing := [name for name in columns if name not in frame.columns]:
                raise UsageError(
                    f"The table lacks the column {missing[0]!r}.{nearest(missing[0], list(frame.columns))}"
                )
            frame = frame[columns]
        inputs = self.inputs
        if len(inputs) == 1:
            # a column of the table by its name and shape, or the only input: a matrix of all columns
            one = inputs[0]
            if one.name not in frame.columns or list(one.shape or ())[1:] not in ([], [1]):
                return {one.name: _matrix(one, frame)}
        return {one.name: self._column(one, frame) for one in inputs}

    def _column(self, one: InputSpec, frame: pandas.DataFrame) -> np.ndarray:
        """Return a column of the table in the type and shape of an input."""
        if one.name not in frame.columns:
            hint = nearest(one.name, list(frame.columns))
            raise UsageError(f"The model's input {one.name!r} is no column of the table.{hint}")
        wanted, series = _ELEMENT_TYPES.get(one.type), frame[one.name]
        if wanted is None:
            raise ValueError(f"The model's input {one.name!r} is a {one.type}, which no column of a table can be.")
        if wanted is object:
            array = text_array(series, str(self.table.get("missing_text", MISSING_TEXT)))
        elif not is_number(series):
            raise ValueError(f"The model's input {one.name!r} takes numbers, and the column holds text.")
        elif np.dtype(wanted).kind not in "f" and series.isna().any():
            raise ValueError(f"The model's input {one.name!r} takes integers, and the column has missing values.")
        else:
            array = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan), wanted)
        return array if len(one.shape or ()) == 1 else array.reshape(-1, 1)


def _matrix(one: InputSpec, frame: pandas.DataFrame) -> np.ndarray:
    """Return all columns as one array in the shape of an input."""
    if texts := text_columns(frame):
        raise ValueError(
            f"The model takes a matrix of numbers, and column {texts[0]!r} holds text: leave it out by --drop."
        )
    wanted, row = _ELEMENT_TYPES.get(one.type, np.float32), list(one.shape or [None, None])[1:]
    known = [size for size in row if isinstance(size, int)]
    if len(known) == len(row) and int(np.prod(known)) != len(frame.columns):
        raise UsageError(
            f"The model's input {one.name!r} takes {int(np.prod(known))} columns, the table has {len(frame.columns)}: "
            f"leave some out by --drop, or name those that it takes by --columns."
        )
    array = as_numbers_and_text(frame).to_numpy() if wanted is np.float32 else frame.to_numpy()
    array = np.ascontiguousarray(array, wanted)
    return array.reshape(len(frame), *known) if len(known) == len(row) else array


PREDICT = Command(_predict_arguments, _predict)
