"""Lists of examples that differ in size, as columns with a packed row for each example.

A list of dicts, or of arrays of different shapes, is ``X`` of a graph that is run on one example at a time
(:mod:`.._model.packed_examples`); an array of such objects is a list too. :class:`PackedData` keeps
the numbers of all examples in one array without gaps, and pads rows only in the buffer of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_array

from .._model.batch_axis import SIZES
from .._model.trainable import TensorSpec
from .._utils.typing import DType
from .columns import InputData, require_no_times, shaped, warn_of_rounding

_NUMBERS = "fiub"


class PackedData(InputData):
    """The arrays of all examples for one input, each flattened to a row.

    Parameters
    ----------
    data : ndarray of shape (n_numbers,)
        The numbers of all examples, one example after the other.
    dtype : numpy.dtype
    shapes : sequence of tuple of int
        The shape of the array of each example.
    """

    def __init__(self, data: np.ndarray, dtype: DType, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(data, dtype)
        self._shapes = shapes
        self._ends = np.cumsum([0, *(math.prod(one) for one in shapes)])
        self._width = max(1, int(np.diff(self._ends).max(initial=0)))

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of examples, and the size of the largest one."""
        return len(self), self._width

    def of_type(self, dtype: DType) -> PackedData:
        """Return the same data for an input of another type."""
        return self if dtype == self.dtype else PackedData(self._data, dtype, self._shapes)

    def example(self, i: int) -> np.ndarray:
        """Return the array of an example, in the type of the graph."""
        return super().rows(slice(self._ends[i], self._ends[i + 1])).reshape(self._shapes[i])

    def rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return packed rows, padded with zeros to the length of the longest of them."""
        chosen = range(*rows.indices(len(self))) if isinstance(rows, slice) else [int(i) for i in rows]
        width = max(1, *(int(self._ends[i + 1] - self._ends[i]) for i in chosen)) if chosen else 1
        return self._padded(chosen, np.zeros((len(chosen), width), self.dtype))

    def into(self, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """Return a function that writes the given rows into ``out``, padded with zeros."""
        return lambda rows: self._padded(rows.tolist(), out)

    def _padded(self, rows: Sequence[int], out: np.ndarray) -> np.ndarray:
        for place, i in zip(out, rows, strict=True):
            own = super().rows(slice(self._ends[i], self._ends[i + 1]))
            place[: len(own)], place[len(own) :] = own, 0
        return out

    def content(self, rows: np.ndarray) -> np.ndarray:
        """Return a key for each given row; examples with equal keys differ at most in their sizes."""
        return self.rows(rows)

    def read_only(self, rows: np.ndarray) -> np.ndarray:
        """Return packed rows as a read-only array."""
        found = self.rows(rows)
        found.flags.writeable = False
        return found

    def rows_with_missing(self) -> np.ndarray:
        """Return no rows, because examples without numbers are refused."""
        return np.empty(0, np.int64)


def holds_examples(X: object) -> bool:
    """Return True if ``X`` is a list of dicts, or of arrays that cannot be stacked because their shapes differ.

    Arrays that are objects of an array are examples also where their shapes happen to be equal, as in a fold of
    cross-validation.
    """
    examples = _as_list(X)
    if not examples:
        return False
    if isinstance(examples[0], Mapping):
        return True
    shapes = {getattr(one, "shape", None) for one in examples}
    are_objects = not isinstance(X, list | tuple)
    return (are_objects or len(shapes) > 1) and all(isinstance(one, tuple) and one for one in shapes)


def first_example(X: Any) -> object:
    """Return the first of a list of examples; None if ``X`` is none, raise if it is an empty list."""
    if isinstance(X, list) and not X:
        raise ValueError("X is an empty list: it must hold at least one example.")
    return next(iter(X)) if holds_examples(X) else None


def _as_list(X: object) -> Sequence[Any] | None:
    """Return a list, or the objects of an array with one axis; None for other data."""
    if isinstance(X, list | tuple):
        return X
    return list(X) if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype == object else None


def require_targets_of_one_shape(y: Any) -> None:
    """Raise if the targets of a list of examples differ in shape, such as a label for each node of networks."""
    for one in y.values() if isinstance(y, Mapping) else [y]:
        targets = _as_list(one) or ()
        for i, target in enumerate(targets):
            first, own = np.shape(targets[0]), np.shape(target)
            if own != first:
                raise ValueError(
                    f"y[0] has the shape {first}, but y[{i}] has {own}: the examples of a list have targets of one "
                    f"shape. For a target of each node, set batch_size=None and give one network at a time to "
                    f"partial_fit, or all of them joined into one network without links between them. For a label of "
                    f"each step, pad the sequences (PaddedRows) and their labels (ignore_label)."
                )


def ranks_of(example: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the number of axes of the arrays of an example, by input."""
    if isinstance(example, Mapping):
        return {str(name): np.ndim(array) for name, array in example.items()}
    return {names[0]: np.ndim(example)}


def example_columns(X: Any, specs: Sequence[TensorSpec]) -> dict[str, InputData]:
    """Return a list of examples as the packed inputs of a graph; names, shapes and numbers are checked.

    ``specs`` are the inputs of the packed graph.
    """
    given = [spec for spec in specs if spec.name != SIZES]
    names = [spec.name for spec in given]
    if (found := _as_list(X)) is not None:
        X = found
    elif not isinstance(X, np.ndarray) or not X.ndim:
        raise TypeError(
            f"The graph was trained on a list of examples, and takes such a list: give [X] for a single example, got "
            f"{type(X).__name__}."
        )
    if not len(X):
        raise ValueError("X is an empty list: it must hold at least one example.")
    examples = [_arrays(one, i, names) for i, one in enumerate(X)]
    columns = dict[str, InputData]()
    sizes = list[np.ndarray]()
    for spec in given:
        arrays = [_of_shape(one[spec.name], spec, i) for i, one in enumerate(examples)]
        numbers = _checked(arrays, spec)
        columns[spec.name] = PackedData(numbers, spec.dtype, [one.shape for one in arrays])
        free = [axis for axis, size in enumerate(spec.example or ()) if size is None]
        sizes.append(np.array([[one.shape[axis] for axis in free] for one in arrays], np.int64))
    _require_equal_axes(given, np.concatenate(sizes, axis=1))
    if len(given) < len(specs):
        columns[SIZES] = InputData(np.concatenate(sizes, axis=1), np.dtype(np.int64))
    return columns


def one_example(columns: Mapping[str, InputData], i: int) -> dict[str, InputData]:
    """Return the arrays of an example as inputs of the graph that is not packed."""
    return {
        name: InputData(column.example(i), column.dtype)
        for name, column in columns.items()
        if isinstance(column, PackedData)
    }


def _arrays(example: object, i: int, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the arrays of example ``i`` by input."""
    if not isinstance(example, Mapping):
        if len(names) == 1:
            return {names[0]: example}
        raise TypeError(
            f"X[{i}] is a {type(example).__name__}, and the graph has the inputs {list(names)}: each example must be a "
            f"dict of arrays by input."
        )
    if set(example) != set(names):
        unknown, missing = [n for n in example if n not in names], [n for n in names if n not in example]
        leave = f" Leave out {unknown}." if unknown else ""
        raise ValueError(
            f"X[{i}] has the inputs {list(example)}, and the graph takes {list(names)}."
            f"{f' Add {missing}.' if missing else ''}{leave}"
        )
    return example


def _of_shape(given: Any, spec: TensorSpec, i: int) -> np.ndarray:
    """Return the array of an input of example ``i`` in the shape of the graph, with an axis of one row if it lacks."""
    require_no_times(given, _name(spec, i))
    array, wanted = np.asarray(given), spec.example or ()
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(f"{_name(spec, i)} must be an array of numbers, got the type {array.dtype}.")
    if array.ndim == len(wanted) - 1 and wanted[0] in (None, 1):
        array = array[np.newaxis]
    if array.ndim != len(wanted) or any(w not in (None, n) for w, n in zip(wanted, array.shape, strict=True)):
        shape = ", ".join("?" if size is None else str(size) for size in wanted)
        raise ValueError(f"{_name(spec, i)} has the shape {np.shape(given)}, but the graph takes ({shape}).")
    return array


def _name(spec: TensorSpec, i: int) -> str:
    return f"X[{i}][{spec.name!r}]"


def _checked(arrays: Sequence[np.ndarray], spec: TensorSpec) -> np.ndarray:
    """Return the numbers of all examples as a vector, checked as those of any input."""

    def check(numbers: np.ndarray, name: str) -> np.ndarray:
        if not numbers.size:
            return numbers
        found: np.ndarray = check_array(numbers, ensure_2d=False, allow_nd=True, input_name=name)
        shaped(found[:, np.newaxis], TensorSpec(name, spec.dtype, (None, 1)))  # whole numbers for an input of integers
        return found

    numbers = np.concatenate([one.ravel() for one in arrays])
    try:
        numbers = check(numbers, f"X[...][{spec.name!r}]")
    except ValueError:
        for i, one in enumerate(arrays):  # name the example
            check(one.ravel(), _name(spec, i))
        raise
    warn_of_rounding(numbers, spec.dtype, f"X[...][{spec.name!r}]")
    return numbers


def _require_equal_axes(specs: Sequence[TensorSpec], sizes: np.ndarray) -> None:
    """Raise if axes of the same name have different sizes in an example."""
    first = dict[str, tuple[int, str]]()
    for place, (name, axis) in enumerate(_free_axes(specs)):
        if axis is None:
            continue
        other, owner = first.setdefault(axis, (place, name))
        if len(wrong := np.flatnonzero(sizes[:, other] != sizes[:, place])):
            i = wrong[0]
            raise ValueError(
                f"X[{i}]: the axis {axis!r} of the graph has {sizes[i, other]} elements in X[{i}][{owner!r}], but "
                f"{sizes[i, place]} in X[{i}][{name!r}]."
            )


def _free_axes(specs: Sequence[TensorSpec]) -> Iterator[tuple[str, str | None]]:
    """Yield the input and the name of each axis whose size differs between examples."""
    for spec in specs:
        for axis, size in enumerate(spec.example or ()):
            if size is None:
                yield spec.name, spec.axes[axis] if spec.axes else None
