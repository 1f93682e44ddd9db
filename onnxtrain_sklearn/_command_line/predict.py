"""``predict``: an ONNX file on a CSV or Parquet file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._support.printable import cell, printable
from .command import Command, Outcome, UsageError
from .console import Console
from .deployed import output_columns, runner_of
from .files_to_write import require_writable
from .table_files import read_table_file
from .tables import require_columns, table_arguments, without_columns

if TYPE_CHECKING:
    import pandas


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="ONNX file")
    table_arguments(parser, "CSV or Parquet file with a header")
    add = parser.add_argument
    add(
        "--columns",
        nargs="+",
        metavar="COLUMN",
        help="what the model takes, in order; default: as the file says, or all",
    )
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
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        _as_cells(result).to_csv(options.output, index=False)
        return Outcome(record | {"output": str(options.output)}, [f"{options.output}: {len(result)} rows"])
    if not console.as_json:
        cells = _as_cells(result)
        if sys.stdout.isatty():
            cells = _each(cells, lambda value: printable(value) if isinstance(value, str) else value)
        cells.to_csv(sys.stdout, index=False, lineterminator="\n")
    return Outcome(record | {"predictions": {name: result[name].tolist() for name in result.columns}}, [])


def _as_cells(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose texts no spreadsheet runs as formulas, the names of its columns included."""
    return _each(frame, cell)


def _each(frame: pandas.DataFrame, change: Callable[[Any], Any]) -> pandas.DataFrame:
    """Return a table with a function of each text in it, and of the names of its columns."""
    texts = [i for i in range(len(frame.columns)) if frame.iloc[:, i].dtype.kind not in "biufc"]
    columns = [
        [change(value) for value in frame.iloc[:, i].tolist()] if i in texts else frame.iloc[:, i]
        for i in range(len(frame.columns))
    ]
    found = type(frame)(dict(enumerate(columns)), index=frame.index)
    return found.set_axis([change(name) for name in frame.columns], axis=1)


PREDICT = Command(_predict_arguments, _predict)
