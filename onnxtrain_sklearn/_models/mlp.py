"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._support.rules import BELOW_ONE, OneOf, Rules, Sizes
from .base import BY_COLUMN, Draft, GraphModel
from .layers import (
    ACTIVATIONS,
    INITIALIZATIONS,
    NORMALIZATIONS,
    dense,
    dropped_out,
    empty_graph,
    finish,
    layer_sizes,
    normalized,
    parametric,
)


class MLP(GraphModel):
    """Multi-layer perceptron.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer; ``()`` is a linear model.
    activation : str, default="relu"
        Activation of the hidden layers: "relu", "tanh", "logistic", "identity", "leaky_relu", "softplus", "silu",
        "gelu", "elu", "selu" or "mish".
    initialization : str, default="glorot_uniform"
        Distribution of the initial weights, a name in :data:`~onnxtrain_sklearn.models.INITIALIZATIONS`; the
        default is that of scikit-learn's MLP. He's suit deep networks of rectifiers. Biases start at zero.
    dropout : float, default=0.0
        Share of the hidden units that a training step leaves out, in [0, 1). Predictions use all of them.
    normalization : {"batch", "layer"} or None, default=None
        Normalization before each activation, by the mean and the variance of each unit over the minibatch ("batch")
        or of the units of each row ("layer"), with a trained scale and shift. Predictions with "batch" use running
        statistics, which move by a tenth with each minibatch; such layers have no bias of their own, their statistics
        count rows, not weights, and the portable engine trains them.
    residual : bool, default=False
        Whether the input of each hidden layer is added to its output. Where the sizes differ, it goes through a matrix
        of its own first.
    parametric_activation : bool, default=False
        Whether each hidden unit has a trained number ``a`` of its own that makes the activation
        ``x + a (activation(x) - x)``. It starts at one, and is left out where the activation is the identity.

    Notes
    -----
    A hidden layer computes ``h -> dropout(activation(normalization(h W + b)))``, and with ``residual`` the sum of that
    and ``h``, or ``h V``.

    The parameters are named ``layers.0.weight`` (n_in, n_out), ``layers.0.bias`` (n_out,),
    ``layers.0.normalization.weight``, ``layers.0.normalization.bias``, ``layers.0.normalization.running_mean``,
    ``layers.0.normalization.running_var``, ``layers.0.activation`` (n_out,), ``layers.0.shortcut.weight``
    (n_in, n_out), ``layers.1.weight``, ...

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    He et al., "Delving deep into rectifiers", ICCV 2015.
    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
    Ioffe and Szegedy, "Batch normalization", ICML 2015; Ba et al., "Layer normalization", arXiv 1607.06450.
    He et al., "Deep residual learning for image recognition", CVPR 2016.
    Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017 ("selu"); Misra, "Mish", BMVC 2020.

    Examples
    --------
    >>> from onnxtrain_sklearn import MLP
    >>> model = MLP(hidden_layer_sizes=(8,)).build(n_features=4, n_outputs=3, random_state=0)
    >>> [initializer.name for initializer in model.graph.initializer]
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight', 'layers.1.bias']
    """

    name = "mlp"
    scales_targets = True
    scales_rows = BY_COLUMN
    valid: ClassVar[Rules] = {
        "hidden_layer_sizes": (Sizes(),),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
        "dropout": (BELOW_ONE,),
        "normalization": (OneOf(NORMALIZATIONS), None),
        "residual": (bool,),
        "parametric_activation": (bool,),
    }

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        initialization: str = "glorot_uniform",
        dropout: float = 0.0,
        normalization: str | None = None,
        residual: bool = False,
        parametric_activation: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.initialization = initialization
        self.dropout = dropout
        self.normalization = normalization
        self.residual = residual
        self.parametric_activation = parametric_activation

    def build(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None = None
    ) -> onnx.ModelProto:
        return self.draft(n_features, n_outputs, random_state).graph()

    def draft(self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None) -> Draft:
        drawn = self._drawn(n_features, n_outputs, random_state)
        return Draft(drawn, (), lambda: self._graph(n_features, n_outputs, drawn))

    def _graph(self, n_features: int, n_outputs: int, drawn: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        graph, op, x = empty_graph(n_features)
        hidden = len(layer_sizes(self.hidden_layer_sizes))
        for i in range(hidden):
            x = self._hidden(op, x, f"layers.{i}", drawn)
        return finish(graph, dense(op, x, drawn[f"layers.{hidden}.weight"], f"layers.{hidden}"), n_outputs)

    def _drawn(
        self, n_features: int, n_outputs: int, random_state: int | np.random.RandomState | None
    ) -> dict[str, np.ndarray]:
        self.validate()
        rng, draw = check_random_state(random_state), INITIALIZATIONS[self.initialization]
        sizes, drawn = [n_features, *layer_sizes(self.hidden_layer_sizes)], {}
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            drawn[f"layers.{i}.weight"] = draw(rng, n_in, n_out)
            if self.residual and n_in != n_out:
                drawn[f"layers.{i}.shortcut.weight"] = draw(rng, n_in, n_out)
        drawn[f"layers.{len(sizes) - 1}.weight"] = draw(rng, sizes[-1], n_outputs)
        return drawn

    def _hidden(self, op: GraphBuilder, x: ir.Value, name: str, drawn: Mapping[str, np.ndarray]) -> ir.Value:
        """Emit a hidden layer."""
        weight = drawn[f"{name}.weight"]
        n_in, n_out = weight.shape
        z = dense(op, x, weight, name, bias=self.normalization != "batch")
        if self.normalization is not None:
            z = normalized(op, z, n_out, self.normalization, f"{name}.normalization")
        h = ACTIVATIONS[self.activation](op, z)
        if self.parametric_activation and self.activation != "identity":
            h = parametric(op, z, h, n_out, name)
        h = dropped_out(op, h, float(self.dropout))
        if not self.residual:
            return h
        own = f"{name}.shortcut"
        shortcut = x if n_in == n_out else dense(op, x, drawn[f"{own}.weight"], own, bias=False)
        return op.Add(h, shortcut)
