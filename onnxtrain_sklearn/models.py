"""Graph builders: objects that make an ONNX graph of the size that the data need.

A builder has one method, ``build(n_features, n_outputs, random_state) -> onnx.ModelProto``; the estimators accept any
object that has it, and the names in :data:`MODELS`. The graph maps ``X`` (N, n_features) to ``scores`` (N, n_outputs),
without a final activation: the loss brings its own. Random numbers are drawn here, from ``random_state``, and nowhere
else. :class:`Builder` says what else a builder may ask for: the shape of a row, and the training data.
"""

from __future__ import annotations

from ._models.base import KEYWORDS, Builder, GraphModel, ModelSource, is_builder, keywords_of
from ._models.convnet import ConvNet
from ._models.embedded import Embedded
from ._models.embeddings import EMBEDDINGS, Embedding, PeriodicEmbedding, PiecewiseLinearEmbedding
from ._models.layers import ACTIVATIONS, INITIALIZATIONS
from ._models.linear import Linear
from ._models.mlp import MLP
from ._models.realmlp import RealMLP
from ._models.tabm import TabM

__all__ = [
    "ACTIVATIONS", "EMBEDDINGS", "INITIALIZATIONS", "KEYWORDS", "MLP", "MODELS", "Builder", "ConvNet", "Embedded",
    "Embedding", "GraphModel", "Linear", "ModelSource", "PeriodicEmbedding", "PiecewiseLinearEmbedding", "RealMLP",
    "TabM", "is_builder", "keywords_of", "resolve_builder",
]  # fmt: skip

MODELS: dict[str, type[GraphModel]] = {
    "mlp": MLP,
    "linear": Linear,
    "convnet": ConvNet,
    "realmlp": RealMLP,
    "tabm": TabM,
}
"""The builders that the package brings; the estimators take their names as ``model``."""


def resolve_builder(model: ModelSource) -> Builder | None:
    """Return the builder that ``model`` is or names, ``MLP()`` for None; None where it is a graph or an estimator."""
    if model is None:
        return MLP()
    if isinstance(model, str):
        return MODELS[model]() if model in MODELS else None
    return model if is_builder(model) else None
