"""Optimizers as blocks: the graph that onnxruntime-training's Optimizer runs on all parameters at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx
import onnx.helper

from ...exceptions import ModelError
from . import blocks
from .training import ForwardBlock

ParameterLists = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


class ClipGradNorm(blocks.Block):
    """Clip the Euclidean norm of all gradients.

    Parameters
    ----------
    max_norm : float
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        """Return the name of the clipped gradients, a sequence."""
        token, domain = "clip_grad_norm_output", "com.microsoft"
        name = blocks.emit("InplaceClipGradNorm", [gradients_name], token, domain=domain, max_norm=self._max_norm)
        info = onnx.helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, None)
        self.base.graph.value_info.append(info)
        return name


class SGDOptimizer(blocks.Block):
    """The node of gradient descent."""

    def build(self, learning_rate_name: str, params_name: str, gradients_name: str) -> str:
        """Return the name of the flag that tells whether the parameters were updated."""
        names = [learning_rate_name, params_name, gradients_name]
        return blocks.emit("SGDOptimizerV2", names, "update_completed", domain="com.microsoft")


class AdamWOptimizer(blocks.Block):
    """The node of AdamW.

    Parameters
    ----------
    bias_correction : bool, default=True
    betas : tuple of float, default=(0.9, 0.999)
    eps : float, default=1e-6
    weight_decay : float, default=0.0
    adam_mode : {0, 1}, default=1
        Form of the bias correction. 1: the original's, which adds ``eps`` before the correction; 0: PyTorch's.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        adam_mode: int = 1,
    ) -> None:
        super().__init__()
        self._attributes: dict[str, Any] = {
            "alpha": betas[0],
            "beta": betas[1],
            "epsilon": eps,
            "weight_decay": weight_decay,
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": adam_mode,
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        """Return the name of the flag that tells whether the parameters were updated."""
        names = [learning_rate_name, step_name, parameter_sequence_name, gradient_sequence_name]
        names += [first_order_moment_sequence_name, second_order_moment_sequence_name]
        return blocks.emit("AdamWOptimizer", names, "adamw.updated_flag", domain="com.microsoft", **self._attributes)


class _Optimizer(ForwardBlock):
    """The graph of an optimizer: its inputs, the clipping, and one node that updates all parameters.

    Parameters
    ----------
    clip_grad : Block, default=None
        A block such as :class:`ClipGradNorm`.
    """

    sequences: Sequence[str] = ("params", "gradients", "first_order_moments")

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: ParameterLists) -> str:
        """Return the name of the flag; ``parameters`` is the result of TrainingBlock.parameters()."""
        trainable, _ = parameters
        if not trainable:
            raise ModelError("There is no parameter to update: name those that require a gradient.")
        graph, kind = self.base.graph, trainable[0].data_type
        for name, dtype in (("learning_rate", onnx.TensorProto.FLOAT), ("step", onnx.TensorProto.INT64)):
            graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [1]))
        for name in self.sequences:
            graph.input.append(onnx.helper.make_tensor_sequence_value_info(name, kind, None))
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        flag = self.update(gradients)
        graph.output.append(onnx.helper.make_tensor_value_info(flag, onnx.TensorProto.BOOL, [1]))
        return flag

    @abstractmethod
    def update(self, gradients_name: str) -> str:
        """Add the update node; return the name of its flag."""


class AdamW(_Optimizer):
    """The graph of AdamW, Adam with decoupled weight decay.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay, adam_mode
        As for the node, ``AdamWOptimizer``.
    clip_grad : Block, default=None
    """

    sequences = ("params", "gradients", "first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: blocks.Block | None = None,
        adam_mode: int = 1,
    ) -> None:
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay, adam_mode)

    def update(self, gradients_name: str) -> str:
        params, _, first, second = self.sequences
        return str(self._adamw("learning_rate", "step", params, gradients_name, first, second))


class SGD(_Optimizer):
    """The graph of gradient descent.

    Parameters
    ----------
    clip_grad : Block, default=None
    """

    def __init__(self, clip_grad: blocks.Block | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def update(self, gradients_name: str) -> str:
        return str(self._sgd("learning_rate", "params", gradients_name))


__all__ = ["SGD", "AdamW", "ClipGradNorm"]
