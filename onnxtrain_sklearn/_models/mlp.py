"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import onnx
from sklearn.utils import check_random_state

from .._support.rules import OneOf, Rules, Sizes
from .base import GraphModel
from .layers import ACTIVATIONS, INITIALIZATIONS, dense, empty_graph, finish, layer_sizes


class MLP(GraphModel):
    """Multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer; ``()`` is a linear model.
    activation : {"relu", "tanh", "logistic", "identity", "leaky_relu", "softplus", "silu", "gelu"}, default="relu"
        Activation of the hidden layers.
    initialization : str, default="glorot_uniform"
        Distribution of the initial weights, a name in :data:`INITIALIZATIONS`; the default is that of scikit-learn's
        MLP. He's suit deep networks of rectifiers. Biases start at zero.

    Notes
    -----
    The parameters are named ``layers.0.weight`` (n_in, n_out), ``layers.0.bias`` (n_out,), ``layers.1.weight``, ...

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    He et al., "Delving deep into rectifiers", ICCV 2015.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> model = MLP(hidden_layer_sizes=(8,)).build(n_features=4, n_outputs=3, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias']
    """

    __module__ = "onnxtrain_sklearn.models"  # the path by which pickles name it
    scales_targets = True
    valid: ClassVar[Rules] = {
        "hidden_layer_sizes": (Sizes(),),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
    }

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        initialization: str = "glorot_uniform",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.initialization = initialization

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        self.validate()
        sizes = [n_features, *layer_sizes(self.hidden_layer_sizes), n_outputs]
        rng = check_random_state(random_state)
        graph, op, x = empty_graph(n_features)
        last = len(sizes) - 2
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            x = dense(op, x, INITIALIZATIONS[self.initialization](rng, n_in, n_out), f"layers.{i}")
            x = ACTIVATIONS[self.activation](op, x) if i < last else x
        return finish(graph, x, n_outputs)
