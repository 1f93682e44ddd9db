"""Values and gradients of a model of onnx-ir: runs in onnxruntime, and slopes by central differences in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain_sklearn._gradient.engine import differentiate
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.edits import initializers_to_inputs
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.shapes import infer_shapes
from onnxtrain_sklearn._model.precision import in_dtype
from onnxtrain_sklearn._model.weights import parameters_of
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.sessions import session as session_of


def run(model, feeds):
    """Run a model in onnxruntime."""
    return run_proto(to_proto(model), feeds)


def run_proto(proto, feeds):
    return session_of(proto).run(None, feeds)


def assert_same(expected, found, tolerance=1e-5):
    """Floats relative to the largest of the output; labels exactly."""
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        assert found.dtype == expected.dtype
        scale = max(float(np.abs(expected[np.isfinite(expected)]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(found, expected)


def scalar_of(model, output, feeds):
    """Return a clone that returns the sum of one output under fixed random weights, its inputs of fixed size."""
    result = model.clone()
    graph = result.graph
    y = next(v for v in graph.outputs if v.name == output)
    for value in graph.inputs:
        value.shape = ir.Shape(feeds[value.name].shape)
    sizes = dict(zip([v.name for v in graph.outputs], (np.shape(a) for a in run(model, feeds)), strict=True))[output]
    weights = np.random.default_rng(11).normal(size=sizes).astype(np.float32)
    graph.outputs.clear()
    op = GraphBuilder(graph, prefix="test", constant_nodes=True)
    total = op.ReduceSum(op.Mul(y, weights), keepdims=False)
    total.name, total.shape = "loss", ir.Shape([])
    graph.outputs.append(total)
    ir.passes.common.RemoveUnusedNodesPass()(result)
    return infer_shapes(result)


def slopes_along_entries(model, feeds, name, entries, step=1e-6):
    """Return the slope of the scalar along some entries of an initializer, in float64."""
    double = in_dtype(model, ir.DataType.DOUBLE)
    array = double.graph.initializers[name].const_value.numpy().copy()
    initializers_to_inputs(double.graph, [name])
    session = session_of(to_proto(double))
    fed = {v.name: feeds[v.name] for v in model.graph.inputs}
    fed = {key: a.astype(np.float64) if a.dtype == np.float32 else a for key, a in fed.items()}
    slopes = []
    for entry in entries:
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[entry] += sign * step
            ends.append(float(session.run(None, {**fed, name: moved})[0]))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.array(slopes)


def assert_gradients(model, output, feeds, engine, tolerance=2e-4, entries=40, only=()):
    """Compare the gradients of an output by the parameters that reach it, all or ``only`` some; return their names."""
    if isinstance(model, onnx.ModelProto):
        model = load(model)
    loss = scalar_of(model, output, feeds)
    names = [n for n in parameters_of(loss.graph, loss.graph.outputs[0]) if not only or n in only]
    gradient = differentiate(loss, names, "loss", engine).model
    fed = {v.name: feeds[v.name] for v in gradient.graph.inputs}
    found = dict(zip([v.name for v in gradient.graph.outputs], run(gradient, fed), strict=True))
    for name in names:
        slope = found[f"{name}_grad"]
        assert slope.shape == loss.graph.initializers[name].const_value.numpy().shape, name
        chosen = np.random.default_rng(0).permutation(list(np.ndindex(slope.shape)))[:entries]
        chosen = [tuple(int(i) for i in entry) for entry in chosen]
        expected = slopes_along_entries(loss, feeds, name, chosen)
        scale = max(np.abs(expected).max(), np.abs(slope).max(), 1e-2)
        np.testing.assert_allclose([slope[c] for c in chosen], expected, rtol=0, atol=tolerance * scale, err_msg=name)
    return names
