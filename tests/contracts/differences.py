"""Gradients by central differences of the forward graph in float64."""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.contracts import references
from tests.contracts.gradient_cases import Case, in_type, model_of
from tests.helpers.sessions import session

NO_KERNEL = "NOT_IMPLEMENTED|ValidateOpsetForDomain|ValidateNoTransposeReduce|Type Error|is_onesided and inverse"
"""What a runtime says of graphs that it cannot run: no kernel, an opset too new, its own fault, what is not allowed."""


def forward_values(model):
    """Return the function that runs the model, in onnxruntime where it has the kernels, else in ONNX's reference.

    No runtime has kernels of recurrences in float64; sessions are created, and fail or give NaN when they run.
    """
    recurrent = re.search(r"(RNN|GRU|LSTM) ?<", onnx.printer.to_text(model))
    try:
        run = None if recurrent else session(model).run
    except Exception:
        run = None
    run = run or ReferenceEvaluator(model, new_ops=references.OPERATORS).run
    names = {i.name for i in model.graph.input}
    # BatchNormalization writes into what it is fed.
    return lambda feeds: run(None, {name: a.copy() for name, a in feeds.items() if name in names})[0]


def reference_gradients(case, index, opset=21):
    """Return the weights of y, the loss, and its gradients by central differences; ``opset`` is that of references."""
    body, opset = (case.reference, opset) if case.reference else (case.body, case.opsets[0])
    arrays = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in case.arrays.items()}
    everything = in_type(Case("", body, arrays, fed=tuple(arrays)), np.float64)
    probe = model_of(everything, opset, arrays, np.ones(()), "inputs")
    probe.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None))
    weighting = np.random.default_rng(index).normal(
        size=np.shape(forward_values(probe)({**arrays, "weighting": np.ones(())}))
    )
    run = forward_values(model_of(everything, opset, arrays, weighting, "inputs"))
    feeds = {**arrays, "weighting": weighting}
    return weighting, float(run(feeds)), {name: central_differences(run, feeds, name) for name in case.names}


def central_differences(run, feeds, name, step=1e-5):
    array = feeds[name]
    gradient = np.zeros_like(array)
    for i in np.ndindex(array.shape):
        moved = np.stack([array, array])
        moved[(0, *i)] += step
        moved[(1, *i)] -= step
        ends = [float(run({**feeds, name: np.asarray(end)})) for end in moved]
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient
