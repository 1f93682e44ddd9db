"""Rows of data as the inputs of training graphs: matrices, or the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .._data.inputs import is_frame

INPUT_TYPES: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(string)": np.dtype(object),
}
"""The types of NumPy by those of onnxruntime."""


class InputNode(Protocol):
    """An input of a graph, as onnxruntime describes it."""

    name: str
    type: str
    shape: list[int | str]


def rows_of_inputs(X: object, inputs: Sequence[InputNode]) -> dict[str, np.ndarray]:
    """Return the rows of each input in its type and shape."""
    given = _by_input(X, inputs)
    return {one.name: _as_given(given[one.name], one.name, INPUT_TYPES[one.type], one.shape) for one in inputs}


def _by_input(X: object, inputs: Sequence[InputNode]) -> Mapping[str, object]:
    """Return the rows by input; those of a data frame are its columns where the inputs are columns."""
    names = [one.name for one in inputs]
    if not isinstance(X, Mapping):
        columns = {str(name): name for name in X.columns} if is_frame(X) else {}
        if is_frame(X) and columns.keys() >= set(names) and all(one.shape[1:] == [1] for one in inputs):
            return {name: X[columns[name]] for name in names}
        X = {names[0]: X} if len(names) == 1 else dict.fromkeys(columns)
    if X.keys() != set(names):
        raise ValueError(
            f"The graph has the inputs {sorted(names)}: give a dict of arrays, or a data frame with these columns, got "
            f"{sorted(map(str, X))}."
        )
    return X


def _as_given(values: object, name: str, kind: np.dtype[Any], shape: Sequence[int | str]) -> np.ndarray:
    array = np.asarray(values, kind)
    if kind.kind == "O" and (other := [value for value in array.ravel() if not isinstance(value, str)]):
        raise TypeError(
            f"The input {name!r} takes texts, got {other[0]!r}: write a missing value as the text that stands for it."
        )
    return array.reshape(len(array), *(int(size) for size in shape[1:]))
