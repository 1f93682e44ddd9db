"""Gradients by central differences of the forward graph in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.contracts import references
from tests.contracts.gradient_cases import Case, in_type, model_of
from tests.helpers.sessions import session

NO_KERNEL = "NOT_IMPLEMENTED|ValidateOpsetForDomain|ValidateNoTransposeReduce|Type Error|is_onesided and inverse"
"""What a runtime says of graphs that it cannot run: no kernel, an opset too new, its own fault, what is not allowed."""

MIXED = 4
"""Directions along which an array is moved where it takes long."""


@dataclass(frozen=True)
class Slopes:
    """What a gradient gives along some directions, as the differences say."""

    directions: np.ndarray
    slopes: np.ndarray

    def assert_equal(self, gradient, relative, absolute, message=""):
        """Compare with a gradient; what is absolute is a part of the steepest slope, if that is more than 1."""
        found = np.tensordot(self.directions, gradient, axes=gradient.ndim)
        absolute *= max(1.0, np.abs(self.slopes).max(initial=0))
        np.testing.assert_allclose(found, self.slopes, rtol=relative, atol=absolute, err_msg=message)


def forward_values(model):
    """Return the function that runs the model, and whether it is fast.

    It is fast in onnxruntime, where that has the kernels, and slow in ONNX's reference. No runtime has kernels of
    recurrences in float64; sessions are created, and fail or give NaN when they run.
    """
    recurrent = re.search(r"(RNN|GRU|LSTM) ?<", onnx.printer.to_text(model))
    try:
        run = None if recurrent else session(model).run
    except Exception:
        run = None
    fast, run = run is not None, run or ReferenceEvaluator(model, new_ops=references.OPERATORS).run
    names = {i.name for i in model.graph.input}
    # BatchNormalization writes into what it is fed.
    return lambda feeds: run(None, {name: a.copy() for name, a in feeds.items() if name in names})[0], fast


def reference_gradients(case, index, opset=21):
    """Return the weights of y, the loss, and its slopes by central differences; ``opset`` is that of references."""
    body, opset = (case.reference, opset) if case.reference else (case.body, case.opsets[0])
    arrays = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in case.arrays.items()}
    everything = in_type(Case("", body, arrays, fed=tuple(arrays)), np.float64)
    model = model_of(everything, opset, arrays, np.ones(()), "inputs")
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None))
    values, fast = forward_values(model)
    feeds = {**arrays, "weighting": np.ones(())}
    weighting = np.random.default_rng(index).normal(size=np.shape(values(feeds)))

    def run(feeds):
        return np.sum(values(feeds) * weighting)  # here, as one session then gives the shape of y too

    found = {name: central_differences(run, feeds, name, directions(arrays[name], fast)) for name in case.names}
    return weighting, float(run(feeds)), found


def directions(array, fast):
    """Return one along each number, or a few along all, in which a number that is wrong or misplaced shows as well."""
    if fast or array.size <= MIXED:
        return np.eye(array.size).reshape(array.size, *array.shape)
    return np.random.default_rng(array.size).normal(size=(MIXED, *array.shape))


def central_differences(run, feeds, name, directions, step=1e-5):
    ends = [
        [float(run({**feeds, name: np.asarray(feeds[name] + move * direction)})) for move in (step, -step)]
        for direction in directions
    ]
    return Slopes(directions, np.array([(above - below) / (2 * step) for above, below in ends]))
