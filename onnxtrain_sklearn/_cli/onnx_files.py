"""ONNX files of trained estimators: convert the whole pipeline, write the file, and run it on a table.

``whole_graph`` and ``describe_table`` make the file, with its columns and classes in the metadata. ``runner_of`` opens
any ONNX file; the ``Runner`` gives it the columns of a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import onnx

from .._fitted import skl2onnx_bridge
from .._given.ml_files import TABLE_KEY
from .._ir.files import read
from .._ir.limits import require_survivable
from .._ort import devices, sessions
from .._utils.typing import Estimator, MatrixLike
from ..exceptions import nearest
from .console import UsageError
from .table_columns import MISSING_TEXT, as_numbers_and_text, is_number, text_columns

if TYPE_CHECKING:
    import pandas

    from .fitting import Trained


OPSET = 18


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
    """Give the inputs these names, in place: skl2onnx replaces characters that identifiers cannot have by "_"."""
    given = {value.name: name for value, name in zip(model.graph.input, names, strict=True)}
    for value in model.graph.input:
        value.name = given[value.name]
    for node in model.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    return model


def describe_table(model: onnx.ModelProto, trained: Trained, target: str) -> None:
    """Add columns, target and classes of the table to the metadata of an ONNX model, in place."""
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


def save(model: onnx.ModelProto, path: Path) -> int:
    """Write a model, and return the size of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(model.SerializeToString())


def prediction_difference(estimator: Estimator, X: MatrixLike, outputs: Mapping[str, Output]) -> float:
    """Return the largest difference of predictions, relative to the largest one; of labels, the share that differs."""
    expected = np.asarray(estimator.predict(X))
    got = np.asarray(next(iter(outputs.values()))).reshape(expected.shape)
    if expected.dtype.kind != "f":
        return float(np.mean(got.astype(str) != expected.astype(str)))
    return float(np.max(np.abs(got - expected)) / max(1e-12, float(np.max(np.abs(expected)))))


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
        size = self._rows_at_once(len(frame))
        parts = [
            sessions.run_session(self.session, names, {name: array[i : i + size] for name, array in feeds.items()})
            for i in range(0, len(frame), size)
        ]
        return {name: _rows_joined([part[i] for part in parts]) for i, name in enumerate(names)}

    def _rows_at_once(self, rows: int) -> int:
        """Return the number of rows of a run: that of the graph where it is fixed."""
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
