"""Graph builders: objects that make an ONNX graph of the size that the data need.

A builder has one method, ``build(n_features, n_outputs, random_state) -> onnx.ModelProto``; the estimators accept any
object that has it, and the names in :data:`MODELS`. The graph maps ``X`` (N, n_features) to ``scores`` (N, n_outputs),
without a final activation: the loss brings its own. Random numbers are drawn here, from ``random_state``, and nowhere
else. :class:`Builder` says what else a builder may ask for: the shape of a row, and the training data.
"""

from __future__ import annotations

from ._models.base import KEYWORDS as KEYWORDS
from ._models.base import Builder as Builder
from ._models.base import GraphModel as GraphModel
from ._models.base import ModelSource as ModelSource
from ._models.base import is_builder as is_builder
from ._models.base import keywords_of as keywords_of
from ._models.convnet import ConvNet as ConvNet
from ._models.embedded import Embedded as Embedded
from ._models.embeddings import EMBEDDINGS as EMBEDDINGS
from ._models.embeddings import Embedding as Embedding
from ._models.embeddings import PeriodicEmbedding as PeriodicEmbedding
from ._models.embeddings import PiecewiseLinearEmbedding as PiecewiseLinearEmbedding
from ._models.layers import ACTIVATIONS as ACTIVATIONS
from ._models.layers import INITIALIZATIONS as INITIALIZATIONS
from ._models.linear import Linear as Linear
from ._models.mlp import MLP as MLP
from ._models.realmlp import RealMLP as RealMLP
from ._models.tabm import TabM as TabM
from ._support.components import registered

MODELS: dict[str, type[GraphModel]] = registered(GraphModel, vars())
"""The builders imported above, by the names that the estimators take as ``model``."""


def resolve_builder(model: ModelSource) -> Builder | None:
    """Return the builder that ``model`` is or names, ``MLP()`` for None; None where it is a graph or an estimator."""
    if model is None:
        return MLP()
    if isinstance(model, str):
        return MODELS[model]() if model in MODELS else None
    return model if is_builder(model) else None
