"""Losses as blocks, with the graphs of the original; the target becomes an input of the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import onnx

from ..._model.links import Link, Task
from . import blocks
from .blocks import current_accessor


class _ResidualLoss(blocks.Block):
    """The mean of a function of ``output - target``."""

    _function: ClassVar[Callable[[], blocks.Block]]

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self._reduce = blocks.reducing(reduction)
        self._sub, self._cost = blocks.Sub(), type(self)._function()

    def build(self, loss_input_name: str, target_name: str = "target") -> Any:
        """Return the name of the loss of ``loss_input_name``, an output of the graph, for a target like it."""
        target = _target_input(loss_input_name, target_name)
        return self._reduce(self._cost(self._sub(loss_input_name, target)))


class MSELoss(_ResidualLoss):
    """Squared error, the mean of ``(output - target)²``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default="mean"
    """

    _function = partial(blocks.Pow, 2.0)


class L1Loss(_ResidualLoss):
    """Absolute error, the mean of ``|output - target|``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default="mean"
    """

    _function = blocks.Abs


class CrossEntropyLoss(blocks.Block):
    """Cross-entropy of scores, with classes on the last axis, and labels, which are class indices.

    Parameters
    ----------
    weight : ndarray of shape (n_classes,), default=None
        Weight of each class.
    reduction : {"mean", "sum", "none"}, default="mean"
    ignore_index : int, default=None
        A label whose rows are ignored.
    """

    def __init__(
        self, weight: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__()
        self._weight = weight
        self._reduction = blocks.require_reduction(reduction)
        self._ignore_index = ignore_index

    def loss_link(self, task: Task) -> Link:
        return "softmax" if task == "multiclass" else "identity"

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Return the name of the loss of ``scores_input_name``, an output of the graph."""
        if not blocks.has_value(labels_name):
            labels = blocks.declared(scores_input_name)
            labels.name, tensor = labels_name, labels.type.tensor_type
            tensor.elem_type = onnx.TensorProto.INT64
            del tensor.shape.dim[-1]
            self.base.graph.input.append(labels)
        weights = [] if self._weight is None else [blocks.initializer(np.asarray(self._weight), "celoss.weight")]
        names = [scores_input_name, labels_name, *weights]
        attributes: dict[str, Any] = {} if self._ignore_index is None else {"ignore_index": self._ignore_index}
        # onnxruntime-training's builder needs the second output, which nothing else reads.
        outputs = [current_accessor().name("loss"), current_accessor().name("log_prob")]
        by_rows = current_accessor().by_rows and self._reduction == "mean"
        reduction = "none" if by_rows else self._reduction
        loss = blocks.emit("SoftmaxCrossEntropyLoss", names, outputs=outputs, reduction=reduction, **attributes)
        return blocks.ReduceMean(keepdims=False)(loss) if by_rows else loss


class BCEWithLogitsLoss(blocks.Block):
    """Binary cross-entropy of the logistic function of scores, for targets 0 and 1 of the same shape.

    The operators are those of the original: the loss is infinite or NaN for scores above about 17. The loss "log_loss"
    of the estimators is finite for all scores.

    Parameters
    ----------
    weight : ndarray, default=None
        Factor of the losses, broadcast to their shape.
    reduction : {"mean", "sum", "none"}, default="mean"
    pos_weight : ndarray, default=None
        Factor of the losses of positive targets.
    """

    def __init__(
        self, weight: np.ndarray | None = None, reduction: str = "mean", pos_weight: np.ndarray | None = None
    ) -> None:
        super().__init__()
        self._weight, self._pos_weight = weight, pos_weight
        self._reduce = blocks.reducing(reduction)
        self._sigmoid = blocks.Sigmoid()
        self._log = blocks.Log()
        self._neg = blocks.Neg()
        self._sub = blocks.Sub()
        self._add = blocks.Add()
        self._mul = blocks.Mul()

    def loss_link(self, task: Task) -> Link:
        return "identity" if task == "regression" else "sigmoid"

    def build(self, loss_input_name: str, target_name: str = "target") -> Any:
        """Return the name of the loss of ``loss_input_name``, an output of the graph, for a target like it."""
        target = _target_input(loss_input_name, target_name)
        # Two constants of one, as in the original: the graphs are to be equal node for node.
        one, other = (blocks.single(1.0, "bceloss.sub_ones") for _ in range(2))
        probability = self._sigmoid(loss_input_name)
        positive = self._mul(self._log(probability), target)
        if self._pos_weight is not None:
            positive = self._mul(positive, blocks.initializer(self._pos_weight, "bceloss.pos_weight"))
        negative = self._mul(self._log(self._sub(one, probability)), self._sub(other, target))
        loss = self._neg(self._add(positive, negative))
        if self._weight is not None:
            loss = self._mul(blocks.initializer(self._weight, "bceloss.weight"), loss)
        return self._reduce(loss)


def _target_input(like: str, name: str) -> str:
    """Return the name of the target; add an input like the graph's output ``like`` if there is none."""
    return name if blocks.has_value(name) else str(blocks.InputLike(like)(name))


__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]
