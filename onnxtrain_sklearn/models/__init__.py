"""Graph builders: objects that make an ONNX graph of the size that the data need.

A builder has one method, ``build(n_features, n_outputs, random_state) -> onnx.ModelProto``; the estimators accept any
object that has it, and the names in :data:`MODELS`. The graph maps ``X`` (N, n_features) to ``scores`` (N, n_outputs),
without a final activation: the loss brings its own. Random numbers are drawn here, from ``random_state``, and nowhere
else. :class:`Builder` documents further arguments that a builder may ask for: the shape of a row, the training data.

``base`` holds the interface; ``layers`` linear, dense and convolutional networks and what they are made of;
``embeddings`` the embeddings of numeric columns; ``tabular`` the networks for tables; ``given`` the settings of a graph
that is given instead of built.
"""

from __future__ import annotations

from .._utils.params import registered
from .base import KEYWORDS as KEYWORDS
from .base import BaseBuilder as BaseBuilder
from .base import Builder as Builder
from .base import ModelLike as ModelLike
from .base import is_builder as is_builder
from .base import keywords_of as keywords_of
from .embeddings import EMBEDDINGS as EMBEDDINGS
from .embeddings import Embedded as Embedded
from .embeddings import Embedding as Embedding
from .embeddings import PeriodicEmbedding as PeriodicEmbedding
from .embeddings import PiecewiseLinearEmbedding as PiecewiseLinearEmbedding
from .given import GraphModel as GraphModel
from .given import bare_model
from .layers import ACTIVATIONS as ACTIVATIONS
from .layers import INITIALIZATIONS as INITIALIZATIONS
from .layers import MLP as MLP
from .layers import ConvNet as ConvNet
from .layers import Linear as Linear
from .tabular import RealMLP as RealMLP
from .tabular import TabM as TabM

MODELS: dict[str, type[BaseBuilder]] = registered(BaseBuilder, vars())
"""The builders imported above, by the names that the estimators take as ``model``."""


def resolve_builder(model: ModelLike) -> Builder | None:
    """Return the builder that ``model`` is or names, ``MLP()`` for None; None where it is a graph or an estimator."""
    model = bare_model(model)
    if model is None:
        return MLP()
    if isinstance(model, str):
        return MODELS[model]() if model in MODELS else None
    return model if is_builder(model) else None
