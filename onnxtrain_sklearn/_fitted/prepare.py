"""Prepare a fitted scikit-learn model for training: from the estimator to a trainable graph.

:func:`fitted_model` runs all steps, in this order: :func:`table_of` derives the columns of a model that takes text;
``convert`` makes a float32 graph, which is pruned to the trained output; ``_ml_operators`` rewrites the ai.onnx.ml
operators; ``provenance`` names the parameters after the estimators and attributes that they come from; ``scores`` makes
the output one that a loss can be computed on; and ``text_encoder`` splits off the encoder of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import VotingRegressor
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from .._ir.edits import hold_as_constant
from .._ir.shapes import infer_shapes
from .._ml_operators.rewrite import Rewritten, rewrite
from .._model.trainable import TrainableModel, trainable_model
from .._model.weights import parameters_of
from .._utils.typing import Estimator
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder
from .convert import converted
from .converters.context import ConversionRecord
from .converters.trees import categories_by_column
from .corrections import refuse_untrainable, split_in_double, without_gradient
from .fitted_model import FittedModel, Origin, Table, TableColumn, follow, is_gap, walk
from .model_record import ModelRecord, features_of, record_of, unwrapped
from .objective import loss_of
from .provenance import VOTES, Tracer, named
from .scores import (
    CLASS_OUTPUT,
    PAIRS,
    as_probabilities,
    expose_labels,
    expose_scores,
    keep_first_of_ties,
    keep_threshold,
    keep_votes,
    keep_votes_of_labels,
    prune,
)
from .text_encoder import in_parts


def fitted_model(estimator: Estimator, *, has_text: bool = False) -> tuple[TrainableModel, FittedModel]:
    """Return a fitted model as a trainable graph, and the description that stays beside the graph.

    ``has_text`` is True if the data have columns that are not numeric.

    Raises
    ------
    NotFittedError
    ModelError
        The model cannot be converted, or has nothing to train; the message says why.
    """
    check_is_fitted(estimator)
    record = record_of(estimator)
    refuse_untrainable(record)
    table = table_of(estimator, has_text=has_text)
    model, origins = _graph_of(record, table)

    # Select the parameters: the fitted numbers that have a gradient and are no settings, in the order of their origins.
    names = {value.name for value in model.graph.outputs}
    pairs, class_output = (name if name in names else None for name in (PAIRS, CLASS_OUTPUT))
    try:
        source = trainable_model(model, pairs=pairs, class_output=class_output)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(without_gradient(record)) from error
    trained = [o.name for o in origins if o.name in source.parameters and not _is_setting(o, source, estimator)]
    source = replace(source, parameters=tuple(trained))
    source, parts = (source, None) if table is None else in_parts(source)
    if not source.parameters:
        raise ModelError(without_gradient(record))
    return source, FittedModel(
        origins=tuple(origin for origin in origins if origin.name in source.parameters),
        classes=record.classes,
        n_labels=None if record.outputs is None else len(record.outputs),
        features=features_of(estimator),
        loss=loss_of(record, source),
        table=table,
        parts=parts,
    )


def _graph_of(record: ModelRecord, table: Table | None) -> tuple[ir.Model, Sequence[Origin]]:
    """Return the graph in operators of the default domain, and the origins of its parameters.

    The order of the steps matters. Votes are found by the converters' nodes, so before rewriting replaces these nodes.
    Parameters get their names before other nodes are computed from them. Thresholds apply to the scores, so after the
    scores are exposed.
    """
    estimator = record.estimator
    rewritten, conversions, structure = _rewritten(record, table)

    def convert_copy(estimator_copy: Estimator) -> tuple[ir.Model, object]:
        other, _, structure_of_copy = _rewritten(record_of(estimator_copy), table)
        return other.model, structure_of_copy

    model = rewritten.model
    tracer = Tracer(estimator, structure, convert_copy)
    origins = named(model, rewritten.roles, conversions, estimator, tracer)
    origins = list(split_in_double(model, origins, estimator))
    # Train the votes of training points only if nothing else can be trained, because votes cannot be written back.
    trained = parameters_of(model.graph, model.graph.outputs[0])
    others = [one for one in origins if one.form != VOTES]
    origins = others if any(one.name in trained for one in others) else origins

    # Float initializers without an origin are no weights: they become Constant nodes.
    named_values = {one.name for one in origins}
    op = GraphBuilder(model.graph, prefix="constant", constant_nodes=True)
    for name, value in list(model.graph.initializers.items()):
        if name not in named_values and value.dtype is not None and value.dtype.is_floating_point():
            hold_as_constant(op, value)
    model.graph.sort()
    origins = [as_probabilities(model, one, estimator) for one in origins]
    expose_scores(model, record) if record.outputs is None else expose_labels(model, record)
    keep_threshold(model.graph, record)
    votes = any(one.form == VOTES for one in origins)
    if record.outputs is None and (votes or any(one.role == "leaf_probabilities" for one in origins)):
        keep_first_of_ties(infer_shapes(model).graph, of_two=votes)
    return infer_shapes(model), origins


def _rewritten(record: ModelRecord, table: Table | None) -> tuple[Rewritten, Sequence[ConversionRecord], object]:
    """Return the rewritten graph, the record of each converter, and the structure before rewriting."""
    texts, placeholders = (None, {}) if table is None else (table.texts, table.placeholders)
    model, conversions = converted(record.estimator, texts, placeholders)
    prune(model, 1 if record.gives_labels else 0)
    structure = [(node.op_type, [x and x.name for x in node.inputs]) for node in model.graph]
    keep_votes(model.graph, record, conversions)
    keep_votes_of_labels(model.graph, record, conversions)
    infer_shapes(model)
    return rewrite(model), conversions, structure


def _is_setting(origin: Origin, graph: TrainableModel, estimator: Estimator) -> bool:
    """Return True if a parameter is not to be trained: it holds a setting, or has no number of its own to learn."""
    owner = follow(estimator, origin.owner)
    if origin.role == "default" and len(getattr(owner, "categories_", ())) > 1:
        return True  # one mean for unknown categories, which several columns share
    if origin.attribute:
        return "intercept" in str(origin.attribute[0]) and getattr(owner, "fit_intercept", True) is False
    # A base value of trees is redundant, because the leaves can learn it. The user chose the imputed values.
    if origin.role in ("base_values", "imputed"):
        return True
    # A scaler without mean or deviation has zeros or ones in the graph instead, which are not trained.
    numbers = graph.model.graph.initializers[origin.name].const_value
    neutral = {"offset": 0.0, "scale": 1.0}.get(origin.role)
    return neutral is not None and numbers is not None and bool((numbers.numpy() == neutral).all())


# The table that a model takes: which columns are text, which texts are known, where values may be missing.
#
# The first steps that read a column determine its kind: an encoder by its categories, an imputer by its statistics, a
# vectorizer by its class. If several steps read one column, they must agree.


def table_of(estimator: Estimator, *, has_text: bool) -> Table | None:
    """Return the table of a model that takes text; None for a model that takes a numeric matrix.

    ``has_text`` is True if the data have columns that are not numeric; the model may drop these columns.

    Raises
    ------
    ModelError
        A step changes the text before an encoder, or each member of an ensemble encodes it, which has no ONNX form.
    """
    branches = list(_branches(estimator, None))
    for branch in branches:
        first = branch.steps[0] if branch.steps else None
        ensemble = branch.ensemble
        if ensemble is None or (isinstance(ensemble, VotingRegressor) and ensemble.weights is None):
            continue
        # The members of other ensembles must take numeric matrices, so refuse text.
        if _is_vectorizer(first) or any(_is_text(first, i) for i in range(getattr(first, "n_features_in_", 0))):
            name = type(ensemble).__name__
            raise ModelError(
                f"Each estimator within this {name} encodes text for itself, which has no ONNX form. Put the encoder "
                f"before the {name}, in a pipeline that ends in it."
            )
    for branch in branches:
        # Refuse a SimpleImputer on several columns of text, which skl2onnx would convert to numbers.
        first = branch.steps[0] if branch.steps and branch.columns is None else None
        fills = first.statistics_ if isinstance(first, SimpleImputer) else ()
        if len(fills) > 1 and any(isinstance(value, str) for value in fills):
            raise ModelError(
                "SimpleImputer takes several columns of text before anything else, which has no ONNX form. Let a "
                "ColumnTransformer begin the pipeline: make_column_transformer((make_pipeline(SimpleImputer(...), "
                "OneHotEncoder(...)), columns))."
            )
    if any(branch.columns is None and branch.steps and _is_vectorizer(branch.steps[0]) for branch in branches):
        return Table((TableColumn("text", "text", gaps=False),), documents=True)

    # A histogram booster has an inner encoder. All other encoders of text must be the first steps of their columns.
    firsts = [step for branch in branches for step in branch.steps]
    boosters = [branch.steps[0] for branch in branches if branch.steps and categories_by_column(branch.steps[0])]
    allowed = {id(step) for step in firsts} | {id(part) for booster in boosters for _, part in walk(booster)}
    for _, part in walk(estimator):
        columns = range(len(getattr(part, "categories_", ())))
        if id(part) not in allowed and any(isinstance(v, str) for i in columns for v in _fitted_values(part, i)):
            raise ModelError(
                f"{type(part).__name__} encodes text, but is not the first to take these columns. Encode them in a "
                f"ColumnTransformer that begins the pipeline, after an imputer at most."
            )

    features = features_of(estimator)
    names = features.get("feature_names_in_", [f"x{i}" for i in range(features.get("n_features_in_", 0))])

    # Missing text is written as "nan" or "None", or with angle brackets if a step has that string as a category.
    steps = [(step, branch.place(i)) for branch in branches for i in range(len(names)) for step in branch.steps[:2]]
    known = {value for step, place in steps if place is not None for value in _fitted_values(step, place)}
    placeholders: dict[str, str] = {}
    for usual in ("nan", "None"):
        text = usual
        while text in known:
            text = f"<{text}>"
        placeholders |= {usual: text} if text != usual else {}
    found = tuple(_column(str(name), i, branches, placeholders) for i, name in enumerate(names))
    kinds = {column.kind for column in found}
    return Table(found) if "text" in kinds or (has_text and "unused" in kinds) else None


@dataclass(frozen=True)
class _Branch:
    """The first steps of some columns of the data, such as a part of a ColumnTransformer.

    Attributes
    ----------
    steps : tuple of estimator
        The steps that take only these columns.
    columns : tuple of int or None
        The positions of the columns in the data; None if the steps take all columns.
    ensemble : estimator or None
        The ensemble that contains the steps.
    later_steps : tuple of estimator
        The steps that take the outputs of this branch together with those of other branches.
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

    def before(self, later: tuple[Estimator, ...]) -> _Branch:
        """Return this branch with ``later`` steps appended to its later steps."""
        return replace(self, later_steps=(*self.later_steps, *later))

    def place(self, column: int) -> int | None:
        """Return the position, in the branch, of a column of the data; None if the branch does not take the column."""
        if self.columns is None:
            return column
        return self.columns.index(column) if column in self.columns else None


def _branches(
    estimator: Estimator, columns: tuple[int, ...] | None, later: tuple[Estimator, ...] = ()
) -> Iterator[_Branch]:
    """Yield the branches of an estimator that takes ``columns`` of the data and is followed by ``later`` steps."""
    estimator = unwrapped(estimator)
    if isinstance(estimator, Pipeline):
        steps = (*(step for _, step in estimator.steps if not _is_passthrough(step)), *later)
        yield from _branches(steps[0], columns, steps[1:]) if steps else [_Branch((), columns)]
    elif isinstance(estimator, ColumnTransformer):
        for name, part, _ in estimator.transformers_:
            taken = estimator._transformer_to_input_indices[name]
            inner = _branches(part, tuple(i if columns is None else columns[i] for i in taken))
            yield from (branch.before(later) for branch in inner)
    elif isinstance(estimator, FeatureUnion):
        for _, part in estimator.transformer_list:
            yield from (branch.before(later) for branch in _branches(part, columns))
    elif isinstance(estimator, str) and estimator == "drop":
        return
    elif isinstance(estimator, TransformedTargetRegressor):
        yield from _branches(estimator.regressor_, columns, later)
    elif parts := _inner_estimators(estimator):
        for part in parts:
            yield from (replace(branch.before(later), ensemble=estimator) for branch in _branches(part, columns))
    else:
        yield _Branch(() if _is_passthrough(estimator) else (estimator, *later), columns)


def _is_passthrough(step: object) -> bool:
    return step is None or isinstance(step, str) or (isinstance(step, FunctionTransformer) and step.func is None)


def _inner_estimators(estimator: Estimator) -> list[Any]:
    """Return the outermost pipelines and column transformers in an ensemble that take the ensemble's own columns."""
    found: dict[tuple[Any, ...], Any] = {}
    for path, part in walk(estimator):
        # Estimators that take a sequence of texts have no n_features_in_.
        same = getattr(part, "n_features_in_", None) == getattr(estimator, "n_features_in_", None)
        is_private = any(str(step).startswith("_") for step in path)
        if not path or not same or is_private or not isinstance(part, Pipeline | ColumnTransformer):
            continue
        if not any(path[: len(outer)] == outer for outer in found):
            found[path] = part
    return list(found.values())


def _column(name: str, index: int, branches: Sequence[_Branch], placeholders: Mapping[str, str]) -> TableColumn:
    """Return the description of a column, from all branches that take it."""
    places = [(branch, branch.place(index)) for branch in branches]
    taken = [(branch, place) for branch, place in places if place is not None]
    if not taken:
        return TableColumn(name, "unused")
    if any(branch.steps and _is_text(branch.steps[0], place) for branch, place in taken):
        takes = all(not branch.steps or _takes_placeholders(branch.steps[0]) for branch, _ in taken)
        column = TableColumn(name, "text", placeholders=placeholders if takes else {})
    else:
        column = TableColumn(name, "number", all(branch.allows_missing for branch, _ in taken))

    for branch, place in taken:
        # The step that describes the column is an encoder or a vectorizer, perhaps after an imputer.
        literal: frozenset[Any] = frozenset()
        for step in branch.steps[: 2 if branch.steps and _imputes(branch.steps[0]) else 1]:
            values = [*_fitted_values(step, place), *([step.missing_values] if _imputes(step) else [])]
            written: Mapping[str, str] = column.placeholders if _takes_placeholders(step) else {}
            absent = frozenset(written.get(str(value), str(value)) for value in values if is_gap(value))
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
    if unsure := column.literal & column.missing:
        raise ModelError(
            f"The text {min(unsure)!r} and missing text are two categories of column {name!r}, and the same in ONNX. "
            f"Write it otherwise, and fit the model on that."
        )
    return column


def _takes_placeholders(step: Estimator) -> bool:
    """Return True if a step may get a placeholder instead of "nan" or "None" for missing text."""
    return isinstance(step, OneHotEncoder | OrdinalEncoder | SimpleImputer) or bool(categories_by_column(step))


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
    """Return True if a step refuses unknown text, in scikit-learn or in its ONNX form."""
    if isinstance(step, OrdinalEncoder):
        return step.handle_unknown == "error" or bool(np.isnan(step.unknown_value))
    return isinstance(step, OneHotEncoder) and step.handle_unknown == "error"
