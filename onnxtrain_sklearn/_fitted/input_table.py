"""Derive the table that a fitted model takes: which columns are text, which texts it knows, where values may miss.

:func:`table_of` finds the first steps that take each column. They tell its kind: an encoder by its categories, an
imputer by its statistics, a vectorizer by its class. Several steps may take one column, and must then agree. Models
whose text another step changes first, or whose ensembles encode it anew in each member, have no ONNX form and are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import VotingRegressor
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder
from sklearn.utils import get_tags

from .._utils.typing import Estimator
from ..exceptions import ModelError
from .converters.trees import categories_by_column
from .fitted_model import Table, TableColumn, is_gap
from .model_record import features_of, unwrapped
from .traversal import walk


def table_of(estimator: Estimator, *, has_text: bool) -> Table | None:
    """Return the table of a model that takes text; None for a model that takes a numeric matrix.

    ``has_text`` says whether the data have columns that are no numbers: they may be those that the model drops.
    """
    users = list(_first_steps(estimator, None))
    _refuse_text_within(users)
    _refuse_imputed_text(users)
    if any(user.columns is None and user.steps and _is_vectorizer(user.steps[0]) for user in users):
        return Table((TableColumn("text", "text", gaps=False),), documents=True)
    _refuse_hidden_text(estimator, users)
    features = features_of(estimator)
    names = features.get("feature_names_in_", [f"x{i}" for i in range(features.get("n_features_in_", 0))])
    marks = _free_marks(users, len(names))
    columns = tuple(_agreed_column(str(name), i, users, marks) for i, name in enumerate(names))
    kinds = {column.kind for column in columns}
    return Table(columns) if "text" in kinds or (has_text and "unused" in kinds) else None


@dataclass(frozen=True)
class _FirstSteps:
    """Steps that take some columns of the data first; None: all columns. They may be within an ensemble.

    ``later_steps`` take their outputs, together with those of other steps.
    """

    steps: tuple[Estimator, ...]
    columns: tuple[int, ...] | None
    ensemble: Any = None
    later_steps: tuple[Estimator, ...] = ()

    @property
    def allows_missing(self) -> bool:
        """True if missing values are allowed: every step allows them, up to one that imputes."""
        for step in (*self.steps, *self.later_steps):
            if not get_tags(step).input_tags.allow_nan:
                return False
            if _imputes(step):
                return True
        return True

    def before(self, later: tuple[Estimator, ...]) -> _FirstSteps:
        """Return the same followed by further steps."""
        return replace(self, later_steps=(*self.later_steps, *later))

    def place(self, column: int) -> int | None:
        """Return the position of a column of the data among the columns of the step."""
        if self.columns is None:
            return column
        return self.columns.index(column) if column in self.columns else None


def _first_steps(
    estimator: Estimator, columns: tuple[int, ...] | None, later: tuple[Estimator, ...] = ()
) -> Iterator[_FirstSteps]:
    """Yield the steps that take columns of the data first, with the steps that follow them."""
    estimator = unwrapped(estimator)
    if isinstance(estimator, Pipeline):
        steps = (*(step for _, step in estimator.steps if not _is_passthrough(step)), *later)
        yield from _first_steps(steps[0], columns, steps[1:]) if steps else [_FirstSteps((), columns)]
    elif isinstance(estimator, ColumnTransformer):
        for name, part, _ in estimator.transformers_:
            taken = estimator._transformer_to_input_indices[name]
            inner = _first_steps(part, tuple(i if columns is None else columns[i] for i in taken))
            yield from (user.before(later) for user in inner)
    elif isinstance(estimator, FeatureUnion):
        for _, part in estimator.transformer_list:
            yield from (user.before(later) for user in _first_steps(part, columns))
    elif isinstance(estimator, str) and estimator == "drop":
        return
    elif isinstance(estimator, TransformedTargetRegressor):
        yield from _first_steps(estimator.regressor_, columns, later)
    elif parts := _inner_estimators(estimator):
        for part in parts:
            yield from (replace(user.before(later), ensemble=estimator) for user in _first_steps(part, columns))
    else:
        yield _FirstSteps(() if _is_passthrough(estimator) else (estimator, *later), columns)


def _is_passthrough(step: object) -> bool:
    return step is None or isinstance(step, str) or (isinstance(step, FunctionTransformer) and step.func is None)


def _inner_estimators(estimator: Estimator) -> list[Any]:
    """Return the pipelines and column transformers within an ensemble that get the same columns."""
    found: dict[tuple[Any, ...], Any] = {}
    for path, part in walk(estimator):
        same = getattr(part, "n_features_in_", None) == getattr(estimator, "n_features_in_", None)  # None: of texts
        is_private = any(str(step).startswith("_") for step in path)
        if not path or not same or is_private or not isinstance(part, Pipeline | ColumnTransformer):
            continue
        if not any(path[: len(outer)] == outer for outer in found):
            found[path] = part
    return list(found.values())


def _free_marks(users: Sequence[_FirstSteps], columns: int) -> dict[str, str]:
    """Return what missing text is written as, where its usual form is a text that the model knows."""
    steps = [(step, user.place(i)) for user in users for i in range(columns) for step in user.steps[:2]]
    known = {value for step, place in steps if place is not None for value in _fitted_values(step, place)}
    marks: dict[str, str] = {}
    for usual in ("nan", "None"):
        mark = usual
        while mark in known:
            mark = f"<{mark}>"
        marks |= {usual: mark} if mark != usual else {}
    return marks


def _takes_marks(step: Estimator) -> bool:
    """Return True if missing text may be written to a step in a form other than the usual one."""
    return isinstance(step, OneHotEncoder | OrdinalEncoder | SimpleImputer) or bool(categories_by_column(step))


def _agreed_column(name: str, index: int, users: Sequence[_FirstSteps], marks: Mapping[str, str]) -> TableColumn:
    """Return a column by all steps that take it."""
    places = [(user, user.place(index)) for user in users]
    taken = [(user.steps, place) for user, place in places if place is not None]
    if not taken:
        return TableColumn(name, "unused")
    if not any(steps and _is_text(steps[0], place) for steps, place in taken):
        column = TableColumn(name, "number", all(user.allows_missing for user, place in places if place is not None))
    else:
        takes = all(not steps or _takes_marks(steps[0]) for steps, _ in taken)
        column = TableColumn(name, "text", marks=marks if takes else {})
    for steps, place in taken:
        column = _with_rules(column, steps, place) if steps else column
    if unsure := column.literal & column.missing:
        raise ModelError(
            f"The text {min(unsure)!r} and missing text are two categories of column {name!r}, and the same in ONNX. "
            f"Write it otherwise, and fit the model on that."
        )
    return column


def _with_rules(column: TableColumn, steps: Sequence[Estimator], place: int) -> TableColumn:
    """Add what one step tells: an encoder, an imputer and perhaps an encoder, or a vectorizer."""
    literal: frozenset[Any] = frozenset()
    for step in steps[: 2 if _imputes(steps[0]) else 1]:
        values = [*_fitted_values(step, place), *([step.missing_values] if _imputes(step) else [])]
        marks: Mapping[str, str] = column.marks if _takes_marks(step) else {}
        absent = frozenset(marks.get(str(value), str(value)) for value in values if is_gap(value))
        literal |= {value for value in values if not is_gap(value)}
        column = replace(
            column,
            literal=column.literal | literal,
            missing=column.missing | absent,
            gaps=column.gaps and not _is_vectorizer(step),
        )
        if _refuses_unknown(step):
            known = literal | column.missing if column.kind == "text" else literal
            column = replace(column, known=known if column.known is None else column.known & known)
    return column


def _is_text(step: Estimator | None, place: int) -> bool:
    return _is_vectorizer(step) or any(isinstance(value, str) for value in _fitted_values(step, place))


def _is_vectorizer(step: object) -> bool:
    return isinstance(step, CountVectorizer | HashingVectorizer)


def _imputes(step: Estimator) -> bool:
    return type(step).__module__.startswith("sklearn.impute.")


def _fitted_values(step: Estimator | None, place: int) -> list[Any]:
    """Return the categories of one column of a fitted step."""
    if isinstance(step, SimpleImputer):
        return [step.statistics_[place]]
    if (of_booster := categories_by_column(step)) and place in of_booster:
        return list(of_booster[place].tolist())
    categories = getattr(step, "categories_", ())
    return np.asarray(categories[place]).tolist() if place < len(categories) else []


def _refuses_unknown(step: Estimator) -> bool:
    """Return True if a step refuses unknown text, in scikit-learn or in the graph."""
    if isinstance(step, OrdinalEncoder):
        return step.handle_unknown == "error" or bool(np.isnan(step.unknown_value))
    return isinstance(step, OneHotEncoder) and step.handle_unknown == "error"


def _refuse_text_within(users: Sequence[_FirstSteps]) -> None:
    """Refuse encoders of text within ensembles that give their members numeric matrices."""
    for user in users:
        ensemble, first = user.ensemble, user.steps[0] if user.steps else None
        if ensemble is None or (isinstance(ensemble, VotingRegressor) and ensemble.weights is None):
            continue
        if _is_vectorizer(first) or any(_is_text(first, i) for i in range(getattr(first, "n_features_in_", 0))):
            name = type(ensemble).__name__
            raise ModelError(
                f"Each estimator within this {name} encodes text for itself, which has no ONNX form. Put the encoder "
                f"before the {name}, in a pipeline that ends in it."
            )


def _refuse_imputed_text(users: Sequence[_FirstSteps]) -> None:
    """Refuse imputers that take several columns of text from the data themselves: skl2onnx makes numbers of them."""
    for user in users:
        first = user.steps[0] if user.steps and user.columns is None else None
        fills = first.statistics_ if isinstance(first, SimpleImputer) else ()
        if len(fills) > 1 and any(isinstance(value, str) for value in fills):
            raise ModelError(
                "SimpleImputer takes several columns of text before anything else, which has no ONNX form. Let a "
                "ColumnTransformer begin the pipeline: make_column_transformer((make_pipeline(SimpleImputer(...), "
                "OneHotEncoder(...)), columns))."
            )


def _refuse_hidden_text(estimator: Estimator, users: Sequence[_FirstSteps]) -> None:
    """Refuse encoders of text that follow other steps, whose effect on the text has no ONNX form."""
    first = {id(step) for user in users for step in user.steps}
    first |= {id(part) for user in users for step in user.steps[:1] for part in _own_encoders(step)}
    for _, part in walk(estimator):
        categories = getattr(part, "categories_", ())
        if id(part) not in first and any(
            isinstance(v, str) for i in range(len(categories)) for v in _fitted_values(part, i)
        ):
            raise ModelError(
                f"{type(part).__name__} encodes text, but is not the first to take these columns. Encode them in a "
                f"ColumnTransformer that begins the pipeline, after an imputer at most."
            )


def _own_encoders(step: Estimator) -> list[Any]:
    """Return the encoder of a histogram booster, with what it is within."""
    return [part for _, part in walk(step)] if categories_by_column(step) else []
