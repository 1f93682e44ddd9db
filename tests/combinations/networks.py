"""The networks that MLP and Linear build, by the formulas of their documentation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from onnxtrain_sklearn import MLP, Linear
from tests.combinations.tape import ACTIVATIONS, Value

Weights = dict[str, np.ndarray]
EPSILON, MOMENTUM = 1e-5, 0.1


class Network:
    """Scores of a builder's network for given weights, in training and in prediction.

    Batch normalization takes the statistics of the minibatch where its scale or its shift is among ``trained``, else
    the running ones. ``moved`` are these after the latest training pass.
    """

    def __init__(self, builder: MLP | Linear) -> None:
        self.builder = builder
        self.trained: Collection[str] = ()
        self.moved: Weights = {}

    def scores(self, weights: Weights, X: np.ndarray) -> np.ndarray:
        """Return the scores of rows as the trained network predicts them."""
        return self._scores({n: Value(a) for n, a in weights.items()}, X, training=False).array

    def run(self, weights: Weights, X: np.ndarray) -> tuple[Value, dict[str, Value]]:
        """Return the scores of a training pass and the weights, all with what backward needs."""
        values = {name: Value(array) for name, array in weights.items()}
        self.moved = {}
        return self._scores(values, X, training=True), values

    def _scores(self, weights: Mapping[str, Value], X: np.ndarray, *, training: bool) -> Value:
        x, builder = Value(X), self.builder
        if isinstance(builder, Linear):
            return self._dense(weights, x, "")
        for i in range(len(builder.hidden_layer_sizes)):
            x = self._hidden(weights, x, f"layers.{i}", training)
        return self._dense(weights, x, f"layers.{len(builder.hidden_layer_sizes)}.")

    def _dense(self, weights: Mapping[str, Value], x: Value, stem: str) -> Value:
        product = x @ weights[f"{stem}weight"]
        return product + weights[f"{stem}bias"] if f"{stem}bias" in weights else product

    def _hidden(self, weights: Mapping[str, Value], x: Value, name: str, training: bool) -> Value:
        builder, z = self.builder, self._dense(weights, x, f"{name}.")
        if builder.normalization:
            z = self._normalized(weights, z, f"{name}.normalization", training)
        h = z.apply(*ACTIVATIONS[builder.activation])
        if builder.parametric_activation and builder.activation != "identity":
            h = z + (h - z) * weights[f"{name}.activation"]
        if not builder.residual:
            return h
        shortcut = weights.get(f"{name}.shortcut.weight")
        return h + (x if shortcut is None else x @ shortcut)

    def _normalized(self, weights: Mapping[str, Value], z: Value, name: str, training: bool) -> Value:
        axis = 0 if self.builder.normalization == "batch" else 1
        training = training and not {f"{name}.weight", f"{name}.bias"}.isdisjoint(self.trained)
        if axis == 0 and not training:
            mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        else:
            mean = z.mean(axis)
            variance = ((z - mean) * (z - mean)).mean(axis)
        if axis == 0 and training:
            for key, value in (("mean", mean), ("var", variance)):
                old = weights[f"{name}.running_{key}"].array
                self.moved[f"{name}.running_{key}"] = old + MOMENTUM * (value.array[0] - old)
        root = variance.apply(lambda v: (v + EPSILON) ** -0.5, lambda v: -0.5 * (v + EPSILON) ** -1.5)
        return (z - mean) * root * weights[f"{name}.weight"] + weights[f"{name}.bias"]
