"""A graph with heads of all kinds on one trunk, data for it, and its losses in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain_sklearn.graph import GraphBuilder
from tests.contracts.test_losses import REFERENCES

WIDTH = 6


@dataclass(frozen=True)
class Kind:
    """One kind of head: the axes of a row of its scores, its loss, and the groups or positions of its labels."""

    row: tuple[int, ...]
    loss: str
    task: str
    groups: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return int(np.prod(self.row))


KINDS = {
    "class": Kind((3,), "log_loss", "multiclass"),
    "yes": Kind((1,), "log_loss", "binary"),
    "margin": Kind((3,), "squared_hinge", "multiclass"),
    "tags": Kind((3,), "focal", "multilabel"),
    "labels": Kind((5,), "log_loss", "multioutput", groups=(2, 3)),
    "number": Kind((1,), "squared_error", "regression"),
    "numbers": Kind((2,), "huber", "regression"),
    "count": Kind((1,), "poisson", "regression"),
    "map": Kind((2, 3), "squared_error", "regression"),
    "words": Kind((4, 3), "log_loss", "multiclass", places=(4,)),
    "switches": Kind((4, 1), "log_loss", "binary", places=(4,)),
}


def weights(dtype: Any = np.float32, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"trunk": (5, WIDTH), **{f"{name}.weight": (WIDTH, kind.size) for name, kind in KINDS.items()}}
    return {name: (0.4 * rng.normal(size=shape)).astype(np.float32).astype(dtype) for name, shape in shapes.items()}


def graph(names: list[str], **links: str) -> onnx.ModelProto:
    """Return the graph with these heads; ``links`` name an operator that follows the scores of some of them."""
    x = ir.val("X", ir.DataType.FLOAT, ("N", 5))
    op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="heads"), constant_nodes=True)
    arrays = weights()

    def weight(name: str) -> ir.Value:
        value = ir.Value(name=name, const_value=ir.tensor(arrays[name], name=name))
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(arrays[name].shape)
        op.graph.register_initializer(value)
        return value

    hidden = op.Tanh(op.MatMul(x, weight("trunk")))
    for name in names:
        scores = op.MatMul(hidden, weight(f"{name}.weight"))
        if len(KINDS[name].row) > 1:
            scores = op.Reshape(scores, [-1, *KINDS[name].row])
        final = getattr(op, links[name])(scores) if name in links else op.Identity(scores)
        final.name, final.dtype, final.shape = name, ir.DataType.FLOAT, ir.Shape(["N", *KINDS[name].row])
        op.graph.outputs.append(final)
    return ir.to_proto(ir.Model(op.graph, ir_version=8))


def data(n: int = 37, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return rows and their targets; all classes are there, and some words do not count."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    words = rng.integers(3, size=(n, 4))
    words[np.arange(4) >= rng.integers(1, 5, n)[:, None]] = -100
    y = {
        "class": np.array(["a", "b", "c"])[np.arange(n) % 3],
        "yes": np.arange(n) % 2 * 2 - 1,
        "margin": rng.permutation(n) % 3,
        "tags": rng.integers(2, size=(n, 3)),
        "labels": np.column_stack([np.arange(n) % 2, np.arange(n) % 3 + 10]),
        "number": X[:, 0] + X[:, 1],
        "numbers": X[:, :2] * 3,
        "count": rng.poisson(2.0, n).astype(float),
        "map": rng.normal(size=(n, 2, 3)),
        "words": words,
        "switches": rng.integers(5, 7, size=(n, 4)),
    }
    return X, y


def row_losses(kind: Kind, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each row, and how many labels of it count, as a share."""
    reference = REFERENCES[kind.loss]
    flat = scores.reshape(len(scores), -1)
    if kind.places:
        counted = y.reshape(len(y), -1) >= 0
        rows = scores.reshape(len(y) * counted.shape[1], -1)
        known = np.unique(y[y >= 0])
        index = np.searchsorted(known, y.ravel().clip(known[0]))
        target = index[:, None] if kind.task == "binary" else np.eye(len(known))[index]
        own = reference(rows, target.astype(float), kind.task).mean(axis=1).reshape(counted.shape)
        count = counted.sum(axis=1)
        return (own * counted).sum(axis=1) / np.maximum(count, 1), count / counted.shape[1]
    if kind.groups:
        ends = np.cumsum(kind.groups)[:-1]
        parts = zip(np.split(flat, ends, axis=1), y.T, strict=True)
        each = [reference(s, np.eye(s.shape[1])[np.unique(t, return_inverse=True)[1]], "multiclass") for s, t in parts]
        return np.mean([own.mean(axis=1) for own in each], axis=0), np.ones(len(y))
    index = np.unique(y, return_inverse=True)[1].reshape(y.shape)
    target = {"multiclass": lambda: np.eye(flat.shape[1])[index], "binary": lambda: index[:, None].astype(float)}.get(
        kind.task, lambda: y.reshape(len(y), -1).astype(float)
    )()
    return reference(flat, target, kind.task).mean(axis=1), np.ones(len(y))


def total_loss(
    arrays: dict[str, np.ndarray],
    X: np.ndarray,
    y: dict[str, np.ndarray],
    loss_weights: dict[str, float],
    sample_weights: dict[str, np.ndarray],
) -> float:
    """Return the weighted sum over the outputs of the weighted mean over the rows."""
    hidden, total = np.tanh(X.astype(float) @ arrays["trunk"]), 0.0
    for name, target in y.items():
        losses, share = row_losses(KINDS[name], hidden @ arrays[f"{name}.weight"], target)
        weight = sample_weights.get(name, np.ones(len(X))) * share
        total += loss_weights.get(name, 1.0) * float(weight @ losses / weight.sum())
    return total


def slopes(arrays: dict[str, np.ndarray], *others: Any) -> dict[str, np.ndarray]:
    """Return the gradient of the total loss by central differences in float64."""
    found, h = {}, 1e-6
    for name, array in arrays.items():
        found[name] = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * h
                ends.append(total_loss({**arrays, name: moved}, *others))
            found[name][place] = (ends[0] - ends[1]) / (2 * h)
    return found
