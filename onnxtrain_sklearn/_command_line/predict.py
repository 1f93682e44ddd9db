"""``predict``: an ONNX file on a CSV or Parquet file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .command import Command, Outcome, UsageError
from .console import Console
from .deployed import output_columns, runner_of
from .files_to_write import require_writable
from .table_files import read_table_file
from .tables import require_columns, table_arguments, without_columns


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
        result.to_csv(options.output, index=False)
        return Outcome(record | {"output": str(options.output)}, f"{options.output}: {len(result)} rows")
    if not console.as_json:
        result.to_csv(sys.stdout, index=False, lineterminator="\n")
    return Outcome(record | {"predictions": {name: result[name].tolist() for name in result.columns}}, "")


PREDICT = Command(_predict_arguments, _predict)
