"""Features of RealMLP's networks: their last hidden layers, by scikit-learn's methods for transformers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._data.inputs import prediction_type
from .._estimators.streams_predictions import reads_source
from .._inference.predictor import prediction_graph
from .._ir.edits import keep_outputs
from .._ir.protobuf import from_bytes
from .._utils.typing import TableLike
from ..graph import GraphBuilder
from ..models.layers import layer_sizes

LAYER = re.compile(r"(?:(?P<network>\d+)\.)?layers\.(?P<layer>\d+)\.weight")
"""Names of the layers' weights, with the number of the network before them if there are several."""


def has_hidden_layer(recipe: Any) -> bool:
    """Return True if the networks have a hidden layer; else raise AttributeError."""
    if recipe.hidden_layer_sizes != "auto" and not layer_sizes(recipe.hidden_layer_sizes):
        raise AttributeError("transform is not available: the networks have no hidden layer.")
    return True


class LastHiddenLayers(TransformerMixin):
    """The methods of a transformer, for recipes whose networks have the layers of RealMLP."""

    hidden_layer_sizes: Any
    _graph: bytes

    def transform(self, X: TableLike) -> np.ndarray:
        """Return the values of the last hidden layer, as features for another model.

        Those of several networks (``n_ensembles``) stand side by side: their units do not correspond. TabM lacks this
        method, because each of its members has a hidden layer of its own.

        Parameters
        ----------
        X : as in :meth:`fit`, in memory

        Returns
        -------
        ndarray of shape (n_samples, n_features_out)
            float32 if ``X`` is float32, else float64. A data frame after ``set_output(transform="pandas")``.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.neighbors import KNeighborsRegressor
        >>> from sklearn.pipeline import make_pipeline
        >>> from onnxtrain_sklearn import RealMLPRegressor
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> network = RealMLPRegressor("td-s", hidden_layer_sizes=(64, 16), max_iter=20, random_state=0)
        >>> model = make_pipeline(network, KNeighborsRegressor(20)).fit(X[:342], y[:342])
        >>> model[:-1].transform(X).shape, model.score(X[342:], y[342:]) > 0.3
        ((442, 16), True)
        """
        check_is_fitted(self)
        if reads_source(X):
            raise TypeError("transform takes rows in memory: read the table first, a block at a time if it is large.")
        recipe: Any = self
        predictor = recipe._predictor_of("features", lambda: prediction_graph(features_model(self._graph)))
        found: np.ndarray = recipe._run(X, predictor)
        return found.astype(prediction_type(X), copy=False)

    @available_if(has_hidden_layer)
    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Return the names of the columns of :meth:`transform`: the name of the class in lower case, and a number.

        Parameters
        ----------
        input_features : ignored

        Returns
        -------
        ndarray of str objects
        """
        check_is_fitted(self)
        graph = from_bytes(self._graph).graph
        count = sum(_n_units(node) for node in _last_layers(graph))
        return np.array([f"{type(self).__name__.lower()}{i}" for i in range(count)], object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if not hasattr(self, "transform"):
            tags.transformer_tags = None
        return tags


# scikit-learn wraps these methods for ``set_output`` when the class is made. Around the wrapped methods,
# ``available_if`` still hides them from networks without hidden layers.
for _method in ("transform", "fit_transform"):
    setattr(LastHiddenLayers, _method, available_if(has_hidden_layer)(getattr(LastHiddenLayers, _method)))


def features_model(content: bytes) -> ir.Model:
    """Return the graph of a recipe whose output is the input of the last layer of each network, side by side."""
    model = from_bytes(content)
    inputs = [node.inputs[0] for node in _last_layers(model.graph)]
    op = GraphBuilder(model.graph, prefix="features", constant_nodes=True)
    features = op.Identity(inputs[0]) if len(inputs) == 1 else op.Concat(*inputs, axis=1)
    features.type = ir.TensorType(ir.DataType.FLOAT)
    features.shape = ir.Shape(["N", None])
    keep_outputs(model, [features])
    return model


def _last_layers(graph: ir.Graph) -> list[ir.Node]:
    """Return the product with the weights of the last layer of each network, in the order of the networks."""
    found = dict[int, tuple[int, ir.Node]]()
    for name, weight in graph.initializers.items():
        match = LAYER.fullmatch(name)
        if match is None:
            continue
        network, layer = int(match["network"] or 0), int(match["layer"])
        if network not in found or found[network][0] < layer:
            found[network] = layer, _product_with(weight)
    return [node for _, (_, node) in sorted(found.items())]


def _product_with(weight: ir.Value) -> ir.Node:
    node = next(iter(weight.uses())).node
    while node.op_type != "Gemm":  # absolute values of constrained weights
        node = next(iter(node.outputs[0].uses())).node
    return node


def _n_units(layer: ir.Node) -> int:
    """Return the number of units that a layer reads."""
    weight = layer.inputs[1]
    while weight is not None and weight.const_value is None:
        node = weight.producer()
        weight = None if node is None else node.inputs[0]
    assert weight is not None
    assert weight.const_value is not None
    return int(weight.const_value.numpy().shape[0])
