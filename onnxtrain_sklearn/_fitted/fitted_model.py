"""A fitted scikit-learn model as the estimators hold it: its description beside the graph, and the data that it takes.

:class:`FittedModel` is the description. An :class:`Origin` holds the attribute of the model from which a parameter of
the graph comes; :func:`walk` yields the paths to the model's estimators, and :func:`follow` and :func:`assign` read and
write at a path. The :class:`Table` of a model that takes text checks the data and splits them into columns.
:func:`table_columns` turns the columns into inputs of the whole graph; :func:`encoded_inputs` runs the encoder of the
text and returns the inputs of the trained part. ``prepare`` derives the table from the steps of a model;
``text_encoder`` splits the graph.

Every estimator of the package imports this module, so it imports none that converts models: they load a third of
scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from .._data.columns import COPY_LIMIT, InputData, require_in_memory
from .._model.trainable import TensorSpec
from .._ort import devices, packages, sessions
from .._utils.typing import Estimator, MatrixLike, SparseLike
from ..exceptions import ModelError
from . import sklearn_private

if TYPE_CHECKING:
    from ..losses import Loss
    from .text_encoder import TablePipeline


FEATURES = ("n_features_in_", "feature_names_in_")
"""The attributes by which scikit-learn checks the columns of data."""

Path: TypeAlias = "tuple[str | int, ...]"
"""Attributes and positions from a model to a nested object."""


@dataclass(frozen=True)
class Origin:
    """Origin of a parameter of the graph in the fitted model.

    Attributes
    ----------
    name : str
        The parameter, as in ``weights_``.
    owner : tuple of (str or int)
        Attributes and positions that lead from the fitted model to the estimator that holds it.
    attribute : tuple of (str or int)
        Attributes and positions that lead from that estimator to the numbers; empty if no attribute holds the numbers
        themselves.
    form : str
        How the parameter is computed from the attribute, a key of ``provenance.FORMS``.
    role : str
        The role of the parameter in its operator.
    places : ndarray or None
        For the values of leaves, the tree, the node and the target of each value.
    """

    name: str
    owner: Path
    attribute: Path
    form: str
    role: str
    places: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class FittedModel:
    """A fitted model, without its graph.

    Attributes
    ----------
    origins : tuple of Origin
        The origin of each parameter.
    classes : ndarray, list of ndarray or None
        The labels of a classifier, a list if it predicts several labels per row that are not all 0 or 1; -1 and 1 for
        an outlier detector.
    features : dict
        The attributes that scikit-learn checks the data with: ``n_features_in_`` and ``feature_names_in_``, if present.
    loss : str or Loss
        The default loss: that of the fitted model, or the nearest one.
    n_labels : int or None
        The number of labels per row of a classifier that predicts several.
    table : Table or None
        The columns of a model that takes text.
    parts : TablePipeline or None
        The graph with one input per column, and the steps before the part of it that is trained.
    """

    origins: tuple[Origin, ...]
    classes: np.ndarray | list[np.ndarray] | None
    features: Mapping[str, Any]
    loss: str | Loss
    n_labels: int | None = None
    table: Table | None = None
    parts: TablePipeline | None = None

    def known_classes(self, classes: ArrayLike | list[np.ndarray] | None, y: ArrayLike | None) -> Any:
        """Return the classes of the fitted model; raise if ``classes`` or ``y`` do not match them."""
        if self.classes is None:
            return classes
        if y is not None:
            self._require_labels(_shape(y))
        given, known = listed(classes), listed(self.classes)
        if classes is not None and given != known:
            raise ValueError(
                f"classes={given} are not those of the fitted model, {known}. To learn other classes, use a new head: "
                f"finetune=FineTuner(new_head=True)."
            )
        return self.classes

    def _require_labels(self, shape: tuple[int, ...]) -> None:
        given = shape[1] if len(shape) > 1 else 1
        if self.n_labels is not None and given != self.n_labels:
            raise ValueError(
                f"The fitted model predicts {self.n_labels} labels a row, and y has {given}, being of shape {shape}. "
                f"Give a matrix with a column for each label."
            )
        if self.n_labels is None and given > 1:
            raise ValueError(f"The fitted model predicts one label a row, and y has {given}, being of shape {shape}.")


def _shape(y: ArrayLike) -> tuple[int, ...]:
    try:
        return np.shape(y)
    except ValueError:
        raise ValueError("y must hold the same number of labels in every row, but its rows differ in length.") from None


def listed(classes: ArrayLike | list[np.ndarray] | None) -> Any:
    """Return classes as a list, or those of several labels as a list of lists."""
    if isinstance(classes, list | tuple) and any(np.ndim(known) for known in classes):
        return [np.asarray(known).tolist() for known in classes]
    return np.asarray(classes).tolist()


def is_estimator(model: object) -> TypeGuard[Estimator]:
    """Return True if ``model`` is a scikit-learn estimator, fitted or not."""
    return isinstance(model, BaseEstimator) and hasattr(model, "fit")


# Walking through a fitted model: nested estimators, and reading or writing the numbers at a path. A path is also valid
# in copies of the model.


def walk(root: Estimator, depth: int = 12) -> Iterator[tuple[Path, Any]]:
    """Yield ``root`` and every estimator within it once, each with the path to it."""
    seen: set[int] = set()
    front: list[tuple[Path, Any]] = [((), root)]
    while front:
        path, value = front.pop(0)
        if id(value) in seen or len(path) > depth:
            continue
        if has_attributes(value):
            seen.add(id(value))
            yield path, value
            front += [((*path, name), inner) for name, inner in vars(value).items() if _may_hold(inner)]
        elif isinstance(value, Mapping):
            front += [((*path, key), inner) for key, inner in value.items() if _may_hold(inner)]
        else:
            front += [((*path, i), inner) for i, inner in enumerate(value) if _may_hold(inner)]


def _may_hold(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == object)
    return isinstance(value, list | tuple | dict) or has_attributes(value)


def has_attributes(value: object) -> bool:
    """Return True if ``value`` is an estimator, or another object of scikit-learn that may hold estimators."""
    is_own = type(value).__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__")
    return isinstance(value, BaseEstimator) or (is_own and not isinstance(value, type))


def follow(root: object, path: Path) -> Any:
    """Return the object at a path from ``root``."""
    value: Any = root
    for part in path:
        value = getattr(value, part) if isinstance(part, str) and not isinstance(value, Mapping) else value[part]
    return value


def assign(owner: Estimator, path: Path, numbers: np.ndarray) -> None:
    """Assign ``numbers`` at a path from ``owner``, in the shape and type of the present numbers."""
    holder, last = follow(owner, path[:-1]), path[-1]
    old = follow(holder, (last,))
    new = numbers.reshape(np.shape(old))
    if isinstance(old, np.ndarray):  # trained floats may replace integers, such as stored training data
        value = new.astype(np.float64 if old.dtype.kind in "iub" else old.dtype)
    else:
        value = float(new)
    if isinstance(last, str) and not isinstance(holder, Mapping):
        setattr(holder, last, value)
    elif isinstance(holder, tuple):  # a tuple is immutable: replace it as a whole in the object that holds it
        items = list(holder)
        items[int(last)] = value
        setattr(follow(owner, path[:-2]), str(path[-2]), tuple(items))
    else:
        holder[last] = value


# Conversion of a table to graph inputs: one input per column for inference, one matrix plus encoded text for training.
#
# The encoder of the text runs once over the data before training, on the host, on chunks of rows. Its results are
# stored as sparse matrices if dense ones would be large.


CHUNK = 2048
"""Number of rows that the encoder gets at a time."""

InputColumns = dict[str, InputData]
Specs = tuple[TensorSpec, ...] | None


def table_columns(estimator: BaseEstimator, X: MatrixLike, fitted: FittedModel) -> InputColumns:
    """Validate a table as scikit-learn does; return its columns as inputs of the inference graph."""
    table, parts = fitted.table, fitted.parts
    assert table is not None
    assert parts is not None
    if table.documents and isinstance(X, Mapping) and set(X) == {table.columns[0].name}:
        X = X[table.columns[0].name]
    if isinstance(X, Mapping) and not sp.issparse(X):  # scipy's dok_matrix is a mapping too
        raise TypeError(f"The fitted model takes a data frame or an array, got a {type(X).__name__}.")
    if not table.documents:
        validate_data(estimator, X, reset=False, skip_check_array=True)
    specs = {spec.name: spec for spec in parts.whole.inputs}
    return {name: _column(array, specs.get(name)) for name, array in table.arrays(X).items()}


def _column(array: np.ndarray, spec: TensorSpec | None) -> InputData:
    """Return a column (n_rows, 1) as a graph input: as an array or, if the input ``spec`` has one axis, as a vector."""
    is_vector = spec is not None and len(spec.shape) == 1
    return InputData(array.ravel() if is_vector else array, np.dtype(np.float32) if spec is None else spec.dtype)


def encoded_inputs(columns: InputColumns, fitted: FittedModel, specs: Specs) -> InputColumns:
    """Return the inputs ``specs`` of the trained part of the graph."""
    parts = fitted.parts
    if parts is None or specs is None:
        return columns
    arrays: dict[str, Any] = {} if parts.encoder is None else _encoded(columns, parts.encoder)
    if parts.numbers:
        rows = np.arange(len(next(iter(columns.values()))))
        arrays[parts.matrix] = np.hstack([columns[name].rows(rows) for name in parts.numbers])
    return {spec.name: InputData(arrays[spec.name], spec.dtype) for spec in specs}


def _encoded(columns: Mapping[str, InputData], encoder: bytes) -> dict[str, Any]:
    try:
        session = sessions.create_session(encoder, devices.resolve_device(), threads=devices.available_threads())
    except Exception as error:  # its class differs between releases of onnxruntime
        raise ModelError(
            f"onnxruntime {packages.version()} cannot run the encoder of the model's text: {error}"
        ) from error
    inputs, outputs = ([value.name for value in side] for side in (session.get_inputs(), session.get_outputs()))
    rows = np.arange(len(next(iter(columns.values()))))
    pieces = []
    for start in range(0, len(rows), CHUNK):
        feeds = {name: columns[name].rows(rows[start : start + CHUNK]) for name in inputs}
        try:
            results = session.run(outputs, feeds)
        except Exception as error:  # its class differs between releases of onnxruntime
            raise ValueError(f"The texts in X cannot be encoded: {error}") from error
        for i, result in enumerate(results):  # make the result sparse if the dense one of all rows would be large
            is_large = len(rows) * math.prod(result.shape[1:]) * result.itemsize > COPY_LIMIT
            results[i] = sp.csr_matrix(result) if result.ndim == 2 and is_large else result
        pieces.append(results)
    return {name: _stacked(parts) for name, parts in zip(outputs, zip(*pieces, strict=True), strict=True)}


def _stacked(pieces: Sequence[np.ndarray | SparseLike]) -> Any:
    dense = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    return np.concatenate(dense) if dense else sp.vstack(pieces, format="csr")


# Rows of the data on which the predictions of two models are compared.


CHECKED_ROWS = 256
"""Number of rows on which predictions are compared."""


def sample_rows(X: MatrixLike) -> Any:
    """Return rows spread over the data, indexed as scikit-learn does."""
    require_in_memory(X)
    rows: Any = X
    n = rows.shape[0] if hasattr(rows, "shape") else len(rows)
    return sklearn_private._safe_indexing(X, np.unique(np.linspace(0, n - 1, min(n, CHECKED_ROWS)).astype(int)))


# Tables with text: the columns that a fitted model takes, and conversion of data to these columns.
#
# Missing text is written as the string "nan" or "None", or as a placeholder if the model knows that string as a
# category. A column in which the string may also be a value is refused. Unknown text is refused if the encoder refuses
# it, as in scikit-learn's ``predict``.


@dataclass(frozen=True)
class TableColumn:
    """One column that a fitted model takes.

    Attributes
    ----------
    name : str
    kind : {"text", "number", "unused"}
    gaps : bool
        Whether values may be missing.
    known : frozenset or None
        The allowed texts, including those that stand for missing text, or the allowed numbers; None if any is allowed.
    literal, missing : frozenset
        The categories of the model that are ordinary values, and those that stand for missing text.
    gap : str or None
        The text that the graph reads as missing; None if it is ``str`` of the missing value.
    placeholders : dict of str
        Replacements for "nan" and "None" as the text of missing values, if these are categories of the model.
    width : int
        The number of texts in a row of documents.
    """

    name: str
    kind: Literal["text", "number", "unused"]
    gaps: bool = True
    known: frozenset[Any] | None = None
    literal: frozenset[Any] = frozenset()
    missing: frozenset[str] = frozenset()
    gap: str | None = None
    placeholders: Mapping[str, str] = field(default_factory=dict)
    width: int = 1

    def texts(self, values: np.ndarray) -> np.ndarray:
        """Return the values of a column as text, validated; shape (n_samples, 1)."""
        where = f"column {self.name!r} of X"
        listed = values.tolist()
        written = {value: str(value) for value in set(listed)}
        for value in filter(is_gap, set(listed)):
            written[value] = self.placeholders.get(str(value), str(value)) if self.gap is None else self.gap
        absent = {text for value, text in written.items() if is_gap(value)}
        given = {value for value in written if not is_gap(value)}
        if not listed:
            raise ValueError(f"There is no text in {where}: it has no rows, and at least one is required.")
        if odd := {type(value).__name__ for value in given if not isinstance(value, str)}:
            raise ValueError(f"The fitted model takes text in {where}, got {', '.join(sorted(odd))}.")
        if absent and not self.gaps:
            raise ValueError(f"Text is missing in {where}, which the fitted model has no number for.")
        if unsure := (absent - self.missing) & self.literal:
            raise ValueError(
                f"The text {min(unsure)!r} in {where} cannot be told from missing text, which is written as the same. "
                f"Write it otherwise, and fit the model on that."
            )
        alike = given & self.missing  # unknown text that looks like missing text; it is refused like other unknown text
        self._require_known(given - alike | absent)
        if alike and self.known is not None:
            raise ValueError(self._says_unknown(alike))
        for value in alike:
            while written[value] in self.missing | self.literal:
                written[value] = f"<{written[value]}>"
        return np.array([written[value] for value in listed], object).reshape(-1, self.width)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Return numbers, validated against the known categories; shape (n_samples, 1)."""
        if self.known is not None:
            self._require_known(set(values[~np.isnan(values)].tolist()))
        return values.reshape(-1, 1)

    def _require_known(self, values: set[str] | set[float]) -> None:
        if unknown := set() if self.known is None else values - self.known:
            raise ValueError(self._says_unknown(unknown))

    def _says_unknown(self, values: set[Any]) -> str:
        return f"Found unknown categories {sorted(values)} in column {self.name!r} of X."


def is_gap(value: object) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


@dataclass(frozen=True)
class Table:
    """The columns that a fitted model takes, in their order in the data.

    Attributes
    ----------
    columns : tuple of TableColumn
    documents : bool
        Whether the data are one sequence of texts, as vectorizers take it, and no table.
    """

    columns: tuple[TableColumn, ...]
    documents: bool = False

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The placeholders for missing text, which are the same in all columns that have any."""
        return next((column.placeholders for column in self.columns if column.placeholders), {})

    @property
    def texts(self) -> dict[str, bool]:
        """Flags by column name, True for text; unused columns count as numbers."""
        return {column.name: column.kind == "text" for column in self.columns}

    @property
    def features(self) -> dict[str, Any]:
        """The attributes by which scikit-learn checks data, derived from the columns alone."""
        names = [column.name for column in self.columns]
        if names == [f"x{i}" for i in range(len(names))]:  # generated names: the model was fitted to an array
            return {"n_features_in_": len(names)}
        return {"n_features_in_": len(names), "feature_names_in_": np.array(names, object)}

    @property
    def splits_words(self) -> bool:
        """True if a column is split into words, so that any text is valid."""
        return any(column.kind == "text" and not column.literal for column in self.columns)

    def arrays(self, X: MatrixLike) -> dict[str, np.ndarray]:
        """Return the used columns as validated arrays of shape (n_samples, 1), by name.

        Raises
        ------
        ValueError, TypeError
            A column holds what the fitted model does not take.
        """
        if self.documents:
            return {column.name: column.texts(_text_documents(X, column.width)) for column in self.columns}
        arrays = self._numbers(X)
        for i, column in enumerate(self.columns):
            if column.kind == "text":
                arrays[column.name] = column.texts(_table_values(X, [i])[:, 0])
        return arrays

    def _numbers(self, X: MatrixLike) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for gaps in (False, True):
            group = [i for i, c in enumerate(self.columns) if c.kind == "number" and c.gaps is gaps]
            if group:
                part = X.iloc[:, group] if hasattr(X, "iloc") else _table_values(X, group)
                finite = "allow-nan" if gaps else True
                matrix = check_array(part, ensure_all_finite=finite, input_name="X")
                taken = [(self.columns[i], matrix[:, j]) for j, i in enumerate(group)]
                arrays |= {column.name: column.numbers(values) for column, values in taken}
        return arrays


def holds_text(X: MatrixLike) -> bool:
    """Return True if a data frame has columns that are not numeric."""
    dtypes = X.dtypes if hasattr(X, "columns") and hasattr(X, "dtypes") else ()
    return any(getattr(dtype, "kind", "O") not in "biuf" for dtype in dtypes)


def _table_values(X: MatrixLike, columns: Sequence[int]) -> np.ndarray:
    if hasattr(X, "iloc"):
        return np.asarray(X.iloc[:, columns], dtype=object)
    array = np.asarray(X, dtype=object)
    if array.ndim != 2:
        raise ValueError(f"The fitted model takes a data frame, or an array of two axes, got a {type(X).__name__}.")
    return array[:, columns]


def _text_documents(X: MatrixLike, width: int) -> np.ndarray:
    """Return the texts of all rows as one vector; ``X`` may be a sequence or a matrix of ``width`` columns."""
    values = np.asarray(X, dtype=object)
    if isinstance(X, str) or (values.shape[1:] != (width,) and not (width == 1 and values.ndim == 1)):
        what = "a sequence of texts" if width == 1 else f"{width} texts a row"
        raise ValueError(f"The fitted model takes {what}, got {type(X).__name__} of shape {values.shape}.")
    return values.ravel()
