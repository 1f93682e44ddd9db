"""Prepare a fitted scikit-learn model for training: from the estimator to a trainable graph.

:func:`fitted_model` is the way, in the order of its steps: ``convert`` makes a graph in float32, which is pruned to the
trained output; ``_ml_operators`` rewrites its ai.onnx.ml operators; ``provenance`` names its parameters after the
estimators and attributes that they come from; ``scores`` gives its output a form that a loss can be computed on; and
``text_encoder`` splits off what reads text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from sklearn.utils.validation import check_is_fitted

from .._ir.edits import hold_as_constant
from .._ir.shapes import infer_shapes
from .._ml_operators.rewrite import Rewritten, rewrite
from .._model.trainable import TrainableModel, trainable_model
from .._model.weights import parameters_of
from .._utils.typing import Estimator
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder
from ..losses import Loss, Quantile
from .convert import converted, library_of, loss_of_booster
from .converters.context import ConversionRecord
from .corrections import refuse_untrainable, split_in_double, without_gradient
from .fitted_model import FittedModel, Table
from .input_table import table_of
from .model_record import ModelRecord, features_of, record_of
from .provenance import VOTES, Origin, Tracer, named
from .scores import (
    CHOICE,
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
from .traversal import follow


def fitted_model(estimator: Estimator, *, has_text: bool = False) -> tuple[TrainableModel, FittedModel]:
    """Return a fitted model as a trainable graph, and facts about it.

    ``has_text`` says whether the data have columns that are not numeric.

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
    source = _trainable(model, origins, record)
    source, parts = (source, None) if table is None else in_parts(source)
    if not source.parameters:
        raise ModelError(without_gradient(record))
    return source, FittedModel(
        origins=tuple(origin for origin in origins if origin.name in source.parameters),
        classes=record.classes,
        n_labels=None if record.outputs is None else len(record.outputs),
        features=features_of(estimator),
        loss=_loss_of(record, source),
        table=table,
        parts=parts,
    )


def _trainable(model: ir.Model, origins: Sequence[Origin], record: ModelRecord) -> TrainableModel:
    """Return the graph whose parameters are the fitted numbers, in the order of their origins."""
    names = {value.name for value in model.graph.outputs}
    special: dict[str, Any] = {name: name for name in (PAIRS, CHOICE) if name in names}
    try:
        source = trainable_model(model, **special)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(without_gradient(record)) from error
    fitted = [o for o in origins if o.name in source.parameters and not _is_setting(o, source, record.estimator)]
    return replace(source, parameters=tuple(origin.name for origin in fitted))


def _graph_of(record: ModelRecord, table: Table | None) -> tuple[ir.Model, Sequence[Origin]]:
    """Return the graph in operators of the default domain, and the origins of its parameters.

    The order matters: votes are found by nodes of the converters, which rewriting replaces; parameters get their names
    before anything is computed from them; thresholds apply to the scores, which are exposed first.
    """
    estimator = record.estimator
    rewritten, conversions, structure = _rewritten(record, table)

    def convert_copy(estimator_copy: Estimator) -> tuple[ir.Model, object]:
        other, _, structure_of_copy = _rewritten(record_of(estimator_copy), table)
        return other.model, structure_of_copy

    model, tracer = rewritten.model, Tracer(estimator, structure, convert_copy)
    origins = named(model, rewritten.roles, conversions, estimator, tracer)
    origins = list(split_in_double(model, origins, estimator))
    # Votes of training points are trained only where nothing else is, which can be written back.
    others, trained = [one for one in origins if one.form != VOTES], parameters_of(model.graph, model.graph.outputs[0])
    origins = others if any(one.name in trained for one in others) else origins
    # Float initializers without an origin are no weights: they become Constant nodes.
    named_values, op = {one.name for one in origins}, GraphBuilder(model.graph, prefix="constant", constant_nodes=True)
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
    """Return the rewritten graph, what each converter added, and the structure before rewriting."""
    texts, marks = (None, {}) if table is None else (table.texts, table.marks)
    model, conversions = converted(record.estimator, texts, marks)
    prune(model, 1 if record.gives_labels else 0)
    structure = [(node.op_type, [x and x.name for x in node.inputs]) for node in model.graph]
    keep_votes(model.graph, record, conversions)
    keep_votes_of_labels(model.graph, record, conversions)
    infer_shapes(model)
    return rewrite(model), conversions, structure


def _is_setting(origin: Origin, source: TrainableModel, estimator: Estimator) -> bool:
    """Return True if a parameter is a setting: neutral numbers of a scaler, an intercept with fit_intercept=False."""
    owner = follow(estimator, origin.owner)
    if origin.role == "default" and len(getattr(owner, "categories_", ())) > 1:
        return True  # the columns share one mean for unknown categories
    if origin.attribute:
        return "intercept" in str(origin.attribute[0]) and getattr(owner, "fit_intercept", True) is False
    if origin.role in ("base_values", "imputed"):  # redundant beside leaves; chosen by the user
        return True
    numbers = source.model.graph.initializers[origin.name].const_value
    neutral = {"offset": 0.0, "scale": 1.0}.get(origin.role)
    return neutral is not None and numbers is not None and bool((numbers.numpy() == neutral).all())


def _loss_of(record: ModelRecord, source: TrainableModel) -> str | Loss:
    """Return the loss of the last step, where there is one for it here."""
    last = record.last
    if record.gives_labels:
        machine = last.estimators_[0] if record.is_one_vs_one else last
        return "log_loss" if hasattr(machine, "predict_proba") else "hinge"
    if library_of(last) is not None:
        return loss_of_booster(last)
    if source.link == "exp":
        if isinstance(getattr(last, "loss", None), str):  # trees and networks
            return str(last.loss)
        power = getattr(last, "power", {"PoissonRegressor": 1, "GammaRegressor": 2}.get(record.last_name, 0))
        return {1.0: "poisson", 2.0: "gamma"}.get(float(power), "squared_error")
    if record.last_name == "QuantileRegressor":
        return Quantile(last.quantile)
    return {"HuberRegressor": "huber"}.get(record.last_name, "squared_error")
