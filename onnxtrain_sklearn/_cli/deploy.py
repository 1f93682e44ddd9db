"""`predict` and `export-training`: run and export the ONNX files of trained models."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import onnx

from .._estimators.base import GraphEstimator
from .._export.folder import TRAINING_FORMS
from .._export.source import TARGETS
from .._fitted import skl2onnx_bridge
from .._given.ml_files import TABLE_KEY
from .._ir.files import read
from .._ir.limits import require_survivable
from .._ort import devices, sessions
from .._recipes.base import BaseRecipe
from .._utils.typing import Estimator, MatrixLike
from .._utils.untrusted_text import cell, printable
from ..exceptions import nearest
from .console import Command, Console, Outcome, UsageError, require_writable
from .sources import BUILDERS, SECURITY, source_named
from .tables import (
    MISSING_TEXT,
    Trained,
    as_numbers_and_text,
    is_number,
    read_table_file,
    require_columns,
    table_arguments,
    text_columns,
    without_columns,
)

if TYPE_CHECKING:
    import pandas


ROWS = 8192
"""Rows that are predicted at a time."""

OPSET = 18
_ELEMENT_TYPES: dict[str, type] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


def whole_graph(trained: Trained, sample: pandas.DataFrame) -> Any:
    """Return the ONNX model of a trained estimator, its preprocessing included.

    Raises
    ------
    Exception
        skl2onnx cannot convert the pipeline.
    """
    if trained.predictor is trained.net:
        return trained.net.to_onnx()
    texts = set(text_columns(sample))
    kinds = skl2onnx_bridge.types()
    number, text = kinds.FloatTensorType, kinds.StringTensorType
    types = [(name, (text if name in texts else number)([None, 1])) for name in sample.columns]
    if not texts:
        types = [("X", number([None, len(sample.columns)]))]
    options = {id(trained.net): {"zipmap": False}} if hasattr(trained.net, "classes_") else {}
    model = skl2onnx_bridge.package().to_onnx(
        trained.predictor, initial_types=types, options=options, target_opset=OPSET
    )
    return _with_names(model, [name for name, _ in types])


def _with_names(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Return the model with these names of its inputs, in place: skl2onnx replaces what no identifier holds by _."""
    given = {value.name: name for value, name in zip(model.graph.input, names, strict=True)}
    for value in model.graph.input:
        value.name = given[value.name]
    for node in model.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    return model


def describe_table(model: onnx.ModelProto, trained: Trained, target: str) -> None:
    """Write into the metadata of an ONNX model what its table is, in place."""
    classes = getattr(trained.net, "classes_", None)
    told = {
        "columns": trained.columns,
        "target": target,
        "classes": None if classes is None else np.asarray(classes).tolist(),
        "missing_text": trained.missing_text,
    }
    others = [entry for entry in model.metadata_props if entry.key != TABLE_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    model.metadata_props.add(key=TABLE_KEY, value=json.dumps(told))


Output: TypeAlias = "np.ndarray | list[dict[Any, float]]"
"""What a model computes: an array, or of some classifiers a dictionary of scores for each row."""


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
        What the file says of its table; empty for a file of another origin.
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
        size = self._rows_at_once(len(frame))
        parts = [
            sessions.run_session(self.session, names, {name: array[i : i + size] for name, array in feeds.items()})
            for i in range(0, len(frame), size)
        ]
        return {name: _rows_joined([part[i] for part in parts]) for i, name in enumerate(names)}

    def _rows_at_once(self, rows: int) -> int:
        fixed = {one.shape[0] for one in self.inputs if one.shape and isinstance(one.shape[0], int)}
        size = min(fixed, default=ROWS)
        if fixed and rows % size:
            raise ValueError(
                f"The model takes {size} rows at a time, and the table has {rows}: export it for any number."
            )
        return size

    def feeds(self, frame: pandas.DataFrame) -> dict[str, np.ndarray]:
        """Return the rows as the model's inputs: a column for each, or all columns as one matrix."""
        columns = self.table.get("columns")
        if columns is not None:
            if missing := [name for name in columns if name not in frame.columns]:
                raise UsageError(
                    f"The table lacks the column {missing[0]!r}.{nearest(missing[0], list(frame.columns))}"
                )
            frame = frame[columns]
        if len(self.inputs) == 1 and not _is_column(self.inputs[0], frame):
            return {self.inputs[0].name: _matrix(self.inputs[0], frame)}
        return {one.name: self._column(one, frame) for one in self.inputs}

    def _column(self, one: InputSpec, frame: pandas.DataFrame) -> np.ndarray:
        if one.name not in frame.columns:
            hint = nearest(one.name, list(frame.columns))
            raise UsageError(f"The model's input {one.name!r} is no column of the table.{hint}")
        array = _typed_column(one, frame[one.name], str(self.table.get("missing_text", MISSING_TEXT)))
        return array if len(one.shape or ()) == 1 else array.reshape(-1, 1)


def runner_of(path: Path, table: Mapping[str, object] | None = None) -> Runner:
    """Return a session for an ONNX file; ``table`` says what its table is, in place of the file.

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


def _is_column(one: InputSpec, frame: pandas.DataFrame) -> bool:
    """Return True if an input is one column of the table, by its name and shape."""
    return one.name in frame.columns and list(one.shape or ())[1:] in ([], [1])


def _typed_column(one: InputSpec, series: pandas.Series, missing_text: str) -> np.ndarray:
    wanted = _ELEMENT_TYPES.get(one.type)
    if wanted is None:
        raise ValueError(f"The model's input {one.name!r} is a {one.type}, which no column of a table can be.")
    if wanted is object:
        gone = series.isna().to_numpy()
        texts = [missing_text if none else str(value) for value, none in zip(series.tolist(), gone, strict=True)]
        return np.array([*texts, None], object)[:-1]
    if not is_number(series):
        raise ValueError(f"The model's input {one.name!r} takes numbers, and the column holds text.")
    if np.dtype(wanted).kind not in "f" and series.isna().any():
        raise ValueError(f"The model's input {one.name!r} takes integers, and the column has missing values.")
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan), wanted)


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


def _rows_joined(parts: Sequence[Output]) -> Output:
    if isinstance(parts[0], list):  # dictionaries of scores
        return [row for part in parts for row in part if isinstance(row, dict)]
    return np.concatenate([np.asarray(part) for part in parts])


def output_columns(outputs: Mapping[str, Output], classes: Sequence[object] | None) -> dict[str, np.ndarray]:
    """Return the outputs of a model as columns: one a name, or several with the class or the number behind it."""
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


def prediction_difference(estimator: Estimator, X: MatrixLike, outputs: Mapping[str, Output]) -> float:
    """Return how far predictions are apart: the largest relative difference, of labels the share that differs."""
    expected = np.asarray(estimator.predict(X))
    got = np.asarray(next(iter(outputs.values()))).reshape(expected.shape)
    if expected.dtype.kind != "f":
        return float(np.mean(got.astype(str) != expected.astype(str)))
    return float(np.max(np.abs(got - expected)) / max(1e-12, float(np.max(np.abs(expected)))))


def save(model: onnx.ModelProto, path: Path) -> int:
    """Write a model, and return the size of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(model.SerializeToString())


# ``predict``: an ONNX file on a CSV or Parquet file.


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


# ``export-training``: a fitted estimator of this package to a folder of graphs that any onnxruntime trains.


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("estimator", metavar="ESTIMATOR", help="joblib, pickle or skops file with a fitted OrtGradient estimator")
    add("folder", type=Path, metavar="FOLDER", help="folder to write; an earlier export is replaced")
    add("--form", choices=list(TRAINING_FORMS), default="both", help="the training graphs to write (default: both)")
    add("--target", choices=list(TARGETS), default="any", help='"web": also for WebGPU in browsers (default: any)')
    add("--batch-size", type=int, metavar="ROWS", help="rows of a minibatch (default: those of the estimator)")
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file to load")


def _export(options: argparse.Namespace, console: Console) -> Outcome:
    found: Any = source_named(options.estimator, options.trust).model
    estimator = found.steps[-1][1] if hasattr(found, "steps") else found
    if not isinstance(estimator, GraphEstimator):
        raise UsageError(_why_not_exported(options.estimator, estimator))
    if estimator is not found:
        console.progress(f"exported: the last step, {type(estimator).__name__}; it takes what the steps before it give")
    estimator.export_training(options.folder, batch_size=options.batch_size, form=options.form, target=options.target)
    sizes = {file.name: file.stat().st_size for file in sorted(options.folder.iterdir())}
    lines = [f"{options.folder / name}: {size} bytes" for name, size in sizes.items()]
    return Outcome({"folder": str(options.folder), "files": sizes}, lines)


def _why_not_exported(name: str, found: object) -> str:
    """Return why no training graphs are made of what the user named, and what to do."""
    if isinstance(found, BaseRecipe):
        return (
            f"{name!r} holds a {type(found).__name__}, whose training graphs begin with the network before "
            "training and need the rows that its preprocessing is fitted to: call "
            "export_training(folder, X, y) in Python."
        )
    held = "is no stored estimator" if isinstance(found, str) or name in BUILDERS else f"holds a {type(found).__name__}"
    return (
        f"{name!r} {held}, and training graphs are made of an OrtGradientClassifier, OrtGradientRegressor or "
        "OrtGradientMultiOutput. Fit one on this model, and name its joblib, pickle or skops file."
    )


EXPORT_TRAINING = Command(_export_arguments, _export, SECURITY)
