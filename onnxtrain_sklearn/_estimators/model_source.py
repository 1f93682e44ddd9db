"""The trained graph, if it is known without data: a given graph, a fitted estimator's, or that of an earlier call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import onnx
import onnx_ir as ir
from sklearn.base import is_classifier

from .._fitted.model import FittedModel, is_estimator
from .._fitted.tables import holds_text
from .._given.ml_files import is_fitted_graph, is_plain_graph_of_text
from .._given.ml_start import of_kind
from .._graph.constants import dequantized
from .._graph.dynamic_quantization import with_float_products
from .._graph.fake_quantization import fake_quantized
from .._graph.files import without_program
from .._graph.joined_outputs import join_outputs
from .._graph.keras_normalization import join_normalizations
from .._graph.narrow import widened
from .._graph.protobuf import LABELS, load
from .._graph.trainable import TrainableModel, trainable_model
from .._graph.training_mode import in_training_mode
from .._support.refusal import refusing
from .._support.typing import MatrixLike
from ..exceptions import ModelError, instead_of, nearest
from ..losses import LossSource
from ..models import MODELS, ModelSource, resolve_builder
from .parameters import Parameters
from .run import Run
from .settings import require_own_kind

LONGEST_NAME = 40
"""Largest length of a string that may be a misspelled builder name; longer strings are paths."""


def given_graph(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> ir.Model:
    """Return the graph of a file in the form that is trained: in floats of one type, with layers as single nodes."""
    return join_normalizations(dequantized(fake_quantized(with_float_products(widened(load(model))))))


def source_of(
    model: ModelSource,
    output: str | None,
    *,
    has_text: bool = False,
    joined: bool = False,
    training_mode: bool = False,
    several: Sequence[str] = (),
) -> tuple[TrainableModel, FittedModel | None]:
    """Return the trainable form of the user's ``model``, and for a fitted model its description.

    ``has_text`` says whether the data have columns that are not numeric, ``joined`` whether the loss is computed on the
    concatenation of all outputs of the graph, ``training_mode`` whether its nodes are switched over to training,
    ``several`` names the outputs that are trained together.
    """
    model = without_program(model)
    if is_estimator(model):
        if output is not None:
            raise ValueError(f"output={output!r} names an output of an ONNX graph; model is a {type(model).__name__}.")
        from .._fitted.preparation import fitted_model  # needs skl2onnx and private names of scikit-learn

        return fitted_model(model, has_text=has_text)
    if not isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        raise TypeError(
            f"model must be an onnx.ModelProto, its bytes, the path of an ONNX file, a fitted scikit-learn model, a "
            f"graph builder such as MLP(), its name, or None, {instead_of(model)}."
        )
    if isinstance(model, str) and len(model) < LONGEST_NAME and model.isidentifier() and not os.path.exists(model):
        raise ValueError(
            f"Unknown model {model!r}.{nearest(model, MODELS)} Other strings are paths of ONNX files, and there is no "
            f"file {model!r}."
        )
    whole = given_graph(model)
    whole = in_training_mode(whole) if training_mode else whole
    plain = is_plain_graph_of_text(whole, output) and (joined or bool(several))  # of which training says what it takes
    if (labels := whole.meta[LABELS]) or (is_fitted_graph(whole, output) and not plain):
        _require_one_output(several)
        from .._given.ml_conversion import fitted_file  # needs much of scikit-learn

        with refusing("The graph cannot be prepared for training"):
            return fitted_file(whole, output, labels)
    whole, widths = join_outputs(whole) if joined and output is None else (whole, ())
    found = trainable_model(whole, output, foreign=True, several=several)
    return replace(found, reference=whole, joined=widths), None


def _require_one_output(several: Sequence[str]) -> None:
    if several:
        raise ModelError(
            f"The graph is that of a fitted model (ai.onnx.ml), which is trained on one output, not on "
            f"{list(several)}: take OrtGradientClassifier or OrtGradientRegressor."
        )


def known_source(
    estimator: Parameters, old: Run | None, X: MatrixLike
) -> tuple[TrainableModel | None, FittedModel | None]:
    """Return the graph if it is known before the data: given, or trained by an earlier call."""
    if old is not None:
        if old.began is not None:
            old.began.require_same(estimator)
        return old.given, old.fitted
    if resolve_builder(estimator.model) is not None:
        return None, None
    if is_estimator(estimator.model):
        require_own_kind(estimator)
    joined = isinstance(estimator.loss, LossSource)
    text, mode = holds_text(X), estimator.training_mode
    found = source_of(estimator.model, estimator.output, has_text=text, joined=joined, training_mode=mode)
    return of_kind(found, classifies=is_classifier(estimator))
