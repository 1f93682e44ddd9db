"""Checks of X, which becomes a column for each input of the graph, and the container :class:`Inputs`.

:func:`input_columns` takes every form of ``X``. An array, a sparse matrix or a data frame is one input, checked by
scikit-learn; a dict, :class:`Inputs`, or a data frame whose columns are named after the inputs holds several.

The length of a dict of arrays is the number of inputs, which scikit-learn would take for the number of rows. The length
and the first size of an :class:`Inputs` is the number of rows, and it is indexed by rows, as splits, searches and
pipelines require.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from .._model.trainable import TensorSpec
from .._utils.typing import FrameLike, MatrixLike, SparseLike
from ..exceptions import ModelError, warn
from .columns import InputData, as_frame, dict_columns, dimensions, require_no_times, shaped, warn_of_rounded_columns
from .lists_of_examples import example_columns, holds_examples

NATIVE_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

SEPARATORS = ("_", ".")
"""Separators between the name of an input and the rest of a column's name."""

TEXT = (
    "X holds text, and the input of the graph takes numbers. RealMLPClassifier, RealMLPRegressor, TabMClassifier and "
    "TabMRegressor take columns of text as they are; for another model, encode the columns before it, such as with "
    "OneHotEncoder or OrdinalEncoder in a Pipeline."
)

SEVERAL = (
    "Cells of X hold lists, arrays or other objects, and this input of the graph takes a number from each cell. Make a "
    "column of each number; only graphs with several inputs take lists from a column, an array for each row."
)

GAPS = (
    "The graph computes with every number of X. RealMLPClassifier, RealMLPRegressor, TabMClassifier and TabMRegressor "
    "take missing numbers as they are; for another model, put SimpleImputer before it in a Pipeline, or leave out the "
    "rows with missing values."
)


class Inputs:
    """Arrays by input name that are indexed by rows: ``X`` for graphs with several inputs.

    ``fit`` and ``predict`` take a dict of arrays too, but scikit-learn cannot split a dict. This container can be split
    by :func:`~sklearn.model_selection.train_test_split`, ``GridSearchCV`` or ``cross_val_score``, and passes through
    steps of a pipeline that do not change it.

    Parameters
    ----------
    data : mapping of str to array-like, or data frame
        An array, a sparse matrix or a data frame for each input, or one data frame with the columns of all inputs.
    columns : mapping of str to (str or list of str), default=None
        For a data frame: the column, or the columns, of every input.

    Attributes
    ----------
    arrays : dict of str to ndarray or sparse matrix
        The rows of every input.
    shape : tuple of int
        Rows, then inputs.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import train_test_split
    >>> from onnxtrain_sklearn import Inputs
    >>> X = Inputs({"image": np.zeros((10, 8, 8)), "age": np.arange(10)})
    >>> X_train, X_test = train_test_split(X, test_size=0.3, shuffle=False)
    >>> X_test
    Inputs(image: float64 (3, 8, 8), age: int64 (3,))
    >>> X_test["age"].tolist()
    [7, 8, 9]

    The columns of a data frame, by lists:

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"width": [1.0, 2.0], "height": [3.0, 4.0], "age": [30, 40]})
    >>> Inputs(frame, {"size": ["width", "height"], "age": "age"})
    Inputs(size: float64 (2, 2), age: int64 (2,))
    """

    __module__ = "onnxtrain_sklearn"  # the path that pickles store for this class

    def __init__(
        self, data: Mapping[str, MatrixLike] | FrameLike, columns: Mapping[str, str | Sequence[str]] | None = None
    ) -> None:
        if columns is not None:
            frame: Any = as_frame(data)
            if not is_frame(frame):
                raise TypeError(f"columns= selects columns of a data frame, got {type(frame).__name__}.")
            chosen: dict[str, Any] = {name: own if isinstance(own, str) else list(own) for name, own in columns.items()}
            for own in chosen.values():
                known = list(frame.columns)
                if missing := [c for c in ([own] if isinstance(own, str) else own) if c not in known]:
                    raise ValueError(f"The data frame has no columns {missing}; it has {known}.")
            data = {name: frame[own] for name, own in chosen.items()}
        if not isinstance(data, Mapping) or sp.issparse(data):
            raise TypeError(
                f"Inputs takes a mapping from input names to arrays, or a data frame and columns={{input: its "
                f"columns}}, got {type(data).__name__}."
            )
        self.arrays: dict[str, Any] = {}
        for name, rows in data.items():
            given = as_frame(rows)
            require_no_times(given, f"The input {name!r}")
            array = given.tocsr() if sp.issparse(given) else np.asarray(given)
            if not array.ndim:
                kind = type(rows).__name__
                raise ValueError(f"The input {name!r} must have a row for each sample, got a single {kind}.")
            self.arrays[str(name)] = array
        lengths = {name: rows.shape[0] for name, rows in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"The inputs must have the same number of rows, got {lengths}.")

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, then of inputs."""
        return int(next(iter(self.arrays.values())).shape[0]), len(self.arrays)

    @property
    def ndim(self) -> int:
        """Two: rows and inputs."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: object) -> Any:
        """Return the array of an input for a name, a dict for one row, and else an Inputs with these rows."""
        if isinstance(key, str):
            return self.arrays[key]
        if isinstance(key, tuple):  # scikit-learn indexes X[rows, ...]
            if len(key) != 2 or key[1] is not Ellipsis:
                raise TypeError(f"Inputs are indexed by rows, or by the name of an input, got {key!r}.")
            key = key[0]
        if isinstance(key, int | np.integer):
            return {name: rows[key] for name, rows in self.arrays.items()}
        rows_of = key if isinstance(key, slice) else np.asarray(key)
        return Inputs({name: rows[rows_of] for name, rows in self.arrays.items()})

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise TypeError(
            f"{self!r} contains several arrays and cannot be converted to one: use it as X for a graph with these "
            f"inputs, alone or after steps of a pipeline that do not change it."
        )

    def __repr__(self) -> str:
        return f"Inputs({', '.join(f'{name}: {a.dtype} {a.shape}' for name, a in self.arrays.items())})"


def is_frame(X: object) -> TypeGuard[FrameLike]:
    """Return True if ``X`` is a data frame."""
    return hasattr(X, "columns")


def has_several_inputs(X: object) -> TypeGuard[Inputs | Mapping[str, ArrayLike | SparseLike]]:
    """Return True if ``X`` holds arrays by input name; a sparse matrix of the DOK format is a dict, but does not."""
    return isinstance(X, Inputs | Mapping) and not sp.issparse(X)


def input_columns(
    estimator: BaseEstimator,
    X: MatrixLike,
    specs: Sequence[TensorSpec] | None,
    *,
    reset: bool,
    missing: Callable[[], bool] = lambda: False,
) -> dict[str, InputData]:
    """Return ``X`` as the inputs of a graph, checked as scikit-learn does.

    ``specs`` are the inputs; None if the graph is yet to be built. ``reset`` sets the feature attributes of the
    estimator, as in ``fit``. ``missing`` returns True if numbers may be missing; it is called only if X is not plainly
    finite.
    """
    for spec in specs or ():
        if spec.dtype.kind in "OSU":
            raise ModelError(
                f"The graph's input {spec.name!r} takes text, and training takes numbers. Run the part of the graph "
                f"that reads text once, with onnxruntime, and train the part behind it on its results: "
                f"onnx.utils.extract_model(file, new_file, input_names, output_names) writes each part."
            )
    if any(spec.example is not None for spec in specs or ()):
        return example_columns(X, specs or ())
    if holds_examples(X):
        raise TypeError(
            "X is a list of examples of different sizes, and this model takes rows of one size. A graph that is given "
            "as ONNX is trained on such a list, and a fitted one takes a list if it was fitted to one; for other "
            "models, pad the examples: PaddedRows()."
        )
    X = as_frame(X)
    if isinstance(X, Inputs):
        X = X.arrays
    elif specs is not None and len(specs) > 1 and is_frame(X):
        if reset or hasattr(estimator, "feature_names_in_"):  # the columns name their inputs
            validate_data(estimator, X, reset=reset, skip_check_array=True)
        require_no_times(X)
        X = frame_arrays(X, [spec.name for spec in specs])
    if has_several_inputs(X):
        return dict_columns(X.arrays if isinstance(X, Inputs) else X, specs)
    if specs is not None and len(specs) > 1:
        raise TypeError(
            f"The graph has {len(specs)} inputs: {', '.join(repr(s.name) for s in specs)}. Give X as a dict of arrays "
            f"by input name, as Inputs(dict), which scikit-learn can split, or as a data frame whose columns are named "
            f"after the inputs, got {type(X).__name__}."
        )
    spec = TensorSpec("X", np.dtype(np.float32), (None, None)) if specs is None else specs[0]
    array = _validated(estimator, X, spec.shape, reset, missing)
    warn_of_rounded_columns(X, array, spec.dtype)
    return {spec.name: InputData(shaped(array, spec), spec.dtype)}


def _validated(
    estimator: Any, X: MatrixLike, shape: Sequence[int | None], reset: bool, missing: Callable[[], bool]
) -> Any:
    """Return ``X`` for a single input, checked as scikit-learn does; ``shape`` is that of the input."""
    rank, rows, free = len(shape), None, None in shape[1:]
    if rank > 2 and dimensions(X) > 2:  # flatten the rows, as n_features_in_ counts the numbers of a flat row
        X = np.asanyarray(X)
        rows = X.shape
        X = X.reshape(len(X), math.prod(X.shape[1:]))
    if reset and rank > 1 and type(X) is np.ndarray and X.dtype in NATIVE_FLOATS and X.ndim == 2 and X.size:
        with np.errstate(all="ignore"):  # the sum of finite numbers may overflow: then scikit-learn checks each number
            is_finite = np.isfinite(X.sum())
        if is_finite:
            # Skip scikit-learn's slower checks, which would return X unchanged and set only these attributes.
            estimator.n_features_in_ = X.shape[1]
            if hasattr(estimator, "feature_names_in_"):
                del estimator.feature_names_in_
            return X if rows is None else X.reshape(rows)
    require_no_times(X)
    checks = {"accept_sparse": "csr", "ensure_2d": rank > 1, "ensure_all_finite": "allow-nan" if missing() else True}
    with _faults_of_tables():
        # Use check_array if rows may have other lengths than in fit: validate_data requires n_features_in_.
        if rows is not None and free and not reset:
            array: Any = check_array(X, estimator=estimator, input_name="X", **checks)
        else:
            array = validate_data(estimator, X, reset=reset, **checks)
        if not sp.issparse(array) and array.dtype == object:
            array.astype(np.float64)  # raises for categories of text, which pass scikit-learn's check
    return array if rows is None else array.reshape(rows)


@contextmanager
def _faults_of_tables() -> Iterator[None]:
    """Add a remedy to scikit-learn's errors about text, missing numbers, and cells that hold several numbers."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        if "setting an array element with a sequence" in message or message.startswith("float() argument must be"):
            raise type(error)(f"{message.splitlines()[0].rstrip('.')}. {SEVERAL}") from None
        if message.startswith("could not convert string to float") or "arrays of bytes/strings" in message:
            raise ValueError(f"{message.rstrip('.')}. {TEXT}") from None
        if "does not accept missing values encoded as NaN" in message:
            raise ValueError(f"{message.splitlines()[0]}\n{GAPS}") from None
        raise


def frame_arrays(frame: FrameLike, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the columns of a data frame as arrays by input name.

    An input takes the column of its name, or the columns that begin with its name and a separator, in the order of
    their numbers if all of them are the name, a separator and a number. Every column must belong to exactly one input.
    """
    # Which inputs may a column belong to? If pandas columns have several levels, the first level counts.
    owners: dict[Hashable, list[str]] = {}
    for column in frame.columns:
        name: object = column[0] if isinstance(column, tuple) else column
        starts = {i: tuple(f"{i}{separator}" for separator in SEPARATORS) for i in inputs}
        longer = [i for i in inputs if isinstance(name, str) and name.startswith(starts[i])]
        owners[column] = [name] if isinstance(name, str) and name in inputs else longer
    parts = {name: [c for c, own in owners.items() if own == [name]] for name in inputs}

    # Does each column belong to one input, and has each input columns?
    problem = ""
    for name, columns in parts.items():
        if not columns or (name in columns and len(columns) > 1):
            problem = f"for the input {name!r} there are {f'both {columns[:2]}' if columns else 'no columns'}"
            break
    for column, own in owners.items():
        if len(own) != 1:
            problem = f"column {column!r} belongs to {f'{own[0]!r} and {own[1]!r}' if own else 'none of them'}"
            break
    if problem:
        raise ValueError(
            f"The columns of X do not tell which input they are for: {problem}. The graph's inputs are {list(inputs)}. "
            f"Each takes the column of its name or columns that begin with it ({inputs[0]}_0, {inputs[0]}_1, ...); "
            f"else give Inputs(frame, {{input: [its columns]}})."
        )

    arrays = {}
    for name, columns in parts.items():
        # Sort by numbers, so that x_10 follows x_9, unless some columns have no number.
        rests = [c[len(name) :].lstrip("".join(SEPARATORS)) if isinstance(c, str) else "" for c in columns]
        if all(rest.isdecimal() for rest in rests):
            columns = [column for _, column in sorted(zip(map(int, rests), columns, strict=True))]
        # One column gives a vector, several give a matrix; cells that hold arrays are stacked.
        array = np.asarray(frame[columns[0]] if columns == [name] else frame[columns])
        if array.ndim == 1 and array.dtype == object and len(array) and np.ndim(array[0]):
            try:
                array = np.stack([np.asarray(cell) for cell in array])
            except ValueError:
                raise ValueError(f"The cells of column {name!r} hold arrays of different shapes.") from None
        arrays[name] = array
    return arrays


def prediction_type(X: MatrixLike) -> type[np.floating[Any]]:
    """Return the float type of the predictions for ``X``: float32 for float32, as in scikit-learn, else float64."""
    data: Any = X.arrays if isinstance(X, Inputs) else X
    data = next(iter(data)) if holds_examples(data) else data
    first = next(iter(data.values())) if isinstance(data, Mapping) and not sp.issparse(data) else data
    return np.float32 if getattr(first, "dtype", None) == np.float32 else np.float64


# Warnings about columns of text that are probably not categories: dates, numbers, and identifiers of rows.


MANY_CATEGORIES = 20
"""Largest number of distinct texts for which there is no warning that they seem to be numbers or row identifiers."""

MOSTLY = 0.8
"""If at least this share of the distinct texts are numbers, the other texts are regarded as missing numbers."""

WARNINGS = r"Column .* (holds dates|holds numbers as texts|has \d+ different texts)"
"""Pattern of these warnings, with which callers suppress repetitions."""

CODE = re.compile(r"\d+")
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?(\d{1,3}(,\d{3})+(\.\d*)?|\d*[.,]?\d+|\d+\.)([eE][-+]?\d+)?\s?[%$€£]?")

DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{1,2}/\d{1,2}/\d{2})([T ]\d{1,2}:\d{2}.*)?"
)


def warn_of_texts(
    name: str, texts: Iterable[str], n_rows: int, remedy: str = "leave the column out", *, has_codes: bool = False
) -> None:
    """Warn if the texts of a column are dates or numbers, or so many that they seem to identify the rows.

    Parameters
    ----------
    name : str
        Name of the column.
    texts : iterable of str
        The texts that are not missing.
    n_rows : int
    remedy : str
        The advice, in the warning, for leaving out the column.
    has_codes : bool
        True if the column has a categorical type, so that numbers are codes.
    """
    different = set(texts)
    if different and all(DATE.fullmatch(text) for text in different):
        warn(
            f"Column {name!r} holds dates, which are trained on as texts: make numbers of them, such as days since a "
            f"date, or {remedy}."
        )
    elif not has_codes and (examples := _numbers_among(different)):
        warn(
            f"Column {name!r} holds numbers as texts, which are trained on as categories: {examples}. Make numbers of "
            f"them, and missing values of the other texts, or {remedy}, unless they are codes."
        )
    elif len(different) > max(MANY_CATEGORIES, n_rows // 2):
        warn(
            f"Column {name!r} has {len(different)} different texts in {n_rows} rows; if they identify the rows, "
            f"{remedy}."
        )


def _numbers_among(texts: set[str]) -> str | None:
    """Return examples for a warning if most texts are numbers.

    None if they are not, or may be codes: if one begins with a zero (00501), or all are nothing but digits (501).
    """
    if len(texts) <= MANY_CATEGORIES:
        return None
    numbers = {text for text in texts if NUMBER.fullmatch(text.strip())}
    others = sorted(texts - numbers)
    has_codes = any(CODE.fullmatch(text) and text != "0" and text.startswith("0") for text in numbers)
    if len(numbers) < MOSTLY * len(texts) or has_codes:
        return None
    written = min(numbers, key=lambda text: (bool(CODE.fullmatch(text)), text))
    if others:
        return f"{written!r} is a number, {others[0]!r} is not"
    return None if CODE.fullmatch(written) else f"such as {written!r}"
