"""Steps of the optimizers for one parameter, by PyTorch's definitions, with decay that may change from step to step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxtrain_sklearn.optimizers import Optimizer

Memory = dict[str, np.ndarray]
Step = Callable[[Optimizer, np.ndarray, np.ndarray, Memory, int, float, float], np.ndarray]


def sgd(o, p, g, memory, t, rate, decay):
    g = g + decay * p
    if o.momentum:
        memory["b"] = g if t == 1 else o.momentum * memory["b"] + (1 - o.dampening) * g
        g = g + o.momentum * memory["b"] if o.nesterov else memory["b"]
    return p - rate * g


def _moments(o, g, memory, t):
    zero = np.zeros_like(g)
    memory["m"] = o.beta_1 * memory.get("m", zero) + (1 - o.beta_1) * g
    memory["v"] = o.beta_2 * memory.get("v", zero) + (1 - o.beta_2) * g**2
    return memory["m"] / (1 - o.beta_1**t) / (np.sqrt(memory["v"] / (1 - o.beta_2**t)) + o.epsilon)


def adam(o, p, g, memory, t, rate, decay):
    return p - rate * _moments(o, g + decay * p, memory, t)


def adamw(o, p, g, memory, t, rate, decay):
    return p - rate * decay * p - rate * _moments(o, g, memory, t)


def rmsprop(o, p, g, memory, t, rate, decay):
    g, zero = g + decay * p, np.zeros_like(g)
    memory["v"] = o.alpha * memory.get("v", zero) + (1 - o.alpha) * g**2
    memory["a"] = o.alpha * memory.get("a", zero) + (1 - o.alpha) * g
    v = memory["v"] - memory["a"] ** 2 if o.centered else memory["v"]
    memory["b"] = o.momentum * memory.get("b", zero) + g / (np.sqrt(v) + o.epsilon)
    return p - rate * memory["b"]


def adagrad(o, p, g, memory, t, rate, decay):
    g = g + decay * p
    memory["s"] = memory.get("s", np.full_like(g, o.initial_accumulator_value)) + g**2
    return p - rate / (1 + (t - 1) * o.lr_decay) * g / (np.sqrt(memory["s"]) + o.epsilon)


def lion(o, p, g, memory, t, rate, decay):
    m = memory.get("m", np.zeros_like(g))
    memory["m"] = o.beta_2 * m + (1 - o.beta_2) * g
    return p - rate * (np.sign(o.beta_1 * m + (1 - o.beta_1) * g) + decay * p)


STEPS: dict[str, Step] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "lion": lion,
}
