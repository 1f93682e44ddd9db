"""``predict``: run an ONNX file on a table and write its outputs as CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._utils.untrusted_text import cell, printable
from .arguments import require_writable
from .console import Command, Console, Outcome, UsageError
from .onnx_files import Output, runner_of
from .table_files import read_table_file, require_columns, table_arguments, without_columns

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


def _as_cells(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Escape texts and column names that a spreadsheet would run as formulas."""
    return _each(frame, cell)


def _each(frame: pandas.DataFrame, change: Callable[[Any], Any]) -> pandas.DataFrame:
    """Apply a function to each text of a table and to the names of its columns."""
    texts = [i for i in range(len(frame.columns)) if frame.iloc[:, i].dtype.kind not in "biufc"]
    columns = [
        [change(value) for value in frame.iloc[:, i].tolist()] if i in texts else frame.iloc[:, i]
        for i in range(len(frame.columns))
    ]
    found = type(frame)(dict(enumerate(columns)), index=frame.index)
    return found.set_axis([change(name) for name in frame.columns], axis=1)


PREDICT = Command(_predict_arguments, _predict)
