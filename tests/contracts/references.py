"""Operators in numpy for ONNX's evaluator, in float64, with every setting: as the standard or onnxruntime says."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun

ACTIVATIONS = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Tanh": lambda x, a, b: np.tanh(x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
}
ALPHA = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"}
BETA = {"Affine", "HardSigmoid", "ScaledTanh"}
DEFAULTS = {"Elu": (1, 0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0), "ThresholdedRelu": (1, 0)}


class Recurrence(OpRun):
    """Runs row by row and step by step; a subclass computes one step of one row."""

    op_domain = ""
    gates = 1
    states = 1
    usual = ("Tanh",)

    def _run(self, x, w, r, b=None, lengths=None, *starts, direction=None, hidden_size=None, **settings):
        count, (steps, rows, _), size = len(w), x.shape, r.shape[-1]
        h0, c0, p = (*starts, None, None, None)[:3]
        states = [np.zeros((count, rows, size)) if s is None else s for s in (h0, c0)[: self.states]]
        b = np.zeros((count, 2 * self.gates * size)) if b is None else b
        lengths = np.full(rows, steps) if lengths is None else lengths
        outputs, ends = np.zeros((steps, count, rows, size)), [np.zeros((count, rows, size)) for _ in states]
        functions = self.functions(count, settings)
        for d in range(count):
            for row in range(rows):
                state, order = [s[d, row] for s in states], range(lengths[row])
                for t in order if not (direction == "reverse" or d) else reversed(order):
                    peep = None if p is None else np.split(p[d], 3)
                    state = self.step(x[t, row], w[d], r[d], *np.split(b[d], 2), state, functions[d], peep, settings)
                    outputs[t, d, row] = state[0]
                for end, value in zip(ends, state, strict=True):
                    end[d, row] = value if lengths[row] else 0
        return (outputs, *ends)

    def functions(self, count, settings):
        names = settings.get("activations") or list(self.usual) * count
        alphas, betas = (list(settings.get(f"activation_{k}") or []) for k in ("alpha", "beta"))
        found = []
        for name in names:
            a, b = DEFAULTS.get(name, (1, 0))
            a = alphas.pop(0) if name in ALPHA and alphas else a
            b = betas.pop(0) if name in BETA and betas else b
            found.append(lambda x, f=ACTIVATIONS[name], a=a, b=b: f(x, a, b))
        n = len(self.usual)
        return [found[i * n : (i + 1) * n] for i in range(count)]

    @staticmethod
    def clipped(x, settings):
        bound = settings.get("clip")
        return x if bound is None else np.clip(x, -bound, bound)


class RNN(Recurrence):
    def step(self, x, w, r, wb, rb, state, functions, peep, settings):
        return [functions[0](self.clipped(w @ x + r @ state[0] + wb + rb, settings))]


class GRU(Recurrence):
    gates = 3
    usual = ("Sigmoid", "Tanh")

    def step(self, x, w, r, wb, rb, state, functions, peep, settings):
        f, g = functions
        (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
        (bz, br, bh), (cz, cr, ch) = np.split(wb, 3), np.split(rb, 3)
        (h,) = state
        z = f(self.clipped(wz @ x + rz @ h + bz + cz, settings))
        reset = f(self.clipped(wr @ x + rr @ h + br + cr, settings))
        past = reset * (rh @ h + ch) if settings.get("linear_before_reset") else rh @ (reset * h) + ch
        new = g(self.clipped(wh @ x + past + bh, settings))
        return [(1 - z) * new + z * h]


class LSTM(Recurrence):
    gates = 4
    states = 2
    usual = ("Sigmoid", "Tanh", "Tanh")

    def step(self, x, w, r, wb, rb, state, functions, peep, settings):
        f, g, last = functions
        h, c = state
        i, o, forget, new = np.split(w @ x + r @ h + wb + rb, 4)
        p_i, p_o, p_f = peep or np.zeros((3, len(c)))
        i = f(self.clipped(i + p_i * c, settings))
        forget = 1 - i if settings.get("input_forget") else f(self.clipped(forget + p_f * c, settings))
        cell = forget * c + i * g(self.clipped(new, settings))
        return [f(self.clipped(o + p_o * cell, settings)) * last(cell), cell]


class DeformConv(OpRun):
    """Bilinear samples around points that are moved, zeros outside; ONNX's own evaluator takes seconds for one."""

    op_domain = ""

    def _run(self, x, w, offset, b=None, mask=None, dilations=None, group=None, offset_group=None, pads=None,
             strides=None, kernel_shape=None):  # fmt: skip
        n, (out, each, *kernel), parts, size = len(x), w.shape, offset_group or 1, offset.shape[2:]
        moves = offset.reshape(n, parts, *kernel, 2, *size)
        at = [
            np.arange(kernel[k]).reshape([-1, *[1] * (3 - k)]) * (dilations or (1, 1))[k] - (pads or (0, 0))[k]
            + np.arange(size[k]).reshape([-1, *[1] * (1 - k)]) * (strides or (1, 1))[k] + moves[:, :, :, :, k]
            for k in (0, 1)
        ]  # fmt: skip
        factor = np.ones_like(at[0]) if mask is None else mask.reshape(at[0].shape)
        samples = bilinear(x.reshape(n, parts, -1, *x.shape[2:]), at) * factor[:, :, None]
        samples = samples.reshape(n, group or 1, each, *samples.shape[3:])
        weights = w.reshape(group or 1, -1, each, *kernel)
        y = np.einsum("ngcklij,gockl->ngoij", samples, weights).reshape(n, out, *size)
        return (y if b is None else y + b.reshape(-1, 1, 1),)


def bilinear(images, at):
    """Return samples of images [n, part, channel, row, column] at rows and columns [n, part, ...]."""
    n, parts = np.ix_(*map(np.arange, images.shape[:2]))
    n, parts = (i.reshape(*i.shape, *[1] * (at[0].ndim - 2)) for i in (n, parts))
    total = 0.0
    for corner in np.ndindex(2, 2):
        ends = [np.floor(a) + c for a, c in zip(at, corner, strict=True)]
        share = np.prod([1 - np.abs(a - e) for a, e in zip(at, ends, strict=True)], axis=0)
        inside = np.all([(e >= 0) & (e < k) for e, k in zip(ends, images.shape[3:], strict=True)], axis=0)
        rows, columns = (e.clip(0, k - 1).astype(int) for e, k in zip(ends, images.shape[3:], strict=True))
        total = total + (share * inside)[..., None] * images[n, parts, :, rows, columns]
    return np.moveaxis(total, -1, 2)


class Erf(OpRun):
    """In the type of its input; ONNX's own reference computes in float32."""

    op_domain = ""

    def _run(self, x):
        return (np.vectorize(math.erf, otypes=[x.dtype.char])(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x, approximate=None):
        return (x / 2 * (1 + np.vectorize(math.erf, otypes=[x.dtype.char])(x / np.sqrt(2))),)


class Inverse(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x):
        return (np.linalg.inv(x),)


OPERATORS = [RNN, GRU, LSTM, DeformConv, Erf, Gelu, Inverse]
