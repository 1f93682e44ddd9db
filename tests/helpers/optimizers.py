"""Every optimizer in float64 NumPy, one array at a time, written from its paper or PyTorch's documented pseudo-code.

``RULES[name](**settings)`` returns the step of one array: a function of the array, its gradient, the learning rate and,
unless it is that of the settings, the weight decay. It keeps the state. A new optimizer has an entry in :data:`RULES`
and :data:`SETTINGS`, and in :data:`ROSENBROCK` if the default there is too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Update = Callable[..., np.ndarray]


def sgd(momentum=0.0, nesterov=False, dampening=0.0, weight_decay=0.0):
    b = None

    def step(p, g, rate, decay=weight_decay):
        nonlocal b
        g = g + decay * p
        if momentum:
            b = g if b is None else momentum * b + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
        return p - rate * g

    return step


def moments(beta_1, beta_2):
    """Return the corrected averages of Adam, by the gradient."""
    m = v = t = 0

    def averaged(g):
        nonlocal m, v, t
        t += 1
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
        return m / (1 - beta_1**t), v / (1 - beta_2**t)

    return averaged


def adam(beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0.0):
    averaged = moments(beta_1, beta_2)

    def step(p, g, rate, decay=weight_decay):
        m, v = averaged(g + decay * p)
        return p - rate * m / (np.sqrt(v) + epsilon)

    return step


def adamw(beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0.01):
    averaged = moments(beta_1, beta_2)

    def step(p, g, rate, decay=weight_decay):
        m, v = averaged(g)
        return p - rate * decay * p - rate * m / (np.sqrt(v) + epsilon)

    return step


def rmsprop(alpha=0.99, epsilon=1e-8, momentum=0.0, centered=False, weight_decay=0.0):
    v = average = b = 0

    def step(p, g, rate, decay=weight_decay):
        nonlocal v, average, b
        g = g + decay * p
        v = alpha * v + (1 - alpha) * g**2
        average = alpha * average + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - average**2 if centered else v) + epsilon)
        return p - rate * b

    return step


def adagrad(lr_decay=0.0, initial_accumulator_value=0.0, epsilon=1e-10, weight_decay=0.0):
    total, t = initial_accumulator_value, 0

    def step(p, g, rate, decay=weight_decay):
        nonlocal total, t
        g, t = g + decay * p, t + 1
        total = total + g**2
        return p - rate / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + epsilon)

    return step


def lion(beta_1=0.9, beta_2=0.99, weight_decay=0.0):
    m = 0

    def step(p, g, rate, decay=weight_decay):
        nonlocal m
        p = p - rate * (np.sign(beta_1 * m + (1 - beta_1) * g) + decay * p)
        m = beta_2 * m + (1 - beta_2) * g
        return p

    return step


def lamb(beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay=0.01):
    """Algorithm 2 of You et al.; arrays of rank below two are AdamW's."""
    averaged, plain = moments(beta_1, beta_2), adamw(beta_1, beta_2, epsilon)

    def step(p, g, rate, decay=weight_decay):
        if p.ndim < 2:
            return plain(p, g, rate, decay)
        m, v = averaged(g)
        u = m / (np.sqrt(v) + epsilon) + decay * p
        norms = np.linalg.norm(p), np.linalg.norm(u)
        return p - rate * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * u

    return step


def muon(
    momentum=0.95, nesterov=True, weight_decay=0.1, steps=5, scale="match_rms_adamw", epsilon=1e-7,
    beta_1=0.9, beta_2=0.999,
):  # fmt: skip
    """The code of Jordan et al.; arrays that are no matrices are AdamW's."""
    m, plain = 0, adamw(beta_1, beta_2)

    def orthogonal(x):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = x / max(np.linalg.norm(x), epsilon)
        for _ in range(steps):
            x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
        return x

    def step(p, g, rate, decay=weight_decay):
        nonlocal m
        if p.ndim != 2:
            return plain(p, g, rate, decay)
        m = momentum * m + (1 - momentum) * g
        x = orthogonal((1 - momentum) * g + momentum * m if nesterov else m)
        n_rows, n_columns = p.shape
        factor = np.sqrt(max(1, n_rows / n_columns)) if scale == "original" else 0.2 * np.sqrt(max(n_rows, n_columns))
        return p - rate * decay * p - rate * factor * x

    return step


def adafactor(decay_rate=0.8, epsilon_1=None, epsilon_2=1e-3, clip_threshold=1.0, weight_decay=0.0, precision=None):
    """The pseudo-code of ``torch.optim.Adafactor``; ``precision`` is that of the type in which it is trained."""
    v = row = column = t = 0
    if epsilon_1 is None:
        epsilon_1 = np.finfo(np.float32).eps if precision is None else precision

    def rms(x):
        return np.sqrt((x**2).mean())

    def step(p, g, rate, decay=weight_decay):
        nonlocal v, row, column, t
        t += 1
        beta = 1 - t**-decay_rate
        length = max(epsilon_2, rms(p)) * min(rate, t**-0.5)
        p = p - rate * decay * p
        if p.ndim > 1:
            row = beta * row + (1 - beta) * (g**2).mean(axis=-1, keepdims=True)
            column = beta * column + (1 - beta) * (g**2).mean(axis=-2, keepdims=True)
            square = row @ column / np.maximum(row.mean(axis=-2, keepdims=True), epsilon_1)
        else:
            square = v = beta * v + (1 - beta) * g**2
        u = g / np.sqrt(np.maximum(square, epsilon_1**2))
        return p - length * u / max(1.0, rms(u) / clip_threshold)

    return step


RULES: dict[str, Callable[..., Update]] = {
    "adafactor": adafactor,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
    "lamb": lamb,
    "lion": lion,
    "muon": muon,
    "rmsprop": rmsprop,
    "sgd": sgd,
}


SETTINGS: dict[str, list[dict[str, object]]] = {
    "sgd": [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.8, "dampening": 0.5},
    ],
    "adam": [
        {},
        {"weight_decay": 0.1},
        {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.01},
        {"beta_1": 0.0, "beta_2": 0.0},
    ],
    "adamw": [{}, {"weight_decay": 0.0}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.01, "weight_decay": 1.0}],
    "rmsprop": [
        {},
        {"alpha": 0.9, "epsilon": 0.01, "weight_decay": 0.1},
        {"momentum": 0.9},
        {"centered": True},
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "epsilon": 0.01, "weight_decay": 0.1},
    ],
    "adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "epsilon": 0.01, "weight_decay": 0.1}],
    "lion": [{}, {"weight_decay": 0.1}, {"beta_1": 0.5, "beta_2": 0.8}],
    "lamb": [{}, {"weight_decay": 0.0}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.01, "weight_decay": 1.0}],
    "muon": [
        {},
        {"nesterov": False, "weight_decay": 0.0},
        {"momentum": 0.6, "scale": "original", "steps": 2, "epsilon": 30.0, "beta_1": 0.5, "beta_2": 0.9},
    ],
    "adafactor": [
        {},
        {"decay_rate": 0.5, "epsilon_1": 0.01, "epsilon_2": 1.0, "clip_threshold": 2.0, "weight_decay": 0.1},
    ],
}
"""Settings that the tests try."""

ROSENBROCK: dict[str, tuple[dict[str, object], float, int]] = {
    "sgd": ({"momentum": 0.9}, 3e-4, 5000),
    "adam": ({}, 0.02, 2500),
    "adamw": ({}, 0.02, 2500),
    "rmsprop": ({"momentum": 0.5}, 0.002, 5000),
    "adagrad": ({}, 0.5, 4000),
    "lamb": ({}, 0.02, 2500),
    "muon": ({"weight_decay": 0.01}, 0.02, 2500),
    "adafactor": ({}, 0.01, 5000),
}
"""Settings, learning rate and steps with which an optimizer minimizes Rosenbrock's function.

Where they are not these: none, 0.002 and 5000.
"""


def trained_by(
    name: str, p: np.ndarray, steps: Sequence[tuple[float, np.ndarray]], /, **settings: object
) -> np.ndarray:
    """Return the array after steps of (learning rate, gradient), in float64."""
    update, p = RULES[name](**settings), np.asarray(p, np.float64)
    for rate, g in steps:
        p = update(p, np.asarray(g, np.float64), rate)
    return p
