"""Converters of scikit-learn's multilayer perceptrons: one Gemm and one activation per layer."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ..._graph.builder import GraphBuilder
from ..._graph.cast_types import INT64
from .context import Converter, Source

NETWORK_ACTIVATIONS = {"identity": "Identity", "logistic": "Sigmoid", "relu": "Relu", "tanh": "Tanh"}
"""The operators of the activations."""


def _mlp_regressor(s: Source) -> Sequence[ir.Value]:
    return (_network_activation(s.op, _network_outputs(s), s.estimator.out_activation_),)


def _mlp_classifier(s: Source) -> Sequence[ir.Value]:
    """The softmax of several classes, the sigmoid of one score for two, or one sigmoid for each of several labels."""
    op, model, scores = s.op, s.estimator, _network_outputs(s)
    if model._label_binarizer.y_type_.startswith("multilabel"):
        return op.Cast(op.Greater(scores, 0.0), to=INT64), op.Sigmoid(scores)
    if len(model.classes_) > 2:
        return s.chosen(scores), op.Softmax(scores, axis=1)
    return s.chosen(op.Concat(op.Neg(scores), scores, axis=1)), s.columns(scores)


def _network_outputs(s: Source) -> ir.Value:
    """Return what the last layer computes before its activation."""
    model, x = s.estimator, s.x
    for i in range(model.n_layers_ - 1):
        x = x if i == 0 else _network_activation(s.op, x, model.activation)
        x = s.op.Gemm(x, s.parameter(model, ("coefs_", i)), s.parameter(model, ("intercepts_", i)))
    return x


def _network_activation(op: GraphBuilder, x: ir.Value, activation: str) -> ir.Value:
    if activation == "exp":  # the inverse link of the loss "poisson"
        return op.Exp(x)
    result: ir.Value = getattr(op, NETWORK_ACTIVATIONS[activation])(x)
    return result


CONVERTERS: dict[type, Converter] = {
    MLPClassifier: Converter(_mlp_classifier),
    MLPRegressor: Converter(_mlp_regressor),
}
