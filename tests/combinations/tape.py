"""Reverse mode in numpy, in float64: values that remember how they were computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import erf, expit

Pullback = Callable[[np.ndarray], np.ndarray]


@dataclass(eq=False)
class Value:
    """An array, and for each value that it was computed from what takes a cotangent back to it."""

    array: np.ndarray
    origins: list[tuple[Value, Pullback]] = field(default_factory=list)
    cotangent: np.ndarray | float = 0.0

    def __add__(self, other: Value) -> Value:
        return Value(self.array + other.array, [(x, summed_to(x.array.shape)) for x in (self, other)])

    def __sub__(self, other: Value) -> Value:
        return self + other.times(-1.0)

    def __mul__(self, other: Value) -> Value:
        pairs = ((self, other), (other, self))
        back = [(x, lambda c, x=x, y=y: summed_to(x.array.shape)(c * y.array)) for x, y in pairs]
        return Value(self.array * other.array, back)

    def __matmul__(self, other: Value) -> Value:
        back = [(self, lambda c: c @ other.array.T), (other, lambda c: self.array.T @ c)]
        return Value(self.array @ other.array, back)

    def times(self, number: float) -> Value:
        return Value(self.array * number, [(self, lambda c: c * number)])

    def mean(self, axis: int) -> Value:
        shape, count = self.array.shape, self.array.shape[axis]
        mean = self.array.mean(axis=axis, keepdims=True)
        return Value(mean, [(self, lambda c: np.broadcast_to(c, shape) / count)])

    def apply(self, function: Callable, slope: Callable) -> Value:
        return Value(function(self.array), [(self, lambda c: c * slope(self.array))])

    def backward(self, cotangent: np.ndarray, rounded: Pullback = np.asarray) -> None:
        """Add to the cotangents of all values that this one was computed from; each part of them is ``rounded``."""
        self.cotangent = cotangent
        for value in reversed(_ordered(self)):
            for origin, pullback in value.origins:
                origin.cotangent = origin.cotangent + rounded(pullback(np.asarray(value.cotangent)))


def _ordered(last: Value) -> list[Value]:
    """Return the values that lead to the last one, each after those that it was computed from."""
    found: dict[int, Value] = {}

    def visit(value: Value) -> None:
        if id(value) not in found:
            for origin, _ in value.origins:
                visit(origin)
            found[id(value)] = value

    visit(last)
    return list(found.values())


def summed_to(shape: tuple[int, ...]) -> Pullback:
    """Return what sums a cotangent over the axes along which an array of this shape was repeated."""

    def summed(c: np.ndarray) -> np.ndarray:
        c = c.sum(axis=tuple(range(c.ndim - len(shape))))
        axes = tuple(i for i, n in enumerate(shape) if n == 1 and c.shape[i] != 1)
        return c.sum(axis=axes, keepdims=True)

    return summed


def normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(0, x))


def _mish_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(np.logaddexp(0, x))
    return t + x * (1 - t * t) * expit(x)


SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772

ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "logistic": (expit, lambda x: expit(x) * expit(-x)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01)),
    "softplus": (lambda x: np.logaddexp(0, x), expit),
    "silu": (lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))),
    "gelu": (
        lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
        lambda x: (1 + erf(x / np.sqrt(2))) / 2 + x * normal_density(x),
    ),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), lambda x: np.exp(np.minimum(x, 0))),
    "selu": (
        lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0))),
        lambda x: SCALE * np.where(x > 0, 1, ALPHA * np.exp(np.minimum(x, 0))),
    ),
    "mish": (_mish, _mish_slope),
}
"""The activations of MLP and their slopes."""
