"""A network of one hidden layer that numpy trains in float64, step by step: the reference of settings of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.helpers.optimizers import RULES

Weights = dict[str, np.ndarray]
NAMES = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")


def loss_and_gradients(
    w: Weights, X: np.ndarray, y: np.ndarray, weights: np.ndarray, alpha: float = 0.0
) -> tuple[float, Weights]:
    """Return the weighted mean squared error of ``MLP((k,), "tanh")`` with its penalty, and the gradients."""
    hidden = np.tanh(X @ w[NAMES[0]] + w[NAMES[1]])
    off = hidden @ w[NAMES[2]] + w[NAMES[3]] - y[:, None]
    total = weights.sum()
    cotangent = 2 * off * weights[:, None] / total
    inner = (cotangent @ w[NAMES[2]].T) * (1 - hidden**2)
    gradients = (X.T @ inner, inner.sum(axis=0), hidden.T @ cotangent, cotangent.sum(axis=0))
    matrices = [w[name] for name in NAMES if w[name].ndim == 2]
    loss = (weights[:, None] * off**2).sum() / total + alpha / 2 * sum((m**2).sum() for m in matrices) / total
    found = dict(zip(NAMES, gradients, strict=True))
    return float(loss), {n: g + (alpha * w[n] / total if w[n].ndim == 2 else 0.0) for n, g in found.items()}


def clipped(gradients: Weights, limit: float | None) -> Weights:
    """Return the gradients with their common norm limited."""
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    share = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
    return {name: g * share for name, g in gradients.items()}


def trained(
    start: Mapping[str, np.ndarray],
    X: np.ndarray,
    y: np.ndarray,
    *,
    rate: float,
    batch: int,
    epochs: int = 1,
    optimizer: str = "adamw",
    decay: float = 0.0,
    rates: Mapping[str, float] | None = None,
    decays: Mapping[str, float] | None = None,
    rate_at: Callable[[int], float] = lambda t: 1.0,
    decay_at: Callable[[int], float] = lambda t: 1.0,
    sample_weight: np.ndarray | None = None,
    alpha: float = 0.0,
    limit: float | None = None,
    after: Callable[[Weights], None] = lambda w: None,
    orders: Sequence[np.ndarray] | None = None,
    **settings: float,
) -> tuple[Weights, list[float]]:
    """Return the weights after some epochs in the given order of rows, and the mean loss of each epoch.

    ``orders`` are the rows of each epoch, by default all in their order. ``rates`` and ``decays`` are factors by name,
    ``rate_at`` and ``decay_at`` those of a step, from 0 on. ``after`` is called with the weights after each step.
    """
    w = {name: np.asarray(start[name], np.float64) for name in NAMES}
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    rules = {name: RULES[optimizer](**settings) for name in NAMES}
    X, y, losses, t = np.asarray(X, np.float64), np.asarray(y, np.float64), [], 0
    for epoch in range(epochs):
        order, total = np.arange(len(X)) if orders is None else orders[epoch], 0.0
        for rows in [order[part] for part in _slices(len(order), batch)]:
            loss, gradients = loss_and_gradients(w, X[rows], y[rows], weights[rows], alpha)
            gradients, total = clipped(gradients, limit), total + loss * weights[rows].sum()
            w = {
                name: rules[name](
                    w[name],
                    gradients[name],
                    rate * rate_at(t) * (rates or {}).get(name, 1.0),
                    decay * decay_at(t) * (decays or {}).get(name, 1.0),
                )
                for name in NAMES
            }
            after(w)
            t += 1
        losses.append(total / weights[order].sum())
    return w, losses


def _slices(rows: int, batch: int) -> Sequence[slice]:
    return [slice(i, i + batch) for i in range(0, rows, batch)]


def largest_error(found: Mapping[str, np.ndarray], expected: Weights, start: Mapping[str, np.ndarray]) -> float:
    """Return the largest error of an array, relative to the largest move of one of its elements, or to 1e-2."""
    moves = {name: max(1e-2, np.abs(expected[name] - start[name]).max()) for name in NAMES}
    return max(float(np.abs(found[name] - expected[name]).max() / moves[name]) for name in NAMES)
