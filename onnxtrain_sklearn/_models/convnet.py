"""The convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.utils import check_random_state

from .._graph.builder import GraphBuilder
from .._support.rules import COUNT, OneOf, Rules, Sizes
from .base import BY_CHANNEL, GraphModel
from .layers import ACTIVATIONS, INITIALIZATIONS, dense, empty_graph, finish, layer_sizes


class ConvNet(GraphModel):
    """Convolutional network for small images and for signals: rounds of convolution and pooling, then a linear layer.

    A round is a convolution with ``kernel_size`` that keeps the size, the activation, and max pooling that halves each
    axis. Rows are images of shape (channels, height, width) or (height, width), or signals of shape (length,): a table
    is read as a signal, in the order of its columns.

    Parameters
    ----------
    channels : int or sequence of int, default=(16, 32)
        Channels of each convolution.
    kernel_size : int, default=3
        Extent of the kernels along each axis.
    activation : str, default="relu"
        Activation behind each convolution, a name in :data:`~onnxtrain_sklearn.models.ACTIVATIONS`.
    initialization : str, default="he_uniform"
        Distribution of the initial weights, a name in :data:`~onnxtrain_sklearn.models.INITIALIZATIONS`. Biases start
        at zero.

    Notes
    -----
    The parameters are named ``convolutions.0.weight`` (channels, channels_in, kernel_size, ...),
    ``convolutions.0.bias`` (channels,), ..., ``head.weight`` and ``head.bias``.

    References
    ----------
    LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE 86, 1998.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import ConvNet, OrtGradientClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> images = X.reshape(-1, 8, 8) / 16
    >>> net = OrtGradientClassifier(ConvNet(8), learning_rate_init=0.02, tol=0.05, n_iter_no_change=3, random_state=0)
    >>> net.fit(images[:500], y[:500]).score(images[500:], y[500:]) > 0.85
    True
    """

    name = "convnet"
    scales_targets = True
    scales_rows = BY_CHANNEL
    valid: ClassVar[Rules] = {
        "channels": (Sizes(),),
        "kernel_size": (COUNT,),
        "activation": (OneOf(ACTIVATIONS),),
        "initialization": (OneOf(INITIALIZATIONS),),
    }

    def __init__(
        self,
        channels: int | Sequence[int] = (16, 32),
        kernel_size: int = 3,
        activation: str = "relu",
        initialization: str = "he_uniform",
    ) -> None:
        self.channels = channels
        self.kernel_size = kernel_size
        self.activation = activation
        self.initialization = initialization

    def build(
        self,
        n_features: int,
        n_outputs: int,
        random_state: int | np.random.RandomState | None = None,
        *,
        row_shape: Sequence[int] | None = None,
    ) -> onnx.ModelProto:
        self.validate()
        row = (n_features,) if row_shape is None else tuple(row_shape)
        if len(row) > 3:
            raise ValueError(f"ConvNet takes rows of shape (channels, height, width) or less, got {row}.")
        rng = check_random_state(random_state)
        graph, op, x = empty_graph(*row)
        shape = row if len(row) == 3 else (1, *row)
        x = x if len(row) == 3 else op.Unsqueeze(x, [1])
        for i, n_out in enumerate(layer_sizes(self.channels)):
            x, shape = self._round(op, x, shape, n_out, rng, f"convolutions.{i}")
        draw = INITIALIZATIONS[self.initialization]
        return finish(graph, dense(op, op.Flatten(x), draw(rng, prod(shape), n_outputs), "head"), n_outputs)

    def _round(
        self, op: GraphBuilder, x: ir.Value, shape: tuple[int, ...], n_out: int, rng: np.random.RandomState, name: str
    ) -> tuple[ir.Value, tuple[int, ...]]:
        """Append convolution, activation and pooling; return the output and its shape without the batch axis."""
        (n_in, *extent), k = shape, int(self.kernel_size)
        window = [k] * len(extent)
        fan_in, fan_out = n_in * prod(window), n_out * prod(window)
        kernel = INITIALIZATIONS[self.initialization](rng, fan_in, fan_out, (n_out, n_in, *window))
        w = op.parameter(f"{name}.weight", kernel.astype(np.float32))
        b = op.parameter(f"{name}.bias", np.zeros(n_out, np.float32))
        pads = [(k - 1) // 2] * len(extent) + [k // 2] * len(extent)
        x = ACTIVATIONS[self.activation](op, op.Conv(x, w, b, kernel_shape=window, pads=pads))
        halves = [min(2, n) for n in extent]
        return op.MaxPool(x, kernel_shape=halves, strides=halves), (
            n_out,
            *(n // h for n, h in zip(extent, halves, strict=True)),
        )
