"""Rows, targets and weights as the inputs of training graphs, by the manifest.

``rows_of_inputs`` takes matrices, or the columns of a table; ``loop_targets`` encodes labels and numbers as the step
takes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .._data.inputs import Inputs, is_frame
from .._data.targets import (
    Targets,
    checked_weights,
    class_targets,
    joined_targets,
    position_targets,
    regression_targets,
    spread,
)
from ..exceptions import nearest
from .target_inputs import weights_of_rows

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


InputFact: TypeAlias = "tuple[DTypeLike, list[int | str]]"
"""The type of NumPy and the shape of an input of a training graph."""

Fact: TypeAlias = "Mapping[str, Any]"
"""An object of the manifest."""

RowValues: TypeAlias = "ArrayLike | Mapping[str, ArrayLike | None] | Inputs"
"""Values of rows, or those of each output by name."""


class LoopTargets(NamedTuple):
    """The arrays of all rows by input, their weights as the graph takes them, and their weights in the loss."""

    arrays: dict[str, np.ndarray]
    weights: np.ndarray
    trained: np.ndarray


def loop_targets(
    manifest: Fact, inputs: Mapping[str, InputFact], y: RowValues, sample_weight: RowValues | None, n: int
) -> LoopTargets:
    """Return the targets of ``n`` rows."""
    if "targets" in manifest:
        return _several_targets(manifest["targets"], inputs, y, sample_weight, n)
    if isinstance(y, Mapping | Inputs):
        raise ValueError(f"These graphs have one target, but y is a {type(y).__name__}: give its values alone.")
    if isinstance(sample_weight, Mapping | Inputs):
        kind = type(sample_weight).__name__
        raise ValueError(f"These graphs have one target, but sample_weight is a {kind}: give a number for each row.")
    fact = {**manifest["target"], **{key: manifest[key] for key in ("task", "classes")}}
    values, weights = _encoded_targets(fact, y).values, checked_weights(sample_weight, n)
    trained = weights_of_rows(fact.get("label_weights"), values, weights)
    return LoopTargets({fact["input"]: _as_input(values, inputs[fact["input"]])}, weights, trained)


def _several_targets(
    facts: Sequence[Fact], inputs: Mapping[str, InputFact], y: RowValues, sample_weight: RowValues | None, n: int
) -> LoopTargets:
    """Return the targets of several outputs, and the weights of the rows for each of them, as a fit has them."""
    names = [fact["output"] for fact in facts]
    given = _by_output(y, names, "y")
    weights: Mapping[str, Any] = dict.fromkeys(names, sample_weight)
    if isinstance(sample_weight, Mapping | Inputs):
        weights = _by_output({**dict.fromkeys(names), **_arrays_by_name(sample_weight)}, names, "sample_weight")
    found = [_weighted(fact, given[fact["output"]], weights[fact["output"]], n) for fact in facts]
    joined, rows = joined_targets(names, *zip(*found, strict=True))
    counted = np.ones(n) if rows is None else rows
    factors = joined.with_factors(np.flatnonzero(counted)).values[:, joined.values.shape[1] :]
    arrays = {}
    for i, (fact, (own, _)) in enumerate(zip(facts, found, strict=True)):
        arrays[fact["input"]] = _as_input(own.values, inputs[fact["input"]])
        column = factors[:, i] if factors.shape[1] else np.ones(n)
        arrays[fact["weight_input"]] = _as_input(column, inputs[fact["weight_input"]])
    return LoopTargets(arrays, counted, counted)


def _weighted(fact: Fact, y: ArrayLike, sample_weight: ArrayLike | None, n: int) -> tuple[Targets, np.ndarray | None]:
    """Return the target of an output and its weights; values of ``y`` in rows of weight zero are not read."""
    values = np.asarray(y)
    if len(values) != n:
        raise ValueError(f"Output {fact['output']!r}: X has {n} rows and y has {len(values)}.")
    weights = None if sample_weight is None else checked_weights(sample_weight, n)
    rows = np.arange(n) if weights is None or not weights.any() else np.flatnonzero(weights)
    targets, known = _encoded_targets(fact, values[rows]), fact["label_weights"]
    own = None if weights is None else weights[rows]
    if known is not None:
        own = weights_of_rows(known, targets.values, np.ones(len(rows)) if own is None else own)
        own = None if weights is None and (own == 1).all() else own
    return (targets, own) if len(rows) == n else spread(targets, own, rows, n)


def _encoded_targets(fact: Fact, y: ArrayLike) -> Targets:
    """Return labels as indices or indicators, numbers as they are."""
    if "position" in fact["kind"]:
        ignored = math.nan if fact.get("ignores_nan") else fact.get("ignore_label")
        return position_targets(y, np.array(fact["classes"]), ignored)
    if fact["task"] == "regression":
        return regression_targets(y, allow_nd=True)
    several = fact["task"] == "multioutput"
    return class_targets(y, [np.array(own) for own in fact["classes"]] if several else np.array(fact["classes"]))


def _as_input(values: np.ndarray, known: InputFact) -> np.ndarray:
    """Return the values in the type and the shape that an input takes."""
    kind, shape = known
    return np.ascontiguousarray(values.reshape(len(values), *shape[1:]), kind)


def _by_output(data: object, names: list[str], what: str) -> Mapping[str, Any]:
    """Return data by output; raise if it is not a dict, lacks an output, or names one without a loss."""
    found = _arrays_by_name(data)
    if not isinstance(found, Mapping):
        raise TypeError(f"{what} must be a dict of arrays by output, {names}, got {type(data).__name__}.")
    for name in found:
        if name not in names:
            raise ValueError(f"{what} names {name!r}, an output without a loss.{nearest(str(name), names)}")
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{what} lacks the output(s) {missing}.")
    return found


def _arrays_by_name(data: object) -> Any:
    return data.arrays if isinstance(data, Inputs) else data
