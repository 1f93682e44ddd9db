"""``predict``: run an ONNX file on a table and write its outputs as CSV or Parquet.

The table is read, predicted and written in pieces, so that it need not fit into memory. ``runner_of`` opens any ONNX
file; the ``Runner`` gives it the columns of a table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from .._ir.files import read
from .._ir.limits import require_survivable
from .._ort import devices, sessions
from .._pretrained.ml_files import TABLE_KEY
from .._utils.atomic_files import whole_files
from .._utils.untrusted_text import cell, printable
from ..exceptions import nearest
from .console import Command, Console, Outcome, UsageError, require_new_folder, require_writable
from .tables import (
    ARCHIVES,
    MISSING_TEXT,
    PARQUET,
    TablePiece,
    as_numbers_and_text,
    is_number,
    name_of,
    open_table,
    require_columns,
    table_arguments,
    table_files,
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
    outputs = "CSV or Parquet file, or a folder, with / at the end, for Parquet files; default: CSV on stdout"
    add("--output", metavar="FILE", help=outputs)


PIECE_ROWS = 2**16
"""Rows of a table that are in memory."""


def _predict(options: argparse.Namespace, console: Console) -> Outcome:
    output = None if options.output is None else Path(options.output)
    is_folder = output is not None and (output.is_dir() or options.output.endswith(("/", os.sep)))
    files = table_files(options.data)
    if output is not None and is_folder:
        require_new_folder(output)
    else:
        require_writable([output], files)
    if output is not None and ARCHIVES & set(output.suffixes):
        raise UsageError(f"{str(output)!r} is an archive: name a .csv, .csv.gz or .parquet file, or a folder.")
    runner = runner_of(options.model, {"columns": options.columns} if options.columns else None)
    told = runner.table
    source = open_table(options.data, options, console, decimal=told.get("decimal"), missing=told.get("missing"))
    size = runner.rows * max(1, PIECE_ROWS // runner.rows)  # chunks of a piece are those of the whole table

    def results() -> Iterator[Results]:
        for piece in source.pieces(size):
            require_columns(piece.frame, options.keep, "--keep")
            require_columns(piece.frame, options.columns or [], "--columns")
            frame = without_columns(piece.frame, options.drop)
            columns = output_columns(runner.run(frame), told.get("classes"), told.get("quantiles"))
            if clash := [name for name in options.keep if name in columns]:
                raise UsageError(f"--keep {clash[0]!r}: the model has an output of that name.")
            yield Results(piece, options.keep, columns)

    if output is None:
        return _printed(results(), console)
    if output.exists() and not (output.is_file() or is_folder):  # a device or a pipe
        rows, columns = _write_csv(results(), output)
    else:  # files appear under their names when all rows are predicted
        with whole_files(output if is_folder else output.parent) as folder:
            if is_folder or output.suffix.lower() in PARQUET:
                rows, columns = _write_parquet(results(), folder, None if is_folder else output.name)
            else:
                rows, columns = _write_csv(results(), folder / output.name)
    console.progress(f"{name_of(options.data)}: {rows} rows")
    return Outcome({"rows": rows, "columns": columns, "output": str(output)}, [f"{output}: {rows} rows"])


@dataclass(frozen=True)
class Results:
    """Rows of a table with the columns to keep, and the outputs of the model for them."""

    piece: TablePiece
    keep: Sequence[str]
    outputs: Mapping[str, np.ndarray]

    @property
    def frame(self) -> pandas.DataFrame:
        """The columns as a data frame."""
        return self.piece.frame[list(self.keep)].assign(**self.outputs)

    @property
    def arrow(self) -> Any:
        """The columns as a table of Arrow; those to keep have their types in a Parquet file."""
        import pyarrow as pa

        names, kept = list(self.keep), self.piece.arrow
        if kept is None:
            kept = pa.Table.from_pandas(self.piece.frame[names], preserve_index=False)
        kept = kept.select(names)
        outputs = {name: pa.array(np.ascontiguousarray(column)) for name, column in self.outputs.items()}
        return pa.table(dict(zip(kept.column_names, kept.columns, strict=True)) | outputs)


def _printed(results: Iterator[Results], console: Console) -> Outcome:
    """Print predictions as CSV, or return all of them for JSON."""
    rows, found = 0, dict[str, list[Any]]()
    for one in results:
        frame = one.frame
        if console.as_json:
            for name in frame.columns:
                found.setdefault(name, []).extend(frame[name].astype(object).where(frame[name].notna(), None).tolist())
        else:
            cells = _each(frame, cell)  # escape texts and column names that a spreadsheet would run as formulas
            if sys.stdout.isatty():
                cells = _each(cells, lambda value: printable(value) if isinstance(value, str) else value)
            cells.to_csv(sys.stdout, index=False, header=not rows, lineterminator="\n")
            found = found or {name: [] for name in frame.columns}
        rows += len(frame)
    return Outcome({"rows": rows, "columns": list(found), "output": None, "predictions": found}, [])


def _write_csv(results: Iterator[Results], path: Path) -> tuple[int, list[str]]:
    """Write a CSV file; return the number of rows and the names of the columns."""
    rows, columns = 0, list[str]()
    for one in results:
        frame = one.frame
        _each(frame, cell).to_csv(path, index=False, header=not rows, mode="a" if rows else "w")
        rows, columns = rows + len(frame), list(frame.columns)
    return rows, columns


FILE_ROWS = 2**22
"""Rows of a file in a folder of predictions, or a few less."""


def _write_parquet(results: Iterator[Results], folder: Path, name: str | None) -> tuple[int, list[str]]:
    """Write a Parquet file, or several without a ``name``; return the number of rows and the names of the columns."""
    import pyarrow.parquet as pq

    rows, columns = 0, list[str]()
    with ExitStack() as files:
        writer, number, in_file = None, 0, 0
        for one in results:
            table = one.arrow
            if writer is None or (name is None and in_file + table.num_rows > FILE_ROWS):
                files.close()
                path = folder / (f"part-{number:05}.parquet" if name is None else name)
                writer = files.enter_context(pq.ParquetWriter(path, table.schema))
                number, in_file = number + 1, 0
            writer.write_table(table)
            in_file += table.num_rows
            rows = rows + table.num_rows
            columns = table.column_names
    return rows, columns


def output_columns(
    outputs: Mapping[str, Output], classes: Sequence[object] | None, quantiles: Sequence[float] | None = None
) -> dict[str, np.ndarray]:
    """Return the outputs of a model as columns: NAME, or NAME_CLASS or NAME_INDEX for several numbers a row."""
    columns: dict[str, np.ndarray] = {}
    for name, values in outputs.items():
        if isinstance(values, list):
            columns |= {f"{name}_{key}": np.array([row[key] for row in values]) for key in values[0]}
            continue
        # A table has no cells of several numbers: each number of a row becomes a column.
        flat = values.reshape(len(values), -1)
        if flat.shape[1] == 1:
            columns[name] = flat[:, 0]
            continue
        known = quantiles if name == "quantiles" else classes
        labels = known if known is not None and len(known) == flat.shape[1] else range(flat.shape[1])
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
    content = model.SerializeToString()
    threads = devices.available_threads()
    session = sessions.create_session(content, devices.resolve_device(), threads=threads)
    own = session.get_modelmeta().custom_metadata_map.get(TABLE_KEY, "{}")
    return Runner(session, json.loads(own) if table is None else table)


ROWS = 8192
"""Rows that are predicted at a time."""

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

    @property
    def _fixed(self) -> set[int]:
        return {one.shape[0] for one in self.inputs if one.shape and isinstance(one.shape[0], int)}

    @property
    def rows(self) -> int:
        """Rows that are predicted at a time."""
        return min(self._fixed, default=ROWS)

    def run(self, frame: pandas.DataFrame) -> dict[str, Output]:
        """Return the outputs for the rows of a table, by name."""
        names = [output.name for output in self.session.get_outputs()]
        feeds = self.feeds(frame)
        size = self.rows
        if self._fixed and len(frame) % size:
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
        wanted = sessions.ARRAY_TYPES.get(one.type)
        series = frame[one.name]
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
    wanted = sessions.ARRAY_TYPES.get(one.type, np.float32)
    row = list(one.shape or [None, None])[1:]
    known = [size for size in row if isinstance(size, int)]
    if len(known) == len(row) and int(np.prod(known)) != len(frame.columns):
        raise UsageError(
            f"The model's input {one.name!r} takes {int(np.prod(known))} columns, the table has {len(frame.columns)}: "
            f"leave some out by --drop, or name those that it takes by --columns."
        )
    if wanted is np.float32:
        array = as_numbers_and_text(frame).to_numpy()
    elif np.dtype(wanted).kind == "f":
        array = frame.to_numpy(wanted, na_value=np.nan)
    elif gaps := [name for name in frame.columns if frame[name].isna().any()]:
        raise ValueError(f"The model's input {one.name!r} takes integers, and column {gaps[0]!r} has missing values.")
    else:
        array = frame.to_numpy()
    array = np.ascontiguousarray(array, wanted)
    return array.reshape(len(frame), *known) if len(known) == len(row) else array


PREDICT = Command(_predict_arguments, _predict)
